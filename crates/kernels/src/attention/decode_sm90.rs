//! [`decode`](super::decode) on Hopper's tensor cores with `wgmma`, fed by tensor maps.
//!
//! Operands are swapped (as in TensorRT-LLM's XQA): Sᵀ = K·Qᵀ has keys as the 64 rows of a product, and the
//! packed query rows as its columns, of which 16 are enough; Oᵀ += Vᵀ·Pᵀ has V's columns as rows. So K and V
//! are read by tensor cores where they land, without padding. In e4m3 they are widened to fp16 on their way
//! to registers, from where they are A of the products.
//!
//! Blocks stay on their multiprocessors and go through a flat list of (sequence, split, head, tile). One warp
//! finds items and copies their rows of Q; one copies K and V into a ring that runs on from item to item; a
//! warpgroup multiplies.

mod consumer;
mod fragments;
mod producer;
mod queries;
mod rows;
mod tile;

#[cfg(doc)]
use crate::config::DecodeSm90Config;
use crate::hopper::roles::WARPS;
use crate::params::DecodeParams;
use crate::ptx::{barrier, index, warp};

use consumer::Consumer;
use producer::Producer;
use tile::Memory;
pub use tile::{Cache, DecodeSm90Tile, Tile};

/// Barriers in the source below; the build fails when the PTX has another number.
pub const BARRIERS: u32 = 6;

/// The hardware barrier behind which all others are there.
const BARRIERS_ARE_MADE: u32 = 0;

/// O and lse as [`decode`](super::decode::decode) gives them, or their parts.
///
/// `maps` is the address of the tensor maps of K and V, with dimensions {D, rows, heads, sequences or pages}
/// and swizzled boxes of 128 bytes of columns and [`DecodeSm90Config::box_rows`] rows. Launch: any number of
/// blocks of [`DecodeSm90Config::threads`] threads with the shared memory of [`Tile::CONFIG`]; in clusters
/// whose blocks can have several splits, [`DecodeSm90Config::part_bytes`] more for each.
///
/// # Safety
/// `params` and the maps describe the same valid device memory, and the launch is as above.
#[inline(always)]
pub unsafe fn decode_sm90<T: Tile>(params: &DecodeParams, maps: u64) {
    let memory = Memory::<T>::new();
    // SAFETY: the warps of each role run the same branch.
    unsafe {
        match warp::broadcast(index::thread() / 32, 0) {
            WARPS => {
                Producer::<T>::new(maps, memory).run(params);
                rows::follow_cluster::<T>();
            }
            role if role < WARPS => {
                barrier::sync(BARRIERS_ARE_MADE, T::CONFIG.threads());
                Consumer::new(memory).run(params);
            }
            _ => {
                queries::announce(params, memory);
                rows::follow_cluster::<T>();
            }
        }
    }
}
