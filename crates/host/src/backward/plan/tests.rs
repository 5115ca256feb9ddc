//! Which launches a backward problem gets.

use super::*;
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
            choose_entry(&problem(64), &device, (kernel, algorithm), (&[measured(causal)], 12)).unwrap();
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
        ("backward_keys_ds_sm90_f16_m64_n128_d64", 2 * 2 * 3),
        ("backward_dq_sm90_f16_m128_n64_d64", 2 * 6),
    ];
    assert_eq!(names, expected);
    let anywhere: Vec<_> = fast.unaligned().iter().map(|launch| launch.entry.name).collect();
    let expected = [
        "backward_delta_f16",
        "backward_keys_sm80_f16_m32_n128_d64_w4",
        "backward_queries_sm80_f16_m128_n32_d64_w4",
    ];
    assert_eq!(anywhere, expected);
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
    let error = plan(&problem(136), &sim, Some(BackwardKernel::BackwardSm80)).unwrap_err().to_string();
    assert!(error.starts_with("kernel backward_sm80 cannot be run: its registers hold"), "{error}");
}

#[test]
fn scores_that_are_changed_are_computed_once_on_tensor_cores() {
    let dropout = Some(Dropout { probability: 0.1, seed: 1, offset: 2 });
    let unfit = "nothing but a positive factor may lie between products and scores";
    for (options, unfit) in [
        (Options { softcap: 3.0, ..Options::default() }, unfit),
        (Options { alibi_slopes: Some(vec![0.5; 6]), ..Options::default() }, unfit),
        (Options { softmax_scale: Some(-0.1), ..Options::default() }, unfit),
        (Options { dropout, ..Options::default() }, "it drops no weights"),
    ] {
        let forward = Problem::new(*problem(64).forward().tensors(), DType::F16, options).unwrap();
        let problem = BackwardProblem::like(forward).unwrap();
        let plan = |limit, entry: Option<&str>| {
            let entry = entry.map(str::to_owned);
            let request = BackwardRequest { workspace_limit: limit, entry, ..BackwardRequest::default() };
            Plan::new(&problem, Sim::new(0).device(), &request)
        };
        let names = |launches: &[Launch<BackwardProblem>]| -> Vec<_> {
            launches.iter().map(|launch| launch.entry.name).collect()
        };
        let stored = plan(None, None).unwrap();
        let keys = "backward_keys_ds_sm90_f16_m64_n128_d64_score_mod";
        let expected = ["backward_delta_f16", keys, "backward_dq_sm90_f16_m128_n64_d64"];
        assert_eq!(names(stored.launches()), expected);
        assert!(names(stored.unaligned())[1].starts_with("backward_keys_f16"));
        let why = "by the entries that change scores and drop weights; they store dS alone";
        assert!(stored.reasons().iter().any(|reason| reason == why));
        // With no room for dS the kernel before takes it, since no launch computes changed scores again.
        let elsewhere = plan(Some(0), None).unwrap();
        assert_eq!(elsewhere.kernel(), BackwardKernel::BackwardSimt);
        let bytes = 3 * 2 * 384 * 128;
        let twice = format!(
            "its scores are not computed twice, and dS of one key/value head takes {bytes} bytes, and \
             workspace_limit is 0"
        );
        let expected =
            format!("backward_simt: on fp32 FMA; not backward_sm90: {twice}; not backward_sm80: {unfit}");
        assert_eq!(elsewhere.reasons()[0], expected);
        for plain in ["backward_keys_ds_sm90_f16_m64_n128_d64", "backward_queries_sm90_f16_m128_n128_d64"] {
            assert!(plan(None, Some(plain)).unwrap_err().to_string().contains("is not built"), "{plain}");
        }
    }
}

#[test]
fn what_tensor_maps_do_not_describe_is_left_to_the_kernel_before() {
    let odd = TensorLayout::bshd(2, 100, 6, 60);
    let kv = TensorLayout::bshd(2, 300, 2, 60);
    let tensors = Tensors { q: odd, k: kv, v: kv, o: odd };
    let problem = Problem::new(tensors, DType::F16, Options::default()).unwrap();
    let problem = BackwardProblem::like(problem).unwrap();
    let plan = Plan::new(&problem, Sim::new(0).device(), &BackwardRequest::default()).unwrap();
    assert_eq!(plan.kernel(), BackwardKernel::BackwardSm80);
    let why = "q's heads stride is 60 elements, and tensor maps take positive multiples of 8 below 2^39";
    assert_eq!(plan.reasons()[0], format!("backward_sm80: on tensor cores; not backward_sm90: {why}"));
    assert!(plan.unaligned().is_empty());
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
