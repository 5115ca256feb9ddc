//! Copying rows that start anywhere into rows that tensor maps can describe.
//!
//! Hopper's tensor copies want addresses and strides at multiples of 16 bytes. Where rows of what is
//! read lie otherwise, as those of a contiguous [B, H, S, 129] do, launches copy them to rows of whole
//! 32-byte sectors, with zeros behind the last column.
//!
//! A block goes through units of rows. One warp loads them to shared memory as they are, several units ahead,
//! where they lie close to one another; where they lie far apart, it brings them to the cache alone, and each
//! thread loads its part of them.
//! A thread then reads the one or two aligned 16 bytes that hold 16 bytes of a row, shifts, and stores them.
//! Of any eight rows the first start equally far behind a multiple of 16 bytes as those of the next eight, so
//! the threads of a warp shift alike.
//!
//! Device memory takes what a part of the multiprocessors copies as fast as what all do. So a launch of a few
//! blocks copies beside `forward_sm90`, which has the others, and counts the units of each group of heads.

mod rows;
mod unit;

use crate::hopper::ring::{Count, Ring, Stages as _};
use crate::hopper::roles::leads_warp;
use crate::params::PackParams;
use crate::ptx::{barrier, fence, global, grid, index, mbarrier, shared, tma, warp};
use rows::{Place, Rows};
use unit::Unit;
pub use unit::{are_run, unit_rows};

/// Threads that copy rows of one class, modulo eight, at a time.
const WORKER: u32 = 128;

/// How many such there are.
const WORKERS: u32 = 4;

/// Warps of all of them; behind them are one that loads and one that counts.
const COPYING_WARPS: u32 = WORKERS * WORKER / 32;

/// Threads of a block, one for each multiprocessor.
pub const THREADS: u32 = 32 * (COPYING_WARPS + 2);

/// Units in shared memory.
type Stages = Count<3>;

/// Bytes of a unit's rows there.
const STAGE_BYTES: u32 = 72 << 10;

/// Where units are described, behind their rows, and the barriers.
const UNITS: u32 = Stages::COUNT * STAGE_BYTES;
const BARRIERS_OFFSET: u32 = UNITS + Stages::COUNT * Unit::BYTES;

/// Bytes of shared memory.
pub const SHARED_BYTES: u32 = BARRIERS_OFFSET + 2 * Ring::<Stages>::BYTES;

/// Barriers in the source.
pub const BARRIERS: u32 = 1;

/// Copies units of up to four tensors, and sets counters to 0 where there are none that it adds to.
///
/// Launch: blocks of [`THREADS`] threads with [`SHARED_BYTES`] bytes of shared memory, best one for each
/// multiprocessor that is to copy.
///
/// # Safety
/// `params` describes valid device memory, targets overlap nothing, and the launch is as above.
#[inline(always)]
pub unsafe fn pack(params: &PackParams) {
    grid::launch_dependents();
    let mut cleared = index::block() * THREADS + index::thread();
    while cleared < params.cleared {
        // SAFETY: the counters are device memory, and this one is this thread's.
        unsafe { global::store_b32(params.counters + 4 * cleared as u64, 0) };
        cleared += index::blocks() * THREADS;
    }
    let pipeline = Pipeline { base: shared::base() };
    // SAFETY: one thread makes the barriers before the block barrier. The warps of a block go through the
    // same units, in the roles that the rings have.
    unsafe {
        if index::thread() == 0 {
            // Each lane of the warp that loads announces its own bytes.
            Ring::<Stages>::init_filled_by(pipeline.landed(), 32, 1);
            Ring::<Stages>::init_filled_by(pipeline.stored(), COPYING_WARPS, 1);
        }
        barrier::sync(0, THREADS);
        match warp::broadcast(index::thread() / 32, 0) {
            COPYING_WARPS => load_units(params, pipeline),
            warp if warp >= COPYING_WARPS => {
                if leads_warp() {
                    count_units(params, pipeline);
                }
            }
            _ => copy_units(params, pipeline),
        }
    }
}

/// Where units and barriers lie in shared memory.
#[derive(Clone, Copy)]
struct Pipeline {
    base: u32,
}

impl Pipeline {
    /// The rows of a stage.
    #[inline(always)]
    fn rows(self, stage: u32) -> u32 {
        self.base + STAGE_BYTES * stage
    }

