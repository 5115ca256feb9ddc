//! The problems that the tiles of a family are measured on.

use anyhow::Result;
use fa_kernels::variant::Layout as Operands;
use flash_attention::Problem;
use flash_attention::backward::BackwardProblem;
use flash_attention::decode::DecodeProblem;
use flash_attention::gemm::{GemmProblem, Matrices, Order};

use super::family::Family;
use super::shape::Shape;
use super::space::{Point, Space};
use crate::decode;
use crate::failure::usage;
use crate::problem::{Defaults, ProblemArgs};
use crate::session::Session;

/// The problem of attention, but for head_dim.
const ATTENTION: Defaults = Defaults { batch: 4, heads: 32, seq: 2048 };

/// That of decoding: batch, heads, kv_heads, and keys.
const DECODE: [usize; 4] = [64, 32, 8, 8192];

/// M, N and K of a product.
const PRODUCT: usize = 4096;

/// Sizes of a product.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ProductArgs {
    /// Rows of A and C [default: 4096]
    #[arg(long)]
    m: Option<usize>,
    /// Columns of B and C [default: 4096]
    #[arg(long)]
    n: Option<usize>,
    /// Columns of A and rows of B [default: 4096]
    #[arg(long)]
    k: Option<usize>,
}

/// One for each point of a space, in their order.
pub(super) enum Problems {
    Forward(Vec<Problem>),
    Decode(Vec<DecodeProblem>),
    Backward(Vec<BackwardProblem>),
    Product(Vec<GemmProblem>),
}

impl Problems {
    /// What the arguments describe for each point.
    ///
    /// # Errors
    /// When the family has no use for one of them, or there is no such problem.
    pub(super) fn new(args: &ProblemArgs, product: &ProductArgs, space: &Space) -> Result<Self> {
        check_use(space.kernel, args, product)?;
        let points = space.points();
        let forward = |point: &Point| args.problem(point.head_dim, ATTENTION);
        Ok(match space.kernel {
            Family::ForwardSimt | Family::ForwardSm80 | Family::ForwardSm90 => {
                Self::Forward(points.iter().map(forward).collect::<flash_attention::Result<_>>()?)
            }
            Family::BackwardSm80 | Family::BackwardSm90 => {
                let backward = |point| BackwardProblem::like(forward(point)?);
                Self::Backward(points.iter().map(backward).collect::<flash_attention::Result<_>>()?)
            }
            Family::Decode | Family::DecodeSm90 => {
                let of = |point: &Point| decode_problem(args, point.head_dim);
                Self::Decode(points.iter().map(of).collect::<flash_attention::Result<_>>()?)
            }
            Family::GemmSm90 => {
                let operands = points.iter().filter_map(|point| point.operands);
                let of = |operands| product_problem(args, product, operands);
                Self::Product(operands.map(of).collect::<flash_attention::Result<_>>()?)
            }
        })
    }

    /// Refuses what does not fit, before anything is allocated.
    pub(super) fn check_memory(&self, session: &Session) -> flash_attention::Result<()> {
        match self {
            Self::Forward(all) => all.iter().try_for_each(|problem| session.check_tensors(problem)),
            Self::Decode(all) => all.iter().try_for_each(|problem| session.check_tensors(problem.dense())),
            Self::Backward(all) => {
                all.iter().try_for_each(|problem| session.check_tensors(problem.forward()))
            }
            Self::Product(all) => all.iter().try_for_each(|problem| session.check_matrices(problem)),
        }
    }

    /// What they have in common; a space has a point at the least, for its lists are not empty.
    pub(super) fn shape(&self, args: &ProblemArgs) -> Shape {
        let ProblemArgs { layout, softmax_scale, .. } = *args;
        match self {
            Self::Forward(all) => Shape::new(&all[0], layout, softmax_scale),
            Self::Decode(all) => Shape::new(all[0].dense(), layout, softmax_scale),
            Self::Backward(all) => Shape::new(all[0].forward(), layout, softmax_scale),
            Self::Product(all) => Shape::of_product(&all[0]),
        }
    }
}

