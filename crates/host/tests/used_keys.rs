//! Sequences that use fewer keys than they have: `seqused_k`.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Order, kernels, offsets, options, tensor};
use flash_attention::accuracy::Expected;
use flash_attention::forward::{Dropout, Outputs};
use flash_attention::{
    Backend, BackendKind, DType, Element, Kernel, Options, Plan, Problem, Request, TensorLayout, Tensors,
    reference,
};
use float8::F8E4M3;
use half::f16;
use proptest::prelude::*;

/// A batch, as data that prints when a test fails.
#[derive(Clone, Debug)]
struct Batch {
    /// Queries of each sequence, keys, and those of them that it uses.
    lengths: Vec<[usize; 3]>,
    /// Whether sequences lie behind one another; else each has the rows of the longest.
    is_packed: bool,
    /// Hkv, query heads per key/value head, D.
    shape: [usize; 3],
    order: Order,
    options: Options,
}

impl Batch {
    /// The problem in which all keys are used.
    fn whole(&self, dtype: DType) -> Problem {
        let [kv_heads, group, d] = self.shape;
        let longest = |side: usize| self.lengths.iter().map(|of| of[side]).max().unwrap().max(1);
        let layout = |batch, rows, heads| self.order.layout(batch, rows, heads, d);
        let tensors = |batch, [rows, keys]: [usize; 2]| {
            let (q, k) = (layout(batch, rows, kv_heads * group), layout(batch, keys, kv_heads));
            Tensors { q, k, v: k, o: q }
        };
        if !self.is_packed {
            let tensors = tensors(self.lengths.len(), [longest(0), longest(1)]);
            return Problem::new(tensors, dtype, self.options.clone()).unwrap();
        }
        let [q, k] = [self.offsets(0), self.offsets(1)];
        let tensors = tensors(1, [&q, &k].map(|offsets| offsets[self.lengths.len()].max(1) as usize));
        Problem::varlen(tensors, dtype, self.options.clone(), &q, &k).unwrap()
    }

    fn offsets(&self, side: usize) -> Vec<u32> {
        offsets(self.lengths.iter().map(|of| of[side]))
    }

    fn used(&self) -> Vec<i32> {
        self.lengths.iter().map(|of| of[2] as i32).collect()
    }

    fn problem(&self, dtype: DType) -> Problem {
        self.whole(dtype).with_seqused_k(&self.used()).unwrap()
    }
}

/// Q, K and V, of which no used element is NaN, and all others are.
fn inputs<T: Element>(problem: &Problem) -> [Vec<T>; 3] {
    let Tensors { q, k, v, .. } = problem.tensors();
    let mut clean = [(5, q), (6, k), (7, v)].map(|(seed, layout)| tensor::<T>(layout, seed));
    for (values, layout) in clean[1..].iter_mut().zip([k, v]) {
        let mut unused = vec![T::from_f32(f32::NAN); values.len()];
        for batch in 0..problem.batch() {
            for (key, head) in problem
                .key_rows(batch)
                .enumerate()
                .flat_map(|(key, _)| (0..layout.heads).map(move |head| (key, head)))
            {
                let row = problem.key_index(layout, batch, key, head)..;
                unused[row.clone()][..layout.head_dim].copy_from_slice(&values[row][..layout.head_dim]);
            }
        }
        *values = unused;
    }
    clean
}

fn run<T: Element>(backend: &Backend, plan: &Plan, [q, k, v]: &[Vec<T>; 3]) -> (Vec<T::Output>, Vec<f32>) {
    let problem = plan.problem();
    let mut o = vec![T::Output::from_f32(-77.0); problem.tensors().o.span()];
    let mut lse = vec![-77.0; problem.lse_len()];
    backend.run(plan, (q, k, v), Outputs { o: &mut o, lse: Some(&mut lse) }).unwrap();
    (o, lse)
}

