//! Which tile comes next: what one warp finds out of it, and all others read.

use super::cached::{self, next};
use super::key_blocks::KeyBlocks;
use super::operand::Operand as _;
use super::seen_blocks::SeenBlocks;
use super::tile::Tile;
use super::{Pipeline, first_row};
use crate::attention::alignment::Alignment as _;
use crate::attention::transpose;
use crate::functions::{MaskMod as _, Queries};
use crate::hopper::roles::leads_warp;
use crate::hopper::scheduler::{Announced, Slots};
use crate::params::{AttentionParams, CopiesBeside, PersistentParams};
use crate::ptx::{fence, global, grid, index, shared, warp};
use crate::scheduler::{Rows, Tiles, WorkTile};
use crate::tile::simt::GlobalTile;

/// The blocks of keys that a tile meets, as the threads see them that copy.
pub(super) struct Keys {
    /// How many there are.
    pub(super) blocks: u32,
    /// First row of the first, along the tensors' sequence axis.
    pub(super) row: u32,
    /// Key/value head.
    pub(super) head: u32,
    /// Index along the tensors' batch axis.
    pub(super) batch: u32,
    /// Where the tile was announced; used with a mask function that knows blocks.
    slot: u32,
}

impl Keys {
    /// Those of a tile.
    ///
    /// # Safety
    /// As [`WorkTile::kv_head`].
    #[inline(always)]
    pub(super) unsafe fn of_tile<T: Tile>(params: &PersistentParams, work: &WorkTile, split: u32) -> Self {
        let attention = &params.attention;
        let first_row = first_row::<T>(params, work.tile);
        let blocks = KeyBlocks::<T>::of_tile(params, work, split, first_row);
        Self {
            blocks: blocks.count,
            row: work.keys.first + blocks.first_key(0),
            // SAFETY: `group` is at least 1.
            head: unsafe { work.kv_head(attention) },
            // Queries may be packed where keys are not.
            batch: if T::IN_CACHE { work.batch } else { work.batch_index(attention) },
            slot: 0,
        }
    }

    /// The end of the first `end` blocks that are copied, which leaves out the last ones that are not seen.
    ///
    /// # Safety
    /// The tile was announced, and is not left; or the mask function knows nothing of blocks.
    #[inline(always)]
    pub(super) unsafe fn seen_end<T: Tile>(&self, pipeline: Pipeline<T>, end: u32) -> u32 {
        if !T::MaskMod::KNOWS_BLOCKS {
            return end;
        }
        // SAFETY: as above.
        unsafe { SeenBlocks::of_slot(pipeline, self.slot, self.blocks).end(end) }
    }

    /// Waits until they, and the queries that see them, have been copied, where that is done beside this
    /// launch; then they are there for copies by tensor maps.
    #[inline(always)]
    pub(super) fn wait_for_copies<T: Tile>(&self, copies: &CopiesBeside) {
        if const { T::CONFIG.waits_for_copies() } && copies.are_there() {
            let group = self.batch * copies.heads + self.head;
            if group >= copies.first {
                // SAFETY: the launch beside this one adds to the counter, and waits for nothing.
                unsafe { global::wait_at_least(copies.counter(group), copies.awaited) };
                fence::proxy_async_global();
            }
        }
    }

    /// First row of a block.
    #[inline(always)]
    pub(super) fn row_of<T: Tile>(&self, block: u32) -> u32 {
        self.row + block * T::BLOCK_N
    }
}

/// The warp that finds the tiles of its block, and announces them.
pub(super) struct TileScheduler<T: Tile> {
    pipeline: Pipeline<T>,
    slots: TileSlots,
    tiles: Tiles,
}

impl<T: Tile> TileScheduler<T> {
    /// # Safety
    /// One warp of the block has a scheduler, in a launch as [`forward_sm90`](super::forward_sm90) says.
    #[inline(always)]
    pub(super) unsafe fn new(pipeline: Pipeline<T>) -> Self {
        // SAFETY: one warp announces, in slots that are made before others wait.
        let slots = unsafe { TileSlots::producer(pipeline.schedule()) };
        Self { pipeline, slots, tiles: Tiles::default() }
    }

    /// Announces all further tiles, if there are any, and then that there is none.
    ///
    /// # Safety
    /// As [`Self::announce`].
    #[inline(always)]
    pub(super) unsafe fn run(mut self, params: &PersistentParams, mut exists: bool) {
        grid::launch_dependents();
        if T::MaskMod::KNOWS_BLOCKS {
            // No tile was announced before. A loop that asks for that spills, with what the function needs.
            // SAFETY: all lanes are here.
            while unsafe { self.announce_next(params) } {}
        }
        while exists && !T::MaskMod::KNOWS_BLOCKS {
            // SAFETY: all lanes are here.
            exists = unsafe { self.announce_next(params) };
        }
        if leads_warp() {
            self.end(params);
        }
    }

