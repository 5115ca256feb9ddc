//! The CPU backend against the f64 reference, under FlashAttention's accuracy rule.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Case, Order, case, descale, tensor, untouched_outside};
use flash_attention::accuracy::Expected;
use flash_attention::cpu::{self, Config, Isa};
use flash_attention::{DType, Element, Options, Problem, TensorLayout, Tensors, reference};
use float8::F8E4M3;
use half::{bf16, f16};
use proptest::prelude::*;

/// Sequences that end in the middle of everything.
const AWKWARD: [(usize, usize); 7] = [(1, 1), (239, 1), (1, 239), (799, 3), (113, 203), (64, 128), (128, 64)];

fn config() -> impl Strategy<Value = Config> {
    let blocks = (prop::option::of(1..100_usize), prop::option::of(1..100_usize));
    let isa = prop::option::of(prop::sample::select(Isa::available()));
    (blocks, isa).prop_map(|((block_m, block_n), isa)| Config { block_m, block_n, isa })
}

/// Ways to run a problem on the CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Fused,
    ModelledTiles,
    Standard,
}

fn run<T: Element>(case: &Case, config: Config) -> Result<(), TestCaseError> {
    judge(&case.problem(), &case.inputs::<T>(), config)
}

/// Runs a problem in each way, and checks what was written, and where.
fn judge<T: Element>(
    problem: &Problem,
    [q, k, v]: &[Vec<T>; 3],
    config: Config,
) -> Result<(), TestCaseError> {
    let layout = &problem.tensors().o;
    let expected = Expected::new(problem, (q, k, v), reference::all(problem));
    let fits_tiles = matches!(T::DTYPE, DType::F16 | DType::Bf16)
        && problem.seqlen_q() * problem.group() >= 32
        && problem.dropout().is_none();
    for way in [Way::Fused, Way::ModelledTiles, Way::Standard] {
        let mut o = vec![T::Output::from_f32(-77.0); layout.span() + 3];
        let mut lse = vec![-77.0; problem.lse_len() + 3];
        let stats = match way {
            Way::Fused => cpu::forward_with(problem, config, q, k, v, &mut o, Some(&mut lse)),
            Way::ModelledTiles => {
                cpu::forward_in_modelled_tiles(problem, config, q, k, v, &mut o, Some(&mut lse))
            }
            Way::Standard => cpu::standard(problem, q, k, v, &mut o, Some(&mut lse)),
        };
        let stats = stats.unwrap();
        let report = expected.judge(problem, &o, Some(&lse), DType::F32.roundoff());
        prop_assert!(report.passed(), "{way:?}, {}, {}: {report}", stats.isa, stats.tile);
        prop_assert!(stats.extra_bytes > 0);
        prop_assert!(way != Way::ModelledTiles || (stats.isa == Isa::Amx) == fits_tiles);
        prop_assert!(untouched_outside(layout, &o, -77.0), "{way:?}: wrote outside the view");
        prop_assert!(lse[problem.lse_len()..].iter().all(|&value| value == -77.0));
    }
    Ok(())
}

