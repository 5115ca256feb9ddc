//! What lies in the workspace: copies, and dS in as many launches as a limit leaves room for.
//! No bit shows it.

use flash_attention::backward::{
    BackwardInputs, BackwardKernel, BackwardOutputs, BackwardProblem, BackwardRequest,
};
use flash_attention::forward::Dropout;
use flash_attention::operation::Launch;
use flash_attention::{Backend, BackendKind, DType, Options, Problem, TensorLayout, Tensors};
use half::{bf16, f16};

use crate::common::{Case, Order, sinks_of};
use crate::made::{Made, Ran, packed, with};

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
        assert_eq!(names, ["pack", "backward_delta_f16", "backward_keys_ds_sm90_f16_m32_n128_d144"]);
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
        let outputs = BackwardOutputs {
            dq: &mut dq[1..],
            dk: &mut dk[1..],
            dv: &mut dv[1..],
            dsinks: None,
            delta: None,
        };
        backend.run(&plan, inputs, outputs).unwrap();
        let canaries = gradients.each_ref().map(|values| [values[0], values[layout.span() + 1]]);
        assert!(canaries.as_flattened().iter().all(|value| value.to_f32() == -77.0));
        let gradients = gradients.map(|values| values[1..].to_vec());
        let report = Ran { gradients, dsinks: None, plan }.report(&made);
        assert!(report.passed(), "{report}");
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
    let run = |seed, limit| {
        let backend = Backend::simulator(seed);
        let entry = Some("backward_keys_ds_sm90_f16_m64_n128_d64".to_owned());
        let request = BackwardRequest { entry, workspace_limit: Some(limit), ..BackwardRequest::default() };
        let ran = made.run_with(&backend, &request).unwrap();
        assert_eq!((ran.plan.kernel(), ran.plan.launches().len()), (BackwardKernel::BackwardSm90, 2));
        assert!(ran.report(&made).passed(), "{}", ran.report(&made));
        ran.gradients.map(|gradient| gradient.into_iter().map(f16::to_bits).collect::<Vec<_>>())
    };
    // dS of all 140 key/value heads, 16 KiB each, and of 136 at a time.
    let bits = run(0, 140 << 14);
    for seed in 1..3 {
        assert_eq!(run(seed, 136 << 14), bits, "schedule {seed}");
    }
}

/// Packed sequences of one head, that begin with these rows of queries and of keys; the last number is all.
fn one_head(head_dim: usize, options: Options, queries: &[u32], keys: &[u32]) -> Made<f16> {
    let [q, kv] = [queries, keys].map(|of| TensorLayout::bshd(1, of[of.len() - 1] as usize, 1, head_dim));
    let tensors = Tensors { q, k: kv, v: kv, o: q };
    let problem = Problem::varlen(tensors, DType::F16, options, queries, keys).unwrap();
    let layouts = *BackwardProblem::like(problem.clone()).unwrap().layouts();
    Made::new(problem, layouts, 7)
}

/// A sequence without rows, or whose rows see nothing, stores no dS: who takes the memory behind it waits for
/// those before it. The simulator finds who does not.
#[test]
fn empty_sequences_do_not_stand_between_those_that_take_turns_in_memory() {
    let (queries, keys) = ([0, 65, 65, 66, 196, 196, 199, 200], [0, 2, 2, 3, 73, 78, 78, 90]);
    for causal in [false, true] {
        let options = Options { causal, ..Options::default() };
        let made = one_head(24, options, &queries, &keys);
        for (ring, seed) in [(1, 0), (1, 1), (2, 2), (2, 3), (3, 4)] {
            let workspace_limit = Some(ring * 4 * 128 * 128);
            let request = BackwardRequest { workspace_limit, ..with(Some(BackwardKernel::BackwardSm90)) };
            let ran = made.run_with(&Backend::simulator(seed), &request).unwrap();
            let (reasons, expected) = (ran.plan.reasons(), format!("dS of {ring} of 7 key/value heads"));
            assert!(reasons.iter().any(|reason| reason.starts_with(&expected)), "{reasons:?}");
            assert!(ran.report(&made).passed(), "{causal} {ring}: {}", ran.report(&made));
        }
    }
}

