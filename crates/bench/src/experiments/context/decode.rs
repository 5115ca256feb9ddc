//! Decoding over a cache that GPUs share out: one query row for each sequence.

use anyhow::{Context as _, Result};
use flash_attention::accuracy::Accuracy;
use flash_attention::cuda::{Cuda, DeviceMemory};
use flash_attention::decode::{
    DecodeAddresses, DecodeInputs, DecodeOptions, DecodePlan, DecodeProblem, DecodeRequest,
};
use flash_attention::distributed::{LocalDecode, RankDecode};
use flash_attention::reference::{Reference, Row};
use flash_attention::{Element, Plan, TensorLayout, Tensors};
use serde::Serialize;

use super::team::{PATIENCE, Work};
use super::tensors::{PATTERN, Places, poison, write};
use super::{Args, LAUNCHES, Ranks, in_turns};
use crate::bytes;
use crate::inputs::normal;
use crate::measure::with_output_element;
use crate::problem::{Layout, describe};
use crate::table;

#[derive(Clone, Debug, Serialize)]
pub(super) struct DecodeRow {
    problem: String,
    seq: usize,
    /// Of K and V.
    bytes: f64,
    /// One GPU with the whole cache.
    one_s: f64,
    /// The slowest of all GPUs, each with the whole cache.
    independent_s: f64,
    /// All GPUs together.
    together_s: f64,
    turns: usize,
    /// one / (GPUs · together).
    of_linear: f64,
    /// independent / (GPUs · together).
    of_independent: f64,
    bytes_per_second_of_gpu: f64,
    /// Beside the tensors, of the rank that takes the most.
    extra_bytes: usize,
    pub(super) reasons: Vec<String>,
    checked_runs: usize,
    /// The largest error of the rows that were compared with attention in f64, over what it may be.
    of_bound: f64,
    /// The largest difference from one GPU's O, over the same.
    difference_of_bound: f64,
    pub(super) failure: Option<String>,
}

/// Titles of [`cells`].
pub(super) const TITLES: [&str; 10] = [
    "problem",
    "one GPU",
    "each by itself",
    "together",
    "of linear",
    "GB/s a GPU",
    "turns",
    "extra",
    "error, of what it may be",
    "difference from one GPU",
];

pub(super) fn cells(row: &DecodeRow) -> Vec<String> {
    let ratio = |value: f64| if row.checked_runs > 0 { format!("{value:.2}") } else { "–".to_owned() };
    vec![
        row.problem.clone(),
        table::seconds(row.one_s),
        table::seconds(row.independent_s),
        table::seconds(row.together_s),
        format!("{:.1} %", 100.0 * row.of_linear),
        format!("{:.0}", row.bytes_per_second_of_gpu / 1e9),
        row.turns.to_string(),
        table::bytes(row.extra_bytes as u64),
        match &row.failure {
            None => ratio(row.of_bound),
            Some(failure) => format!("FAIL: {failure}"),
        },
        ratio(row.difference_of_bound),
    ]
}

/// Measures decoding over so many keys.
pub(super) fn row(args: &Args, ranks: &Ranks, seq: usize) -> Result<DecodeRow> {
    with_output_element!(args.dtype, of_keys(args, ranks, seq))
}

/// Bytes that a GPU may be expected to read in a second, for how often a side runs in a turn.
const BANDWIDTH: f64 = 3.5e12;

