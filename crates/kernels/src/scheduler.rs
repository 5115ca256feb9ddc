//! Which tile a block works on.

use core::hint::assert_unchecked;

use crate::mask::UNLIMITED;
use crate::params::{AttentionParams, PersistentParams, ScheduleParams, Strides};
use crate::ptx::{global, index, warp};

/// A block's share of the problem.
#[derive(Clone, Copy, Debug)]
pub struct WorkTile {
    /// Index of the tile within its head, 0 to `tiles` − 1.
    pub tile: u32,
    /// Query head.
    pub head: u32,
    /// Sequence.
    pub batch: u32,
    /// The sequence's rows of Q, O and lse.
    pub queries: Rows,
    /// The sequence's rows of K and V that it uses.
    pub keys: Rows,
}

/// Consecutive rows of a tensor.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// The first; 0 where each sequence has a batch index.
    pub first: u32,
    /// How many, which may be none.
    pub len: u32,
}

impl Rows {
    /// Those of a sequence: `len`, or what the offsets at `cu_seqlens` say where there are any.
    ///
    /// # Safety
    /// The offsets are readable for one more than `batch`, and do not decrease.
    #[inline(always)]
    pub(crate) unsafe fn of_sequence(cu_seqlens: u64, batch: u32, len: u32) -> Self {
        if cu_seqlens == 0 {
            return Self { first: 0, len };
        }
        let address = cu_seqlens + 4 * batch as u64;
        // SAFETY: the offsets of this sequence and of the next one are readable.
        let (first, end) =
            unsafe { (global::load_b32_if(true, address), global::load_b32_if(true, address + 4)) };
        Self { first, len: end.wrapping_sub(first) }
    }

    /// The first of them that a sequence uses, by the list at `seqused`; all without a list.
    ///
    /// # Safety
    /// The list is readable at `batch`.
    #[inline(always)]
    pub(crate) unsafe fn used(self, seqused: u64, batch: u32) -> Self {
        if seqused == 0 {
            return self;
        }
        // SAFETY: the sequence's number is readable.
        let used = unsafe { global::load_b32_if(true, seqused + 4 * batch as u64) } as i32;
        self.up_to(used)
    }

    /// The first so many of them: all where it is more, and none where it is fewer than none.
    #[inline(always)]
    fn up_to(self, rows: i32) -> Self {
        Self { len: self.len.min(rows.max(0) as u32), ..self }
    }
}

/// The tiles of queries that one block of a persistent grid works on, one after the other.
///
/// Each round of the grid takes as many tiles as there are blocks. The last tiles may be dealt out by the
/// hardware in place of that: each is a block of its own, which begins where one of the others has ended.
/// With a schedule, blocks take the next tile whenever they are done with one.
#[derive(Clone, Copy, Default)]
pub struct Tiles {
    /// Index of the first tile of the round at hand.
    round: u32,
    /// How many sequences of a packed batch are behind, in the order in which they are gone through, and how
    /// many tiles they have.
    passed: u32,
    first: u32,
}

impl Tiles {
    /// Index of the next tile of the block with this index, of so many, if there is one.
    #[inline(always)]
    fn index(&mut self, params: &PersistentParams, block: u32, blocks: u32) -> Option<u32> {
        let (single, tiles) = (params.tail_tiles, params.tiles - params.tail_tiles);
        let blocks = blocks - single;
        // SAFETY: a grid has blocks that take tiles in turn.
        unsafe { assert_unchecked(blocks > 0) };
        let round = self.round;
        self.round += blocks;
        if block >= blocks {
            return if round == 0 { Some(tiles + block - blocks) } else { None };
        }
        let back = params.snake_order != 0 && round / blocks % 2 == 1;
        let index = round + if back { blocks - 1 - block } else { block };
        if index < tiles { Some(index) } else { None }
    }

