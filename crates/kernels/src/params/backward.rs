//! Launch parameters of the backward kernels.

use super::{AttentionParams, Strides};

/// Parameters of `attention::backward_delta` and of the kernels behind it.
///
/// Addresses as in [`AttentionParams`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BackwardParams {
    /// The forward pass, whose O and lse are read.
    pub attention: AttentionParams,
    /// First element of the gradient of O.
    pub dout: u64,
    /// First element of the gradient of Q.
    pub dq: u64,
    /// First element of the gradient of K.
    pub dk: u64,
    /// First element of the gradient of V.
    pub dv: u64,
    /// rowsum(dO ∘ O) − dlse, fp32 in the order of lse: what the first launch writes and the others read. Of
    /// a row that sees no key dlse is left out.
    pub delta: u64,
    /// Strides of the gradient of O.
    pub dout_strides: Strides,
    /// Strides of the gradient of Q.
    pub dq_strides: Strides,
    /// Strides of the gradient of K.
    pub dk_strides: Strides,
    /// Strides of the gradient of V.
    pub dv_strides: Strides,
    /// Heads, of one sequence after the other, whose tiles are computed at about the same time, so that what
    /// they go over is found in L2; at least 1. Of key/value heads where blocks own keys; read by
    /// `attention::backward_sm90`, and by `attention::backward_sm80` where dS is stored.
    pub heads_per_swizzle: u32,
    /// Bytes from the barriers where `attention::backward_sm90` waits for a step to those where it lands, to
    /// be fixed up: of packed sequences, and of such as use a part of their keys. 0 where it lands where they
    /// wait.
    pub fix_up: u32,
    /// dS, where a launch stores it or reads it.
    pub ds: StoredDs,
    /// Gradient of lse, fp32 in its order; 0 where there is none.
    pub dlse: u64,
    /// Gradient of the sinks, fp32 in their order; 0 where it is not wanted.
    pub dsinks: u64,
    /// Sequences that a sink is for: all, or 1 where each has its own.
    pub sequences_of_sink: u32,
    /// The tiles of the launch that computes all gradients.
    pub tickets: Tickets,
}

/// The tiles of the launch that computes all gradients, as `attention::backward_tiles` says, and in which
/// order blocks take them. A unit is a key/value head of a sequence with its query heads, or with one of
/// them, or with some queries of that one: tiles of keys, which store dS, and tiles of queries. Where dQ is
/// summed, a unit is a key/value head with all of its query heads, and has tiles of keys alone.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tickets {
    /// [`Self::counter_count`] counters of [`Self::COUNTER_BYTES`] each; 0 where no
    /// tickets are taken.
    pub counters: u64,
    /// Tiles of [`Self::TILE_BYTES`] each, those of keys first, from a multiple of 16 on.
    pub tiles: u64,
    /// dK and dV of tiles of keys of a round whose head has further units, from a multiple of 16 on.
    pub carried: u64,
    /// Key/value heads of all sequences.
    pub heads: u32,
    /// Those of a round, which take turns; the last round may have fewer.
    pub heads_of_round: u32,
    /// Units of a key/value head: for each run of query heads one for each run of queries.
    pub units_of_head: u32,
    /// Query heads of a unit.
    pub unit_heads: u32,
    /// Queries of a head in a unit, in whole tiles of queries and whole granules of dS; the last unit of a
    /// head may have fewer.
    pub unit_rows: u32,
    /// Units whose dS is stored at a time, at least 1.
    pub ring: u32,
    /// Tiles of keys of a unit.
    pub key_tiles: u32,
    /// Tiles of queries of a query head in a unit.
    pub query_tiles: u32,
    /// Rows of a tile of keys.
    pub key_rows: u32,
    /// Rows of a tile of queries.
    pub query_rows: u32,
    /// Blocks that take tiles of queries alone.
    pub query_blocks: u32,
    /// Steps of a query head whose dQ is summed over its tiles of keys in turn; 0 where dS is stored.
    pub steps_of_head: u32,
}

impl Tickets {
    /// Bytes of a counter, which has a sector of L2 for itself.
    pub const COUNTER_BYTES: u64 = 32;

