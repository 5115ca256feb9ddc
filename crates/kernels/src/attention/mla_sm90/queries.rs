//! The rows of Q of an item, copied by the warpgroups that multiply.

use crate::attention::split_work::{QueryRow, packed_rows};
use crate::attention::work_items::Item;
use crate::hopper::roles::WARPGROUP;
use crate::params::DecodeParams;
use crate::ptx::{global, index, shared};
use crate::tile::chunk::load_chunk;
use crate::tile::mma::{CHUNK, MmaElement};
use crate::tile::panels::Panels;

use super::memory::{Memory, QueryRows};
use super::{BLOCK_M, HEAD_DIM};

/// Elements of a chunk.
const ELEMENTS: u32 = CHUNK / 2;

/// Threads of a row, which have every so many chunks of it.
const ROW_THREADS: u32 = 2 * WARPGROUP / BLOCK_M;

/// Chunks of a thread; all are loaded before the first is stored.
const THREAD_CHUNKS: usize = (HEAD_DIM / ELEMENTS / ROW_THREADS) as usize;

/// Copies the rows of a tile of Q, with zeros where there are none.
///
/// # Safety
/// Q is readable; all threads of both warpgroups call this, and nobody reads the tile.
#[inline(always)]
pub(super) unsafe fn copy<E: MmaElement>(params: &DecodeParams, item: &Item, memory: Memory) {
    const { assert!(THREAD_CHUNKS as u32 * ROW_THREADS * ELEMENTS == HEAD_DIM) };
    let tile: Panels<QueryRows> = memory.q();
    let (row, first) = (index::reread_thread() / ROW_THREADS, index::reread_thread() % ROW_THREADS);
    let packed = item.work.first_row + row;
    let QueryRow { position, head } = item.work.query_row(params, packed);
    let columns = if packed < packed_rows(params) { params.head_dim } else { 0 };
    let row_address = params.q + E::BYTES * params.q_strides.offset(item.work.batch, position, head);
    let chunk = |i: u32| first + ROW_THREADS * i;
    let address = |i| row_address + u64::from(CHUNK * chunk(i));
    if params.q_strides.are_in_chunks(params.q, params.head_dim) {
        let mut words = [[0; 4]; THREAD_CHUNKS];
        let mut i = 0;
        while i < THREAD_CHUNKS {
            let exists = ELEMENTS * chunk(i as u32) < columns;
            // SAFETY: of aligned rows all elements of a chunk exist, or none; none is not loaded.
            words[i] = unsafe { global::load4_if(exists, address(i as u32)) };
            i += 1;
        }
        let mut i = 0;
        while i < THREAD_CHUNKS {
            // SAFETY: the chunk is the tile's and this thread's, and nobody reads it.
            unsafe { shared::store4(tile.at(row, chunk(i as u32)), words[i]) };
            i += 1;
        }
    } else {
        let mut i = 0;
        while i < index::unknown(THREAD_CHUNKS as u32) {
            let elements = columns.saturating_sub(ELEMENTS * chunk(i)).min(ELEMENTS);
            // SAFETY: only elements of Q that exist are loaded; the chunk of the tile is as above.
            unsafe { shared::store4(tile.at(row, chunk(i)), load_chunk(address(i), elements)) };
            i += 1;
        }
    }
}