    /// The next one of `block_m` queries, if there is one. In a packed batch each sequence has as many as it
    /// needs: blocks find theirs by counting.
    ///
    /// # Safety
    /// As [`WorkTile::of_block`]; `params.tiles` is the number of all heads' tiles. Once there is none, this
    /// is not called again. All 32 lanes of a warp of the block call it together.
    #[inline(always)]
    pub unsafe fn next(&mut self, params: &PersistentParams, block_m: u32) -> Option<WorkTile> {
        if params.schedule != 0 {
            // SAFETY: `attention::tile_schedule` has written the schedule of a packed batch.
            return unsafe { self.take(params, block_m) };
        }
        let index = self.index(params, index::block(), index::blocks())?;
        // SAFETY: the index is one of the tiles', offsets are readable, and all lanes are here.
        unsafe {
            if params.sequences > 0 {
                return self.find(params, params.sequence_step, block_m, index);
            }
            Some(WorkTile::of_persistent(params, index))
        }
    }

    /// As [`Self::next`], and which of the splits over a cache: all tiles of one split come before those of
    /// the next.
    ///
    /// # Safety
    /// As [`Self::next`]; each split has the same tiles.
    #[inline(always)]
    pub unsafe fn next_of_splits(
        &mut self,
        params: &PersistentParams,
        block_m: u32,
    ) -> Option<(WorkTile, u32)> {
        let index = self.index(params, index::block(), index::blocks())?;
        // SAFETY: there are splits and tiles, which have rows, the index is below the number of all, and the
        // offsets are readable.
        unsafe {
            assert_unchecked(block_m > 0);
            if params.sequences > 0 {
                // From the first sequence on: this warp has no registers left for how far it came.
                return Some((Self::default().find(params, 1, block_m, index)?, 0));
            }
            // Found anew for each tile, where it would be kept in a register.
            let tiles = index::unknown(params.tiles) / params.cache.num_splits;
            assert_unchecked(tiles > 0);
            let of_split = PersistentParams { tiles, ..*params };
            Some((WorkTile::of_persistent(&of_split, index % tiles), index / tiles))
        }
    }

    /// The next tile of a schedule, or without packed sequences of the order in turn. This block's first is
    /// that of its index, and behind those of all blocks each is taken once.
    ///
    /// # Safety
    /// As [`Self::next`], with a schedule.
    #[inline(always)]
    unsafe fn take(&mut self, params: &PersistentParams, block_m: u32) -> Option<WorkTile> {
        let PersistentParams { attention, schedule, heads_per_swizzle, .. } = params;
        // SAFETY: the words are those of the schedule, of which blocks change the first by atomics alone.
        unsafe {
            let index = if self.round == 0 {
                index::block()
            } else {
                let mut taken = 0;
                if index::reread_thread().is_multiple_of(32) {
                    taken = global::fetch_add(schedule + ScheduleParams::TAKEN, 1);
                }
                index::blocks() + warp::broadcast(taken, 0)
            };
            self.round = 1;
            if params.sequences == 0 {
                let exists = index < params.tiles;
                return if exists { Some(WorkTile::of_persistent(params, index)) } else { None };
            }
            // There are heads.
            assert_unchecked(attention.heads > 0);
            let row = index / attention.heads;
            if row >= global::load_b32_if(true, schedule + ScheduleParams::HEAD_TILES) {
                return None;
            }
            let address = schedule + ScheduleParams::ROWS + ScheduleParams::ROW_BYTES * row as u64;
            let batch = global::load_b32_if(true, address);
            let first = global::load_b32_if(true, address + 4);
            let queries = Rows::of_sequence(attention.cu_seqlens_q, batch, 0);
            let head_tiles = queries.len.div_ceil(block_m);
            let place = index - first * attention.heads;
            let (head, place) = in_swizzle(*heads_per_swizzle, attention.heads, head_tiles, place);
            Some(WorkTile::of_place(attention, head_tiles, place, head, batch))
        }
    }