    /// What describes them.
    #[inline(always)]
    fn unit(self, stage: u32) -> u32 {
        self.base + UNITS + Unit::BYTES * stage
    }

    /// The ring of units that have landed.
    #[inline(always)]
    fn landed(self) -> u32 {
        self.base + BARRIERS_OFFSET
    }

    /// The ring of units whose copies all warps have stored, of which the full barriers are used alone.
    #[inline(always)]
    fn stored(self) -> u32 {
        self.landed() + Ring::<Stages>::BYTES
    }
}

/// The first unit of this block, and how many there are from one to the next.
#[inline(always)]
fn first_unit(params: &PackParams) -> (u32, u32) {
    (params.first + index::block(), index::blocks())
}

/// Loads the rows of all units of this block.
///
/// # Safety
/// As [`pack`]. One warp calls this, all lanes together.
#[inline(always)]
unsafe fn load_units(params: &PackParams, pipeline: Pipeline) {
    let (lane, (mut unit, step)) = (index::thread() % 32, first_unit(params));
    // SAFETY: this warp is the ring's producer.
    let mut ring = unsafe { Ring::<Stages>::producer(pipeline.landed()) };
    while unit < params.end {
        // SAFETY: the unit is one of the launch. A stage is written when the warps that copy have left it;
        // pieces are device memory and disjoint in the stage.
        unsafe {
            let described = Unit::of(params, unit);
            let (pieces, rows) = (described.pieces(), pipeline.rows(ring.stage()));
            let (mut piece, mut bytes) = (lane, 0);
            while piece < pieces {
                bytes += described.piece(piece).bytes;
                piece += 32;
            }
            described.prefetch(lane);
            ring.wait_empty();
            if lane == 0 {
                described.store(pipeline.unit(ring.stage()));
            }
            mbarrier::arrive_expect_tx(ring.full(), bytes);
            piece = lane;
            while piece < pieces {
                let part = described.piece(piece);
                if part.bytes > 0 {
                    tma::load_bytes(rows + part.offset, part.address, part.bytes, ring.full());
                }
                piece += 32;
            }
        }
        ring.advance();
        unit += step;
    }
}

/// Copies the rows of all units of this block from shared memory to where they belong.
///
/// # Safety
/// As [`pack`]. All lanes of each warp that copies call this together.
#[inline(always)]
unsafe fn copy_units(params: &PackParams, pipeline: Pipeline) {
    let (mut unit, step) = first_unit(params);
    // SAFETY: all lanes of the warp are here, and each warp leaves each stage once.
    let (worker, mut landed, mut stored) = unsafe {
        (
            warp::broadcast(index::thread() / WORKER, 0),
            Ring::<Stages>::consumer(pipeline.landed()),
            Ring::<Stages>::producer(pipeline.stored()),
        )
    };
    while unit < params.end {
        landed.wait();
        // SAFETY: the unit has landed, and its copy overlaps nothing.
        unsafe {
            let described = Unit::load(pipeline.unit(landed.stage()));
            let rows = pipeline.rows(landed.stage());
            let place = Place::of(&described);
            let (first, second) = (
                Rows::of_class(&described, &place, worker),
                Rows::of_class(&described, &place, worker + WORKERS),
            );
            let loaded = (first.load(rows), second.load(rows));
            first.store(&loaded.0);
            second.store(&loaded.1);
            warp::sync();
        }
        if index::thread().is_multiple_of(32) {
            stored.fill();
        }
        landed.advance();
        stored.advance();
        unit += step;
    }
}

/// Leaves each stage when its copies are stored, and counts the unit for those who wait for its group of
/// heads beside this launch.
///
/// # Safety
/// As [`pack`]. One thread calls this.
#[inline(always)]
unsafe fn count_units(params: &PackParams, pipeline: Pipeline) {
    let (mut unit, step) = first_unit(params);
    // SAFETY: this thread alone leaves stages, each once.
    let (mut landed, mut stored) =
        unsafe { (Ring::<Stages>::consumer(pipeline.landed()), Ring::<Stages>::consumer(pipeline.stored())) };
    while unit < params.end {
        stored.wait();
        landed.release();
        if params.counters != 0 && params.cleared == 0 {
            fence::proxy_async_global();
            // SAFETY: the counter is device memory, which this launch and that beside it access by atomics
            // alone.
            unsafe { global::add_release(params.counter(params.group(unit)), 1) };
        }
        landed.advance();
        stored.advance();
        unit += step;
    }
}
