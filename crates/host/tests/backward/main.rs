//! The backward pass in the simulator and on the CPU against the f64 reference, under FlashAttention's
//! accuracy rule.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../common/mod.rs"]
mod common;
mod made;
mod summed;
mod used_keys;
mod workspace;

use common::{Case, Order, case, for_each_element, sinks_of, untouched_outside};
use flash_attention::accuracy::{self, Report};
use flash_attention::backward::{BackwardKernel, BackwardProblem, BackwardRequest, GradientLayouts};
use flash_attention::forward::{Dropout, Outputs};
use flash_attention::{
    Backend, BackendKind, DType, Element, Kernel, Options, Problem, Request, TensorLayout, Tensors, reference,
};
use half::{bf16, f16};
use made::{Made, check_any, check_request, packed, with};
use proptest::prelude::*;

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
        unit_rows in prop::sample::select(vec![None, Some(256)]),
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
        let kernel = Some(BackwardKernel::BackwardSm90);
        let request = BackwardRequest { workspace_limit, unit_rows, ..with(kernel) };
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
    let rows = reference::all(&problem);
    accuracy::check(&problem, (q, k, v), &o, Some(&lse), plan.score_roundoff(), &rows)
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
