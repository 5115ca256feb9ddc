//! Which launches a backward problem gets.

use super::*;
use crate::backward::BackwardAddresses;
use crate::backward::packed::Copies;
use crate::forward::Dropout;
use crate::sim::Sim;
use crate::{DType, Options, Problem, TensorLayout, Tensors};
use fa_kernels::entries::entries;
use fa_kernels::variant::Kernel;

const SIMT: Option<BackwardKernel> = Some(BackwardKernel::BackwardSimt);

fn problem(head_dim: usize) -> BackwardProblem {
    let q = TensorLayout::bshd(2, 100, 6, head_dim);
    let kv = TensorLayout::bshd(2, 300, 2, head_dim);
    let tensors = Tensors { q, k: kv, v: kv, o: q };
    BackwardProblem::like(Problem::new(tensors, DType::F16, Options::default()).unwrap()).unwrap()
}

fn plan(head_dim: usize, shared: usize, entry: Option<&str>) -> Result<BackwardPlan> {
    let device = Device { shared_per_block: shared, ..Sim::new(0).device().clone() };
    let request =
        BackwardRequest { kernel: SIMT, entry: entry.map(str::to_owned), ..BackwardRequest::default() };
    Plan::new(&problem(head_dim), &device, &request)
}

#[test]
fn one_launch_owns_keys_and_one_queries() {
    let plan = plan(64, 227 << 10, None).unwrap();
    let launches: Vec<_> = plan.launches().iter().map(|launch| (launch.entry.name, launch.grid)).collect();
    let expected = [
        ("backward_delta_f16", 2 * 6 * 4),
        ("backward_keys_f16_m64_n64_d64", 2 * 2 * 5),
        ("backward_queries_f16_m64_n64_d64", 2 * 6 * 2),
    ];
    assert_eq!(launches, expected);
    assert_eq!((plan.workspace_bytes(), plan.reasons().len()), (4 * 2 * 6 * 100, 5));
}

#[test]
fn a_part_has_its_launch_alone() {
    let problem = problem(64);
    let part = |part| BackwardProblem::part(problem.forward().clone(), *problem.layouts(), part).unwrap();
    let names = |of, kernel| {
        let request = BackwardRequest { kernel: Some(kernel), ..BackwardRequest::default() };
        let plan = Plan::new(&part(of), Sim::new(0).device(), &request).unwrap();
        plan.launches().iter().map(|launch| launch.entry.algorithm).collect::<Vec<_>>()
    };
    let (sm90, sm80) = (BackwardKernel::BackwardSm90, BackwardKernel::BackwardSm80);
    assert_eq!(names(BackwardPart::Delta, sm90), [Algorithm::BackwardDelta]);
    assert_eq!(names(BackwardPart::Queries, sm90), [Algorithm::BackwardQueriesSm90]);
    assert_eq!(names(BackwardPart::Keys, sm90), [Algorithm::BackwardKeysSm90]);
    assert_eq!(names(BackwardPart::Keys, sm80), [Algorithm::BackwardKeysSm80]);
    // Others write what the part leaves out, or are none of its launches.
    let stores = entries().find(|entry| entry.algorithm == Algorithm::BackwardKeysDsSm90);
    let queries = entries().find(|entry| entry.algorithm == Algorithm::BackwardQueriesSm90);
    for (entry, of) in [(stores, BackwardPart::Keys), (queries, BackwardPart::Keys)] {
        let refused = Plan::of_entry(&part(of), Sim::new(0).device(), entry.unwrap());
        assert!(matches!(refused, Err(Error::UnfitEntry { .. })), "{refused:?}");
    }
}

