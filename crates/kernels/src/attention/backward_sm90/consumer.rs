//! The warpgroups that multiply.

use core::f32::consts::LOG2_E;

use super::Pipeline;
use super::block::{Block, Source};
use super::carried;
use super::scores::{self, Place, QueryHead};
use super::sums;
use super::tickets::TileSlots;
use super::tile::{DsStages, OwnedRows, OwnedStages, StepRows, StepStages, Tile};
use crate::attention::gradient::RowStats;
use crate::attention::stored_ds;
use crate::config::BackwardSm90Config;
use crate::hopper::epilogue::wait_all;
use crate::hopper::ring::Ring;
use crate::hopper::roles::{WARPGROUP, WARPGROUP_ROWS, Warpgroup};
use crate::mask::MaskCorner;
use crate::params::{AttentionParams, BackwardParams};
use crate::ptx::wgmma::Accumulator as _;
use crate::ptx::{barrier, index, math, shared};
use crate::registers::Registers as _;
use crate::tile::mma::{Lane, MmaElement as _};
use crate::tile::panels::Panels;
use crate::tile::wgmma::Descriptor;

/// The products of a step that have both operands in shared memory: of the first of what is owned and of the
/// others, and of the second.
const SCORES: usize = 0;
/// As [`SCORES`].
const DP: usize = 1;

/// One of the warpgroups that multiply, and its 64 rows of what the block owns.
///
/// A thread holds of products what [`wgmma`](crate::ptx::wgmma) says: two owned rows, pairs of columns of the
/// one and the other in turn. Columns are rows of the step, or of a gradient its columns.
pub(super) struct Consumer<T: Tile> {
    pub(super) warpgroup: Warpgroup,
    pub(super) pipeline: Pipeline<T>,
    turn: u32,
    steps: Ring<StepStages<T>>,
    /// Of this warpgroup's rows of both owned tensors.
    owned: [Descriptor; 2],
    /// Of the first stage of both others.
    others: [Descriptor; 2],
    /// Scores, then P, or what [`scores`] says.
    s: T::S,
    dp: T::S,
    /// P, rounded, as A of its product with dO; owning keys alone.
    p: T::Packed,
    /// dS / softmax_scale, as A of its product with Q or K.
    ds: T::Packed,
    /// lse·log2(e) and delta of both rows; owning queries alone.
    rows: [RowStats; 2],
    /// That of the step; of tiles that change scores alone.
    head: QueryHead,
    /// dK / softmax_scale and dV, or dQ / softmax_scale.
    pub(super) gradients: [T::Gradient; 2],
    /// This thread's first piece of a step's dS.
    ds_at: u32,
    /// Where dS goes on its way to the warpgroup that sums dQ.
    ds_ring: Ring<DsStages<T>>,
    /// The mask from the first of this warpgroup's rows, and the first of the others, on.
    corner: MaskCorner,
}

impl<T: Tile> Consumer<T> {
    /// Products of a step with A in registers, for each gradient.
    const DEPTHS: usize = T::Packed::LEN / 4;
    /// Products of a step's scores, and of its dP.
    const DEPTHS_AHEAD: usize = T::HEAD_DIM as usize / 16;

    /// Whether dP of the next step is begun with its scores: where registers hold both beside gradients.
    const DP_AHEAD: bool = T::HEAD_DIM <= 96 && T::STEP <= 64;

