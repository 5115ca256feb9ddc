//! The warpgroups that multiply where one holds dV and the other dK, of the same 64 keys.
//!
//! Both have the same loop: a product with an owned tensor and the step's one tensor, what follows from it,
//! and a product of that with the step's other tensor. One makes P from the scores and sums dV; the other
//! makes dS from dP and that P, which comes to it through shared memory in fp32, and sums dK.

use core::f32::consts::LOG2_E;

use super::Pipeline;
use super::block::{Block, Source};
use super::carried;
use super::epilogue::{FIRST_BARRIER, store_warp};
use super::scores::{self, Place, QueryHead, gradient_of_score};
use super::tickets::TileSlots;
use super::tile::{OwnedRows, OwnedStages, StepRows, StepStages, Tile};
use crate::attention::stored_ds;
use crate::config::BackwardSm90Config;
use crate::hopper::epilogue::{scale_rows, wait_all};
use crate::hopper::ring::Ring;
use crate::hopper::roles::{WARP_ROWS, WARPGROUP, WARPGROUP_ROWS, WARPS, Warpgroup};
use crate::mask::MaskCorner;
use crate::params::{AttentionParams, BackwardParams};
use crate::ptx::wgmma::Accumulator as _;
use crate::ptx::{barrier, index, math, shared};
use crate::registers::Registers as _;
use crate::tile::mma::{Lane, MmaElement as _};
use crate::tile::panels::Panels;
use crate::tile::wgmma::Descriptor;

/// Hardware barriers: at which P has been written, and at which it has been read.
const WRITTEN: u32 = 1;
const READ: u32 = 2;

/// The warpgroup that computes P and dV, or `OF_KEYS` that of dS and dK.
pub(super) struct SplitConsumer<T: Tile, const OF_KEYS: bool> {
    warpgroup: Warpgroup,
    pipeline: Pipeline<T>,
    steps: Ring<StepStages<T>>,
    /// K, or V.
    owned: Descriptor,
    /// Of the first stage: Q and dO for the first and the second product, or dO and Q.
    others: [Descriptor; 2],
    /// Scores, then P; or dP, then dS / softmax_scale.
    s: T::S,
    /// It, rounded, as A of the second product.
    packed: T::Packed,
    /// dV, or dK / softmax_scale.
    gradient: T::Gradient,
    /// That of the step; of tiles that change scores alone.
    head: QueryHead,
    /// This thread's first piece of a step's dS.
    ds_at: u32,
    /// The mask from the first query, and the first of the block's keys, on.
    corner: MaskCorner,
}

impl<T: Tile, const OF_KEYS: bool> SplitConsumer<T, OF_KEYS> {
    /// Products of a step with A in registers.
    const DEPTHS: usize = T::Packed::LEN / 4;
    /// First products of a step.
    const FIRST: usize = T::HEAD_DIM as usize / 16;

    /// This thread's part of it.
    ///
    /// # Safety
    /// All threads of the warpgroup make one and call its methods together, in a launch as
    /// [`backward_sm90`](super::backward_sm90) says, whose barriers are made; the other warpgroup makes the
    /// other.
    #[inline(always)]
    pub(super) unsafe fn new(pipeline: Pipeline<T>) -> Self {
        let (first, second) = if OF_KEYS { (1, 0) } else { (0, 1) };
        // SAFETY: the warpgroup's threads are together; its warps are consumers of the ring, and leave each
        // stage when its products are over.
        unsafe {
            Self {
                warpgroup: Warpgroup::new(),
                pipeline,
                steps: Ring::consumer(pipeline.step_barriers()),
                owned: pipeline.owned(first, 0).descriptor(),
                others: [pipeline.step(first, 0).descriptor(), pipeline.step(second, 0).descriptor()],
                s: T::S::ZERO,
                packed: T::Packed::ZERO,
                gradient: T::Gradient::ZERO,
                head: QueryHead::default(),
                ds_at: 0,
                corner: MaskCorner::default(),
            }
        }
    }

    /// Computes and stores the gradient of a block that has one tile.
    #[inline(always)]
    pub(super) fn run(&mut self, params: &BackwardParams, block: &Block<T>) {
        if block.steps() > 0 {
            // SAFETY: the ring's barriers are made, and its stage is never released.
            unsafe { Ring::<OwnedStages<T>>::consumer(self.pipeline.owned_barriers()) }.wait();
            self.multiply(params, block);
        }
        // Found anew: the loop has no registers to keep it in.
        // SAFETY: the launch is the kernel's.
        let block = unsafe { Block::new(params) };
        self.store(params, &block, 0);
        wait_all();
    }

