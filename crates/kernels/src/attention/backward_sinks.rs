//! The gradient of sinks: dsink = Σ P_sink ∘ (dlse − delta) over the rows that a sink is a score of.
//!
//! A sink is the score of a key without a value, so that dP of it is 0.

use core::f32::consts::LOG2_E;

use crate::element::Element as _;
use crate::mask::KeyRange;
use crate::params::BackwardParams;
use crate::ptx::{barrier, index, math, shared};
use crate::scheduler::WorkTile;
use crate::softmax::reduce;

/// Threads of a block.
pub const THREADS: u32 = 256;
/// Bytes of shared memory: a sum of each warp.
pub const SHARED_BYTES: u32 = 4 * WARPS;
/// Barriers in the source.
pub const BARRIERS: u32 = 1;
/// Blocks of a multiprocessor.
pub const MIN_BLOCKS: u32 = 4;

const WARPS: u32 = THREADS / 32;

/// Rows that a thread loads before it adds the first.
const LOADS_IN_FLIGHT: u32 = 4;

/// The gradient of one sink, summed in the same order in each run.
///
/// Launch: a block of [`THREADS`] threads and [`SHARED_BYTES`] bytes of shared memory for each sink.
///
/// # Safety
/// `params` describes valid device memory, `attention::backward_delta` has run before with the same, and the
/// launch is as above.
#[inline(always)]
pub unsafe fn backward_sinks(params: &BackwardParams) {
    if params.dsinks == 0 {
        return;
    }
    let (sink, thread) = (index::block(), index::thread());
    let sequences = params.sequences_of_sink;
    // Warps each take whole sequences where there are enough, which may be short; else all share each one.
    let warp_each = sequences >= WARPS;
    let (mut sequence, step) = if warp_each { (thread / 32, WARPS) } else { (0, 1) };
    let (first_row, threads) = if warp_each { (thread % 32, 32) } else { (thread, THREADS) };
    let mut sum = CompensatedSum { sum: 0.0, excess: 0.0 };
    while sequence < sequences {
        // SAFETY: there are heads, the sink is of the sequence, and the offsets are readable.
        let work = unsafe { WorkTile::of_sink(&params.attention, sink, sequence) };
        let mut row = first_row;
        while row < work.queries.len {
            // SAFETY: delta is written, and the caller vouches for the rest.
            unsafe { add_rows(params, &work, (row, threads), &mut sum) };
            row += LOADS_IN_FLIGHT * threads;
        }
        sequence += step;
    }
    // SAFETY: all threads of the block are here, and each warp's sum has a place.
    unsafe {
        let of_warp = reduce::<32>(sum.sum, |a, b| a + b);
        if thread.is_multiple_of(32) {
            shared::store(shared::base() + thread / 8, of_warp);
        }
        barrier::sync(0, THREADS);
        // Each warp adds them all up.
        let of_some_warp = shared::load(shared::base() + 4 * (thread % WARPS));
        let of_block = reduce::<WARPS>(of_some_warp, |a, b| a + b);
        if thread == 0 {
            f32::store(params.dsinks + 4 * sink as u64, of_block);
        }
    }
}

/// A sum of many numbers that is off by as little as one of few (Kahan 1965).
struct CompensatedSum {
    sum: f32,
    /// How much more than what was to be added `sum` has grown by.
    excess: f32,
}

impl CompensatedSum {
    #[inline(always)]
    fn add(&mut self, value: f32) {
        let value = value - self.excess;
        let sum = self.sum + value;
        self.excess = (sum - self.sum) - value;
        self.sum = sum;
    }
}

/// Adds [`LOADS_IN_FLIGHT`] rows, `distance` rows apart, where they exist.
///
/// # Safety
/// lse, delta, dlse and the sinks are readable.
#[inline(always)]
unsafe fn add_rows(
    params: &BackwardParams,
    work: &WorkTile,
    (first, distance): (u32, u32),
    sum: &mut CompensatedSum,
) {
    let attention = &params.attention;
    let (mut lse, mut slope) = ([0.0; LOADS_IN_FLIGHT as usize], [0.0; LOADS_IN_FLIGHT as usize]);
    let mut i = 0;
    while i < LOADS_IN_FLIGHT as usize {
        let row = first + i as u32 * distance;
        let (exists, at) = (row < work.queries.len, 4 * work.lse_index(attention, row));
        let sees = KeyRange::of_row(attention, work, row).has_keys();
        // SAFETY: only what exists is read.
        unsafe {
            lse[i] = f32::load_if(exists, attention.lse + at);
            let delta = f32::load_if(exists, params.delta + at);
            // delta has no dlse of a row that sees no key.
            let dlse = f32::load_if(exists && !sees && params.dlse != 0, params.dlse + at);
            slope[i] = dlse - delta;
        }
        i += 1;
    }
    // SAFETY: the sinks are readable.
    let sink = unsafe { attention.per_head.sinks.of(work.batch, work.head) };
    let mut i = 0;
    while i < LOADS_IN_FLIGHT as usize {
        let exists = first + i as u32 * distance < work.queries.len;
        let p = math::exp2((sink - lse[i]) * LOG2_E);
        sum.add(if exists { p * slope[i] } else { 0.0 });
        i += 1;
    }
}
