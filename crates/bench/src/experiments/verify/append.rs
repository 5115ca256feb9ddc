//! The kernel that appends to a cache: rows that begin at and beside multiples of 16 bytes, pages of any size
//! in random order, embeddings of a part of the columns, and NaN wherever nothing may be written.

use anyhow::Result;
use fa_kernels::entries::{Algorithm, Entry, entries};
use flash_attention::append::{
    AppendInputs, AppendOptions, AppendProblem, AppendTensors, Rotary, RotaryQueries,
};
use flash_attention::{Backend, BackendKind, DType, Element, TensorLayout};

use super::args::{Args, Sizes};
use super::entry::{Effort, EntryRecord, Subject, outcomes, print, record};
use super::repeat::repeated;
use crate::check::Verdict;
use crate::decode::shuffled;
use crate::inputs::normal;
use crate::measure::with_element;
use crate::output::Screen;
use crate::session::Session;

/// An entry, or what the CPU has in its place.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) entry: Option<&'static Entry>,
}

/// One problem, but for the storage type.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Keys of each sequence before.
    used: &'static [i32],
    new: usize,
    kv_heads: usize,
    head_dims: (usize, usize),
    /// Rows of a page.
    page_size: Option<usize>,
    /// Columns that are turned, and whether pairs are neighbours.
    rotary: Option<(usize, bool)>,
    /// Query rows, heads for each of the keys', and whether they are in order.
    queries: Option<(usize, usize, bool)>,
    layout: Layout,
}

/// How rows and heads lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Heads in rows, one behind the other.
    Bshd,
    /// Rows in heads.
    Bhsd,
    /// As [`Self::Bshd`], each head with three columns to spare.
    Apart,
}

const CASE: Case = Case {
    used: &[0, 37, 5],
    new: 1,
    kv_heads: 2,
    head_dims: (64, 64),
    page_size: None,
    rotary: None,
    queries: None,
    layout: Layout::Bshd,
};

const SMALL_CASES: [Case; 9] = [
    CASE,
    Case { rotary: Some((64, false)), queries: Some((1, 4, true)), ..CASE },
    Case { rotary: Some((64, true)), queries: Some((1, 4, false)), page_size: Some(16), ..CASE },
    Case { new: 5, page_size: Some(1), head_dims: (129, 33), layout: Layout::Bhsd, ..CASE },
    Case { new: 19, page_size: Some(7), rotary: Some((32, true)), queries: Some((30, 3, true)), ..CASE },
    Case { new: 3, head_dims: (72, 1), rotary: Some((20, false)), layout: Layout::Apart, ..CASE },
    Case { new: 3, head_dims: (31, 256), rotary: Some((30, true)), layout: Layout::Apart, ..CASE },
    Case { new: 2, head_dims: (256, 96), rotary: Some((128, false)), page_size: Some(256), ..CASE },
    Case { new: 33, kv_heads: 5, queries: Some((33, 2, true)), rotary: Some((2, true)), ..CASE },
];

/// Those of a GPU: many blocks of each tensor.
const LARGE_CASES: [Case; 4] = [
    Case { new: 600, kv_heads: 8, head_dims: (128, 128), page_size: Some(64), ..CASE },
    Case {
        new: 400,
        head_dims: (128, 64),
        rotary: Some((128, false)),
        queries: Some((400, 8, true)),
        ..CASE
    },
    Case { new: 300, head_dims: (97, 97), page_size: Some(13), rotary: Some((96, true)), ..CASE },
    Case { new: 200, head_dims: (576, 512), rotary: Some((64, true)), layout: Layout::Bhsd, ..CASE },
];

/// The targets of a backend, or one of each storage size.
pub(super) fn targets(backend: BackendKind, families: bool) -> Vec<Target> {
    let of_dtype = |dtype: DType| {
        let is_of = |entry: &&Entry| entry.algorithm == Algorithm::Append && entry.dtype == dtype.name();
        let entry = entries().find(is_of).filter(|_| backend != BackendKind::Cpu);
        Target { name: entry.map_or(format!("append_cpu_{dtype}"), |entry| entry.name.into()), dtype, entry }
    };
    let mut targets: Vec<Target> = DType::RESULTS.map(of_dtype).into();
    if families {
        targets.dedup_by_key(|target| target.dtype.bytes());
    }
    targets
}

/// Verifies the targets, adds their records, and returns the number of runs.
pub(super) fn verify(
    session: &Session,
    args: &Args,
    targets: &[Target],
    screen: &Screen,
    records: &mut Vec<EntryRecord>,
) -> Result<usize> {
    let mut runs = 0;
    for target in targets {
        let record = with_element!(target.dtype, verify_target(session, args, target))?;
        print(screen, &record)?;
        runs += record.runs;
        records.push(record);
    }
    Ok(runs)
}

fn verify_target<T: Element>(session: &Session, args: &Args, target: &Target) -> Result<EntryRecord> {
    let large: &[Case] = match args.sizes(session.kind()) {
        Sizes::Small => &[],
        Sizes::Full => &LARGE_CASES,
    };
    let cases = SMALL_CASES.iter().chain(large).enumerate();
    let trial = |(index, case): (usize, &Case)| {
        Trial::<T>::new(case, &target.name, args.report.seed.wrapping_add(index as u64))
    };
    let trials = cases.map(trial).collect::<Result<Vec<_>>>()?;
    let outcomes = outcomes(session, args, &trials)?;
    Ok(record(&target.name, target.dtype, None, Effort::new(session, args), outcomes.iter()))
}