fn of_keys<T: Element<Output = T>>(args: &Args, ranks: &Ranks, seq: usize) -> Result<DecodeRow> {
    let pattern = [0, 1, 2].map(|tensor| normal::<T>(args.report.seed, tensor, PATTERN));
    let whole = problem(args, seq)?;
    // All ranks have room for as many; the last have fewer, where these do not divide the keys.
    let room = seq.div_ceil(args.gpus);
    let of_rank = problem(args, room)?;
    let request = DecodeRequest::default();
    let part = |gpu: &Cuda, rank: usize| {
        let first = (rank * room).min(seq);
        Cache::new(gpu, &of_rank, (first..(first + room).min(seq), seq), &pattern)
    };
    let (plan, parts) = match ranks {
        Ranks::Local(gpus) => {
            let plan = LocalDecode::new(gpus, &of_rank, &request)?;
            let parts = gpus.iter().enumerate().map(|(rank, gpu)| part(gpu, rank));
            (TeamPlan::Local(Box::new(plan)), parts.collect::<Result<_>>()?)
        }
        Ranks::Process(group) => {
            let plan = group.plan_decode(&of_rank, &request)?;
            (TeamPlan::Rank(Box::new(plan)), vec![part(group.cuda(), group.rank())?])
        }
    };
    let mut team = Team { plan, parts };
    let on_gpu = |gpu: &Cuda| {
        let plan = Plan::new(&whole, gpu.device(), &request)?;
        Whole::new(gpu, plan, Cache::new(gpu, &whole, (0..seq, seq), &pattern)?)
    };
    let wholes = ranks.each_gpu(args).iter().map(on_gpu).collect::<Result<Vec<_>>>();
    let mut wholes = wholes.context("one GPU's tensors")?;
    let verdict = match args.check {
        0 => Verdict::default(),
        runs => judge(&mut team, &mut wholes[0], Expected::new(&whole, &pattern)?, runs)?,
    };
    let bytes = whole.cache_bytes(&DecodeInputs::<T>::new(&[], &[], &[])) as f64;
    let once = bytes / BANDWIDTH + LAUNCHES;
    let ([one_s, independent_s, together_s], turns) = in_turns(args, ranks.group(), (&team, &wholes), once)?;
    let count = args.count();
    Ok(DecodeRow {
        problem: describe(whole.dense(), Layout::Bshd),
        seq,
        bytes,
        one_s,
        independent_s,
        together_s,
        turns,
        of_linear: one_s / (count * together_s),
        of_independent: independent_s / (count * together_s),
        bytes_per_second_of_gpu: bytes / together_s / count,
        extra_bytes: team.plan.extra_bytes(),
        reasons: team.plan.reasons().to_vec(),
        checked_runs: verdict.runs,
        of_bound: verdict.of_bound,
        difference_of_bound: verdict.difference_of_bound,
        failure: verdict.failure,
    })
}

/// One query row for each sequence of so many keys.
fn problem(args: &Args, seq: usize) -> Result<DecodeProblem> {
    let of = |rows, heads| Layout::Bshd.tensor(args.batch, rows, heads, args.dim);
    let (q, k) = (of(1, args.heads), of(seq, args.kv_heads.unwrap_or(args.heads)));
    Ok(DecodeProblem::new(Tensors { q, k, v: k, o: q }, args.dtype, DecodeOptions::default())?)
}

/// A problem's tensors on a GPU, of which K and V have some of the keys.
struct Cache {
    memory: DeviceMemory,
    places: Places,
    /// int32 `[B]`, where there is room for more keys than there are.
    lengths: Option<DeviceMemory>,
    /// Elements of O, and of lse.
    lens: [usize; 2],
}

impl Cache {
    /// The keys of a range, of so many in all, in a cache of the problem's shape.
    fn new<T: Element>(
        cuda: &Cuda,
        problem: &DecodeProblem,
        (keys, all): (std::ops::Range<usize>, usize),
        pattern: &[Vec<T>; 3],
    ) -> Result<Self> {
        let dense = problem.dense();
        let (tensors, lens) = (dense.tensors(), [dense.tensors().o.span(), dense.lse_len()]);
        let places = Places::new(tensors, dense.lse_len(), T::DTYPE.bytes());
        let mut memory = cuda.device_memory(places.end)?;
        write(&mut memory, places.q, &pattern[0], 0, tensors.q.span())?;
        for (layout, at, pattern) in [(tensors.k, places.k, &pattern[1]), (tensors.v, places.v, &pattern[2])]
        {
            // What no sequence uses is NaN.
            memory.fill(at, layout.span() * T::DTYPE.bytes(), 0xff)?;
            for batch in 0..layout.batch {
                let from = (batch * all + keys.start) * layout.stride_seq;
                let to = at + layout.row(batch, 0, 0) * T::DTYPE.bytes();
                write(&mut memory, to, pattern, from, keys.len() * layout.stride_seq)?;
            }
        }
        // The copies are over before a launch on another stream.
        memory.read(0, &mut [0])?;
        let lengths = if keys.len() == dense.seqlen_k() {
            None
        } else {
            let mut lengths = cuda.device_memory(4 * dense.batch())?;
            lengths.write(0, &(keys.len() as i32).to_ne_bytes().repeat(dense.batch()))?;
            lengths.read(0, &mut [0])?;
            Some(lengths)
        };
        Ok(Self { memory, places, lengths, lens })
    }

    fn addresses(&self) -> DecodeAddresses {
        let at = |offset: usize| self.memory.address() + offset as u64;
        DecodeAddresses {
            q: at(self.places.q),
            k: at(self.places.k),
            v: at(self.places.v),
            o: at(self.places.o),
            lse: Some(at(self.places.lse)),
            seqused_k: self.lengths.as_ref().map(DeviceMemory::address),
            ..DecodeAddresses::default()
        }
    }

