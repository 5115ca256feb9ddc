//! A sequence gives the same bits by itself and in any batch, by default or where that is asked for.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{kernels, offsets, tensor};
use flash_attention::decode::{DecodeInputs, DecodeKernel, DecodeOptions, DecodeProblem, DecodeRequest};
use flash_attention::forward::Outputs;
use flash_attention::{Backend, DType, Element, Kernel, Options, Problem, Request, TensorLayout, Tensors};
use half::{bf16, f16};

const HEADS: usize = 2;
const KV_HEADS: usize = 1;

/// Queries and keys of each sequence. The first is the one that is computed by itself too.
fn lengths() -> Vec<(usize, usize)> {
    let other = |i: usize| (1 + i * 37 % 100, i * 53 % 130);
    std::iter::once((130, 211)).chain((0..63).map(other)).collect()
}

/// A packed batch of tensors in one type.
struct Batch<T> {
    lengths: Vec<(usize, usize)>,
    head_dim: usize,
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
}

/// O and lse of the first sequence, as bits.
type Bits = (Vec<u32>, Vec<u32>);

impl<T: Element> Batch<T> {
    fn new(head_dim: usize) -> Self {
        let lengths = lengths();
        let total = |of: fn(&(usize, usize)) -> usize| lengths.iter().map(of).sum::<usize>();
        let layout = |rows, heads| TensorLayout::bshd(1, rows, heads, head_dim);
        let (q, k) = (layout(total(|it| it.0), HEADS), layout(total(|it| it.1), KV_HEADS));
        Self { head_dim, q: tensor(&q, 3), k: tensor(&k, 5), v: tensor(&k, 7), lengths }
    }

    /// The bits of the first sequence, among as many of the others.
    fn first_of(&self, others: usize, options: &Options, (backend, kernel): &(Backend, Kernel)) -> Bits {
        let lengths = &self.lengths[..=others];
        let total = |of: fn(&(usize, usize)) -> usize| lengths.iter().map(of).sum::<usize>();
        let layout = |rows, heads| TensorLayout::bshd(1, rows, heads, self.head_dim);
        let (q, k) = (layout(total(|it| it.0), HEADS), layout(total(|it| it.1), KV_HEADS));
        let tensors = Tensors { q, k, v: k, o: q };
        let problem = if others == 0 {
            // By itself, and in no packed batch.
            Problem::new(tensors, T::DTYPE, options.clone()).unwrap()
        } else {
            let (of_q, of_k) = (lengths.iter().map(|it| it.0), lengths.iter().map(|it| it.1));
            Problem::varlen(tensors, T::DTYPE, options.clone(), &offsets(of_q), &offsets(of_k)).unwrap()
        };
        let request = Request { kernel: Some(*kernel), batch_invariant: true, ..Request::default() };
        let plan = backend.plan(&problem, &request).unwrap();
        let mut o = vec![T::Output::from_f32(f32::NAN); q.span()];
        let mut lse = vec![f32::NAN; problem.lse_len()];
        backend
            .run(&plan, (&self.q[..], &self.k[..], &self.v[..]), Outputs { o: &mut o, lse: Some(&mut lse) })
            .unwrap();
        let rows = self.lengths[0].0;
        let lse = (0..HEADS).flat_map(|head| lse[head * q.seqlen..][..rows].iter().map(|it| it.to_bits()));
        let o = o[..rows * HEADS * self.head_dim].iter().map(|value| value.to_f32().to_bits());
        (o.collect(), lse.collect())
    }

    fn check(&self, options: &Options, dtype: DType) {
        for kernel in kernels(dtype, 9) {
            let alone = self.first_of(0, options, &kernel);
            let among = self.first_of(63, options, &kernel);
            assert!(among == alone, "{}, {options:?}", kernel.1);
        }
    }
}

#[test]
fn a_sequence_has_the_same_bits_in_any_batch() {
    let masks = [
        Options::default(),
        Options { causal: true, ..Options::default() },
        Options { window: (Some(70), Some(9)), softcap: 2.0, ..Options::default() },
    ];
    for (index, options) in masks.iter().enumerate() {
        match index {
            0 => Batch::<f16>::new(64).check(options, DType::F16),
            1 => Batch::<bf16>::new(128).check(options, DType::Bf16),
            _ => Batch::<f16>::new(128).check(options, DType::F16),
        }
        Batch::<f32>::new(40).check(options, DType::F32);
    }
}

/// Queries, their heads, and those of keys.
type Shape = [usize; 3];