fn run_any(case: &Case, config: Config) -> Result<(), TestCaseError> {
    match case.dtype {
        DType::F32 => run::<f32>(case, config),
        DType::F16 => run::<f16>(case, config),
        DType::Bf16 => run::<bf16>(case, config),
        DType::E4m3 => run::<F8E4M3>(case, config),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random shapes, strides, types, masks and tiles.
    #[test]
    fn matches_the_reference(case in case(&AWKWARD, 200), config in config()) {
        run_any(&case, config)?;
    }

    /// As above, in 8 bits that stand for other values.
    #[test]
    fn e4m3_matches_the_reference(case in case(&AWKWARD, 200), config in config(), factor in 0.1_f32..9.0) {
        let descale = Some(descale(&case, [factor, 0.5, 1.5 * factor]));
        let options = Options { descale, ..case.options };
        run_any(&Case { dtype: DType::E4m3, options, ..case }, config)?;
    }
}

/// Every instruction set, type and mask at shapes that fill tiles and at ones that do not.
#[test]
fn every_instruction_set_matches_the_reference() {
    for isa in Isa::available() {
        for dtype in DType::ALL {
            for (causal, shape) in [
                (false, [1, 128, 192, 2, 1, 64]),
                (true, [1, 113, 203, 1, 2, 128]),
                (true, [1, 203, 113, 1, 1, 40]),
                (false, [2, 1, 150, 1, 6, 256]),
            ] {
                let case = Case {
                    dtype,
                    shape,
                    head_dim_v: None,
                    orders: [Order::Bshd, Order::Bhsd, Order::Padded(3)],
                    options: Options { causal, ..Options::default() },
                    seed: 7,
                };
                run_any(&case, Config { isa: Some(isa), ..Config::default() })
                    .unwrap_or_else(|error| panic!("{case:?}: {error}"));
            }
        }
    }
}

/// Scores far apart: weights under- and overflow unless each row is taken relative to its maximum, which
/// keeps growing.
#[test]
fn large_scores_neither_overflow_nor_vanish() {
    for dtype in DType::RESULTS {
        let case = Case {
            dtype,
            shape: [1, 70, 300, 1, 1, 32],
            head_dim_v: None,
            orders: [Order::Bhsd; 3],
            options: Options { softmax_scale: Some(40.0), ..Options::default() },
            seed: 3,
        };
        run_any(&case, Config { block_n: Some(17), ..Config::default() }).unwrap();
    }
}

/// Packed sequences that begin at any row, of which some are empty and others do not use all of their keys.
#[test]
fn packed_sequences_match_the_reference() {
    fn run<T: Element>(causal: bool) {
        let (of_q, of_k, used) = ([0, 45, 45, 210, 245], [0, 130, 133, 170, 170], [101, 3, 37, 0]);
        let layout = |rows, heads, head_dim| TensorLayout::bshd(1, rows, heads, head_dim);
        let tensors = Tensors {
            q: layout(245, 4, 72),
            k: layout(170, 2, 72),
            v: layout(170, 2, 40),
            o: layout(245, 4, 40),
        };
        let options = Options { causal, ..Options::default() };
        let problem = Problem::varlen(tensors, T::DTYPE, options, &of_q, &of_k).unwrap();
        let problem = problem.with_seqused_k(&used).unwrap();
        let mut inputs =
            [(tensors.q, 1), (tensors.k, 2), (tensors.v, 3)].map(|(layout, seed)| tensor::<T>(&layout, seed));
        for (layout, values) in [tensors.k, tensors.v].iter().zip(&mut inputs[1..]) {
            for row in of_k.windows(2).zip(used).flat_map(|(rows, used)| rows[0] + used as u32..rows[1]) {
                values[layout.row(0, row as usize, 0)..][..2 * layout.head_dim].fill(T::from_f32(f32::NAN));
            }
        }
        judge(&problem, &inputs, Config::default()).unwrap();
    }
    for causal in [false, true] {
        run::<f16>(causal);
        run::<bf16>(causal);
    }
}

/// Values around 1, whose sums only grow, lose no more than the sum of a block and one of blocks.
#[test]
fn long_sums_of_one_sign_keep_their_last_bits() {
    let (keys, head_dim) = (30_000, 16);
    let layout = |rows| TensorLayout::bshd(1, rows, 1, head_dim);
    let tensors = Tensors { q: layout(7), k: layout(keys), v: layout(keys), o: layout(7) };
    let problem = Problem::new(tensors, DType::F32, Options::default()).unwrap();
    let [q, k, v] = [(7, 1, 0.0), (keys, 2, 0.0), (keys, 3, 1.0)].map(|(rows, seed, mean)| {
        tensor::<f32>(&layout(rows), seed).iter().map(|x| x + mean).collect::<Vec<_>>()
    });
    let exact = reference::forward(&problem, &q, &k, &v).o;
    for isa in Isa::available() {
        let mut o = vec![f32::NAN; layout(7).span()];
        let config = Config { isa: Some(isa), ..Config::default() };
        cpu::forward_with(&problem, config, &q, &k, &v, &mut o, None).unwrap();
        let errors = o.iter().zip(&exact).map(|(&found, exact)| (f64::from(found) - exact).abs());
        let worst =
            errors.fold(0.0, |worst: f64, error| if error > worst || error.is_nan() { error } else { worst });
        assert!(worst < 1.5e-6, "{isa}: {worst:e}");
    }
}

#[test]
fn a_nan_in_the_input_reaches_only_the_rows_that_see_it() {
    let layout = TensorLayout::bhsd(1, 4, 2, 8);
    let options = Options { causal: true, ..Options::default() };
    let problem =
        Problem::new(Tensors { q: layout, k: layout, v: layout, o: layout }, DType::F32, options).unwrap();
    let [mut q, k, v] = [1, 2, 3].map(|seed| tensor::<f32>(&layout, seed));
    q[layout.row(0, 2, 1)] = f32::NAN;
    let mut o = vec![0.0; layout.span()];
    cpu::forward(&problem, &q, &k, &v, &mut o, None).unwrap();
    for head in 0..2 {
        for row in 0..4 {
            let is_nan = o[layout.row(0, row, head)..][..8].iter().all(|value| value.is_nan());
            assert_eq!(is_nan, (row, head) == (2, 1), "row {row}, head {head}");
        }
    }
}

#[test]
fn tiles_of_nothing_are_refused() {
    let layout = TensorLayout::bhsd(1, 4, 1, 8);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let problem = Problem::new(tensors, DType::F32, Options::default()).unwrap();
    let config = Config { block_n: Some(0), ..Config::default() };
    let data = vec![1.0_f32; layout.span()];
    let error =
        cpu::forward_with(&problem, config, &data, &data, &data, &mut data.clone(), None).unwrap_err();
    let expected = "BLOCK_M = any, BLOCK_N = 0 is not built for cpu at head_dim 8; built: 1 to 65536 each";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn scores_that_do_not_fit_are_refused() {
    let layout = TensorLayout::strided([1, 1 << 24, 1, 1], [0, 0, 0, 1]);
    let o = TensorLayout::bhsd(1, 1 << 24, 1, 1);
    let tensors = Tensors { q: layout, k: layout, v: layout, o };
    let problem = Problem::new(tensors, DType::F32, Options::default()).unwrap();
    let mut out = vec![0.0_f32; 1 << 24];
    let error = cpu::standard(&problem, &[1.0], &[1.0], &[1.0], &mut out, None).unwrap_err();
    assert!(error.to_string().starts_with("the matrix of scores needs 1125899906842624 bytes"), "{error}");
}
