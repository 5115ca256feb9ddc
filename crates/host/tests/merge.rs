//! Merges of attention over disjoint keys, in the simulator and on the CPU: a cascade against attention over
//! the whole, and parts of any layout against sums in f64.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Order, tensor, untouched_outside};
use flash_attention::accuracy::Expected;
use flash_attention::decode::{DecodeInputs, DecodeOptions, DecodeProblem, DecodeRequest};
use flash_attention::forward::Outputs;
use flash_attention::merge::{MAX_PARTS, MergePart, MergeProblem, PartLayout};
use flash_attention::{
    Backend, BackendKind, DType, Element, Options, Problem, Request, TensorLayout, Tensors, reference,
};
use half::{bf16, f16};
use proptest::prelude::*;

fn backends(seed: u64) -> [Backend; 2] {
    [Backend::simulator(seed), Backend::open(Some(BackendKind::Cpu)).unwrap()]
}

/// B sequences that share a prefix, and have keys of their own behind it, as many as `used` says.
struct Cascade {
    seqlen_q: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    shared: usize,
    used: Vec<i32>,
}

impl Cascade {
    /// O and lse by two calls and the merge, judged against attention over the whole.
    fn check<T: Element<Output = T>>(&self, backend: &Backend, seed: u64) {
        let &Self { seqlen_q, heads, kv_heads, head_dim, shared, ref used } = self;
        let (batch, own) = (used.len(), *used.iter().max().unwrap() as usize);
        let layout = |batch, rows, heads| TensorLayout::bshd(batch, rows, heads, head_dim);
        let (q, rows) = (layout(batch, seqlen_q, heads), layout(1, batch * seqlen_q, heads));
        let (of_prefix, of_suffix) = (layout(1, shared, kv_heads), layout(batch, own, kv_heads));
        let queries = tensor::<T>(&q, seed);
        let [prefix_k, prefix_v] = [1, 2].map(|salt| tensor::<T>(&of_prefix, seed + salt));
        let [suffix_k, suffix_v] = [3, 4].map(|salt| tensor::<T>(&of_suffix, seed + salt));

        let tensors = Tensors { q: rows, k: of_prefix, v: of_prefix, o: rows };
        let problem = Problem::new(tensors, T::DTYPE, Options::default()).unwrap();
        let plan = backend.plan(&problem, &Request::default()).unwrap();
        let (mut prefix_o, mut prefix_lse) = (vec![T::default(); q.span()], vec![0.0; problem.lse_len()]);
        let outputs = Outputs { o: &mut prefix_o, lse: Some(&mut prefix_lse) };
        backend.run(&plan, (&queries, &prefix_k, &prefix_v), outputs).unwrap();

        let tensors = Tensors { q, k: of_suffix, v: of_suffix, o: q };
        let attention = Options { causal: true, ..Options::default() };
        let options = DecodeOptions { attention, ..DecodeOptions::default() };
        let problem = DecodeProblem::new(tensors, T::DTYPE, options).unwrap();
        let plan = backend.plan(&problem, &DecodeRequest::default()).unwrap();
        let (k, v) = (&suffix_k, &suffix_v);
        let inputs = DecodeInputs { seqused_k: Some(used), ..DecodeInputs::new(&queries, k, v) };
        let (mut suffix_o, mut suffix_lse) = (vec![T::default(); q.span()], vec![0.0; prefix_lse.len()]);
        let outputs = Outputs { o: &mut suffix_o, lse: Some(&mut suffix_lse) };
        backend.run(&plan, inputs, outputs).unwrap();

        let merge = MergeProblem::new(&[PartLayout::folded(q), PartLayout::new(q)], q, T::DTYPE).unwrap();
        let parts = [(&prefix_o, &prefix_lse), (&suffix_o, &suffix_lse)];
        let parts = parts.map(|(o, lse)| MergePart { o, lse });
        let (mut o, mut lse) = (vec![T::default(); q.span()], vec![0.0; merge.lse_len()]);
        let plan = backend.plan(&merge, &()).unwrap();
        backend.run(&plan, &parts, Outputs { o: &mut o, lse: Some(&mut lse) }).unwrap();

        for (sequence, &used) in used.iter().enumerate() {
            let keys = shared + used as usize;
            let one = layout(1, seqlen_q, heads);
            let k = layout(1, keys, kv_heads);
            let options = Options { causal: true, ..Options::default() };
            let whole = Problem::new(Tensors { q: one, k, v: k, o: one }, T::DTYPE, options).unwrap();
            let joined = |prefix: &[T], suffix: &[T]| {
                let first = of_suffix.row(sequence, 0, 0);
                // Behind their rows, tensors have what nobody reads.
                let prefix = &prefix[..of_prefix.span()];
                [prefix, &suffix[first..][..used as usize * kv_heads * head_dim]].concat()
            };
            let (k, v) = (joined(&prefix_k, &suffix_k), joined(&prefix_v, &suffix_v));
            let first = q.row(sequence, 0, 0);
            let expected = Expected::new(&whole, (&queries[first..], &k, &v), reference::all(&whole));
            let lse = &lse[sequence * heads * seqlen_q..];
            let report = expected.judge(&whole, &o[first..], Some(lse), DType::F32.roundoff());
            assert!(report.passed(), "sequence {sequence}: {report}");
        }
    }
}

