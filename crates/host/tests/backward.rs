//! The backward pass in the simulator and on the CPU against the f64 reference, under FlashAttention's
//! accuracy rule.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Case, Order, case, for_each_element, sinks_of, tensor, untouched_outside};
use flash_attention::accuracy::{self, Report};
use flash_attention::backward::{
    BackwardInputs, BackwardKernel, BackwardOutputs, BackwardPlan, BackwardProblem, BackwardRequest,
    GradientInputs, GradientLayouts, GradientReport,
};
use flash_attention::forward::{Dropout, Outputs};
use flash_attention::operation::Launch;
use flash_attention::{
    Backend, BackendKind, DType, Element, Kernel, Options, Problem, Request, TensorLayout, Tensors, cpu,
    reference,
};
use half::{bf16, f16};
use proptest::prelude::*;

/// A problem with all tensors that its backward pass reads: O and lse are those of the CPU's forward pass.
struct Made<T> {
    problem: BackwardProblem,
    inputs: [Vec<T>; 3],
    o: Vec<T>,
    lse: Vec<f32>,
    dout: Vec<T>,
    dlse: Option<Vec<f32>>,
}

/// What a run wrote.
struct Ran<T> {
    /// dQ, dK and dV.
    gradients: [Vec<T>; 3],
    dsinks: Option<Vec<f32>>,
    plan: BackwardPlan,
}

impl<T: Element<Output = T>> Ran<T> {
    fn report(&self, made: &Made<T>) -> GradientReport {
        let expected = made.problem.expected(made.gradient_inputs(), &made.problem.heads());
        let gradients = self.gradients.each_ref().map(Vec::as_slice);
        expected.judge(&made.problem, gradients, self.dsinks.as_deref())
    }
}

impl<T: Element<Output = T>> Made<T> {
    fn new(forward: Problem, layouts: GradientLayouts, seed: u64) -> Self {
        let Tensors { q, k, v, o: o_layout } = *forward.tensors();
        let inputs =
            [(q, 1), (k, 2), (v, 3)].map(|(layout, salt)| tensor(&layout, seed.wrapping_mul(2 * salt + 1)));
        let (mut o, mut lse) =
            (vec![T::from_f32(f32::NAN); o_layout.span()], vec![f32::NAN; forward.lse_len()]);
        cpu::forward(&forward, &inputs[0], &inputs[1], &inputs[2], &mut o, Some(&mut lse)).unwrap();
        let dout = tensor(&layouts.dout, seed.wrapping_mul(9));
        Self { problem: BackwardProblem::new(forward, layouts).unwrap(), inputs, o, lse, dout, dlse: None }
    }

    /// With a gradient of lse, which is NaN where a row sees neither a key nor a sink.
    fn with_dlse(self, seed: u64) -> Self {
        let values = tensor::<f32>(&TensorLayout::bshd(1, 1, 1, self.lse.len()), seed);
        let of_lse = |(&lse, value)| if lse == f32::NEG_INFINITY { f32::NAN } else { value };
        Self { dlse: Some(self.lse.iter().zip(values).map(of_lse).collect()), ..self }
    }

    /// Of a random case; gradients lie in another order than their tensors.
    fn of_case(case: &Case) -> Self {
        let [b, sq, sk, h, group, d] = case.shape;
        let (dv, order) = (case.head_dim_v.unwrap_or(d), case.orders[2]);
        let layouts = GradientLayouts {
            dout: case.orders[0].layout(b, sq, h * group, dv),
            dq: order.layout(b, sq, h * group, d),
            dk: order.layout(b, sk, h, d),
            dv: Order::Bhsd.layout(b, sk, h, dv),
        };
        let made = Self::new(case.problem(), layouts, case.seed);
        if case.seed.is_multiple_of(2) { made.with_dlse(case.seed / 2) } else { made }
    }

