//! FlashAttention v3 on Hopper's tensor cores with `wgmma`, fed by tensor maps (Shah et al. 2024,
//! arXiv:2407.08608, Algorithm 2).
//!
//! A block stays on its multiprocessor and goes through tiles of queries. One thread of its last warpgroup
//! copies Q, and the blocks of K and V that the tile sees from right to left, into rings in shared memory,
//! ahead of the products and across the border of two tiles. The other warpgroups each own 64 rows of the
//! tile: scores, P and O stay in their registers. The products of the next block's scores run beside those of
//! this block's P with V, and both beside the softmax of another warpgroup.

mod cached;
mod consumer;
mod epilogue;
mod fix_up;
mod key_blocks;
mod operand;
mod producer;
mod scheduler;
mod seen_blocks;
mod tile;

use core::marker::PhantomData;
use core::mem::offset_of;

use crate::config::Sm90Config;
use crate::functions::MaskMod as _;
use crate::hopper::ring::{Count, Ring, Stages as _};
use crate::hopper::roles::{WARPGROUP, WARPS, give_registers, leads_warp, take_registers};
use crate::params::{AttentionMaps, PersistentParams};
use crate::ptx::{barrier, grid, index, mbarrier, shared, tma, warp};
use crate::scheduler::Tiles;
use crate::tile::panels::Panels;
pub use cached::Cached;
use consumer::Consumer;
use fix_up::FixUp;
pub use operand::Operand;
use producer::QueriesAndKeys;
use scheduler::{Keys, TileScheduler, TileSlots};
use tile::{KeyBlock, KeyStages, OutputRows, QueryRows, ValueBlock};
pub use tile::{Modified, Sm90Tile, Tile};

/// Barriers in the source; the build fails when the PTX has another number.
pub const fn barriers(config: Sm90Config) -> u32 {
    2 + if config.takes_turns() { 7 } else { 0 } + if config.own_output() { 0 } else { 1 }
}

/// As [`barriers`], by [`ByRows`](super::alignment::ByRows).
pub const fn residues_barriers(config: Sm90Config) -> u32 {
    barriers(config) + 3
}

/// As [`barriers`], over a cache: O leaves by its warps.
pub const fn cached_barriers(config: Sm90Config) -> u32 {
    2 + if config.takes_turns() { 7 } else { 0 }
}

/// As [`barriers`], with a mask function: the step stands there once.
pub const fn masked_barriers(config: Sm90Config) -> u32 {
    barriers(config) - if config.takes_turns() { 4 } else { 0 }
}

/// Bytes of shared memory with a mask function.
pub const fn masked_shared_bytes(config: Sm90Config) -> u32 {
    config.shared_bytes() + seen_blocks::bytes(config)
}

/// O = softmax(softmax_scale·Q·Kᵀ)·V and its log-sum-exp, in tiles of `BLOCK_M` query rows.
///
/// `maps` is the address of [`AttentionMaps`], as [`Panels::load`] wants them, with boxes of 64 rows of Q,
/// BLOCK_N of K and V, and 16 of O. Launch: 1 to `params.tiles` blocks of [`Sm90Config::threads`] threads
/// with [`Sm90Config::shared_bytes`] bytes of shared memory, or [`masked_shared_bytes`].
///
/// Of 8-bit types, V's maps are of what [`transpose`](super::transpose) made of it, in boxes of HEAD_DIM_V
/// rows; `params.descale` has the factors of all three.
///
/// By [`ByRows`](super::alignment::ByRows), rows of Q, K and V lie no multiple of 16 bytes apart, equally far
/// from one modulo 16 bytes, under a mask that hides nothing. Maps are of
/// [`Residues`](super::alignment::residues::Residues) in place of classes of heads, with boxes of Q
/// that have a class's share of 64 rows; `params.attention.seqlen_k` counts the keys of one class; and
/// HEAD_DIM has room for the largest shift.
///
/// With `params.copies` the launch in front of this one, which copies, is not waited for: each tile waits for
/// what it reads.
///
/// Over a cache, by [`Cached`], maps are those of the first class alone: Q's has its heads before its rows,
/// in boxes of a pack's heads and 64 rows in all, and those of K and V have boxes as
/// [`decode_sm90`](super::decode_sm90)'s.
///
/// # Safety
/// `params` and the maps describe the same valid device memory, softmax_scale is positive unless there is a
/// `SCORE_MOD`, and the launch is as above.
#[inline(always)]
pub unsafe fn forward_sm90<T: Tile>(params: &PersistentParams, maps: u64) {
    // SAFETY: a stage is written after all consumers have released it and read after its bytes have landed;
    // the warps of a warpgroup run the same branch, and ask for the registers that the block started with.
    unsafe {
        let pipeline = Pipeline::<T>::new();
        let warpgroup = warp::broadcast(index::thread() / WARPGROUP, 0);
        let maps = Maps { first: maps };
        if warpgroup == T::CONFIG.warpgroups() {
            let mut scheduler = TileScheduler::<T>::new(pipeline);
            let exists = begin(params, maps, pipeline, &mut scheduler);
            warp::sync();
            barrier::sync(0, T::CONFIG.threads());
            give_registers(T::CONFIG.registers().1);
            let warp = warp::broadcast(index::thread() / 32 % WARPS, 0);
            match warp {
                0 if T::IN_CACHE => {
                    cached::producer::copy_queries_and_keys(params, maps, pipeline);
                }
                1 if T::IN_CACHE => cached::producer::copy_values(params, maps, pipeline),
                0 if leads_warp() => QueriesAndKeys::new(pipeline, maps).run(params, exists),
                1 if leads_warp() => producer::copy_values(params, maps, pipeline),
                3 => scheduler.run(params, exists),
                2 if T::Element::BYTES == 2 && fix_up::is_needed(params) => {
                    FixUp::new(pipeline).run(params);
                }
                _ => {}
            }
        } else {
            barrier::sync(0, T::CONFIG.threads());
            take_registers(T::CONFIG.registers().0);
            Consumer::new(pipeline).run(params, maps.o());
        }
    }
}

