//! The backward pass of FlashAttention-2 (Dao 2023, arXiv:2307.08691, Algorithm 2) on Hopper's tensor cores
//! with `wgmma`, fed by tensor maps.
//!
//! As `backward_sm80`, a block owns rows of one pair of tensors, K and V or Q and dO, and goes over the rows
//! of the other pair, so that nothing is added up by atomics. Two warpgroups own 64 rows each, in registers;
//! a third copies steps of the other pair into a ring. With keys as rows of the products, P and dS are A in
//! registers of the products behind. Wide heads split roles: one warpgroup has P and dV, and the other dS and
//! dK, of the same 64 keys.
//!
//! A launch that stores dS computes dQ too, without computing scores twice. Its blocks stay on their
//! multiprocessors and take tiles, most of them of keys and some of queries (`tickets.rs`); a tile is copied
//! while the one before is multiplied.
//!
//! A launch that sums dQ has a warpgroup more, which computes dQ of each step from dS in shared memory and
//! adds it to sums that pass from one tile of keys to the next (`sums.rs`).
//!
//! The next step's scores are begun with this step's gradients, a product from registers and one from shared
//! memory in turn. dP runs beside the exponentials, or is begun with those scores where registers hold both.
//! Warpgroups begin these products in turn: one that multiplies from registers alone leaves a third of the
//! tensor cores' time unused.

mod block;
mod carried;
mod consumer;
mod epilogue;
mod producer;
mod queries;
mod scores;
mod split;
mod sums;
mod tickets;
mod tile;

use core::marker::PhantomData;

use crate::config::BackwardSm90Config;
use crate::hopper::ring::{Ring, Stages};
use crate::hopper::roles::{WARPGROUP, WARPS, give_registers, leads_warp, take_registers};
use crate::params::BackwardParams;
use crate::ptx::{barrier, index, mbarrier, shared, tma, warp};
use crate::tile::panels::Panels;
use block::Block;
use consumer::Consumer;
use split::SplitConsumer;
use tickets::TileSlots;
pub use tile::{BackwardSm90Tile, Tile};
use tile::{DsRows, DsStages, KeyRows, OwnedRows, OwnedStages, QueryStages, StepRows, StepStages};
use tile::{SavedStages, SumRows, SumStages};

/// Barriers in the source; the build fails when the PTX has another number.
pub const fn barriers(config: BackwardSm90Config) -> u32 {
    if config.splits_roles() { 13 } else { 7 }
}

/// dK and dV of a tile of keys, summed over the query heads that share it, or dQ of a tile of queries; all of
/// them where dS is stored, or dQ summed.
///
/// `maps` is the address of the tensor maps of Q, K, V, dO and dS, [heads, panels of 64 queries, keys, 64],
/// as [`Panels::load`] wants them, with boxes of 64 rows, or of a step where that has more. In place of dS
/// sums have theirs, [heads, steps, rows of 128 bytes, 64 of 16 bits], with boxes of a step. Launch:
/// [`BackwardSm90Config::threads`] threads with [`BackwardSm90Config::shared_bytes`] bytes of shared memory
/// in a block for each tile, ⌈Sk / owned⌉·H / group·B owning keys, ⌈Sq / owned⌉·H·B owning queries. Where
/// dS is stored, two blocks or more for all tiles, of which at least two run at a time; where dQ is summed,
/// any number of blocks.
///
/// # Safety
/// `params` and the maps describe the same valid device memory, sequences that have no batch index are fixed
/// up, `attention::backward_delta` has run before with the same, and the launch is as above. Unless the tile
/// has [`Tile::SCORE_MOD`], scores are changed by nothing but a positive factor, and no weights are dropped.
#[inline(always)]
pub unsafe fn backward_sm90<T: Tile>(params: &BackwardParams, maps: u64) {
    // SAFETY: a stage is written after all consumers have released it and read after its bytes have landed;
    // the warps of a warpgroup run the same branch, and ask for the registers that the block started with.
    unsafe {
        let pipeline = Pipeline::<T>::new();
        let maps = Maps { first: maps };
        if const { T::CONFIG.takes_tickets() } {
            return all_gradients(params, maps, pipeline);
        }
        let block = Block::<T>::new(params);
        if block.is_empty() {
            return;
        }
        if index::thread() == 0 {
            pipeline.init(params);
        }
        barrier::sync(0, const { T::CONFIG.threads() });
        let warpgroup = warp::broadcast(index::thread() / WARPGROUP, 0);
        if warpgroup == const { T::CONFIG.copier() } {
            give_registers(const { T::CONFIG.registers().2 });
            match warp::broadcast(index::thread() / 32 % WARPS, 0) {
                0 if leads_warp() => producer::copy(params, maps, pipeline, &block),
                1 if T::OWNS_KEYS => producer::write_block_statistics(params, pipeline, &block),
                2 if params.fix_up != 0 => producer::clear_block_ends(params, pipeline, &block),
                _ => {}
            }
        } else {
            take_registers(const { T::CONFIG.registers().0 });
            if !T::CONFIG.splits_roles() {
                Consumer::new(pipeline).run(params, &block);
            } else if warpgroup == 0 {
                SplitConsumer::<T, false>::new(pipeline).run(params, &block);
            } else {
                SplitConsumer::<T, true>::new(pipeline).run(params, &block);
            }
        }
    }
}

