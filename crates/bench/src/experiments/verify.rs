//! Every built kernel against the f64 reference, over shapes that break careless ones.

mod append;
mod args;
mod backward;
mod cases;
mod cover;
mod decode;
mod entry;
mod large;
mod merge;
mod products;
pub(super) mod repeat;
mod targets;

use std::time::Instant;

use anyhow::Result;
use fa_kernels::entries::Entry;
use flash_attention::{Backend, BackendKind, Element, Error, Kernel, Problem};
use serde::Serialize;

use crate::check::{Expected, Verdict};
use crate::failure::usage;
use crate::inputs::Inputs;
use crate::lab::Shared;
use crate::measure::{judged, with_element};
use crate::output::Screen;
use crate::problem::describe;
use crate::record::Header;
use crate::session::Session;
pub(crate) use args::Args;
use args::{AnyKernel, Sizes};
use cases::{Case, Takes, WithCases, cases, distinct, of_each_family};
use entry::{CHECKED_ROWS, Effort, EntryRecord, SkippedRecord, Subject, outcomes, print, record};
use products::verify as verify_product;
use repeat::repeated;
use targets::{Target, refusal, targets};

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    header: Header,
    entries: Vec<EntryRecord>,
    skipped: Vec<SkippedRecord>,
    runs: usize,
    seconds: f64,
    passed: bool,
}

/// A case made concrete for a storage type and a range of head_dims.
struct Trial<T: Element> {
    case: Case,
    problem: Problem,
    inputs: Inputs<T>,
    expected: Expected<T>,
    name: String,
}

/// What the arguments select and the device can run.
#[derive(Default)]
struct Chosen {
    attention: Vec<WithCases<Target>>,
    decode: Vec<&'static Entry>,
    append: Vec<append::Target>,
    merge: Vec<&'static Entry>,
    backward: Vec<WithCases<backward::Target>>,
    products: Vec<products::Target>,
    skipped: Vec<SkippedRecord>,
}

/// Those of `targets` that are `selected`, with their cases. A target's cases are the same whichever others
/// are selected, so that what fails among all of them can be run by itself.
fn with_cases<T: Takes>(
    args: &Args,
    sizes: Sizes,
    targets: Vec<T>,
    selected: impl Fn(&T) -> bool,
) -> Vec<WithCases<T>> {
    let targets = if args.families { of_each_family(targets) } else { targets };
    let families: Vec<String> = targets.iter().filter(|target| selected(target)).map(Takes::family).collect();
    let targets: Vec<T> = targets.into_iter().filter(|target| families.contains(&target.family())).collect();
    let cases = cases(sizes, &targets);
    let with_cases = targets.into_iter().zip(cases).map(|(target, cases)| WithCases { target, cases });
    with_cases.filter(|of| selected(&of.target)).collect()
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, _: &mut Shared) -> Result<bool> {
    let screen = args.report.open()?;
    let session = Session::open(&args.backend)?;
    let sizes = args.sizes(session.kind());
    let Chosen { attention, decode, append, merge, backward, products, mut skipped } =
        chosen(&session, args, sizes)?;
    session.header(&screen)?;
    let of_attention = attention.iter().map(|of| of.target.names.len()).sum::<usize>();
    let of_cache = decode.len() + append.len() + merge.len();
    let count = of_attention + of_cache + backward.len() + products.len();
    let schedules = match session.kind() {
        BackendKind::Sim => format!(" in {} schedules", args.schedules),
        BackendKind::Cuda | BackendKind::Cpu => String::new(),
    };
    let chosen = match sizes {
        Sizes::Small => "on cases that have all pairs of shape, mask, layout, heads and tile",
        Sizes::Full => "on all cases that it takes",
    };
    screen.line(format!("{count} entries, each {chosen}{schedules}"))?;
    let start = Instant::now();
    let mut entries = Vec::new();
    let mut runs = 0;
    for group in groups(attention) {
        let records = with_element!(group[0].target.dtype, verify(&session, args, &group, &screen))?;
        runs += records.iter().map(|of_target| of_target[0].runs).sum::<usize>();
        entries.extend(records.into_iter().flatten());
    }
    runs += decode::verify(&session, args, &decode, &screen, &mut entries)?;
    runs += append::verify(&session, args, &append, &screen, &mut entries)?;
    runs += merge::verify(&session, args, &merge, &screen, &mut entries)?;
    runs += backward::verify(&session, args, &backward, &screen, &mut entries)?;
    for target in &products {
        let record = with_element!(target.dtype, verify_product(&session, args, target))?;
        print(&screen, &record)?;
        runs += record.runs;
        entries.push(record);
    }
    runs += large::verify(&session, args, &screen, &mut entries, &mut skipped)?;
    for SkippedRecord { entry, reason } in &skipped {
        screen.line(format!("skip {entry}: {reason}"))?;
    }
    let failed = entries.iter().filter(|entry| !entry.passed).count();
    let seconds = start.elapsed().as_secs_f64();
    screen.line(format!(
        "{} entries passed, {failed} failed, {} skipped: {runs} runs in {seconds:.1} s",
        entries.len() - failed,
        skipped.len()
    ))?;
    let header = Header::new("verify", &session, args.report.seed);
    let document = Document { header, entries, skipped, runs, seconds, passed: failed == 0 };
    args.report.write(&document, &screen)?;
    Ok(document.passed)
}