    /// This thread's part of it.
    ///
    /// # Safety
    /// All threads of the warpgroup make one and call its methods together, in a launch as
    /// [`backward_sm90`](super::backward_sm90) says, whose barriers are made.
    #[inline(always)]
    pub(super) unsafe fn new(pipeline: Pipeline<T>) -> Self {
        // SAFETY: the warpgroup's threads are together; its warps are consumers of the ring, and leave each
        // stage when its products are over.
        unsafe {
            let warpgroup = Warpgroup::new();
            let owned = Self::owned(pipeline, warpgroup, 0);
            Self {
                warpgroup,
                pipeline,
                turn: warpgroup.index(),
                steps: Ring::consumer(pipeline.step_barriers()),
                owned,
                others: [pipeline.step(0, 0).descriptor(), pipeline.step(1, 0).descriptor()],
                s: T::S::ZERO,
                dp: T::S::ZERO,
                p: T::Packed::ZERO,
                ds: T::Packed::ZERO,
                rows: [RowStats { shift: 0.0, delta: 0.0 }; 2],
                head: QueryHead::default(),
                gradients: [T::Gradient::ZERO; 2],
                ds_at: 0,
                ds_ring: Ring::producer(pipeline.ds_barriers()),
                corner: MaskCorner::default(),
            }
        }
    }

    /// This warpgroup's rows of both owned tensors of a stage.
    #[inline(always)]
    fn owned(pipeline: Pipeline<T>, warpgroup: Warpgroup, stage: u32) -> [Descriptor; 2] {
        let first_row = WARPGROUP_ROWS * warpgroup.index();
        [0, 1].map(|which| pipeline.owned(which, stage).from_row(first_row).descriptor())
    }