#[test]
fn a_launch_behind_delta_has_a_block_for_each_sink() {
    let of = |sinks: usize, kernel| {
        let options = Options { sinks: Some(vec![0.5; sinks]), ..Options::default() };
        let forward = Problem::new(*problem(64).forward().tensors(), DType::F16, options).unwrap();
        let problem = BackwardProblem::like(forward).unwrap();
        // A workspace without dS.
        let request = BackwardRequest { kernel, workspace_limit: Some(0), ..BackwardRequest::default() };
        Plan::new(&problem, Sim::new(0).device(), &request).unwrap()
    };
    for kernel in [BackwardKernel::BackwardSm90, BackwardKernel::BackwardSm80, BackwardKernel::BackwardSimt] {
        for sinks in [6, 12] {
            let plan = of(sinks, Some(kernel));
            let launch = plan.launches()[1];
            assert_eq!((launch.entry.name, launch.grid), ("backward_sinks_f32", sinks as u32));
            assert_eq!((plan.launches().len(), plan.workspace_bytes()), (4, 4 * 2 * 6 * 100));
        }
    }
}

#[test]
fn small_devices_have_a_tile_of_each_head_dim() {
    for head_dim in [1, 64, 65, 128, 256] {
        let plan = plan(head_dim, 64 << 10, None).unwrap();
        assert!(plan.launches().iter().all(|launch| launch.entry.shared_bytes <= 64 << 10));
    }
    let error = plan(256, 32 << 10, None).unwrap_err().to_string();
    assert!(error.ends_with("simulated GPU has 32768 per block"), "{error}");
}

#[test]
fn an_entry_can_be_asked_for() {
    let name = "backward_queries_f16_m32_n16_d128";
    let plan = |head_dim| plan(head_dim, 227 << 10, Some(name));
    let names: Vec<_> = plan(64).unwrap().launches().iter().map(|launch| launch.entry.name).collect();
    assert_eq!(names, ["backward_delta_f16", "backward_keys_f16_m64_n64_d64", name]);
    let error = plan(129).unwrap_err().to_string();
    assert_eq!(error, format!("entry {name} is not built, or not for f16 at head_dim 129"));
    let error = self::plan(64, 64 << 10, Some("backward_queries_f16_m64_n64_d64")).unwrap_err().to_string();
    assert!(error.ends_with("simulated GPU has 65536 per block"), "{error}");
}

#[test]
fn an_entry_asked_for_brings_its_kernel() {
    let planned = |entry: &str| {
        let request = BackwardRequest { entry: Some(entry.to_owned()), ..BackwardRequest::default() };
        let plan = Plan::new(&problem(64), Sim::new(0).device(), &request).unwrap();
        assert!(plan.launches().iter().any(|launch| launch.entry.name == entry), "{entry}");
        plan.kernel()
    };
    assert_eq!(planned("backward_keys_ds_sm80_f16_m32_n128_d64_w4"), BackwardKernel::BackwardSm80);
    assert_eq!(planned("backward_queries_sm80_f16_m128_n32_d64_w4"), BackwardKernel::BackwardSm80);
    assert_eq!(planned("backward_keys_f16_m64_n64_d64"), BackwardKernel::BackwardSimt);
    // All kernels begin with it.
    assert_eq!(planned("backward_delta_f16"), BackwardKernel::BackwardSm90);
}

#[test]
fn one_entry_is_planned_with_the_others_of_its_pass() {
    let of = |name: &str| entries().find(|entry| entry.name == name).unwrap();
    let planned = |name, head_dim| Plan::of_entry(&problem(head_dim), Sim::new(0).device(), of(name));
    let name = "backward_keys_sm80_f16_m32_n64_d128_w4";
    let names: Vec<_> =
        planned(name, 64).unwrap().launches().iter().map(|launch| launch.entry.name).collect();
    assert_eq!(names, ["backward_delta_f16", name, "backward_queries_sm80_f16_m128_n32_d64_w4"]);
    for (name, reason) in [
        (name, "its HEAD_DIM is 128, the problem's head_dim 129"),
        ("backward_keys_f16_m16_n32_d128_dropout", "it does not do with weights what the problem does"),
        ("forward_sm80_f16_m128_n48_d128_w4", "it is no launch of a backward pass"),
    ] {
        let head_dim = if reason.ends_with("129") { 129 } else { 128 };
        let message = planned(name, head_dim).unwrap_err().to_string();
        assert_eq!(message, format!("entry {name} cannot be run: {reason}"));
    }
}

