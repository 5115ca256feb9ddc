//! Keys class by class: rows that lie no multiple of 16 bytes apart ([`Residues`]).
//!
//! All blocks of one class of keys come before those of the next, whose rows start some columns further to
//! the right in their boxes. A softmax over all keys takes them in any order. Between two classes Q's columns
//! move to where K's then are, and O's to where V's are.

use super::Consumer;
use crate::attention::alignment::ByRows;
use crate::attention::alignment::panel_move::{move_left, move_right_by_one};
use crate::attention::alignment::residues::Residues;
use crate::attention::forward_sm90::epilogue;
use crate::attention::forward_sm90::key_blocks::{KeyBlocks, Seen};
use crate::attention::forward_sm90::tile::{QueryRows, Tile};
use crate::config::Sm90Config;
use crate::hopper::roles::{WARPGROUP, WARPGROUP_ROWS, leads_warp};
use crate::params::{AttentionParams, PersistentParams};
use crate::ptx::{fence, index, warp};
use crate::registers::Registers as _;
use crate::tile::mma::{Lane, QUAD};
use crate::tile::panels::Panels;

impl<T: Tile> Consumer<T> {
    /// All blocks of all classes, but for the last one's product with V. Nothing is masked but what is past
    /// the last key.
    #[inline(always)]
    pub(super) fn multiply_residues(
        &mut self,
        params: &PersistentParams,
        blocks: &KeyBlocks<T>,
        seen: &Seen,
    ) {
        let mut passes = ByRows::classes(&params.attention).count();
        self.align_queries(ByRows::classes(&params.attention));
        self.begin(params, blocks, seen, passes == 1 && seen.end == 1);
        loop {
            let mut block = last_block::<T>(&params.attention);
            while block > 0 {
                block -= 1;
                self.step::<false>(params, blocks, block, passes == 1 && block == 0);
            }
            passes -= 1;
            if passes == 0 {
                break;
            }
            self.cross(params, passes == 1);
        }
    }

    /// Scores and P of the first block of a class, after the last block of the one before was multiplied with
    /// V.
    #[inline(always)]
    fn cross(&mut self, params: &PersistentParams, is_last: bool) {
        let attention = &params.attention;
        let step = ByRows::classes(attention).step();
        self.values.wait();
        self.warpgroup.fence_products();
        self.begin_output();
        self.move_queries(step);
        self.keys.wait();
        self.warpgroup.fence_products();
        self.begin_scores();
        self.wait_output::<1>();
        self.values.leave(leads_warp());
        self.wait_scores::<0>();
        self.release_operands(params, is_last && last_block::<T>(attention) == 0);
        self.mask_tail(attention);
        let mut factors = self.exponentiate::<false>([0.0; 2]);
        self.round();
        let mut moved = 0;
        while moved < step {
            self.move_output_by_one(factors);
            factors = [f32::from_bits(index::unknown(1.0_f32.to_bits())); 2];
            moved += 1;
        }
    }

    /// Moves the columns of Q to the right.
    #[inline(always)]
    fn move_queries(&self, columns: u32) {
        // SAFETY: all warps have waited for their products with Q before the first barrier, and the next come
        // after the second.
        unsafe {
            self.warpgroup.sync(self.own_barrier());
            let mut moved = 0;
            while moved < columns {
                move_right_by_one(self.warp_queries());
                moved += 1;
            }
            fence::proxy_async();
            self.warpgroup.sync(self.own_barrier());
        }
    }

    /// The hardware barrier of this warpgroup.
    #[inline(always)]
    fn own_barrier(&self) -> u32 {
        epilogue::FIRST_BARRIER + self.warpgroup.index()
    }

    /// Sets the scores past the last key of a class to −∞, in its last block.
    #[inline(always)]
    pub(super) fn mask_tail(&mut self, params: &AttentionParams) {
        let keys = index::unknown(params.seqlen_k) % T::BLOCK_N;
        if keys == 0 {
            return;
        }
        let keys = keys.saturating_sub(Lane::reread(2).column(0));
        let mut j = 0;
        while j < T::S::LEN {
            if 8 * (j as u32 / 4) + j as u32 % 2 >= keys {
                self.s[j] = f32::NEG_INFINITY;
            }
            j += 1;
        }
    }

    /// Moves each row of Q, which is there, to the left, so that it begins with its tile's first column.
    #[inline(always)]
    fn align_queries(&self, classes: Residues) {
        let thread = index::reread_thread() % WARPGROUP;
        let place = thread / 32 * Sm90Config::WARP_ROWS + thread % Sm90Config::WARP_ROWS;
        let (class, _) = classes.at_place(WARPGROUP_ROWS, place);
        // SAFETY: Q is there, each warp moves its own rows, and the products come after the barrier.
        unsafe {
            move_left(self.warp_queries(), classes.shift(class));
            fence::proxy_async();
            self.warpgroup.sync(self.own_barrier());
        }
    }

    /// This warp's rows of Q, whose elements have 16 bits.
    #[inline(always)]
    fn warp_queries(&self) -> Panels<QueryRows<T>> {
        let warp_row = index::reread_thread() % WARPGROUP / 32 * Sm90Config::WARP_ROWS;
        self.pipeline.q(self.warpgroup.index()).from_row(warp_row)
    }

    /// Moves the columns of O to the right by one, and multiplies both rows by a factor each. A zero comes in
    /// from the left. No product adds to O meanwhile.
    #[inline(always)]
    fn move_output_by_one(&mut self, factors: [f32; 2]) {
        let lane = index::reread_thread() % 32;
        let first = lane.is_multiple_of(QUAD);
        // Of the pairs of columns in eight, that of the lane before; of the first one, the last of the eight
        // before.
        let source = lane - lane % QUAD + (lane + QUAD - 1) % QUAD;
        let mut before = [0.0; 2];
        let mut j = 0;
        while j < T::O::LEN {
            let row = j / 2 % 2;
            // SAFETY: all lanes of the warp are here.
            let other = unsafe { warp::shuffle(self.o[j + 1], source) };
            // A bare copy in place of the product would make ptxas look for a second set of registers for all
            // of O.
            self.o[j + 1] = self.o[j] * factors[row];
            self.o[j] = if first { before[row] } else { other } * factors[row];
            before[row] = other;
            j += 2;
        }
    }
}

/// Index of the last of a class's blocks of keys, found anew by each call: it would otherwise be kept in a
/// register.
#[inline(always)]
fn last_block<T: Tile>(params: &AttentionParams) -> u32 {
    (index::unknown(params.seqlen_k) - 1) / T::BLOCK_N
}
