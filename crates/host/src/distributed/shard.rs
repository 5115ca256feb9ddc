//! A rank's part of a problem.

use std::ops::Range;

use super::{Cut, Half, Partition, refuse};
use crate::{Error, Problem, Request, Result, TensorLayout, Tensors};

/// Rows of a tile, at multiples of which long chunks begin.
const TILE_ROWS: usize = 128;

/// Rows at multiples of which all tiles of 64, 128 and 192 begin. Under a left window a tile's steps count
/// keys from its first row's first on, and ALiBi's bias is added up from a tile's diagonal: the bits of one
/// device need its tiles.
const ALL_TILES_ROWS: usize = 384;

/// Tiles of a chunk from which on rounding to whole ones costs little.
const WHOLE_TILES: usize = 16;

/// What one rank has of a problem: of each sequence two chunks of the rows of Q and O, and two of those of K
/// and V, the low one's rows before the high one's.
///
/// Packed sequences are cut each by itself. Those with fewer rows than two tiles for each rank, or fewer keys
/// than queries, are one rank's as they are, which then has them before all others, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Shard {
    problem: Problem,
    rank: usize,
    world: usize,
    /// Sequences that are this rank's as they are.
    whole: Vec<usize>,
    cut: Vec<CutSequence>,
    tensors: Tensors,
}

/// A sequence that all ranks have chunks of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CutSequence {
    pub(super) sequence: usize,
    pub(super) queries: Cut,
    pub(super) keys: Cut,
    /// Its index along the batch axis of the rank's tensors.
    pub(super) batch: usize,
    /// Rows of the rank's Q, and of its K, before its own.
    pub(super) first: [usize; 2],
}

/// Rows that a rank has which are neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// In the whole problem's tensor, along its axis of rows.
    pub whole: Range<usize>,
    /// The first of them in the rank's.
    pub first: usize,
}

impl Shard {
    /// The part of `rank` of `world` ranks, in tensors that are contiguous as [B, S, H, D] with the rank's
    /// rows, of packed sequences [1, S, H, D]. Of the problem's own tensors the shapes count alone.
    ///
    /// # Errors
    /// When the rank is none of them, a sequence that is not packed has fewer than two rows for each, or more
    /// queries than keys, or the problem is of offsets, slopes or sinks that the device alone has, uses a
    /// part of its keys, drops weights, is in e4m3, has functions of scores, or ALiBi without a causal mask.
    pub fn new(problem: &Problem, rank: usize, world: usize, partition: Partition) -> Result<Self> {
        if rank >= world {
            return refuse(format!("rank {rank} is none of {world}"));
        }
        if let Some(reason) = refusal(problem) {
            return refuse(reason);
        }
        let owners = &owners(problem, world);
        let of = |owner| (0..problem.batch()).filter(move |&sequence| owners[sequence] == owner);
        let whole: Vec<usize> = of(Some(rank)).collect();
        let rows = |sequence| [problem.query_rows(sequence).len(), problem.key_rows(sequence).len()];
        let mut lens = [0; 2];
        for &sequence in &whole {
            lens = add(lens, rows(sequence));
        }
        let of_tiles = if counts_from_tiles(problem) { ALL_TILES_ROWS } else { 1 };
        let mut cut = Vec::new();
        for sequence in of(None) {
            let [sq, sk] = rows(sequence);
            let queries = Cut::new(sq, world, partition, multiple(sq, world, of_tiles))?;
            let keys = Cut::new(sk, world, partition, multiple(sk, world, 1))?;
            let (batch, first) = if problem.is_packed() { (0, lens) } else { (sequence, [0; 2]) };
            cut.push(CutSequence { sequence, queries, keys, batch, first });
            let own = [queries.len_of(rank), keys.len_of(rank)];
            lens = if problem.is_packed() { add(lens, own) } else { own };
        }
        let of = |layout: &TensorLayout, len: usize| {
            // A rank may have no rows of a sequence that is cut into whole tiles.
            TensorLayout::bshd(layout.batch, len.max(1), layout.heads, layout.head_dim)
        };
        let (Tensors { q, k, v, o }, [sq, sk]) = (problem.tensors(), lens);
        let tensors = Tensors { q: of(q, sq), k: of(k, sk), v: of(v, sk), o: of(o, sq) };
        Ok(Self { problem: problem.clone(), rank, world, whole, cut, tensors })
    }

    /// The same part in tensors that lie otherwise.
    ///
    /// # Errors
    /// When a shape is another, and as [`Problem::new`] for strides.
    pub fn with_tensors(self, tensors: Tensors) -> Result<Self> {
        let Tensors { q, k, v, o } = tensors;
        let own = self.tensors;
        for (name, given, own) in [("q", q, own.q), ("k", k, own.k), ("v", v, own.v), ("o", o, own.o)] {
            given.check(name)?;
            let axes = |layout: TensorLayout| {
                [
                    ("batch", layout.batch),
                    ("seqlen", layout.seqlen),
                    ("heads", layout.heads),
                    ("head_dim", layout.head_dim),
                ]
            };
            for ((axis, value), (_, expected)) in axes(given).into_iter().zip(axes(own)) {
                if value != expected {
                    return Err(Error::ShapeMismatch {
                        tensor: name,
                        axis,
                        value,
                        other: "the shard",
                        expected,
                    });
                }
            }
        }
        o.check_disjoint("o")?;
        Ok(Self { tensors, ..self })
    }