#[test]
fn tiles_are_tried_as_they_were_measured() {
    let measured = |causal| Tuned {
        device: "NVIDIA Test",
        kernel: Kernel::Attention(Algorithm::BackwardQueries),
        dtype: "f16",
        head_dim: 64,
        causal,
        entries: &["backward_queries_f16_m64_n32_d64"],
    };
    let device = Device { name: "NVIDIA Test".to_owned(), ..Sim::new(0).device().clone() };
    let chosen = |algorithm, causal| {
        let kernel = BackwardKernel::BackwardSimt;
        let (entry, why) =
            choose_entry(&problem(64), &device, (kernel, algorithm), &[measured(causal)]).unwrap();
        (entry.name, why)
    };
    let why = "the fastest tile measured on NVIDIA Test".to_owned();
    assert_eq!(chosen(Algorithm::BackwardQueries, false), ("backward_queries_f16_m64_n32_d64", why));
    assert_eq!(chosen(Algorithm::BackwardQueries, true).0, "backward_queries_f16_m64_n64_d64");
    assert_eq!(chosen(Algorithm::BackwardKeys, false).0, "backward_keys_f16_m64_n64_d64");
}

#[test]
fn tensor_cores_are_taken_where_they_can_be_and_else_there_is_a_reason() {
    let sim = Sim::new(0).device().clone();
    let plan = |problem: &BackwardProblem, device: &Device, kernel| {
        Plan::new(problem, device, &BackwardRequest { kernel, ..BackwardRequest::default() })
    };
    let fast = plan(&problem(64), &sim, None).unwrap();
    let names: Vec<_> = fast.launches().iter().map(|launch| (launch.entry.name, launch.grid)).collect();
    let expected = [
        ("backward_delta_f16", 2 * 6 * 4),
        // Three tiles of keys for each key/value head, and one of queries for each query head.
        ("backward_keys_ds_sm90_f16_m128_n128_d64", 2 * 2 * 3 + 2 * 6),
    ];
    assert_eq!(names, expected);
    // Copies of all take the place of some dS.
    let expected = ["pack", "backward_delta_f16", "backward_keys_ds_sm90_f16_m128_n128_d64"];
    assert_eq!(names_of(fast.unaligned()), expected);
    let turing = Device { compute_capability: 75, ..sim.clone() };
    let tensors = *problem(64).forward().tensors();
    let fp32 = BackwardProblem::like(Problem::new(tensors, DType::F32, Options::default()).unwrap()).unwrap();
    for (problem, device, reason) in [
        (fp32, &sim, "tensor cores take 16-bit types only"),
        (problem(64), &turing, "simulated GPU is sm_75, and it needs sm_80"),
    ] {
        let plan = plan(&problem, device, None).unwrap();
        assert_eq!(plan.kernel(), BackwardKernel::BackwardSimt);
        let hopper = reason.replace("it needs sm_80", "it needs sm_90");
        assert_eq!(
            plan.reasons()[0],
            format!("backward_simt: on fp32 FMA; not backward_sm90: {hopper}; not backward_sm80: {reason}")
        );
    }
    assert_eq!(plan(&problem(136), &sim, None).unwrap().kernel(), BackwardKernel::BackwardSm90);
    // Before Hopper each HEAD_DIM has a tile of both launches that fits the smallest devices since sm_80.
    let ada = Device { compute_capability: 89, shared_per_block: 99 << 10, ..sim };
    for head_dim in [8, 64, 65, 128, 129, 160, 161, 192, 193, 256] {
        let plain = problem(head_dim);
        let options = Options { softcap: 3.0, ..Options::default() };
        let changed = Problem::new(*plain.forward().tensors(), DType::F16, options).unwrap();
        for problem in [plain, BackwardProblem::like(changed).unwrap()] {
            let plan = plan(&problem, &ada, None).unwrap();
            assert_eq!(plan.kernel(), BackwardKernel::BackwardSm80, "{head_dim}");
        }
    }
}

