//! One handle used by many threads at a time, each with shapes of its own, and on a GPU with a stream of its
//! own.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use std::sync::Barrier;

use common::{Case, Order};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
use flash_attention::cuda::Cuda;
use flash_attention::forward::{Addresses, Outputs};
use flash_attention::{Backend, BackendKind, DType, Options, Plan, Request};
use half::f16;

const THREADS: usize = 16;

/// Problems of each thread.
const PROBLEMS: usize = 3;

/// How often a thread computes each of its problems.
const REPEATS: usize = 4;

/// Bits of O, and of lse.
type Results = (Vec<u16>, Vec<u32>);

/// Problems that no two threads share: different kernels, entries, masks, tensor maps and workspaces.
fn cases(thread: usize) -> [Case; PROBLEMS] {
    std::array::from_fn(|index| {
        let head_dim = [64, 128, 129, 80, 33, 256, 40, 136][(thread + index) % 8];
        let (sq, sk) = (20 + 37 * thread + 11 * index, 300 - 13 * thread + 29 * index);
        let order = [Order::Bshd, Order::Bhsd, Order::Padded(3)][(thread / 3 + index) % 3];
        let softcap = if thread % 5 == 4 { 20.0 } else { 0.0 };
        Case {
            dtype: DType::F16,
            shape: [1 + index, sq, sk, 1 + thread % 2, 1 + thread % 3, head_dim],
            head_dim_v: None,
            orders: [order; 3],
            options: Options { causal: thread % 2 == 1, softcap, ..Options::default() },
            seed: (PROBLEMS * thread + index) as u64,
        }
    })
}

fn bits(o: &[f16], lse: &[f32]) -> Results {
    (o.iter().map(|value| value.to_bits()).collect(), lse.iter().map(|value| value.to_bits()).collect())
}

/// One problem from host memory to host memory, on the handle's own stream.
fn alone(backend: &Backend, case: &Case) -> Results {
    let problem = case.problem();
    let [q, k, v] = case.inputs::<f16>();
    let plan = backend.plan(&problem, &Request::default()).unwrap();
    let mut o = vec![f16::from_f32(-77.0); problem.tensors().o.span()];
    let mut lse = vec![-77.0; problem.lse_len()];
    backend.run(&plan, (&q, &k, &v), Outputs { o: &mut o, lse: Some(&mut lse) }).unwrap();
    bits(&o, &lse)
}

/// Runs all problems of all threads at a time, and compares each result with what `expected` has for it.
fn all_at_a_time(expected: &[[Results; PROBLEMS]], run: impl Fn(&Case) -> Results + Sync) {
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for (thread, expected) in expected.iter().enumerate() {
            let (start, run) = (&start, &run);
            scope.spawn(move || {
                let cases = cases(thread);
                start.wait();
                for repeat in 0..REPEATS {
                    for (case, expected) in cases.iter().zip(expected) {
                        assert!(run(case) == *expected, "thread {thread}, repeat {repeat}: {case:?}");
                    }
                }
            });
        }
    });
}

fn expected(backend: &Backend) -> Vec<[Results; PROBLEMS]> {
    (0..THREADS).map(|thread| cases(thread).map(|case| alone(backend, &case))).collect()
}

#[test]
fn threads_share_the_cpu() {
    let backend = Backend::open(Some(BackendKind::Cpu)).unwrap();
    all_at_a_time(&expected(&backend), |case| alone(&backend, case));
}

/// Device memory with `values`.
fn upload(stream: &std::sync::Arc<CudaStream>, values: &[f16]) -> CudaSlice<u16> {
    let bits: Vec<u16> = values.iter().map(|value| value.to_bits()).collect();
    stream.clone_htod(&bits).unwrap()
}

/// One problem on a stream of its own, with outputs that hold −77 before.
fn on_a_stream(cuda: &Cuda, stream: &std::sync::Arc<CudaStream>, case: &Case) -> Results {
    let problem = case.problem();
    let plan = Plan::new(&problem, cuda.device(), &Request::default()).unwrap();
    let [q, k, v] = case.inputs::<f16>().map(|values| upload(stream, &values));
    let o = upload(stream, &vec![f16::from_f32(-77.0); problem.tensors().o.span()]);
    let lse = stream.clone_htod(&vec![-77.0_f32; problem.lse_len()]).unwrap();
    let workspace = stream.clone_htod(&vec![0xff_u8; plan.workspace_bytes().max(1) as usize]).unwrap();
    let addresses = Addresses {
        q: q.device_ptr(stream).0,
        k: k.device_ptr(stream).0,
        v: v.device_ptr(stream).0,
        o: o.device_ptr(stream).0,
        lse: Some(lse.device_ptr(stream).0),
        workspace: workspace.device_ptr(stream).0,
        ..Addresses::default()
    };
    // SAFETY: the tensors, as long as the problem's views, outlive the synchronisation below; no other stream
    // uses them.
    unsafe { cuda.enqueue(&plan, &addresses, stream.cu_stream()) }.unwrap();
    let o = stream.clone_dtoh(&o).unwrap();
    let lse: Vec<f32> = stream.clone_dtoh(&lse).unwrap();
    stream.synchronize().unwrap();
    (o, lse.iter().map(|value| value.to_bits()).collect())
}

#[test]
fn threads_share_a_gpu() {
    let Ok(lone) = Cuda::new(0) else {
        println!("NOT RUN: one handle on 16 streams, because there is no usable CUDA device");
        return;
    };
    let expected = expected(&Backend::cuda(lone));
    // Its kernels are not loaded yet, which the threads then do all at a time.
    let shared = Cuda::new(0).unwrap();
    let context = CudaContext::new(0).unwrap();
    all_at_a_time(&expected, |case| {
        context.bind_to_thread().unwrap();
        on_a_stream(&shared, &context.new_stream().unwrap(), case)
    });
}
