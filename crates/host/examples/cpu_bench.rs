//! Times the CPU backend on shapes read from standard input, one JSON line each: the child process of
//! `scripts/cpu_vs_torch.py`, and usable alone.
//!
//! A request is `kernel dtype B H Hkv Sq Sk D causal layout repeats`, for example
//! `forward f32 1 8 8 1024 1024 64 0 bhsd 5`; kernels are `forward` and `standard`. Three options
//! may follow: `block_m=N`, `block_n=N` and `isa=portable|avx2|avx512|neon`. Inputs are normal.

use std::error::Error;
use std::io::{BufRead, Write};
use std::time::Instant;

use flash_attention::cpu::{self, Config, Isa};
use flash_attention::{DType, Element, Options, Problem, TensorLayout, Tensors};
use float8::F8E4M3;
use half::{bf16, f16};

type Outcome<T> = Result<T, Box<dyn Error>>;

struct Request {
    fused: bool,
    problem: Problem,
    repeats: usize,
    config: Config,
}

fn main() -> Outcome<()> {
    for line in std::io::stdin().lock().lines() {
        let request = parse(&line?)?;
        let answer = match request.problem.dtype() {
            DType::F32 => measure::<f32>(&request)?,
            DType::F16 => measure::<f16>(&request)?,
            DType::Bf16 => measure::<bf16>(&request)?,
            DType::E4m3 => measure::<F8E4M3>(&request)?,
        };
        println!("{answer}");
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn parse(line: &str) -> Outcome<Request> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [kernel, dtype, b, h, hkv, sq, sk, d, causal, layout, repeats, options @ ..] = words.as_slice()
    else {
        return Err(format!("request {line:?} has {} words; at least 11 are needed", words.len()).into());
    };
    let dtype = DType::ALL
        .into_iter()
        .find(|known| known.name() == *dtype)
        .ok_or("dtype is f32, f16, bf16 or e4m3")?;
    let tensor = match *layout {
        "bhsd" => TensorLayout::bhsd,
        "bshd" => TensorLayout::bshd,
        other => return Err(format!("layout {other:?} is neither bhsd nor bshd").into()),
    };
    let (b, d) = (b.parse()?, d.parse()?);
    let q = tensor(b, sq.parse()?, h.parse()?, d);
    let kv = tensor(b, sk.parse()?, hkv.parse()?, d);
    let mut config = Config::default();
    for option in options {
        match option.split_once('=').ok_or_else(|| format!("option {option:?} has no value"))? {
            ("block_m", value) => config.block_m = Some(value.parse()?),
            ("block_n", value) => config.block_n = Some(value.parse()?),
            ("isa", name) => {
                let known = [Isa::Portable, Isa::Neon, Isa::Avx2, Isa::Avx512];
                let named = |isa: &Isa| isa.to_string().to_lowercase().replace('-', "") == name;
                config.isa = Some(known.into_iter().find(named).ok_or_else(|| format!("no isa {name:?}"))?);
            }
            (name, _) => return Err(format!("no option {name:?}").into()),
        }
    }
    let options = Options { causal: *causal == "1", ..Options::default() };
    let problem = Problem::new(Tensors { q, k: kv, v: kv, o: q }, dtype, options)?;
    Ok(Request { fused: *kernel == "forward", problem, repeats: repeats.parse()?, config })
}

/// Runs the request, once more than asked to warm up, and reports each time in seconds.
fn measure<T: Element>(request: &Request) -> Outcome<serde_json::Value> {
    let problem = &request.problem;
    let tensors = problem.tensors();
    let [q, k, v] = [(1, tensors.q), (2, tensors.k), (3, tensors.v)]
        .map(|(seed, layout)| normal::<T>(seed, layout.span()));
    let mut o = vec![T::Output::default(); tensors.o.span()];
    let mut call = || {
        let start = Instant::now();
        let stats = if request.fused {
            cpu::forward_with(problem, request.config, &q, &k, &v, &mut o, None)
        } else {
            cpu::standard(problem, &q, &k, &v, &mut o, None)
        }?;
        Ok::<_, flash_attention::Error>((start.elapsed().as_secs_f64(), stats))
    };
    let (_, stats) = call()?;
    let times = (0..request.repeats).map(|_| Ok(call()?.0)).collect::<Outcome<Vec<_>>>()?;
    let fastest = times.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(serde_json::json!({
        "seconds": times,
        "gflops": problem.flops() / fastest / 1e9,
        "extra_bytes": stats.extra_bytes,
        "threads": stats.threads,
        "isa": stats.isa.to_string(),
        "tile": stats.tile.to_string(),
    }))
}

/// Normal values by Box and Muller's method, from a multiplicative generator.
fn normal<T: Element>(seed: u64, count: usize) -> Vec<T> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 + 0.5) / (1 << 24) as f32
    };
    let mut value = || (-2.0 * uniform().ln()).sqrt() * (std::f32::consts::TAU * uniform()).cos();
    (0..count).map(|_| T::from_f32(value())).collect()
}