    fn poison(&mut self) -> Result<()> {
        poison(&mut self.memory, self.places)
    }

    fn results<T: Element>(&self) -> Result<Results<T>> {
        let (mut o, mut lse) = (vec![T::default(); self.lens[0]], vec![0.0_f32; self.lens[1]]);
        self.memory.read(self.places.o, bytes::of_mut(&mut o))?;
        self.memory.read(self.places.lse, bytes::of_mut(&mut lse))?;
        Ok(Results { o, lse })
    }
}

/// O and lse.
struct Results<T> {
    o: Vec<T>,
    lse: Vec<f32>,
}

/// One GPU with all keys.
struct Whole {
    cuda: Cuda,
    plan: DecodePlan,
    cache: Cache,
    workspace: Option<DeviceMemory>,
}

impl Whole {
    fn new(cuda: &Cuda, plan: DecodePlan, cache: Cache) -> Result<Self> {
        cuda.load(&plan)?;
        let bytes = plan.workspace_bytes() as usize;
        let workspace = (bytes > 0).then(|| cuda.device_memory(bytes)).transpose()?;
        Ok(Self { cuda: cuda.clone(), plan, cache, workspace })
    }
}

impl Work for Whole {
    fn enqueue(&self) -> Result<()> {
        let workspace = self.workspace.as_ref().map_or(0, DeviceMemory::address);
        let addresses = DecodeAddresses { workspace, ..self.cache.addresses() };
        // SAFETY: the tensors are as long as the problem says, and live until the stream's work is over.
        unsafe { self.cuda.enqueue(&self.plan, &addresses, self.cache.memory.stream()) }?;
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        Ok(self.cache.memory.read(0, &mut [0])?)
    }
}

/// The ranks of this process, with their keys.
struct Team<'a> {
    plan: TeamPlan<'a>,
    parts: Vec<Cache>,
}

enum TeamPlan<'a> {
    /// All of them.
    Local(Box<LocalDecode>),
    /// One, beside others in processes of their own.
    Rank(Box<RankDecode<'a>>),
}

impl TeamPlan<'_> {
    fn reasons(&self) -> &[String] {
        match self {
            Self::Local(ranks) => ranks.reasons(),
            Self::Rank(rank) => rank.reasons(),
        }
    }

    fn extra_bytes(&self) -> usize {
        match self {
            Self::Local(ranks) => {
                (0..ranks.world()).map(|rank| ranks.memory_bytes(rank)).max().unwrap_or_default()
            }
            Self::Rank(rank) => rank.memory_bytes(),
        }
    }
}

impl Work for Team<'_> {
    fn enqueue(&self) -> Result<()> {
        let addresses: Vec<_> = self.parts.iter().map(Cache::addresses).collect();
        let streams: Vec<_> = self.parts.iter().map(|part| part.memory.stream()).collect();
        match &self.plan {
            TeamPlan::Local(ranks) => {
                // SAFETY: the tensors are as long as the problem says, and live until the streams' work is
                // over; each stream is that of the call before.
                unsafe { ranks.decode(&addresses, &streams) }?;
            }
            TeamPlan::Rank(rank) => {
                for (addresses, &stream) in addresses.iter().zip(&streams) {
                    // SAFETY: as above.
                    unsafe { rank.decode(addresses, stream) }?;
                }
            }
        }
        Ok(())
    }

    fn wait(&self) -> Result<()> {
        match &self.plan {
            TeamPlan::Local(ranks) => Ok(ranks.wait()?),
            TeamPlan::Rank(rank) => Ok(rank.wait(PATIENCE)?),
        }
    }
}

/// What a head must be near to: attention in f64.
struct Expected<T: Element> {
    /// Sequence and query head.
    rows: Vec<(usize, usize)>,
    exact: Vec<Reference>,
    standard: Vec<Vec<T>>,
}

