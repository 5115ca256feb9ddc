//! Which kernel and tile a product gets.

use super::*;
use crate::gemm::{GemmAddresses, MatrixLayout};
use crate::plan::Tuned;
use crate::sim::Sim;
use fa_kernels::variant::Kernel;

fn problem(m: usize, n: usize, k: usize, dtype: DType) -> GemmProblem {
    let row = MatrixLayout::row_major;
    GemmProblem::new(Matrices { a: row(m, k), b: row(k, n), c: row(m, n) }, dtype).unwrap()
}

fn device(shared_per_block: usize) -> Device {
    // Hopper alone has so much.
    let compute_capability = if shared_per_block == 227 << 10 { 90 } else { 80 };
    let hopper = Sim::new(0).device().clone();
    Device { backend: BackendKind::Cuda, shared_per_block, compute_capability, ..hopper }
}

fn plan(problem: &GemmProblem, request: GemmRequest) -> Result<GemmPlan> {
    Plan::new(problem, &device(227 << 10), &request)
}

#[test]
fn large_problems_get_large_tiles_and_small_ones_more_blocks() {
    let tile = |kernel, size| {
        let request = GemmRequest { kernel: Some(kernel), ..GemmRequest::default() };
        let plan = plan(&problem(size, size, size, DType::F16), request).unwrap();
        let GemmTile { block_m, block_n, block_k, .. } = plan.launches()[0].entry.tile;
        (block_m, block_n, block_k)
    };
    assert_eq!([256, 4096].map(|size| tile(GemmKernel::GemmSm80, size)), [(64, 64, 64), (128, 256, 64)]);
    assert_eq!([256, 1024].map(|size| tile(GemmKernel::GemmSm90, size)), [(128, 128, 64); 2]);
    assert_eq!([2048, 4096].map(|size| tile(GemmKernel::GemmSm90, size)), [(128, 256, 64); 2]);
}

#[test]
fn of_tiles_that_are_as_quick_by_estimate_the_fastest_measured_is_taken() {
    const fn table(entries: &'static [&'static str]) -> Tuned {
        let kernel = Kernel::Gemm(GemmAlgorithm::GemmSm90);
        Tuned { device: "NVIDIA Test", kernel, dtype: "f16", head_dim: 0, causal: false, entries }
    }
    const SMALL: &[Tuned] =
        &[table(&["gemm_sm90_f16_m128_n128_k64_row_row", "gemm_sm90_f16_m128_n256_k64_row_row"])];
    const LARGE: &[Tuned] = &[table(&["gemm_sm90_f16_m128_n256_k64_row_row"])];
    let device = Device { name: "NVIDIA Test".to_owned(), ..device(227 << 10) };
    let chosen = |table, size| {
        let (problem, request) = (problem(size, size, size, DType::F16), GemmRequest::default());
        let (device, kernel) = (&device, GemmKernel::GemmSm90);
        let candidates = Candidates { problem: &problem, device, kernel, request: &request, table };
        let (launch, why) = candidates.choose(true, true).unwrap();
        (launch.entry.tile.block_n, why)
    };
    let measured = "the fastest measured on NVIDIA Test of the tiles that are as quick by their loads";
    let (block_n, why) = chosen(SMALL, 4096);
    assert!(block_n == 128 && why.ends_with(measured), "{block_n} {why}");
    assert_eq!(chosen(&[], 4096).0, 256);
    // Of 64 and 32 tiles each multiprocessor has one at most, of which the smaller is done sooner.
    assert_eq!(chosen(LARGE, 1024).0, 128);
    assert_eq!(chosen(LARGE, 4096).0, 256);
}

#[test]
fn one_entry_is_planned_if_it_takes_the_problem() {
    let of = |name: &str| gemm_entries().find(|entry| entry.name == name).unwrap();
    let planned = |name, k| Plan::of_entry(&problem(256, 256, k, DType::F16), &device(227 << 10), of(name));
    let plan = planned("gemm_sm90_f16_m128_n256_k64_row_row", 64).unwrap();
    assert_eq!(
        (plan.kernel(), plan.tile(), plan.launches()[0].grid),
        (GemmKernel::GemmSm90, Some((128, 256)), 2)
    );
    assert_eq!(plan.unaligned()[0].entry.algorithm, GemmAlgorithm::GemmSm80);
    for (name, reason) in [
        ("gemm_sm90_f16_m128_n256_k64_row_col", "it is for operands in other orders"),
        ("gemm_sm90_bf16_m128_n256_k64_row_row", "it is for bf16, the problem is f16"),
        ("mma_peak_f16", "it is no kernel that multiplies matrices"),
        ("gemm_sm90_f16_m128_n256_k64_row_row", "the leading dimension of A is 65, no multiple of 8"),
    ] {
        let message = planned(name, 65).unwrap_err().to_string();
        assert_eq!(message, format!("entry {name} cannot be run: {reason}"));
    }
}

