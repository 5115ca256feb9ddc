//! A of products in registers, of tiles of K and V in e4m3: elements become fp16 on their way.
//!
//! The order of the depth of a product is free, if both operands have the same. A lane's part of a row of K
//! is so one chunk of 16 consecutive columns for each four products, and rows of Q lie in shared memory in
//! that order ([`Depth`]). V is transposed in pairs of columns: the rows of Oᵀ that a lane has are
//! neighbours ([`column_of`]).

use core::marker::PhantomData;

use crate::ptx::{bytes, convert, index, ldmatrix, shared};
use crate::tile::mma::{Lane, QUAD};
use crate::tile::panels::Panels;

use super::tile::{CacheRows, Tile};

/// A thread's part of A of one product.
pub(super) type Fragment = [u32; 4];

/// Products along the depth whose A is in registers at a time, at the most.
pub(super) const FRAGMENTS: usize = 8;

/// Chunks of 16 columns of a line of a tile.
const LINE_CHUNKS: u32 = 8;

/// Products of a chunk: each takes four of its elements from each lane.
const CHUNK_PRODUCTS: u32 = 4;

/// The order of K's columns in products.
pub(super) struct Depth<T>(PhantomData<T>);

impl<T: Tile> Depth<T> {
    /// Chunks of a line that each lane of a quad reads.
    const CHUNKS: u32 = if T::CONFIG.head_dim < 128 { T::CONFIG.head_dim / 64 } else { 2 };

    /// Products along a line.
    pub(super) const PRODUCTS: u32 = CHUNK_PRODUCTS * Self::CHUNKS;

    /// Where the `word`-th two of eight columns of Q from 8·`eighth` on lie: in which eight columns of the
    /// tile, and in which word of these.
    #[inline(always)]
    pub(super) fn place(eighth: u32, word: u32) -> (u32, u32) {
        let (line, chunk, half) = (eighth / (2 * LINE_CHUNKS), eighth / 2 % LINE_CHUNKS, eighth % 2);
        let (lane, of_lane) = (chunk / Self::CHUNKS, chunk % Self::CHUNKS);
        (2 * (LINE_CHUNKS * line + CHUNK_PRODUCTS * of_lane) + 4 * half + word, lane)
    }
}

/// A of the products of 64 keys from row `first_row` on of a tile of K, along a line of it.
///
/// # Safety
/// The tile has landed.
#[inline(always)]
pub(super) unsafe fn of_keys<T: Tile>(
    tile: Panels<CacheRows<T>>,
    lane: Lane,
    first_row: u32,
    line: u32,
) -> [Fragment; FRAGMENTS] {
    let mut fragments = [[0; 4]; FRAGMENTS];
    let mut of_lane = 0;
    while of_lane < Depth::<T>::CHUNKS {
        // Lanes of two rows at a time: the one's chunks are the even ones, swizzled, the other's the odd.
        let chunk = LINE_CHUNKS * line + Depth::<T>::CHUNKS * lane.pair + of_lane;
        // SAFETY: the tile has landed, and the chunk is in it.
        let read = |row| unsafe { shared::load4(tile.at(first_row + row, chunk)) };
        let (upper, lower) = (read(lane.row(0)), read(lane.row(1)));
        let mut word = 0;
        while word < CHUNK_PRODUCTS as usize {
            let upper = convert::e4m3x4_to_f16x4(upper[word].to_bits());
            let lower = convert::e4m3x4_to_f16x4(lower[word].to_bits());
            let product = CHUNK_PRODUCTS as usize * of_lane as usize + word;
            fragments[product] = [upper[0], lower[0], upper[1], lower[1]];
            word += 1;
        }
        of_lane += 1;
    }
    fragments
}

/// A of the products of columns 64·`panel` to 64·`panel` + 63 of V, transposed, with all keys of the tile.
///
/// # Safety
/// The tile has landed; all lanes of the warp call this together.
#[inline(always)]
pub(super) unsafe fn of_values<T: Tile>(tile: Panels<CacheRows<T>>, panel: u32) -> [Fragment; FRAGMENTS] {
    const { assert!(T::BLOCK_N / 16 <= FRAGMENTS as u32) };
    let (warp, lane) = (index::thread() / 32, index::thread() % 32);
    let mut fragments = [[0; 4]; FRAGMENTS];
    let mut pair = 0;
    while pair < T::BLOCK_N as usize / 32 {
        // SAFETY: the tile has landed, and all lanes are here.
        let keys =
            unsafe { ldmatrix::load_x4_transposed(tile.at(32 * pair as u32 + lane, QUAD * panel + warp)) };
        let mut i = 0;
        while i < 2 {
            let [near, far] = [by_column(keys[2 * i]), by_column(keys[2 * i + 1])];
            fragments[2 * pair + i] = [near[0], near[1], far[0], far[1]];
            i += 1;
        }
        pair += 1;
    }
    fragments
}

/// Two columns of two keys, one key behind the other, as fp16, one column behind the other.
#[inline(always)]
fn by_column(keys: u32) -> [u32; 2] {
    convert::e4m3x4_to_f16x4(bytes::permute(keys, 0, 0x3120))
}

/// The column of V that the `j`-th of a lane's two rows of a product of Oᵀ is, of 64.
#[inline(always)]
pub(super) fn column_of(lane: Lane, j: usize) -> u32 {
    lane.warp_row + 2 * lane.group + j as u32
}
