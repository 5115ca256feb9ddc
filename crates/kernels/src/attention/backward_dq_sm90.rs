//! dQ = softmax_scale·dS·K on Hopper's tensor cores, of a dS that `backward_sm90` has stored
//! ([`stored_ds`]).
//!
//! A block owns queries of a head, half of them in each of two warpgroups, and goes over the keys that see
//! any of them. dS lies with keys as its rows, and K does too: the one is A and the other B along their
//! spans, and neither passes through registers.

use core::marker::PhantomData;

use crate::attention::alignment::head_offset::HeadOffset;
use crate::attention::alignment::row_store::store_rows_by_chunks;
use crate::attention::alignment::{Aligned, Alignment as _};
use crate::attention::stored_ds::{self, GRANULE, PANEL};
use crate::config::BackwardDqSm90Config;
use crate::hopper::epilogue::{scale_rows, wait_all};
use crate::hopper::ring::{Ring, Stages};
use crate::hopper::roles::{
    WARP_ROWS, WARPGROUP, WARPS, Warpgroup, give_registers, leads_warp, take_registers,
};
use crate::params::BackwardParams;
use crate::ptx::tma::TensorMap;
use crate::ptx::wgmma::{Accumulator, Format, Span};
use crate::ptx::{barrier, fence, index, mbarrier, shared, warp};
use crate::registers::{Columns, Registers as _};
use crate::scheduler::WorkTile;
use crate::tile::mma::MmaElement;
use crate::tile::panels::{Extent, Extents, Panels};
use crate::tile::simt::GlobalTile;

/// Barriers in the source; the build fails when the PTX has another number.
pub const BARRIERS: u32 = 2;

/// Keys of a step.
const STEP: u32 = BackwardDqSm90Config::STEP;

/// What the kernel is compiled for.
pub trait Tile: Copy {
    /// Storage type of all tensors.
    type Element: MmaElement + Format;
    /// A thread's part of 64 rows of dQ.
    type Gradient: Accumulator;

    /// Queries of a block.
    const BLOCK_M: u32;
    /// Columns that rows are padded to in shared memory.
    const HEAD_DIM: u32;

    /// What follows from the sizes.
    const CONFIG: BackwardDqSm90Config = {
        let config = BackwardDqSm90Config { block_m: Self::BLOCK_M, head_dim: Self::HEAD_DIM };
        assert!(config.is_well_formed() && Self::Gradient::LEN as u32 * 2 == Self::HEAD_DIM);
        assert!(Self::PANELS <= 2);
        config
    };
    /// Panels of a warpgroup's queries.
    const PANELS: u32 = Self::BLOCK_M / PANEL / BackwardDqSm90Config::WARPGROUPS;
}

/// A tile of the lists of entries.
#[derive(Clone, Copy, Debug)]
pub struct BackwardDqSm90Tile<E, const BLOCK_M: u32, const HEAD_DIM: u32>(PhantomData<E>);

impl<E, const BLOCK_M: u32, const D: u32> Tile for BackwardDqSm90Tile<E, BLOCK_M, D>
where
    E: MmaElement + Format,
    Columns<D>: Span,
{
    type Element = E;
    type Gradient = <Columns<D> as Span>::Accumulator;

    const BLOCK_M: u32 = BLOCK_M;
    const HEAD_DIM: u32 = D;
}

