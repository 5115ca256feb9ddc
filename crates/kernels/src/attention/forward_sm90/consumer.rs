//! The warpgroups that multiply.

mod mma;
mod parts;
mod residues;

use super::key_blocks::{KeyBlocks, Seen};
use super::operand::Operand;
use super::scheduler::{TileSlots, reread};
use super::seen_blocks::SeenBlocks;
use super::tile::{KeyStages, Tile};
use super::{Pipeline, cached, epilogue, first_row};
use crate::attention::alignment::Alignment as _;
use crate::config::Sm90Config;
use crate::functions::{MaskMod as _, ScoreMod as _, Visible};
use crate::hopper::epilogue::{wait_all, wait_read};
use crate::hopper::ring::{Count, Ring};
use crate::hopper::roles::{WARPGROUP, WARPGROUP_ROWS, Warpgroup, leads_warp};
use crate::params::{AttentionParams, PersistentParams};
use crate::ptx::{barrier, index};
use crate::registers::Registers as _;
use crate::scheduler::WorkTile;
use crate::score::FoldedCapAndBias;
use crate::softmax::OnlineSoftmax;
use crate::tile::mma::QUAD;
use crate::tile::wgmma::Descriptor;

/// One of the warpgroups that multiply: its place in the rings, and its rows of a tile.
///
/// A thread holds of S, P and O what [`wgmma`](crate::ptx::wgmma) says: two rows, pairs of columns of the one
/// and the other in turn.
pub(super) struct Consumer<T: Tile> {
    warpgroup: Warpgroup,
    pipeline: Pipeline<T>,
    /// Which of two warpgroups this is, where they take turns.
    turn: u32,
    queries: Ring<Count<1>>,
    keys: Ring<KeyStages<T>>,
    values: Ring<KeyStages<T>>,
    /// Of Q, and of the first stages of K and V.
    operands: [Descriptor; 3],
    s: T::S,
    /// P, rounded, as A of its product with V.
    p: T::P,
    o: T::O,
    softmax: OnlineSoftmax<[f32; 2], QUAD, T::Element>,
    /// Of the tile's head; used with [`Tile::SCORE_MOD`].
    score_mod: FoldedCapAndBias,
    /// Where the tile was announced; used with functions of scores.
    slot: u32,
    /// What this warpgroup's rows see of the block at hand; used with a mask function that knows blocks.
    visible: Visible,
    /// Of the tile, its head among those of all sequences and its first row; used with [`Tile::DROPOUT`].
    rows: (u32, u32),
}

impl<T: Tile> Consumer<T> {
    const IN_PARTS: bool = T::Element::SUMS_IN_PARTS;

    /// Whether this is its warp's first lane; each call reads it again where registers are few.
    #[inline(always)]
    fn leads_warp() -> bool {
        if Self::IN_PARTS { index::reread_thread().is_multiple_of(32) } else { leads_warp() }
    }

    #[inline(always)]
    fn leaves_through_queries(params: &PersistentParams) -> bool {
        Pipeline::<T>::leaves_through_queries(params)
    }

    /// This thread's part of it.
    ///
    /// # Safety
    /// All threads of the warpgroup make one and call its methods together, in a launch as
    /// [`forward_sm90`](super::forward_sm90) says, whose barriers are made.
    #[inline(always)]
    pub(super) unsafe fn new(pipeline: Pipeline<T>) -> Self {
        // SAFETY: the warpgroup's threads are together; its warps are consumers of all three rings, and leave
        // each stage when its products are over.
        unsafe {
            let warpgroup = Warpgroup::new();
            let index = warpgroup.index();
            Self {
                warpgroup,
                pipeline,
                turn: if T::TAKES_TURNS { index } else { 0 },
                queries: Ring::consumer(pipeline.q_barriers(index)),
                keys: Ring::consumer(pipeline.k_barriers()),
                values: Ring::consumer(pipeline.v_barriers()),
                operands: [
                    pipeline.q(index).descriptor(),
                    pipeline.k().descriptor(),
                    pipeline.v().descriptor(),
                ],
                s: T::S::ZERO,
                p: T::P::ZERO,
                o: T::O::ZERO,
                softmax: OnlineSoftmax::with_positive_scale(1.0),
                score_mod: FoldedCapAndBias::default(),
                slot: 0,
                visible: Visible::Part,
                rows: (0, 0),
            }
        }
    }

