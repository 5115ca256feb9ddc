//! The backward kernels, on the cases of attention: gradients of the first and the last key/value head
//! against the reference.

use anyhow::{Result, ensure};
use fa_kernels::entries::{Algorithm, Entry, entries};
use flash_attention::backward::{BackwardProblem, BackwardRequest, ExpectedGradients};
use flash_attention::forward::MAX_HEAD_DIM;
use flash_attention::{Backend, BackendKind, DType, Element, Problem, cpu};

use super::args::Args;
use super::cases::{Case, HeadDims, Takes, WithCases, distinct};
use super::entry::{Effort, EntryRecord, Subject, outcomes, print, record};
use super::repeat::{Repeatable, repeated};
use super::targets::{block, bucket};
use crate::check::Verdict;
use crate::gradients::Gradients;
use crate::inputs::Inputs;
use crate::measure::with_output_element;
use crate::output::Screen;
use crate::problem::describe;
use crate::session::Session;

/// An entry, or the CPU's kernel.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) entry: Option<&'static Entry>,
}

impl Target {
    /// The request that makes the planner come to it.
    fn request(&self) -> BackwardRequest {
        let entry = self.entry.map(|entry| entry.name.to_owned());
        BackwardRequest { entry, ..BackwardRequest::default() }
    }

    /// Whether the planner takes it for the problem on a device that has all kernels.
    fn is_planned(&self, problem: &Problem) -> bool {
        let backward = BackwardProblem::like(problem.clone());
        backward.is_ok_and(|backward| Backend::simulator(0).plan(&backward, &self.request()).is_ok())
    }
}

impl Takes for Target {
    fn family(&self) -> String {
        let bytes = self.dtype.bytes();
        self.entry
            .map_or(format!("of {bytes} bytes"), |entry| format!("{:?} of {bytes} bytes", entry.algorithm))
    }

    fn tile(&self) -> String {
        self.name.replace(self.dtype.name(), "")
    }

    fn block(&self) -> (usize, usize) {
        self.entry.map_or((64, 64), block)
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn head_dims(&self) -> HeadDims {
        let any = 1..=MAX_HEAD_DIM;
        let tiled = self.entry.filter(|entry| entry.tile.head_dim <= MAX_HEAD_DIM as u32);
        HeadDims::all(tiled.map_or(any, bucket), 1)
    }

    fn takes(&self, problem: &Problem) -> bool {
        self.entry.is_none_or(|entry| match entry.algorithm {
            Algorithm::BackwardSinks => problem.per_head().sinks.is_some(),
            Algorithm::BackwardKeys | Algorithm::BackwardQueries => problem.dropout().is_none(),
            Algorithm::BackwardKeysDropout | Algorithm::BackwardQueriesDropout => problem.dropout().is_some(),
            Algorithm::BackwardKeysSm80
            | Algorithm::BackwardQueriesSm80
            | Algorithm::BackwardKeysDsSm80
            | Algorithm::BackwardDqSm80
            | Algorithm::BackwardKeysSm80ScoreMod
            | Algorithm::BackwardQueriesSm80ScoreMod
            | Algorithm::BackwardKeysSm90
            | Algorithm::BackwardKeysDsSm90
            | Algorithm::BackwardKeysDqSm90
            | Algorithm::BackwardKeysDqSm90ScoreMod
            | Algorithm::BackwardKeysDsSm90ScoreMod
            | Algorithm::BackwardQueriesSm90 => self.is_planned(problem),
            _ => true,
        })
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
        BackendKind::Cpu => DType::RESULTS.map(of_cpu).to_vec(),
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
    targets: &[WithCases<Target>],
    screen: &Screen,
    records: &mut Vec<EntryRecord>,
) -> Result<usize> {
    let mut groups: Vec<Vec<&WithCases<Target>>> = Vec::new();
    for of in targets {
        // What a case's problem is made from.
        let shares = |of: &WithCases<Target>| (of.target.dtype, of.target.head_dims());
        match groups.iter_mut().find(|group| shares(group[0]) == shares(of)) {
            Some(group) => group.push(of),
            None => groups.push(vec![of]),
        }
    }
    let mut runs = 0;
    for group in groups {
        let dtype = group[0].target.dtype;
        runs += with_output_element!(dtype, verify_group(session, args, &group, screen, records))?;
    }
    Ok(runs)
}

/// Verifies targets that share inputs and references.
fn verify_group<T: Element<Output = T>>(
    session: &Session,
    args: &Args,
    group: &[&WithCases<Target>],
    screen: &Screen,
    records: &mut Vec<EntryRecord>,
) -> Result<usize> {
    let head_dims = group[0].target.head_dims();
    let trials: Vec<Trial<T>> = distinct(group.iter().copied())
        .into_iter()
        .filter(|case| !case.is_long())
        .map(|case| Trial::new(case, &head_dims, args.report.seed.wrapping_add(case.index as u64)))
        .collect::<Result<_>>()?;
    let (mut runs, effort) = (0, Effort::new(session, args));
    for WithCases { target, cases } in group {
        let taken = trials
            .iter()
            .filter(|trial| cases.contains(&trial.case) && target.takes(trial.gradients.problem.forward()));
        let subjects: Vec<_> = taken.map(|trial| OnTarget { trial, target }).collect();
        ensure!(cases.is_empty() || !subjects.is_empty(), "{} takes none of its cases", target.name);
        let outcomes = outcomes(session, args, &subjects)?;
        runs += outcomes.len();
        let record = record(&target.name, T::DTYPE, Some(&head_dims.range), effort, outcomes.iter());
        print(screen, &record)?;
        records.push(record);
    }
    Ok(runs)
}

/// A case made concrete; O and lse are those of the CPU's forward pass.
struct Trial<T> {
    case: Case,
    gradients: Gradients<T>,
    inputs: Inputs<T>,
    expected: ExpectedGradients<T>,
    name: String,
}

impl<T: Element<Output = T>> Trial<T> {
    fn new(case: Case, head_dims: &HeadDims, seed: u64) -> Result<Self> {
        let forward = case.problem(T::DTYPE, head_dims)?;
        let inputs = Inputs::random(&forward, seed);
        let (q, k, v) = inputs.tensors();
        let mut o = vec![T::default(); forward.tensors().o.span()];
        let mut lse = vec![0.0; forward.lse_len()];
        cpu::forward(&forward, q, k, v, &mut o, Some(&mut lse))?;
        let name = format!("gradients of {}", describe(&forward, case.layout()));
        let gradients = Gradients::new(forward, (o, lse), seed)?;
        let gradients = if case.index.is_multiple_of(3) { gradients } else { gradients.with_dlse(seed) };
        let expected = gradients.expected(&inputs);
        Ok(Self { case, gradients, inputs, expected, name })
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
        let Trial { gradients, inputs, expected, .. } = self.trial;
        let plan = backend.plan(&gradients.problem, &self.target.request())?;
        let mut prepared = backend.prepare(&plan, gradients.inputs(inputs))?;
        prepared.run_poisoned()?;
        let (_, verdict) = gradients.judge(expected, prepared.outputs()?);
        repeated((prepared, verdict), repeats)
    }
}