/// What the arguments select and the device can run, and the entries that it cannot.
fn chosen(session: &Session, args: &Args, sizes: Sizes) -> Result<Chosen> {
    let available: Vec<_> = AnyKernel::of_backend(session.kind()).collect();
    if let Some(kernel) = args.kernel.filter(|kernel| !available.contains(&kernel.name())) {
        return Err(Error::KernelNotOnBackend {
            kernel: kernel.name(),
            backend: session.kind().name(),
            available: available.join(", "),
        }
        .into());
    }
    let kind = session.kind();
    let named = |name: &str| args.entry.as_ref().is_none_or(|text| name.contains(text));
    let of_attention = with_cases(args, sizes, targets(kind, None), |target| {
        let kernel = args.kernel.is_none_or(|kernel| kernel.is_of(target.request.kernel));
        kernel && target.names.iter().any(|name| named(name))
    });
    let of_backward = with_cases(args, sizes, backward::targets(kind), |target| {
        args.kernel.is_none() && named(&target.name)
    });
    let decodes = args.kernel.is_none_or(|kernel| kernel.is_of(Some(Kernel::Decode)));
    let of_decode = decode::targets(kind, args.families).into_iter().filter(|_| decodes);
    let of_products = match args.kernel {
        None => products::targets(kind, None),
        Some(AnyKernel::Gemm(kernel)) => products::targets(kind, Some(kernel)),
        Some(AnyKernel::Attention(_)) => Vec::new(),
    };
    let of_products = if args.families { products::of_each_family(of_products) } else { of_products };
    let mut chosen = Chosen::default();
    // The limits of GPUs are no limits of the CPU's kernels, which have no entries.
    for of in of_attention {
        match of.target.refused_by(session.device()) {
            None => chosen.attention.push(of),
            Some(reason) => chosen.skipped.extend(
                of.target.names.into_iter().map(|entry| SkippedRecord { entry, reason: reason.clone() }),
            ),
        }
    }
    for entry in of_decode.filter(|entry| named(entry.name)) {
        match refusal(entry, session.device()) {
            None => chosen.decode.push(entry),
            Some(reason) => chosen.skipped.push(SkippedRecord { entry: entry.name.to_owned(), reason }),
        }
    }
    let of_append = append::targets(kind, args.families).into_iter().filter(|_| args.kernel.is_none());
    for target in of_append.filter(|target| named(&target.name)) {
        match target.entry.and_then(|entry| refusal(entry, session.device())) {
            None => chosen.append.push(target),
            Some(reason) => chosen.skipped.push(SkippedRecord { entry: target.name, reason }),
        }
    }
    let of_merge = merge::targets(kind, args.families).into_iter().filter(|_| args.kernel.is_none());
    for entry in of_merge.filter(|entry| named(entry.name)) {
        match refusal(entry, session.device()) {
            None => chosen.merge.push(entry),
            Some(reason) => chosen.skipped.push(SkippedRecord { entry: entry.name.to_owned(), reason }),
        }
    }
    for of in of_backward {
        match of.target.entry.and_then(|entry| refusal(entry, session.device())) {
            None => chosen.backward.push(of),
            Some(reason) => chosen.skipped.push(SkippedRecord { entry: of.target.name, reason }),
        }
    }
    for target in of_products.into_iter().filter(|target| named(&target.name)) {
        match target.refused_by(session.device()) {
            None => chosen.products.push(target),
            Some(reason) => chosen.skipped.push(SkippedRecord { entry: target.name, reason }),
        }
    }
    let Chosen { attention, decode, append, merge, backward, products, skipped } = &chosen;
    let empty = [
        attention.is_empty(),
        decode.is_empty(),
        append.is_empty(),
        merge.is_empty(),
        backward.is_empty(),
        products.is_empty(),
    ];
    let nothing = empty.into_iter().all(|is_empty| is_empty);
    if nothing && skipped.is_empty() && !large::any_selected(session, args)? {
        let text = args.entry.as_deref().unwrap_or_default();
        return Err(usage(format!("--entry {text}: no entry has this in its name")));
    }
    Ok(chosen)
}

