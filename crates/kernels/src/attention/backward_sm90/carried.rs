//! dK and dV of a tile of keys between two units of its head.
//!
//! They lie in fp32 as threads hold them, not scaled yet: so a sum goes on as if it had not stopped.

use super::tickets::TileSlots;
use super::tile::Tile;
use crate::hopper::roles::WARPGROUP;
use crate::params::BackwardParams;
use crate::ptx::{global, index};
use crate::registers::Registers as _;

/// Bytes of four of a thread's registers.
const PIECE: u32 = 16;

/// Where this thread's part of a gradient lies: of the `which`-th that its block's warpgroups hold.
#[inline(always)]
fn address<T: Tile>(params: &BackwardParams, slots: &TileSlots<T>, which: u32) -> u64 {
    let of_gradient = const { T::Gradient::LEN as u32 / 4 * PIECE * WARPGROUP };
    let at = slots.column() as u64 * const { T::CONFIG.carried_bytes() } as u64;
    let thread = index::reread_thread() % WARPGROUP;
    params.tickets.carried + at + (of_gradient * which + PIECE * thread) as u64
}

/// What the tile at hand goes on from: 0, or what the unit before has left.
///
/// # Safety
/// The tile's [`TileSlots::wait_for_others`] is over; otherwise as [`save`].
#[inline(always)]
pub(super) unsafe fn restore<T: Tile>(
    params: &BackwardParams,
    slots: &TileSlots<T>,
    which: u32,
) -> T::Gradient {
    let mut gradient = T::Gradient::ZERO;
    if slots.began_before() {
        let address = address(params, slots, which);
        let mut first = 0;
        while first < T::Gradient::LEN {
            let behind = (first as u32 / 4 * PIECE * WARPGROUP) as u64;
            // SAFETY: the unit before has saved it, and this tile has waited for that.
            let words = unsafe { global::load4_if(true, address + behind) };
            let mut i = 0;
            while i < 4 {
                gradient[first + i] = f32::from_bits(words[i]);
                i += 1;
            }
            first += 4;
        }
    }
    gradient
}

/// Leaves a gradient of the tile at hand to the next unit.
///
/// # Safety
/// All threads of the warpgroup that holds the `which`-th gradient call this together, and leave the tile
/// behind it.
#[inline(always)]
pub(super) unsafe fn save<T: Tile>(
    params: &BackwardParams,
    slots: &TileSlots<T>,
    which: u32,
    gradient: &T::Gradient,
) {
    let address = address(params, slots, which);
    let mut first = 0;
    while first < T::Gradient::LEN {
        let behind = (first as u32 / 4 * PIECE * WARPGROUP) as u64;
        let words = [0, 1, 2, 3].map(|i| gradient[first + i].to_bits());
        // SAFETY: the memory is this thread's until the tile is left.
        unsafe { global::store4(address + behind, words) };
        first += 4;
    }
}
