//! The warpgroups that multiply.

use crate::attention::split_work::seen_keys;
use crate::attention::work_items::ItemSlots;
use crate::hopper::epilogue::{scale_rows, write_panel};
use crate::hopper::ring::Ring;
use crate::hopper::roles::{WARP_ROWS, WARPGROUP, WARPS, Warpgroup, leads_warp};
use crate::params::DecodeParams;
use crate::ptx::wgmma::{Accumulator as _, Format};
use crate::ptx::{barrier, fence, index, shared};
use crate::softmax::{OnlineSoftmax, reduce};
use crate::tile::mma::{Lane, MmaElement, QUAD};
use crate::tile::panels::Panels;
use crate::tile::wgmma::Descriptor;

use super::memory::{Blocks, HALF, KeyBlock, LastPanel, Memory, PARTS, QueryRows, ValueHalf};
use super::{BLOCK_N, HEAD_DIM, epilogue, queries};

/// The barriers that warpgroups meet at: where weights of even and of odd blocks are handed on, where both
/// wait for each other, and those of each by itself.
const READY: [u32; 2] = [1, 2];
const BOTH: u32 = 3;
const ALONE: [u32; 2] = [4, 5];

/// Columns of a product along K.
const DEPTH: u32 = 16;

/// A thread's part of the scores of a block, as [`wgmma`](crate::ptx::wgmma) says: two rows.
type Scores = [f32; BLOCK_N as usize / 2];

/// Its part of P, as A of products.
type Weights = [u32; BLOCK_N as usize / 4];

/// A warpgroup: that of side s scores the blocks with numbers of parity s, and has columns [`HALF`]·s and on
/// of O. What depends on the side in each block is compiled for both.
pub(super) struct Consumer<E> {
    warpgroup: Warpgroup,
    memory: Memory,
    /// The place in the ring of the left half.
    ring: Ring<Blocks>,
    o: [f32; HALF as usize / 2],
    softmax: OnlineSoftmax<[f32; 2], QUAD>,
    element: core::marker::PhantomData<E>,
}

impl<E: MmaElement + Format> Consumer<E> {
    /// This thread's part of it.
    ///
    /// # Safety
    /// All threads of the warpgroup make one and call its methods together, in a launch as
    /// [`mla_sm90`](super::mla_sm90) says, whose barriers are made.
    #[inline(always)]
    pub(super) unsafe fn new(memory: Memory) -> Self {
        // SAFETY: the warpgroup's threads are together. Its warps leave its half of each block when its
        // products are over, and the last panel of those that the other scores.
        unsafe {
            Self {
                warpgroup: Warpgroup::new(),
                memory,
                ring: Ring::consumer(memory.barriers(0)),
                o: [0.0; HALF as usize / 2],
                softmax: OnlineSoftmax::with_positive_scale(1.0),
                element: core::marker::PhantomData,
            }
        }
    }

    /// This thread's place in products; each call finds it anew, for O leaves few registers.
    #[inline(always)]
    fn lane() -> Lane {
        Lane::of_thread(index::reread_thread() % WARPGROUP, 2)
    }

    /// Computes and stores all items of this block.
    #[inline(always)]
    pub(super) fn run(&mut self, params: &DecodeParams) {
        // SAFETY: this warp leaves each item once, when it has stored its part.
        let mut slots = unsafe { ItemSlots::consumer(self.memory.slots()) };
        while slots.wait() {
            self.sync_both(); // O of the last item has left Q's memory.
            // SAFETY: Q is readable, and nobody reads the tile.
            unsafe { queries::copy::<E>(params, &slots.item(), self.memory) };
            fence::proxy_async();
            self.sync_both();
            self.o = [0.0; HALF as usize / 2];
            self.softmax = OnlineSoftmax::with_positive_scale(params.softmax_scale);
            if self.warpgroup.index() == 0 {
                self.take_blocks::<0>(params, &slots);
            } else {
                self.take_blocks::<1>(params, &slots);
            }
            let sums = self.sums();
            let finished = [self.softmax.finish_with(0, sums[0]), self.softmax.finish_with(1, sums[1])];
            // SAFETY: the item's rows are this block's, and the columns this warpgroup's. Scores have read Q.
            unsafe {
                let half = (self.memory, self.warpgroup.index());
                epilogue::store::<E>(params, &slots.item(), half, &mut self.o, finished);
            }
            self.warpgroup.sync_warps(); // All lanes have read what the first one leaves next.
            slots.leave(leads_warp());
        }
    }

