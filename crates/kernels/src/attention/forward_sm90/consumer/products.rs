//! What a warpgroup does with a stage of K or V: the products, and scores between them.

use super::{Consumer, scale_rows};
use crate::attention::forward_sm90::Rows;
use crate::attention::forward_sm90::key_blocks::KeyBlocks;
use crate::attention::forward_sm90::operand::Operand;
use crate::mask::TileMask;
use crate::params::AttentionParams;
use crate::ptx::warp;
use crate::ptx::wgmma::{self, Accumulator};
use crate::tile::mma::Lane;
use crate::tile::panels::Panels;

impl<
    E: Operand,
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const STAGES: u32,
    const SCORES: usize,
    const PAIRS: usize,
    const OUT: usize,
    const SCORE_MOD: bool,
    const ROW_CLASSES: bool,
    const BYTES: u32,
> Consumer<E, BLOCK_M, BLOCK_N, HEAD_DIM, STAGES, SCORES, PAIRS, OUT, SCORE_MOD, ROW_CLASSES, BYTES>
where
    [f32; SCORES]: Accumulator,
    [f32; OUT]: Accumulator,
{
    /// Brings O to the new m.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    pub(super) unsafe fn rescale(&mut self, rescale: [f32; 2]) {
        // SAFETY: the caller's contract.
        if unsafe { warp::vote_any(rescale[0] != 1.0 || rescale[1] != 1.0) } {
            scale_rows(&mut self.o, rescale);
        }
    }

    /// Begins S = Q·Kᵀ with the stage of K at hand.
    ///
    /// # Safety
    /// As [`Self::run`]; both are there.
    #[inline(always)]
    pub(super) unsafe fn multiply_keys(&mut self) {
        let [q, k, _] = self.operands;
        let k = k.behind(self.keys.stage() * Panels::<BLOCK_N, HEAD_DIM, BYTES>::BYTES);
        let mut step = 0;
        while step < HEAD_DIM / Self::CONFIG.depth() {
            let a = q.behind(Rows::<HEAD_DIM, BYTES>::columns(step)).bits();
            let b = k.behind(Panels::<BLOCK_N, HEAD_DIM, BYTES>::columns(step)).bits();
            // SAFETY: the caller's contract.
            unsafe {
                if Self::IN_PARTS && step == 0 {
                    self.s.begin_ss::<E>(a, b);
                } else {
                    self.s.multiply_ss::<E, false, false>(a, b, step > 0);
                }
            }
            step += 1;
        }
        // SAFETY: the caller's contract.
        unsafe { wgmma::commit_group() };
    }

    /// Begins O += P·V with the stage of 16-bit V at hand.
    ///
    /// # Safety
    /// As [`Self::run`]; it is there.
    #[inline(always)]
    pub(super) unsafe fn multiply_values(&mut self) {
        let [_, _, v] = self.operands;
        let v = v.behind(self.values.stage() * Panels::<BLOCK_N, HEAD_DIM>::BYTES);
        let mut step = 0;
        while step < PAIRS / 4 {
            let a = [self.p[4 * step], self.p[4 * step + 1], self.p[4 * step + 2], self.p[4 * step + 3]];
            let b = v.behind(Panels::<BLOCK_N, HEAD_DIM>::rows(step as u32)).bits();
            // SAFETY: the caller's contract.
            unsafe { self.o.multiply_rs::<E, true>(a, b, true) };
            step += 1;
        }
        // SAFETY: the caller's contract.
        unsafe { wgmma::commit_group() };
    }

    /// What happens to scores between the product and the mask.
    #[inline(always)]
    pub(super) fn change_scores(
        &mut self,
        params: &AttentionParams,
        blocks: &KeyBlocks<BLOCK_N>,
        block: u32,
    ) {
        if SCORE_MOD {
            let lane = Lane::anew::<2>();
            let place = blocks.mask.place(BLOCK_M, blocks.first_key(block));
            let diagonal = TileMask::diagonal_from(params, BLOCK_M, place);
            // Row by row: the same registers under other names.
            let index = |i: usize, j: usize| 4 * (j / 2) + 2 * i + j % 2;
            let mut scores = [[0.0; PAIRS]; 2];
            for_each::<PAIRS>(|i, j| scores[i][j] = self.s[index(i, j)]);
            self.score_mod.apply(params, &mut scores, diagonal, |i| lane.row(i), |j| lane.column(j));
            for_each::<PAIRS>(|i, j| self.s[index(i, j)] = scores[i][j]);
        }
    }

    /// Sets the scores of keys that their row does not see to −∞.
    #[inline(always)]
    pub(super) fn mask(&mut self, params: &AttentionParams, blocks: &KeyBlocks<BLOCK_N>, block: u32) {
        let lane = Lane::anew::<2>();
        let near = blocks.mask.near(blocks.first_key(block) + lane.column(0), lane.row(0));
        let mut j = 0;
        while j < SCORES {
            let (column, row) = (8 * (j as u32 / 4) + j as u32 % 2, 8 * (j as u32 / 2 % 2));
            if near.hides(params, column, row) {
                self.s[j] = f32::NEG_INFINITY;
            }
            j += 1;
        }
    }

    /// P in the storage type.
    #[inline(always)]
    pub(super) fn round(&mut self) {
        let mut j = 0;
        while j < PAIRS {
            self.p[j] = E::pack_p(j, |index| self.s[index]);
            j += 1;
        }
    }
}

/// Calls `visit` with both rows and all `COLUMNS` columns of a thread.
#[inline(always)]
fn for_each<const COLUMNS: usize>(mut visit: impl FnMut(usize, usize)) {
    let mut j = 0;
    while j < COLUMNS {
        visit(0, j);
        visit(1, j);
        j += 1;
    }
}
