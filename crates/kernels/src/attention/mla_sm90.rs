//! Decoding of multi-head latent attention (MLA; DeepSeek-AI 2024, arXiv:2405.04434, section 2.1.2) on
//! Hopper's tensor cores: all query heads share one key, whose first columns are its value too.
//!
//! A tile has 64 packed query rows. O in fp32 is as large as half of all registers, so that two warpgroups
//! have 256 of its 512 columns each. Of blocks of 64 keys the left warpgroup scores the even ones and the
//! right the odd ones, and hands its weights P on through shared memory, over the columns of the block that
//! only scores need (FlashMLA's schedule, "seesaw"). So the one's softmax runs beside the other's products,
//! and each block is read from memory once for both of its uses.
//!
//! m goes from block to block in their order, from one warpgroup to the other, and so do both halves of O:
//! results depend on nothing but the keys.

mod consumer;
mod epilogue;
mod memory;
mod producer;
mod queries;

use crate::hopper::roles::{WARPGROUP, WARPS, give_registers, leads_warp, take_registers};
use crate::params::DecodeParams;
use crate::ptx::wgmma::Format;
use crate::ptx::{barrier, index, tma, warp};
use crate::tile::mma::MmaElement;

use consumer::Consumer;
use memory::Memory;
use producer::Producer;

/// Packed query rows of a tile.
pub const BLOCK_M: u32 = 64;

/// Keys of a block.
pub const BLOCK_N: u32 = 64;

/// Columns of Q and of keys.
pub const HEAD_DIM: u32 = 576;

/// Columns of values and of O: the first of those of a key.
pub const HEAD_DIM_V: u32 = 512;

/// Threads of a block: two warpgroups that multiply, and one that copies and finds work.
pub const THREADS: u32 = 3 * WARPGROUP;

/// Bytes of shared memory.
pub const SHARED_BYTES: u32 = Memory::BYTES;

/// Barriers in the source below, of which both warpgroups have their own; the build fails when the PTX has
/// another number.
pub const BARRIERS: u32 = 14;

/// Registers of a thread that multiplies, and of one that copies.
const REGISTERS: (u32, u32) = (224, 56);

/// O and lse as [`decode`](super::decode::decode) gives them, or their parts, of keys whose first
/// `head_dim_v` columns are their values.
///
/// `maps` is the address of the tensor map of K, with dimensions {D, rows, heads, sequences or pages} and
/// swizzled boxes of 64 columns and [`box_rows`](crate::config::DecodeSm90Config::box_rows) of [`BLOCK_N`].
/// Launch: any number of blocks of [`THREADS`] threads with [`SHARED_BYTES`] bytes of shared memory.
///
/// # Safety
/// `params` and the map describe the same valid device memory, softmax_scale is positive, nothing else
/// changes scores, and the launch is as above.
#[inline(always)]
pub unsafe fn mla_sm90<E: MmaElement + Format>(params: &DecodeParams, maps: u64) {
    let memory = Memory::new();
    // SAFETY: one thread makes the barriers; the warps of each role run the same branch, and ask for the
    // registers that the block started with.
    unsafe {
        let warpgroup = warp::broadcast(index::thread() / WARPGROUP, 0);
        if warpgroup == 2 {
            let role = warp::broadcast(index::reread_thread() / 32 % WARPS, 0);
            if role == 0 && leads_warp() {
                tma::prefetch(maps);
                memory.init();
            }
            warp::sync();
            barrier::sync(0, THREADS);
            give_registers(REGISTERS.1);
            if role == 0 {
                Producer::new(maps, memory).run(params);
            }
        } else {
            barrier::sync(0, THREADS);
            take_registers(REGISTERS.0);
            Consumer::<E>::new(memory).run(params);
        }
    }
}
