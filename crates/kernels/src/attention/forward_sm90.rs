//! FlashAttention v3 on Hopper's tensor cores with `wgmma`, fed by tensor maps (Shah et al. 2024,
//! arXiv:2407.08608, Algorithm 2).
//!
//! A block stays on its multiprocessor and goes through tiles of queries. One thread of its last warpgroup
//! copies Q, and the blocks of K and V that the tile sees from right to left, into rings in shared memory,
//! ahead of the products and across the border of two tiles. The other warpgroups each own 64 rows of the
//! tile: scores, P and O stay in their registers. The products of the next block's scores run beside those of
//! this block's P with V, and both beside the softmax of another warpgroup.

mod amend;
mod consumer;
mod key_blocks;
mod operand;
mod output;
mod producer;
mod schedule;

use core::mem::offset_of;

use crate::config::Sm90Config;
use crate::params::{AttentionMaps, AttentionParams, PersistentParams};
use crate::ptx::wgmma::Accumulator;
use crate::ptx::{barrier, index, mbarrier, setmaxnreg, shared, tma, warp};
use crate::scheduler::Tiles;
use crate::tile::panels::Panels;
use crate::tile::ring::Ring;
use crate::tile::row_classes::RowClasses;
use consumer::{Consumer, leads_warp};
pub use operand::Operand;
use producer::QueriesAndKeys;
use schedule::{Announcer, Keys, Schedule};

/// Threads of a warpgroup, and rows of a tile that are one's.
const WARPGROUP: u32 = 128;
const WARPGROUP_ROWS: u32 = Sm90Config::WARPGROUP_ROWS;

/// Warps of a warpgroup.
const WARPS: u32 = WARPGROUP / 32;

/// Barriers in the source; the build fails when the PTX has another number.
pub const fn barriers(config: Sm90Config) -> u32 {
    2 + if config.takes_turns() { 7 } else { 0 } + if config.own_output() { 0 } else { 1 }
}

/// As [`barriers`], with `ROW_CLASSES`.
pub const fn row_classes_barriers(config: Sm90Config) -> u32 {
    barriers(config) + 3
}

/// O = softmax(softmax_scale·Q·Kᵀ)·V and its log-sum-exp, in tiles of `BLOCK_M` query rows.
///
/// `maps` is the address of [`AttentionMaps`], as [`Panels::load`] wants them, with boxes of 64 rows of Q,
/// `BLOCK_N` of K and V, and 16 of O. `SCORES` = BLOCK_N / 2, `PAIRS` = BLOCK_N / 4 and `OUT` =
/// HEAD_DIM / 2 are a thread's registers of S, P and O; they are parameters because array lengths cannot be
/// computed from other ones. So is `BYTES`, the size of an element of Q, K and V.
///
/// Where that is 1, PAIRS is half of that, and V's maps are of what [`transpose`](super::transpose) made of
/// it, in boxes of HEAD_DIM rows. There is no `SCORE_MOD`, and nothing to amend; what V's elements are
/// multiplied by is `params.attention.dropout.scale`. `SCORE_MOD` is whether there is something between
/// scores and mask ([`ScoreMod`](crate::score::ScoreMod)). `ROW_CLASSES` is for rows of Q, K and V that lie
/// no multiple of 16 bytes apart, equally far from one modulo 16 bytes, under a mask that hides nothing: the
/// maps are of [`RowClasses`] in place of classes of heads, with boxes of Q that have a class's share of 64
/// rows, and `params.attention.seqlen_k` counts the keys of one class. HEAD_DIM has room for the largest
/// shift. Launch: 1 to `params.tiles` blocks of [`Sm90Config::threads`] threads with
/// [`Sm90Config::shared_bytes`] bytes of shared memory.
///
/// # Safety
/// `params` and the maps describe the same valid device memory, softmax_scale is positive unless there is a
/// `SCORE_MOD`, and the launch is as above.
#[inline(always)]
pub unsafe fn forward_sm90<
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
>(
    params: &PersistentParams,
    maps: u64,
) where
    [f32; SCORES]: Accumulator,
    [f32; OUT]: Accumulator,
{
    let config = const {
        let config = Pipeline::<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES, BYTES>::CONFIG;
        assert!(config.is_well_formed() && STAGES == config.stages() && E::BYTES == BYTES);
        assert!(2 * SCORES as u32 == BLOCK_N && 2 * OUT as u32 == HEAD_DIM);
        assert!(8 * PAIRS as u32 == BLOCK_N * BYTES && !(SCORE_MOD && BYTES == 1));
        assert!(!(ROW_CLASSES && (SCORE_MOD || config.takes_turns() || BYTES == 1)));
        config
    };
    // SAFETY: a stage is written after all consumers have released it and read after its bytes have landed;
    // the warps of a warpgroup run the same branch, and ask for the registers that the block started with.
    unsafe {
        let pipeline = Pipeline::<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES, BYTES>::new();
        let warpgroup = warp::broadcast(index::thread() / WARPGROUP, 0);
        let maps = Maps { first: maps };
        if warpgroup == config.warpgroups() {
            let mut announcer = Announcer::<BLOCK_M>::new(pipeline.schedule());
            let mut begun = false;
            if leads_warp() {
                begun = begin::<_, _, _, _, ROW_CLASSES, _>(params, maps, pipeline, &mut announcer);
            }
            warp::sync();
            barrier::sync(0, config.threads());
            match config.registers().1 {
                40 => setmaxnreg::decrease::<40>(),
                56 => setmaxnreg::decrease::<56>(),
                _ => setmaxnreg::decrease::<32>(),
            }
            match warp::broadcast(index::thread() / 32 % WARPS, 0) {
                0 if leads_warp() => {
                    QueriesAndKeys::new(pipeline, maps).run::<ROW_CLASSES>(params, begun);
                }
                1 if leads_warp() => {
                    let (ring, slots) =
                        (Ring::<STAGES>::producer(pipeline.v_barriers()), pipeline.schedule());
                    if BYTES == 1 {
                        let first = (ring, pipeline.v_transposed());
                        let along_rows = |key| (key, 0);
                        producer::copy_values::<BLOCK_N, _, _, _, false, _>(
                            params, maps, first, slots, along_rows,
                        );
                    } else {
                        let first = (ring, pipeline.v());
                        let along_columns = |key| (0, key);
                        producer::copy_values::<BLOCK_N, _, _, _, ROW_CLASSES, _>(
                            params,
                            maps,
                            first,
                            slots,
                            along_columns,
                        );
                    }
                }
                3 if leads_warp() => {
                    while begun {
                        begun = announcer.announce::<BLOCK_N, BYTES>(params);
                    }
                    announcer.end::<BLOCK_N, BYTES>(params);
                }
                2 if amend::is_needed(params) && BYTES == 2 => {
                    let pipeline = Pipeline::<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES> { base: pipeline.base };
                    amend::amend::<_, _, _, _, ROW_CLASSES>(params, pipeline);
                }
                _ => {}
            }
        } else {
            barrier::sync(0, config.threads());
            match config.registers().0 {
                232 => setmaxnreg::increase::<232>(),
                152 => setmaxnreg::increase::<152>(),
                _ => setmaxnreg::increase::<160>(),
            }
            let mut consumer = Consumer::<
                E,
                BLOCK_M,
                BLOCK_N,
                HEAD_DIM,
                STAGES,
                SCORES,
                PAIRS,
                OUT,
                SCORE_MOD,
                ROW_CLASSES,
                BYTES,
            >::new(pipeline);
            consumer.run(params, maps.o());
        }
    }
}