#[test]
fn a_cascade_is_attention_over_the_whole() {
    let cascade =
        Cascade { seqlen_q: 2, heads: 4, kv_heads: 2, head_dim: 64, shared: 150, used: vec![40, 2, 17] };
    for backend in backends(5) {
        cascade.check::<f16>(&backend, 1);
        cascade.check::<bf16>(&backend, 2);
    }
    let single = Cascade { seqlen_q: 1, heads: 3, kv_heads: 3, head_dim: 33, shared: 9, used: vec![0, 70] };
    for backend in backends(6) {
        single.check::<f16>(&backend, 3);
    }
    cascade.check::<f32>(&backends(0)[1], 4);
}

/// Parts of random layouts and log-sum-exps, some of them without keys, against sums in f64.
fn sums<T: Element<Output = T>>(
    [b, sq, h, d]: [usize; 4],
    parts: &[(u8, bool)],
    seed: u64,
) -> Result<(), TestCaseError> {
    let order = |which: u8| [Order::Bshd, Order::Bhsd, Order::Padded(3), Order::Repeated][which as usize % 4];
    let layouts: Vec<_> = parts
        .iter()
        .map(|&(which, is_folded)| {
            let o = order(which).layout(b, sq, h, d);
            if is_folded { PartLayout::folded(o) } else { PartLayout::new(o) }
        })
        .collect();
    let output = Order::Padded(2).layout(b, sq, h, d);
    let problem = MergeProblem::new(&layouts, output, T::DTYPE).unwrap();
    let data: Vec<(Vec<T>, Vec<f32>)> = (seed..)
        .zip(&layouts)
        .map(|(seed, layout)| {
            let mut lse: Vec<f32> = tensor::<f32>(&layout.lse, seed ^ 77);
            lse.iter_mut().for_each(|lse| *lse = if *lse < -0.8 { f32::NEG_INFINITY } else { 30.0 * *lse });
            (tensor(&layout.o, seed), lse)
        })
        .collect();
    let inputs: Vec<_> = data.iter().map(|(o, lse)| MergePart { o, lse }).collect();
    for backend in backends(seed) {
        let plan = backend.plan(&problem, &()).unwrap();
        let (mut o, mut lse) = (vec![T::from_f32(-77.0); output.span() + 3], vec![-77.0; problem.lse_len()]);
        let ran = backend.run(&plan, &inputs, Outputs { o: &mut o, lse: Some(&mut lse) });
        prop_assert!(ran.is_ok(), "{}", ran.unwrap_err());
        prop_assert!(untouched_outside(&output, &o, -77.0), "wrote outside the view");
        for (row, &lse) in lse.iter().enumerate() {
            let (batch, head, position) = (row / sq / h, row / sq % h, row % sq);
            let at = |layout: &TensorLayout| layout.row(batch, position, head);
            let of_part = |index: usize| f64::from(data[index].1[at(&layouts[index].lse)]);
            let weights: Vec<_> = (0..parts.len()).map(|index| of_part(index).exp()).collect();
            let sum: f64 = weights.iter().sum();
            // A part without keys has any O.
            prop_assert!((sum == 0.0) == (lse == f32::NEG_INFINITY));
            if sum > 0.0 {
                prop_assert!((f64::from(lse) - sum.ln()).abs() <= 1e-5 * (1.0 + sum.ln().abs()));
            }
            for column in 0..d {
                let value = |index: usize| f64::from(data[index].0[at(&layouts[index].o) + column].to_f32());
                let of_part =
                    |index| if weights[index] > 0.0 { weights[index] * value(index) / sum } else { 0.0 };
                let exact: f64 = (0..parts.len()).map(of_part).sum();
                let found = f64::from(o[at(&output) + column].to_f32());
                // Half a unit of the type for the store; and fp32's, of weights up to e^30.
                let bound = (T::DTYPE.roundoff() + 2e-5) * (exact.abs() + 1e-3);
                prop_assert!((found - exact).abs() <= bound + 2e-5, "{found} for {exact}");
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parts_of_any_layout_are_summed(
        shape in [1..4_usize, 1..5_usize, 1..4_usize, 1..140_usize],
        parts in prop::collection::vec((0..4_u8, any::<bool>()), 1..=MAX_PARTS),
        dtype in 0..3,
        seed in 0..1_u64 << 40,
    ) {
        match dtype {
            0 => sums::<f32>(shape, &parts, seed)?,
            1 => sums::<f16>(shape, &parts, seed)?,
            _ => sums::<bf16>(shape, &parts, seed)?,
        }
    }
}

#[test]
fn parts_without_keys_are_not_read() {
    let o = TensorLayout::bshd(1, 1, 1, 4);
    let problem = MergeProblem::new(&[PartLayout::new(o); 2], o, DType::F32).unwrap();
    let (nan, none) = ([f32::NAN; 4], [f32::NEG_INFINITY]);
    for backend in backends(1) {
        let plan = backend.plan(&problem, &()).unwrap();
        let run = |parts: [MergePart<'_, f32>; 2]| {
            let (mut o, mut lse) = ([7.0; 4], [7.0]);
            backend.run(&plan, &parts, Outputs { o: &mut o, lse: Some(&mut lse) }).unwrap();
            (o, lse[0])
        };
        let empty = MergePart { o: &nan, lse: &none };
        assert_eq!(
            run([empty, MergePart { o: &[1.0, 2.0, 3.0, 4.0], lse: &[5.0] }]),
            ([1.0, 2.0, 3.0, 4.0], 5.0)
        );
        assert_eq!(run([empty, empty]), ([0.0; 4], f32::NEG_INFINITY));
    }
}

/// What no attention gives harms nobody else: the row is NaN, and nothing is read outside of the parts.
#[test]
fn an_infinite_lse_makes_its_row_nan() {
    let o = TensorLayout::bshd(2, 1, 1, 4);
    let problem = MergeProblem::new(&[PartLayout::new(o); 2], o, DType::F32).unwrap();
    for backend in backends(2) {
        let plan = backend.plan(&problem, &()).unwrap();
        let values = [2.0_f32; 8];
        let parts = [[f32::INFINITY, 1.0], [1.0; 2]];
        let parts = parts.each_ref().map(|lse| MergePart { o: &values, lse });
        let mut found = [7.0; 8];
        backend.run(&plan, &parts, Outputs { o: &mut found, lse: None }).unwrap();
        assert!(found[..4].iter().all(|value| value.is_nan()), "{found:?}");
        assert_eq!(found[4..], [2.0; 4]);
    }
}

#[test]
fn each_refusal_names_argument_value_and_limit() {
    let o = TensorLayout::bshd(1, 2, 1, 4);
    let problem = MergeProblem::new(&[PartLayout::new(o); 2], o, DType::F32).unwrap();
    let [_, cpu] = backends(0);
    let plan = cpu.plan(&problem, &()).unwrap();
    let (values, lse) = ([0.0_f32; 8], [0.0; 2]);
    let refused = |parts: &[MergePart<'_, f32>]| {
        let mut o = [0.0; 8];
        cpu.run(&plan, parts, Outputs { o: &mut o, lse: None }).unwrap_err().to_string()
    };
    let part = MergePart { o: &values, lse: &lse };
    assert_eq!(refused(&[part]), "parts: their number is 1, but the problem has 2");
    let short = MergePart { o: &values[1..], ..part };
    assert_eq!(refused(&[part, short]), "a part's o: buffer has 7 elements; its shape and strides reach 8");
    let short = MergePart { lse: &lse[1..], ..part };
    assert_eq!(refused(&[short, part]), "a part's lse: buffer has 1 elements; its shape and strides reach 2");
}
