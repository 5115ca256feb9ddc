//! What a warpgroup does with a stage of K or V: the products, and scores between them.

use super::Consumer;
use crate::attention::forward_sm90::cached::head_bits;
use crate::attention::forward_sm90::first_row;
use crate::attention::forward_sm90::key_blocks::KeyBlocks;
use crate::attention::forward_sm90::operand::Operand as _;
use crate::attention::forward_sm90::scheduler::TileSlots;
use crate::attention::forward_sm90::tile::{KeyBlock, QueryRows, Tile, ValueBlock};
use crate::functions::{MaskMod as _, Position, Score, ScoreMod as _, Visible};
use crate::hopper::epilogue::scale_rows;
use crate::mask::TileMask;
use crate::params::{AttentionParams, PersistentParams};
use crate::ptx::wgmma::Accumulator as _;
use crate::registers::Registers as _;
use crate::score::{FoldedCapAndBias, Side};
use crate::tile::mma::Lane;
use crate::tile::panels::Panels;

impl<T: Tile> Consumer<T> {
    /// Brings O to the new m.
    #[inline(always)]
    pub(super) fn rescale(&mut self, rescale: [f32; 2]) {
        if self.warpgroup.any_of_warp(rescale[0] != 1.0 || rescale[1] != 1.0) {
            scale_rows(&mut self.o, rescale);
        }
    }

    /// Begins S = Q·Kᵀ with the stage of K at hand; it is there, and so is Q.
    #[inline(always)]
    pub(super) fn begin_scores(&mut self) {
        let [q, k, _] = self.operands;
        // Descriptors of more steps than O has registers for would be kept over the loop, and spill.
        let few_registers = T::HEAD_DIM_V < T::HEAD_DIM || Self::IN_PARTS && T::SCORE_MOD;
        let q = if few_registers { q.reread() } else { q };
        let k = k.behind(self.keys.stage() * Panels::<KeyBlock<T>>::BYTES);
        let mut step = 0;
        while step < T::HEAD_DIM / T::CONFIG.depth() {
            let a = q.behind(Panels::<QueryRows<T>>::columns(step)).bits();
            let b = k.behind(Panels::<KeyBlock<T>>::columns(step)).bits();
            // SAFETY: Q and the stage are there and stay until the wait; the warpgroup's threads are
            // together.
            unsafe {
                if Self::IN_PARTS && step == 0 {
                    self.s.begin_ss::<T::Element>(a, b);
                } else {
                    self.s.multiply_ss::<T::Element, false, false>(a, b, step > 0);
                }
            }
            step += 1;
        }
        self.warpgroup.commit_products();
    }

    /// Waits until S is there, and at most `PENDING` groups of products are under way.
    #[inline(always)]
    pub(super) fn wait_scores<const PENDING: usize>(&mut self) {
        // SAFETY: the warpgroup's threads are together.
        unsafe { self.s.wait_group::<PENDING>() };
    }

    /// As [`Self::wait_scores`], of O.
    #[inline(always)]
    pub(super) fn wait_output<const PENDING: usize>(&mut self) {
        // SAFETY: the warpgroup's threads are together.
        unsafe { self.o.wait_group::<PENDING>() };
    }

    /// Begins O += P·V with the stage of 16-bit V at hand, which is there.
    #[inline(always)]
    pub(super) fn begin_output(&mut self) {
        let [_, _, v] = self.operands;
        let v = v.behind(self.values.stage() * Panels::<ValueBlock<T>>::BYTES);
        let mut step = 0;
        while step < T::P::LEN / 4 {
            let a = [self.p[4 * step], self.p[4 * step + 1], self.p[4 * step + 2], self.p[4 * step + 3]];
            let b = v.behind(Panels::<ValueBlock<T>>::rows(step as u32)).bits();
            // SAFETY: the stage is there and stays until the wait; the warpgroup's threads are together.
            unsafe { self.o.multiply_rs::<T::Element, true>(a, b, true) };
            step += 1;
        }
        self.warpgroup.commit_products();
    }

    /// What happens to scores between the product and the softmax: changes, and the mask where the block is
    /// `MASKED`. Returns what all scores of a row still have to lose.
    #[inline(always)]
    pub(super) fn change_and_mask<const MASKED: bool>(
        &mut self,
        params: &PersistentParams,
        blocks: &KeyBlocks<T>,
        block: u32,
    ) -> [f32; 2] {
        let mut lost = [0.0; 2];
        if T::ScoreMod::CHANGES {
            self.call_score_mod(&params.attention, self.first_position(params, blocks, block));
        } else if T::SCORE_MOD {
            lost = self.change_scores(params, blocks, block);
        }
        if T::MaskMod::MASKS {
            match self.visible {
                Visible::All => {}
                Visible::Nothing => self.hide_scores(),
                Visible::Part => {
                    self.call_mask_mod(&params.attention, self.first_position(params, blocks, block));
                }
            }
        }
        if MASKED && (!T::MaskMod::MASKS || Self::is_cut(blocks, block)) {
            self.mask(params, blocks, block);
        }
        lost
    }

    /// Whether the window, or the end of the keys, hides some of a block from some of the tile's rows.
    #[inline(always)]
    fn is_cut(blocks: &KeyBlocks<T>, block: u32) -> bool {
        let (mask, first_key) = (blocks.mask, blocks.first_key(block));
        mask.hides(mask.place(T::BLOCK_M, first_key)) || first_key + T::BLOCK_N > mask.seen.end
    }