    fn inputs(&self) -> BackwardInputs<'_, T> {
        let [q, k, v] = &self.inputs;
        BackwardInputs { q, k, v, o: &self.o, lse: &self.lse, dout: &self.dout, dlse: self.dlse.as_deref() }
    }

    fn gradient_inputs(&self) -> GradientInputs<'_, T> {
        let [q, k, v] = &self.inputs;
        GradientInputs { q, k, v, dout: &self.dout, dlse: self.dlse.as_deref() }
    }

    /// The gradients, in buffers of a value that nothing computes.
    fn run(&self, backend: &Backend) -> flash_attention::Result<Ran<T>> {
        self.run_with(backend, &BackwardRequest::default())
    }

    fn run_with(&self, backend: &Backend, request: &BackwardRequest) -> flash_attention::Result<Ran<T>> {
        self.run_plan(backend, backend.plan(&self.problem, request)?)
    }

    fn run_plan(&self, backend: &Backend, plan: BackwardPlan) -> flash_attention::Result<Ran<T>> {
        let GradientLayouts { dq, dk, dv, .. } = self.problem.layouts();
        let [mut dq, mut dk, mut dv] = [dq, dk, dv].map(|layout| vec![T::from_f32(-77.0); layout.span() + 3]);
        let sinks = self.problem.forward().per_head().sinks;
        let mut dsinks = sinks.map(|sinks| vec![-77.0; sinks.len() + 1]);
        let outputs =
            BackwardOutputs { dq: &mut dq, dk: &mut dk, dv: &mut dv, dsinks: dsinks.as_deref_mut() };
        backend.run(&plan, self.inputs(), outputs)?;
        Ok(Ran { gradients: [dq, dk, dv], dsinks, plan })
    }

    fn check(&self, backend: &Backend, request: &BackwardRequest) -> Result<(), TestCaseError> {
        let ran = self.run_with(backend, request).map_err(|error| TestCaseError::fail(error.to_string()));
        let ran = ran?;
        let [dq, dk, dv] = &ran.gradients;
        let layouts = self.problem.layouts();
        for (layout, gradient, name) in
            [(layouts.dq, dq, "dq"), (layouts.dk, dk, "dk"), (layouts.dv, dv, "dv")]
        {
            prop_assert!(untouched_outside(&layout, gradient, -77.0), "{name}: wrote outside the view");
        }
        let past = ran.dsinks.as_ref().and_then(|dsinks| dsinks.last());
        prop_assert!(past.is_none_or(|&past| past == -77.0), "dsinks: wrote outside the view");
        let report = ran.report(self);
        prop_assert!(report.passed(), "{report}; {:?}", ran.plan.reasons());
        Ok(())
    }
}

/// With this kernel, if any.
fn with(kernel: Option<BackwardKernel>) -> BackwardRequest {
    BackwardRequest { kernel, ..BackwardRequest::default() }
}

fn check_any(case: &Case, backend: &Backend, kernel: Option<BackwardKernel>) -> Result<(), TestCaseError> {
    check_request(case, backend, &with(kernel))
}

fn check_request(case: &Case, backend: &Backend, request: &BackwardRequest) -> Result<(), TestCaseError> {
    match case.dtype {
        DType::F32 => Made::<f32>::of_case(case).check(backend, request),
        DType::F16 => Made::<f16>::of_case(case).check(backend, request),
        DType::Bf16 => Made::<bf16>::of_case(case).check(backend, request),
        DType::E4m3 => unreachable!("e4m3 has no backward pass"),
    }
}

/// Where a single row sees more than one key, the plain computation is now and then exact by luck, and delta
/// is not: it is made from O as stored.
#[test]
fn few_rows_are_not_held_to_the_luck_of_the_plain_computation() {
    let case = Case {
        dtype: DType::F16,
        shape: [1, 69, 2, 2, 2, 64],
        head_dim_v: Some(27),
        orders: [Order::Bshd, Order::Repeated, Order::Bshd],
        options: Options { causal: true, softmax_scale: Some(0.924_341_44), ..Options::default() },
        seed: 14_011_621_293_292_983_050,
    };
    check_any(&case, &Backend::simulator(0), Some(BackwardKernel::BackwardSimt)).unwrap();
}