/// dQ of a tile of queries.
///
/// `maps` is the address of the tensor maps of dS, [heads, panels of 64 queries, keys, 64], of K, and of two
/// that are not read, as [`Panels::load`] wants them, with boxes of 64 rows. Launch: ⌈Sq / BLOCK_M⌉ blocks of
/// [`BackwardDqSm90Config::THREADS`] threads with [`BackwardDqSm90Config::shared_bytes`] bytes of shared
/// memory for each query head whose dS is stored.
///
/// # Safety
/// `params` and the maps describe the same valid device memory, sequences that have no batch index are fixed
/// up, `attention::backward_sm90` has stored dS of the launch's heads, and the launch is as above.
#[inline(always)]
pub unsafe fn backward_dq_sm90<T: Tile>(params: &BackwardParams, maps: u64) {
    // SAFETY: a stage is written after all consumers have released it and read after its bytes have landed;
    // the warps of a warpgroup run the same branch, and ask for the registers that the block started with.
    unsafe {
        let block = Block::<T>::new(params);
        if block.first >= block.work.queries.len {
            return;
        }
        let barriers = shared::base() + T::CONFIG.barriers_offset();
        if index::thread() == 0 {
            let consumers = BackwardDqSm90Config::WARPGROUPS * WARPS;
            Ring::<StepStages<T>>::init(barriers, consumers);
            let mut stage = 0;
            while params.fix_up != 0 && stage < StepStages::<T>::COUNT {
                mbarrier::init(barriers + params.fix_up + 8 * stage, 1);
                stage += 1;
            }
            mbarrier::fence_init();
        }
        barrier::sync(0, BackwardDqSm90Config::THREADS);
        let warpgroup = warp::broadcast(index::thread() / WARPGROUP, 0);
        if warpgroup == BackwardDqSm90Config::WARPGROUPS {
            give_registers(BackwardDqSm90Config::REGISTERS.1);
            match warp::broadcast(index::thread() / 32 % WARPS, 0) {
                0 if leads_warp() => copy(params, maps, Ring::producer(barriers), &block),
                1 if params.fix_up != 0 => clear_ends(params, Ring::consumer(barriers), &block),
                _ => {}
            }
        } else {
            take_registers(BackwardDqSm90Config::REGISTERS.0);
            multiply(params, Ring::consumer(barriers), &block);
        }
    }
}

/// A block's queries, and the keys that it goes over.
#[derive(Clone, Copy)]
struct Block<T> {
    work: WorkTile,
    /// Its first query.
    first: u32,
    tile: PhantomData<T>,
}

impl<T: Tile> Block<T> {
    /// This block's.
    ///
    /// # Safety
    /// `params` is valid, in a launch as [`backward_dq_sm90`] says.
    #[inline(always)]
    unsafe fn new(params: &BackwardParams) -> Self {
        let tiles = params.attention.seqlen_q.div_ceil(T::BLOCK_M);
        let order = (params.heads_per_swizzle, params.first_head);
        // SAFETY: valid parameters have no empty axis.
        let work = unsafe { WorkTile::of_swizzle(&params.attention, tiles, order) };
        Self { work, first: work.tile * T::BLOCK_M, tile: PhantomData }
    }

    /// The first and one past the last key that a warpgroup's queries see, in whole granules.
    #[inline(always)]
    fn keys_of(&self, params: &BackwardParams, warpgroup: u32) -> (u32, u32) {
        let row = self.first + warpgroup * PANEL * T::PANELS / GRANULE * GRANULE;
        if row < self.work.queries.len { stored_ds::keys(&params.attention, &self.work, row) } else { (0, 0) }
    }

    /// Those that the block goes over: of both.
    #[inline(always)]
    fn keys(&self, params: &BackwardParams) -> (u32, u32) {
        let (a, b) = (self.keys_of(params, 0), self.keys_of(params, 1));
        match (a.0 < a.1, b.0 < b.1) {
            (true, true) => (a.0.min(b.0), a.1.max(b.1)),
            (true, false) => a,
            _ => b,
        }
    }
}

/// Steps that shared memory holds.
#[derive(Clone, Copy)]
struct StepStages<T>(PhantomData<T>);

impl<T: Tile> Stages for StepStages<T> {
    const COUNT: u32 = T::CONFIG.stages();
}

/// A step of K.
#[derive(Clone, Copy)]
struct KeyRows<T>(PhantomData<T>);

impl<T: Tile> Extent for KeyRows<T> {
    const ROWS: u32 = STEP;
    const COLUMNS: u32 = T::HEAD_DIM;
    const ELEMENT_BYTES: u32 = 2;
}

/// The rows of dQ on their way out.
#[derive(Clone, Copy)]
struct OutRows<T>(PhantomData<T>);

