//! The backward kernels, on the cases of attention: gradients of the first and the last key/value head
//! against the reference.

use std::ops::RangeInclusive;

use anyhow::Result;
use fa_kernels::entries::{Algorithm, Entry, entries};
use flash_attention::{
    Backend, BackendKind, BackwardKernel, BackwardRequest, DType, Element, ExpectedGradients, MAX_HEAD_DIM,
    Problem, cpu,
};

use super::cases::cases;
use super::repeat::Repeatable;
use super::targets::bucket;
use super::{Args, Case, Effort, EntryRecord, Subject, outcomes, print, record, repeated};
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
        runs += with_output_element!(group[0].dtype, verify_group(session, args, &group, screen, records))?;
    }
    Ok(runs)
}

/// Verifies targets that share inputs and references.
fn verify_group<T: Element<Output = T>>(
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
        let taken = trials.iter().filter(|trial| target.takes(trial.gradients.problem.forward()));
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
    gradients: Gradients<T>,
    inputs: Inputs<T>,
    expected: ExpectedGradients<T>,
    name: String,
}

impl<T: Element<Output = T>> Trial<T> {
    fn new(case: &Case, head_dims: &RangeInclusive<usize>, seed: u64) -> Result<Self> {
        let forward = case.problem(T::DTYPE, head_dims, 1)?;
        let inputs = Inputs::random(&forward, seed);
        let (q, k, v) = inputs.tensors();
        let mut o = vec![T::default(); forward.tensors().o.span()];
        let mut lse = vec![0.0; forward.lse_len()];
        cpu::forward(&forward, q, k, v, &mut o, Some(&mut lse))?;
        let name = format!("gradients of {}", describe(&forward, case.layout()));
        let gradients = Gradients::new(forward, (o, lse), seed)?;
        let expected = gradients.expected(&inputs);
        Ok(Self { gradients, inputs, expected, name })
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
        let plan = backend.plan_backward(&gradients.problem, &self.target.request())?;
        let mut prepared = backend.prepare_backward(&gradients.problem, &plan, gradients.inputs(inputs))?;
        prepared.run()?;
        let (_, verdict) = gradients.judge(expected, prepared.outputs()?);
        repeated((prepared, verdict), repeats)
    }
}
