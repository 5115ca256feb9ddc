//! Attention with functions of scores that this crate brings along: on a GPU beside the CPU, and with the
//! argument `speed` beside attention without them.
//!
//! ```text
//! cargo run --release [-- speed]
//! ```

mod functions;

use std::error::Error;
use std::time::Duration;

use flash_attention::forward::Outputs;
use flash_attention::functions::{BlockMap, Built, FunctionTensor, Functions};
use flash_attention::{
    Backend, BackendKind, DType, Options, Prepared, Problem, Request, TensorLayout, Tensors,
};
use half::bf16;

include!(concat!(env!("OUT_DIR"), "/bias_in_documents.rs"));
include!(concat!(env!("OUT_DIR"), "/documents.rs"));
include!(concat!(env!("OUT_DIR"), "/shift.rs"));
include!(concat!(env!("OUT_DIR"), "/strided.rs"));

/// How far a query and a key are apart that have a bias of their own.
const REACH: u32 = 64;

/// Runs that are timed, in turns.
const RUNS: usize = 30;

fn main() -> Result<(), Box<dyn Error>> {
    let backend = if cfg!(feature = "sim") { Backend::simulator(1) } else { Backend::open(None)? };
    println!("{}: {}", backend.device().describe(), backend.reason());
    if std::env::args().nth(1).as_deref() == Some("speed") { speed(&backend) } else { compare(&backend) }
}

/// Each of the functions, beside the CPU's native code.
fn compare(backend: &Backend) -> Result<(), Box<dyn Error>> {
    let (rows, heads) = (300, 4);
    let cpu = Backend::open(Some(BackendKind::Cpu))?;
    for built in [&BIAS_IN_DOCUMENTS, &DOCUMENTS, &SHIFT, &STRIDED] {
        for head_dim in [64, 128] {
            let shape = [2, rows, heads, head_dim];
            let problem = problem(shape, Some(with(built, 2, rows, heads)?), head_dim == 64)?;
            let (found, plan) = run(backend, &problem)?;
            let (expected, _) = run(&cpu, &problem)?;
            let error = found.iter().zip(&expected).map(|(a, b)| (a.to_f32() - b.to_f32()).abs());
            let error =
                error.fold(0.0_f32, |most, error| if error.is_nan() { error } else { most.max(error) });
            println!("{:17} D={head_dim:3} {plan:44} beside the CPU: {error:.1e}", built.name);
            // O is a mean of values below 2 in magnitude, stored in bf16.
            if error.is_nan() || error > 2.0_f32.powi(-6) {
                return Err(format!("{}: O is off by {error}", built.name).into());
            }
        }
    }
    Ok(())
}

/// O, and the entry that made it.
fn run(backend: &Backend, problem: &Problem) -> Result<(Vec<bf16>, String), Box<dyn Error>> {
    let plan = backend.plan(problem, &Request::default())?;
    let [q, k, v] = inputs(problem);
    let mut o = vec![bf16::NAN; problem.tensors().o.span()];
    backend.run(&plan, (&q, &k, &v), Outputs { o: &mut o, lse: None })?;
    let entry = plan.launches().last().map_or("", |launch| launch.entry.name);
    Ok((o, entry.to_owned()))
}

/// Times of each, as a multiple of the time without functions.
fn speed(backend: &Backend) -> Result<(), Box<dyn Error>> {
    let (rows, heads, head_dim) = (4096, 16, 128);
    let shape = [4, rows, heads, head_dim];
    let inputs = inputs(&problem(shape, None, false)?);
    for causal in [false, true] {
        let built = [None, Some(&SHIFT), Some(&BIAS_IN_DOCUMENTS), Some(&DOCUMENTS), Some(&STRIDED)];
        let mut runs = Vec::new();
        for built in built {
            let functions = built.map(|built| with(built, 4, rows, heads)).transpose()?;
            let problem = problem(shape, functions, causal)?;
            runs.push(Timed::new(backend, &problem, &inputs)?);
        }
        for _ in 0..RUNS {
            runs.iter_mut().try_for_each(Timed::run)?;
        }
        let plain = runs[0].median();
        for (run, built) in runs.iter_mut().zip(built) {
            let (name, time) = (built.map_or("plain", |built| built.name), run.median());
            let times = time.as_secs_f64() / plain.as_secs_f64();
            let mask = if causal { "causal" } else { "full" };
            println!(
                "{mask:6} {name:17} {:8.1} us, {times:.3} times plain, {}",
                1e6 * time.as_secs_f64(),
                run.entry
            );
        }
    }
    Ok(())
}