    /// Computes and stores this warpgroup's gradient of all tiles of keys that are announced.
    #[inline(always)]
    pub(super) fn run_tiles(&mut self, params: &BackwardParams, slots: &mut TileSlots<T>) {
        let pipeline = self.pipeline;
        while let Some(stage) = slots.next_of_keys(pipeline) {
            self.owned = pipeline.owned(OF_KEYS as u32, stage).descriptor();
            // SAFETY: what the block owns is there, and so the tile's copies have waited for others.
            self.gradient = unsafe { carried::restore(params, slots, OF_KEYS as u32) };
            if (&*slots).block().steps() > 0 {
                self.multiply(params, &*slots);
            }
            if slots.goes_on() {
                // SAFETY: the warpgroup's threads are together.
                unsafe { carried::save(params, slots, OF_KEYS as u32, &self.gradient) };
            } else {
                self.store(params, &(&*slots).block(), stage);
            }
            slots.leave_keys(pipeline);
        }
        wait_all();
    }

    /// Sums the gradient over all steps, of which there are some; what the block owns is there.
    #[inline(always)]
    fn multiply(&mut self, params: &BackwardParams, source: impl Source<T>) {
        if OF_KEYS {
            self.arrive(READ);
        }
        self.begin();
        self.head = QueryHead::before(&source.block());
        let Block { work, owned, first, heads, .. } = source.block();
        self.corner = MaskCorner::new(&params.attention, &work, 0, owned);
        if OF_KEYS && T::STORES_DS {
            let key = source.block().owned + warp_row() + Lane::reread(2).group;
            self.ds_at = source.block().first_piece(params, key);
        }
        let (mut row, mut heads, mut left) = (first, heads, source.block().steps_of_head());
        while left > 1 || heads > 1 {
            self.step::<false>(params, source, row);
            row += T::STEP;
            left -= 1;
            if OF_KEYS && T::STORES_DS {
                self.ds_at += params.ds.panel_pieces;
            }
            if left == 0 {
                heads -= 1;
                row = source.block().first;
                left = source.block().steps_of_head();
                if OF_KEYS && T::STORES_DS {
                    self.ds_at += params.ds.head_pieces - left * params.ds.panel_pieces;
                }
            }
        }
        self.step::<true>(params, source, row);
        if !OF_KEYS {
            // The last P has been read too, and its barrier is left as it was found.
            self.meet(READ);
        }
    }

    /// The first product of the first step.
    #[inline(always)]
    fn begin(&mut self) {
        self.steps.wait();
        self.warpgroup.fence_products();
        let mut depth = 0;
        while depth < Self::FIRST {
            self.begin_first(depth);
            depth += 1;
        }
        self.warpgroup.commit_products();
        // SAFETY: the warpgroup's threads are together.
        unsafe { self.s.wait_group::<0>() };
    }

    /// A step whose first product is there, but for the `LAST` with that of the next.
    #[inline(always)]
    fn step<const LAST: bool>(&mut self, params: &BackwardParams, source: impl Source<T>, row: u32) {
        if OF_KEYS {
            self.differentiate(params);
        } else {
            if !T::SCORE_MOD {
                self.mask(&params.attention, row);
            }
            self.exponentiate(params, &source.block(), row);
        }
        let at_hand = self.steps;
        self.steps.advance();
        if !LAST {
            self.steps.wait();
        }
        self.warpgroup.fence_products();
        self.begin_products::<LAST>(at_hand.stage());
        self.warpgroup.commit_products();
        if OF_KEYS && T::STORES_DS {
            // SAFETY: the workspace holds all panels of the launch's heads, and the piece is this thread's.
            unsafe { stored_ds::store(&params.ds, self.ds_at, &self.packed) };
        }
        // SAFETY: the warpgroup's threads are together.
        unsafe {
            if !LAST {
                self.s.wait_group::<0>();
            }
            self.gradient.wait_group::<0>();
        }
        // All lanes have read their statistics.
        self.warpgroup.sync_warps();
        if index::reread_thread().is_multiple_of(32) {
            at_hand.release();
        }
    }

    /// Begins a sixteenth of K of the first product with the stage at hand, which is there.
    #[inline(always)]
    fn begin_first(&mut self, depth: usize) {
        let others = self.others[0].behind(const { T::CONFIG.step_bytes() } * self.steps.stage());
        let owned = if T::SCORE_MOD { self.owned.reread() } else { self.owned };
        let a = owned.behind(Panels::<OwnedRows<T>>::columns(depth as u32)).bits();
        let b = others.behind(Panels::<StepRows<T>>::columns(depth as u32)).bits();
        // SAFETY: both are there and stay until the wait; the warpgroup's threads are together.
        unsafe { self.s.multiply_ss::<T::Element, false, false>(a, b, depth > 0) };
    }