    /// Bytes of a tile.
    pub const TILE_BYTES: u64 = 80;

    /// Counters of blocks that have arrived, and of tickets of both kinds.
    const ARRIVALS: u32 = 3;

    /// All units.
    #[inline(always)]
    pub const fn units(&self) -> u32 {
        self.heads * self.units_of_head
    }

    /// Tiles of queries of a unit.
    #[inline(always)]
    pub const fn query_tiles_of_unit(&self) -> u32 {
        self.query_tiles * self.unit_heads
    }

    /// All tiles of keys.
    #[inline(always)]
    pub const fn all_of_keys(&self) -> u32 {
        self.units() * self.key_tiles
    }

    /// All tiles.
    #[inline(always)]
    pub const fn all_tiles(&self) -> u32 {
        self.units() * (self.key_tiles + self.query_tiles_of_unit())
    }

    /// Counters: two for each unit, of its tiles of either kind that are done; where heads have several
    /// units, one for each tile of keys of a round, of units in which it is done; those of blocks and
    /// tickets; and one for each step whose dQ is summed.
    pub const fn counter_count(&self) -> u32 {
        self.sum_counter(0, 0) + self.units() * self.unit_heads * self.steps_of_head
    }

    /// The counter of tiles of keys that have added to dQ of a step of a query head.
    #[inline(always)]
    pub const fn sum_counter(&self, head: u32, step: u32) -> u32 {
        self.arrivals() + Self::ARRIVALS + head * self.steps_of_head + step
    }

    /// The counter of the units in which the `column`-th tile of keys of its round is done; rounds before
    /// count too.
    #[inline(always)]
    pub const fn units_done(&self, column: u32) -> u32 {
        2 * self.units() + column
    }

    /// Address of a counter.
    #[inline(always)]
    pub const fn counter(&self, counter: u32) -> u64 {
        self.counters + Self::COUNTER_BYTES * counter as u64
    }

    /// Address of a tile.
    #[inline(always)]
    pub const fn tile(&self, tile: u32) -> u64 {
        self.tiles + Self::TILE_BYTES * tile as u64
    }

    /// The counter of blocks that have arrived; behind it are those of tickets.
    #[inline(always)]
    pub const fn arrivals(&self) -> u32 {
        let tiles = if self.units_of_head > 1 { self.heads_of_round * self.key_tiles } else { 0 };
        2 * self.units() + tiles
    }

    /// Whether the block that arrives as the `arrived`-th of `blocks` takes tiles of keys: the first does,
    /// and the second takes those of queries, if any block does.
    #[inline(always)]
    pub fn takes_keys(&self, arrived: u32, blocks: u32) -> bool {
        let blocks = blocks.max(1);
        let others = (blocks - 1).saturating_sub(self.query_blocks);
        let before = |arrived: u32| (arrived * self.query_blocks + others) / blocks;
        before(arrived) == before(arrived + 1)
    }
}

/// dS / softmax_scale of the query heads of a launch, in the storage type, as `attention::stored_ds` says.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredDs {
    /// The first byte, a multiple of 16.
    pub address: u64,
    /// Pieces of 16 bytes from one panel of 64 queries to the next; of all heads there are below 2^32.
    pub panel_pieces: u32,
    /// Pieces from one head to the next.
    pub head_pieces: u32,
    /// The first key/value head, of those of all sequences, of a launch of `attention::backward_sm80`: the
    /// first head here is the first of those that share it.
    pub first_unit: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_two_blocks_take_tiles_of_both_kinds() {
        for blocks in 2..140 {
            for query_blocks in 1..blocks {
                let tickets = Tickets { query_blocks, ..Tickets::default() };
                let of_queries = (0..blocks).filter(|&arrived| !tickets.takes_keys(arrived, blocks)).count();
                assert_eq!(of_queries as u32, query_blocks, "of {blocks}");
                assert!(
                    tickets.takes_keys(0, blocks) && !tickets.takes_keys(1, blocks),
                    "{query_blocks} of {blocks}"
                );
            }
        }
    }

    #[test]
    fn without_blocks_for_queries_all_take_keys() {
        assert!((0..132).all(|arrived| Tickets::default().takes_keys(arrived, 132)));
    }
}
