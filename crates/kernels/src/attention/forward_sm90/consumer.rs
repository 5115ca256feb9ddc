//! The warpgroups that multiply.

mod classes;
mod parts;
mod products;

use super::key_blocks::{KeyBlocks, Seen};
use super::operand::Operand;
use super::schedule::{self, Schedule};
use super::tile::{KeyStages, Tile};
use super::{Pipeline, WARPGROUP, WARPGROUP_ROWS, first_row, output, turns};
use crate::config::Sm90Config;
use crate::params::{AttentionParams, PersistentParams};
use crate::ptx::wgmma::{self, Accumulator as _};
use crate::ptx::{barrier, index, warp};
use crate::registers::Registers;
use crate::scheduler::WorkTile;
use crate::score::ScoreMod;
use crate::softmax::OnlineSoftmax;
use crate::tile::mma::QUAD;
use crate::tile::ring::{Count, Ring};
use crate::tile::wgmma::Descriptor;

/// One of the warpgroups that multiply: its place in the rings, and its rows of a tile.
///
/// A thread holds of S, P and O what [`wgmma`] says: two rows, pairs of columns of the one and the other in
/// turn.
pub(super) struct Consumer<T: Tile> {
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
    softmax: OnlineSoftmax<2, QUAD, T::Element>,
    /// Of the tile's head; used with [`Tile::SCORE_MOD`].
    score_mod: ScoreMod,
}

impl<T: Tile> Consumer<T> {
    const IN_PARTS: bool = T::Element::SUMS_IN_PARTS;

    /// Whether this is its warp's first lane; found anew by each call where registers are few.
    #[inline(always)]
    fn leads_warp() -> bool {
        if Self::IN_PARTS { index::thread_anew().is_multiple_of(32) } else { leads_warp() }
    }

    #[inline(always)]
    fn leaves_through_queries(params: &PersistentParams) -> bool {
        Pipeline::<T>::leaves_through_queries(params)
    }

    #[inline(always)]
    pub(super) fn new(pipeline: Pipeline<T>) -> Self {
        let warpgroup = warpgroup();
        Self {
            pipeline,
            turn: if T::TAKES_TURNS { warpgroup } else { 0 },
            queries: Ring::consumer(pipeline.q_barriers(warpgroup)),
            keys: Ring::consumer(pipeline.k_barriers()),
            values: Ring::consumer(pipeline.v_barriers()),
            operands: [
                pipeline.q(warpgroup).descriptor(),
                pipeline.k().descriptor(),
                pipeline.v().descriptor(),
            ],
            s: T::S::ZERO,
            p: T::P::ZERO,
            o: T::O::ZERO,
            softmax: OnlineSoftmax::with_positive_scale(1.0),
            score_mod: ScoreMod::default(),
        }
    }

    /// Computes and stores this warpgroup's rows of all tiles of this block.
    ///
    /// # Safety
    /// All threads of the warpgroup call this together, in a launch as [`forward_sm90`](super::forward_sm90)
    /// says.
    #[inline(always)]
    pub(super) unsafe fn run(&mut self, params: &PersistentParams, o_map: u64) {
        // SAFETY: the caller's contract.
        unsafe {
            if self.turn == 1 {
                self.pass_turn();
            }
            let mut schedule = Schedule::consumer(self.pipeline.schedule());
            while schedule.wait() {
                let barriers = self.pipeline.q_barriers(warpgroup());
                self.queries = Ring::consumer_of_phase(barriers, schedule.phase());
                let finished = self.attend(params, &schedule.work());
                if has_rows::<T>(params, &schedule.work()) {
                    output::store::<T>(
                        params,
                        o_map,
                        self.pipeline,
                        &schedule,
                        &mut self.o,
                        finished,
                    );
                } else {
                    warp::sync(); // All lanes have read the slot that the first one is about to leave.
                }
                if Self::leaves_through_queries(params) {
                    output::wait();
                    self.release_queries();
                }
                schedule.leave(Self::leads_warp());
            }
            output::wait_all();
        }
    }