    /// The whole problem.
    pub const fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Index of the rank.
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub const fn world(&self) -> usize {
        self.world
    }

    /// Sequences that all ranks have chunks of.
    pub const fn cut_sequences(&self) -> usize {
        self.cut.len()
    }

    /// The same, one by one.
    pub(super) fn cut(&self) -> &[CutSequence] {
        &self.cut
    }

    /// The rank's tensors.
    pub const fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Elements of the rank's log-sum-exp, fp32 [B, H, S] contiguous with the rank's rows.
    pub const fn lse_len(&self) -> usize {
        let q = &self.tensors.q;
        q.batch * q.heads * q.seqlen
    }

    /// The rank's rows of Q and O, in its order: of each sequence, or of all packed ones.
    pub fn query_runs(&self) -> impl Iterator<Item = Run> {
        self.runs(Problem::query_rows, |cut| cut.queries).map(|(_, run)| run)
    }

    /// The rank's rows of K and V, as [`Self::query_runs`].
    pub fn key_runs(&self) -> impl Iterator<Item = Run> {
        self.runs(Problem::key_rows, |cut| cut.keys).map(|(_, run)| run)
    }

    /// Positions of the rank's queries in their sequence, in the order in which it has them.
    pub fn query_positions(&self) -> impl Iterator<Item = usize> {
        let of_run = |(start, run): (usize, Run)| run.whole.start - start..run.whole.end - start;
        self.runs(Problem::query_rows, |cut| cut.queries).flat_map(of_run)
    }

    /// Runs of rows, each with its sequence's first.
    fn runs(
        &self,
        rows: fn(&Problem, usize) -> Range<usize>,
        cut: fn(&CutSequence) -> Cut,
    ) -> impl Iterator<Item = (usize, Run)> {
        let whole = self.whole.iter().map(move |&sequence| {
            let rows = rows(&self.problem, sequence);
            (rows.start, rows)
        });
        // Sequences that are not packed are cut alike.
        let cuts = if self.problem.is_packed() { &self.cut[..] } else { &self.cut[..1] };
        let halves = cuts.iter().flat_map(move |of| {
            let start = rows(&self.problem, of.sequence).start;
            Half::ALL.map(|half| {
                let rows = cut(of).rows_of(self.rank, half);
                (start, start + rows.start..start + rows.end)
            })
        });
        whole.chain(halves).scan(0, |end, (start, whole)| {
            let first = *end;
            *end += whole.len();
            Some((start, Run { whole, first }))
        })
    }

    /// The problem of the sequences that are this rank's as they are, over its tensors, if there are some.
    ///
    /// # Errors
    /// As [`Problem::varlen`].
    pub(super) fn whole_sequences(&self) -> Result<Option<Problem>> {
        if self.whole.is_empty() {
            return Ok(None);
        }
        let offsets = |rows: fn(&Problem, usize) -> Range<usize>| {
            let ends = self.whole.iter().scan(0, |end, &sequence| {
                *end += rows(&self.problem, sequence).len() as u32;
                Some(*end)
            });
            std::iter::once(0).chain(ends).collect::<Vec<_>>()
        };
        let (q, k) = (offsets(Problem::query_rows), offsets(Problem::key_rows));
        self.problem.some_sequences(self.tensors, &self.whole, (&q, &k)).map(Some)
    }
}

fn add([a, b]: [usize; 2], [c, d]: [usize; 2]) -> [usize; 2] {
    [a + c, b + d]
}

/// Rows at multiples of which chunks of a sequence begin, `least` or those of a tile.
const fn multiple(rows: usize, world: usize, least: usize) -> usize {
    let are_long = rows >= 2 * world * WHOLE_TILES * TILE_ROWS;
    if are_long && least < TILE_ROWS { TILE_ROWS } else { least }
}

/// The ranks that have sequences as they are, none of those that are cut: the longest first went to whom had
/// the least to do.
fn owners(problem: &Problem, world: usize) -> Vec<Option<usize>> {
    let mut owners = vec![None; problem.batch()];
    let is_whole = |&sequence: &usize| {
        let (sq, sk) = (problem.query_rows(sequence).len(), problem.key_rows(sequence).len());
        problem.is_packed() && (sq < 2 * world * TILE_ROWS || sk < sq)
    };
    let mut short: Vec<_> = (0..problem.batch()).filter(is_whole).collect();
    short.sort_by_key(|&sequence| std::cmp::Reverse(problem.visible_pairs(sequence)));
    let mut loads = vec![0; world];
    for sequence in short {
        let Some(rank) = (0..world).min_by_key(|&rank| loads[rank]) else { break };
        loads[rank] += problem.visible_pairs(sequence);
        owners[sequence] = Some(rank);
    }
    owners
}

