//! One handle used by many threads at a time, each with shapes of its own, and on a GPU with a stream of its
//! own.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use std::sync::Barrier;

use common::{Case, Order};
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

/// Puts `bytes` behind those of an image, at a multiple of 256, and returns where.
fn place(image: &mut Vec<u8>, bytes: impl IntoIterator<Item = u8>) -> usize {
    let start = image.len().next_multiple_of(256);
    image.resize(start, 0);
    image.extend(bytes);
    start
}

fn f16_bytes(values: &[f16]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// One problem in memory and on a stream of its own, with outputs that hold −77 before.
fn on_a_stream(cuda: &Cuda, case: &Case) -> Results {
    let problem = case.problem();
    let plan = Plan::new(&problem, cuda.device(), &Request::default()).unwrap();
    let mut image = Vec::new();
    let [q, k, v] = case.inputs::<f16>().map(|values| place(&mut image, f16_bytes(&values)));
    let mut o_bytes = f16_bytes(&vec![f16::from_f32(-77.0); problem.tensors().o.span()]);
    let mut lse_bytes = (-77.0_f32).to_ne_bytes().repeat(problem.lse_len());
    let o = place(&mut image, o_bytes.iter().copied());
    let lse = place(&mut image, lse_bytes.iter().copied());
    let workspace = place(&mut image, vec![0xff; plan.workspace_bytes() as usize]);
    let mut memory = cuda.device_memory(image.len()).unwrap();
    memory.write(0, &image).unwrap();
    let at = |start: usize| memory.address() + start as u64;
    let addresses = Addresses {
        q: at(q),
        k: at(k),
        v: at(v),
        o: at(o),
        lse: Some(at(lse)),
        workspace: at(workspace),
        ..Addresses::default()
    };
    // SAFETY: the tensors, as long as the problem's views, outlive the reads below, which wait for the
    // stream; no other stream uses them.
    unsafe { cuda.enqueue(&plan, &addresses, memory.stream()) }.unwrap();
    memory.read(o, &mut o_bytes).unwrap();
    memory.read(lse, &mut lse_bytes).unwrap();
    let bits = |bytes: &[u8; 4]| u32::from_ne_bytes(*bytes);
    let o = o_bytes.as_chunks().0.iter().map(|bytes| u16::from_ne_bytes(*bytes)).collect();
    (o, lse_bytes.as_chunks().0.iter().map(bits).collect())
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
    all_at_a_time(&expected, |case| on_a_stream(&shared, case));
}
