//! The warpgroup that multiplies.

mod e4m3;
mod weights;

use core::hint::assert_unchecked;
use core::ops::Range;

use crate::config::DecodeSm90Config;
use crate::hopper::ring::Ring;
use crate::hopper::roles::{WARPS, Warpgroup, leads_warp};
use crate::params::DecodeParams;
use crate::ptx::wgmma::Accumulator as _;
use crate::ptx::{cluster, fence, index};
use crate::registers::Matrix;
use crate::score::{CapAndBias, for_each};
use crate::softmax::OnlineSoftmax;
use crate::tile::mma::Lane;
use crate::tile::panels::Panels;
use crate::tile::wgmma::Descriptor;

use super::rows::{self, AddedUp, Ends, Rows};
use super::tile::{CacheRows, Memory, QueryRows, QueryStages, Tile, WeightRows};
use crate::attention::work_items::{Item, ItemSlots, has_clusters};

/// The barrier that the warps meet at.
pub(super) const BARRIER: u32 = 1;

/// Keys, or columns of K, of a product.
const DEPTH: u32 = 16;

/// A value for each of a thread's rows of Q.
pub(super) type Column<T> = <<T as Tile>::Scores as Matrix>::Column<f32>;

/// The warpgroup that multiplies: its place in the rings, and its part of an item.
///
/// A thread holds of Sᵀ and Oᵀ what [`wgmma`](crate::ptx::wgmma) says: two keys of each product, or two
/// columns of each panel, of pairs of rows of Q.
pub(super) struct Consumer<T: Tile> {
    warpgroup: Warpgroup,
    memory: Memory<T>,
    ring: Ring<T::Ring>,
    queries: Ring<QueryStages>,
    lane: Lane,
    o: T::O,
    softmax: OnlineSoftmax<Column<T>, 1>,
    /// The splits of the item that are done with.
    added_up: AddedUp<T>,
}

impl<T: Tile> Consumer<T> {
    const ROWS: usize = <T::Scores as Matrix>::ROWS;

    /// This thread's part of it.
    ///
    /// # Safety
    /// All threads of the warpgroup make one and call its methods together, in a launch as
    /// [`decode_sm90`](super::decode_sm90) says, whose barriers are made.
    #[inline(always)]
    pub(super) unsafe fn new(memory: Memory<T>) -> Self {
        // SAFETY: the warpgroup's threads are together; its warps are consumers of both rings, and leave each
        // stage when its products are over.
        unsafe {
            Self {
                warpgroup: Warpgroup::new(),
                memory,
                ring: Ring::consumer(memory.ring_barriers()),
                queries: Ring::consumer(memory.query_barriers()),
                lane: Lane::current(2),
                o: T::O::zero(),
                softmax: OnlineSoftmax::with_positive_scale(1.0),
                added_up: AddedUp::none(),
            }
        }
    }

    /// Computes and stores all items of this block.
    #[inline(always)]
    pub(super) fn run(&mut self, params: &DecodeParams) {
        let changed = CapAndBias::is_needed(&params.attention());
        let softmax_scale = if changed { 1.0 } else { params.softmax_scale };
        // SAFETY: this warp leaves each item once, when it has stored its part.
        let mut slots = unsafe { ItemSlots::consumer(self.memory.slots()) };
        while slots.wait() {
            let item = slots.item();
            self.queries.wait();
            self.added_up = AddedUp::none();
            let mut key = item.keys.first;
            let mut split = first_split::<T>(&item);
            let rows = loop {
                self.o = T::O::zero();
                self.softmax = OnlineSoftmax::with_positive_scale(softmax_scale);
                let end = end_of::<T>(&item, split);
                let ends = self.take_keys(params, &slots, key..end, changed);
                key = key.max(end);
                // Read again: what steps do not need leaves them its registers.
                let item = slots.item();
                let is_last = !T::ADDS_UP || item.split_keys == 0 || is_last_split(&item, split);
                if is_last {
                    self.warpgroup.sync_warps(); // All lanes have read what the first one leaves next.
                    self.queries.leave(leads_warp());
                }
                let rows = Rows::new(&self.o, ends, item.v_descale);
                let merges = has_clusters::<T>() && item.of_split;
                if !T::ADDS_UP || !merges && item.split_keys == 0 {
                    break Some(rows);
                }
                if merges {
                    // SAFETY: nobody reads them before the cluster's barrier.
                    unsafe { rows.hand_on(split, self.lane, self.memory) };
                    if is_last {
                        break None;
                    }
                } else {
                    self.added_up.take(&rows);
                    if is_last {
                        break Some(self.added_up.finish());
                    }
                }
                split += 1;
            };
            // SAFETY: the item's rows are this block's, or the cluster's, whose blocks have handed them on.
            unsafe { rows::store_or_merge(rows, params, &slots.item(), self.lane, self.memory) };
            self.warpgroup.sync_warps();
            slots.leave(leads_warp());
        }
    }