    /// O before its rows are divided by their sums; returns for both rows what [`OnlineSoftmax::finish`]
    /// does.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn attend(&mut self, params: &PersistentParams, work: &WorkTile) -> [(f32, f32); 2] {
        let reread;
        let params = if Self::IN_PARTS {
            // O and its parts leave no registers for what follows from the window in every tile alike.
            reread = schedule::anew(params);
            &reread
        } else {
            params
        };
        let tile_row = first_row::<T>(params, work.tile);
        let first_row = tile_row + WARPGROUP_ROWS * warpgroup();
        let has_rows = has_rows::<T>(params, work);
        let attention = &params.attention;
        let blocks = KeyBlocks::<T>::of_tile(attention, work, tile_row);
        let seen = blocks.seen_by(attention, work, first_row, WARPGROUP_ROWS);
        let seen = if T::TAKES_TURNS { blocks.all(seen) } else { seen };
        let seen = if has_rows { seen } else { Seen { begin: 0, end: 0, ..seen } };
        let softmax_scale = if T::SCORE_MOD { 1.0 } else { attention.softmax_scale };
        self.softmax = OnlineSoftmax::with_positive_scale(softmax_scale);
        self.o = T::O::ZERO;
        let sees = seen.begin < seen.end;
        // SAFETY: the caller's contract.
        unsafe {
            if T::SCORE_MOD {
                self.score_mod = ScoreMod::of_head(attention, work);
            }
            self.queries.wait();
            if !T::ROW_CLASSES {
                self.pass_over(blocks.count - seen.end);
            } else if !sees {
                self.pass_over(blocks.count * turns::<T>(attention));
            }
            let finished = if sees {
                if T::ROW_CLASSES {
                    self.multiply_classes(params, &blocks, &seen);
                } else {
                    self.multiply_blocks(params, &blocks, &seen);
                }
                if !Self::IN_PARTS {
                    self.values.wait();
                    wgmma::fence();
                    self.multiply_values();
                }
                let finished = [self.finish(attention, 0), self.finish(attention, 1)];
                if !Self::IN_PARTS {
                    self.o.wait_group::<0>();
                    self.values.leave(Self::leads_warp());
                }
                finished
            } else {
                warp::sync(); // As in `pass_over`.
                if !Self::leaves_through_queries(params) {
                    self.release_queries();
                }
                [(0.0, f32::NEG_INFINITY); 2]
            };
            self.pass_over(seen.begin);
            finished
        }
    }

    /// All blocks that the rows see, but for the last one's product with V where it is not taken in parts.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn multiply_blocks(
        &mut self,
        params: &PersistentParams,
        blocks: &KeyBlocks<T>,
        seen: &Seen,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            let mut block = seen.end;
            if !Self::IN_PARTS {
                block -= 1;
                self.begin(params, blocks, seen, block == seen.begin);
            }
            while block > seen.begin && block > seen.whole_end {
                block -= 1;
                self.step::<true>(params, blocks, block, block == seen.begin);
            }
            while block > seen.begin && block > seen.whole_begin {
                block -= 1;
                self.step::<false>(params, blocks, block, block == seen.begin);
            }
            while block > seen.begin {
                block -= 1;
                self.step::<true>(params, blocks, block, block == seen.begin);
            }
        }
    }

    /// Scores and P of the first block, which is the last that the rows see. Q is left behind its product
    /// where that is Q's `last`.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn begin(
        &mut self,
        params: &PersistentParams,
        blocks: &KeyBlocks<T>,
        seen: &Seen,
        last: bool,
    ) {
        let block = seen.end - 1;
        // SAFETY: the caller's contract.
        unsafe {
            self.keys.wait();
            wgmma::fence();
            self.multiply_keys();
            self.s.wait_group::<0>();
            self.release_operands(params, last);
            self.change_scores(&params.attention, blocks, block);
            if T::ROW_CLASSES {
                self.mask_tail(&params.attention);
            } else if block >= seen.whole_end || block < seen.whole_begin {
                self.mask(&params.attention, blocks, block);
            }
            self.softmax.step_in_turn::<_, true>(&mut self.s);
            self.round();
        }
    }

    /// Scores and P of a block, while P of the block before it is multiplied with V. Q is left behind its
    /// product where that is Q's `last`.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn step<const MASKED: bool>(
        &mut self,
        params: &PersistentParams,
        blocks: &KeyBlocks<T>,
        block: u32,
        last: bool,
    ) {
        if Self::IN_PARTS {
            // SAFETY: the caller's contract.
            return unsafe { self.step_in_parts::<MASKED>(params, blocks, block, last) };
        }
        // SAFETY: the caller's contract.
        unsafe {
            self.keys.wait();
            self.take_turn();
            wgmma::fence();
            self.multiply_keys();
            self.values.wait();
            wgmma::fence();
            self.multiply_values();
            self.pass_turn();
            self.s.wait_group::<1>();
            self.release_operands(params, last);
            self.change_scores(&params.attention, blocks, block);
            if MASKED {
                self.mask(&params.attention, blocks, block);
            }
            let rescale = self.softmax.step_in_turn::<_, MASKED>(&mut self.s);
            self.o.wait_group::<0>();
            self.values.leave(Self::leads_warp());
            self.round();
            self.rescale(rescale);
        }
    }

    /// What [`OnlineSoftmax::finish`] does, with the factor of 8-bit V in 1/l.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn finish(&self, params: &AttentionParams, row: usize) -> (f32, f32) {
        // SAFETY: the caller's contract.
        let (factor, lse) = unsafe { self.softmax.finish(row) };
        (if Self::IN_PARTS { factor * params.dropout.scale } else { factor }, lse)
    }

    /// Leaves blocks to the other warpgroups, of which these rows see nothing.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn pass_over(&mut self, blocks: u32) {
        let mut passed = 0;
        while passed < blocks {
            if Self::IN_PARTS {
                self.values = self.values_beside_keys();
            }
            // SAFETY: the caller's contract.
            unsafe {
                // A lane that still waits while another releases would miss the phase.
                self.keys.wait();
                warp::sync();
                self.keys.leave(Self::leads_warp());
                self.values.wait();
                warp::sync();
                self.values.leave(Self::leads_warp());
            }
            passed += 1;
        }
    }

    /// Leaves K, and with the `last` block Q too, so that the next tile's can come.
    ///
    /// # Safety
    /// As [`Self::run`], once the products of scores have read both.
    #[inline(always)]
    unsafe fn release_operands(&mut self, params: &PersistentParams, last: bool) {
        // SAFETY: the caller's contract.
        unsafe {
            self.keys.leave(Self::leads_warp());
            if last && !Self::leaves_through_queries(params) {
                self.release_queries();
            }
        }
    }

    /// # Safety
    /// As [`Self::run`], once nobody reads or writes the rows of Q in shared memory any more.
    #[inline(always)]
    unsafe fn release_queries(&mut self) {
        if Self::leads_warp() {
            // SAFETY: the caller's contract; one lane of each warp releases.
            unsafe { self.queries.release() };
        }
    }

    /// Waits until the other warpgroup has issued its products.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn take_turn(&self) {
        if T::TAKES_TURNS {
            // SAFETY: the caller's contract.
            unsafe { barrier::sync(1 + self.turn, 2 * WARPGROUP) };
        }
    }

    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn pass_turn(&self) {
        if T::TAKES_TURNS {
            // SAFETY: the caller's contract.
            unsafe { barrier::arrive(2 - self.turn, 2 * WARPGROUP) };
        }
    }
}

/// Index of this thread's warpgroup, in a register that is known to be uniform; found anew by each call.
#[inline(always)]
pub(super) fn warpgroup() -> u32 {
    // SAFETY: the whole warp calls this.
    unsafe { warp::broadcast(index::thread_anew() / WARPGROUP, 0) }
}

/// Whether this thread's warpgroup has a part in the tile: the last of three has none in a short one.
#[inline(always)]
fn has_rows<T: Tile>(params: &PersistentParams, work: &WorkTile) -> bool {
    let rows = const { Sm90Config::short_block_m(T::BLOCK_M) };
    rows == T::BLOCK_M || work.tile >= params.short_tiles || WARPGROUP_ROWS * warpgroup() < rows
}

/// Whether this is its warp's first lane.
#[inline(always)]
pub(super) fn leads_warp() -> bool {
    index::thread().is_multiple_of(32)
}

/// Multiplies a thread's two rows by a factor each.
#[inline(always)]
pub(super) fn scale_rows<O: Registers<Value = f32>>(o: &mut O, factors: [f32; 2]) {
    let mut j = 0;
    while j < O::LEN {
        o[j] *= factors[j / 2 % 2];
        j += 1;
    }
}