/// A problem whose Q and dO, and whose K and V, are views of the same layout each.
fn of_layouts([q, kv]: [TensorLayout; 2]) -> BackwardProblem {
    let tensors = Tensors { q, k: kv, v: kv, o: q };
    BackwardProblem::like(Problem::new(tensors, DType::F16, Options::default()).unwrap()).unwrap()
}

fn planned(problem: &BackwardProblem, device: &Device, workspace_limit: Option<u64>) -> BackwardPlan {
    let request = BackwardRequest { workspace_limit, ..BackwardRequest::default() };
    Plan::new(problem, device, &request).unwrap()
}

fn names_of(launches: &[Launch<BackwardProblem>]) -> Vec<&str> {
    launches.iter().map(|launch| launch.entry.name).collect()
}

#[test]
fn scores_that_are_changed_are_computed_on_tensor_cores() {
    let dropout = Some(Dropout { probability: 0.1, seed: 1, offset: 2 });
    for options in [
        Options { softcap: 3.0, ..Options::default() },
        Options { alibi_slopes: Some(vec![0.5; 6]), ..Options::default() },
        Options { softmax_scale: Some(-0.1), ..Options::default() },
        Options { dropout, ..Options::default() },
    ] {
        let forward = Problem::new(*problem(64).forward().tensors(), DType::F16, options).unwrap();
        let problem = BackwardProblem::like(forward).unwrap();
        let plan = |limit, entry: Option<&str>| {
            let entry = entry.map(str::to_owned);
            let request = BackwardRequest { workspace_limit: limit, entry, ..BackwardRequest::default() };
            Plan::new(&problem, Sim::new(0).device(), &request)
        };
        let stored = plan(None, None).unwrap();
        let keys = "backward_keys_ds_sm90_f16_m64_n128_d64_score_mod";
        let delta = "backward_delta_f16";
        assert_eq!(names_of(stored.launches()), [delta, keys]);
        // Copies of all take the place of some dS, which is stored of a head at a time.
        assert_eq!(names_of(stored.unaligned())[..3], ["pack", delta, keys]);
        let why = "by the entries that change scores and drop weights; they store dS alone";
        assert!(stored.reasons().iter().any(|reason| reason == why));
        // With no room for dS the kernel before takes it, since no launch of Hopper's computes changed scores
        // again.
        let elsewhere = plan(Some(0), None).unwrap();
        assert_eq!(elsewhere.kernel(), BackwardKernel::BackwardSm80);
        let of_gradients = [
            "backward_keys_sm80_f16_m16_n128_d64_w4_score_mod",
            "backward_queries_sm80_f16_m128_n32_d64_w4_score_mod",
        ];
        assert_eq!(names_of(elsewhere.launches()), [delta, of_gradients[0], of_gradients[1]]);
        let bytes = 3 * 2 * 384 * 128;
        let twice = format!(
            "its scores are not computed twice, and dS of some queries of one head, with its dK and dV, takes \
             {bytes} bytes, and workspace_limit is 0"
        );
        assert_eq!(
            elsewhere.reasons()[0],
            format!("backward_sm80: on tensor cores; not backward_sm90: {twice}")
        );
        let why = "by the entries that change scores and drop weights";
        assert!(elsewhere.reasons().iter().any(|reason| reason == why));
        for plain in ["backward_keys_ds_sm90_f16_m64_n128_d64", "backward_queries_sm90_f16_m128_n128_d64"] {
            assert!(plan(None, Some(plain)).unwrap_err().to_string().contains("is not built"), "{plain}");
        }
    }
}