/// The bits of the first of some sequences that use so many keys of a cache with `room` for each, and why
/// keys are split so.
fn decoded(
    kernel: DecodeKernel,
    shape: Shape,
    used: &[i32],
    room: usize,
    options: &Options,
) -> (Bits, String) {
    let ([rows, heads, kv_heads], head_dim) = (shape, 128);
    let q = TensorLayout::bshd(used.len(), rows, heads, head_dim);
    let k = TensorLayout::bshd(used.len(), room, kv_heads, head_dim);
    let options = DecodeOptions { attention: options.clone(), ..DecodeOptions::default() };
    let problem = DecodeProblem::new(Tensors { q, k, v: k, o: q }, DType::F16, options).unwrap();
    // Each sequence's elements are the same however much room others have.
    let cache = |seed| {
        let mut all = vec![f16::NAN; k.span()];
        for (batch, &used) in used.iter().enumerate() {
            let rows = TensorLayout { batch: 1, seqlen: used as usize, ..k };
            let values = tensor::<f16>(&rows, seed + batch as u64);
            all[k.row(batch, 0, 0)..][..rows.elements()].copy_from_slice(&values[..rows.elements()]);
        }
        all
    };
    let (query, key, value) = (tensor(&q, 3), cache(50), cache(900));
    let (mut o, mut lse) = (vec![f16::NAN; q.span()], vec![f32::NAN; problem.dense().lse_len()]);
    let backend = Backend::simulator(11);
    // Tiles of few rows need not ask.
    let asks = rows * heads / kv_heads > 32 || kernel != DecodeKernel::DecodeSm90;
    let batch_invariant = asks.then_some(true);
    let request = DecodeRequest { batch_invariant, kernel: Some(kernel), ..DecodeRequest::default() };
    let plan = backend.plan(&problem, &request).unwrap();
    let inputs = DecodeInputs { seqused_k: Some(used), ..DecodeInputs::new(&query, &key, &value) };
    backend.run(&plan, inputs, Outputs { o: &mut o, lse: Some(&mut lse) }).unwrap();
    let o = o[..rows * heads * head_dim].iter().map(|value| value.to_bits().into());
    let lse = lse[..heads * rows].iter().map(|it| it.to_bits());
    let split = |reason: &&String| reason.contains(" split");
    ((o.collect(), lse.collect()), plan.reasons().iter().find(split).unwrap().clone())
}

#[test]
fn so_has_a_sequence_that_is_decoded() {
    let others = |first| std::iter::once(first).chain((0..63).map(|i| i * 211 % 1500)).collect::<Vec<_>>();
    for options in [
        Options { causal: true, sinks: Some(vec![1.0; 8]), ..Options::default() },
        Options { window: (Some(600), None), alibi_slopes: Some(vec![0.01; 8]), ..Options::default() },
    ] {
        // One split, by itself without a launch that merges; several; and none at all.
        for first in [300, 1300, 0] {
            // That of latents has a test of its own.
            for kernel in DecodeKernel::ALL.into_iter().filter(|&kernel| kernel != DecodeKernel::MlaSm90) {
                let (alone, _) = decoded(kernel, [8, 8, 1], &[first], (first as usize).max(1), &options);
                let (among, _) = decoded(kernel, [8, 8, 1], &others(first), 1500, &options);
                assert!(among == alone, "{}: {first} keys, {options:?}", kernel.name());
            }
        }
    }
}

#[test]
fn splits_give_the_same_bits_whoever_merges_them() {
    let q = TensorLayout::bshd(1, 1, 8, 128);
    let k = TensorLayout::bshd(1, 1000, 2, 128);
    let options = Options { sinks: Some(vec![1.0; 8]), ..Options::default() };
    let options = DecodeOptions { attention: options, ..DecodeOptions::default() };
    let problem = DecodeProblem::new(Tensors { q, k, v: k, o: q }, DType::F16, options).unwrap();
    let (query, key, value) = (tensor::<f16>(&q, 3), tensor::<f16>(&k, 5), tensor::<f16>(&k, 7));
    let merged = |num_splits, by_clusters| {
        let (mut o, mut lse) = (vec![f16::NAN; q.span()], vec![f32::NAN; 8]);
        let request = DecodeRequest {
            num_splits: Some(num_splits),
            clusters: Some(by_clusters),
            ..DecodeRequest::default()
        };
        let backend = Backend::simulator(num_splits as u64);
        let plan = backend.plan(&problem, &request).unwrap();
        assert_eq!(plan.launches()[0].cluster as usize, if by_clusters { num_splits } else { 1 });
        let inputs = DecodeInputs::new(&query, &key, &value);
        backend.run(&plan, inputs, Outputs { o: &mut o, lse: Some(&mut lse) }).unwrap();
        let o: Vec<_> = o.iter().map(|value| value.to_bits()).collect();
        (o, lse.iter().map(|value| value.to_bits()).collect::<Vec<_>>())
    };
    for num_splits in [2, 5, 8] {
        assert_eq!(merged(num_splits, true), merged(num_splits, false), "{num_splits}");
    }
}

#[test]
fn so_has_one_whose_splits_are_spread_over_fewer_blocks() {
    let sinks = Options { causal: true, sinks: Some(vec![1.0; 8]), ..Options::default() };
    // The first key in the window is in the middle of a split.
    let window = Options { window: (Some(500), None), ..Options::default() };
    for (options, first) in [(&sinks, 700), (&sinks, 200), (&window, 900)] {
        let bits = |used: &[i32], room| decoded(DecodeKernel::DecodeSm90, [1, 8, 2], used, room, options);
        let (alone, owner) = bits(&[first], first as usize);
        assert!(owner.ends_with("a block of a cluster each"), "{owner}");
        // All alike, and others so short that the splits of the first are blocks of their own.
        for (others, other, expected) in [
            (63, 900, "added up by one block where lengths are alike"),
            (63, 20, "added up by one block where lengths are alike"),
            (30, 900, "up to 4 in each block of a cluster"),
            (18, 20, "up to 3 in each block of a cluster"),
        ] {
            let used: Vec<_> = std::iter::once(first).chain(std::iter::repeat_n(other, others)).collect();
            let (among, owner) = bits(&used, 900);
            assert!(owner.ends_with(expected), "{owner}");
            assert!(among == alone, "{first} keys beside {others} of {other}, {options:?}");
        }
    }
}
