//! What only a GPU has the time and the memory for, one problem of each: last tiles that the hardware deals
//! out, tiles in an order that the device finds, a page for each key of a long cache, and tensors of more
//! than 2^31 elements.

use anyhow::Result;
use fa_kernels::entries::Algorithm;
use flash_attention::decode::DecodeRequest;
use flash_attention::{
    Backend, BackendKind, DType, Device, Element, Error, Kernel, Options, Plan, Problem, Request,
    TensorLayout, Tensors,
};
use half::f16;

use super::args::{Args, Sizes};
use super::entry::{CHECKED_ROWS, Effort, EntryRecord, SkippedRecord, Subject, outcome, print, record};
use super::repeat::repeated;
use crate::check::Expected;
use crate::check::Verdict;
use crate::decode::{Cache, Shape, describe as describe_decode};
use crate::inputs::Inputs;
use crate::measure::{judged, with_element};
use crate::output::Screen;
use crate::problem::{Layout, describe};
use crate::session::Session;

/// A problem of attention, and what it is there for.
#[derive(Debug)]
struct Large {
    name: &'static str,
    problem: Problem,
    request: Request,
    purpose: Purpose,
}

/// What a plan must do, where its blocks are persistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Deal its last tiles out as blocks.
    TailTiles,
    /// Put tiles into an order on the device, which alone has the lengths.
    TileSchedule,
    /// Nothing else: tensors have 2^31 elements or more.
    Elements,
}

/// The entries that run with these problems alone.
#[cfg(test)]
pub(super) const ENTRIES: [&str; 1] = ["tile_schedule"];

impl Large {
    /// Its plan, by `plan` of a problem.
    fn planned(
        &self,
        plan: impl FnOnce(&Problem) -> flash_attention::Result<Plan>,
    ) -> flash_attention::Result<Plan> {
        let problem = &self.problem;
        match (self.purpose, problem.cu_seqlens()) {
            (Purpose::TileSchedule, Some((q, k))) => {
                plan(&problem.on_device((problem.seqlen_q(), problem.seqlen_k()))?)?.with_cu_seqlens(q, k)
            }
            _ => plan(problem),
        }
    }
}

/// Keys of the paged cache, and so its pages.
const PAGES: usize = 1 << 20;

const PAGED: &str = "large_page_for_each_key";

/// The problems of attention.
///
/// # Errors
/// When one is not valid, which a test rules out.
fn problems() -> flash_attention::Result<Vec<Large>> {
    let f16 = DType::F16;
    let causal = || Options { causal: true, ..Options::default() };
    let dense = |layout: TensorLayout| Tensors { q: layout, k: layout, v: layout, o: layout };
    // Lengths from 128 to 4,000 rows, in no order.
    let lengths = (0..48_u32).map(|index| 128 + index * 1_237 % 3_873);
    let offsets: Vec<u32> = [0]
        .into_iter()
        .chain(lengths.scan(0, |end, length| {
            *end += length;
            Some(*end)
        }))
        .collect();
    let rows = offsets.last().map_or(0, |&rows| rows as usize);
    let packed = dense(TensorLayout::bshd(1, rows, 16, 128));
    // 128 · 1,032 rows of 128 · 128 elements are 2^31 and 2^24 more.
    let beyond = TensorLayout::bshd(128, 1032, 128, 128);
    let shared = TensorLayout::bshd(128, 1032, 1, 128);
    let of_few_heads = Tensors { k: shared, v: shared, ..dense(beyond) };
    let sm80 = Request { kernel: Some(Kernel::ForwardSm80), ..Request::default() };
    Ok(vec![
        Large {
            name: "large_tail_tiles_causal",
            problem: Problem::new(dense(TensorLayout::bshd(2, 8192, 16, 128)), f16, causal())?,
            request: Request::default(),
            purpose: Purpose::TailTiles,
        },
        Large {
            name: "large_tail_tiles_packed",
            problem: Problem::varlen(packed, f16, causal(), &offsets, &offsets)?,
            request: Request::default(),
            purpose: Purpose::TailTiles,
        },
        Large {
            name: "large_tile_schedule",
            problem: Problem::varlen(packed, f16, causal(), &offsets, &offsets)?,
            request: Request::default(),
            purpose: Purpose::TileSchedule,
        },
        Large {
            name: "large_elements_f16",
            problem: Problem::new(dense(beyond), f16, Options::default())?,
            request: Request::default(),
            purpose: Purpose::Elements,
        },
        Large {
            name: "large_elements_bf16_forward_sm80",
            problem: Problem::new(of_few_heads, DType::Bf16, causal())?,
            request: sm80,
            purpose: Purpose::Elements,
        },
    ])
}

/// Whether a plan has more persistent blocks than multiprocessors: the last tiles are a block each.
fn deals_out(plan: &Plan, device: &Device) -> bool {
    plan.launches()
        .iter()
        .any(|launch| launch.entry.algorithm.is_persistent() && launch.grid > device.multiprocessors)
}