/// Targets that share inputs and references: of one storage type and with the same head_dims.
fn groups(targets: Vec<WithCases<Target>>) -> Vec<Vec<WithCases<Target>>> {
    let mut groups: Vec<Vec<WithCases<Target>>> = Vec::new();
    for of in targets {
        let shares = |of: &WithCases<Target>| (of.target.dtype, of.target.head_dims.clone());
        match groups.iter_mut().find(|group| shares(&group[0]) == shares(&of)) {
            Some(group) => group.push(of),
            None => groups.push(vec![of]),
        }
    }
    groups
}

/// Verifies the targets of a group, printing a line for each entry as soon as it is known.
fn verify<T: Element>(
    session: &Session,
    args: &Args,
    group: &[WithCases<Target>],
    screen: &Screen,
) -> Result<Vec<Vec<EntryRecord>>> {
    let trials: Vec<Trial<T>> = distinct(group)
        .into_iter()
        .map(|case| Trial::new(case, &group[0].target, args.report.seed.wrapping_add(case.index as u64)))
        .collect::<Result<_>>()?;
    let mut records = Vec::new();
    for WithCases { target, cases } in group {
        let subjects: Vec<_> = trials
            .iter()
            .filter(|trial| cases.contains(&trial.case) && target.takes(&trial.problem))
            .map(|trial| OnTarget { trial, target })
            .collect();
        let outcomes = outcomes(session, args, &subjects)?;
        let effort = Effort::new(session, args);
        let of_name = |name: &String| {
            record(name, target.dtype, Some(&target.head_dims.range), effort, outcomes.iter())
        };
        let of_target: Vec<_> = target.names.iter().map(of_name).collect();
        of_target.iter().try_for_each(|record| print(screen, record))?;
        records.push(of_target);
    }
    Ok(records)
}

impl<T: Element> Trial<T> {
    fn new(case: Case, target: &Target, seed: u64) -> Result<Self> {
        let problem = case.problem(T::DTYPE, &target.head_dims)?;
        let inputs = Inputs::random(&problem, seed);
        let expected = Expected::new(&problem, &inputs, CHECKED_ROWS, seed);
        let name = describe(&problem, case.layout());
        Ok(Self { case, problem, inputs, expected, name })
    }
}

/// A case made concrete, for one target.
struct OnTarget<'a, T: Element> {
    trial: &'a Trial<T>,
    target: &'a Target,
}

impl<T: Element> Subject for OnTarget<'_, T> {
    fn name(&self) -> String {
        self.trial.name.clone()
    }

    fn target(&self) -> String {
        self.target.names.join(" + ")
    }

    fn verdict(&self, backend: &Backend, repeats: usize) -> flash_attention::Result<Result<Verdict, String>> {
        let Trial { problem, inputs, expected, .. } = self.trial;
        let plan = self.target.plan(problem, backend)?;
        if let Some(entry) = self.target.missing_from(&plan) {
            return Ok(Err(format!("the planner does not launch {entry}")));
        }
        let prepared = backend.prepare(&plan, inputs.tensors())?;
        let scores = plan.score_roundoff();
        let judged = judged(prepared, |o, lse| expected.judge(problem, scores, o, lse))?;
        repeated(judged, repeats)
    }
}