    /// Begins what a step adds to the gradient, and, but for the `LAST`, the first product of the next step,
    /// which is at hand: products with A in registers and in shared memory in turn.
    #[inline(always)]
    fn begin_products<const LAST: bool>(&mut self, stage: u32) {
        let mut first = 0;
        while first < Self::FIRST {
            if first * Self::DEPTHS % Self::FIRST < Self::DEPTHS {
                self.begin_second(stage, first * Self::DEPTHS / Self::FIRST);
            }
            if !LAST {
                self.begin_first(first);
            }
            first += 1;
        }
    }

    /// Begins a sixteenth of K of the second product with a stage.
    #[inline(always)]
    fn begin_second(&mut self, stage: u32, depth: usize) {
        let a = [0, 1, 2, 3].map(|i| self.packed[4 * depth + i]);
        let others = self.others[1].behind(const { T::CONFIG.step_bytes() } * stage);
        let b = others.behind(Panels::<StepRows<T>>::rows(depth as u32)).bits();
        // SAFETY: the stage is there and stays until the wait; the warpgroup's threads are together.
        unsafe { self.gradient.multiply_rs::<T::Element, true>(a, b, true) };
    }

    /// Sets the scores of keys that their query does not see to −∞, of the step that begins with `row`.
    #[inline(always)]
    fn mask(&mut self, attention: &AttentionParams, row: u32) {
        if self.corner.behind(0, row).all_see(attention, WARPGROUP_ROWS, T::STEP) {
            return;
        }
        let lane = Lane::reread(2);
        let near = self.corner.behind(warp_row() + lane.group, row + lane.column(0));
        let mut j = 0;
        while j < T::S::LEN {
            let (query, key) = (8 * (j as u32 / 4) + j as u32 % 2, 8 * (j as u32 / 2 % 2));
            if near.hides(attention, key, query) {
                self.s[j] = f32::NEG_INFINITY;
            }
            j += 1;
        }
    }

    /// P in place of the scores, rounded, and handed to the other warpgroup.
    #[inline(always)]
    fn exponentiate(&mut self, params: &BackwardParams, block: &Block<T>, row: u32) {
        if T::SCORE_MOD {
            self.weigh(params, block, row);
        } else {
            self.weigh_plain(params.attention.softmax_scale * LOG2_E);
        }
        self.meet(READ);
        let at = self.weights();
        let mut i = 0;
        while 4 * i < T::S::LEN {
            let word = |j: usize| self.s[4 * i + j].to_bits();
            // SAFETY: the place is this thread's and its partner's, who has read it.
            unsafe { shared::store4(at + 16 * WARPGROUP * i as u32, [word(0), word(1), word(2), word(3)]) };
            i += 1;
        }
        self.arrive(WRITTEN);
    }

    /// P in place of the scores, rounded.
    #[inline(always)]
    fn weigh_plain(&mut self, scale: f32) {
        let at = self.statistics();
        let mut block = 0;
        while 8 * block < T::S::LEN {
            // SAFETY: the stage is there, and with it the statistics of all of its queries.
            let shifts: [f32; 4] = unsafe { shared::load4(at + 64 * block as u32) };
            let mut j = 0;
            while j < 8 {
                let (score, shift) = (self.s[8 * block + j], shifts[j / 4 * 2 + j % 2]);
                self.s[8 * block + j] = math::exp2(math::fma(score, scale, shift));
                j += 1;
            }
            self.round(block);
            block += 1;
        }
    }

    /// As [`Self::weigh_plain`], with what [`scores`] does to the scores of the step that begins with `row`.
    #[inline(always)]
    fn weigh(&mut self, params: &BackwardParams, block: &Block<T>, row: u32) {
        // Masked behind softcap, which makes a number of −∞.
        scores::bend::<T>(&params.attention, &mut self.s);
        self.mask(&params.attention, row);
        let (lane, statistics) = (Lane::reread(2), self.statistics());
        let (query, key) = (row + lane.column(0), block.owned + warp_row() + lane.group);
        let place = Place { row, query, key, statistics };
        let target = (&mut self.s, &mut self.packed);
        // SAFETY: the warp's lanes are together, and the stage is there.
        unsafe { scores::weigh(&params.attention, block, &place, &mut self.head, target) };
    }