    /// The tile of a packed batch with this index, which is above those found before, where sequences come in
    /// steps of so many. Each lane counts the tiles of a sequence, 32 at a time.
    ///
    /// # Safety
    /// As [`Self::next`].
    #[inline(always)]
    unsafe fn find(
        &mut self,
        params: &PersistentParams,
        step: u32,
        block_m: u32,
        index: u32,
    ) -> Option<WorkTile> {
        let PersistentParams { attention, sequences, heads_per_swizzle, .. } = params;
        while self.passed < *sequences {
            // SAFETY: all lanes are here. A sequence that is there has readable offsets, and one that is
            // found has a tile; swizzles have heads.
            unsafe {
                let place = self.passed + index::reread_thread() % 32;
                let rows = if place < *sequences { sequence_rows(params, step, place).1.len } else { 0 };
                let end = self.first + warp::inclusive_sum(rows.div_ceil(block_m) * attention.heads);
                let behind = warp::ballot(end <= index).trailing_ones();
                if behind > 0 {
                    self.passed += behind;
                    self.first = warp::broadcast(end, behind - 1);
                }
                if behind < 32 {
                    let (batch, rows) = sequence_rows(params, step, self.passed);
                    let (head_tiles, place) = (rows.len.div_ceil(block_m), index - self.first);
                    let (head, place) = in_swizzle(*heads_per_swizzle, attention.heads, head_tiles, place);
                    return Some(WorkTile::of_place(attention, head_tiles, place, head, batch));
                }
            }
        }
        None
    }
}

/// The sequence of a packed batch that comes so many after the first, in steps of so many, and its queries.
///
/// # Safety
/// There are more sequences, whose offsets are readable.
#[inline(always)]
unsafe fn sequence_rows(params: &PersistentParams, step: u32, place: u32) -> (u32, Rows) {
    // SAFETY: as the caller says.
    unsafe {
        assert_unchecked(place < params.sequences);
        let batch = place * step % params.sequences;
        (batch, Rows::of_sequence(params.attention.cu_seqlens_q, batch, 0))
    }
}

/// Which of a head's `tiles` comes so many places after the first: where the mask hides what comes after a
/// query, the last tile sees the most keys and goes first, so that the grid does not end with a long one.
#[inline(always)]
fn in_order(params: &AttentionParams, tiles: u32, place: u32) -> u32 {
    let masks_right = params.window_span - params.window_left < UNLIMITED;
    if masks_right { tiles - 1 - place } else { place }
}

/// Head and place among its tiles of the `index`-th tile of `heads` heads with `head_tiles` tiles each:
/// swizzle after swizzle of heads, in each the tiles of all heads that come first, then those that come
/// second.
///
/// # Safety
/// `index` is below the number of tiles, and `swizzle` at least 1.
#[inline(always)]
unsafe fn in_swizzle(swizzle: u32, heads: u32, head_tiles: u32, index: u32) -> (u32, u32) {
    // SAFETY: `index` is below the number of tiles, so a head has some, and `swizzle` is at least 1.
    unsafe { assert_unchecked(head_tiles > 0 && swizzle > 0) };
    let swizzle_tiles = swizzle * head_tiles;
    // SAFETY: neither factor is 0.
    unsafe { assert_unchecked(swizzle_tiles > 0) };
    let (first_head, index) = (index / swizzle_tiles * swizzle, index % swizzle_tiles);
    // The last swizzle may have fewer heads.
    let heads = (heads - first_head).min(swizzle);
    // SAFETY: the index is below the number of tiles.
    unsafe { assert_unchecked(heads > 0) };
    (first_head + index % heads, index / heads)
}

impl WorkTile {
    /// Splits the linear block index into (batch, head, tile), the tile fastest, so that blocks
    /// that run at the same time read the same K and V and find them in L2.
    ///
    /// # Safety
    /// `tiles` and `params.heads` are at least 1, and the grid has that many blocks for each sequence; the
    /// offsets that `params` describes are readable.
    #[inline(always)]
    pub unsafe fn of_block(params: &AttentionParams, tiles: u32) -> Self {
        // SAFETY: there are tiles and heads, and the offsets are readable.
        unsafe { Self::of_index(params, tiles, index::block()) }
    }