/// A problem on the device, and how long its runs took.
struct Timed<'a> {
    prepared: Prepared<'a, bf16>,
    entry: &'static str,
    times: Vec<Duration>,
}

impl<'a> Timed<'a> {
    fn new(
        backend: &'a Backend,
        problem: &Problem,
        [q, k, v]: &'a [Vec<bf16>; 3],
    ) -> Result<Self, Box<dyn Error>> {
        let plan = backend.plan(problem, &Request::default())?;
        let entry = plan.launches().last().map_or("", |launch| launch.entry.name);
        let mut prepared = backend.prepare(&plan, (&q[..], &k[..], &v[..]))?;
        (0..5).try_for_each(|_| prepared.run())?;
        Ok(Self { prepared, entry, times: Vec::new() })
    }

    fn run(&mut self) -> flash_attention::Result<()> {
        self.times.push(self.prepared.time()?);
        Ok(())
    }

    fn median(&mut self) -> Duration {
        self.times.sort();
        self.times[self.times.len() / 2]
    }
}

/// [B, S, H, D] in bf16.
fn problem(
    [batch, rows, heads, head_dim]: [usize; 4],
    functions: Option<Functions>,
    causal: bool,
) -> flash_attention::Result<Problem> {
    let layout = TensorLayout::bshd(batch, rows, heads, head_dim);
    let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
    Problem::new(tensors, DType::Bf16, Options { functions, causal, ..Options::default() })
}

/// What the functions read.
fn with(
    built: &'static Built,
    batch: usize,
    rows: usize,
    heads: usize,
) -> flash_attention::Result<Functions> {
    if std::ptr::eq(built, &raw const STRIDED) {
        return strided(rows);
    }
    Ok(of_documents(built, batch, rows, heads))
}

/// Each eighth stretch of keys, and those that are less than four apart; one map of blocks for all heads.
fn strided(rows: usize) -> flash_attention::Result<Functions> {
    let functions = Functions { built: &STRIDED, tensors: Vec::new(), values: vec![8, 4] };
    let map = BlockMap::of_mask(&functions, [1, 1], [rows, rows], [64, 64])?;
    Ok(Functions { tensors: vec![map.into()], ..functions })
}

/// Documents of a quarter of the rows, and a bias for each distance.
fn of_documents(built: &'static Built, batch: usize, rows: usize, heads: usize) -> Functions {
    let document = |row: usize| 4 * (row % rows) / rows;
    let documents: Vec<i32> = (0..batch * rows).map(|row| document(row) as i32).collect();
    // Rows of a document are those from ⌈document · rows / 4⌉ on.
    let begin = |document: usize| (document * rows).div_ceil(4) as u32;
    let firsts: Vec<u32> = (0..batch * rows).map(|row| begin(document(row))).collect();
    let ends: Vec<u32> = (0..batch * rows).map(|row| begin(document(row) + 1)).collect();
    let count = heads * (2 * REACH as usize + 1);
    let biases: Vec<f32> = (0..count).map(|index| (index * 7919 % 64) as f32 / 32.0 - 1.0).collect();
    let tensors = vec![
        FunctionTensor::from(&documents[..]),
        FunctionTensor::from(&biases[..]),
        FunctionTensor::from(&firsts[..]),
        FunctionTensor::from(&ends[..]),
    ];
    Functions { built, tensors, values: vec![rows as u32, REACH, 1.75_f32.to_bits()] }
}

/// Q, K and V, the same in each run.
fn inputs(problem: &Problem) -> [Vec<bf16>; 3] {
    let values = |seed: u64, len: usize| {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(|_| bf16::from_f32(next() + next())).collect()
    };
    [1, 2, 3].map(|seed| values(seed, problem.tensors().q.span()))
}