    /// Announces the next tile, if there is one, which it says.
    ///
    /// # Safety
    /// As [`Self::announce`].
    #[inline(always)]
    pub(super) unsafe fn announce_next(&mut self, params: &PersistentParams) -> bool {
        if T::IN_CACHE {
            // Here, where there is no tile yet to keep in registers meanwhile.
            self.slots.acquire();
        }
        let params = reread(params);
        // SAFETY: the parameters describe the launch's sequences, the tile is one of the launch, and all
        // lanes are here.
        unsafe {
            let Some((work, split)) = next::<T>(&mut self.tiles, &params) else { return false };
            self.announce(&params, &work, split);
        }
        true
    }

    /// Announces a tile. Where the mask function knows blocks, it is asked about the tile's.
    ///
    /// # Safety
    /// All lanes of the warp call this together, with a tile of the launch.
    #[inline(always)]
    unsafe fn announce(&mut self, params: &PersistentParams, work: &WorkTile, split: u32) {
        // Read anew, in place of a register over all tiles.
        let leads = || index::reread_thread().is_multiple_of(32);
        let slot = if T::IN_CACHE { self.slots.address() } else { self.slots.acquire() };
        // SAFETY: the slot is this warp's, and the tile one of the launch. All lanes are here.
        unsafe {
            warp::sync(); // All have seen the slot empty before it is empty again.
            if leads() {
                write::<T>(slot, params, work, split);
            }
            if T::MaskMod::KNOWS_BLOCKS {
                warp::sync(); // The other lanes read what the first has written.
                let blocks = TileSlots::blocks(slot);
                SeenBlocks::<T>::of_slot(self.pipeline, slot, blocks).find(params, slot, blocks);
            }
        }
        self.slots.fill_by(leads());
    }

    /// Announces that there is no further tile. A launch that did not wait for the one in front of it does so
    /// now: whoever waits for this one may count on both.
    #[inline(always)]
    fn end(mut self, params: &PersistentParams) {
        self.slots.announce_end();
        if params.copies.are_there() {
            grid::wait();
        }
    }
}

/// The same parameters: what follows from their window would otherwise be computed once, and kept in
/// registers by all.
#[inline(always)]
pub(super) fn reread(params: &PersistentParams) -> PersistentParams {
    let [window_left, window_span] =
        [params.attention.window_left, params.attention.window_span].map(index::unknown);
    let attention = AttentionParams { window_left, window_span, ..params.attention };
    PersistentParams { attention, ..*params }
}

/// Writes what is announced of a tile to a slot.
///
/// # Safety
/// The slot is this thread's; the tile is one of the launch.
#[inline(always)]
unsafe fn write<T: Tile>(slot: u32, params: &PersistentParams, work: &WorkTile, split: u32) {
    let WorkTile { tile, head, batch, queries, keys } = *work;
    let PersistentParams { attention, o_by_rows, .. } = params;
    let first_row = first_row::<T>(params, tile);
    // SAFETY: the slot is this thread's, and the tile's rows and heads exist.
    unsafe {
        let place = Keys::of_tile::<T>(params, work, split);
        shared::store4(slot + 64, [place.blocks, place.row, place.head, place.batch]);
        shared::store4(slot, [tile, head, batch, 1 + if T::IN_CACHE { split } else { *o_by_rows }]);
        shared::store4(slot + 16, [queries.first, queries.len, keys.first, keys.len]);
        if T::IN_CACHE {
            // Its warps find the rows of O by themselves.
            let [scale, v_descale] = cached::factors(params, batch, place.head).map(f32::to_bits);
            shared::store4(slot + 32, [scale, v_descale, 0, 0]);
            return;
        }
        let (stride, columns) = (attention.o_strides.row, attention.head_dim_v);
        let first_column = T::Alignment::first_column(params, place.head);
        shared::store4(slot + 48, [stride as u32, (stride >> 32) as u32, columns, first_column]);
        // Addresses come last: this thread has no registers for them beside the rest.
        let o = attention.o
            + 2 * (work.offset(&attention.o_strides, queries, head)
                + first_row as u64 * attention.o_strides.row);
        let lse = attention.lse + 4 * work.lse_index(attention, first_row);
        let lse = if attention.lse == 0 { 0 } else { lse };
        shared::store4(slot + 32, [o as u32, (o >> 32) as u32, lse as u32, (lse >> 32) as u32]);
    }
}

/// The words that [`write`] writes.
#[derive(Clone, Copy)]
pub(super) struct TileWords;

impl Announced for TileWords {
    const BYTES: u32 = 80;
    const EXISTS: u32 = 3;
}