#[test]
fn what_tensor_maps_do_not_describe_is_copied_first() {
    let layouts = [TensorLayout::bshd(2, 100, 6, 129), TensorLayout::bshd(2, 300, 2, 129)];
    let problem = of_layouts(layouts);
    let plan = planned(&problem, Sim::new(0).device(), None);
    assert_eq!(plan.kernel(), BackwardKernel::BackwardSm90);
    let launches: Vec<_> = plan.launches().iter().map(|launch| (launch.entry.name, launch.grid)).collect();
    let expected = [
        // 168 rows of 18 chunks each for a unit, of Q, K, V and dO, and a block for each unit.
        ("pack", 2 * (6 + 2 * 2 + 2 * 2 + 6)),
        ("backward_delta_f16", 2 * 6 * 4),
        ("backward_keys_ds_sm90_f16_m32_n128_d144", 2 * 2 * 3 + 2 * 6),
    ];
    assert_eq!(launches, expected);
    // Rows of 288 bytes; dS of two panels of 384 keys for each of 12 heads, behind 11 counters and 24 tiles.
    let (copies, tiles) = (2 * 288 * 2 * (6 * 100 + 2 * 300), (24 * 80_u64).next_multiple_of(256));
    let ds = 512 + tiles + 12 * 2 * 384 * 128;
    let delta = (4 * 2 * 6 * 100_u64).next_multiple_of(256);
    assert_eq!(plan.workspace_bytes(), delta + copies + ds);
    let why = "q's seqlen stride is 774 elements, and tensor maps take positive multiples of 8 below 2^39";
    let expected = format!(
        "before it, q, k, v, dout copied to rows of whole 32-byte sectors, since {why}: {copies} bytes of workspace, about "
    );
    assert!(plan.reasons()[3].starts_with(&expected), "{:?}", plan.reasons());
    // All is copied: any address will do.
    assert!(plan.unaligned().is_empty());
}

#[test]
fn what_tensor_maps_describe_stays_where_it_is() {
    // Rows and heads of K and V lie multiples of 16 bytes apart.
    let spread = TensorLayout::strided([2, 300, 2, 60], [300 * 128, 128, 64, 1]);
    let problem = of_layouts([TensorLayout::bshd(2, 100, 6, 60), spread]);
    let copied = |copies: &Copies| copies.copies.map(|copy| copy.is_some());
    let plan = planned(&problem, Sim::new(0).device(), None);
    assert!(plan.launches().iter().all(|it| copied(&it.details.copies) == [true, false, false, true]));
    // A block copies 128 rows.
    assert_eq!((plan.launches()[0].entry.name, plan.launches()[0].grid), ("pack", 2 * 2 * 6));
    let (copies, delta) = (2 * 128 * 2 * 6 * 100, 4 * 2 * 6 * 100_u64);
    let delta = delta.next_multiple_of(256);
    assert_eq!(plan.workspace_bytes(), delta + copies + 512 + 2048 + 12 * 2 * 384 * 128);
    // The copies count beside the limit of dS.
    let twice = planned(&problem, Sim::new(0).device(), Some(0));
    assert_eq!(twice.workspace_bytes(), delta + copies);
    assert_eq!(
        names_of(twice.launches())[2..],
        ["backward_keys_sm90_f16_m64_n128_d64", "backward_queries_sm90_f16_m128_n128_d64"]
    );
    // Where Q and dO start does not count.
    let at = |q: u64, k: u64| {
        let forward = crate::forward::Addresses { q, k, ..Default::default() };
        BackwardAddresses { forward, dout: q, ..Default::default() }
    };
    assert_eq!(names_of(plan.launches_at(&at(2, 16))), names_of(plan.launches()));
    assert_eq!(names_of(plan.launches_at(&at(2, 18))), names_of(plan.unaligned()));
}