/// Around the rows of a block and of its steps, and with more of the one than of the other.
const HOPPER_AWKWARD: [(usize, usize); 7] =
    [(1, 1), (130, 1), (1, 130), (64, 192), (192, 64), (129, 257), (300, 40)];

const AWKWARD: [(usize, usize); 6] = [(1, 1), (70, 1), (1, 70), (65, 3), (33, 64), (64, 33)];

/// Every second time none.
fn dropout() -> impl Strategy<Value = Option<Dropout>> {
    let probability = prop::sample::select(vec![0.1, 0.5, 0.9]);
    let dropout = (probability, any::<u64>(), any::<u32>());
    prop::option::of(dropout.prop_map(|(probability, seed, offset)| Dropout { probability, seed, offset }))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random shapes, strides, types, masks and thread schedules.
    #[test]
    fn the_simulator_matches_the_reference(case in case(&AWKWARD, 80), schedule in any::<u64>()) {
        check_any(&case, &Backend::simulator(schedule), Some(BackwardKernel::BackwardSimt))?;
    }

    /// What tensor cores take: 16-bit types, and nothing done to scores but a positive factor.
    #[test]
    fn tensor_cores_match_the_reference(
        case in case(&AWKWARD, 150),
        half in any::<bool>(),
        head_dims in (1..=256_usize, prop::option::of(1..=256_usize)),
        schedule in any::<u64>(),
    ) {
        let [b, sq, sk, h, group, _] = case.shape;
        let Options { causal, window, sinks, .. } = case.options;
        let case = Case {
            dtype: if half { DType::F16 } else { DType::Bf16 },
            shape: [b, sq, sk, h, group, head_dims.0],
            head_dim_v: head_dims.1,
            options: Options { causal, window, sinks, ..Options::default() },
            ..case
        };
        check_any(&case, &Backend::simulator(schedule), Some(BackwardKernel::BackwardSm80))?;
    }

    /// What their other entries do to scores and weights beside that.
    #[test]
    fn tensor_cores_match_the_reference_where_scores_are_changed(
        case in case(&AWKWARD, 150),
        half in any::<bool>(),
        dropout in dropout(),
        schedule in any::<u64>(),
    ) {
        let case = Case {
            dtype: if half { DType::F16 } else { DType::Bf16 },
            options: Options { dropout, ..case.options },
            ..case
        };
        check_any(&case, &Backend::simulator(schedule), Some(BackwardKernel::BackwardSm80))?;
    }

    /// Whatever the head_dims: rows and heads at multiples of 16 bytes, as tensor maps describe them, and
    /// anywhere, where they are copied first.
    #[test]
    fn hopper_matches_the_reference(
        case in case(&HOPPER_AWKWARD, 300),
        half in any::<bool>(),
        head_dims in (0..8_usize, 0..32_usize, 0..32_usize),
        gap in prop::option::of(0..2_usize),
        // Of all heads at a time, of one or two, and not stored.
        workspace_limit in prop::sample::select(vec![None, Some(400_000), Some(0)]),
        schedule in any::<u64>(),
    ) {
        let [b, sq, sk, h, group, _] = case.shape;
        let Options { causal, window, sinks, .. } = case.options;
        let (columns, d, dv) = head_dims;
        // Of wide heads dS is always stored.
        let workspace_limit = if d.max(dv) < 16 { workspace_limit } else { None };
        let spread = |gap| [Order::Spread(7 - columns + 8 * gap); 2];
        let [of_q, of_kv] = gap.map_or([case.orders[0], case.orders[1]], spread);
        let case = Case {
            dtype: if half { DType::F16 } else { DType::Bf16 },
            shape: [b, sq, sk, h, group, 8 * d + columns + 1],
            head_dim_v: Some(8 * dv + columns + 1),
            orders: [of_q, of_kv, case.orders[2]],
            options: Options { causal, window, sinks, ..Options::default() },
            ..case
        };
        let request = BackwardRequest { workspace_limit, ..with(Some(BackwardKernel::BackwardSm90)) };
        check_request(&case, &Backend::simulator(schedule), &request)?;
    }

    /// What Hopper's kernel does to scores and weights beside that; dS is always stored.
    #[test]
    fn hopper_matches_the_reference_where_scores_are_changed(
        case in case(&HOPPER_AWKWARD, 300),
        half in any::<bool>(),
        head_dims in (0..32_usize, 0..32_usize),
        dropout in dropout(),
        of_one_head in any::<bool>(),
        schedule in any::<u64>(),
    ) {
        let [b, sq, sk, h, group, _] = case.shape;
        let order = Order::Spread(7);
        let case = Case {
            dtype: if half { DType::F16 } else { DType::Bf16 },
            shape: [b, sq, sk, h, group, 8 * head_dims.0 + 1],
            head_dim_v: Some(8 * head_dims.1 + 1),
            orders: [order, order, case.orders[2]],
            options: Options { dropout, ..case.options },
            ..case
        };
        let bytes = group * sq.div_ceil(64) * sk.next_multiple_of(128) * 128;
        let workspace_limit = of_one_head.then_some(bytes as u64);
        let request = BackwardRequest { workspace_limit, ..with(Some(BackwardKernel::BackwardSm90)) };
        check_request(&case, &Backend::simulator(schedule), &request)?;
    }

    #[test]
    fn the_cpu_matches_the_reference(case in case(&[(1, 1), (239, 1), (1, 239), (64, 128)], 150)) {
        check_any(&case, &Backend::open(Some(BackendKind::Cpu)).unwrap(), None)?;
    }
}

