//! Whether O is what it should be where sums are long: V of ones, and V around 1 and 0, over many keys.

use anyhow::Result;
use flash_attention::{BackendKind, DType, Element, Plan, Problem, Request};
use serde::Serialize;

use crate::args::{BackendArgs, ReportArgs, named};
use crate::check::Expected;
use crate::inputs::Inputs;
use crate::lab::Shared;
use crate::measure::{judged, with_element};
use crate::problem::{Layout, Shape};
use crate::record::Header;
use crate::session::Session;
use crate::table::table;

/// Rows that are compared with the f64 reference.
const CHECKED_ROWS: usize = 32;

/// How far the mean of O may be from 1 where V is 1. Single elements of short rows are further off: weights
/// are rounded.
const ONES_BOUND: f64 = 1.0 / 256.0;

/// Arguments of `sums`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Sequence lengths [default: 4096,16384,65536,131072; cpu: 1024,4096; sim: 256]
    #[arg(long, value_name = "ROWS,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    seq: Vec<u32>,
    /// Elements of a row of Q, K, V and O: head_dim, 1 to 256
    #[arg(long, value_name = "COLUMNS,…", value_delimiter = ',', default_values_t = [64_usize, 128, 256])]
    dim: Vec<usize>,
    /// Storage types of Q, K and V
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_values = ["f16", "bf16", "e4m3"],
        value_parser = named(&DType::ALL, DType::name))]
    dtype: Vec<DType>,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// What V is filled with; Q and K are normal.
#[derive(Clone, Copy)]
struct Values {
    name: &'static str,
    mean: f32,
    deviation: f32,
}

const VALUES: [Values; 3] = [
    Values { name: "1", mean: 1.0, deviation: 0.0 },
    Values { name: "around 1", mean: 1.0, deviation: 1.0 },
    Values { name: "around 0", mean: 0.0, deviation: 1.0 },
];

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    header: Header,
    rows: Vec<RowRecord>,
    passed: bool,
}

#[derive(Serialize)]
struct RowRecord {
    dtype: &'static str,
    values: &'static str,
    head_dim: usize,
    seq: usize,
    causal: bool,
    /// Over all of O.
    mean: f64,
    least: f64,
    largest: f64,
    /// Of O less the reference, on average, over the rows that were compared: what sums lose in one
    /// direction.
    mean_error: f64,
    /// Over the same rows.
    max_error: f64,
    bound: f64,
    passed: bool,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, _: &mut Shared) -> Result<bool> {
    let screen = args.report.open()?;
    let session = Session::open(&args.backend)?;
    session.header(&screen)?;
    let seqs = match session.kind() {
        _ if !args.seq.is_empty() => args.seq.clone(),
        BackendKind::Cuda => vec![4096, 16384, 65536, 131_072],
        BackendKind::Cpu => vec![1024, 4096],
        BackendKind::Sim => vec![256],
    };
    // All are planned before the first runs, which may take long.
    let planned: Vec<_> =
        shapes(args, &seqs).into_iter().map(|shape| planned(&session, shape)).collect::<Result<_>>()?;
    let mut rows = Vec::new();
    for (problem, plan) in &planned {
        for values in VALUES {
            rows.push(with_element!(problem.dtype(), measured(&session, (problem, plan), values, args))?);
        }
    }
    let cells = rows.iter().map(|row| {
        let mask = if row.causal { "causal" } else { "full" };
        vec![
            format!("{} V {}, D={} S={} {mask}", row.dtype, row.values, row.head_dim, row.seq),
            format!("{:.5}", row.mean),
            format!("{:.5} - {:.5}", row.least, row.largest),
            format!("{:.1e}", row.mean_error),
            format!("{:.2e}", row.max_error),
            format!("{:.2e}", row.bound),
            if row.passed { "pass" } else { "FAIL" }.to_owned(),
        ]
    });
    let titles = ["case", "mean of O", "least - largest", "mean error", "max error", "bound", "check"];
    screen.line(table(&titles, cells.collect()))?;
    let passed = rows.iter().all(|row| row.passed);
    let header = Header::new("sums", &session, args.report.seed);
    args.report.write(&Document { header, rows, passed }, &screen)?;
    Ok(passed)
}

/// One head of each type, head_dim, length and mask, in this order.
fn shapes(args: &Args, seqs: &[u32]) -> Vec<Shape> {
    let of_dim = |dtype, head_dim| {
        let of_seq = move |&seq: &u32| {
            let seq = seq as usize;
            [false, true].map(|causal| Shape { batch: 1, heads: 1, seq, head_dim, dtype, causal })
        };
        seqs.iter().flat_map(of_seq)
    };
    args.dtype.iter().flat_map(|&dtype| args.dim.iter().flat_map(move |&dim| of_dim(dtype, dim))).collect()
}

/// A problem that fits, and how it runs.
fn planned(session: &Session, shape: Shape) -> Result<(Problem, Plan)> {
    let problem = shape.problem(Layout::Bshd)?;
    session.check_tensors(&problem)?;
    let plan = session.backend.plan(&problem, &Request::default())?;
    session.check_workspace(&problem, &plan)?;
    Ok((problem, plan))
}

/// One problem, run and judged.
fn measured<T: Element>(
    session: &Session,
    (problem, plan): (&Problem, &Plan),
    values: Values,
    args: &Args,
) -> Result<RowRecord> {
    let seed = args.report.seed;
    let inputs = Inputs::<T>::around(problem, seed, values.mean, values.deviation);
    let expected = Expected::new(problem, &inputs, CHECKED_ROWS, seed);
    let prepared = session.backend.prepare(plan, inputs.tensors())?;
    let (mut mean, mut least, mut largest) = (0.0, f64::INFINITY, f64::NEG_INFINITY);
    let mut mean_error = 0.0;
    let (_, verdict) = judged(prepared, |o, lse| {
        for value in o.iter().map(|value| f64::from(value.to_f32())) {
            (mean, least, largest) = (mean + value / o.len() as f64, least.min(value), largest.max(value));
        }
        mean_error = expected.mean_error(problem, o);
        expected.judge(problem, plan.score_roundoff(), o, lse)
    })?;
    let is_one = values.deviation > 0.0 || (mean - 1.0).abs() <= ONES_BOUND;
    Ok(RowRecord {
        dtype: T::DTYPE.name(),
        values: values.name,
        head_dim: problem.head_dim(),
        seq: problem.seqlen_k(),
        causal: problem.window().1 == Some(0),
        mean,
        least,
        largest,
        mean_error,
        max_error: verdict.output.max_error,
        bound: verdict.output.bound,
        passed: verdict.passed() && is_one,
    })
}