    /// As [`Self::of_block`], of tiles of keys: the head is the first of those that share the key/value head.
    /// Under a causal mask the first tile is seen by the most queries.
    ///
    /// # Safety
    /// As [`Self::of_block`], and `params.group` divides `params.heads`.
    #[inline(always)]
    pub unsafe fn of_key_block(params: &AttentionParams, tiles: u32) -> Self {
        // SAFETY: `tiles` is at least 1, and so is `group`, which divides the number of heads.
        unsafe { assert_unchecked(tiles > 0 && params.group > 0) };
        let (kv_heads, block) = (params.heads / params.group, index::block());
        // SAFETY: the group divides the heads, of which there are some.
        unsafe { assert_unchecked(kv_heads > 0) };
        let sequence_head = block / tiles;
        let (kv_head, batch) = (sequence_head % kv_heads, sequence_head / kv_heads);
        // SAFETY: the offsets of this sequence, where there are any, are readable.
        let (queries, keys) = unsafe { Self::rows(params, batch) };
        Self { tile: block % tiles, head: kv_head * params.group, batch, queries, keys }
    }

    /// As [`Self::of_block`], swizzle after swizzle of heads, in each the tiles of all heads that come first,
    /// then those that come second.
    ///
    /// # Safety
    /// As [`Self::of_block`], and a swizzle has at least one head.
    #[inline(always)]
    pub unsafe fn of_swizzle(params: &AttentionParams, tiles: u32, swizzle: u32) -> Self {
        // SAFETY: there are tiles and heads, and the offsets are readable.
        unsafe {
            let (head, place) = Self::place_in_swizzle(tiles, swizzle);
            assert_unchecked(params.heads > 0);
            Self::of_place(params, tiles, place, head % params.heads, head / params.heads)
        }
    }

    /// As [`Self::of_key_block`], in the order of [`Self::of_swizzle`].
    ///
    /// # Safety
    /// As [`Self::of_key_block`] and [`Self::of_swizzle`].
    #[inline(always)]
    pub unsafe fn of_key_swizzle(params: &AttentionParams, tiles: u32, swizzle: u32) -> Self {
        // SAFETY: there are tiles and heads, the group divides them, and the offsets are readable.
        unsafe {
            let (head, tile) = Self::place_in_swizzle(tiles, swizzle);
            assert_unchecked(params.group > 0);
            let kv_heads = params.heads / params.group;
            assert_unchecked(kv_heads > 0);
            let (kv_head, batch) = (head % kv_heads, head / kv_heads);
            let (queries, keys) = Self::rows(params, batch);
            Self { tile, head: kv_head * params.group, batch, queries, keys }
        }
    }

    /// All rows of the `unit`-th key/value head, of one sequence after the other: the head is the first of
    /// those that share it.
    ///
    /// # Safety
    /// As [`Self::of_key_block`].
    #[inline(always)]
    pub unsafe fn of_unit(params: &AttentionParams, unit: u32) -> Self {
        // SAFETY: the group divides the heads, of which there are some, and the offsets are readable.
        unsafe {
            assert_unchecked(params.group > 0);
            let kv_heads = params.heads / params.group;
            assert_unchecked(kv_heads > 0);
            let (kv_head, batch) = (unit % kv_heads, unit / kv_heads);
            let (queries, keys) = Self::rows(params, batch);
            Self { tile: 0, head: kv_head * params.group, batch, queries, keys }
        }
    }

    /// As [`Self::of_unit`], of a grid of some units from `first` on, in the order of [`Self::of_swizzle`].
    ///
    /// # Safety
    /// As [`Self::of_key_swizzle`].
    #[inline(always)]
    pub unsafe fn of_unit_swizzle(params: &AttentionParams, tiles: u32, swizzle: u32, first: u32) -> Self {
        // SAFETY: there are tiles, the group divides the heads, and the offsets are readable.
        unsafe {
            let (unit, tile) = Self::place_in_swizzle(tiles, swizzle);
            Self { tile, ..Self::of_unit(params, first + unit) }
        }
    }