#[test]
fn forward_and_backward_drop_the_same_weights() {
    let dropout = Some(Dropout { probability: 0.3, seed: 11 << 33, offset: 5 });
    let case = |dtype, causal| Case {
        dtype,
        shape: [2, 45, 70, 2, 2, 40],
        head_dim_v: Some(24),
        orders: [Order::Bshd, Order::Bhsd, Order::Padded(3)],
        options: Options { causal, dropout, ..Options::default() },
        seed: 3,
    };
    for (dtype, causal) in DType::RESULTS.into_iter().flat_map(|dtype| [(dtype, false), (dtype, true)]) {
        let case = case(dtype, causal);
        for backend in [Backend::simulator(2), Backend::open(Some(BackendKind::Cpu)).unwrap()] {
            check_any(&case, &backend, None).unwrap();
            let forward = match dtype {
                DType::F32 => forward::<f32>(&case, &backend),
                DType::F16 => forward::<f16>(&case, &backend),
                DType::Bf16 => forward::<bf16>(&case, &backend),
                DType::E4m3 => unreachable!("e4m3 has no backward pass"),
            };
            assert!(forward.passed(), "{forward}");
        }
    }
}

fn forward<T: Element>(case: &Case, backend: &Backend) -> Report {
    let problem = case.problem();
    let [q, k, v] = &case.inputs::<T>();
    let plan = backend.plan(&problem, &Request::default()).unwrap();
    let (mut o, mut lse) =
        (vec![T::Output::default(); problem.tensors().o.span()], vec![0.0; problem.lse_len()]);
    backend.run(&plan, (q, k, v), Outputs { o: &mut o, lse: Some(&mut lse) }).unwrap();
    accuracy::check(&problem, (q, k, v), &o, Some(&lse), DType::F32, &reference::all(&problem))
}