impl<T: Tile> Extent for OutRows<T> {
    const ROWS: u32 = T::BLOCK_M;
    const COLUMNS: u32 = T::HEAD_DIM;
    const ELEMENT_BYTES: u32 = 2;
}

/// A step of a panel of dS.
type DsRows = Extents<STEP, PANEL>;

/// K of a stage.
#[inline(always)]
fn keys_of_stage<T: Tile>(stage: u32) -> Panels<KeyRows<T>> {
    Panels::new(shared::base() + stage * T::CONFIG.stage_bytes())
}

/// The `panel`-th of the block's panels of dS of a stage.
#[inline(always)]
fn ds_of_stage<T: Tile>(stage: u32, panel: u32) -> Panels<DsRows> {
    Panels::<DsRows>::new(shared::base() + stage * T::CONFIG.stage_bytes() + T::CONFIG.keys_bytes())
        .stage(panel)
}

/// Copies all steps, and of each the panels whose queries see it.
///
/// # Safety
/// One thread of the block calls this, in a launch as [`backward_dq_sm90`] says; the barriers are made.
#[inline(always)]
unsafe fn copy<T: Tile>(params: &BackwardParams, maps: u64, mut ring: Ring<StepStages<T>>, block: &Block<T>) {
    let attention = &params.attention;
    let WorkTile { head, batch, keys, .. } = block.work;
    // SAFETY: valid parameters have no empty group.
    let kv_head = Aligned::head(&attention.k_strides, unsafe { block.work.kv_head(attention) });
    let ds_head = batch * attention.heads + head - params.first_head;
    let seen = [block.keys_of(params, 0), block.keys_of(params, 1)];
    let (mut key, end) = block.keys(params);
    while key < end {
        let is_seen = |panel: u32| {
            let (first, end) = seen[(panel / T::PANELS) as usize];
            key >= first && key < end
        };
        let (mut bytes, mut panel) = (Panels::<KeyRows<T>>::BYTES, 0);
        while panel < T::BLOCK_M / PANEL {
            bytes += if is_seen(panel) { Panels::<DsRows>::BYTES } else { 0 };
            panel += 1;
        }
        let full = ring.acquire_behind(bytes, params.fix_up);
        // SAFETY: the maps are those of dS and K, and the stage is empty.
        unsafe {
            let map = maps + TensorMap::BYTES;
            let batch = block.work.batch_index(attention);
            keys_of_stage::<T>(ring.stage()).load(map, full, keys.first + key, kv_head, batch);
            panel = 0;
            while panel < T::BLOCK_M / PANEL {
                if is_seen(panel) {
                    let of = HeadOffset { class: 0, head: block.first / PANEL + panel, shift: 0 };
                    ds_of_stage::<T>(ring.stage(), panel).load(maps, full, key, of, ds_head);
                }
                panel += 1;
            }
        }
        ring.advance();
        key += STEP;
    }
}

/// Clears what a step has landed of keys behind its sequence, of the next sequence of a packed batch.
///
/// # Safety
/// All lanes of one warp call this together, otherwise as [`copy`].
#[inline(always)]
unsafe fn clear_ends<T: Tile>(params: &BackwardParams, mut ring: Ring<StepStages<T>>, block: &Block<T>) {
    let (mut key, end) = block.keys(params);
    while key < end {
        // SAFETY: a stage is this warp's from the landing of its copies until it is filled.
        unsafe {
            ring.behind(params.fix_up).wait();
            let rows = block.work.keys.len.saturating_sub(key);
            if rows < STEP {
                keys_of_stage::<T>(ring.stage()).clear_from_row(rows);
                let mut panel = 0;
                while panel < T::BLOCK_M / PANEL {
                    ds_of_stage::<T>(ring.stage(), panel).clear_from_row(rows);
                    panel += 1;
                }
                fence::proxy_async();
            }
            warp::sync();
            if leads_warp() {
                ring.fill();
            }
        }
        ring.advance();
        key += STEP;
    }
}