fn matches_the_reference<T: Element>(
    batch: &Batch,
    on_device: bool,
    schedule: u64,
) -> Result<(), TestCaseError> {
    let problem = batch.problem(T::DTYPE);
    let inputs = inputs::<T>(&problem);
    let [q, k, v] = &inputs;
    let expected = Expected::new(&problem, (q, k, v), reference::all(&problem));
    let drops = problem.dropout().is_some();
    for (backend, kernel) in kernels(T::DTYPE, schedule) {
        let is_refused = T::DTYPE == DType::E4m3 && kernel == Kernel::ForwardSm90;
        if drops && (is_refused || !kernel.drops_weights()) {
            continue;
        }
        let request = Request { kernel: Some(kernel), ..Request::default() };
        let plan = if on_device {
            let planned = batch.whole(T::DTYPE).with_seqused_k_on_device();
            backend.plan(&planned, &request).unwrap().with_seqused_k(&batch.used()).unwrap()
        } else {
            backend.plan(&problem, &request).unwrap()
        };
        let (o, lse) = run(&backend, &plan, &inputs);
        let report = expected.judge(&problem, &o, Some(&lse), plan.score_roundoff());
        prop_assert!(report.passed(), "{kernel} on {:?}: {report}", backend.device().backend);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random lengths, of which some or none of the keys are used, with every mask and change of scores.
    #[test]
    fn every_kernel_matches_the_reference(
        lengths in prop::collection::vec((1..70_usize, 1..150_usize, 0..8_usize), 1..4),
        is_packed in any::<bool>(),
        shape in [1..3_usize, 1..3_usize, 1..80_usize],
        options in options(70),
        drops in any::<bool>(),
        padding in prop::option::of(prop::sample::select(vec![3, 8, 16])),
        dtype in prop::sample::select(vec![DType::F32, DType::F16, DType::E4m3]),
        on_device in any::<bool>(),
        schedule in any::<u64>(),
    ) {
        // None, all, and so many eighths of the keys that a batch has.
        let dense = lengths.iter().map(|of| of.1).max().unwrap();
        let used = |(rows, keys, eighths): (usize, usize, usize)| {
            [rows, keys, (if is_packed { keys } else { dense }) * eighths / 7]
        };
        let order = padding.map_or(Order::Bshd, Order::Padded);
        // Tensor maps want rows at multiples of 16 bytes.
        let d = match order {
            _ if dtype == DType::E4m3 => shape[2].next_multiple_of(16),
            Order::Padded(8) => shape[2].next_multiple_of(8),
            _ => shape[2],
        };
        let order = if dtype == DType::E4m3 && padding.is_some() { Order::Padded(16) } else { order };
        let dropout = drops.then_some(Dropout { probability: 0.4, seed: schedule, offset: 3 });
        let batch = Batch {
            lengths: lengths.into_iter().map(used).collect(),
            is_packed,
            shape: [shape[0], shape[1], d],
            order,
            options: Options { dropout, ..options },
        };
        match dtype {
            DType::E4m3 => matches_the_reference::<F8E4M3>(&batch, on_device, schedule)?,
            DType::F16 => matches_the_reference::<f16>(&batch, on_device, schedule)?,
            _ => matches_the_reference::<f32>(&batch, on_device, schedule)?,
        }
    }
}

/// Lengths around the blocks of `forward_sm90` in eight schedules: ends in the first block of keys, in
/// another, and between two, and sequences without a key.
#[test]
fn blocks_of_keys_end_where_a_sequence_does() {
    for schedule in 0..8 {
        let shape = [[2, 1, 64], [1, 3, 128], [2, 1, 33], [2, 1, 129]][schedule % 4];
        end_where_a_sequence_does::<f16>(shape, schedule);
        let shape = [[2, 1, 64], [1, 3, 128], [2, 1, 32], [1, 1, 256]][schedule % 4];
        end_where_a_sequence_does::<F8E4M3>(shape, schedule);
    }
}

fn end_where_a_sequence_does<T: Element>(shape: [usize; 3], schedule: usize) {
    let batch = Batch {
        lengths: vec![[192, 400, 130], [250, 128, 0], [70, 400, 399], [130, 400, 256], [1, 300, 1]],
        is_packed: schedule.is_multiple_of(2),
        shape,
        order: Order::Bshd,
        options: Options { causal: schedule < 4, ..Options::default() },
    };
    let problem = batch.problem(T::DTYPE);
    let inputs = inputs::<T>(&problem);
    let [q, k, v] = &inputs;
    let expected = Expected::new(&problem, (q, k, v), reference::all(&problem));
    let backend = Backend::simulator(schedule as u64);
    let request = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
    let (o, lse) = run(&backend, &backend.plan(&problem, &request).unwrap(), &inputs);
    let report = expected.judge(&problem, &o, Some(&lse), DType::F32.roundoff());
    assert!(report.passed(), "schedule {schedule}, {batch:?}: {report}");
}

/// The same sequences, once cut short and once as long as that: masks, distances and dropped weights go by
/// the keys that are used.
#[test]
fn unused_keys_are_as_if_they_were_not_there() {
    let cut = Batch {
        lengths: vec![[40, 90, 33], [40, 90, 90], [40, 90, 0], [40, 90, 64]],
        is_packed: true,
        shape: [2, 2, 24],
        order: Order::Bshd,
        options: Options {
            window: (Some(30), Some(9)),
            alibi_slopes: Some(vec![0.5, 0.25, -0.1, 1.0]),
            dropout: Some(Dropout { probability: 0.3, seed: 5, offset: 1 }),
            ..Options::default()
        },
    };
    let short = Batch {
        lengths: cut.lengths.iter().map(|&[rows, _, used]| [rows, used, used]).collect(),
        ..cut.clone()
    };
    let (problem, short) = (cut.problem(DType::F32), short.whole(DType::F32));
    let [q, k, v] = inputs::<f32>(&problem);
    let rows = problem.tensors().k.stride_seq;
    let used = |values: &[f32]| -> Vec<f32> {
        (0..4)
            .flat_map(|batch| problem.key_rows(batch))
            .flat_map(|row| &values[row * rows..][..rows])
            .copied()
            .collect()
    };
    let all = reference::all(&problem);
    assert_eq!(all, reference::all(&short));
    let found = reference::rows(&problem, &q, &k, &v, &all);
    let expected = reference::rows(&short, &q, &used(&k), &used(&v), &all);
    assert_eq!((found.o, found.lse), (expected.o, expected.lse));
    assert_eq!((problem.flops(), problem.batch()), (short.flops(), 4));
}

/// One plan serves any numbers, as a replayed graph does.
#[test]
fn numbers_may_change_under_a_plan() {
    let layout = |seqlen| TensorLayout::bshd(3, seqlen, 2, 40);
    let (q, k) = (layout(70), layout(200));
    let options = Options { causal: true, ..Options::default() };
    let whole = Problem::new(Tensors { q, k, v: k, o: q }, DType::F16, options).unwrap();
    let planned = whole.with_seqused_k_on_device();
    for (backend, kernel) in kernels(DType::F16, 2) {
        let request = Request { kernel: Some(kernel), ..Request::default() };
        let plan = backend.plan(&planned, &request).unwrap();
        for used in [[200, 200, 200], [0, 1, 130], [128, 0, 77]] {
            let problem = whole.with_seqused_k(&used).unwrap();
            let inputs = inputs::<f16>(&problem);
            let [q, k, v] = &inputs;
            let expected = Expected::new(&problem, (q, k, v), reference::all(&problem));
            let (o, lse) = run(&backend, &plan.with_seqused_k(&used).unwrap(), &inputs);
            let report = expected.judge(&problem, &o, Some(&lse), plan.score_roundoff());
            assert!(report.passed(), "{kernel} {used:?}: {report}");
        }
    }
}

#[test]
fn a_run_on_host_tensors_needs_numbers_within_the_rows() {
    let layout = TensorLayout::bshd(1, 10, 1, 8);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let backend = Backend::open(Some(BackendKind::Cpu)).unwrap();
    let plan = |problem: &Problem| backend.plan(problem, &Request::default()).unwrap();
    let dense = Problem::new(tensors, DType::F32, Options::default()).unwrap();
    let mut o = [0.0_f32; 80];
    let mut run = |plan: &Plan| {
        let outputs = Outputs { o: &mut o, lse: None };
        backend.run(plan, (&[0.0; 80], &[0.0; 80], &[0.0; 80]), outputs).map_err(|error| error.to_string())
    };
    let bounded = plan(&dense.with_seqused_k_on_device());
    let message = "the device alone has seqused_k of this plan; Plan::with_seqused_k gives it to a run";
    assert_eq!(run(&bounded).unwrap_err(), message);
    run(&bounded.with_seqused_k(&[4]).unwrap()).unwrap();
    let error = |plan: &Plan, used: &[i32]| plan.with_seqused_k(used).unwrap_err().to_string();
    assert_eq!(error(&bounded, &[11]), "seqused_k[0] is 11; a sequence has room for 10 keys");
    assert_eq!(error(&plan(&dense), &[4]), "the plan takes no seqused_k: its problem has none");

    let packed = Problem::varlen_on_device(tensors, DType::F32, Options::default(), 2, (10, 7)).unwrap();
    let bounded = plan(&packed.with_seqused_k(&[7, 2]).unwrap());
    let error = bounded.with_cu_seqlens(&[0, 5, 10], &[0, 6, 9]).unwrap_err().to_string();
    assert_eq!(error, "seqused_k[0] is 7; a sequence has room for 6 keys");
    run(&bounded.with_cu_seqlens(&[0, 5, 10], &[0, 7, 9]).unwrap()).unwrap();
}
