//! What memory gives at best: reads of 16 bytes by all threads, and nothing else.

use crate::params::GemmParams;
use crate::ptx::{global, index};

/// Threads of a block.
pub const THREADS: u32 = 512;

/// Reads that a thread has in flight.
const IN_FLIGHT: usize = 8;

/// Reads K times 16 bytes at A, all threads of the grid those that are neighbours. A thread stores a word at
/// C where one of its bits is in an odd number of those that it has read, so that reads are not left out.
///
/// Launch: any number of blocks of [`THREADS`] threads without shared memory.
///
/// # Safety
/// A is readable and a multiple of 16, C is writable memory for a word, which is read by nobody.
#[inline(always)]
pub unsafe fn read_peak(params: &GemmParams) {
    let threads = index::blocks() * THREADS;
    let mut chunk = index::block() * THREADS + index::thread();
    let mut bits = 0;
    while chunk < params.k {
        let mut words = [[0; 4]; IN_FLIGHT];
        let mut i = 0;
        while i < IN_FLIGHT {
            let chunk = chunk as u64 + i as u64 * threads as u64;
            // SAFETY: chunks below K are readable, and nothing else is read.
            words[i] = unsafe { global::load4_if(chunk < params.k as u64, params.a + 16 * chunk) };
            i += 1;
        }
        let mut i = 0;
        while i < IN_FLIGHT {
            bits ^= words[i][0] ^ words[i][1] ^ words[i][2] ^ words[i][3];
            i += 1;
        }
        chunk = chunk.saturating_add(IN_FLIGHT as u32 * threads);
    }
    if bits != 0 {
        // SAFETY: the word is writable; whose bits it has does not matter.
        unsafe { global::fetch_add(params.c, bits) };
    }
}
