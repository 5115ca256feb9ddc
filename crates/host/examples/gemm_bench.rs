//! Times matrix multiplications on a GPU for `scripts/gemm_vs_torch.py`: one request on each line of stdin,
//! one JSON object on each line of stdout.
//!
//! A request is `dtype m n k a_order b_order runs`, as in `f16 4096 4096 4096 row col 10`. The L2 cache is
//! flushed before each run. A problem stays on the device for requests that repeat it; the first one runs it
//! once untimed.

use std::io::{self, BufRead as _, Write as _};

use flash_attention::gemm::{GemmProblem, GemmRequest, Matrices, MatrixLayout, Order};
use flash_attention::{Backend, BackendKind, DType, Element};
use half::{bf16, f16};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let backend: &'static Backend = Box::leak(Box::new(Backend::open(Some(BackendKind::Cuda))?));
    let mut resident: Option<(String, Timed)> = None;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (problem, runs) = line.trim().rsplit_once(' ').ok_or("a request has seven words")?;
        if resident.as_ref().is_none_or(|(of, _)| of != problem) {
            // The old one's memory first.
            drop(resident.take());
            resident = Some((problem.to_owned(), prepare(backend, problem)?));
        }
        let Some((_, timed)) = &mut resident else { continue };
        let seconds: Vec<f64> = (0..runs.parse()?).map(|_| (timed.run)()).collect::<Result<_, _>>()?;
        let answer =
            serde_json::json!({ "seconds": seconds, "entry": timed.entry, "reasons": timed.reasons });
        println!("{answer}");
        io::stdout().flush()?;
    }
    Ok(())
}

/// A problem on the device.
struct Timed {
    entry: Option<&'static str>,
    reasons: Vec<String>,
    run: Box<dyn FnMut() -> flash_attention::Result<f64>>,
}

fn prepare(backend: &'static Backend, request: &str) -> Result<Timed, Failure> {
    let words: Vec<_> = request.split_whitespace().collect();
    let [dtype, m, n, k, a_order, b_order] = words[..] else {
        return Err(format!("not a request: {request}").into());
    };
    let (m, n, k) = (m.parse()?, n.parse()?, k.parse()?);
    let order =
        |name| Order::ALL.into_iter().find(|order| order.name() == name).ok_or(format!("no order {name}"));
    let matrices = Matrices {
        a: order(a_order)?.matrix(m, k),
        b: order(b_order)?.matrix(k, n),
        c: MatrixLayout::row_major(m, n),
    };
    let dtype = DType::ALL.into_iter().find(|known| known.name() == dtype).ok_or("no such dtype")?;
    let problem = GemmProblem::new(matrices, dtype)?;
    match dtype {
        DType::F32 => timed::<f32>(backend, &problem),
        DType::F16 => timed::<f16>(backend, &problem),
        DType::Bf16 => timed::<bf16>(backend, &problem),
        DType::E4m3 => Err("no matrix multiplication in e4m3".into()),
    }
}

fn timed<T: Element>(backend: &'static Backend, problem: &GemmProblem) -> Result<Timed, Failure> {
    let plan = backend.plan(problem, &GemmRequest::default())?;
    let matrices = problem.matrices();
    let (a, b) = (random::<T>(matrices.a.span(), 1), random::<T>(matrices.b.span(), 2));
    // As long as the program: the requests are few.
    let (a, b): (&'static [T], &'static [T]) = (a.leak(), b.leak());
    let mut resident = backend.prepare(&plan, (a, b))?;
    resident.time()?;
    Ok(Timed {
        entry: plan.launches().first().map(|launch| launch.entry.name),
        reasons: plan.reasons().to_vec(),
        run: Box::new(move || {
            resident.flush_cache()?;
            Ok(resident.time()?.as_secs_f64())
        }),
    })
}

/// Nearly normal numbers: the sum of four uniform ones, of variance 1.
fn random<T: Element>(len: usize, seed: u64) -> Vec<T> {
    let mut state = seed;
    let mut uniform = || {
        // Knuth's linear congruential generator.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..len).map(|_| T::from_f32(3.0_f32.sqrt() * (uniform() + uniform() + uniform() + uniform()))).collect()
}
