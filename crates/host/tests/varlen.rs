//! Packed batches: sequences of different lengths behind one another.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Order, for_each_element, kernels, offsets, options, tensor};
use flash_attention::accuracy::Expected;
use flash_attention::backward::{BackwardInputs, BackwardOutputs, BackwardProblem, BackwardRequest};
use flash_attention::forward::{Descale, Factor, Outputs};
use flash_attention::operation::{Data, Operation, Tensor};
use flash_attention::sim::Sim;
use flash_attention::{
    Backend, BackendKind, DType, Device, Element, Kernel, Options, Plan, Problem, Request, TensorLayout,
    Tensors, accuracy, reference,
};
use float8::F8E4M3;
use half::f16;
use proptest::prelude::*;

/// A packed batch, as data that prints when a test fails.
#[derive(Clone, Debug)]
struct Packed {
    /// Queries and keys of each sequence.
    lengths: Vec<(usize, usize)>,
    /// Rows behind the last sequence.
    unused: usize,
    /// Hkv, query heads per key/value head, D.
    shape: [usize; 3],
    /// Dv, if not D.
    head_dim_v: Option<usize>,
    orders: [Order; 3],
    options: Options,
}

impl Packed {
    fn problem(&self, dtype: DType) -> Problem {
        let side = |of: fn(&(usize, usize)) -> usize| offsets(self.lengths.iter().map(of));
        let (q, k) = (side(|pair| pair.0), side(|pair| pair.1));
        let [kv_heads, group, d] = self.shape;
        let rows = |offsets: &[u32]| offsets[self.lengths.len()] as usize + self.unused;
        let layout = |order: usize, offsets, heads, d| self.orders[order].layout(1, rows(offsets), heads, d);
        let (heads, dv) = (kv_heads * group, self.head_dim_v.unwrap_or(d));
        let tensors = Tensors {
            q: layout(0, &q, heads, d),
            k: layout(1, &k, kv_heads, d),
            v: layout(1, &k, kv_heads, dv),
            o: layout(2, &q, heads, dv),
        };
        Problem::varlen(tensors, dtype, self.options.clone(), &q, &k).unwrap()
    }
}

/// The same batch, whose offsets the device alone has, with so many more rows in the longest sequence.
fn on_device(problem: &Problem, options: &Options, more: usize) -> Problem {
    let bounds = (problem.seqlen_q() + more, problem.seqlen_k() + more);
    let (tensors, batch) = (*problem.tensors(), problem.batch());
    Problem::varlen_on_device(tensors, problem.dtype(), options.clone(), batch, bounds).unwrap()
}

/// O and lse of a kernel, over outputs that hold −77.
fn run<T: Element>(
    subject: &(Backend, Kernel),
    problem: &Problem,
    inputs: &[Vec<T>; 3],
) -> (Vec<T::Output>, Vec<f32>, f64) {
    let (backend, kernel) = subject;
    let plan = backend.plan(problem, &Request { kernel: Some(*kernel), ..Request::default() }).unwrap();
    run_plan(subject, &plan, inputs)
}

/// As [`run`], by a plan that did not see the offsets.
fn run_on_device<T: Element>(
    subject: &(Backend, Kernel),
    (problem, planned): (&Problem, &Problem),
    inputs: &[Vec<T>; 3],
) -> (Vec<T::Output>, Vec<f32>, f64) {
    let (backend, kernel) = subject;
    let plan = backend.plan(planned, &Request { kernel: Some(*kernel), ..Request::default() }).unwrap();
    let (q, k) = problem.cu_seqlens().unwrap();
    run_plan(subject, &plan.with_cu_seqlens(q, k).unwrap(), inputs)
}

fn run_plan<T: Element>(
    (backend, _): &(Backend, Kernel),
    plan: &Plan,
    [q, k, v]: &[Vec<T>; 3],
) -> (Vec<T::Output>, Vec<f32>, f64) {
    let problem = plan.problem();
    let mut o = vec![T::Output::from_f32(-77.0); problem.tensors().o.span()];
    let mut lse = vec![-77.0; problem.lse_len()];
    backend.run(plan, (q, k, v), Outputs { o: &mut o, lse: Some(&mut lse) }).unwrap();
    (o, lse, plan.score_roundoff())
}