/// Whether a plan's first launch puts tiles into an order.
fn finds_order(plan: &Plan) -> bool {
    plan.launches().first().is_some_and(|launch| launch.entry.algorithm == Algorithm::TileSchedule)
}

/// Whether the arguments ask for these.
fn selected(session: &Session, args: &Args, name: &str) -> bool {
    session.kind() == BackendKind::Cuda
        && args.sizes(session.kind()) == Sizes::Full
        && !args.families
        && args.kernel.is_none()
        && args.entry.as_ref().is_none_or(|text| name.contains(text))
}

/// Whether `--entry` asks for some of these, and maybe for nothing else.
pub(super) fn any_selected(session: &Session, args: &Args) -> Result<bool> {
    let problems = problems()?;
    let mut names = problems.iter().map(|large| large.name).chain([PAGED]);
    Ok(names.any(|name| selected(session, args, name)))
}

/// Verifies them, adds their records or why they were left out, and returns the number of runs.
pub(super) fn verify(
    session: &Session,
    args: &Args,
    screen: &Screen,
    records: &mut Vec<EntryRecord>,
    skipped: &mut Vec<SkippedRecord>,
) -> Result<usize> {
    let mut runs = 0;
    for large in problems()?.iter().filter(|large| selected(session, args, large.name)) {
        runs +=
            with_element!(large.problem.dtype(), forward(session, args, large, screen, records, skipped))?;
    }
    if selected(session, args, PAGED) {
        runs += paged(session, args, screen, records, skipped)?;
    }
    Ok(runs)
}

/// The problem and its reference; dropped before the next one's, which may fill the memory.
struct OnLarge<'a, T: Element> {
    large: &'a Large,
    inputs: Inputs<T>,
    expected: Expected<T>,
}

fn forward<T: Element>(
    session: &Session,
    args: &Args,
    large: &Large,
    screen: &Screen,
    records: &mut Vec<EntryRecord>,
    skipped: &mut Vec<SkippedRecord>,
) -> Result<usize> {
    let problem = &large.problem;
    if let Err(error) = fits(session, &large.problem, &large.request) {
        return skip(large.name, error, skipped);
    }
    let inputs = Inputs::<T>::random(problem, args.report.seed);
    let expected = Expected::new(problem, &inputs, CHECKED_ROWS, args.report.seed);
    let subject = OnLarge { large, inputs, expected };
    run(session, args, (large.name, T::DTYPE), &subject, screen, records, skipped)
}

/// Whether the machine has the memory, and the device a kernel.
fn fits(session: &Session, problem: &Problem, request: &Request) -> flash_attention::Result<()> {
    session.check_tensors(problem)?;
    let plan = session.backend.plan(problem, request)?;
    session.check_workspace(problem, &plan)
}

/// Leaves a problem out for want of memory or of a kernel; passes other errors on.
fn skip(name: &str, error: Error, skipped: &mut Vec<SkippedRecord>) -> Result<usize> {
    match error {
        Error::OutOfMemory { .. } | Error::KernelNeedsDevice { .. } => {
            skipped.push(SkippedRecord { entry: name.to_owned(), reason: error.to_string() });
            Ok(0)
        }
        error => Err(error.into()),
    }
}

fn run(
    session: &Session,
    args: &Args,
    (name, dtype): (&str, DType),
    subject: &impl Subject,
    screen: &Screen,
    records: &mut Vec<EntryRecord>,
    skipped: &mut Vec<SkippedRecord>,
) -> Result<usize> {
    let outcome = match outcome(subject, &session.backend, args.repeats(session.kind()), "") {
        Ok(outcome) => [outcome],
        // Of the device's memory others may hold a part.
        Err(error) => return error.downcast().map_or_else(Err, |error| skip(name, error, skipped)),
    };
    let record = record(name, dtype, None, Effort::new(session, args), outcome.iter());
    print(screen, &record)?;
    records.push(record);
    Ok(outcome.len())
}

impl<T: Element> Subject for OnLarge<'_, T> {
    fn name(&self) -> String {
        describe(&self.large.problem, Layout::Bshd)
    }

    fn target(&self) -> String {
        self.large.name.to_owned()
    }

    fn verdict(&self, backend: &Backend, repeats: usize) -> flash_attention::Result<Result<Verdict, String>> {
        let Large { problem, request, purpose, .. } = self.large;
        let plan = self.large.planned(|problem| backend.plan(problem, request))?;
        let persistent = plan.launches().iter().any(|launch| launch.entry.algorithm.is_persistent());
        if *purpose == Purpose::TailTiles && persistent && !deals_out(&plan, backend.device()) {
            return Ok(Err("the planner deals no last tiles out".to_owned()));
        }
        if *purpose == Purpose::TileSchedule && persistent && !finds_order(&plan) {
            return Ok(Err("the planner puts no tiles into an order".to_owned()));
        }
        let prepared = backend.prepare(&plan, self.inputs.tensors())?;
        let scores = plan.score_roundoff();
        let judged = judged(prepared, |o, lse| self.expected.judge(problem, scores, o, lse))?;
        repeated(judged, repeats)
    }
}