    /// Computes and stores this warpgroup's rows of all tiles of this block.
    #[inline(always)]
    pub(super) fn run(&mut self, params: &PersistentParams, o_map: u64) {
        if self.turn == 1 {
            self.pass_turn();
        }
        // SAFETY: this warp leaves each tile once, when it has stored its rows.
        let mut slots = unsafe { TileSlots::consumer(self.pipeline.schedule()) };
        while slots.wait() {
            self.slot = slots.address();
            let barriers = self.pipeline.q_barriers(self.warpgroup.index());
            // SAFETY: the warps release their rows of Q once a tile.
            self.queries = unsafe { Ring::consumer_of_phase(barriers, slots.phase()) };
            let finished = if T::IN_CACHE && T::SCORE_MOD {
                // Each sequence's head may have its own factor; others would pay for a register.
                let attention = AttentionParams { softmax_scale: slots.softmax_scale(), ..params.attention };
                let of_tile = PersistentParams { attention, ..*params };
                self.main_loop(&of_tile, &slots.work(), slots.split())
            } else if Self::IN_PARTS {
                self.main_loop_of_descaled(params, &slots)
            } else {
                let split = if T::IN_CACHE { slots.split() } else { 0 };
                self.main_loop(params, &slots.work(), split)
            };
            if T::IN_CACHE {
                // SAFETY: these rows are this warp's, whose lanes are here.
                unsafe { cached::epilogue::store::<T>(params, self.pipeline, &slots, &mut self.o, finished) };
                self.warpgroup.sync_warps(); // All lanes have read the slot that the first one leaves next.
            } else if self.has_rows(params, &slots.work()) {
                let (warpgroup, pipeline) = (self.warpgroup, self.pipeline);
                // SAFETY: these rows of O are this warpgroup's.
                unsafe { epilogue::store(warpgroup, params, o_map, pipeline, &slots, &mut self.o, finished) };
            } else {
                self.warpgroup.sync_warps(); // All lanes have read the slot that the first one leaves next.
            }
            if Self::leaves_through_queries(params) {
                // SAFETY: all lanes of the warp are here.
                unsafe { wait_read() };
                self.release_queries();
            }
            slots.leave(Self::leads_warp());
        }
        wait_all();
    }

    /// Whether this warpgroup has a part in the tile: the last of three has none in a short one.
    #[inline(always)]
    fn has_rows(&self, params: &PersistentParams, work: &WorkTile) -> bool {
        let rows = const { Sm90Config::short_block_m(T::BLOCK_M) };
        rows == T::BLOCK_M
            || work.tile >= params.short_tiles
            || WARPGROUP_ROWS * self.warpgroup.index() < rows
    }

    /// O before its rows are divided by their sums; returns for both rows what [`OnlineSoftmax::finish`]
    /// does.
    #[inline(always)]
    fn main_loop(&mut self, params: &PersistentParams, work: &WorkTile, split: u32) -> [(f32, f32); 2] {
        let again;
        let params = if Self::IN_PARTS || T::SCORE_MOD && !T::IN_CACHE {
            // Few registers are left for what follows from the window in every tile alike.
            again = reread(params);
            &again
        } else {
            params
        };
        let tile_row = first_row::<T>(params, work.tile);
        let first_row = tile_row + WARPGROUP_ROWS * self.warpgroup.index();
        let has_rows = self.has_rows(params, work);
        let attention = &params.attention;
        let blocks = KeyBlocks::<T>::of_tile(params, work, split, tile_row);
        let seen = blocks.seen_by(params, work, first_row, WARPGROUP_ROWS);
        let seen = if T::TAKES_TURNS || T::MaskMod::KNOWS_BLOCKS { blocks.all(seen) } else { seen };
        let seen = if has_rows { seen } else { Seen { begin: 0, end: 0, ..seen } };
        let seen = Seen { end: self.seen_end(&blocks, seen.end), ..seen };
        let softmax_scale = if T::ScoreMod::CHANGES {
            1.0
        } else if T::SCORE_MOD {
            FoldedCapAndBias::unit(&attention.reread_scale())
        } else {
            attention.softmax_scale
        };
        self.softmax = OnlineSoftmax::with_positive_scale(softmax_scale);
        self.o = T::O::ZERO;
        let sees = seen.begin < seen.end;
        if T::SCORE_MOD && !T::ScoreMod::CHANGES {
            // SAFETY: the launch's parameters describe its slopes.
            let slope = unsafe {
                if T::IN_CACHE {
                    cached::alibi_slope(params, work)
                } else {
                    attention.per_head.alibi_slopes.of(work.batch, work.head)
                }
            };
            self.score_mod = FoldedCapAndBias::with_slope(&attention.reread_scale(), slope);
        }
        if T::DROPOUT {
            self.rows = (work.batch * attention.heads + work.head, tile_row);
        }
        self.queries.wait();
        if T::MaskMod::KNOWS_BLOCKS {
            if !has_rows {
                self.pass_over_seen(&blocks);
            }
        } else if !T::Alignment::BY_RESIDUES {
            self.pass_over(blocks.count - seen.end);
        } else if !sees {
            self.pass_over(blocks.count * T::Alignment::passes(attention));
        }
        let finished = if sees {
            if T::Alignment::BY_RESIDUES {
                self.multiply_residues(params, &blocks, &seen);
            } else {
                self.multiply_blocks(params, &blocks, &seen);
            }
            if !Self::IN_PARTS {
                self.values.wait();
                self.warpgroup.fence_products();
                self.begin_output();
            }
            let finished = [self.finish(params, 0), self.finish(params, 1)];
            if !Self::IN_PARTS {
                self.wait_output::<0>();
                self.values.leave(Self::leads_warp());
            }
            finished
        } else {
            self.warpgroup.sync_warps(); // As in `pass_over`.
            if !Self::leaves_through_queries(params) {
                self.release_queries();
            }
            [(0.0, f32::NEG_INFINITY); 2]
        };
        self.pass_over(seen.begin);
        finished
    }