    /// A tile of queries of a grid over the query heads of some units from `first` on, in the order of
    /// [`Self::of_swizzle`].
    ///
    /// # Safety
    /// As [`Self::of_swizzle`].
    #[inline(always)]
    pub unsafe fn of_query_swizzle(params: &AttentionParams, tiles: u32, swizzle: u32, first: u32) -> Self {
        // SAFETY: there are tiles and heads, and the offsets are readable.
        unsafe {
            let (head, place) = Self::place_in_swizzle(tiles, swizzle);
            assert_unchecked(params.heads > 0);
            let head = first * params.group + head;
            Self::of_place(params, tiles, place, head % params.heads, head / params.heads)
        }
    }

    /// Of this unit's tiles of queries, so many for each head, the `index`-th: its head, and which tile of
    /// the head's it is.
    ///
    /// # Safety
    /// `tiles` is at least 1.
    #[inline(always)]
    pub unsafe fn of_query_tile(&self, params: &AttentionParams, tiles: u32, index: u32) -> (u32, u32) {
        // SAFETY: there are tiles.
        unsafe { assert_unchecked(tiles > 0) };
        (self.head + index / tiles, in_order(params, tiles, index % tiles))
    }

    /// Head, of one sequence after the other, and place among its tiles of this block.
    ///
    /// # Safety
    /// The grid has `tiles` blocks, at least 1, for each head, and a swizzle has at least one head.
    #[inline(always)]
    unsafe fn place_in_swizzle(tiles: u32, swizzle: u32) -> (u32, u32) {
        // SAFETY: `tiles` is at least 1, and the block's index below the number of all heads' tiles.
        unsafe {
            assert_unchecked(tiles > 0);
            in_swizzle(swizzle, index::blocks() / tiles, tiles, index::block())
        }
    }

    /// The tile of the block with this index.
    ///
    /// # Safety
    /// As [`Self::of_block`].
    #[inline(always)]
    unsafe fn of_index(params: &AttentionParams, tiles: u32, block: u32) -> Self {
        // SAFETY: `tiles` and `heads` are at least 1. Without this each division would carry a call to the
        // panic for a zero divisor, which a kernel cannot link.
        unsafe { assert_unchecked(tiles > 0 && params.heads > 0) };
        let sequence_head = block / tiles;
        let (head, batch) = (sequence_head % params.heads, sequence_head / params.heads);
        // SAFETY: the offsets of this sequence, where there are any, are readable.
        let (queries, keys) = unsafe { Self::rows(params, batch) };
        Self { tile: in_order(params, tiles, block % tiles), head, batch, queries, keys }
    }

    /// The tile that comes so many places after the first of its head's `tiles`.
    ///
    /// # Safety
    /// As [`Self::of_block`].
    #[inline(always)]
    unsafe fn of_place(params: &AttentionParams, tiles: u32, place: u32, head: u32, batch: u32) -> Self {
        // SAFETY: the offsets of this sequence, where there are any, are readable.
        let (queries, keys) = unsafe { Self::rows(params, batch) };
        Self { tile: in_order(params, tiles, place), head, batch, queries, keys }
    }

    /// All rows that a sink is a score of in the `sequence`-th sequence of those that it is for: with a list
    /// of sinks for each sequence the only one.
    ///
    /// # Safety
    /// `params.heads` is at least 1, and the offsets of the sequence are readable.
    #[inline(always)]
    pub unsafe fn of_sink(params: &AttentionParams, sink: u32, sequence: u32) -> Self {
        // SAFETY: there are heads, and the offsets of this sequence, where there are any, are readable.
        unsafe {
            assert_unchecked(params.heads > 0);
            let (head, batch) = (sink % params.heads, sink / params.heads + sequence);
            let (queries, keys) = Self::rows(params, batch);
            Self { tile: 0, head, batch, queries, keys }
        }
    }