/// Whether a row's bits depend on where its tile begins.
fn counts_from_tiles(problem: &Problem) -> bool {
    problem.window().0.is_some() || problem.alibi_slopes().is_some()
}

/// The request whose plan has the bits of all ranks: as asked, and where bits depend on where tiles begin
/// with [`Request::batch_invariant`], which begins them at multiples of their rows.
#[must_use]
pub fn request_of_one(problem: &Problem, request: &Request) -> Request {
    Request { batch_invariant: request.batch_invariant || counts_from_tiles(problem), ..*request }
}

/// What ranks do not compute together, if the problem has it.
fn refusal(problem: &Problem) -> Option<String> {
    let (sq, sk) = (problem.seqlen_q(), problem.seqlen_k());
    let unfit = [
        (problem.has_bounds_alone(), "offsets that the device alone has do not say who has which rows"),
        (
            problem.scores().check_on_host().is_err(),
            "slopes or sinks that the device alone has are not given to parts",
        ),
        (problem.has_seqused_k(), "sequences that use a part of their keys are not cut"),
        (problem.dropout().is_some(), "dropout draws by rows of one device"),
        (problem.dtype() == crate::DType::E4m3, "e4m3 is not gathered"),
        (problem.functions().is_some(), "functions of scores count rows of one device"),
        (
            problem.alibi_slopes().is_some() && !problem.causal(),
            "ALiBi needs a causal mask: its distances are to the last key of a chunk",
        ),
    ];
    if sq > sk && !problem.is_packed() {
        return Some(format!("{sq} queries are more than {sk} keys"));
    }
    unfit.into_iter().find(|(is_unfit, _)| *is_unfit).map(|(_, reason)| reason.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::PerHead;
    use crate::{DType, Options};

    /// Packed sequences of so many rows and keys each.
    fn packed(lengths: &[(usize, usize)]) -> Problem {
        let offsets = |of: fn(&(usize, usize)) -> usize| {
            let ends = lengths.iter().scan(0, |end, length| {
                *end += of(length) as u32;
                Some(*end)
            });
            std::iter::once(0).chain(ends).collect::<Vec<_>>()
        };
        let (q, k) = (offsets(|length| length.0), offsets(|length| length.1));
        let layout = |offsets: &[u32]| TensorLayout::bshd(1, offsets[lengths.len()] as usize, 2, 16);
        let tensors = Tensors { q: layout(&q), k: layout(&k), v: layout(&k), o: layout(&q) };
        Problem::varlen(tensors, DType::F16, Options::default(), &q, &k).unwrap()
    }

    #[test]
    fn short_sequences_go_whole_to_whom_has_the_least_to_do() {
        // Of two ranks those of 512 rows and more are cut, but for one with fewer keys.
        let problem = packed(&[(100, 100), (600, 700), (300, 300), (511, 511), (520, 10), (0, 5)]);
        assert_eq!(owners(&problem, 2), [Some(1), None, Some(1), Some(0), Some(1), Some(1)]);
        let shard = Shard::new(&problem, 1, 2, Partition::ZigZag).unwrap();
        // Those that are whole come first; chunks of the other have 150 rows.
        let runs: Vec<_> = shard.query_runs().map(|run| (run.whole, run.first)).collect();
        let expected = [
            (0..100, 0),
            (700..1000, 100),
            (1511..2031, 400),
            (2031..2031, 920),
            (250..400, 920),
            (400..550, 1070),
        ];
        assert_eq!(runs, expected);
        assert_eq!((shard.tensors().q.seqlen, shard.cut_sequences()), (1220, 1));
        let positions: Vec<_> = shard.query_positions().collect();
        assert_eq!([positions[100], positions[399], positions[920]], [0, 299, 150]);
    }

    #[test]
    fn offsets_that_the_device_alone_has_are_refused() {
        let problem = packed(&[(600, 700)]).on_device((600, 700)).unwrap();
        let refused = Shard::new(&problem, 0, 2, Partition::ZigZag).unwrap_err().to_string();
        let reason = "offsets that the device alone has do not say who has which rows";
        assert_eq!(refused, format!("context parallelism: {reason}"));
    }

    /// A part has the values of its heads, which nobody can take from a list that is elsewhere.
    #[test]
    fn values_of_heads_that_the_device_alone_has_are_refused() {
        let layout = TensorLayout::bshd(1, 100, 2, 16);
        let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
        for on_device in [
            PerHead { alibi_slopes: Some(2), ..PerHead::default() },
            PerHead { sinks: Some(2), ..PerHead::default() },
        ] {
            let options = Options { causal: true, on_device, ..Options::default() };
            let problem = Problem::new(tensors, DType::F16, options).unwrap();
            let refused = Shard::new(&problem, 0, 2, Partition::ZigZag).unwrap_err().to_string();
            let reason = "slopes or sinks that the device alone has are not given to parts";
            assert_eq!(refused, format!("context parallelism: {reason}"));
        }
    }
}
