//! From accumulators to shared memory, on their way out.

use crate::ptx::wgmma::Accumulator;
use crate::ptx::{global, shared, stmatrix, tma, warp};
use crate::tile::mma::MmaElement;
use crate::tile::wgmma::{LINE, chunk};

use super::roles::WARP_ROWS;

/// Sixteens of columns in a line.
const STEPS: usize = LINE as usize / 32;

/// Multiplies a thread's two rows of an accumulator by a factor each.
#[inline(always)]
pub fn scale_rows<A: Accumulator>(acc: &mut A, factors: [f32; 2]) {
    let mut j = 0;
    while j < A::LEN {
        acc[j] *= factors[j / 2 % 2];
        j += 1;
    }
}

/// Rounds those of a warp's 16 rows that lie in the `panel`-th 64 columns of `acc`, and writes them to the 16
/// swizzled lines at `address`, from where a tensor copy can fetch them. `lane` is this thread's in its warp.
///
/// # Safety
/// All 32 lanes of the warp call this together; nobody else accesses the lines.
#[inline(always)]
pub unsafe fn write_panel<E: MmaElement, A: Accumulator>(lane: u32, address: u32, acc: &A, panel: u32) {
    // Lanes name the rows of four 8×8 matrices: rows 0 to 7 and 8 to 15 of eight columns, then of the next.
    let mut step = 0;
    while step < STEPS && panel as usize * STEPS + step < A::LEN / 8 {
        let first = 8 * (panel as usize * STEPS + step);
        let at = chunk(address, lane % WARP_ROWS, 2 * step as u32 + lane / WARP_ROWS);
        let pair = |i: usize| E::pack(acc[first + 2 * i], acc[first + 2 * i + 1]);
        // SAFETY: the lines are this warp's, whose lanes are together.
        unsafe { stmatrix::store_x4(at, [pair(0), pair(1), pair(2), pair(3)]) };
        step += 1;
    }
}

/// Stores the first `columns` (up to 8) 16-bit elements of a chunk of 16 bytes at `source` in shared memory
/// to `target`: all at once of rows [in chunks](crate::params::Strides::are_in_chunks), where a chunk has all
/// elements or none.
///
/// # Safety
/// The chunk is there, and the elements exist in device memory and are this thread's.
#[inline(always)]
pub unsafe fn store_chunk(target: u64, source: u32, columns: u32, in_chunks: bool) {
    // SAFETY: as the caller says.
    unsafe {
        if in_chunks {
            if columns > 0 {
                global::store4(target, shared::load4(source).map(f32::to_bits));
            }
            return;
        }
        let mut i = 0;
        while i < columns {
            global::store_b16(target + 2 * i as u64, shared::load_b16(source + 2 * i));
            i += 1;
        }
    }
}

/// Waits until the shared memory of this warp's stores may be written again.
///
/// # Safety
/// All 32 lanes of the warp call this together.
#[inline(always)]
pub unsafe fn wait_read() {
    tma::wait_group_read::<0>();
    // SAFETY: the lanes are together.
    unsafe { warp::sync() };
}

/// Waits until this thread's stores are over.
#[inline(always)]
pub fn wait_all() {
    tma::wait_group::<0>();
}