/// Multiplies and stores this warpgroup's queries.
///
/// # Safety
/// All threads of the warpgroup call this together, in a launch as [`backward_dq_sm90`] says.
#[inline(always)]
unsafe fn multiply<T: Tile>(params: &BackwardParams, mut ring: Ring<StepStages<T>>, block: &Block<T>) {
    let mut dq = [T::Gradient::ZERO; 2];
    // SAFETY: the warpgroup's threads are together; a stage is there until it is released, behind its
    // products.
    unsafe {
        let warpgroup = Warpgroup::new();
        let first_panel = warpgroup.index() * T::PANELS;
        let (mut key, end) = block.keys(params);
        let (first_seen, end_seen) = block.keys_of(params, warpgroup.index());
        while key < first_seen && key < end {
            ring.wait();
            ring.leave(leads_warp());
            key += STEP;
        }
        while key < end_seen {
            ring.wait();
            warpgroup.fence_products();
            begin_products::<T>(&mut dq, ring.stage(), first_panel);
            warpgroup.commit_products();
            // The other warpgroup's products run while this one waits for its own.
            dq[0].wait_group::<0>();
            if T::PANELS == 2 {
                dq[1].wait_group::<0>();
            }
            ring.leave(leads_warp());
            key += STEP;
        }
        while key < end {
            ring.wait();
            ring.leave(leads_warp());
            key += STEP;
        }
        // All stages have been read: their memory is what dQ leaves through.
        barrier::sync(1, BackwardDqSm90Config::WARPGROUPS * WARPGROUP);
        store::<T>(params, &mut dq, first_panel);
    }
}

/// Begins the products of a stage with a warpgroup's panels.
///
/// # Safety
/// As [`Accumulator::multiply_ss`]; the stage is there.
#[inline(always)]
unsafe fn begin_products<T: Tile>(dq: &mut [T::Gradient; 2], stage: u32, first_panel: u32) {
    let b = keys_of_stage::<T>(stage).descriptor();
    let a = ds_of_stage::<T>(stage, first_panel).descriptor();
    let mut depth = 0;
    while depth < STEP / 16 {
        let mut panel = 0;
        while panel < T::PANELS {
            let a = a.behind(panel * Panels::<DsRows>::BYTES + Panels::<DsRows>::rows(depth)).bits();
            let b = b.behind(Panels::<KeyRows<T>>::rows(depth)).bits();
            // SAFETY: both are there and stay until the wait; the warpgroup's threads are together.
            unsafe { dq[panel as usize].multiply_ss::<T::Element, true, true>(a, b, true) };
            panel += 1;
        }
        depth += 1;
    }
}

/// Stores those of a warpgroup's queries that exist.
///
/// # Safety
/// As [`multiply`]; nobody reads the stages any more.
#[inline(always)]
unsafe fn store<T: Tile>(params: &BackwardParams, dq: &mut [T::Gradient; 2], first_panel: u32) {
    let attention = &params.attention;
    // Found anew: the loop has no registers to keep it in.
    // SAFETY: the launch is the kernel's.
    let block = unsafe { Block::<T>::new(params) };
    let (work, shape) = (block.work, (block.work.queries, attention.head_dim));
    let target = GlobalTile::of_head::<T::Element>(params.dq, &params.dq_strides, &work, work.head, shape);
    let warp_row = index::reread_thread() / 32 % WARPS * WARP_ROWS;
    let mut panel = 0;
    while panel < T::PANELS {
        let first = PANEL * (first_panel + panel);
        let lines = Panels::<OutRows<T>>::new(shared::base()).from_row(first + warp_row);
        let dq = &mut dq[panel as usize];
        scale_rows(dq, [attention.softmax_scale; 2]);
        let row = |row: u32| block.first + first + stored_ds::query(warp_row + row);
        // SAFETY: all lanes of the warp are here, and the lines are its own.
        unsafe { store_rows_by_chunks::<T::Element, _, _>(lines, dq, &target, row) };
        panel += 1;
    }
    wait_all();
}