/// What those that copy do before all others are there, who wait for it in a short launch: they make the
/// barriers, announce the first tile, and begin to copy it. Says whether there is one, to those who go on
/// from there.
///
/// # Safety
/// The first lanes of the last warpgroup's warps call this, in a launch as [`forward_sm90`] says, and a block
/// barrier follows.
#[inline(always)]
unsafe fn begin<
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const STAGES: u32,
    const ROW_CLASSES: bool,
    const BYTES: u32,
>(
    params: &PersistentParams,
    maps: Maps,
    pipeline: Pipeline<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES, BYTES>,
    announcer: &mut Announcer<BLOCK_M>,
) -> bool {
    // SAFETY: the caller's contract; who makes barriers uses no others before the block barrier.
    unsafe {
        match index::thread() / 32 % WARPS {
            0 => {
                tma::prefetch(maps.k());
                tma::prefetch(maps.q());
                pipeline.init(params);
                let params = &schedule::anew(params);
                let Some(work) = Tiles::<BLOCK_M>::default().next(params) else { return false };
                let place = Keys::of_tile::<BLOCK_M, BLOCK_N, BYTES>(params, &work);
                QueriesAndKeys::new(pipeline, maps).begin::<ROW_CLASSES>(params, &work, &place);
                true
            }
            1 => {
                tma::prefetch(maps.v());
                false
            }
            2 => {
                if params.o_by_rows != 2 {
                    tma::prefetch(maps.o());
                }
                false
            }
            _ => {
                pipeline.init_schedule(params);
                announcer.announce::<BLOCK_N, BYTES>(params)
            }
        }
    }
}

/// The classes of rows of Q, K and V, which are alike.
#[inline(always)]
fn row_classes(params: &AttentionParams) -> RowClasses {
    RowClasses::of(params.k_strides.row)
}

/// How often a tile goes over its blocks of keys: once, or once for each of their classes.
#[inline(always)]
fn turns<const ROW_CLASSES: bool>(params: &AttentionParams) -> u32 {
    if ROW_CLASSES { row_classes(params).count() } else { 1 }
}

/// First row of a tile in its sequence.
#[inline(always)]
fn first_row<const BLOCK_M: u32>(params: &PersistentParams, tile: u32) -> u32 {
    let lacking = const { BLOCK_M - Sm90Config::short_block_m(BLOCK_M) };
    tile * BLOCK_M - tile.min(params.short_tiles) * lacking
}

/// Where tiles and barriers lie in shared memory.
#[derive(Clone, Copy)]
struct Pipeline<
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const STAGES: u32,
    const BYTES: u32 = 2,