#[test]
fn dropout_goes_to_the_entries_that_drop_weights() {
    let layout = TensorLayout::bshd(1, 8, 1, 8);
    let dropout = Some(Dropout { probability: 0.1, seed: 0, offset: 0 });
    let problem = Problem::new(
        Tensors { q: layout, k: layout, v: layout, o: layout },
        DType::F16,
        Options { dropout, ..Options::default() },
    )
    .unwrap();
    let backend = Backend::simulator(0);
    let plan = backend.plan(&problem, &Request::default()).unwrap();
    assert_eq!(plan.kernel(), Kernel::ForwardSm90);
    let why = "forward_sm90: fused, on Hopper's tensor cores, fed by tensor maps, with the entries that drop weights";
    assert_eq!(plan.reasons()[0], why);
    for (kernel, name) in [
        (Kernel::ForwardSm90, "forward_sm90_f16_m192_n128_d64_dropout"),
        (Kernel::ForwardSm80, "forward_sm80_f16_m128_n64_d64_w4_dropout"),
        (Kernel::ForwardSimt, "forward_simt_f16_m64_n32_d64_dropout"),
    ] {
        let request = Request { kernel: Some(kernel), ..Request::default() };
        let plan = backend.plan(&problem, &request).unwrap();
        assert_eq!(plan.launches().last().unwrap().entry.name, name);
    }
    let request = Request { kernel: Some(Kernel::Standard), ..Request::default() };
    let error = backend.plan(&problem, &request).unwrap_err().to_string();
    let able = "forward_sm90, forward_sm80, forward_simt";
    let expected = format!("it drops no weights; of this backend's kernels do: {able}");
    assert_eq!(error, format!("kernel standard cannot be run: {expected}"));
}

/// The contiguous tensors of head_dim 129, in which hardly a row starts at a multiple of 16 bytes.
#[test]
fn head_dim_129_runs_on_hopper_in_both_layouts() {
    for (order, causal) in [(Order::Bshd, false), (Order::Bhsd, true)] {
        let case = Case {
            dtype: DType::F16,
            shape: [2, 90, 130, 3, 2, 129],
            head_dim_v: None,
            orders: [order; 3],
            options: Options { causal, ..Options::default() },
            seed: 12,
        };
        let made = Made::<f16>::of_case(&case);
        let plan = Backend::simulator(4).plan(&made.problem, &BackwardRequest::default()).unwrap();
        let names: Vec<_> = plan.launches().iter().map(|launch| launch.entry.name).collect();
        assert_eq!(names, ["pack", "backward_delta_f16", "backward_keys_ds_sm90_f16_m64_n64_d144"]);
        made.check(&Backend::simulator(4), &BackwardRequest::default()).unwrap();
    }
}

/// What is aligned by its strides alone: views that start in the middle of a buffer. They are copied where
/// the workspace holds that.
#[test]
fn tensors_may_start_at_any_address() {
    let behind_one = |values: &[f16]| [&[f16::NAN], values].concat();
    for (head_dim, seqlen, is_copied) in [(64, 300, true), (136, 40, false)] {
        let layout = TensorLayout::bshd(1, seqlen, 2, head_dim);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        let problem = Problem::new(tensors, DType::F16, Options::default()).unwrap();
        let layouts = *BackwardProblem::like(problem.clone()).unwrap().layouts();
        let made = Made::<f16>::new(problem, layouts, 3);
        let backend = Backend::simulator(2);
        let plan = backend.plan(&made.problem, &BackwardRequest::default()).unwrap();
        let copies = |of: &[Launch<BackwardProblem>]| of.iter().any(|launch| launch.entry.name == "pack");
        assert_eq!([plan.launches(), plan.unaligned()].map(copies), [false, is_copied]);
        let [q, k, v] = made.inputs.each_ref().map(|values| behind_one(values));
        let (o, dout) = (behind_one(&made.o), behind_one(&made.dout));
        let inputs = BackwardInputs {
            q: &q[1..],
            k: &k[1..],
            v: &v[1..],
            o: &o[1..],
            dout: &dout[1..],
            ..made.inputs()
        };
        let mut gradients = [(); 3].map(|()| vec![f16::from_f32(-77.0); layout.span() + 2]);
        let [dq, dk, dv] = &mut gradients;
        let outputs = BackwardOutputs { dq: &mut dq[1..], dk: &mut dk[1..], dv: &mut dv[1..], dsinks: None };
        backend.run(&plan, inputs, outputs).unwrap();
        let canaries = gradients.each_ref().map(|values| [values[0], values[layout.span() + 1]]);
        assert!(canaries.as_flattened().iter().all(|value| value.to_f32() == -77.0));
        let gradients = gradients.map(|values| values[1..].to_vec());
        let report = Ran { gradients, dsinks: None, plan }.report(&made);
        assert!(report.passed(), "{report}");
    }
}

