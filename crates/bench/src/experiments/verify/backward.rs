//! The backward kernels, on the cases of attention: gradients of the first and the last key/value head
//! against the reference.

use std::ops::RangeInclusive;

use anyhow::Result;
use fa_kernels::entries::{Algorithm, Entry, entries};
use flash_attention::{
    Backend, BackendKind, BackwardInputs, BackwardKernel, BackwardOutputs, BackwardProblem, BackwardRequest,
    DType, Element, ExpectedGradients, MAX_HEAD_DIM, PreparedBackward, Problem, cpu,
};

use super::cases::cases;
use super::repeat::Repeatable;
use super::targets::bucket;
use super::{Args, Case, Effort, EntryRecord, Subject, outcomes, print, record, repeated};
use crate::check::Verdict;
use crate::inputs::{Inputs, normal};
use crate::measure::with_element;
use crate::output::Screen;
use crate::problem::describe;
use crate::session::Session;

/// Key/value heads of a case that are compared with the reference.
const CHECKED_HEADS: usize = 2;

/// An entry, or the CPU's kernel.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) entry: Option<&'static Entry>,
}

impl Target {
    /// Whether the planner comes to it for `problem`, whose head_dim is one of its own.
    fn takes(&self, problem: &Problem) -> bool {
        self.entry.is_none_or(|entry| match entry.algorithm {
            Algorithm::BackwardKeys | Algorithm::BackwardQueries => problem.dropout().is_none(),
            Algorithm::BackwardKeysDropout | Algorithm::BackwardQueriesDropout => problem.dropout().is_some(),
            Algorithm::BackwardKeysSm80 | Algorithm::BackwardQueriesSm80 => {
                !problem.changes_scores() && problem.dropout().is_none()
            }
            _ => true,
        })
    }

    /// The request that makes the planner come to it.
    fn request(&self) -> BackwardRequest {
        let kernel = self.entry.and_then(|entry| match entry.algorithm {
            Algorithm::BackwardDelta => None,
            Algorithm::BackwardKeysSm80 | Algorithm::BackwardQueriesSm80 => {
                Some(BackwardKernel::BackwardSm80)
            }
            _ => Some(BackwardKernel::BackwardSimt),
        });
        BackwardRequest { kernel, entry: self.entry.map(|entry| entry.name.to_owned()) }
    }

    /// The head_dims for which the planner comes to it.
    fn head_dims(&self) -> RangeInclusive<usize> {
        let any = 1..=MAX_HEAD_DIM;
        self.entry.filter(|entry| entry.tile.head_dim <= MAX_HEAD_DIM as u32).map_or(any, bucket)
    }
}

/// The backward kernels of a backend.
pub(super) fn targets(backend: BackendKind) -> Vec<Target> {
    let of_entry = |entry: &'static Entry| {
        let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == entry.dtype)?;
        Some(Target { name: entry.name.to_owned(), dtype, entry: Some(entry) })
    };
    let of_cpu = |dtype| Target { name: format!("backward_cpu_{dtype}"), dtype, entry: None };
    match backend {
        BackendKind::Cpu => DType::ALL.map(of_cpu).to_vec(),
        BackendKind::Cuda | BackendKind::Sim => entries()
            .filter(|entry| entry.algorithm.family().starts_with("backward"))
            .filter_map(of_entry)
            .collect(),
    }
}

/// Verifies the targets, adds their records, and returns the number of runs.
pub(super) fn verify(
    session: &Session,
    args: &Args,
    targets: &[Target],
    screen: &Screen,
    records: &mut Vec<EntryRecord>,
) -> Result<usize> {
    let mut groups: Vec<Vec<&Target>> = Vec::new();
    for target in targets {
        let same = |group: &&mut Vec<&Target>| {
            (group[0].dtype, group[0].head_dims()) == (target.dtype, target.head_dims())
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(target),
            None => groups.push(vec![target]),
        }
    }
    let mut runs = 0;
    for group in groups {
        runs += with_element!(group[0].dtype, verify_group(session, args, &group, screen, records))?;
    }
    Ok(runs)
}

