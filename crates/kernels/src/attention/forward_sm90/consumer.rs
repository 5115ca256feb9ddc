//! The warpgroups that multiply.

mod classes;
mod parts;
mod products;

use core::marker::PhantomData;

use super::key_blocks::{KeyBlocks, Seen};
use super::operand::Operand;
use super::schedule::{self, Schedule};
use super::{Pipeline, WARPGROUP, WARPGROUP_ROWS, first_row, output, turns};
use crate::config::Sm90Config;
use crate::params::{AttentionParams, PersistentParams};
use crate::ptx::wgmma::{self, Accumulator};
use crate::ptx::{barrier, index, warp};
use crate::scheduler::WorkTile;
use crate::score::ScoreMod;
use crate::softmax::OnlineSoftmax;
use crate::tile::mma::QUAD;
use crate::tile::ring::Ring;
use crate::tile::wgmma::Descriptor;

/// One of the warpgroups that multiply: its place in the rings, and its rows of a tile.
///
/// A thread holds of S, P and O what [`wgmma`] says: two rows, pairs of columns of the one and the other in
/// turn.
pub(super) struct Consumer<
    E,
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
> {
    pipeline: Pipeline<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES, BYTES>,
    /// Which of two warpgroups this is, where they take turns.
    turn: u32,
    queries: Ring<1>,
    keys: Ring<STAGES>,
    values: Ring<STAGES>,
    /// Of Q, and of the first stages of K and V.
    operands: [Descriptor; 3],
    s: [f32; SCORES],
    /// P, rounded, as A of its product with V.
    p: [u32; PAIRS],
    o: [f32; OUT],
    softmax: OnlineSoftmax<2, QUAD, BYTES>,
    /// Of the tile's head; used with `SCORE_MOD`.
    score_mod: ScoreMod,
    element: PhantomData<E>,
}

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
    const CONFIG: Sm90Config = Pipeline::<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES, BYTES>::CONFIG;
    const TAKES_TURNS: bool = Self::CONFIG.takes_turns();
    /// Whether P·V is summed in two levels: the sums of 8-bit products.
    const IN_PARTS: bool = BYTES == 1;

    /// Whether this is its warp's first lane; found anew by each call where registers are few.
    #[inline(always)]
    fn leads_warp() -> bool {
        if Self::IN_PARTS { index::thread_anew().is_multiple_of(32) } else { leads_warp() }
    }

    #[inline(always)]
    fn leaves_through_queries(params: &PersistentParams) -> bool {
        Pipeline::<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES, BYTES>::leaves_through_queries(params)
    }

    #[inline(always)]
    pub(super) fn new(pipeline: Pipeline<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES, BYTES>) -> Self {
        let warpgroup = warpgroup();
        Self {
            pipeline,
            turn: if Self::TAKES_TURNS { warpgroup } else { 0 },
            queries: Ring::consumer(pipeline.q_barriers(warpgroup)),
            keys: Ring::consumer(pipeline.k_barriers()),
            values: Ring::consumer(pipeline.v_barriers()),
            operands: [
                pipeline.q(warpgroup).descriptor(),
                pipeline.k().descriptor(),
                pipeline.v().descriptor(),
            ],
            s: [0.0; SCORES],
            p: [0; PAIRS],
            o: [0.0; OUT],
            softmax: OnlineSoftmax::with_positive_scale(1.0),
            score_mod: ScoreMod::default(),
            element: PhantomData,
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
                if has_rows::<BLOCK_M>(params, &schedule.work()) {
                    output::store::<E::Output, BLOCK_M, BLOCK_N, HEAD_DIM, STAGES, OUT, ROW_CLASSES, BYTES>(
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
        let tile_row = first_row::<BLOCK_M>(params, work.tile);
        let first_row = tile_row + WARPGROUP_ROWS * warpgroup();
        let has_rows = has_rows::<BLOCK_M>(params, work);
        let attention = &params.attention;
        let blocks = KeyBlocks::<BLOCK_N>::of_tile::<BLOCK_M, BYTES>(attention, work, tile_row);
        let seen = blocks.seen_by(attention, work, first_row, WARPGROUP_ROWS);
        let seen = if Self::TAKES_TURNS { blocks.all(seen) } else { seen };
        let seen = if has_rows { seen } else { Seen { begin: 0, end: 0, ..seen } };
        let softmax_scale = if SCORE_MOD { 1.0 } else { attention.softmax_scale };
        self.softmax = OnlineSoftmax::with_positive_scale(softmax_scale);
        self.o = [0.0; OUT];
        let sees = seen.begin < seen.end;
        // SAFETY: the caller's contract.
        unsafe {
            if SCORE_MOD {
                self.score_mod = ScoreMod::of_head(attention, work);
            }
            self.queries.wait();
            if !ROW_CLASSES {
                self.pass_over(blocks.count - seen.end);
            } else if !sees {
                self.pass_over(blocks.count * turns::<ROW_CLASSES>(attention));
            }
            let finished = if sees {
                if ROW_CLASSES {
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
        blocks: &KeyBlocks<BLOCK_N>,
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
        blocks: &KeyBlocks<BLOCK_N>,
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
            if ROW_CLASSES {
                self.mask_tail(&params.attention);
            } else if block >= seen.whole_end || block < seen.whole_begin {
                self.mask(&params.attention, blocks, block);
            }
            self.softmax.step_in_turn::<SCORES, true>(&mut self.s);
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
        blocks: &KeyBlocks<BLOCK_N>,
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
            let rescale = self.softmax.step_in_turn::<SCORES, MASKED>(&mut self.s);
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
        (if BYTES == 1 { factor * params.dropout.scale } else { factor }, lse)
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
        if Self::TAKES_TURNS {
            // SAFETY: the caller's contract.
            unsafe { barrier::sync(1 + self.turn, 2 * WARPGROUP) };
        }
    }

    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn pass_turn(&self) {
        if Self::TAKES_TURNS {
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
fn has_rows<const BLOCK_M: u32>(params: &PersistentParams, work: &WorkTile) -> bool {
    let rows = const { Sm90Config::short_block_m(BLOCK_M) };
    rows == BLOCK_M || work.tile >= params.short_tiles || WARPGROUP_ROWS * warpgroup() < rows
}

/// Whether this is its warp's first lane.
#[inline(always)]
pub(super) fn leads_warp() -> bool {
    index::thread().is_multiple_of(32)
}

/// Multiplies a thread's two rows by a factor each.
#[inline(always)]
pub(super) fn scale_rows<const OUT: usize>(o: &mut [f32; OUT], factors: [f32; 2]) {
    let mut j = 0;
    while j < OUT {
        o[j] *= factors[j / 2 % 2];
        j += 1;
    }
}