    /// Takes in all keys of the item.
    #[inline(always)]
    fn take_blocks<const SIDE: usize>(&mut self, params: &DecodeParams, slots: &ItemSlots) {
        let mut key = slots.item().keys.first;
        while key < slots.item().keys.end {
            self.take_two_blocks::<SIDE>(params, slots, key);
            key += 2 * BLOCK_N;
        }
    }

    /// Takes in the keys from `key` on: an even block, and an odd one where the item has it.
    #[inline(always)]
    fn take_two_blocks<const SIDE: usize>(&mut self, params: &DecodeParams, slots: &ItemSlots, key: u32) {
        let has_odd = key + BLOCK_N < slots.item().keys.end;
        let even = self.ring;
        self.ring.advance();
        let odd = self.ring;
        if has_odd {
            self.ring.advance();
        }
        if SIDE == 0 {
            let s = self.scores(even);
            let (p, rescale) = self.weights::<SIDE>(params, slots, key, (even, s));
            self.rescale(rescale);
            self.multiply_own::<SIDE>(even, &p);
            self.end_products::<SIDE>(even);
            if has_odd {
                self.begin_others::<SIDE>(odd);
                self.end_products::<SIDE>(odd);
                self.leave_last(odd);
            }
        } else if has_odd {
            let s = self.scores(odd);
            self.begin_others::<SIDE>(even);
            let (p, rescale) = self.weights::<SIDE>(params, slots, key + BLOCK_N, (odd, s));
            self.end_products::<SIDE>(even);
            self.leave_last(even);
            self.rescale(rescale);
            self.multiply_own::<SIDE>(odd, &p);
            self.end_products::<SIDE>(odd);
        } else {
            self.begin_others::<SIDE>(even);
            self.end_products::<SIDE>(even);
            self.leave_last(even);
        }
    }

    /// Begins the products of this warpgroup's columns of a block that the other scores, once it has handed
    /// that on.
    #[inline(always)]
    fn begin_others<const SIDE: usize>(&mut self, place: Ring<Blocks>) {
        self.wait_for_others::<SIDE>();
        self.follow::<SIDE>();
        self.multiply_others::<SIDE>(place);
    }

    /// S = Q·Kᵀ of a block.
    #[inline(always)]
    fn scores(&self, place: Ring<Blocks>) -> Scores {
        let q = self.memory.q().descriptor().reread();
        let operands = [q, self.memory.block(place.stage()).descriptor()];
        let mut s = [0.0; BLOCK_N as usize / 2];
        let mut part = 0;
        while part < PARTS {
            self.score_part(&mut s, (place, part), operands);
            part += 1;
        }
        self.warpgroup.commit_products();
        // SAFETY: the warpgroup's threads are together.
        unsafe { s.wait_group::<0>() };
        s
    }

    /// Begins the products of a part's columns, once it is there.
    #[inline(always)]
    fn score_part(&self, s: &mut Scores, (place, part): (Ring<Blocks>, u32), [q, k]: [Descriptor; 2]) {
        self.wait_part(place, part);
        self.warpgroup.fence_products();
        let mut step = HALF / DEPTH * part;
        while step < (HALF / DEPTH * (part + 1)).min(HEAD_DIM / DEPTH) {
            let a = q.behind(Panels::<QueryRows>::columns(step)).bits();
            let b = k.behind(Panels::<KeyBlock>::columns(step)).bits();
            // SAFETY: Q and the part are there and stay until the wait; the warpgroup's threads are together.
            unsafe {
                if step == 0 {
                    s.begin_ss::<E>(a, b);
                } else {
                    s.multiply_ss::<E, false, false>(a, b, true);
                }
            }
            step += 1;
        }
    }