/// Refuses arguments that the family's problem does not depend on.
fn check_use(family: Family, args: &ProblemArgs, product: &ProductArgs) -> Result<()> {
    const SIZES: [&str; 6] = ["batch", "heads", "kv-heads", "seq", "kv-seq", "softmax-scale"];
    const SCORES: [&str; 3] = ["softcap", "alibi", "dropout"];
    let is_used = |name: &str| match family {
        Family::ForwardSimt | Family::ForwardSm80 | Family::ForwardSm90 => true,
        Family::BackwardSm80 | Family::BackwardSm90 => !SCORES.contains(&name),
        Family::Decode | Family::DecodeSm90 => SIZES.contains(&name),
        Family::GemmSm90 => false,
    };
    let sizes = [("m", product.m), ("n", product.n), ("k", product.k)];
    let of_product = sizes.into_iter().filter_map(|(name, size)| size.map(|_| name));
    let unused = args.given().into_iter().find(|name| !is_used(name));
    match unused.or_else(|| of_product.into_iter().find(|_| family != Family::GemmSm90)) {
        Some(name) => Err(usage(format!("--{name}: {family} is swept without it"))),
        None => Ok(()),
    }
}

fn decode_problem(args: &ProblemArgs, head_dim: usize) -> flash_attention::Result<DecodeProblem> {
    let [batch, heads, kv_heads, keys] = DECODE;
    let shape = decode::Shape {
        batch: args.batch.unwrap_or(batch),
        heads: args.heads.unwrap_or(heads),
        kv_heads: args.kv_heads.unwrap_or(kv_heads),
        head_dim,
        seq_q: args.seq.unwrap_or(1),
        seq_k: args.kv_seq.unwrap_or(keys),
        page_size: None,
        row_multiple: 1,
        tree_mask: false,
        latent: false,
        dtype: args.dtype,
        causal: false,
        softmax_scale: args.softmax_scale,
    };
    shape.problem()
}

fn product_problem(
    args: &ProblemArgs,
    product: &ProductArgs,
    operands: Operands,
) -> flash_attention::Result<GemmProblem> {
    let [m, n, k] = [product.m, product.n, product.k].map(|size| size.unwrap_or(PRODUCT));
    let a = if operands.a_along_k { Order::RowMajor } else { Order::ColumnMajor };
    let b = if operands.b_along_k { Order::ColumnMajor } else { Order::RowMajor };
    let matrices = Matrices { a: a.matrix(m, k), b: b.matrix(k, n), c: Order::RowMajor.matrix(m, n) };
    GemmProblem::new(matrices, args.dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use flash_attention::DType;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        problem: ProblemArgs,
        #[command(flatten)]
        product: ProductArgs,
    }

    fn problems(kernel: Family, arguments: &str) -> Result<Problems> {
        let line = Line::parse_from([""].into_iter().chain(arguments.split_whitespace()));
        let space = Space {
            kernel,
            dtype: DType::F16,
            block_m: Vec::new(),
            block_n: Vec::new(),
            warps: Vec::new(),
            stages: Vec::new(),
            min_blocks: Vec::new(),
            head_dims: Vec::new(),
            operands: Vec::new(),
        };
        Problems::new(&line.problem, &line.product, &Space::new(space)?)
    }

    #[test]
    fn each_operation_has_a_problem_for_each_point() {
        let Problems::Decode(decode) = problems(Family::Decode, "--batch 16").unwrap() else {
            panic!("it decodes")
        };
        let of = |problem: &DecodeProblem| {
            let dense = problem.dense();
            [
                dense.batch(),
                dense.heads(),
                dense.kv_heads(),
                dense.seqlen_q(),
                dense.seqlen_k(),
                dense.head_dim(),
            ]
        };
        assert_eq!(decode.iter().map(of).collect::<Vec<_>>(), [64, 128].map(|dim| [16, 32, 8, 1, 8192, dim]));
        let Problems::Backward(backward) = problems(Family::BackwardSm80, "--causal").unwrap() else {
            panic!("it is a backward pass")
        };
        assert!(backward.len() == 2 && backward.iter().all(|problem| problem.forward().causal()));
        let product = problems(Family::GemmSm90, "--k 512").unwrap();
        let shape = product.shape(&Line::parse_from([""]).problem);
        assert_eq!(shape.slug(), "m4096-n4096-k512");
    }

    #[test]
    fn arguments_that_change_nothing_are_refused() {
        for (kernel, argument) in [
            (Family::Decode, "--causal"),
            (Family::Decode, "--layout bhsd"),
            (Family::BackwardSm80, "--softcap 2"),
            (Family::BackwardSm90, "--dropout 0.1"),
            (Family::ForwardSm80, "--k 64"),
            (Family::GemmSm90, "--batch 2"),
        ] {
            let name = argument.split(' ').next().unwrap_or_default();
            let Err(error) = problems(kernel, argument) else { panic!("{kernel} takes {argument}") };
            assert_eq!(error.to_string(), format!("{name}: {kernel} is swept without it"));
        }
        assert!(problems(Family::ForwardSm80, "--softcap 2 --causal").is_ok());
    }
}