    /// All blocks that the rows see, but for the last one's product with V where it is not taken in parts.
    #[inline(always)]
    fn multiply_blocks(&mut self, params: &PersistentParams, blocks: &KeyBlocks<T>, seen: &Seen) {
        let mut block = seen.end;
        if !Self::IN_PARTS {
            block = self.end_before(blocks, block - 1);
            self.begin(params, blocks, seen, block == seen.begin);
        }
        // A mask function may hide any key.
        if !T::MaskMod::MASKS {
            while block > seen.begin && block > seen.whole_end {
                block -= 1;
                self.step::<true>(params, blocks, block, block == seen.begin);
            }
            while block > seen.begin && block > seen.whole_begin {
                block -= 1;
                self.step::<false>(params, blocks, block, block == seen.begin);
            }
        }
        while block > seen.begin {
            let last = block - 1;
            block = self.end_before(blocks, last);
            self.step::<true>(params, blocks, last, block == seen.begin);
        }
    }

    /// The end of the blocks before one that comes next, without the last ones of which the tile's queries
    /// see nothing; and what this warpgroup's see of that one.
    #[inline(always)]
    fn end_before(&mut self, blocks: &KeyBlocks<T>, block: u32) -> u32 {
        if T::MaskMod::KNOWS_BLOCKS {
            // SAFETY: the slot holds this tile until all warps have left it.
            self.visible = unsafe { self.seen_blocks(blocks).visible(self.warpgroup.index(), block) };
        }
        self.seen_end(blocks, block)
    }

    /// The end of the first `end` blocks without the last ones of which the tile's queries see nothing.
    #[inline(always)]
    fn seen_end(&self, blocks: &KeyBlocks<T>, end: u32) -> u32 {
        if !T::MaskMod::KNOWS_BLOCKS {
            return end;
        }
        // SAFETY: as above.
        unsafe { self.seen_blocks(blocks).end(end) }
    }

    #[inline(always)]
    fn seen_blocks(&self, blocks: &KeyBlocks<T>) -> SeenBlocks<T> {
        SeenBlocks::of_slot(self.pipeline, self.slot, blocks.count)
    }

    /// Leaves all blocks of the tile to the other warpgroups.
    #[inline(always)]
    fn pass_over_seen(&mut self, blocks: &KeyBlocks<T>) {
        let mut end = self.seen_end(blocks, blocks.count);
        while end > 0 {
            self.pass_over(1);
            end = self.seen_end(blocks, end - 1);
        }
    }