impl<T: Element<Output = T>> Expected<T> {
    /// Of the first sequence's first head, and of the last one's last.
    fn new(whole: &DecodeProblem, pattern: &[Vec<T>; 3]) -> Result<Self> {
        let dense = whole.dense();
        let mut expected = Self { rows: Vec::new(), exact: Vec::new(), standard: Vec::new() };
        for (batch, head) in [(0, 0), (dense.batch() - 1, dense.heads() - 1)] {
            let gather = |layout: &TensorLayout, head: usize, pattern: &[T]| -> Vec<T> {
                let first = |row| layout.row(batch, row, head);
                let row = |row| (first(row)..first(row) + layout.head_dim).map(|at| pattern[at % PATTERN]);
                (0..layout.seqlen).flat_map(row).collect()
            };
            let (tensors, kv_head) = (dense.tensors(), head / dense.group());
            let q = gather(&tensors.q, head, &pattern[0]);
            let [k, v] = [(whole.k(), 1), (whole.v(), 2)]
                .map(|(layout, tensor)| gather(layout, kv_head, &pattern[tensor]));
            let one = |layout: &TensorLayout| TensorLayout::bshd(1, layout.seqlen, 1, layout.head_dim);
            let Tensors { q: q_layout, o, .. } = tensors;
            let of_head = Tensors { q: one(q_layout), k: one(whole.k()), v: one(whole.v()), o: one(o) };
            let problem = DecodeProblem::new(of_head, T::DTYPE, DecodeOptions::default())?;
            let at = [Row { batch: 0, head: 0, row: 0 }];
            let (exact, standard) = problem.reference(&DecodeInputs::new(&q, &k, &v), &at);
            expected.rows.push((batch, head));
            expected.exact.push(exact);
            expected.standard.push(standard);
        }
        Ok(expected)
    }

    /// The accuracies of O and lse of each row.
    fn judge(&self, whole: &DecodeProblem, results: &Results<T>, score_roundoff: f64) -> Vec<[Accuracy; 2]> {
        let dense = whole.dense();
        let rows = self.rows.iter().zip(&self.exact).zip(&self.standard);
        rows.map(|((&(batch, head), exact), standard)| {
            let first = dense.tensors().o.row(batch, 0, head);
            let lse = results.lse[dense.lse_index(batch, head, 0)];
            let o = &results.o[first..first + dense.head_dim_v()];
            [Accuracy::of_output(o, exact, standard), Accuracy::of_lse(&[lse], exact, score_roundoff)]
        })
        .collect()
    }
}

/// What was found of so many runs.
#[derive(Default)]
struct Verdict {
    runs: usize,
    of_bound: f64,
    difference_of_bound: f64,
    failure: Option<String>,
}

/// Judges all ranks' results by the rule, and by how far they are from one GPU's: both are within its bound
/// of what is exact, so that twice this is between them at most.
fn judge<T: Element<Output = T>>(
    team: &mut Team<'_>,
    one: &mut Whole,
    expected: Expected<T>,
    runs: usize,
) -> Result<Verdict> {
    one.cache.poison()?;
    one.enqueue()?;
    one.wait()?;
    let of_one = one.cache.results::<T>()?;
    let mut verdict = Verdict::default();
    while verdict.runs < runs && verdict.failure.is_none() {
        team.parts.iter_mut().try_for_each(Cache::poison)?;
        team.enqueue()?;
        team.wait()?;
        verdict.runs += 1;
        let mut first: Option<Results<T>> = None;
        for (index, part) in team.parts.iter().enumerate() {
            let results = part.results::<T>()?;
            verdict.take(index, one, &expected, (&of_one, &results));
            if first.as_ref().is_some_and(|first| !results.are_those_of(first)) {
                verdict.fail(format!("rank {index} has other bits than rank 0"));
            }
            first.get_or_insert(results);
        }
    }
    Ok(verdict)
}

impl<T: Element> Results<T> {
    /// Whether all bits are the same.
    fn are_those_of(&self, other: &Self) -> bool {
        bytes::of(&self.o) == bytes::of(&other.o) && bytes::of(&self.lse) == bytes::of(&other.lse)
    }
}

impl Verdict {
    fn fail(&mut self, reason: String) {
        self.failure.get_or_insert(reason);
    }

    /// Takes a rank's results in, beside one GPU's.
    fn take<T: Element<Output = T>>(
        &mut self,
        rank: usize,
        one: &Whole,
        expected: &Expected<T>,
        (of_one, results): (&Results<T>, &Results<T>),
    ) {
        let mut bound = 0.0_f64;
        for [output, lse] in expected.judge(one.plan.problem(), results, one.plan.score_roundoff()) {
            bound = bound.max(output.bound);
            self.of_bound = self.of_bound.max(output.max_error / output.bound);
            if !(output.passed() && lse.passed()) {
                self.fail(format!("rank {rank}: o {output}; lse {lse}"));
            }
        }
        let wide = |value: &T| f64::from(value.to_f32());
        for (at, (ours, theirs)) in results.o.iter().zip(&of_one.o).enumerate() {
            let difference = (wide(ours) - wide(theirs)).abs();
            self.difference_of_bound = self.difference_of_bound.max(difference / bound);
            // NaN is none of those.
            if !(difference <= 2.0 * bound) {
                self.fail(format!(
                    "rank {rank}: element {at} of O is {}, one GPU's {}",
                    wide(ours),
                    wide(theirs)
                ));
            }
        }
    }
}