/// A case made concrete.
struct Trial<T> {
    problem: AppendProblem,
    name: String,
    target: String,
    used: &'static [i32],
    page_table: Option<Vec<i32>>,
    /// New K and V, cosines, sines and Q.
    tensors: [Vec<T>; 5],
}

impl Case {
    fn problem(&self, dtype: DType) -> flash_attention::Result<AppendProblem> {
        let batch = self.used.len();
        let longest = self.used.iter().copied().max().unwrap_or(0) as usize + self.new;
        let max_pages = self.page_size.map(|size| longest.div_ceil(size));
        let (outer, rows) = match (self.page_size, max_pages) {
            (Some(size), Some(pages)) => (batch * pages + 1, size),
            _ => (batch, longest),
        };
        let room = max_pages.map_or(rows, |pages| pages * rows);
        let of = |outer, rows, columns| self.layout.of(outer, rows, self.kv_heads, columns);
        let (columns, columns_v) = self.head_dims;
        let tensors = AppendTensors {
            k: of(batch, self.new, columns),
            v: of(batch, self.new, columns_v),
            k_cache: of(outer, rows, columns),
            v_cache: of(outer, rows, columns_v),
        };
        let queries = self.queries.map(|(seq, group, in_order)| {
            let q = self.layout.of(batch, seq, group * self.kv_heads, columns);
            RotaryQueries { q, q_out: q, in_order }
        });
        let ahead = self.queries.map_or(0, |(seq, ..)| seq.saturating_sub(self.new));
        let rotary =
            self.rotary.map(|(dim, interleaved)| Rotary { dim, rows: room + ahead, interleaved, queries });
        AppendProblem::new(tensors, dtype, AppendOptions { max_pages, rotary })
    }
}

impl Layout {
    fn of(self, outer: usize, rows: usize, heads: usize, columns: usize) -> TensorLayout {
        match self {
            Self::Bshd => TensorLayout::bshd(outer, rows, heads, columns),
            Self::Bhsd => TensorLayout::bhsd(outer, rows, heads, columns),
            Self::Apart => {
                TensorLayout { head_dim: columns, ..TensorLayout::bshd(outer, rows, heads, columns + 3) }
            }
        }
    }
}

impl<T: Element> Trial<T> {
    fn new(case: &Case, target: &str, seed: u64) -> Result<Self> {
        let problem = case.problem(T::DTYPE)?;
        let AppendTensors { k, v, k_cache, .. } = problem.tensors();
        let rotary = problem.options().rotary;
        let table = |of: fn(f64) -> f64| -> Vec<T> {
            let Some(Rotary { dim, rows, .. }) = rotary else { return Vec::new() };
            let angle = |index: usize| {
                let (row, pair) = (index / (dim / 2), index % (dim / 2));
                row as f64 * 1e4_f64.powf(-2.0 * pair as f64 / dim as f64)
            };
            (0..rows * (dim / 2)).map(|index| T::from_f32(of(angle(index)) as f32)).collect()
        };
        let q = problem.queries().map_or(0, |queries| queries.q.span());
        let tensors = [
            normal(seed, 0, k.span()),
            normal(seed, 1, v.span()),
            table(f64::cos),
            table(f64::sin),
            normal(seed, 2, q),
        ];
        let entries = problem.options().max_pages.map(|pages| pages * k.batch);
        let page_table =
            entries.map(|entries| shuffled(k_cache.batch, seed).into_iter().take(entries).collect());
        let name = format!("{case:?}");
        Ok(Self { problem, name, target: target.to_owned(), used: case.used, page_table, tensors })
    }
}

impl<T: Element> Subject for Trial<T> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn target(&self) -> String {
        self.target.clone()
    }

    fn verdict(&self, backend: &Backend, repeats: usize) -> flash_attention::Result<Result<Verdict, String>> {
        let Self { problem, used, page_table, tensors: [k, v, cos, sin, q], .. } = self;
        let inputs = AppendInputs { k, v, seqused_k: used, page_table: page_table.as_deref(), cos, sin, q };
        let plan = backend.plan(problem, &())?;
        let mut prepared = backend.prepare(&plan, inputs)?;
        prepared.poison()?;
        let expected = problem.expected(&inputs, prepared.outputs()?);
        prepared.run()?;
        let report = expected.judge(problem, prepared.outputs()?);
        let rows = used.len() * problem.tensors().k.seqlen;
        repeated((prepared, Verdict::of_product(report.rotated, report.wrong, rows)), repeats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_a_problem() {
        for case in SMALL_CASES.iter().chain(&LARGE_CASES) {
            case.problem(DType::F16).unwrap();
        }
    }

    #[test]
    fn one_of_each_storage_size_is_a_family() {
        let names: Vec<_> = targets(BackendKind::Sim, true).into_iter().map(|target| target.name).collect();
        assert_eq!(names, ["append_f32", "append_f16"]);
    }
}