    /// A sequence's rows of Q, and those of K that it uses.
    ///
    /// # Safety
    /// As [`Self::of_block`].
    #[inline(always)]
    pub(crate) unsafe fn rows(params: &AttentionParams, batch: u32) -> (Rows, Rows) {
        // SAFETY: the offsets of both and the number of used keys, where there are any, are readable.
        unsafe {
            // Keys come first: they take two loads, and kernels have no registers for queries beside these.
            let keys = Rows::of_sequence(params.cu_seqlens_k, batch, params.seqlen_k);
            let keys = keys.used(params.seqused_k, batch);
            (Rows::of_sequence(params.cu_seqlens_q, batch, params.seqlen_q), keys)
        }
    }

    /// The tile with this index in the order that a persistent grid goes by: all whole tiles, and then all
    /// short ones.
    ///
    /// # Safety
    /// As [`Self::of_block`]; `index` is below `params.tiles`, which is the number of all heads' tiles.
    #[inline(always)]
    unsafe fn of_persistent(params: &PersistentParams, index: u32) -> Self {
        let &PersistentParams { attention, tiles, whole_tiles, short_tiles, heads_per_swizzle, .. } = params;
        // SAFETY: a head has a tile.
        unsafe { assert_unchecked(whole_tiles + short_tiles > 0) };
        // What follows from it would otherwise be computed once, and kept in registers.
        let all_heads = index::unknown(tiles) / (whole_tiles + short_tiles);
        let whole = all_heads * whole_tiles;
        let (first, head_tiles, index) =
            if index < whole { (short_tiles, whole_tiles, index) } else { (0, short_tiles, index - whole) };
        // SAFETY: the index is below the number of tiles, there are heads, and the offsets are readable.
        unsafe {
            assert_unchecked(head_tiles > 0 && attention.heads > 0);
            let (head, place) = in_swizzle(heads_per_swizzle, all_heads, head_tiles, index);
            let (head, batch) = (head % attention.heads, head / attention.heads);
            let work = Self::of_place(&attention, head_tiles, place, head, batch);
            Self { tile: first + work.tile, ..work }
        }
    }

    /// This tile split into a row and a column of a grid of tiles `width` wide.
    ///
    /// # Safety
    /// `width` is at least 1.
    #[inline(always)]
    pub unsafe fn row_and_column(&self, width: u32) -> (u32, u32) {
        // SAFETY: `width` is at least 1.
        unsafe { assert_unchecked(width > 0) };
        (self.tile / width, self.tile % width)
    }

    /// Index of this tile's sequence along the batch axis of the tensors, which a packed batch has not.
    #[inline(always)]
    pub fn batch_index(&self, params: &AttentionParams) -> u32 {
        if params.cu_seqlens_q == 0 { self.batch } else { 0 }
    }

    /// The key/value head that this tile's query head reads.
    ///
    /// # Safety
    /// `params.group` is at least 1.
    #[inline(always)]
    pub unsafe fn kv_head(&self, params: &AttentionParams) -> u32 {
        // SAFETY: `group` is at least 1.
        unsafe { assert_unchecked(params.group > 0) };
        self.head / params.group
    }

    /// Element offset of `head` in a view at the first of `rows`, which are of this tile's sequence.
    #[inline(always)]
    pub fn offset(&self, strides: &Strides, rows: Rows, head: u32) -> u64 {
        strides.offset(self.batch, rows.first, head)
    }

    /// Index in `lse` of row `row` of this tile's sequence and head.
    #[inline(always)]
    pub fn lse_index(&self, params: &AttentionParams, row: u32) -> u64 {
        self.offset(&params.lse_strides, self.queries, self.head) + row as u64
    }
}

#[cfg(test)]
mod tests;