#[test]
fn copies_that_do_not_fit_beside_the_tensors_are_not_made() {
    let problem = of_layouts([TensorLayout::bhsd(2, 100, 6, 60), TensorLayout::bhsd(2, 300, 2, 60)]);
    let (q, kv) = (2 * 60 * 2 * 6 * 100, 2 * 60 * 2 * 2 * 300);
    let (tensors, copies) = (4 * (q + kv), 2 * 128 * 2 * (6 * 100 + 2 * 300));
    let device = |memory| Device { memory, ..Sim::new(0).device().clone() };
    let plan = planned(&problem, &device(tensors + copies), None);
    assert_eq!(plan.kernel(), BackwardKernel::BackwardSm90);
    let plan = planned(&problem, &device(tensors + copies - 1), None);
    let why = format!("{copies} bytes of copies for tensor maps do not fit beside the tensors' {tensors}");
    assert_eq!(plan.reasons()[0], format!("backward_sm80: on tensor cores; not backward_sm90: {why}"));
}

#[test]
fn at_any_addresses_all_is_copied_where_the_workspace_holds_it() {
    let of = |batch, seqlen, head_dim, limit| {
        let layout = TensorLayout::bhsd(batch, seqlen, 4, head_dim);
        planned(&of_layouts([layout; 2]), Sim::new(0).device(), limit)
    };
    let copies = |plan: &BackwardPlan| plan.unaligned()[0].details.copies.bytes;
    // dS takes 256 MiB, which hold copies of 128 MiB and dS of fewer heads.
    let plan = of(32, 1024, 128, None);
    assert_eq!(names_of(plan.launches())[0], "backward_delta_f16");
    let of_ds = "backward_keys_ds_sm90_f16_m64_n128_d128";
    assert_eq!(names_of(plan.unaligned()), ["pack", "backward_delta_f16", of_ds]);
    assert_eq!(copies(&plan), 4 * 32 * 1024 * 4 * 128 * 2);
    let DqWay::Stored(stored) = plan.unaligned()[2].details.dq_way else { panic!("dS is not stored") };
    let ring = stored.ring as u64;
    assert!((32..64).contains(&ring), "{ring}");
    let needed = 4 * 32 * 4 * 1024 + copies(&plan) + ring * (2 << 20);
    assert!(needed <= plan.workspace_bytes(), "{needed} of {}", plan.workspace_bytes());
    // Nothing is stored that copies could lie in place of.
    let plan = of(1, 1024, 64, Some(0));
    assert_eq!(names_of(plan.unaligned())[1], "backward_keys_sm80_f16_m32_n128_d64_w4");
    // Of wide heads dS must be stored beside the copies.
    let plan = of(1, 1024, 256, None);
    assert_eq!(names_of(plan.unaligned())[1], "backward_keys_sm80_f16_m16_n64_d256_w8");
    let plan = of(1, 4096, 256, None);
    assert_eq!(names_of(plan.unaligned())[..2], ["pack", "backward_delta_f16"]);
}