    /// Takes keys of the item at hand in, which begin with a step's first, and says what becomes of the rows.
    #[inline(always)]
    fn take_keys(
        &mut self,
        params: &DecodeParams,
        slots: &ItemSlots,
        keys: Range<u32>,
        changed: bool,
    ) -> Ends<T> {
        if keys.is_empty() {
            return Ends::none();
        }
        let mut key = keys.start;
        loop {
            let next = key + T::BLOCK_N;
            let are_last = next >= keys.end;
            self.begin_step(params, &slots.item(), key, changed, are_last);
            if are_last {
                break;
            }
            self.end_step();
            key = next;
        }
        // Beside the last products, which it does not wait for.
        let ends = self.ends(&slots.item());
        self.end_step();
        ends
    }

    /// Takes the keys from `key` on in, which may be the last ones, but for their products with V: these
    /// begin.
    #[inline(always)]
    fn begin_step(&mut self, params: &DecodeParams, item: &Item, key: u32, changed: bool, are_last: bool) {
        self.ring.wait();
        let mut s = self.scores();
        self.ring.leave(leads_warp());
        if T::WIDENS {
            self.scale_rows(&mut s);
        }
        self.apply(params, item, &mut s, key, changed);
        let rescale = self.exponentiate(&mut s);
        self.write_weights(&s);
        if are_last {
            self.write_sums();
        }
        self.ring.wait();
        if key + T::BLOCK_N > item.used && item.used < params.seqlen_k {
            self.clear_values(item.used - key);
        }
        fence::proxy_async();
        // SAFETY: all threads of the warpgroup are here, and no others come to the barrier.
        unsafe { self.warpgroup.sync(BARRIER) };
        self.rescale(&rescale);
        self.begin_products_with_values();
    }

    /// Waits until the products that a step has begun are in O, and leaves the stage of V.
    #[inline(always)]
    fn end_step(&mut self) {
        let mut panel = 0;
        while panel < T::O::ROWS {
            // SAFETY: the warpgroup's threads are together.
            unsafe { self.o[panel].wait_group::<0>() };
            panel += 1;
        }
        self.ring.leave(leads_warp());
    }

    /// Sᵀ = K·Qᵀ of the stage of K at hand, which is there, and so is Q.
    #[inline(always)]
    fn scores(&self) -> T::Scores {
        let mut s = if T::WIDENS { self.products_of_widened_keys() } else { self.products_of_keys() };
        let mut product = 0;
        while product < T::S::ROWS {
            // SAFETY: the warpgroup's threads are together.
            unsafe { s[product].wait_group::<0>() };
            product += 1;
        }
        // The same registers under other names.
        let mut scores = T::Scores::zero();
        for_each(&mut scores, |_, row, key| s[key / 2][register(row, key % 2)]);
        scores
    }