/// [`backward_sm90`] where blocks take tickets for tiles.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn all_gradients<T: Tile>(params: &BackwardParams, maps: Maps, pipeline: Pipeline<T>) {
    // SAFETY: as in `backward_sm90`; each of the warps that read slots leaves each tile once.
    unsafe {
        if index::thread() == 0 {
            pipeline.init(params);
            if T::STORES_DS {
                pipeline.init_ring::<QueryStages<T>>(params, pipeline.query_barriers(), 1);
            }
            if T::SUMS_DQ {
                Ring::<DsStages<T>>::init_filled_by(
                    pipeline.ds_barriers(),
                    BackwardSm90Config::WARPGROUPS * WARPS,
                    WARPS,
                );
                Ring::<SumStages<T>>::init(pipeline.sum_barriers(), WARPS);
                Ring::<SavedStages<T>>::init_filled_by(pipeline.saved_barriers(), WARPS, 1);
            }
            TileSlots::<T>::init(pipeline.schedule(), pipeline.readers(params));
        }
        barrier::sync(0, const { T::CONFIG.threads() });
        let warpgroup = warp::broadcast(index::thread() / WARPGROUP, 0);
        let mut slots = TileSlots::consumer(pipeline.schedule());
        if warpgroup == const { T::CONFIG.copier() } {
            give_registers(const { T::CONFIG.registers().2 });
            match warp::broadcast(index::thread() / 32 % WARPS, 0) {
                0 if leads_warp() => {
                    producer::copy_tiles(params, maps, pipeline, &mut slots);
                    if T::STORES_DS {
                        queries::copy_tiles(params, maps, pipeline, &mut slots);
                    }
                }
                1 => producer::write_all_statistics(params, pipeline, slots),
                2 if T::SUMS_DQ && leads_warp() => sums::take_turns(params, maps, pipeline, &mut slots),
                2 if T::STORES_DS && params.fix_up != 0 => {
                    producer::clear_all_ends(params, pipeline, &mut slots);
                    queries::clear_ends(params, pipeline, &mut slots);
                }
                3 if T::SUMS_DQ && leads_warp() => sums::count_turns(params, pipeline, &mut slots),
                3 if leads_warp() => {
                    tickets::announce::<T>(params, TileSlots::producer(pipeline.schedule()));
                }
                _ => {}
            }
        } else if T::SUMS_DQ && warpgroup == BackwardSm90Config::WARPGROUPS {
            give_registers(const { T::CONFIG.registers().1 });
            sums::add_tiles(params, pipeline, &mut slots);
        } else {
            take_registers(const { T::CONFIG.registers().0 });
            if !T::CONFIG.splits_roles() {
                Consumer::new(pipeline).run_tiles(params, &mut slots);
            } else if warpgroup == 0 {
                SplitConsumer::<T, false>::new(pipeline).run_tiles(params, &mut slots);
            } else {
                SplitConsumer::<T, true>::new(pipeline).run_tiles(params, &mut slots);
            }
            if T::STORES_DS {
                // What follows from it would otherwise be computed before the loop of keys, and kept in
                // registers.
                let pipeline = Pipeline { base: index::unknown(pipeline.base), ..pipeline };
                queries::multiply_tiles(params, pipeline, &mut slots);
            }
        }
    }
}

/// Where tiles and barriers lie in shared memory.
#[derive(Clone, Copy)]
struct Pipeline<T> {
    base: u32,
    tile: PhantomData<T>,
}

impl<T: Tile> Pipeline<T> {
    #[inline(always)]
    fn new() -> Self {
        Self { base: shared::base(), tile: PhantomData }
    }

    /// Makes the barriers of what is owned, and of steps.
    ///
    /// # Safety
    /// One thread calls this, and a block barrier follows.
    #[inline(always)]
    unsafe fn init(self, params: &BackwardParams) {
        // SAFETY: one thread makes the barriers, which lie behind all else, before the block barrier.
        unsafe {
            Ring::<OwnedStages<T>>::init(self.owned_barriers(), WARPS * const { T::CONFIG.copier() });
            let producers = if T::OWNS_KEYS { 2 } else { 1 };
            self.init_ring::<StepStages<T>>(params, self.step_barriers(), producers);
        }
    }

    /// Makes the barriers of a ring of steps that so many producers fill, and those where its copies land.
    ///
    /// # Safety
    /// As [`Self::init`].
    #[inline(always)]
    unsafe fn init_ring<S: Stages>(self, params: &BackwardParams, barriers: u32, producers: u32) {
        let consumers = BackwardSm90Config::WARPGROUPS * WARPS;
        let mut stage = 0;
        while params.fix_up != 0 && stage < S::COUNT {
            // SAFETY: as below.
            unsafe { mbarrier::init(barriers + params.fix_up + 8 * stage, 1) };
            stage += 1;
        }
        // SAFETY: one thread makes the barriers, which lie behind all else, before the block barrier.
        unsafe { Ring::<S>::init_filled_by(barriers, producers, consumers) };
    }