/// The slots that tiles are announced in.
pub(super) type TileSlots = Slots<TileWords>;

/// Index of the word that has a tile's sequence's queries.
const LEN: u32 = 5;

impl TileSlots {
    /// The tile at hand, read again by each call.
    #[inline(always)]
    pub(super) fn work(&self) -> WorkTile {
        let word = |index: u32| self.word(index);
        WorkTile {
            tile: word(0),
            head: word(1),
            batch: word(2),
            queries: Rows { first: word(4), len: word(LEN) },
            keys: Rows { first: word(6), len: word(7) },
        }
    }

    /// Tile, head and batch of the tile that was announced at an address.
    ///
    /// # Safety
    /// The address is [`Self::address`] of a tile that this warp has not left.
    #[inline(always)]
    pub(super) unsafe fn place(address: u32) -> [u32; 3] {
        // SAFETY: the words are the slot's.
        [0, 4, 8].map(|word| unsafe { shared::load_b32(address + word) })
    }

    /// Queries of the tile that was announced at an address, `rows` of them from the one `behind` its first
    /// on, of which there may be none.
    ///
    /// # Safety
    /// As [`Self::place`].
    #[inline(always)]
    pub(super) unsafe fn queries<T: Tile>(
        address: u32,
        params: &PersistentParams,
        behind: u32,
        rows: u32,
    ) -> Queries {
        // SAFETY: as above.
        let ([tile, head, batch], len) =
            unsafe { (Self::place(address), shared::load_b32(address + 4 * LEN)) };
        let first = first_row::<T>(params, tile) + behind;
        Queries { batch, head, first, last: (first + rows).min(len) - 1 }
    }

    /// Blocks of keys of the tile that was announced at an address.
    ///
    /// # Safety
    /// As [`Self::place`].
    #[inline(always)]
    unsafe fn blocks(address: u32) -> u32 {
        // SAFETY: the word is the slot's.
        unsafe { shared::load_b32(address + 64) }
    }

    /// First key of the tile that was announced at an address, in its sequence.
    ///
    /// # Safety
    /// As [`Self::place`].
    #[inline(always)]
    pub(super) unsafe fn first_key(address: u32) -> u32 {
        // SAFETY: the words are the slot's.
        unsafe { shared::load_b32(address + 68) - shared::load_b32(address + 24) }
    }

    /// The blocks of keys of the tile at hand, read again by each call.
    #[inline(always)]
    pub(super) fn keys<T: Tile>(&self) -> Keys {
        Keys {
            blocks: self.word(16),
            row: self.word(17),
            head: self.word(18),
            batch: self.word(19),
            slot: if T::MaskMod::KNOWS_BLOCKS { self.address() } else { 0 },
        }
    }

    /// As [`Self::keys`], of V: where it is transposed, a packed sequence's keys begin elsewhere than K's.
    #[inline(always)]
    pub(super) fn values<T: Tile>(&self, params: &PersistentParams) -> Keys {
        let keys = self.keys::<T>();
        if !T::Element::TRANSPOSES_VALUES || params.sequences == 0 {
            return keys;
        }
        let WorkTile { batch, keys: Rows { first, .. }, .. } = self.work();
        Keys { row: transpose::first_position(first, batch) + (keys.row - first), ..keys }
    }

    /// [`PersistentParams::o_by_rows`], read again by each call.
    #[inline(always)]
    pub(super) fn o_by_rows(&self) -> u32 {
        self.word(3) - 1
    }

    /// Which part of the keys of the tile at hand, over a cache, read again by each call.
    #[inline(always)]
    pub(super) fn split(&self) -> u32 {
        self.word(3) - 1
    }

    /// Factor on Q·Kᵀ of the tile at hand, over a cache, read again by each call.
    #[inline(always)]
    pub(super) fn softmax_scale(&self) -> f32 {
        f32::from_bits(self.word(8))
    }

    /// Factor of V's elements of the tile at hand, over a cache, read again by each call.
    #[inline(always)]
    pub(super) fn v_descale(&self) -> f32 {
        f32::from_bits(self.word(9))
    }

    /// The tile at hand in O, of so many rows, read again by each call.
    #[inline(always)]
    pub(super) fn o(&self, rows: u32) -> GlobalTile {
        GlobalTile { address: self.word2(8), stride: self.word2(12), rows, columns: self.word(14) }
    }

    /// Column of the product with V that is O's first, read again by each call.
    #[inline(always)]
    pub(super) fn first_column(&self) -> u32 {
        self.word(15)
    }

    /// Address of the first row of the tile at hand in lse, 0 where that is not wanted, read again by each
    /// call.
    #[inline(always)]
    pub(super) fn lse(&self) -> u64 {
        self.word2(10)
    }
}