/// Where dS of a head is stored part by part, sums of dK and dV go on from one part to the next.
#[test]
fn parts_of_a_head_give_the_bits_of_a_whole_one() {
    let options = [
        (64, Options::default()),
        (64, Options { causal: true, ..Options::default() }),
        (40, Options { window: (Some(150), Some(60)), ..Options::default() }),
        (136, Options { causal: true, ..Options::default() }),
        (176, Options::default()),
        (24, Options { softcap: 2.0, ..Options::default() }),
    ];
    for (seed, (head_dim, options)) in options.into_iter().enumerate() {
        let case = Case {
            dtype: DType::F16,
            shape: [1, 600, 140, 1, 2, head_dim],
            head_dim_v: None,
            orders: [Order::Bhsd; 3],
            options,
            seed: seed as u64,
        };
        let made = Made::<f16>::of_case(&case);
        let run = |unit_rows, workspace_limit| {
            let kernel = Some(BackwardKernel::BackwardSm90);
            let request = BackwardRequest { unit_rows, workspace_limit, ..with(kernel) };
            let ran = made.run_with(&Backend::simulator(seed as u64), &request).unwrap();
            let bits = |gradient: &Vec<f16>| gradient.iter().copied().map(f16::to_bits).collect::<Vec<_>>();
            (ran.gradients.each_ref().map(bits), ran)
        };
        let (bits, whole) = run(Some(600), None);
        assert!(whole.report(&made).passed(), "{case:?}: {}", whole.report(&made));
        // dS of four panels, and dK and dV of the tiles of keys.
        let (rows, columns) = match head_dim {
            161.. => (64, 192),
            129.. => (128, 144),
            _ => (128, 64),
        };
        let (unit, carried) = (4 * 256 * 128, 140_u64.div_ceil(rows) * rows * 2 * columns * 4);
        for ring in [6, 2, 1] {
            let (of_parts, ran) = run(Some(256), Some(ring * unit + carried));
            let (reasons, expected) = (ran.plan.reasons(), format!("dS of {ring} of 6 units of 256 queries"));
            assert!(reasons.iter().any(|reason| reason.starts_with(&expected)), "{reasons:?}");
            assert!(of_parts == bits, "{case:?}, {ring}");
        }
    }
}

/// Where heads take turns, those behind them take the memory of their sums, and shorter sequences have none.
#[test]
fn sums_of_later_heads_wait_for_those_before() {
    let offsets = [0, 520, 522, 900, 901, 1302];
    for (seed, causal) in [(0, false), (1, true), (2, false), (3, true)] {
        let options = Options { causal, ..Options::default() };
        let made = one_head(40, options, &offsets, &offsets);
        // Sums of one head, or of two, and dS of one unit.
        for heads in [1, 2] {
            let limit = heads * 5 * 128 * 2 * 64 * 4 + 4 * 640 * 128;
            let request = BackwardRequest {
                unit_rows: Some(256),
                workspace_limit: Some(limit),
                ..with(Some(BackwardKernel::BackwardSm90))
            };
            let ran = made.run_with(&Backend::simulator(seed), &request).unwrap();
            let (reasons, turns) = (ran.plan.reasons(), format!("; {heads} key/value heads at a time"));
            assert!(reasons.iter().any(|reason| reason.contains(&turns)), "{reasons:?}");
            assert!(ran.report(&made).passed(), "{causal} {heads}: {}", ran.report(&made));
        }
    }
}

/// A short sequence is in one unit and keeps no sums: it must not count for long ones before and behind it.
#[test]
fn a_short_sequence_does_not_count_for_a_long_one() {
    let (queries, keys) = ([0, 1050, 1558, 1560, 1562, 2600], [0, 100, 101, 103, 104, 190]);
    for seed in 0..4 {
        let made = one_head(40, Options::default(), &queries, &keys);
        for units in [2, 3, 4, 6] {
            // Sums of one tile of keys, and dS of some units.
            let request = BackwardRequest {
                unit_rows: Some(256),
                workspace_limit: Some((1 + units) * 128 * 2 * 64 * 4),
                ..with(Some(BackwardKernel::BackwardSm90))
            };
            let ran = made.run_with(&Backend::simulator(seed), &request).unwrap();
            assert!(ran.plan.reasons().iter().any(|reason| reason.ends_with("at a time take turns")));
            assert!(ran.report(&made).passed(), "{units}: {}", ran.report(&made));
        }
    }
}

/// Of three panels of queries the second step of two panels has one, and its rows are nobody else's.
#[test]
fn steps_of_two_panels_give_the_bits_of_steps_of_one() {
    for (seed, causal) in [(1, false), (2, true)] {
        let case = Case {
            dtype: DType::Bf16,
            shape: [2, 170, 200, 2, 2, 56],
            head_dim_v: Some(64),
            orders: [Order::Bshd; 3],
            options: Options { causal, ..Options::default() },
            seed,
        };
        let made = Made::<bf16>::of_case(&case);
        let run = |queries: u32| {
            let entry = Some(format!("backward_keys_ds_sm90_bf16_m{queries}_n128_d64"));
            let request = BackwardRequest { entry, ..BackwardRequest::default() };
            let ran = made.run_with(&Backend::simulator(seed), &request).unwrap();
            assert!(ran.report(&made).passed(), "{case:?}: {}", ran.report(&made));
            ran.gradients.map(|gradient| gradient.into_iter().map(bf16::to_bits).collect::<Vec<_>>())
        };
        assert!(run(64) == run(128), "{case:?}");
    }
}