/// What those that copy do before all others are there, who wait for it in a short launch: they make the
/// barriers, wait for the launch in front of this one, announce the first tile, and begin to copy it. Says
/// whether there is one, to those who go on from there.
///
/// # Safety
/// All lanes of the last warpgroup's warps call this, in a launch as [`forward_sm90`] says, and a block
/// barrier follows.
#[inline(always)]
unsafe fn begin<T: Tile>(
    params: &PersistentParams,
    maps: Maps,
    pipeline: Pipeline<T>,
    scheduler: &mut TileScheduler<T>,
) -> bool {
    // SAFETY: the launch is the kernel's, and who makes barriers uses no others before the block barrier.
    unsafe {
        let leads = leads_warp();
        match index::thread() / 32 % WARPS {
            0 => {
                if leads {
                    tma::prefetch(maps.k());
                    tma::prefetch(maps.q());
                    pipeline.init(params);
                }
                if params.copies.are_there() {
                    return false; // Who announces the tile waits for its copies.
                }
                grid::wait();
                if T::IN_CACHE || T::MaskMod::KNOWS_BLOCKS {
                    return false; // Whole warps copy boxes of pages, or ask about blocks.
                }
                let params = &scheduler::reread(params);
                let Some(work) = Tiles::default().next(params, T::BLOCK_M) else { return false };
                if leads {
                    let place = Keys::of_tile::<T>(params, &work, 0);
                    QueriesAndKeys::new(pipeline, maps).begin(params, &work, &place);
                }
                true
            }
            1 => {
                if leads {
                    tma::prefetch(maps.v());
                }
                false
            }
            2 => {
                if leads && params.o_by_rows != 2 {
                    tma::prefetch(maps.o());
                }
                false
            }
            _ => {
                if leads {
                    pipeline.init_schedule(params);
                }
                if !params.copies.are_there() {
                    grid::wait();
                }
                if T::IN_CACHE || T::MaskMod::KNOWS_BLOCKS || params.copies.are_there() {
                    return true;
                }
                warp::sync(); // The others wait for the slot's barrier, which the first has made.
                scheduler.announce_next(params)
            }
        }
    }
}

