//! Few queries against a long K/V cache: bytes of K and V per second, beside what a plain copy reaches.

use std::rc::Rc;

use anyhow::Result;
use flash_attention::decode::{DecodeKernel, DecodePlan, DecodeProblem, DecodeRequest, E4m3Cache};
use flash_attention::{DType, Element, Error, Options};

use super::published::RIVALS;
use crate::args::{Grid, LabArgs, named};
use crate::check::Expected;
use crate::decode::{Cache, Shape, describe};
use crate::lab::{self, ITERATIONS, Lab, Recipe, Row, Shared, Unit};
use crate::measure::{CHECKED_ROWS, judged, with_element};
use crate::problem::Layout;
use crate::record::{PlanRecord, ProblemRecord};

const RECIPE: Recipe = Recipe {
    name: "decode",
    what: "few queries against a long K/V cache: bytes of K and V a second, beside those of a plain copy",
    reported_elsewhere: None,
    axis: None,
    iterations: ITERATIONS,
    scaled: true,
};

/// The published grid: batch, heads, kv_heads, seq_q, seq_k, head_dim.
const GPU_GRID: [[usize; 6]; 7] = [
    [1, 32, 8, 1, 131_072, 128],
    [16, 32, 8, 1, 8192, 128],
    [64, 32, 8, 1, 4096, 128],
    [16, 32, 8, 4, 8192, 128],
    [16, 32, 32, 1, 8192, 64],
    [16, 64, 8, 1, 8192, 128],
    [16, 16, 8, 1, 8192, 256],
];
const CPU_GRID: [[usize; 6]; 3] = [[1, 8, 2, 1, 1024, 128], [2, 8, 2, 4, 256, 128], [2, 4, 4, 1, 256, 64]];
const SIM_GRID: [[usize; 6]; 1] = [[1, 4, 1, 1, 64, 64]];

/// Columns of V where K is of latents, as DeepSeek has them.
const LATENT_DIM_V: usize = 512;

const GPU_SEQ_K: usize = 8192;
const CPU_SEQ_K: usize = 2048;
const SIM_SEQ_K: usize = 256;