    /// P of a block's scores, which it hands on, and the factors that bring O to the new m.
    #[inline(always)]
    fn weights<const SIDE: usize>(
        &mut self,
        params: &DecodeParams,
        slots: &ItemSlots,
        key: u32,
        (place, mut s): (Ring<Blocks>, Scores),
    ) -> (Weights, [f32; 2]) {
        self.mask(params, slots, key, &mut s);
        // SAFETY: all lanes of the warp are here.
        let rescale = unsafe { self.softmax.step_in_turn::<_, true>(&mut s, None) };
        // SAFETY: all threads of the warpgroup are here: the products of all of its warps have read the
        // block.
        unsafe { self.warpgroup.sync(ALONE[SIDE]) };
        let used = slots.item().used;
        let tail = key + BLOCK_N > used && used < params.seqlen_k;
        if tail {
            self.clear_values(place, used - key);
        }
        self.write::<SIDE>(place, &s);
        fence::proxy_async();
        // SAFETY: both warpgroups meet at the barrier, the other by `wait_for_others`, in turns.
        unsafe { barrier::arrive(READY[SIDE], 2 * WARPGROUP) };
        if tail {
            // SAFETY: as above: all warps have cleared their part.
            unsafe { self.warpgroup.sync(ALONE[SIDE]) };
        }
        let mut p = [0; BLOCK_N as usize / 4];
        let mut j = 0;
        while j < BLOCK_N as usize / 4 {
            p[j] = E::pack(s[2 * j], s[2 * j + 1]);
            j += 1;
        }
        (p, rescale)
    }

    /// Sets scores to −∞ of keys that a row does not see, or that lie behind the item's.
    #[inline(always)]
    fn mask(&self, params: &DecodeParams, slots: &ItemSlots, first_key: u32, s: &mut Scores) {
        let item = slots.item();
        if first_key >= item.whole.first && first_key + BLOCK_N <= item.whole.end.min(item.keys.end) {
            return;
        }
        let lane = Self::lane();
        let row = |i| seen_keys(params, item.used, item.work.first_row + lane.row(i));
        let seen = [row(0), row(1)];
        let mut j = 0;
        while j < BLOCK_N as usize / 2 {
            let key = first_key + lane.column(j / 4 * 2 + j % 2);
            let of_row = seen[j / 2 % 2];
            if key < of_row.first || key >= of_row.end.min(item.keys.end) {
                s[j] = f32::NEG_INFINITY;
            }
            j += 1;
        }
    }

    /// Clears the values of the rows from `row` on of a block: there may be anything, and weights of 0 do not
    /// hide what is not a number.
    #[inline(always)]
    fn clear_values(&self, place: Ring<Blocks>, row: u32) {
        let block = self.memory.block(place.stage());
        let mut panel = index::reread_thread() % WARPGROUP / 32;
        while panel < 2 * Panels::<ValueHalf>::COUNT {
            // SAFETY: all lanes of the warp are here, products have read the block, and the panel is this
            // warp's.
            unsafe { block.clear_panel_from_row(panel, row) };
            panel += WARPS;
        }
    }

    /// Writes P, rounded, and m to shared memory.
    #[inline(always)]
    fn write<const SIDE: usize>(&self, place: Ring<Blocks>, s: &Scores) {
        let thread = index::reread_thread() % WARPGROUP;
        let lines = self.memory.last(place.stage()).from_row(thread / 32 * WARP_ROWS).panel(0);
        let (max, lane) = (self.softmax.max(), Self::lane());
        // SAFETY: the lines are this warp's, whose lanes are together, and so are the words, which the other
        // warpgroup has read.
        unsafe {
            write_panel::<E, _>(thread % 32, lines, s, 0);
            if lane.pair == 0 {
                shared::store(self.memory.max(SIDE as u32, lane.row(0)), max[0]);
                shared::store(self.memory.max(SIDE as u32, lane.row(1)), max[1]);
            }
        }
    }

    /// Waits until the other warpgroup has handed on its block.
    #[inline(always)]
    fn wait_for_others<const SIDE: usize>(&self) {
        // SAFETY: both warpgroups meet at the barrier, the other by `weights`, in turns.
        unsafe { barrier::sync(READY[1 - SIDE], 2 * WARPGROUP) };
    }

    /// Waits until all threads of both warpgroups are here.
    #[inline(always)]
    fn sync_both(&self) {
        // SAFETY: both warpgroups meet at the barrier.
        unsafe { barrier::sync(BOTH, 2 * WARPGROUP) };
    }

    /// Brings O to m of the block that the other warpgroup has handed on.
    #[inline(always)]
    fn follow<const SIDE: usize>(&mut self) {
        let lane = Self::lane();
        let at = |i| self.memory.max((1 - SIDE) as u32, lane.row(i));
        // SAFETY: the words were written before the barrier.
        let max = unsafe { [shared::load(at(0)), shared::load(at(1))] };
        let rescale = self.softmax.follow(max);
        self.rescale(rescale);
    }

