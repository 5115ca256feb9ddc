//! The warp that finds items, announces them, and copies their rows of Q.

use crate::attention::split_work::{QueryRow, Work, packed_rows};
use crate::element::Element as _;
use crate::hopper::ring::Ring;
use crate::hopper::roles::leads_warp;
use crate::params::DecodeParams;
use crate::ptx::{fence, grid, index, math, shared, warp};
use crate::tile::chunk::load_chunk;
use crate::tile::mma::{CHUNK, MmaElement as _};
use crate::tile::panels::Panels;

use super::fragments::Depth;
use super::tile::{Memory, QueryRows, QueryStages, Tile};
use crate::attention::work_items::{Item, ItemSlots, Items};

/// Chunks that a lane loads before it stores the first.
const IN_FLIGHT: usize = 4;

/// Announces all items of this block, and copies Q of each.
///
/// # Safety
/// All lanes of one warp call this together, in a launch as [`decode_sm90`](super::decode_sm90) says.
#[inline(always)]
pub(super) unsafe fn announce<T: Tile>(params: &DecodeParams, memory: Memory<T>) {
    // SAFETY: this warp, by its first lane, is the producer of slots and of Q; its lanes write a stage
    // between the wait for it and the fence, after which the first hands it on.
    unsafe {
        grid::launch_dependents();
        let mut slots = ItemSlots::producer(memory.slots());
        let mut queries = Ring::<QueryStages>::producer(memory.query_barriers());
        let mut items = Items::new::<T>(params);
        while let Some(item) = items.next::<T>(params) {
            if leads_warp() {
                slots.announce(|slot| item.write(slot));
            }
            queries.wait_empty();
            let stage = queries.stage();
            copy_rows(params, &item.work, memory, stage);
            write_rows(params, &item, memory, stage);
            fence::proxy_async();
            warp::sync();
            if leads_warp() {
                queries.fill();
            }
            queries.advance();
        }
        if leads_warp() {
            slots.announce_end();
        }
    }
}

/// Copies the rows of a tile of Q, with zeros where there are none.
///
/// # Safety
/// Q is readable; all lanes of the warp call this together, and nobody reads the tile.
#[inline(always)]
unsafe fn copy_rows<T: Tile>(params: &DecodeParams, work: &Work, memory: Memory<T>, stage: u32) {
    let tile: Panels<QueryRows<T>> = memory.q().stage(stage);
    let chunks = row_chunks::<T>();
    let mut k_descale = 1.0;
    if T::WIDENS {
        // SAFETY: the factors are readable, and the head is one of the launch's.
        k_descale = unsafe { params.cache.k_descale.of(work.batch, work.kv_head) };
    }
    let mut first = index::thread() % 32;
    while first < T::BLOCK_M * chunks {
        let mut words = [[0; 4]; IN_FLIGHT];
        let mut i = 0;
        while i < IN_FLIGHT {
            let chunk = first + 32 * i as u32;
            let (row, column) = (chunk / chunks, chunk % chunks * (CHUNK / 2));
            let exists = work.first_row + row < packed_rows(params) && column < params.head_dim;
            let elements = if exists { (params.head_dim - column).min(CHUNK / 2) } else { 0 };
            let QueryRow { position, head } = work.query_row(params, work.first_row + row);
            let element = params.q_strides.offset(work.batch, position, head) + column as u64;
            // SAFETY: only elements of Q that exist are loaded.
            words[i] = unsafe { load_chunk(params.q + T::Element::BYTES * element, elements) };
            i += 1;
        }
        let mut i = 0;
        while i < IN_FLIGHT {
            let chunk = first + 32 * i as u32;
            let (row, column) = (chunk / chunks, chunk % chunks);
            // SAFETY: the chunk is the tile's: a lane has a multiple of so many; nobody reads it, nor the
            // row's words. All lanes are here.
            unsafe {
                if T::WIDENS {
                    let (words, inverse) = scaled::<T>(words[i]);
                    store_in_depth_order(tile, row, column, words);
                    if column == 0 {
                        shared::store(memory.row(stage, row) + 8, inverse * k_descale);
                    }
                } else {
                    shared::store4(tile.at(row, column), words[i]);
                }
            }
            i += 1;
        }
        first += 32 * IN_FLIGHT as u32;
    }
    const { assert!((T::BLOCK_M * 2 * T::CONFIG.head_dim / CHUNK).is_multiple_of(32 * IN_FLIGHT as u32)) };
}

/// Chunks of a row of Q.
#[inline(always)]
const fn row_chunks<T: Tile>() -> u32 {
    2 * T::CONFIG.head_dim / CHUNK
}

/// A chunk of a row in the operands' type, multiplied by the power of two that brings the row's largest
/// element to 2¹⁵ or more and below 2¹⁶, and what takes that back.
///
/// # Safety
/// All lanes of the warp call this together, each row's beside each other.
#[inline(always)]
unsafe fn scaled<T: Tile>(words: [u32; 4]) -> ([u32; 4], f32) {
    const { assert!(!T::WIDENS || row_chunks::<T>().is_power_of_two() && row_chunks::<T>() <= 32) };
    let element = |i: usize| T::Element::unpack(&words, i);
    let mut largest = 0.0;
    let mut i = 0;
    while i < 8 {
        largest = math::max(largest, element(i).abs());
        i += 1;
    }
    let mut distance = 1;
    while distance < row_chunks::<T>() {
        // SAFETY: all lanes are here.
        largest = math::max(largest, unsafe { warp::shuffle_xor(largest, distance) });
        distance *= 2;
    }
    // Exponents as fp32 has them, 127 above: e + exponent = 127 + 15 + 127, but that both factors are normal.
    let exponent = (127 + 15 + 127 - (largest.to_bits() >> 23)).min(253);
    let (scale, inverse) = (f32::from_bits(exponent << 23), f32::from_bits((254 - exponent) << 23));
    let pair = |i: usize| T::Operand::pack(element(2 * i) * scale, element(2 * i + 1) * scale);
    ([pair(0), pair(1), pair(2), pair(3)], inverse)
}

/// Stores eight columns of a row where products find them that take K's columns in the order of [`Depth`].
///
/// # Safety
/// The row is the tile's, and nobody reads it.
#[inline(always)]
unsafe fn store_in_depth_order<T: Tile>(tile: Panels<QueryRows<T>>, row: u32, eighth: u32, words: [u32; 4]) {
    let mut word = 0;
    while word < 4 {
        let (eighth, at) = Depth::<T>::place(eighth, word);
        // SAFETY: the word is the row's.
        unsafe { shared::store_b32(tile.at(row, eighth) + 4 * at, words[word as usize]) };
        word += 1;
    }
}

/// Writes what masks and biases need of each row.
///
/// # Safety
/// Slopes are readable; all lanes of the warp call this together, and nobody reads the rows.
#[inline(always)]
unsafe fn write_rows<T: Tile>(params: &DecodeParams, item: &Item, memory: Memory<T>, stage: u32) {
    let mut row = index::thread() % 32;
    while row < T::BLOCK_M {
        // A row of padding has a head of the group too.
        let QueryRow { position, head } = item.work.query_row(params, item.work.first_row + row);
        let diagonal = (position + item.used).wrapping_sub(params.seqlen_q);
        // SAFETY: the head's slope is readable, and nobody reads the words.
        unsafe {
            let slope = params.per_head.alibi_slopes.of(item.work.batch, head);
            shared::store_b32(memory.row(stage, row), diagonal);
            shared::store(memory.row(stage, row) + 4, slope);
        }
        row += 32;
    }
}