> {
    base: u32,
}

/// A warpgroup's rows of Q or O, and a block of K or V.
type Rows<const HEAD_DIM: u32, const BYTES: u32 = 2> = Panels<WARPGROUP_ROWS, HEAD_DIM, BYTES>;

/// A block of 8-bit V: its columns are rows.
type Transposed<const HEAD_DIM: u32, const BLOCK_N: u32, const BYTES: u32> = Panels<HEAD_DIM, BLOCK_N, BYTES>;

impl<const BLOCK_M: u32, const BLOCK_N: u32, const HEAD_DIM: u32, const STAGES: u32, const BYTES: u32>
    Pipeline<BLOCK_M, BLOCK_N, HEAD_DIM, STAGES, BYTES>
{
    const CONFIG: Sm90Config =
        Sm90Config { block_m: BLOCK_M, block_n: BLOCK_N, head_dim: HEAD_DIM, element_bytes: BYTES };

    #[inline(always)]
    fn new() -> Self {
        Self { base: shared::base() }
    }

    /// Makes the barriers of the rings of Q, K and V.
    ///
    /// # Safety
    /// One thread calls this, and a block barrier follows.
    #[inline(always)]
    unsafe fn init(self, params: &PersistentParams) {
        // SAFETY: the caller's contract; barriers lie behind all tiles.
        unsafe {
            let mut warpgroup = 0;
            while warpgroup < Self::CONFIG.warpgroups() {
                Ring::<1>::init(self.q_barriers(warpgroup), WARPS);
                if params.qk_landed != 0 {
                    mbarrier::init(self.q_barriers(warpgroup) + params.qk_landed, 1);
                }
                warpgroup += 1;
            }
            let mut stage = 0;
            while stage < STAGES {
                if params.qk_landed != 0 {
                    mbarrier::init(self.k_barriers() + params.qk_landed + 8 * stage, 1);
                }
                if params.v_landed != 0 {
                    mbarrier::init(self.v_barriers() + params.v_landed + 8 * stage, 1);
                }
                stage += 1;
            }
            Ring::<STAGES>::init(self.k_barriers(), Self::CONFIG.warpgroups() * WARPS);
            Ring::<STAGES>::init(self.v_barriers(), Self::CONFIG.warpgroups() * WARPS);
        }
    }

    /// Makes those of the slots that tiles are announced in.
    ///
    /// # Safety
    /// As [`Self::init`].
    #[inline(always)]
    unsafe fn init_schedule(self, params: &PersistentParams) {
        let warps = Self::CONFIG.warpgroups() * WARPS + 2 + amend::is_needed(params) as u32;
        // SAFETY: the caller's contract.
        unsafe { Schedule::init(self.schedule(), warps) }
    }

    #[inline(always)]
    fn schedule(self) -> u32 {
        const { assert!(Schedule::BYTES == Sm90Config::SCHEDULE_BYTES) };
        self.base + Self::CONFIG.schedule_offset()
    }

    #[inline(always)]
    fn q_barriers(self, warpgroup: u32) -> u32 {
        self.base + Self::CONFIG.barriers_offset() + Ring::<1>::BYTES * warpgroup
    }

    #[inline(always)]
    fn k_barriers(self) -> u32 {
        self.q_barriers(Self::CONFIG.warpgroups())
    }

    #[inline(always)]
    fn v_barriers(self) -> u32 {
        self.k_barriers() + Ring::<STAGES>::BYTES
    }

    /// A warpgroup's rows of Q.
    #[inline(always)]
    fn q(self, warpgroup: u32) -> Rows<HEAD_DIM, BYTES> {
        Panels { address: self.base + Rows::<HEAD_DIM, BYTES>::BYTES * warpgroup }
    }

    /// Whether O leaves through Q's memory: where it has none of its own, and where rows need more than that.
    #[inline(always)]
    fn leaves_through_queries(params: &PersistentParams) -> bool {
        let (all, none) = const { (Self::CONFIG.own_output(), Self::CONFIG.output_panels() == 0) };
        !all && (none || params.o_by_rows != 0)
    }

    /// A warpgroup's part of O's own memory.
    #[inline(always)]
    fn o(self, warpgroup: u32) -> Rows<HEAD_DIM> {
        let panels = const { Self::CONFIG.output_panels() };
        Panels { address: self.base + Self::CONFIG.o_offset() + panels * Rows::<HEAD_DIM>::PANEL * warpgroup }
    }

    /// The first stage of K; the others lie behind it.
    #[inline(always)]
    fn k(self) -> Panels<BLOCK_N, HEAD_DIM, BYTES> {
        Panels { address: self.base + Self::CONFIG.k_offset() }
    }

    /// The first stage of V.
    #[inline(always)]
    fn v(self) -> Panels<BLOCK_N, HEAD_DIM> {
        Panels { address: self.base + Self::CONFIG.v_offset() }
    }

    /// The first stage of 8-bit V.
    #[inline(always)]
    fn v_transposed(self) -> Transposed<HEAD_DIM, BLOCK_N, BYTES> {
        Panels { address: self.v().address }
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