/// Verifies targets that share inputs and references.
fn verify_group<T: Element>(
    session: &Session,
    args: &Args,
    group: &[&Target],
    screen: &Screen,
    records: &mut Vec<EntryRecord>,
) -> Result<usize> {
    let head_dims = group[0].head_dims();
    let cases = cases(args.sizes(session.kind()));
    let seeds = (args.report.seed..).zip(cases.iter().filter(|case| !case.is_long()));
    let trials: Vec<Trial<T>> =
        seeds.map(|(seed, case)| Trial::new(case, &head_dims, seed)).collect::<Result<_>>()?;
    let (mut runs, effort) = (0, Effort::new(session, args));
    for target in group {
        let taken = trials.iter().filter(|trial| target.takes(trial.problem.forward()));
        let subjects: Vec<_> = taken.map(|trial| OnTarget { trial, target }).collect();
        let outcomes = outcomes(session, args, &subjects)?;
        runs += outcomes.len();
        let record = record(&target.name, T::DTYPE, Some(&head_dims), effort, outcomes.iter());
        print(screen, &record)?;
        records.push(record);
    }
    Ok(runs)
}

/// A case made concrete; O and lse are those of the CPU's forward pass.
struct Trial<T> {
    problem: BackwardProblem,
    inputs: Inputs<T>,
    o: Vec<T>,
    lse: Vec<f32>,
    dout: Vec<T>,
    expected: ExpectedGradients<T>,
    name: String,
}

impl<T: Element> Trial<T> {
    fn new(case: &Case, head_dims: &RangeInclusive<usize>, seed: u64) -> Result<Self> {
        let forward = case.problem(T::DTYPE, head_dims, 1)?;
        let inputs = Inputs::random(&forward, seed);
        let (q, k, v) = inputs.tensors();
        let mut o = vec![T::default(); forward.tensors().o.span()];
        let mut lse = vec![0.0; forward.lse_len()];
        cpu::forward(&forward, q, k, v, &mut o, Some(&mut lse))?;
        let name = format!("gradients of {}", describe(&forward, case.layout()));
        let problem = BackwardProblem::like(forward)?;
        let dout: Vec<T> = normal(seed, 4, problem.layouts().dout.span());
        let expected = problem.expected([q, k, v, &dout], &problem.sample(CHECKED_HEADS));
        Ok(Self { problem, inputs, o, lse, dout, expected, name })
    }

    fn inputs(&self) -> BackwardInputs<'_, T> {
        let (q, k, v) = self.inputs.tensors();
        BackwardInputs { q, k, v, o: &self.o, lse: &self.lse, dout: &self.dout }
    }

    fn judge(&self, [mut dq, mut dk, mut dv]: [Vec<T>; 3]) -> Verdict {
        let written = [&dq, &dk, &dv].into_iter().flatten();
        let unwritten = written.filter(|value| !value.to_f32().is_finite()).count();
        let outputs = BackwardOutputs { dq: &mut dq, dk: &mut dk, dv: &mut dv };
        let report = self.expected.judge(&self.problem, &outputs);
        Verdict::of_product(report.worst(), unwritten, self.expected.query_rows(&self.problem))
    }
}

/// A case made concrete, for one target.
struct OnTarget<'a, T> {
    trial: &'a Trial<T>,
    target: &'a Target,
}

impl<T: Element> Subject for OnTarget<'_, T> {
    fn name(&self) -> String {
        self.trial.name.clone()
    }

    fn target(&self) -> String {
        self.target.name.clone()
    }

    fn verdict(&self, backend: &Backend, repeats: usize) -> flash_attention::Result<Result<Verdict, String>> {
        let Trial { problem, .. } = self.trial;
        let plan = backend.plan_backward(problem, &self.target.request())?;
        let mut prepared = backend.prepare_backward(problem, &plan, self.trial.inputs())?;
        prepared.run()?;
        let verdict = self.trial.judge(prepared.outputs()?);
        repeated((prepared, verdict), repeats)
    }
}

impl<T: Element> Repeatable for PreparedBackward<'_, T> {
    type Element = T;

    const OUTPUT: &'static str = "dQ, dK and dV";

    fn run(&mut self) -> flash_attention::Result<()> {
        self.poison()?;
        self.time().map(drop)
    }

    fn replay(&mut self) -> flash_attention::Result<bool> {
        self.poison()?;
        Ok(self.time_replayed(1)?.is_some())
    }

    fn outputs(&self) -> flash_attention::Result<(Vec<T>, Vec<f32>)> {
        Ok((PreparedBackward::outputs(self)?.concat(), Vec::new()))
    }
}