fn inputs<T: Element>(problem: &Problem) -> [Vec<T>; 3] {
    let Tensors { q, k, v, .. } = problem.tensors();
    [(5, q), (6, k), (7, v)].map(|(seed, layout)| tensor(layout, seed))
}

fn matches_the_reference<T: Element>(packed: &Packed, more: Option<usize>) -> Result<(), TestCaseError> {
    let problem = packed.problem(T::DTYPE);
    let inputs = inputs::<T>(&problem);
    let [q, k, v] = &inputs;
    let expected = Expected::new(&problem, (q, k, v), reference::all(&problem));
    let planned = more.map(|more| on_device(&problem, &packed.options, more));
    for subject in kernels(T::DTYPE, 3) {
        let (o, lse, scores) = match &planned {
            Some(planned) => run_on_device(&subject, (&problem, planned), &inputs),
            None => run(&subject, &problem, &inputs),
        };
        let report = expected.judge(&problem, &o, Some(&lse), scores);
        prop_assert!(report.passed(), "{} on {:?}: {report}", subject.1, subject.0.device().backend);
        let written = lse.iter().filter(|&&lse| lse != -77.0).count();
        prop_assert_eq!(
            written,
            expected.rows.len(),
            "{}: rows past the last sequence were written",
            subject.1
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random lengths, empty ones among them, with every mask and change of scores.
    #[test]
    fn every_kernel_matches_the_reference(
        lengths in prop::collection::vec((prop_oneof![Just(0), 1..70_usize], prop_oneof![Just(0), 1..150_usize]), 1..5),
        unused in 1..3_usize,
        shape in [1..3_usize, 1..3_usize, 1..80_usize],
        options in options(70),
        padded in any::<bool>(),
        dtype in prop::sample::select(vec![DType::F32, DType::F16, DType::E4m3]),
        mapped in any::<bool>(),
        more in prop::option::of(0..200_usize),
    ) {
        // Tensor maps want rows at multiples of 16 bytes.
        let chunk = match dtype {
            DType::E4m3 => 16,
            _ if mapped => 8,
            _ => 1,
        };
        let padding = if chunk == 1 { 3 } else { chunk };
        let orders = if padded { [Order::Padded(padding), Order::Bshd, Order::Bhsd] } else { [Order::Bshd; 3] };
        let shape = [shape[0], shape[1], shape[2].next_multiple_of(chunk)];
        let packed = Packed { lengths, unused, shape, head_dim_v: None, orders, options };
        match dtype {
            DType::E4m3 => matches_the_reference::<F8E4M3>(&packed, more)?,
            DType::F16 => matches_the_reference::<f16>(&packed, more)?,
            _ => matches_the_reference::<f32>(&packed, more)?,
        }
    }
}

/// Two blocks of `forward_sm90` go through the tiles of many sequences, whole ones and cut ones, in 8
/// schedules, and leave the last to blocks of their own; heads start at multiples of 16 bytes and elsewhere,
/// and in 8 bits each head of each sequence has a factor.
#[test]
fn blocks_go_through_tiles_of_many_sequences() {
    let mut grids = Vec::new();
    for schedule in 0..8 {
        let shapes = [[3, 1, 64], [1, 3, 128], [8, 1, 33], [8, 1, 129], [1, 2, 192]];
        let head_dims_v = [None, None, None, None, Some(128)];
        let shape = (shapes[schedule % 5], head_dims_v[schedule % 5]);
        grids.push(go_through_sequences::<f16>(&LENGTHS, shape, schedule));
        let shape = [[3, 1, 64], [1, 3, 128], [8, 1, 32], [1, 1, 256], [1, 2, 192]][schedule % 5];
        grids.push(go_through_sequences::<F8E4M3>(&LENGTHS, (shape, None), schedule));
    }
    assert!(grids.iter().any(|&grid| grid > 2), "{grids:?}");
}

const LENGTHS: [(usize, usize); 5] = [(192, 400), (0, 50), (250, 128), (70, 0), (130, 128)];

/// A lane each counts the tiles of 32 sequences: here are more, some without queries, and as many in a row.
#[test]
fn blocks_find_their_tiles_among_more_sequences_than_a_warp_has_lanes() {
    for schedule in 0..4 {
        let queries = |at: usize| match at {
            0..40 => 0,
            64 => 130,
            _ => at * 7 % 3,
        };
        let lengths: Vec<_> = (0..75).map(|at| (queries((at + 29 * schedule) % 75), 1 + at % 5)).collect();
        go_through_sequences::<f16>(&lengths, ([2, 1, 64], None), schedule);
    }
}

/// The blocks of the last launch.
fn go_through_sequences<T: Element>(
    lengths: &[(usize, usize)],
    (shape, head_dim_v): ([usize; 3], Option<usize>),
    schedule: usize,
) -> u32 {
    let values = lengths.len() * shape[0];
    let factors = |of: f32| Factor::Heads((0..values).map(|head| of * (1.0 + head as f32 / 8.0)).collect());
    let descale = Descale { q: factors(0.25), k: factors(0.5), v: factors(2.0) };
    let packed = Packed {
        lengths: lengths.to_vec(),
        unused: 1,
        shape,
        head_dim_v,
        orders: [Order::Bshd; 3],
        options: Options {
            causal: schedule < 4,
            descale: (T::DTYPE == DType::E4m3).then_some(descale),
            ..Options::default()
        },
    };
    let problem = packed.problem(T::DTYPE);
    let [q, k, v] = &inputs::<T>(&problem);
    let device = Device { multiprocessors: 2, ..Sim::new(0).device().clone() };
    let sim = Sim::of_device(device.clone(), schedule as u64);
    let request = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
    let plan = Plan::new(&problem, &device, &request).unwrap();
    let mut o = vec![T::Output::from_f32(-77.0); problem.tensors().o.span()];
    let mut lse = vec![-77.0; problem.lse_len()];
    sim.run(&plan, (q, k, v), Outputs { o: &mut o, lse: Some(&mut lse) }).unwrap();
    let rows = reference::all(&problem);
    let report = accuracy::check(&problem, (q, k, v), &o, Some(&lse), plan.score_roundoff(), &rows);
    assert!(report.passed(), "schedule {schedule}, {packed:?}: {report}");
    assert_eq!(lse.iter().filter(|&&lse| lse != -77.0).count(), rows.len());
    plan.launches().last().unwrap().grid
}

/// What follows a sequence in memory, and what comes before it, is NaN: nothing of it may come through.
#[test]
fn neighbours_do_not_leak_even_if_they_are_nan() {
    neighbours_do_not_leak(f16::NAN, 40);
    neighbours_do_not_leak(F8E4M3::NAN, 48);
}

fn neighbours_do_not_leak<T: Element>(nan: T, head_dim: usize) {
    for (causal, window) in [(false, (None, None)), (true, (None, None)), (false, (Some(20), Some(3)))] {
        let packed = Packed {
            // 127 and 191 are a row less than whole blocks of 64, 96 or 128 keys.
            lengths: vec![(33, 127), (0, 5), (40, 191), (5, 0), (70, 37)],
            unused: 1,
            shape: [1, 2, head_dim],
            head_dim_v: None,
            orders: [Order::Bshd; 3],
            options: Options { causal, window, ..Options::default() },
        };
        let problem = packed.problem(T::DTYPE);
        let clean = inputs::<T>(&problem);
        for batch in 0..problem.batch() {
            let mut inputs = clean.clone();
            let Tensors { q, k, v, o } = problem.tensors();
            let (queries, keys) = (problem.query_rows(batch), problem.key_rows(batch));
            for (values, (layout, rows)) in
                inputs.iter_mut().zip([(q, queries.clone()), (k, keys.clone()), (v, keys)])
            {
                let row = layout.stride_seq;
                for_each_element(layout, |at| {
                    if !rows.contains(&(at / row)) {
                        values[at] = nan;
                    }
                });
            }
            for subject in kernels(T::DTYPE, 3) {
                let (expected, expected_lse, _) = run(&subject, &problem, &clean);
                let (out, lse, _) = run(&subject, &problem, &inputs);
                for (row, head) in (0..queries.len()).flat_map(|row| [(row, 0), (row, 1)]) {
                    let at = problem.query_index(o, batch, row, head);
                    let what = format!("{}, sequence {batch}, row {row}", subject.1);
                    let alike = (0..head_dim).all(|i| out[at + i].to_f32() == expected[at + i].to_f32());
                    assert!(alike, "{what}");
                    let at = problem.lse_index(batch, head, row);
                    assert_eq!(lse[at], expected_lse[at], "{what}");
                }
            }
        }
    }
}

#[test]
fn a_packed_batch_of_equal_lengths_is_a_plain_one() {
    let (b, s, h, d) = (3, 37, 2, 24);
    let packed = Packed {
        lengths: vec![(s, s); b],
        unused: 0,
        shape: [h, 1, d],
        head_dim_v: None,
        orders: [Order::Bshd; 3],
        options: Options { causal: true, ..Options::default() },
    };
    let varlen = packed.problem(DType::F32);
    let layout = TensorLayout::bshd(b, s, h, d);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let plain = Problem::new(tensors, DType::F32, packed.options.clone()).unwrap();
    assert_eq!((varlen.flops(), varlen.batch()), (plain.flops(), b));
    let inputs = inputs::<f32>(&plain);
    for subject in kernels(DType::F32, 3) {
        let (o, lse, _) = run(&subject, &varlen, &inputs);
        let (expected, expected_lse, _) = run(&subject, &plain, &inputs);
        assert_eq!(o, expected, "{}", subject.1);
        for (batch, head, row) in [(0, 0, 0), (1, 1, 5), (2, 0, s - 1)] {
            let same = lse[head * b * s + batch * s + row] == expected_lse[(batch * h + head) * s + row];
            assert!(same, "{}: lse of {batch} {head} {row}", subject.1);
        }
    }
}

/// One plan for a bound of lengths serves batches of any: what a replayed graph does.
#[test]
fn lengths_on_the_device_may_change_under_a_plan() {
    let shape = [2, 2, 40];
    let packed = |lengths: &[(usize, usize)]| {
        let (rows, keys) = lengths.iter().fold((0, 0), |(rows, keys), pair| (rows + pair.0, keys + pair.1));
        assert_eq!((rows, keys), (400, 500));
        let (lengths, options) = (lengths.to_vec(), Options { causal: true, ..Options::default() });
        Packed { lengths, unused: 10, shape, head_dim_v: None, orders: [Order::Bshd; 3], options }
    };
    let batches = [
        packed(&[(100, 200), (300, 100), (0, 200)]),
        packed(&[(300, 0), (0, 300), (100, 200)]),
        packed(&[(133, 167), (133, 167), (134, 166)]),
    ];
    let first = batches[0].problem(DType::F16);
    let planned = on_device(&first, &batches[0].options, 100);
    let inputs = inputs::<f16>(&first);
    let [q, k, v] = &inputs;
    for subject in kernels(DType::F16, 3) {
        let request = Request { kernel: Some(subject.1), ..Request::default() };
        let plan = subject.0.plan(&planned, &request).unwrap();
        for batch in &batches {
            let problem = batch.problem(DType::F16);
            let (of_q, of_k) = problem.cu_seqlens().unwrap();
            let (o, lse, scores) = run_plan(&subject, &plan.with_cu_seqlens(of_q, of_k).unwrap(), &inputs);
            let rows = reference::all(&problem);
            let report = accuracy::check(&problem, (q, k, v), &o, Some(&lse), scores, &rows);
            assert!(report.passed(), "{} {:?}: {report}", subject.1, batch.lengths);
        }
    }
}

/// Room for long sequences, of which a launch before the kernel finds out what is there.
#[test]
fn tiles_are_put_in_order_on_the_device() {
    let layout = |heads| TensorLayout::bshd(1, 100_000, heads, 8);
    let tensors = Tensors { q: layout(2), k: layout(1), v: layout(1), o: layout(2) };
    // Queries and keys in no order; none at all; one sequence that has nearly all.
    let batches = [
        (0..20).map(|index| (index * 37 % 90, index * 53 % 200)).collect::<Vec<(usize, usize)>>(),
        vec![(0, 0); 20],
        (0..20).map(|index| if index == 7 { (700, 900) } else { (index % 2, 30) }).collect(),
    ];
    let (sim, dtype, [q, k, v]) = (Backend::simulator(3), DType::F16, [5, 6, 7]);
    let [q, k, v] =
        [(q, layout(2)), (k, layout(1)), (v, layout(1))].map(|(seed, of)| tensor::<f16>(&of, seed));
    for causal in [false, true] {
        let options = Options { causal, ..Options::default() };
        let planned =
            Problem::varlen_on_device(tensors, dtype, options.clone(), 20, (50_000, 50_000)).unwrap();
        let request = Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() };
        let plan = sim.plan(&planned, &request).unwrap();
        assert_eq!(plan.launches()[0].entry.name, "tile_schedule");
        assert!(plan.launches()[1].grid == 132 && plan.workspace_bytes() > 0, "{:?}", plan.reasons());
        for lengths in &batches {
            let of_q = offsets(lengths.iter().map(|pair| pair.0));
            let of_k = offsets(lengths.iter().map(|pair| pair.1));
            let problem = Problem::varlen(tensors, dtype, options.clone(), &of_q, &of_k).unwrap();
            let mut o = vec![f16::NAN; tensors.o.span()];
            let mut lse = vec![f32::NAN; problem.lse_len()];
            let outputs = Outputs { o: &mut o, lse: Some(&mut lse) };
            sim.run(&plan.with_cu_seqlens(&of_q, &of_k).unwrap(), (&q, &k, &v), outputs).unwrap();
            let rows = reference::all(&problem);
            let report =
                accuracy::check(&problem, (&q, &k, &v), &o, Some(&lse), plan.score_roundoff(), &rows);
            assert!(report.passed(), "{lengths:?}: {report}");
            assert_eq!(lse.iter().filter(|lse| !lse.is_nan()).count(), rows.len(), "{lengths:?}");
        }
    }
}

#[test]
fn offsets_that_the_device_has_are_given_to_runs_on_host_tensors() {
    let layout = TensorLayout::bshd(1, 10, 1, 8);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let options = Options::default;
    let of = |batch, bounds| Problem::varlen_on_device(tensors, DType::F32, options(), batch, bounds);
    let backend = Backend::open(Some(BackendKind::Cpu)).unwrap();
    let plan = |problem| backend.plan(&problem, &Request::default()).unwrap();
    let bounded = plan(of(2, (6, 7)).unwrap());
    assert_eq!((bounded.problem().batch(), bounded.problem().seqlen_k()), (2, 7));
    let mut o = [0.0_f32; 80];
    let run = backend.run(&bounded, (&[0.0; 80], &[0.0; 80], &[0.0; 80]), Outputs { o: &mut o, lse: None });
    let message = "the device alone has cu_seqlens of this plan; Plan::with_cu_seqlens gives them to a run";
    assert_eq!(run.unwrap_err().to_string(), message);
    let error = |q: &[u32], k: &[u32]| bounded.with_cu_seqlens(q, k).unwrap_err().to_string();
    assert_eq!(error(&[0, 7, 7], &[0, 7, 10]), "q: seqlen is 7; the limit is 6");
    assert!(error(&[0, 5], &[0, 5]).contains("batch is 1"), "{}", error(&[0, 5], &[0, 5]));
    let known = plan(Problem::varlen(tensors, DType::F32, options(), &[0, 5], &[0, 5]).unwrap());
    let message = "the plan takes no cu_seqlens: its problem is not of Problem::varlen_on_device";
    assert_eq!(known.with_cu_seqlens(&[0, 5], &[0, 5]).unwrap_err().to_string(), message);
    let none = "cu_seqlens_q has 1 offsets and cu_seqlens_k 1; both need one more than there are sequences, at least 2";
    assert_eq!(of(0, (6, 7)).unwrap_err().to_string(), none);
}

/// The names of the outputs that are copied to a device first, for they have rows that no launch writes.
fn kept<O: Operation>(
    plan: &Plan<O>,
    inputs: O::Inputs<'_, f32>,
    mut outputs: O::Outputs<'_, f32>,
) -> Vec<&'static str> {
    let mut kept = Vec::new();
    let place = &mut |tensor: Tensor<'_>| {
        if matches!(tensor.data, Data::Updated(_)) {
            kept.push(tensor.name);
        }
        Ok(0)
    };
    O::tensors(plan, inputs, &mut outputs, place).unwrap();
    kept
}