#[test]
fn dq_is_summed_where_tiles_of_keys_suffice() {
    let of = |[batch, seqlen, heads, group]: [usize; 4], options: &Options, request: &BackwardRequest| {
        let q = TensorLayout::bhsd(batch, seqlen, heads * group, 64);
        let kv = TensorLayout::bhsd(batch, seqlen, heads, 64);
        let tensors = Tensors { q, k: kv, v: kv, o: q };
        let forward = Problem::new(tensors, DType::F16, options.clone()).unwrap();
        Plan::new(&BackwardProblem::like(forward).unwrap(), Sim::new(0).device(), request).unwrap()
    };
    let entry = |plan: &BackwardPlan| plan.launches()[1].entry;
    let (full, none) = (Options::default(), BackwardRequest::default());
    let causal = Options { causal: true, ..Options::default() };
    // 132 multiprocessors, and tiles of 128 keys.
    for (shape, options, expected) in [
        ([1, 4096, 16, 1], &full, true),
        ([1, 4096, 8, 1], &full, false),
        ([2, 512, 32, 1], &full, true),
        ([1, 512, 32, 1], &full, false),
        ([1, 4096, 16, 1], &causal, false),
        ([1, 8192, 16, 1], &causal, true),
        ([1, 4096, 32, 1], &causal, true),
        ([4, 4096, 8, 4], &causal, true),
    ] {
        assert_eq!(entry(&of(shape, options, &none)).algorithm.sums_dq(), expected, "{shape:?}");
    }
    let shape = [1, 4096, 32, 1];
    let plan = of(shape, &full, &none);
    // Sums, counters of two for each head, of tickets, and for each step, and tiles of 80 bytes.
    let (sum, counters) = (32 * 4096 * 64 * 4, ((2 * 32 + 3 + 32 * 64) * 32_u64).next_multiple_of(256));
    assert_eq!(plan.workspace_bytes(), 4 * 32 * 4096 + counters + 32 * 32 * 80 + sum);
    assert_eq!((plan.launches().len(), plan.launches()[1].grid), (2, 132));
    let expected = format!(
        "dQ is summed in fp32 where dS is made, in the order of keys, in {sum} bytes; one launch of 132 blocks \
         that take tiles of keys as they come, of 32 key/value heads in turn"
    );
    assert_eq!(plan.reasons()[2], expected);
    // Copies of all do not fit in place of sums.
    assert_eq!(names_of(plan.unaligned())[1], "backward_keys_ds_sm80_f16_m32_n128_d64_w4");
    let softcap = Options { softcap: 2.0, ..Options::default() };
    let score_mod = "backward_keys_dq_sm90_f16_m64_n128_d64_score_mod";
    assert_eq!(entry(&of(shape, &softcap, &none)).name, score_mod);
    // No room for sums, or dS was asked for.
    for request in [
        BackwardRequest { workspace_limit: Some(sum - 1), ..none.clone() },
        BackwardRequest { unit_rows: Some(512), ..none.clone() },
        BackwardRequest { entry: Some("backward_keys_ds_sm90_f16_m64_n128_d64".to_owned()), ..none },
    ] {
        assert!(!entry(&of(shape, &full, &request)).algorithm.sums_dq(), "{request:?}");
    }
}

/// A bound on units that the workspace does not hold is no reason to store none, or to launch without them.
#[test]
fn units_are_smaller_where_their_bound_does_not_fit() {
    let layout = TensorLayout::bhsd(1, 2048, 2, 64);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    for options in [Options::default(), Options { softcap: 3.0, ..Options::default() }] {
        let problem = BackwardProblem::like(Problem::new(tensors, DType::F16, options).unwrap()).unwrap();
        let request = BackwardRequest {
            unit_rows: Some(1024),
            workspace_limit: Some(3 << 20),
            ..BackwardRequest::default()
        };
        let plan = Plan::new(&problem, Sim::new(0).device(), &request).unwrap();
        let expected = "units of 512 queries of a head at a time is stored";
        assert!(plan.reasons().iter().any(|reason| reason.contains(expected)), "{:?}", plan.reasons());
    }
}

/// So many heads that their tiles fit a grid, and what parts of heads would need does not fit 32 bits.
#[test]
fn more_tiles_than_any_memory_holds_do_not_panic() {
    let of = |heads, seqlen| TensorLayout::bhsd(1 << 12, seqlen, heads, 8);
    let problem = of_layouts([of(1 << 12, 257), of(1 << 12, 16_000)]);
    let plan = planned(&problem, Sim::new(0).device(), None);
    assert!(plan.workspace_bytes() >= (4 * 257) << 24);
    assert!(!plan.launches().is_empty() && !plan.unaligned().is_empty());
}

#[test]
fn kernels_of_other_backends_are_refused() {
    let request = BackwardRequest { kernel: Some(BackwardKernel::BackwardCpu), ..BackwardRequest::default() };
    let error = Plan::new(&problem(8), Sim::new(0).device(), &request).unwrap_err().to_string();
    assert_eq!(
        error,
        "kernel backward_cpu does not run on backend sim; it has backward_sm90, backward_sm80, backward_simt"
    );
}