    /// Computes and stores this warpgroup's rows of the gradients of a block that has one tile.
    #[inline(always)]
    pub(super) fn run(&mut self, params: &BackwardParams, block: &Block<T>) {
        if block.steps() > 0 {
            if self.turn == 1 {
                self.pass_turn();
            }
            if !T::OWNS_KEYS {
                let row = block.owned + Lane::current(2).row(0);
                // SAFETY: lse and delta are readable for the sequence's rows.
                self.rows = unsafe { RowStats::load(params, &block.work, row, |i| 8 * i as u32) };
            }
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

    /// Computes and stores this warpgroup's rows of the gradients of all tiles of keys that are announced.
    #[inline(always)]
    pub(super) fn run_tiles(&mut self, params: &BackwardParams, slots: &mut TileSlots<T>) {
        if self.turn == 1 {
            self.pass_turn();
        }
        let (warpgroup, pipeline) = (self.warpgroup, self.pipeline);
        while let Some(stage) = slots.next_of_keys(pipeline) {
            self.owned = Self::owned(pipeline, warpgroup, stage);
            self.gradients = if T::STORES_DS {
                // SAFETY: what the block owns is there, and so the tile's copies have waited for others.
                [0, 1].map(|which| unsafe { carried::restore(params, slots, self.part(which)) })
            } else {
                [T::Gradient::ZERO; 2]
            };
            if (&*slots).block().steps() > 0 {
                self.multiply(params, &*slots);
            }
            if T::STORES_DS && slots.goes_on() {
                // SAFETY: the warpgroup's threads are together.
                unsafe {
                    carried::save(params, slots, self.part(0), &self.gradients[0]);
                    carried::save(params, slots, self.part(1), &self.gradients[1]);
                }
            } else {
                self.store(params, &(&*slots).block(), stage);
            }
            slots.leave_keys(pipeline);
        }
        wait_all();
    }

    /// Of all gradients that the block's warpgroups hold, the number of this warpgroup's `which`-th.
    #[inline(always)]
    fn part(&self, which: u32) -> u32 {
        BackwardSm90Config::WARPGROUPS * which + self.warpgroup.index()
    }

    /// Sums the gradients over all steps, of which there are some; what the block owns is there.
    #[inline(always)]
    fn multiply(&mut self, params: &BackwardParams, source: impl Source<T>) {
        self.begin();
        self.head = QueryHead::before(&source.block());
        let Block { work, owned, first, heads, .. } = source.block();
        let owned = owned + WARPGROUP_ROWS * self.warpgroup.index();
        let (query, key) = if T::OWNS_KEYS { (0, owned) } else { (owned, 0) };
        self.corner = MaskCorner::new(&params.attention, &work, query, key);
        if T::STORES_DS {
            let key = source.block().owned + Lane::reread(2).row(0);
            self.ds_at = source.block().first_piece(params, key);
        }
        let (mut row, mut heads, mut left) = (first, heads, source.block().steps_of_head());
        while left > 1 || heads > 1 {
            self.step::<false>(params, source, row);
            row += T::STEP;
            left -= 1;
            if T::STORES_DS {
                self.ds_at += if T::STEP.is_multiple_of(stored_ds::PANEL) {
                    stored_ds::behind(&params.ds, T::STEP)
                } else {
                    stored_ds::behind(&params.ds, row) - stored_ds::behind(&params.ds, row - T::STEP)
                };
            }
            if left == 0 {
                heads -= 1;
                row = source.block().first;
                left = source.block().steps_of_head();
                if T::STORES_DS {
                    let of_head = stored_ds::behind(&params.ds, left * T::STEP);
                    self.ds_at += params.ds.head_pieces - of_head;
                }
            }
        }
        self.step::<true>(params, source, row);
    }

    /// The scores of the first step, and dP where that is begun ahead.
    #[inline(always)]
    fn begin(&mut self) {
        self.steps.wait();
        self.warpgroup.fence_products();
        let mut depth = 0;
        while depth < Self::DEPTHS_AHEAD {
            self.begin_ahead(depth);
            depth += 1;
        }
        self.warpgroup.commit_products();
        self.wait_ahead();
    }

    /// Begins a sixteenth of K of what is begun a step ahead: scores, and dP where registers hold both.
    #[inline(always)]
    fn begin_ahead(&mut self, depth: usize) {
        self.begin_product(SCORES, depth);
        if Self::DP_AHEAD {
            self.begin_product(DP, depth);
        }
    }

    /// Waits for what [`Self::begin_ahead`] began.
    #[inline(always)]
    fn wait_ahead(&mut self) {
        // SAFETY: the warpgroup's threads are together.
        unsafe {
            self.s.wait_group::<0>();
            if Self::DP_AHEAD {
                self.dp.wait_group::<0>();
            }
        }
    }

    /// A step whose scores are there, and dP where that is begun ahead; but for the `LAST` with those of the
    /// next.
    #[inline(always)]
    fn step<const LAST: bool>(&mut self, params: &BackwardParams, source: impl Source<T>, row: u32) {
        self.begin_dp();
        // A branch here, a loop below: without them ptxas puts exponentials between products, or behind dP.
        if !T::SCORE_MOD {
            self.mask(&params.attention, row);
        }
        self.exponentiate(params, &source.block(), row);
        let (at_hand, mut next) = (self.steps, self.steps);
        next.advance();
        if !LAST {
            next.wait();
        }
        if !Self::DP_AHEAD {
            // SAFETY: the warpgroup's threads are together.
            unsafe { self.dp.wait_group::<0>() };
        }
        self.differentiate(params);
        self.steps = next;
        self.take_turn();
        self.warpgroup.fence_products();
        self.begin_gradients::<LAST>(at_hand.stage());
        self.warpgroup.commit_products();
        self.pass_turn();
        if T::STORES_DS {
            // SAFETY: the workspace holds all panels of the launch's heads, and the piece is this thread's.
            unsafe { stored_ds::store(&params.ds, self.ds_at, &self.ds) };
        }
        if T::SUMS_DQ {
            // SAFETY: the warp's lanes are together.
            unsafe { sums::hand_on(self.pipeline, self.warpgroup, &mut self.ds_ring, &self.ds) };
        }
        if !LAST {
            self.wait_ahead();
        }
        // SAFETY: the warpgroup's threads are together.
        unsafe {
            self.gradients[0].wait_group::<0>();
            if T::OWNS_KEYS {
                self.gradients[1].wait_group::<0>();
            }
        }
        if index::reread_thread().is_multiple_of(32) {
            at_hand.release();
        }
    }

    /// Begins a sixteenth of K of [`SCORES`], or of V of [`DP`], with the stage at hand, which is there.
    #[inline(always)]
    fn begin_product(&mut self, which: usize, depth: usize) {
        let others = self.others[which].behind(const { T::CONFIG.step_bytes() } * self.steps.stage());
        let a = self.owned[which].reread().behind(Panels::<OwnedRows<T>>::columns(depth as u32)).bits();
        let b = others.behind(Panels::<StepRows<T>>::columns(depth as u32)).bits();
        let product = if which == SCORES { &mut self.s } else { &mut self.dp };
        // SAFETY: both are there and stay until the wait; the warpgroup's threads are together.
        unsafe { product.multiply_ss::<T::Element, false, false>(a, b, depth > 0) };
    }

    /// Begins dP with the stage at hand, unless it was begun with the scores.
    #[inline(always)]
    fn begin_dp(&mut self) {
        if Self::DP_AHEAD {
            return;
        }
        self.warpgroup.fence_products();
        let mut depth = 0;
        while depth < Self::DEPTHS_AHEAD {
            self.begin_product(DP, depth);
            depth += 1;
        }
        self.warpgroup.commit_products();
    }

    /// Begins what a step adds to the gradients, and, but for the `LAST`, the scores of the next step, which
    /// is at hand, with dP where that is begun ahead: products with A in registers and from memory in turn.
    #[inline(always)]
    fn begin_gradients<const LAST: bool>(&mut self, stage: u32) {
        let products = if T::OWNS_KEYS { 2 * Self::DEPTHS } else { Self::DEPTHS };
        let (mut begun, mut scores) = (0, 0);
        while begun < products {
            let of_values = T::OWNS_KEYS && begun < Self::DEPTHS;
            let (which, depth) = (of_values as usize, begun % Self::DEPTHS);
            let packed = if of_values { &self.p } else { &self.ds };
            let first = 4 * depth;
            let a = [packed[first], packed[first + 1], packed[first + 2], packed[first + 3]];
            let others = self.others[which].behind(const { T::CONFIG.step_bytes() } * stage);
            let b = others.behind(Panels::<StepRows<T>>::rows(depth as u32)).bits();
            // SAFETY: the stage is there and stays until the wait; the warpgroup's threads are together.
            unsafe { self.gradients[which].multiply_rs::<T::Element, true>(a, b, true) };
            begun += 1;
            while !LAST && scores * products < Self::DEPTHS_AHEAD * begun {
                self.begin_ahead(scores);
                scores += 1;
            }
        }
    }

    /// Sets the scores of keys that their query does not see to −∞, of the step that begins with `row`.
    #[inline(always)]
    fn mask(&mut self, attention: &AttentionParams, row: u32) {
        let behind = |owned_row, step_row| {
            let (keys, queries) = if T::OWNS_KEYS { (owned_row, step_row) } else { (step_row, owned_row) };
            self.corner.behind(keys, queries)
        };
        let (keys, queries) =
            if T::OWNS_KEYS { (WARPGROUP_ROWS, T::STEP) } else { (T::STEP, WARPGROUP_ROWS) };
        if behind(0, row).all_see(attention, keys, queries) {
            return;
        }
        let lane = Lane::reread(2);
        let near = behind(lane.row(0) % WARPGROUP_ROWS, row + lane.column(0));
        let mut j = 0;
        while j < T::S::LEN {
            let (of_step, of_owned) = (8 * (j as u32 / 4) + j as u32 % 2, 8 * (j as u32 / 2 % 2));
            let (keys, queries) = if T::OWNS_KEYS { (of_owned, of_step) } else { (of_step, of_owned) };
            if near.hides(attention, keys, queries) {
                self.s[j] = f32::NEG_INFINITY;
            }
            j += 1;
        }
    }

    /// P in place of the scores.
    #[inline(always)]
    fn exponentiate(&mut self, params: &BackwardParams, block: &Block<T>, row: u32) {
        let (attention, at) = (&params.attention, self.statistics());
        if T::SCORE_MOD {
            // Masked behind softcap, which makes a number of −∞.
            scores::bend::<T>(attention, &mut self.s);
            self.mask(attention, row);
            let lane = Lane::reread(2);
            let (query, key) = (row + lane.column(0), block.owned + lane.row(0));
            let place = Place { row, query, key, statistics: at };
            let target = (&mut self.s, &mut self.p);
            // SAFETY: the warp's lanes are together, and the stage is there.
            unsafe { scores::weigh(attention, block, &place, &mut self.head, target) };
            return;
        }
        let scale = attention.softmax_scale * LOG2_E;
        let mut block = 0;
        while 8 * block < T::S::LEN {
            let shifts = self.of_block(at, block, |row| -row.shift);
            let mut j = 0;
            while j < 8 {
                let score = self.s[8 * block + j];
                self.s[8 * block + j] = math::exp2(math::fma(score, scale, shifts[statistic::<T>(j)]));
                j += 1;
            }
            if T::OWNS_KEYS {
                round::<T>(&mut self.p, block, |j| self.s[8 * block + j]);
            }
            block += 1;
        }
    }

    /// dS from P and dP, rounded.
    #[inline(always)]
    fn differentiate(&mut self, params: &BackwardParams) {
        if scores::drops::<T>(&params.attention) {
            self.differentiate_as::<true>(params);
        } else {
            self.differentiate_as::<false>(params);
        }
    }

    /// As [`Self::differentiate`].
    #[inline(always)]
    fn differentiate_as<const DROPS: bool>(&mut self, params: &BackwardParams) {
        let at = self.statistics() + 4 * T::STEP;
        let mut block = 0;
        while 8 * block < T::S::LEN {
            let deltas = self.of_block(at, block, |row| row.delta);
            round::<T>(&mut self.ds, block, |j| {
                let (weight, dp) = (self.s[8 * block + j], self.dp[8 * block + j]);
                scores::gradient_of_score::<DROPS>(&params.attention, weight, dp, deltas[statistic::<T>(j)])
            });
            block += 1;
        }
    }

    /// Address of the first of this thread's statistics of the stage at hand, where they are of columns.
    #[inline(always)]
    fn statistics(&self) -> u32 {
        self.pipeline.statistics(self.steps.stage()) + 16 * (index::reread_thread() % 4)
    }

    /// One of the statistics of what a thread holds in two blocks of eight columns: of its four columns at
    /// `at`, or of its two rows.
    #[inline(always)]
    fn of_block(&self, at: u32, block: usize, of_row: impl Fn(&RowStats) -> f32) -> [f32; 4] {
        if T::OWNS_KEYS {
            // SAFETY: the stage is there, and with it the statistics of all of its queries.
            unsafe { shared::load4(at + 64 * block as u32) }
        } else {
            [of_row(&self.rows[0]), of_row(&self.rows[1]), 0.0, 0.0]
        }
    }

    /// Waits until the other warpgroup has begun its gradients.
    #[inline(always)]
    fn take_turn(&self) {
        // SAFETY: two warpgroups meet at each of these barriers, the one by `pass_turn`.
        unsafe { barrier::sync(1 + self.turn, BackwardSm90Config::WARPGROUPS * WARPGROUP) };
    }

    /// Lets the other warpgroup begin its gradients.
    #[inline(always)]
    fn pass_turn(&self) {
        // SAFETY: two warpgroups meet at each of these barriers, the other by `take_turn`.
        unsafe { barrier::arrive(2 - self.turn, BackwardSm90Config::WARPGROUPS * WARPGROUP) };
    }
}

/// Which of a block's four statistics is that of its `j`-th element: of eight in two rows and four columns.
#[inline(always)]
fn statistic<T: Tile>(j: usize) -> usize {
    if T::OWNS_KEYS { j / 4 * 2 + j % 2 } else { j / 2 % 2 }
}

/// Rounds eight elements to the registers of their block, as A of a product.
#[inline(always)]
fn round<T: Tile>(packed: &mut T::Packed, block: usize, element: impl Fn(usize) -> f32) {
    let mut i = 0;
    while i < 4 {
        packed[4 * block + i] = T::Element::pack(element(2 * i), element(2 * i + 1));
        i += 1;
    }
}