/// Arguments of `decode`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The problems whose figures are published, in place of one [cpu, sim: smaller ones]
    #[arg(long, value_parser = named(&Grid::ALL, Grid::name))]
    #[arg(conflicts_with_all = ["batch", "heads", "kv_heads", "dim", "dim_v", "latent", "seq_q", "seq_k"])]
    #[arg(conflicts_with_all = ["seqused_k", "num_splits", "kernel", "entry"])]
    grid: Option<Grid>,
    /// Number of sequences
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// Query heads
    #[arg(long, default_value_t = 32)]
    heads: usize,
    /// Key/value heads; they divide the query heads
    #[arg(long, default_value_t = 8)]
    kv_heads: usize,
    /// Elements of a row of Q, K, V and O: head_dim, 1 to 256
    #[arg(long, alias = "head-dim", default_value_t = 128)]
    dim: usize,
    /// Columns of V and O [default: those of Q and K, and 512 of latents]
    #[arg(long, value_name = "COLUMNS")]
    dim_v: Option<usize>,
    /// K is a cache of latents (MLA), whose first columns are V; DeepSeek has --kv-heads 1 --dim 576
    #[arg(long)]
    latent: bool,
    /// Query rows of each sequence, its newest
    #[arg(long, default_value_t = 1, alias = "seq")]
    seq_q: usize,
    /// Keys that each sequence has room for [default: 8192; cpu: 2048, sim: 256]
    #[arg(long, alias = "kv-seq")]
    seq_k: Option<usize>,
    /// Keys that each sequence uses, one number for all or one for each, as in 100,2000,31 [default: all]
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    seqused_k: Vec<i32>,
    /// Rows of a page: K and V lie in pages, in random order [default: contiguous]
    #[arg(long, value_name = "ROWS")]
    page_size: Option<usize>,
    /// Parts that each sequence's keys are split into [default: the planner's choice]
    #[arg(long, value_name = "COUNT")]
    num_splits: Option<usize>,
    /// Whether a sequence has the same bits in any batch: by default where blocks can have several splits
    #[arg(long, num_args = 0..=1, default_missing_value = "true", conflicts_with = "num_splits")]
    batch_invariant: Option<bool>,
    /// Whether clusters merge splits
    #[arg(long)]
    clusters: Option<bool>,
    /// The only kernel to run
    #[arg(long, value_parser = named(&DecodeKernel::ALL, DecodeKernel::name))]
    kernel: Option<DecodeKernel>,
    /// The kernel's entry, as in decode_f16_m16_d128_w4_s3 [default: the planner's choice]
    #[arg(long, value_name = "NAME")]
    entry: Option<String>,
    /// Storage type of Q and O, and of K and V too
    #[arg(long, default_value = "f16", value_parser = named(&DType::RESULTS, DType::name))]
    dtype: DType,
    /// Storage type of K and V, where it is another
    #[arg(long, value_parser = named(&[DType::E4m3], DType::name))]
    cache_type: Option<DType>,
    /// Row i sees key j only if j <= i + keys - seq_q
    #[arg(long)]
    causal: bool,
    /// Factor on Q·Kᵀ before the softmax [default: 1/sqrt(head_dim)]
    #[arg(long, allow_negative_numbers = true)]
    softmax_scale: Option<f32>,
    #[command(flatten)]
    lab: LabArgs,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        lab.compare_with(&RIVALS);
        let problems = args.problems(lab)?;
        for problem in &problems {
            lab.session.check_tensors(problem.dense())?;
        }
        let mut rows = Vec::new();
        for problem in &problems {
            rows.push(planned(lab, args, problem)?);
        }
        // What a GPU's memory gives at best of as many bytes; a CPU's last-level cache holds such a K and V.
        for row in rows {
            let of_row = lab.row_mut(row);
            let (case, bytes) = (of_row.case.clone(), of_row.figure(BYTES).unwrap_or(0.0));
            let Some([copy, read]) = lab.bandwidths_of(&case, bytes.max(1.0) as usize)? else { break };
            let row = lab.row_mut(row);
            if let Some(reached) = row.figure(BANDWIDTH) {
                row.put("of copy", Unit::Percent, 100.0 * reached / copy);
                row.put("of read", Unit::Percent, 100.0 * reached / read);
            }
        }
        Ok(())
    })
}

/// Plans and measures one problem, and gives its row.
fn planned(lab: &mut Lab, args: &Args, problem: &DecodeProblem) -> Result<usize> {
    let request = DecodeRequest {
        num_splits: args.num_splits,
        batch_invariant: args.batch_invariant,
        clusters: args.clusters,
        kernel: args.kernel,
        entry: args.entry.clone(),
    };
    let plan = lab.session.backend.plan(problem, &request)?;
    lab.session.check_patience(problem.dense(), 1, &lab.effort, &args.lab.measure)?;
    lab.line(format!("problem {}", describe(problem)))?;
    lab.line(format!("plan: {}", plan.reasons().join("; ")))?;
    let used = match args.seqused_k[..] {
        [] => None,
        [used] => Some(vec![used; args.batch]),
        _ => Some(args.seqused_k.clone()),
    };
    with_element!(args.dtype, measure(lab, problem, &plan, used))
}

/// Bytes of K and V.
const BYTES: &str = "K and V used";

/// The figure that this is about.
const BANDWIDTH: &str = "of K and V";

