//! `merge`: a prefix that sequences share and what follows it, by two calls and a merge, against attention
//! over the whole.

use anyhow::Result;
use fa_kernels::entries::{Algorithm, Entry, entries};
use flash_attention::forward::{MAX_HEAD_DIM, Outputs};
use flash_attention::merge::{MergePart, MergeProblem, PartLayout};
use flash_attention::{
    Backend, BackendKind, DType, Element, Options, Plan, Problem, Request, TensorLayout, Tensors,
};
use half::{bf16, f16};

use super::args::{Args, Sizes};
use super::entry::{CHECKED_ROWS, Effort, EntryRecord, Subject, outcomes, print, record};
use super::repeat::repeated;
use crate::check::{Expected, Verdict};
use crate::inputs::normal;
use crate::measure::judged;
use crate::output::Screen;
use crate::session::Session;

/// B, Sq, H, Hkv, keys of the prefix, keys behind it, D.
type Case = [usize; 7];

const SMALL_CASES: [Case; 3] = [[3, 1, 4, 2, 40, 17, 64], [2, 3, 2, 1, 9, 70, 33], [1, 5, 1, 1, 1, 1, 1]];
const CASES: [Case; 4] = [
    [64, 1, 32, 8, 4096, 500, 128],
    [7, 3, 8, 8, 1000, 33, 256],
    [3, 16, 6, 2, 77, 1025, 65],
    [1, 1, 1, 1, 1, 1, 1],
];

/// The entries of a backend, or the least one.
pub(super) fn targets(backend: BackendKind, families: bool) -> Vec<&'static Entry> {
    let all = entries().filter(|entry| backend != BackendKind::Cpu && entry.algorithm == Algorithm::Merge);
    let mut targets: Vec<_> = all.collect();
    if families {
        targets.dedup_by_key(|entry| entry.dtype == "f32");
    }
    targets
}

/// Verifies the targets, adds their records, and returns the number of runs.
pub(super) fn verify(
    session: &Session,
    args: &Args,
    targets: &[&'static Entry],
    screen: &Screen,
    records: &mut Vec<EntryRecord>,
) -> Result<usize> {
    let mut runs = 0;
    for entry in targets {
        runs += match entry.dtype {
            "f32" => verify_entry::<f32>(session, args, entry, screen, records)?,
            "f16" => verify_entry::<f16>(session, args, entry, screen, records)?,
            _ => verify_entry::<bf16>(session, args, entry, screen, records)?,
        };
    }
    Ok(runs)
}

fn verify_entry<T: Element<Output = T>>(
    session: &Session,
    args: &Args,
    entry: &'static Entry,
    screen: &Screen,
    records: &mut Vec<EntryRecord>,
) -> Result<usize> {
    let small = args.sizes(session.kind()) == Sizes::Small;
    let cases: &[Case] = if small { &SMALL_CASES } else { &CASES };
    let seeded = cases.iter().zip(args.report.seed..);
    let subjects =
        seeded.map(|(&case, seed)| Cascade::<T>::new(case, entry, seed)).collect::<Result<Vec<_>>>()?;
    let outcomes = outcomes(session, args, &subjects)?;
    let head_dims = 1..=MAX_HEAD_DIM;
    let record = record(entry.name, T::DTYPE, Some(&head_dims), Effort::new(session, args), outcomes.iter());
    print(screen, &record)?;
    records.push(record);
    Ok(outcomes.len())
}

/// Sequences that share a prefix, for an entry.
struct Cascade<T: Element> {
    case: Case,
    entry: &'static Entry,
    q: Vec<T>,
    /// K and V of the prefix, [1, keys, Hkv, D].
    prefix: [Vec<T>; 2],
    /// K and V behind it, [B, keys, Hkv, D].
    suffix: [Vec<T>; 2],
    whole: Problem,
    expected: Expected<T>,
}

impl<T: Element<Output = T>> Cascade<T> {
    fn new(case: Case, entry: &'static Entry, seed: u64) -> Result<Self> {
        let [batch, rows, heads, kv_heads, shared, own, head_dim] = case;
        let row = kv_heads * head_dim;
        let q = normal(seed, 0, batch * rows * heads * head_dim);
        let prefix = [1, 2].map(|tensor| normal::<T>(seed, tensor, shared * row));
        let suffix = [3, 4].map(|tensor| normal::<T>(seed, tensor, batch * own * row));
        let joined = [0, 1].map(|index| {
            let of_sequence = |own: &[T]| [&prefix[index], own].concat();
            suffix[index].chunks_exact(own * row).flat_map(of_sequence).collect::<Vec<_>>()
        });
        let whole = problem::<T>([batch, rows, heads, head_dim], (batch, shared + own, kv_heads))?;
        let expected = Expected::of_tensors(&whole, (&q, &joined[0], &joined[1]), CHECKED_ROWS, seed);
        Ok(Self { case, entry, q, prefix, suffix, whole, expected })
    }

    /// O and lse of a call.
    fn part(
        &self,
        backend: &Backend,
        problem: &Problem,
        [k, v]: &[Vec<T>; 2],
    ) -> flash_attention::Result<(Vec<T>, Vec<f32>)> {
        let plan = backend.plan(problem, &Request::default())?;
        let (mut o, mut lse) = (vec![T::default(); self.q.len()], vec![0.0; problem.lse_len()]);
        backend.run(&plan, (&self.q, k, v), Outputs { o: &mut o, lse: Some(&mut lse) })?;
        Ok((o, lse))
    }
}

/// Attention without a mask of Q, [B, Sq, H, D], over so many keys of so many sequences.
fn problem<T: Element>(
    [batch, rows, heads, head_dim]: [usize; 4],
    (sequences, keys, kv_heads): (usize, usize, usize),
) -> flash_attention::Result<Problem> {
    let q = TensorLayout::bshd(batch, rows, heads, head_dim);
    let k = TensorLayout::bshd(sequences, keys, kv_heads, head_dim);
    Problem::new(Tensors { q, k, v: k, o: q }, T::DTYPE, Options::default())
}

impl<T: Element<Output = T>> Subject for Cascade<T> {
    fn name(&self) -> String {
        let [batch, rows, heads, kv_heads, shared, own, head_dim] = self.case;
        format!("B={batch} Sq={rows} H={heads} Hkv={kv_heads} Sk={shared}+{own} D={head_dim}")
    }

    fn target(&self) -> String {
        self.entry.name.to_owned()
    }

    fn verdict(&self, backend: &Backend, repeats: usize) -> flash_attention::Result<Result<Verdict, String>> {
        let [batch, rows, heads, kv_heads, shared, own, head_dim] = self.case;
        let folded = problem::<T>([1, batch * rows, heads, head_dim], (1, shared, kv_heads))?;
        let each = problem::<T>([batch, rows, heads, head_dim], (batch, own, kv_heads))?;
        let parts = [self.part(backend, &folded, &self.prefix)?, self.part(backend, &each, &self.suffix)?];
        let o = self.whole.tensors().o;
        let merge = MergeProblem::new(&[PartLayout::folded(o), PartLayout::new(o)], o, T::DTYPE)?;
        let plan = Plan::of_entry(&merge, backend.device(), self.entry)?;
        let parts = parts.each_ref().map(|(o, lse)| MergePart { o, lse });
        let prepared = backend.prepare(&plan, &parts)?;
        let judged =
            judged(prepared, |o, lse| self.expected.judge(&self.whole, DType::F32.roundoff(), o, lse))?;
        repeated(judged, repeats)
    }
}