/// Two sequences of a long cache with a page for each key, in random order.
const fn cache() -> Shape {
    Shape {
        batch: 2,
        heads: 8,
        kv_heads: 1,
        head_dim: 64,
        seq_q: 1,
        seq_k: PAGES,
        page_size: Some(1),
        row_multiple: 1,
        tree_mask: false,
        latent: false,
        dtype: DType::F16,
        causal: false,
        softmax_scale: None,
    }
}

struct OnPages {
    problem: flash_attention::decode::DecodeProblem,
    cache: Cache<f16>,
    expected: Expected<f16>,
}

fn paged(
    session: &Session,
    args: &Args,
    screen: &Screen,
    records: &mut Vec<EntryRecord>,
    skipped: &mut Vec<SkippedRecord>,
) -> Result<usize> {
    let problem = cache().problem()?;
    if let Err(error) = session.check_tensors(problem.dense()) {
        return skip(PAGED, error, skipped);
    }
    let seed = args.report.seed;
    let cache = Cache::random(&problem, Some(vec![PAGES as i32, PAGES as i32 - 777]), seed);
    let expected = Expected::of_decode(&problem, &cache.inputs(), CHECKED_ROWS, seed);
    let subject = OnPages { problem, cache, expected };
    run(session, args, (PAGED, DType::F16), &subject, screen, records, skipped)
}

impl Subject for OnPages {
    fn name(&self) -> String {
        describe_decode(&self.problem)
    }

    fn target(&self) -> String {
        PAGED.to_owned()
    }

    fn verdict(&self, backend: &Backend, repeats: usize) -> flash_attention::Result<Result<Verdict, String>> {
        let plan = backend.plan(&self.problem, &DecodeRequest::default())?;
        let prepared = backend.prepare(&plan, self.cache.inputs())?;
        let (dense, scores) = (self.problem.dense(), plan.score_roundoff());
        repeated(judged(prepared, |o, lse| self.expected.judge(dense, scores, o, lse))?, repeats)
    }
}

#[cfg(test)]
mod tests {
    use flash_attention::Plan;
    use flash_attention::sim::Sim;

    use super::*;

    /// An H200, as the planner sees it.
    fn hopper() -> Device {
        Device {
            backend: BackendKind::Cuda,
            compute_capability: 90,
            multiprocessors: 132,
            ..Sim::new(0).device().clone()
        }
    }

    #[test]
    fn the_plans_are_what_the_problems_are_there_for() {
        let device = hopper();
        for large in problems().unwrap() {
            let plan = large.planned(|problem| Plan::new(problem, &device, &large.request)).unwrap();
            let (name, purpose) = (large.name, large.purpose);
            assert_eq!(
                deals_out(&plan, &device),
                purpose == Purpose::TailTiles,
                "{name}: {:?}",
                plan.reasons()
            );
            assert_eq!(finds_order(&plan), purpose == Purpose::TileSchedule, "{name}: {:?}", plan.reasons());
            if purpose != Purpose::Elements {
                assert_eq!(plan.kernel(), Kernel::ForwardSm90, "{}", large.name);
            } else {
                let tensors = large.problem.tensors();
                assert!(tensors.q.span() > 1 << 31 && tensors.o.span() > 1 << 31, "{}", large.name);
                assert_eq!(plan.workspace_bytes(), 0, "{}: nothing is copied", large.name);
            }
        }
    }

    #[test]
    fn the_cache_has_a_page_for_each_key() {
        let problem = cache().problem().unwrap();
        assert_eq!((problem.k().batch, problem.k().seqlen), (2 * PAGES, 1));
        assert_eq!(problem.max_pages(), Some(PAGES));
        let plan = Plan::new(&problem, &hopper(), &DecodeRequest::default()).unwrap();
        assert!(plan.launches().len() == 2, "one sequence is split over many blocks: {:?}", plan.reasons());
    }

    #[test]
    fn what_does_not_fit_is_left_out_with_the_reason() {
        let mut skipped = Vec::new();
        let error = Error::OutOfMemory {
            what: "Q, K, V, O and lse",
            needed: 17_000_000_000,
            available: 8_000_000_000,
            device: "a small GPU".to_owned(),
        };
        assert_eq!(skip("large_elements_f16", error, &mut skipped).unwrap(), 0);
        assert!(skipped[0].reason.contains("a small GPU"), "{}", skipped[0].reason);
        let other = Error::KernelNotOnBackend { kernel: "k", backend: "b", available: String::new() };
        assert!(skip("large_elements_f16", other, &mut skipped).is_err(), "what speaks against the machine");
    }
}