/// Four sequences of the head_dims of Q and of V: one without queries, one without keys; the last rows are
/// nobody's, and NaN.
fn packed<T: Element<Output = T>>(options: Options, (head_dim, head_dim_v): (usize, usize)) -> Made<T> {
    let (q, k) = (TensorLayout::bshd(1, 150, 4, head_dim), TensorLayout::bhsd(1, 160, 2, head_dim));
    let v = TensorLayout::bshd(1, 160, 2, head_dim_v);
    let tensors = Tensors { q, k, v, o: TensorLayout::bshd(1, 150, 4, head_dim_v) };
    let (of_q, of_k) = ([0, 70, 75, 75, 140], [0, 40, 120, 150, 150]);
    let problem = Problem::varlen(tensors, T::DTYPE, options, &of_q, &of_k).unwrap();
    let like = *BackwardProblem::like(problem.clone()).unwrap().layouts();
    let mut made = Made::new(problem, like, 9);
    let [q, k, v] = &mut made.inputs;
    for (values, layout, rows) in [
        (q, tensors.q, 140..150),
        (k, tensors.k, 150..160),
        (v, tensors.v, 150..160),
        (&mut made.dout, like.dout, 140..150),
    ] {
        for (row, head) in rows.flat_map(|row| (0..layout.heads).map(move |head| (row, head))) {
            values[layout.row(0, row, head)..][..layout.head_dim].fill(T::from_f32(f32::NAN));
        }
    }
    made
}

#[test]
fn packed_sequences_do_not_meet() {
    for causal in [false, true] {
        // The last is copied first.
        for (softcap, head_dims) in [(0.0, (40, 24)), (2.0, (40, 24)), (0.0, (129, 33))] {
            // A sink for each head, or one in each sequence.
            let sinks = Some(sinks_of(if causal { 4 } else { 16 }));
            let options = Options { causal, softcap, sinks, ..Options::default() };
            let made = packed::<f16>(options, head_dims).with_dlse(4);
            for backend in [Backend::simulator(3), Backend::open(Some(BackendKind::Cpu)).unwrap()] {
                let ran = made.run(&backend).unwrap();
                let report = ran.report(&made);
                assert!(report.passed(), "{report}");
                let layouts = made.problem.layouts();
                let [dq, dk, dv] = ran.gradients;
                for (layout, gradient, rows) in
                    [(layouts.dq, dq, 140..150), (layouts.dk, dk, 150..160), (layouts.dv, dv, 150..160)]
                {
                    for (row, head) in rows.flat_map(|row| (0..layout.heads).map(move |head| (row, head))) {
                        let at = layout.row(0, row, head);
                        let untouched = gradient[at..][..layout.head_dim].iter().all(|x| x.to_f32() == -77.0);
                        assert!(untouched, "row {row} is nobody's");
                    }
                }
            }
        }
    }
}

#[test]
fn each_schedule_gives_the_same_bits() {
    let options = Options { causal: true, sinks: Some(sinks_of(4)), ..Options::default() };
    let packed = packed::<bf16>(options.clone(), (40, 24)).with_dlse(5);
    for kernel in [BackwardKernel::BackwardSm90, BackwardKernel::BackwardSm80, BackwardKernel::BackwardSimt] {
        let made = &packed;
        let bits = |seed| {
            // Whether and how dS is stored does not show either.
            let workspace_limit = [None, Some(200_000), Some(0)][seed as usize % 3];
            let request = BackwardRequest { workspace_limit, ..with(Some(kernel)) };
            let Ran { gradients, dsinks, .. } = made.run_with(&Backend::simulator(seed), &request).unwrap();
            let dsinks: Vec<_> = dsinks.unwrap().into_iter().map(f32::to_bits).collect();
            (gradients.map(|gradient| gradient.into_iter().map(bf16::to_bits).collect::<Vec<_>>()), dsinks)
        };
        let first = bits(0);
        for seed in 1..8 {
            assert_eq!(bits(seed), first, "{kernel}, schedule {seed}");
        }
    }
}

