//! The warp that finds items, announces them, and copies their rows of Q.

use core::hint::cold_path;

use crate::attention::split_work::{QueryRow, Work, packed_rows};
use crate::element::Element as _;
use crate::hopper::ring::Ring;
use crate::hopper::roles::leads_warp;
use crate::params::DecodeParams;
use crate::ptx::{barrier, fence, global, grid, index, math, shared, warp};
use crate::tile::chunk::load_chunk;
use crate::tile::mma::{CHUNK, MmaElement as _};
use crate::tile::panels::Panels;

use super::BARRIERS_ARE_MADE;
use super::fragments::Depth;
use super::tile::{Memory, QueryRows, QueryStages, Tile};
use crate::attention::work_items::{Item, ItemSlots, Items};

/// Chunks that a lane loads before it stores the first.
const IN_FLIGHT: usize = 8;

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
        let are_whole = params.q_strides.are_in_chunks(params.q, params.head_dim);
        let mut barriers_are_made = false;
        loop {
            let item = items.next::<T>(params);
            let mut first = index::thread() % 32;
            let mut words = [[0; 4]; IN_FLIGHT];
            // Loads of the first item are on their way before all barriers are there.
            if let Some(item) = item
                && are_whole
            {
                words = Queries { params, work: &item.work }.load::<T>(first);
            }
            if !barriers_are_made {
                barrier::sync(BARRIERS_ARE_MADE, T::CONFIG.threads());
                barriers_are_made = true;
            }
            let Some(item) = item else { break };
            let of = Queries { params, work: &item.work };
            if leads_warp() {
                slots.announce(|slot| item.write(slot));
            }
            queries.wait_empty();
            let stage = queries.stage();
            write_rows(params, &item, memory, stage);
            if are_whole {
                loop {
                    of.store(memory, stage, first, &words);
                    first += 32 * IN_FLIGHT as u32;
                    if first >= T::BLOCK_M * row_chunks::<T>() {
                        break;
                    }
                    words = of.load::<T>(first);
                }
            } else {
                cold_path();
                of.copy_elements(memory, stage);
            }
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

/// The rows of Q of a tile, of whose chunks every 32nd is a lane's.
struct Queries<'a> {
    params: &'a DecodeParams,
    work: &'a Work,
}

impl Queries<'_> {
    /// Address of a chunk of the tile, and how many of its elements exist: 0 to 8.
    #[inline(always)]
    fn place<T: Tile>(&self, chunk: u32) -> (u64, u32) {
        let Self { params, work } = self;
        let (row, column) = (chunk / row_chunks::<T>(), chunk % row_chunks::<T>() * (CHUNK / 2));
        let exists = work.first_row + row < packed_rows(params) && column < params.head_dim;
        let QueryRow { position, head } = work.query_row(params, work.first_row + row);
        let element = params.q_strides.offset(work.batch, position, head) + column as u64;
        let elements = if exists { (params.head_dim - column).min(CHUNK / 2) } else { 0 };
        (params.q + T::Element::BYTES * element, elements)
    }

    /// A lane's chunks from `first` on, of rows that are whole chunks.
    ///
    /// # Safety
    /// Q is readable.
    #[inline(always)]
    unsafe fn load<T: Tile>(&self, first: u32) -> [[u32; 4]; IN_FLIGHT] {
        let mut words = [[0; 4]; IN_FLIGHT];
        let mut i = 0;
        while i < IN_FLIGHT {
            let (address, elements) = self.place::<T>(first + 32 * i as u32);
            // SAFETY: all elements of the chunk exist, or none; none is not loaded.
            words[i] = unsafe { global::load4_if(elements > 0, address) };
            i += 1;
        }
        words
    }

    /// Stores what [`Self::load`] has given, with zeros where there are no rows.
    ///
    /// # Safety
    /// All lanes of the warp call this together, and nobody reads the stage.
    #[inline(always)]
    unsafe fn store<T: Tile>(
        &self,
        memory: Memory<T>,
        stage: u32,
        first: u32,
        words: &[[u32; 4]; IN_FLIGHT],
    ) {
        let mut i = 0;
        while i < IN_FLIGHT {
            let chunk = first + 32 * i as u32;
            if chunk < T::BLOCK_M * row_chunks::<T>() {
                // SAFETY: the chunk is the tile's; nobody reads it, and all lanes are here.
                unsafe { self.store_chunk(memory, stage, chunk, words[i]) };
            }
            i += 1;
        }
        const { assert!((T::BLOCK_M * row_chunks::<T>()).is_multiple_of(32)) };
    }

    /// Copies rows that begin at any element.
    ///
    /// # Safety
    /// As [`Self::load`] and [`Self::store`].
    #[inline(always)]
    unsafe fn copy_elements<T: Tile>(&self, memory: Memory<T>, stage: u32) {
        let mut chunk = index::thread() % 32;
        while chunk < index::unknown(T::BLOCK_M * row_chunks::<T>()) {
            let (address, elements) = self.place::<T>(chunk);
            // SAFETY: only elements that exist are loaded; the chunk is the tile's, and nobody reads it.
            unsafe { self.store_chunk(memory, stage, chunk, load_chunk(address, elements)) };
            chunk += 32;
        }
    }

    /// Stores a chunk of the tile, where elements widen with the factor of its row's scores.
    ///
    /// # Safety
    /// All lanes of the warp call this together, nobody reads the chunk, nor the row's words, and the factors
    /// of K are readable.
    #[inline(always)]
    unsafe fn store_chunk<T: Tile>(&self, memory: Memory<T>, stage: u32, chunk: u32, words: [u32; 4]) {
        let tile: Panels<QueryRows<T>> = memory.q().stage(stage);
        let (row, column) = (chunk / row_chunks::<T>(), chunk % row_chunks::<T>());
        // SAFETY: as the caller says; the head is one of the launch's.
        unsafe {
            if !T::WIDENS {
                shared::store4(tile.at(row, column), words);
                return;
            }
            let (words, inverse) = scaled::<T>(words);
            store_in_depth_order(tile, row, column, words);
            if column == 0 {
                let k_descale = self.params.cache.k_descale.of(self.work.batch, self.work.kv_head);
                shared::store(memory.row(stage, row) + 8, inverse * k_descale);
            }
        }
    }
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
        let diagonal = (position + item.used).wrapping_sub(params.seqlen_q.get());
        // SAFETY: the head's slope is readable, and nobody reads the words.
        unsafe {
            let slope = params.per_head.alibi_slopes.of(item.work.batch, head);
            shared::store_b32(memory.row(stage, row), diagonal);
            shared::store(memory.row(stage, row) + 4, slope);
        }
        row += 32;
    }
}
