//! The warp that copies K and V.

use crate::attention::alignment::head_offset::HeadOffset;
use crate::config::DecodeSm90Config;
use crate::hopper::ring::Ring;
use crate::hopper::roles::leads_warp;
use crate::params::DecodeParams;
use crate::ptx::tma::{self, TensorMap};
use crate::ptx::{global, index, warp};
use crate::tile::panels::Panels;

use super::items::{Item, ItemSlots};
use super::tile::{CacheRows, Memory, Tile};

/// Where a box of a step's keys lies.
#[derive(Clone, Copy)]
struct Place {
    /// Sequence, or page.
    batch: u32,
    row: u32,
}

/// Copies K and V of all items of this block, whose tensor maps lie at `maps`.
///
/// # Safety
/// All lanes of one warp call this together, in a launch as [`decode_sm90`](super::decode_sm90) says.
#[inline(always)]
pub(super) unsafe fn copy<T: Tile>(params: &DecodeParams, maps: u64, memory: Memory<T>) {
    let page_size = if params.page_table == 0 { 0 } else { params.page_size };
    let rows = DecodeSm90Config::box_rows(T::BLOCK_N, page_size);
    // SAFETY: each lane has places of its own in the same ring, of which the first announces bytes; it leaves
    // slots for all, behind their reads.
    unsafe {
        let mut slots = ItemSlots::consumer(memory.slots());
        let mut ring = Ring::<T::Ring>::producer(memory.ring_barriers());
        while slots.wait() {
            let item = slots.item();
            let mut key = item.keys.first;
            let mut place = locate(params, &item, key, rows);
            while key < item.keys.end {
                let next = locate(params, &item, key + T::BLOCK_N, rows);
                copy_tile::<T>(maps, &item, place, rows, (&mut ring, memory));
                copy_tile::<T>(maps + TensorMap::BYTES, &item, place, rows, (&mut ring, memory));
                place = next;
                key += T::BLOCK_N;
            }
            warp::sync();
            slots.leave(leads_warp());
        }
    }
}

/// Where this lane's box of the step from `key` on lies. A box of no key of the sequence lies behind the rows
/// of a page, or of the sequence, where tensor maps read zeros.
///
/// # Safety
/// The page table, where there is one, has an entry for each key of the sequence.
#[inline(always)]
unsafe fn locate(params: &DecodeParams, item: &Item, key: u32, rows: u32) -> Place {
    if params.page_table == 0 {
        return Place { batch: item.work.batch, row: key };
    }
    let key = key + index::thread() % 32 * rows;
    let is_used = key < item.used && key < item.keys.end;
    let table = params.page_table + 4 * item.work.batch as u64 * params.max_pages as u64;
    // SAFETY: pages of valid parameters have a row, and the table has an entry for each key of the sequence.
    unsafe {
        core::hint::assert_unchecked(params.page_size > 0);
        let page = global::load_b32_if(is_used, table + 4 * (key / params.page_size) as u64);
        Place { batch: page, row: if is_used { key % params.page_size } else { params.page_size } }
    }
}

/// Copies a step's keys of K or V into the next stage, a box by each of the first lanes.
///
/// # Safety
/// The map is the tensor's; all lanes of the warp call this together.
#[inline(always)]
unsafe fn copy_tile<T: Tile>(
    map: u64,
    item: &Item,
    place: Place,
    rows: u32,
    (ring, memory): (&mut Ring<T::Ring>, Memory<T>),
) {
    let tile: Panels<CacheRows<T>> = memory.ring().stage(ring.stage());
    if leads_warp() {
        ring.acquire(Panels::<CacheRows<T>>::BYTES);
    }
    // SAFETY: all lanes are here. The stage is empty: the first lane has waited. A box is one lane's.
    unsafe {
        warp::sync();
        let first = index::thread() % 32 * rows;
        if first < T::BLOCK_N {
            let head = HeadOffset { class: 0, head: item.work.kv_head, shift: 0 };
            tile.from_row(first).load(map, ring.full(), place.row, head, place.batch);
        }
    }
    ring.advance();
}

/// Brings the descriptors of the maps of K and V.
#[inline(always)]
pub(super) fn prefetch(maps: u64) {
    // SAFETY: the launch has both maps.
    unsafe {
        tma::prefetch(maps);
        tma::prefetch(maps + TensorMap::BYTES);
    }
}
