//! A rank's part of a problem.

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
#[derive(Clone, Debug, PartialEq)]
pub struct Shard {
    problem: Problem,
    rank: usize,
    queries: Cut,
    keys: Cut,
    tensors: Tensors,
}

impl Shard {
    /// The part of `rank` of `world` ranks, in tensors that are contiguous as [B, S, H, D] with the rank's
    /// rows. Of the problem's own tensors the shapes count alone.
    ///
    /// # Errors
    /// When the rank is none of them, a sequence has fewer than two rows for each, there are more queries
    /// than keys, or the problem is packed, uses a part of its keys, drops weights, is in e4m3, has functions
    /// of scores, or ALiBi without a causal mask.
    pub fn new(problem: &Problem, rank: usize, world: usize, partition: Partition) -> Result<Self> {
        if rank >= world {
            return refuse(format!("rank {rank} is none of {world}"));
        }
        if let Some(reason) = refusal(problem) {
            return refuse(reason);
        }
        let cut = |rows: usize, least: usize| {
            let are_long = rows >= 2 * world * WHOLE_TILES * TILE_ROWS;
            Cut::new(rows, world, partition, if are_long { least.max(TILE_ROWS) } else { least })
        };
        let of_tiles = if counts_from_tiles(problem) { ALL_TILES_ROWS } else { 1 };
        let (queries, keys) = (cut(problem.seqlen_q(), of_tiles)?, cut(problem.seqlen_k(), 1)?);
        let of = |layout: &TensorLayout, cut: &Cut| {
            // A rank may have no rows of a sequence that is cut into whole tiles.
            TensorLayout::bshd(layout.batch, cut.len_of(rank).max(1), layout.heads, layout.head_dim)
        };
        let Tensors { q, k, v, o } = problem.tensors();
        let tensors = Tensors { q: of(q, &queries), k: of(k, &keys), v: of(v, &keys), o: of(o, &queries) };
        Ok(Self { problem: problem.clone(), rank, queries, keys, tensors })
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
        self.queries.world()
    }

    /// How the rows of Q and O are cut.
    pub const fn queries(&self) -> &Cut {
        &self.queries
    }

    /// How the rows of K and V are cut.
    pub const fn keys(&self) -> &Cut {
        &self.keys
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

    /// Positions of the rank's queries in their sequence, in the order in which it has them.
    pub fn query_positions(&self) -> impl Iterator<Item = usize> + '_ {
        Half::ALL.into_iter().flat_map(|half| self.queries.rows_of(self.rank, half))
    }
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
        (problem.is_packed(), "packed sequences are not cut"),
        (problem.has_seqused_k(), "sequences that use a part of their keys are not cut"),
        (problem.dropout().is_some(), "dropout draws by rows of one device"),
        (problem.dtype() == crate::DType::E4m3, "e4m3 is not gathered"),
        (problem.functions().is_some(), "functions of scores count rows of one device"),
        (
            problem.alibi_slopes().is_some() && !problem.causal(),
            "ALiBi needs a causal mask: its distances are to the last key of a chunk",
        ),
    ];
    if sq > sk {
        return Some(format!("{sq} queries are more than {sk} keys"));
    }
    unfit.into_iter().find(|(is_unfit, _)| *is_unfit).map(|(_, reason)| reason.to_owned())
}