#[test]
fn rows_that_no_sequence_has_keep_their_values_on_a_device() {
    let layout = TensorLayout::bshd(1, 10, 1, 8);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let packed =
        |q: &[u32], k: &[u32]| Problem::varlen(tensors, DType::F32, Options::default(), q, k).unwrap();
    let of_forward = |problem: &Problem| {
        let plan = Plan::new(problem, Sim::new(0).device(), &Request::default()).unwrap();
        let (mut o, mut lse) = ([0.0_f32; 80], [0.0; 10]);
        let outputs = Outputs { o: &mut o, lse: Some(&mut lse) };
        kept(&plan, (&[0.0; 80], &[0.0; 80], &[0.0; 80]), outputs)
    };
    let of_backward = |problem: Problem| {
        let problem = BackwardProblem::like(problem).unwrap();
        let plan = Plan::new(&problem, Sim::new(0).device(), &BackwardRequest::default()).unwrap();
        let (rows, lse) = ([0.0_f32; 80], [0.0; 10]);
        let inputs = BackwardInputs {
            q: &rows,
            k: &rows,
            v: &rows,
            o: &rows,
            lse: &lse,
            dout: &rows,
            dlse: None,
            delta: None,
        };
        let [mut dq, mut dk, mut dv] = [rows; 3];
        kept(
            &plan,
            inputs,
            BackwardOutputs { dq: &mut dq, dk: &mut dk, dv: &mut dv, dsinks: None, delta: None },
        )
    };
    let (whole, no_queries) = (packed(&[0, 4, 10], &[0, 9, 10]), packed(&[0, 4, 9], &[0, 9, 10]));
    let no_keys = packed(&[0, 4, 10], &[0, 7, 9]);
    let dense = Problem::new(tensors, DType::F32, Options::default()).unwrap();
    for problem in [&whole, &no_keys, &dense] {
        assert!(of_forward(problem).is_empty());
    }
    assert_eq!(of_forward(&no_queries), ["o", "lse"]);
    assert!(of_backward(whole).is_empty() && of_backward(dense.clone()).is_empty());
    assert_eq!(of_backward(no_queries), ["dq"]);
    assert_eq!(of_backward(no_keys), ["dk", "dv"]);
    assert_eq!(of_backward(dense.with_seqused_k(&[4]).unwrap()), ["dk", "dv"]);
}

#[test]
fn bad_offsets_are_refused_at_the_edge() {
    let layout = |batch| TensorLayout::bshd(batch, 10, 1, 8);
    let error = |batch, q: &[u32], k: &[u32]| {
        let layout = layout(batch);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        Problem::varlen(tensors, DType::F32, Options::default(), q, k).unwrap_err().to_string()
    };
    assert_eq!(error(1, &[0, 11], &[0, 10]), "cu_seqlens_q: offset 1 is 11; q has 10 rows");
    assert_eq!(
        error(2, &[0, 10], &[0, 10]),
        "q: batch is 2; a packed batch lies in one, with its sequences behind one another"
    );
}