    /// Brings O, which no product is under way for, to the new m.
    #[inline(always)]
    fn rescale(&mut self, rescale: [f32; 2]) {
        if self.warpgroup.any_of_warp(rescale[0] != 1.0 || rescale[1] != 1.0) {
            scale_rows(&mut self.o, rescale);
        }
    }

    /// Begins O += P·V of this warpgroup's columns of the block that it has scored.
    #[inline(always)]
    fn multiply_own<const SIDE: usize>(&mut self, place: Ring<Blocks>, p: &Weights) {
        let v = self.memory.half(place.stage(), SIDE as u32).descriptor();
        self.warpgroup.fence_products();
        let mut step = 0;
        while step < BLOCK_N / DEPTH {
            let first = 4 * step as usize;
            let a = [p[first], p[first + 1], p[first + 2], p[first + 3]];
            let b = v.behind(Panels::<ValueHalf>::rows(step)).bits();
            // SAFETY: the block was waited for and stays until it is left; the warpgroup's threads are
            // together.
            unsafe { self.o.multiply_rs::<E, true>(a, b, true) };
            step += 1;
        }
        self.warpgroup.commit_products();
    }

    /// As [`Self::multiply_own`], of the block that the other has scored.
    #[inline(always)]
    fn multiply_others<const SIDE: usize>(&mut self, place: Ring<Blocks>) {
        self.wait_part(place, SIDE as u32);
        let p = self.memory.last(place.stage()).descriptor();
        let v = self.memory.half(place.stage(), SIDE as u32).descriptor();
        self.warpgroup.fence_products();
        let mut step = 0;
        while step < BLOCK_N / DEPTH {
            let a = p.behind(Panels::<LastPanel>::columns(step)).bits();
            let b = v.behind(Panels::<ValueHalf>::rows(step)).bits();
            // SAFETY: P is handed on, and both stay until they are left; the warpgroup's threads are
            // together.
            unsafe { self.o.multiply_ss::<E, false, true>(a, b, true) };
            step += 1;
        }
        self.warpgroup.commit_products();
    }

    /// Waits until O is there, and leaves this warpgroup's half of the block.
    #[inline(always)]
    fn end_products<const SIDE: usize>(&mut self, place: Ring<Blocks>) {
        // SAFETY: the warpgroup's threads are together.
        unsafe { self.o.wait_group::<0>() };
        self.leave_part(place, SIDE as u32);
    }

    /// Leaves the last panel of a block that the other warpgroup has scored.
    #[inline(always)]
    fn leave_last(&self, place: Ring<Blocks>) {
        self.leave_part(place, PARTS - 1);
    }

    /// Waits until a part of a block is there.
    #[inline(always)]
    fn wait_part(&self, place: Ring<Blocks>, part: u32) {
        // SAFETY: this warpgroup goes around all rings alike.
        unsafe { place.behind(Ring::<Blocks>::BYTES * part) }.wait();
    }

    /// Leaves a part of a block to the copies, by the first lane of each warp.
    #[inline(always)]
    fn leave_part(&self, place: Ring<Blocks>, part: u32) {
        if leads_warp() {
            // SAFETY: as `wait_part`; the lanes have waited for the products that read the part together.
            unsafe { place.behind(Ring::<Blocks>::BYTES * part) }.release();
        }
    }

    /// The rows' sums over all keys of the item; both warpgroups have scored all of its blocks.
    #[inline(always)]
    fn sums(&self) -> [f32; 2] {
        let (lane, side) = (Self::lane(), self.warpgroup.index());
        let of_row = |i: usize| {
            // SAFETY: all lanes of the warp are here.
            let sum = unsafe { reduce::<QUAD>(self.softmax.sum(i), |a, b| a + b) };
            if lane.pair == 0 {
                // SAFETY: the last item's words were read before both met for its successor's Q.
                unsafe { shared::store(self.memory.sum(side, lane.row(i)), sum) };
            }
        };
        of_row(0);
        of_row(1);
        self.sync_both();
        // SAFETY: both warpgroups have written their words, with a barrier between.
        let of_both = |i| unsafe {
            let at = |side| self.memory.sum(side, lane.row(i));
            shared::load(at(0)) + shared::load(at(1))
        };
        [of_both(0), of_both(1)]
    }
}