    /// Begins the products of [`Self::scores`], with K where it landed.
    #[inline(always)]
    fn products_of_keys(&self) -> T::S {
        let k = self.tile();
        let q = self.memory.q().stage(self.queries.stage()).descriptor();
        let mut s = T::S::zero();
        self.warpgroup.fence_products();
        let mut product = 0;
        while product < T::S::ROWS {
            let rows = Panels::<CacheRows<T>>::row(product as u32 * DecodeSm90Config::PRODUCT_KEYS);
            let mut step = 0;
            while step < T::CONFIG.head_dim / DEPTH {
                let a = k.behind(rows + Panels::<CacheRows<T>>::columns(step)).bits();
                let b = q.behind(Panels::<QueryRows<T>>::columns(step)).bits();
                // SAFETY: Q and the stage are there and stay until the wait; the warpgroup's threads are
                // together.
                unsafe {
                    if step == 0 {
                        s[product].begin_ss::<T::Operand>(a, b);
                    } else {
                        s[product].multiply_ss::<T::Operand, false, false>(a, b, true);
                    }
                }
                step += 1;
            }
            product += 1;
        }
        self.warpgroup.commit_products();
        s
    }

    /// Begins Oᵀ += Vᵀ·Pᵀ of the stage of V at hand, which is there, and so is P.
    #[inline(always)]
    fn begin_products_with_values(&mut self) {
        if T::WIDENS {
            self.begin_products_of_widened_values();
        } else {
            self.begin_products_of_values();
        }
    }

    /// [`Self::begin_products_with_values`] with V where it landed.
    #[inline(always)]
    fn begin_products_of_values(&mut self) {
        let v = self.tile();
        let p = self.memory.p().descriptor();
        self.warpgroup.fence_products();
        let mut panel = 0;
        while panel < T::O::ROWS {
            let mut step = 0;
            while step < T::BLOCK_N / DEPTH {
                let rows = Panels::<CacheRows<T>>::rows(step);
                let a = v.behind(panel as u32 * Panels::<CacheRows<T>>::PANEL + rows).bits();
                let b = p.behind(Panels::<WeightRows<T>>::columns(step)).bits();
                // SAFETY: P and the stage are there and stay until the wait; the warpgroup's threads are
                // together.
                unsafe { self.o[panel].multiply_ss::<T::Operand, true, false>(a, b, true) };
                step += 1;
            }
            panel += 1;
        }
        self.warpgroup.commit_products();
    }

    /// The stage of the ring at hand as an operand.
    #[inline(always)]
    fn tile(&self) -> Descriptor {
        self.memory.ring().stage(self.ring.stage()).descriptor()
    }

    /// Clears the rows from `row` on of the stage of V at hand: there may be anything, and weights of 0 do
    /// not hide what is not a number.
    #[inline(always)]
    fn clear_values(&self, row: u32) {
        let tile = self.memory.ring().stage(self.ring.stage());
        let mut panel = index::thread() / 32;
        while panel < Panels::<CacheRows<T>>::COUNT {
            // SAFETY: all lanes of the warp are here, the stage has landed, and the panel is this warp's.
            unsafe { tile.clear_panel_from_row(panel, row) };
            panel += WARPS;
        }
    }
}

/// The first of an item's splits that may have keys: of all in the sequence, or of those of the block.
#[inline(always)]
fn first_split<T: Tile>(item: &Item) -> u32 {
    if !T::ADDS_UP || item.split_keys == 0 || item.of_split {
        return 0;
    }
    // SAFETY: it is not 0 here. Without this the division would carry a call to the panic for a zero divisor,
    // which a kernel cannot link.
    unsafe { assert_unchecked(item.split_keys > 0) };
    item.keys.first / item.split_keys
}

/// One past the keys of one of an item's splits, or of all where it has not several.
#[inline(always)]
fn end_of<T: Tile>(item: &Item, split: u32) -> u32 {
    if !T::ADDS_UP || item.split_keys == 0 {
        return item.keys.end;
    }
    let before = if item.of_split { cluster::rank() * item.splits } else { 0 };
    ((before + split + 1) * item.split_keys).min(item.keys.end)
}

/// Whether no split follows one of an item's.
#[inline(always)]
fn is_last_split(item: &Item, split: u32) -> bool {
    if item.of_split { split + 1 == item.splits } else { (split + 1) * item.split_keys >= item.keys.end }
}

/// Which register of a product holds what belongs to the thread's row `row` of Q, of its first or second key
/// or column of V.
#[inline(always)]
pub(super) const fn register(row: usize, second: usize) -> usize {
    4 * (row / 2) + 2 * second + row % 2
}