/// First row of a tile in its sequence.
#[inline(always)]
fn first_row<T: Tile>(params: &PersistentParams, tile: u32) -> u32 {
    let lacking = const { T::BLOCK_M - Sm90Config::short_block_m(T::BLOCK_M) };
    tile * T::BLOCK_M - tile.min(params.short_tiles) * lacking
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

    /// Makes the barriers of the rings of Q, K and V.
    ///
    /// # Safety
    /// One thread calls this, and a block barrier follows.
    #[inline(always)]
    unsafe fn init(self, params: &PersistentParams) {
        // SAFETY: one thread makes the barriers, which lie behind all tiles, before the block barrier.
        unsafe {
            let mut warpgroup = 0;
            while warpgroup < T::CONFIG.warpgroups() {
                Ring::<Count<1>>::init(self.q_barriers(warpgroup), WARPS);
                if params.qk_fix_up != 0 {
                    mbarrier::init(self.q_barriers(warpgroup) + params.qk_fix_up, 1);
                }
                warpgroup += 1;
            }
            let mut stage = 0;
            while stage < KeyStages::<T>::COUNT {
                if params.qk_fix_up != 0 {
                    mbarrier::init(self.k_barriers() + params.qk_fix_up + 8 * stage, 1);
                }
                if params.v_fix_up != 0 {
                    mbarrier::init(self.v_barriers() + params.v_fix_up + 8 * stage, 1);
                }
                stage += 1;
            }
            Ring::<KeyStages<T>>::init(self.k_barriers(), T::CONFIG.warpgroups() * WARPS);
            Ring::<KeyStages<T>>::init(self.v_barriers(), T::CONFIG.warpgroups() * WARPS);
        }
    }

    /// Makes those of the slots that tiles are announced in.
    ///
    /// # Safety
    /// As [`Self::init`].
    #[inline(always)]
    unsafe fn init_schedule(self, params: &PersistentParams) {
        let warps = T::CONFIG.warpgroups() * WARPS + 2 + fix_up::is_needed(params) as u32;
        // SAFETY: one thread makes the barriers, and a block barrier follows.
        unsafe { TileSlots::init(self.schedule(), warps) }
    }

    #[inline(always)]
    fn schedule(self) -> u32 {
        const { assert!(TileSlots::BYTES == Sm90Config::SCHEDULE_BYTES) };
        self.base + const { T::CONFIG.schedule_offset() }
    }

    /// Behind all else, with a mask function.
    #[inline(always)]
    fn seen_blocks(self) -> u32 {
        self.base + const { T::CONFIG.shared_bytes() }
    }

    #[inline(always)]
    fn q_barriers(self, warpgroup: u32) -> u32 {
        self.base + const { T::CONFIG.barriers_offset() } + Ring::<Count<1>>::BYTES * warpgroup
    }

    #[inline(always)]
    fn k_barriers(self) -> u32 {
        self.q_barriers(T::CONFIG.warpgroups())
    }

    #[inline(always)]
    fn v_barriers(self) -> u32 {
        self.k_barriers() + Ring::<KeyStages<T>>::BYTES
    }

    /// A warpgroup's rows of Q.
    #[inline(always)]
    fn q(self, warpgroup: u32) -> Panels<QueryRows<T>> {
        Panels::new(self.base + Panels::<QueryRows<T>>::BYTES * warpgroup)
    }

    /// Whether O leaves through Q's memory: where it has none of its own, and where rows need more than that.
    #[inline(always)]
    fn leaves_through_queries(params: &PersistentParams) -> bool {
        let (all, none) = const { (T::CONFIG.own_output(), T::CONFIG.output_panels() == 0) };
        !all && (none || params.o_by_rows != 0)
    }

    /// A warpgroup's part of O's own memory.
    #[inline(always)]
    fn o(self, warpgroup: u32) -> Panels<OutputRows<T>> {
        let panels = const { T::CONFIG.output_panels() };
        Panels::new(
            self.base + const { T::CONFIG.o_offset() } + panels * Panels::<OutputRows<T>>::PANEL * warpgroup,
        )
    }

    /// The first stage of K; the others lie behind it.
    #[inline(always)]
    fn k(self) -> Panels<KeyBlock<T>> {
        Panels::new(self.base + const { T::CONFIG.k_offset() })
    }

    /// The first stage of V.
    #[inline(always)]
    fn v(self) -> Panels<ValueBlock<T>> {
        Panels::new(self.base + const { T::CONFIG.v_offset() })
    }
}

/// Addresses of the tensor maps: of Q, K and V that of the first class of heads.
#[derive(Clone, Copy)]
struct Maps {
    first: u64,
}

impl Maps {
    #[inline(always)]
    fn q(self) -> u64 {
        self.first + offset_of!(AttentionMaps, q) as u64
    }

    #[inline(always)]
    fn k(self) -> u64 {
        self.first + offset_of!(AttentionMaps, k) as u64
    }

    #[inline(always)]
    fn v(self) -> u64 {
        self.first + offset_of!(AttentionMaps, v) as u64
    }

    #[inline(always)]
    fn o(self) -> u64 {
        self.first + offset_of!(AttentionMaps, o) as u64
    }
}