    /// dS in place of dP, from the other warpgroup's P, rounded.
    #[inline(always)]
    fn differentiate(&mut self, params: &BackwardParams) {
        self.meet(WRITTEN);
        if scores::drops::<T>(&params.attention) {
            self.differentiate_as::<true>(params);
        } else {
            self.differentiate_as::<false>(params);
        }
        self.arrive(READ);
    }

    /// As [`Self::differentiate`], of a P that has been written and is not overwritten yet.
    #[inline(always)]
    fn differentiate_as<const DROPS: bool>(&mut self, params: &BackwardParams) {
        let (at, weights) = (self.statistics() + 4 * T::STEP, self.weights());
        let mut block = 0;
        while 8 * block < T::S::LEN {
            // SAFETY: the stage is there, and with it the statistics of all of its queries; P is written.
            let (deltas, weights): ([f32; 4], [[f32; 4]; 2]) = unsafe {
                let of = |half: u32| shared::load4(weights + 16 * WARPGROUP * (2 * block as u32 + half));
                (shared::load4(at + 64 * block as u32), [of(0), of(1)])
            };
            let mut j = 0;
            while j < 8 {
                let (dp, delta) = (self.s[8 * block + j], deltas[j / 4 * 2 + j % 2]);
                let weight = weights[j / 4][j % 4];
                self.s[8 * block + j] = gradient_of_score::<DROPS>(&params.attention, weight, dp, delta);
                j += 1;
            }
            self.round(block);
            block += 1;
        }
    }

    /// Rounds the `block`-th sixteen columns, as A of the second product.
    #[inline(always)]
    fn round(&mut self, block: usize) {
        let mut i = 0;
        while i < 4 {
            let first = 8 * block + 2 * i;
            // Rounded here, and not between the products, which would wait for it.
            self.packed[4 * block + i] = index::unknown(T::Element::pack(self.s[first], self.s[first + 1]));
            i += 1;
        }
    }

    /// Address of the first of this thread's statistics of the stage at hand.
    #[inline(always)]
    fn statistics(&self) -> u32 {
        self.pipeline.statistics(self.steps.stage()) + 16 * (index::reread_thread() % 4)
    }

    /// Address of the first of this thread's four weights, or of those of its partner in the other warpgroup.
    #[inline(always)]
    fn weights(&self) -> u32 {
        self.pipeline.weights() + 16 * (index::reread_thread() % WARPGROUP)
    }

    /// Waits for the other warpgroup's [`Self::arrive`].
    #[inline(always)]
    #[track_caller]
    fn meet(&self, barrier: u32) {
        // SAFETY: two warpgroups meet at each barrier, the other by `arrive`.
        unsafe { barrier::sync(barrier, BackwardSm90Config::WARPGROUPS * WARPGROUP) };
    }

    /// Lets the other warpgroup's [`Self::meet`] go on.
    #[inline(always)]
    #[track_caller]
    fn arrive(&self, barrier: u32) {
        // SAFETY: two warpgroups meet at each barrier, the other by `meet`.
        unsafe { barrier::arrive(barrier, BackwardSm90Config::WARPGROUPS * WARPGROUP) };
    }

    /// Begins to store the rows that exist of the gradient, through the memory of the tensor that this
    /// warpgroup read, of a stage.
    #[inline(always)]
    fn store(&mut self, params: &BackwardParams, block: &Block<T>, stage: u32) {
        // SAFETY: no other threads use the barrier.
        unsafe { self.warpgroup.sync(FIRST_BARRIER + OF_KEYS as u32) };
        let lines = self.pipeline.owned(OF_KEYS as u32, stage).from_row(warp_row());
        let attention = &params.attention;
        let (view, columns) = if OF_KEYS {
            scale_rows(&mut self.gradient, [attention.softmax_scale; 2]);
            ((params.dk, &params.dk_strides), attention.head_dim)
        } else {
            if scores::drops::<T>(attention) {
                scale_rows(&mut self.gradient, [attention.dropout.scale; 2]);
            }
            ((params.dv, &params.dv_strides), attention.head_dim_v)
        };
        // SAFETY: all lanes of the warp are here, and the products of its warpgroup have read the rows.
        unsafe { store_warp(lines, &self.gradient, (block, warp_row()), view, columns) };
    }
}

/// The first of a warp's rows of its warpgroup's.
#[inline(always)]
fn warp_row() -> u32 {
    index::reread_thread() / 32 % WARPS * WARP_ROWS
}