    /// Scores and P of the first block, which is the last that the rows see. Q is left behind its product
    /// where that is Q's `last`.
    #[inline(always)]
    fn begin(&mut self, params: &PersistentParams, blocks: &KeyBlocks<T>, seen: &Seen, last: bool) {
        let block = seen.end - 1;
        self.keys.wait();
        self.warpgroup.fence_products();
        self.begin_scores();
        self.wait_scores::<0>();
        self.release_operands(params, last);
        let lost = if T::Alignment::BY_RESIDUES {
            self.mask_tail(&params.attention);
            [0.0; 2]
        } else if T::MaskMod::MASKS || block >= seen.whole_end || block < seen.whole_begin {
            self.change_and_mask::<true>(params, blocks, block)
        } else {
            self.change_and_mask::<false>(params, blocks, block)
        };
        let drawn = self.draw(&params.attention, blocks, block);
        self.exponentiate::<true>(lost);
        self.round();
        self.drop_weights(&params.attention, &drawn);
    }

    /// Scores and P of a block, while P of the block before it is multiplied with V. Q is left behind its
    /// product where that is Q's `last`.
    #[inline(always)]
    fn step<const MASKED: bool>(
        &mut self,
        params: &PersistentParams,
        blocks: &KeyBlocks<T>,
        block: u32,
        last: bool,
    ) {
        if Self::IN_PARTS {
            return self.step_in_parts::<MASKED>(params, blocks, block, last);
        }
        self.keys.wait();
        self.take_turn();
        self.warpgroup.fence_products();
        self.begin_scores();
        self.values.wait();
        self.warpgroup.fence_products();
        self.begin_output();
        self.pass_turn();
        self.wait_scores::<1>();
        self.release_operands(params, last);
        let lost = self.change_and_mask::<MASKED>(params, blocks, block);
        let drawn = self.draw(&params.attention, blocks, block);
        let rescale = self.exponentiate::<MASKED>(lost);
        self.wait_output::<0>();
        self.values.leave(Self::leads_warp());
        self.round();
        self.drop_weights(&params.attention, &drawn);
        self.rescale(rescale);
    }

    /// P in place of the scores less what their rows have `lost`, and the factors that bring O to the new m.
    #[inline(always)]
    fn exponentiate<const MASKED: bool>(&mut self, lost: [f32; 2]) -> [f32; 2] {
        let lost = if T::SCORE_MOD { Some(lost) } else { None };
        // SAFETY: all lanes of the warp are here.
        unsafe { self.softmax.step_in_turn::<_, MASKED>(&mut self.s, lost) }
    }

    /// What [`OnlineSoftmax::finish`] does, with the factor on weights that are kept.
    #[inline(always)]
    fn finish(&self, params: &PersistentParams, row: usize) -> (f32, f32) {
        // SAFETY: all lanes of the warp are here.
        let (factor, lse) = unsafe { self.softmax.finish(row) };
        (if T::DROPOUT { factor * params.attention.dropout.scale } else { factor }, lse)
    }

    /// Leaves blocks to the other warpgroups, of which these rows see nothing.
    #[inline(always)]
    fn pass_over(&mut self, blocks: u32) {
        let mut passed = 0;
        while passed < blocks {
            if Self::IN_PARTS {
                self.values = self.values_beside_keys();
            }
            // A lane that still waits while another releases would miss the phase.
            self.keys.wait();
            self.warpgroup.sync_warps();
            self.keys.leave(Self::leads_warp());
            self.values.wait();
            self.warpgroup.sync_warps();
            self.values.leave(Self::leads_warp());
            passed += 1;
        }
    }

    /// Leaves K, and with the `last` block Q too, so that the next tile's can come: the products of scores
    /// have read both.
    #[inline(always)]
    fn release_operands(&mut self, params: &PersistentParams, last: bool) {
        self.keys.leave(Self::leads_warp());
        if last && !Self::leaves_through_queries(params) {
            self.release_queries();
        }
    }

    /// Leaves this warp's part in Q, once all that reads or writes these rows in shared memory is over.
    #[inline(always)]
    fn release_queries(&mut self) {
        if Self::leads_warp() {
            self.queries.release();
        }
    }

    /// Waits until the other warpgroup has issued its products.
    #[inline(always)]
    fn take_turn(&self) {
        if T::TAKES_TURNS {
            // SAFETY: two warpgroups meet at each of these barriers, the one by `pass_turn`.
            unsafe { barrier::sync(1 + self.turn, 2 * WARPGROUP) };
        }
    }

    /// Lets the other warpgroup issue its products.
    #[inline(always)]
    fn pass_turn(&self) {
        if T::TAKES_TURNS {
            // SAFETY: two warpgroups meet at each of these barriers, the other by `take_turn`.
            unsafe { barrier::arrive(2 - self.turn, 2 * WARPGROUP) };
        }
    }
}