#[test]
fn each_schedule_gives_changed_scores_the_same_bits() {
    let dropout = Some(Dropout { probability: 0.4, seed: 5, offset: 6 });
    let options = Options { causal: true, softcap: 2.0, dropout, ..Options::default() };
    let alibi_slopes = Some(vec![0.3, 0.2, 0.1, 0.05]);
    let made = packed::<f16>(Options { alibi_slopes, ..options }, (40, 24));
    for kernel in [BackwardKernel::BackwardSm90, BackwardKernel::BackwardSm80] {
        let bits = |seed| {
            let workspace_limit = [None, Some(200_000)][seed as usize % 2];
            let request = BackwardRequest { workspace_limit, ..with(Some(kernel)) };
            let ran = made.run_with(&Backend::simulator(seed), &request).unwrap();
            ran.gradients.map(|gradient| gradient.into_iter().map(f16::to_bits).collect::<Vec<_>>())
        };
        let first = bits(0);
        for seed in 1..6 {
            assert_eq!(bits(seed), first, "{kernel}, schedule {seed}");
        }
    }
}

/// Of more heads than blocks some take turns in the memory of dS within a launch: keys wait for queries.
#[test]
fn heads_take_turns_in_memory_within_a_launch() {
    let case = Case {
        dtype: DType::F16,
        shape: [70, 20, 30, 2, 1, 8],
        head_dim_v: None,
        orders: [Order::Bshd; 3],
        options: Options { causal: true, ..Options::default() },
        seed: 3,
    };
    let made = Made::<f16>::of_case(&case);
    let workers = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let run = |seed, limit| {
        let backend = Backend::simulator(seed);
        let entry = Some("backward_keys_ds_sm90_f16_m64_n128_d64".to_owned());
        let request = BackwardRequest { entry, workspace_limit: Some(limit), ..BackwardRequest::default() };
        let plan = backend.plan(&made.problem, &request).unwrap();
        assert_eq!((plan.kernel(), plan.launches().len()), (BackwardKernel::BackwardSm90, 2));
        let ran = workers.install(|| made.run_plan(&backend, plan)).unwrap();
        assert!(ran.report(&made).passed(), "{}", ran.report(&made));
        ran.gradients.map(|gradient| gradient.into_iter().map(f16::to_bits).collect::<Vec<_>>())
    };
    // dS of all 140 key/value heads, 16 KiB each, and of 136 at a time.
    let bits = run(0, 140 << 14);
    for seed in 1..3 {
        assert_eq!(run(seed, 136 << 14), bits, "schedule {seed}");
    }
}

/// Three of five queries see no key: what their dlse is reaches the sink alone.
#[test]
fn rows_that_see_no_key_give_their_dlse_to_the_sink() {
    let (q, kv) = (TensorLayout::bshd(1, 5, 2, 16), TensorLayout::bshd(1, 2, 2, 16));
    let tensors = Tensors { q, k: kv, v: kv, o: q };
    let made = |sinks: Option<Vec<f32>>, dlse: f32| {
        let options = Options { causal: true, sinks, ..Options::default() };
        let problem = Problem::new(tensors, DType::F16, options).unwrap();
        let layouts = *BackwardProblem::like(problem.clone()).unwrap().layouts();
        let mut made = Made::<f16>::new(problem, layouts, 6).with_dlse(7);
        let values = made.dlse.as_mut().unwrap();
        values[..3].fill(dlse);
        values[5..8].fill(dlse);
        made
    };
    for backend in [Backend::simulator(1), Backend::open(Some(BackendKind::Cpu)).unwrap()] {
        for kernel in BackwardKernel::of_backend(backend.device().backend) {
            let run = |sinks: &Option<Vec<f32>>, dlse| {
                made(sinks.clone(), dlse).run_with(&backend, &with(Some(*kernel))).unwrap()
            };
            for sinks in [None, Some(sinks_of(2))] {
                let (zero, one, nan) = (run(&sinks, 0.0), run(&sinks, 1.0), run(&sinks, f32::NAN));
                assert!(zero.gradients == one.gradients && zero.gradients == nan.gradients, "{kernel}");
                let Some(dsinks) = zero.dsinks else { continue };
                for (with, without) in one.dsinks.unwrap()[..2].iter().zip(dsinks) {
                    assert!((with - without - 3.0).abs() < 1e-5, "{kernel}: {with} and {without}");
                }
                assert!(nan.dsinks.unwrap()[..2].iter().all(|dsink| dsink.is_nan()));
            }
        }
    }
}