/// The first query that sees a tile's keys, and the first key of a window, stand at no multiple of 16, which
/// tensor cores add up at once.
#[test]
fn bits_of_unequal_lengths_do_not_depend_on_the_workspace() {
    let window = Options { window: (Some(75), Some(9)), ..Options::default() };
    for (head_dim, options) in
        [(64, Options { causal: true, ..Options::default() }), (128, window.clone()), (136, window)]
    {
        let case = Case {
            dtype: DType::F16,
            shape: [1, 205, 338, 2, 2, head_dim],
            head_dim_v: None,
            orders: [Order::Bshd; 3],
            options,
            seed: 11,
        };
        let made = Made::<f16>::of_case(&case);
        let run = |request: BackwardRequest| {
            let ran = made.run_with(&Backend::simulator(4), &request).unwrap();
            assert!(ran.report(&made).passed(), "{case:?}: {}", ran.report(&made));
            ran.gradients.map(|gradient| gradient.into_iter().map(f16::to_bits).collect::<Vec<_>>())
        };
        let kernel = |kernel| with(Some(kernel));
        let bits = run(kernel(BackwardKernel::BackwardSm90));
        for request in [
            BackwardRequest { workspace_limit: Some(0), ..BackwardRequest::default() },
            kernel(BackwardKernel::BackwardSm80),
            BackwardRequest { workspace_limit: Some(0), ..kernel(BackwardKernel::BackwardSm80) },
        ] {
            assert!(run(request.clone()) == bits, "{case:?} {request:?}");
        }
    }
}

/// A warpgroup passes stages that it needs nothing of, and no lane misses one that is filled again meanwhile.
#[test]
fn stages_that_are_passed_are_seen_by_all_lanes() {
    let order = Order::Spread(7);
    let case = Case {
        dtype: DType::Bf16,
        shape: [2, 19, 197, 2, 1, 49],
        head_dim_v: Some(9),
        orders: [order, order, Order::Bshd],
        options: Options {
            causal: true,
            softmax_scale: Some(0.0),
            dropout: Some(Dropout {
                probability: 0.1,
                seed: 1_043_652_534_199_184_439,
                offset: 1_645_204_050,
            }),
            ..Options::default()
        },
        seed: 5_343_178_624_481_791_354,
    };
    let made = Made::<bf16>::of_case(&case);
    for schedule in [10_893_789_355_948_002_631, 1, 2] {
        made.check(&Backend::simulator(schedule), &with(Some(BackwardKernel::BackwardSm90))).unwrap();
    }
}

/// Offsets that the device alone has change neither what is computed nor a bit of it.
#[test]
fn lengths_on_the_device_give_the_bits_of_known_ones() {
    let options = Options { causal: true, ..Options::default() };
    let made = packed::<f16>(options.clone(), (40, 24));
    let forward = made.problem.forward();
    let bounds = (forward.seqlen_q() + 60, forward.seqlen_k() + 90);
    let planned = Problem::varlen_on_device(*forward.tensors(), DType::F16, options, forward.batch(), bounds);
    let planned = BackwardProblem::new(planned.unwrap(), *made.problem.layouts()).unwrap();
    let (q, k) = forward.cu_seqlens().unwrap();
    for kernel in [BackwardKernel::BackwardSm90, BackwardKernel::BackwardSm80, BackwardKernel::BackwardSimt] {
        for workspace_limit in [None, Some(200_000), Some(0)] {
            let request = BackwardRequest { workspace_limit, ..with(Some(kernel)) };
            let backend = Backend::simulator(3);
            let plan = backend.plan(&planned, &request).unwrap().with_cu_seqlens(q, k).unwrap();
            let bits =
                |ran: Ran<f16>| ran.gradients.map(|of| of.into_iter().map(f16::to_bits).collect::<Vec<_>>());
            let known = made.run_with(&backend, &request).unwrap();
            let ran = made.run_plan(&backend, plan).unwrap();
            assert!(ran.report(&made).passed(), "{kernel}: {}", ran.report(&made));
            assert!(bits(ran) == bits(known), "{kernel} {workspace_limit:?}");
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
    // Counters, and 24 tiles of 80 bytes.
    let tickets = 256 + 2048;
    let stored = |bytes: u64| delta + tickets + bytes;
    for (limit, workspace) in
        [(None, stored(4 << 20)), (Some(2 << 20), stored(2 << 20)), (Some(1 << 16), delta)]
    {
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