#[test]
fn hopper_takes_what_tensor_maps_describe() {
    let chosen = |problem: &GemmProblem, compute_capability, request| {
        let device = Device { compute_capability, ..device(227 << 10) };
        let plan = Plan::new(problem, &device, &request).unwrap();
        (plan.kernel(), plan.reasons()[0].clone())
    };
    let any = GemmRequest::default();
    let (even, odd) = (problem(100, 72, 96, DType::F16), problem(100, 64, 99, DType::F16));
    for (problem, capability, request, expected) in [
        (
            &even,
            90,
            GemmRequest { block_n: Some(64), ..any },
            "gemm_sm80: on tensor cores, not gemm_sm90 because it has no tile of BLOCK_M = any, BLOCK_N = 64",
        ),
        (
            &odd,
            90,
            any,
            "gemm_sm80: on tensor cores, not gemm_sm90 because the leading dimension of A is 99, no multiple of 8",
        ),
        (&odd, 80, any, "gemm_sm80: on tensor cores"),
        (&odd, 100, any, "gemm_sm80: on tensor cores"),
    ] {
        assert_eq!(chosen(problem, capability, request), (GemmKernel::GemmSm80, expected.to_owned()));
    }
    assert_eq!(chosen(&even, 90, any).0, GemmKernel::GemmSm90);
    let request = GemmRequest { kernel: Some(GemmKernel::GemmSm90), ..any };
    let message = plan(&odd, request).unwrap_err().to_string();
    assert_eq!(message, "kernel gemm_sm90 cannot be run: the leading dimension of A is 99, no multiple of 8");
    let blackwell = Device { compute_capability: 100, ..device(227 << 10) };
    let message = Plan::new(&even, &blackwell, &request).unwrap_err().to_string();
    assert_eq!(message, "kernel gemm_sm90 needs sm_90a; simulated GPU is sm_100");
}

#[test]
fn a_tile_fits_every_device() {
    for shared in [64 << 10, 99 << 10, 163 << 10, 227 << 10] {
        for dtype in DType::RESULTS {
            for k in [4096, 4097] {
                let problem = problem(4096, 4096, k, dtype);
                let plan = Plan::new(&problem, &device(shared), &GemmRequest::default()).unwrap();
                let entries = plan.launches().iter().chain(plan.unaligned());
                assert!(entries.clone().count() > 0);
                assert!({ entries }.all(|launch| launch.entry.shared_bytes as usize <= shared));
            }
        }
    }
}

#[test]
fn rows_that_no_copy_of_16_bytes_reaches_are_realigned() {
    let plan = plan(&problem(100, 64, 99, DType::Bf16), GemmRequest::default()).unwrap();
    assert!(!plan.launches()[0].entry.tile.aligned);
    assert_eq!(plan.reasons()[1], "through registers: the leading dimension of A is 99, no multiple of 8");
    let plan = self::plan(&problem(100, 64, 96, DType::Bf16), GemmRequest::default()).unwrap();
    let (at, odd) = (GemmAddresses { a: 32, b: 64, c: 2 }, GemmAddresses { a: 32, b: 66, c: 0 });
    assert!(plan.launches_at(&at)[0].entry.tile.aligned);
    assert!(!plan.launches_at(&odd)[0].entry.tile.aligned);
}

#[test]
fn what_is_not_built_is_refused() {
    let problem = problem(64, 64, 64, DType::F32);
    let request = GemmRequest { kernel: Some(GemmKernel::GemmSm80), ..GemmRequest::default() };
    let message = plan(&problem, request).unwrap_err().to_string();
    assert_eq!(message, "kernel gemm_sm80 has no f32 entry; it has f16, bf16");
    let request = GemmRequest { block_m: Some(48), ..GemmRequest::default() };
    let message = plan(&problem, request).unwrap_err().to_string();
    assert!(message.starts_with("BLOCK_M = 48, BLOCK_N = any is not built for gemm_simt"), "{message}");
    let request = GemmRequest { kernel: Some(GemmKernel::GemmCpu), ..GemmRequest::default() };
    assert!(plan(&problem, request).is_err());
}
