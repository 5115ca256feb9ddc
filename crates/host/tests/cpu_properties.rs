//! The CPU backend against the f64 reference, under FlashAttention's accuracy rule.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use flash_attention::cpu::{self, Config, Isa};
use flash_attention::{DType, Element, Options, Problem, TensorLayout, Tensors, accuracy, reference};
use half::{bf16, f16};
use proptest::prelude::*;

/// How a tensor lies in memory.
#[derive(Clone, Copy, Debug)]
enum Order {
    Bshd,
    Bhsd,
    /// [B, H, S, D] with so many unused elements after each row.
    Padded(usize),
    /// One head's rows repeated for all heads and sequences: an input only.
    Repeated,
}

impl Order {
    fn layout(self, b: usize, s: usize, h: usize, d: usize) -> TensorLayout {
        match self {
            Self::Bshd => TensorLayout::bshd(b, s, h, d),
            Self::Bhsd => TensorLayout::bhsd(b, s, h, d),
            Self::Padded(gap) => {
                let row = d + gap;
                TensorLayout::strided([b, s, h, d], [h * (s + 1) * row, row, (s + 1) * row, 1])
            }
            Self::Repeated => TensorLayout::strided([b, s, h, d], [0, d, 0, 1]),
        }
    }
}

#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    /// B, Sq, Sk, Hkv, query heads per key/value head, D.
    shape: [usize; 6],
    orders: [Order; 3],
    causal: bool,
    softmax_scale: Option<f32>,
    config: Config,
    seed: u64,
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![Just(Order::Bshd), Just(Order::Bhsd), (1..9_usize).prop_map(Order::Padded)]
}

fn seqlens() -> impl Strategy<Value = (usize, usize)> {
    let awkward = [(1, 1), (239, 1), (1, 239), (799, 3), (113, 203), (64, 128), (128, 64)];
    prop_oneof![prop::sample::select(awkward.to_vec()), (1..200_usize, 1..200_usize)]
}

fn case() -> impl Strategy<Value = Case> {
    let head_dim = prop_oneof![prop::sample::select(vec![64, 128]), 1..=256_usize];
    let blocks = (prop::option::of(1..100_usize), prop::option::of(1..100_usize));
    let isa = prop::option::of(prop::sample::select(Isa::available()));
    let config = (blocks, isa).prop_map(|((block_m, block_n), isa)| Config { block_m, block_n, isa });
    let scale = prop::option::of(prop_oneof![Just(0.0_f32), -0.5..1.0_f32]);
    (
        prop::sample::select(DType::ALL.to_vec()),
        (1..3_usize, seqlens(), 1..3_usize, 1..4_usize, head_dim),
        (order(), prop_oneof![order(), Just(Order::Repeated)], order()),
        any::<bool>(),
        scale,
        config,
        any::<u64>(),
    )
        .prop_map(
            |(dtype, (b, (sq, sk), h, group, d), (q, kv, o), causal, softmax_scale, config, seed)| Case {
                dtype,
                shape: [b, sq, sk, h, group, d],
                orders: [q, kv, o],
                causal,
                softmax_scale,
                config,
                seed,
            },
        )
}

/// A buffer of NaN with normal-like values where the view reaches, and one more element than it needs.
fn tensor<T: Element>(layout: &TensorLayout, seed: u64) -> Vec<T> {
    let mut state = seed | 1;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let mut data = vec![T::from_f32(f32::NAN); layout.span() + 1];
    for_each_element(layout, |at| data[at] = T::from_f32(2.0 * (uniform() + uniform() + uniform())));
    data
}

fn for_each_element(layout: &TensorLayout, mut visit: impl FnMut(usize)) {
    for b in 0..layout.batch {
        for s in 0..layout.seqlen {
            for h in 0..layout.heads {
                (0..layout.head_dim).for_each(|d| visit(layout.row(b, s, h) + d));
            }
        }
    }
}

fn run<T: Element>(case: &Case) -> Result<(), TestCaseError> {
    let [b, sq, sk, h, group, d] = case.shape;
    let tensors = Tensors {
        q: case.orders[0].layout(b, sq, h * group, d),
        k: case.orders[1].layout(b, sk, h, d),
        v: case.orders[1].layout(b, sk, h, d),
        o: case.orders[2].layout(b, sq, h * group, d),
    };
    let options = Options { causal: case.causal, softmax_scale: case.softmax_scale };
    let problem = Problem::new(tensors, T::DTYPE, options).unwrap();
    let inputs = [(1, tensors.q), (2, tensors.k), (3, tensors.v)]
        .map(|(salt, layout)| tensor::<T>(&layout, case.seed.wrapping_mul(2 * salt + 1)));
    let [q, k, v] = &inputs;
    for fused in [true, false] {
        let mut o = vec![T::from_f32(-77.0); tensors.o.span() + 3];
        let mut lse = vec![-77.0; problem.lse_len() + 3];
        let stats = if fused {
            cpu::forward_with(&problem, case.config, q, k, v, &mut o, Some(&mut lse))
        } else {
            cpu::standard(&problem, q, k, v, &mut o, Some(&mut lse))
        };
        let stats = stats.unwrap();
        let report = accuracy::check(&problem, (q, k, v), &o, Some(&lse), DType::F32, &reference::all(&problem));
        prop_assert!(report.passed(), "fused {fused}, {}, {}: {report}", stats.isa, stats.tile);
        prop_assert!(stats.extra_bytes > 0);

        let mut outside = vec![true; o.len()];
        for_each_element(&tensors.o, |at| outside[at] = false);
        let untouched = |(value, outside): (&T, &bool)| !outside || value.to_f32() == -77.0;
        prop_assert!(o.iter().zip(&outside).all(untouched), "fused {fused}: wrote outside the view");
        prop_assert!(lse[problem.lse_len()..].iter().all(|&value| value == -77.0));
    }
    Ok(())
}

fn run_any(case: &Case) -> Result<(), TestCaseError> {
    match case.dtype {
        DType::F32 => run::<f32>(case),
        DType::F16 => run::<f16>(case),
        DType::Bf16 => run::<bf16>(case),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random shapes, strides, types, masks and tiles.
    #[test]
    fn matches_the_reference(case in case()) {
        run_any(&case)?;
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
                    orders: [Order::Bshd, Order::Bhsd, Order::Padded(3)],
                    causal,
                    softmax_scale: None,
                    config: Config { isa: Some(isa), ..Config::default() },
                    seed: 7,
                };
                run_any(&case).unwrap_or_else(|error| panic!("{case:?}: {error}"));
            }
        }
    }
}

/// Scores far apart: weights under- and overflow unless each row is taken relative to its maximum.
#[test]
fn large_scores_neither_overflow_nor_vanish() {
    let case = Case {
        dtype: DType::F32,
        shape: [1, 70, 300, 1, 1, 32],
        orders: [Order::Bhsd; 3],
        causal: false,
        softmax_scale: Some(40.0),
        config: Config { block_n: Some(17), ..Config::default() },
        seed: 3,
    };
    run_any(&case).unwrap();
}

#[test]
fn a_nan_in_the_input_reaches_only_the_rows_that_see_it() {
    let layout = TensorLayout::bhsd(1, 4, 2, 8);
    let options = Options { causal: true, softmax_scale: None };
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