/// Runs a decode problem, and gives its row.
pub(super) fn measure<T: Element>(
    lab: &mut Lab,
    problem: &DecodeProblem,
    plan: &DecodePlan,
    used: Option<Vec<i32>>,
) -> Result<usize> {
    let (session, dense) = (Rc::clone(&lab.session), problem.dense());
    // PyTorch's attention has no pages, no lengths of their own, and no cache in another type.
    let comparable = problem.max_pages().is_none()
        && used.is_none()
        && problem.cache_dtype() == dense.dtype()
        && !problem.is_latent();
    let cache = Cache::<T>::random(problem, used, lab.seed);
    let prepared = session.backend.prepare(plan, cache.inputs())?;
    let expected = Expected::of_decode(problem, &cache.inputs(), CHECKED_ROWS, lab.seed);
    let judged = judged(prepared, |o, lse| expected.judge(dense, plan.score_roundoff(), o, lse))?;
    let row = Row {
        case: format!(
            "decode{} B={} H={} Hkv={} Sq={} Sk={} D={}",
            match () {
                () if problem.is_latent() => " latents",
                () if problem.cache_dtype() == dense.dtype() => "",
                () => " e4m3 cache",
            },
            dense.batch(),
            dense.heads(),
            dense.kv_heads(),
            dense.seqlen_q(),
            dense.seqlen_k(),
            dense.head_dim()
        ),
        series: plan.kernel().name().to_owned(),
        problem: Some(ProblemRecord::new(dense, Layout::Bshd)),
        plan: Some(PlanRecord::of_decode(plan)),
        ..Row::default()
    };
    let first = lab.judged(row, judged, dense, comparable)?.start;
    let bytes = problem.cache_bytes(&cache.inputs()) as f64;
    let row = lab.row_mut(first);
    row.put("splits", Unit::Count, plan.num_splits() as f64);
    row.put(BYTES, Unit::Bytes, bytes);
    if let Some(median) = row.median() {
        row.put(BANDWIDTH, Unit::BytesPerSecond, bytes / median);
    }
    if problem.max_pages().is_some() {
        row.put("rows of a page", Unit::Count, problem.k().seqlen as f64);
    }
    Ok(first)
}

impl Args {
    /// The problem that the arguments describe, or those of the grid.
    fn problems(&self, lab: &Lab) -> flash_attention::Result<Vec<DecodeProblem>> {
        if self.grid.is_none() {
            let seq_k = self.seq_k.unwrap_or(lab.pick(GPU_SEQ_K, CPU_SEQ_K, SIM_SEQ_K));
            let sizes = [self.batch, self.heads, self.kv_heads, self.seq_q, seq_k, self.dim];
            return Ok(vec![self.problem(sizes)?]);
        }
        let grid = lab.pick(&GPU_GRID[..], &CPU_GRID, &SIM_GRID);
        grid.iter().map(|&sizes| self.problem(sizes)).collect()
    }

    /// Of batch, heads, kv_heads, seq_q, seq_k and head_dim.
    fn problem(&self, sizes: [usize; 6]) -> flash_attention::Result<DecodeProblem> {
        let [batch, heads, kv_heads, seq_q, seq_k, head_dim] = sizes;
        let Self { page_size, dtype, causal, softmax_scale, latent, .. } = *self;
        let row_multiple = 1;
        let shape = Shape {
            tree_mask: false,
            latent,
            batch,
            heads,
            kv_heads,
            head_dim,
            seq_q,
            seq_k,
            page_size,
            row_multiple,
            dtype,
            causal,
            softmax_scale,
        };
        let e4m3_cache = self.cache_type.map(|_| E4m3Cache::default());
        let head_dim_v = self.dim_v.unwrap_or(if latent { head_dim.min(LATENT_DIM_V) } else { head_dim });
        let problem = shape.problem_with(head_dim_v, Options::default(), e4m3_cache)?;
        // Refused before the inputs are made, which can take long.
        let (limit, len) = (problem.dense().seqlen_k(), self.seqused_k.len());
        if len > 1 && len != batch {
            return Err(Error::BufferTooSmall { tensor: "seqused_k", len, needed: batch });
        }
        let is_none = |&(_, &value): &(usize, &i32)| usize::try_from(value).map_or(true, |used| used > limit);
        match self.seqused_k.iter().enumerate().find(is_none) {
            Some((batch, &value)) => Err(Error::SeqUsed { batch, value, limit }),
            None => Ok(problem),
        }
    }
}