    #[inline(always)]
    fn owned_barriers(self) -> u32 {
        self.base + const { T::CONFIG.barriers_offset() }
    }

    #[inline(always)]
    fn step_barriers(self) -> u32 {
        self.owned_barriers() + Ring::<OwnedStages<T>>::BYTES
    }

    /// Those of steps of tiles of queries.
    #[inline(always)]
    fn query_barriers(self) -> u32 {
        self.step_barriers() + const { BackwardSm90Config::RING_BYTES * T::CONFIG.stages() }
    }

    /// Those of dS on its way to the warpgroup that sums dQ.
    #[inline(always)]
    fn ds_barriers(self) -> u32 {
        self.query_barriers()
    }

    /// Those of sums.
    #[inline(always)]
    fn sum_barriers(self) -> u32 {
        self.ds_barriers() + const { 16 * T::CONFIG.ds_stages() }
    }

    /// Those of sums that are stored.
    #[inline(always)]
    fn saved_barriers(self) -> u32 {
        self.sum_barriers() + const { 16 * T::CONFIG.sum_stages() }
    }

    /// dS of a stage, with keys of one of the warpgroups.
    #[inline(always)]
    fn ds_of_keys(self, stage: u32, warpgroup: u32) -> Panels<DsRows> {
        Panels::new(self.base + const { T::CONFIG.ds_offset() }).stage(2 * stage + warpgroup)
    }

    /// A sum of dQ, as it lies in device memory.
    #[inline(always)]
    fn sum(self, stage: u32) -> Panels<SumRows<T>> {
        Panels::new(self.base + const { T::CONFIG.sums_offset() }).stage(stage)
    }

    /// dQ of a step on its way out.
    #[inline(always)]
    fn dq(self) -> Panels<StepRows<T>> {
        Panels::new(self.base + const { T::CONFIG.dq_offset() })
    }

    /// The owned rows of K and V, or of Q and dO.
    #[inline(always)]
    fn owned(self, which: u32, stage: u32) -> Panels<OwnedRows<T>> {
        Panels::new(
            self.base + const { T::CONFIG.owned_bytes() } * stage + Panels::<OwnedRows<T>>::BYTES * which,
        )
    }

    /// A stage of the others: of Q and dO, or of K and V.
    #[inline(always)]
    fn step(self, which: u32, stage: u32) -> Panels<StepRows<T>> {
        let first = const { T::CONFIG.owned_stages() } * const { T::CONFIG.owned_bytes() }
            + const { T::CONFIG.step_bytes() } * stage;
        Panels::new(self.base + first + Panels::<StepRows<T>>::BYTES * which)
    }

    /// K of a stage of a tile of queries.
    #[inline(always)]
    fn keys_of_stage(self, stage: u32) -> Panels<KeyRows<T>> {
        let first = const { T::CONFIG.out_bytes() } + const { T::CONFIG.queries_step_bytes() } * stage;
        Panels::new(self.base + first)
    }

    /// The `panel`-th of its panels of dS.
    #[inline(always)]
    fn ds_of_stage(self, stage: u32, panel: u32) -> Panels<DsRows> {
        let keys = self.keys_of_stage(stage).address;
        Panels::<DsRows>::new(keys + Panels::<KeyRows<T>>::BYTES).stage(panel)
    }

    /// Where tiles are announced.
    #[inline(always)]
    fn schedule(self) -> u32 {
        self.base + const { T::CONFIG.schedule_offset() }
    }

    /// Warps that read what is announced: those that multiply, copy, write statistics, and clear ends.
    #[inline(always)]
    fn readers(self, params: &BackwardParams) -> u32 {
        let others = if T::SUMS_DQ { 4 } else { 2 + (params.fix_up != 0) as u32 };
        WARPS * const { T::CONFIG.copier() } + others
    }

    /// Where P is handed on.
    #[inline(always)]
    fn weights(self) -> u32 {
        self.base + const { T::CONFIG.weights_offset() }
    }

    /// The statistics of a stage's queries, −lse·log2(e) and delta.
    #[inline(always)]
    fn statistics(self, stage: u32) -> u32 {
        self.base + const { T::CONFIG.statistics_offset() } + const { T::CONFIG.statistics_bytes() } * stage
    }
}

/// Addresses of the tensor maps.
#[derive(Clone, Copy)]
struct Maps {
    first: u64,
}

impl Maps {
    /// Of K and V.
    #[inline(always)]
    fn keys(self) -> [u64; 2] {
        [self.first + tma::TensorMap::BYTES, self.first + 2 * tma::TensorMap::BYTES]
    }

    /// Of Q and dO.
    #[inline(always)]
    fn queries(self) -> [u64; 2] {
        [self.first, self.first + 3 * tma::TensorMap::BYTES]
    }

    /// Of dS, or of sums of dQ.
    #[inline(always)]
    fn ds(self) -> u64 {
        self.first + 4 * tma::TensorMap::BYTES
    }
}