    #[inline(always)]
    fn change_scores(&mut self, params: &PersistentParams, blocks: &KeyBlocks<T>, block: u32) -> [f32; 2] {
        let (bits, params) = (head_bits::<T>(params), &params.attention.reread_scale());
        let lane = Lane::reread(2);
        let place = blocks.mask.place(T::BLOCK_M >> bits, blocks.first_key(block));
        let diagonal = TileMask::diagonal_from(params, T::BLOCK_M >> bits, place);
        // Row by row: the same registers under other names.
        let index = |i: usize, j: usize| 4 * (j / 2) + 2 * i + j % 2;
        let mut scores = [T::Row::ZERO; 2];
        for_each(T::Row::LEN, |i, j| scores[i][j] = self.s[index(i, j)]);
        FoldedCapAndBias::bend(params, &mut scores);
        let side = Side::of(diagonal, T::BLOCK_M >> bits, T::BLOCK_N);
        let corner = diagonal.wrapping_add(lane.row(0) >> bits).wrapping_sub(lane.column(0));
        let lost = self.score_mod.add_bias(&mut scores, side, (corner, 8 >> bits), column);
        for_each(T::Row::LEN, |i, j| self.s[index(i, j)] = scores[i][j]);
        lost
    }

    /// Where the first of this thread's scores of a block is.
    #[inline(always)]
    fn first_position(&self, params: &PersistentParams, blocks: &KeyBlocks<T>, block: u32) -> Position {
        // SAFETY: the slot holds this tile until all warps have left it.
        let [tile, head, batch] = unsafe { TileSlots::place(self.slot) };
        let lane = Lane::reread(2);
        Position {
            batch,
            head,
            query: first_row::<T>(params, tile) + lane.row(0),
            key: blocks.first_key(block) + lane.column(0),
        }
    }

    #[inline(always)]
    fn call_score_mod(&mut self, params: &AttentionParams, first: Position) {
        self.for_each_score(first, |product, at| {
            T::ScoreMod::score(&params.functions, Score::new(product, params.softmax_scale), at)
        });
    }

    #[inline(always)]
    fn call_mask_mod(&mut self, params: &AttentionParams, first: Position) {
        let masked = |score, sees: bool| if sees { score } else { f32::NEG_INFINITY };
        self.for_each_score(first, |score, at| masked(score, T::MaskMod::sees(&params.functions, at)));
    }

    /// Sets all scores to −∞.
    #[inline(always)]
    fn hide_scores(&mut self) {
        let mut j = 0;
        while j < T::S::LEN {
            self.s[j] = f32::NEG_INFINITY;
            j += 1;
        }
    }

    #[inline(always)]
    fn for_each_score(&mut self, first: Position, change: impl Fn(f32, Position) -> f32) {
        let mut j = 0;
        while j < T::S::LEN {
            self.s[j] = change(self.s[j], behind(first, j));
            j += 1;
        }
    }

    /// Sets the scores of keys that their row does not see to −∞.
    #[inline(always)]
    pub(super) fn mask(&mut self, params: &PersistentParams, blocks: &KeyBlocks<T>, block: u32) {
        let (lane, bits) = (Lane::reread(2), head_bits::<T>(params));
        let near = blocks.mask.near(blocks.first_key(block) + lane.column(0), lane.row(0) >> bits);
        let mut j = 0;
        while j < T::S::LEN {
            let (column, row) = (8 * (j as u32 / 4) + j as u32 % 2, (8 * (j as u32 / 2 % 2)) >> bits);
            if near.hides(&params.attention, column, row) {
                self.s[j] = f32::NEG_INFINITY;
            }
            j += 1;
        }
    }

    /// What decides which weights of P are dropped, a word for each four.
    #[inline(always)]
    pub(super) fn draw(&self, params: &AttentionParams, blocks: &KeyBlocks<T>, block: u32) -> T::Drawn {
        if !T::DROPOUT {
            return T::Drawn::ZERO;
        }
        let (lane, (head, first_row)) = (Lane::reread(2), self.rows);
        let key = blocks.first_key(block) + lane.column(0);
        params.dropout.reread().draw_of_fragment(head, first_row + lane.row(0), key)
    }

    /// Sets the weights of rounded P to 0 that are dropped by what [`Self::draw`] gave.
    #[inline(always)]
    pub(super) fn drop_weights(&mut self, params: &AttentionParams, drawn: &T::Drawn) {
        if T::DROPOUT {
            let mut j = 0;
            while j < T::Drawn::LEN {
                let masks = params.dropout.masks([drawn[j], drawn[j + 1], drawn[j + 2], drawn[j + 3]]);
                let mut i = 0;
                while i < masks.len() {
                    self.p[2 * j + i] &= masks[i];
                    i += 1;
                }
                j += 4;
            }
        }
    }

    /// P in the storage type.
    #[inline(always)]
    pub(super) fn round(&mut self) {
        let mut j = 0;
        while j < T::P::LEN {
            self.p[j] = T::Element::pack_p(j, |index| self.s[index]);
            j += 1;
        }
    }
}

/// Where score `j` of a thread is whose first is at `first`.
#[inline(always)]
const fn behind(first: Position, j: usize) -> Position {
    let (row, column) = (8 * (j as u32 / 2 % 2), 8 * (j as u32 / 4) + j as u32 % 2);
    // SAFETY: sequences end below 2^30, and so does a tile.
    let (query, key) = unsafe { (first.query.unchecked_add(row), first.key.unchecked_add(column)) };
    Position { query, key, ..first }
}

/// How far a thread's column `j` of a product lies to the right of its first.
#[inline(always)]
const fn column(j: usize) -> u32 {
    8 * (j as u32 / 2) + j as u32 % 2
}

/// Calls `visit` with both rows and all of so many columns of a thread.
#[inline(always)]
fn for_each(columns: usize, mut visit: impl FnMut(usize, usize)) {
    let mut j = 0;
    while j < columns {
        visit(0, j);
        visit(1, j);
        j += 1;
    }
}