/// A sum of many numbers of one sign, where adding them one by one in fp32 loses digits.
#[test]
fn a_sink_of_many_rows_is_as_exact_as_one_of_few() {
    let (q, kv) = (TensorLayout::bshd(2, 20_000, 1, 8), TensorLayout::bshd(2, 1, 1, 8));
    let options = Options { sinks: Some(vec![0.3]), ..Options::default() };
    let problem = Problem::new(Tensors { q, k: kv, v: kv, o: q }, DType::F32, options).unwrap();
    let layouts = *BackwardProblem::like(problem.clone()).unwrap().layouts();
    let mut made = Made::<f32>::new(problem, layouts, 8);
    made.dlse = Some(vec![1.0; made.lse.len()]);
    made.dout.fill(0.0);
    let exact = made.problem.sinks_reference(made.gradient_inputs())[0];
    for backend in [Backend::simulator(1), Backend::open(Some(BackendKind::Cpu)).unwrap()] {
        let found = f64::from(made.run(&backend).unwrap().dsinks.unwrap()[0]);
        assert!((found - exact).abs() < 4e-7 * exact, "{found} for {exact}");
    }
}

#[test]
fn nothing_beyond_a_sequence_leaks_even_if_it_is_nan() {
    // `tensor` leaves NaN between rows and heads.
    let layout = TensorLayout::strided([2, 37, 2, 30], [64 * 128, 128, 40, 1]);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let options = Options { window: (Some(5), Some(0)), ..Options::default() };
    let problem = Problem::new(tensors, DType::F16, options).unwrap();
    let layouts = GradientLayouts { dout: layout, dq: layout, dk: layout, dv: layout };
    let made = Made::<f16>::new(problem, layouts, 5);
    for backend in [Backend::simulator(1), Backend::open(Some(BackendKind::Cpu)).unwrap()] {
        for gradient in made.run(&backend).unwrap().gradients {
            for_each_element(&layout, |at| assert!(gradient[at].is_finite()));
            assert!(untouched_outside(&layout, &gradient, -77.0));
        }
    }
}

#[test]
fn memory_does_not_grow_with_the_square_of_the_sequence() {
    let layout = TensorLayout::bhsd(1, 1024, 2, 64);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    let problem =
        BackwardProblem::like(Problem::new(tensors, DType::F16, Options::default()).unwrap()).unwrap();
    let backend = Backend::simulator(0);
    let delta = 4 * 2 * 1024;
    // Counters, and 24 tiles of 64 bytes.
    let tickets = 256 + 24 * 64;
    for (limit, workspace) in [(None, delta + tickets + (4 << 20)), (Some(2 << 20), delta)] {
        let request = BackwardRequest { workspace_limit: limit, ..BackwardRequest::default() };
        assert_eq!(backend.plan(&problem, &request).unwrap().workspace_bytes(), workspace);
    }
    let made = Made::<f16>::new(problem.forward().clone(), *problem.layouts(), 2);
    let backend = Backend::open(Some(BackendKind::Cpu)).unwrap();
    let plan = backend.plan(&problem, &BackwardRequest::default()).unwrap();
    let mut prepared = backend.prepare(&plan, made.inputs()).unwrap();
    prepared.time().unwrap();
    assert!(prepared.extra_bytes() > 2 * 4 * 2 * 1024 && prepared.extra_bytes() < 2 * 2 * 1024 * 1024);
}
