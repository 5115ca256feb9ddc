//! delta = rowsum(dO ∘ O) − dlse, which every element of a row of dS needs (Dao 2023, arXiv:2307.08691,
//! Algorithm 2, line 4): dS = P ∘ (dP − rowsum(dO ∘ O) + dlse), since the slope of lse is P.

use crate::attention::backward_tiles;
use crate::attention::stored_ds::{self, GRANULE};
use crate::element::Element;
use crate::mask::KeyRange;
use crate::params::BackwardParams;
use crate::ptx::{global, index, math};
use crate::scheduler::WorkTile;
use crate::softmax::reduce;
use crate::tile::simt::GlobalTile;

/// Threads of a block.
pub const THREADS: u32 = 128;
/// Query rows of a block.
pub const BLOCK_M: u32 = 32;

/// Bytes of a chunk.
const CHUNK: u32 = 16;

/// Lanes that take a row, a chunk of 16 bytes each.
const ROW_LANES: u32 = 16;

/// delta of [`BLOCK_M`] query rows, in fp32: each half of a warp takes one row after another. If the backward
/// pass takes tickets for tiles, [`backward_tiles`] is written too; if it sums dQ, then zeros for queries
/// that no tile of keys adds to.
///
/// Launch: ⌈Sq / BLOCK_M⌉·H·B blocks of [`THREADS`] threads, without shared memory.
///
/// # Safety
/// `params` describes valid device memory, and the launch is as above.
#[inline(always)]
pub unsafe fn backward_delta<E: Element>(params: &BackwardParams) {
    let attention = &params.attention;
    // SAFETY: all blocks call this.
    unsafe { backward_tiles::write(params, THREADS) };
    // SAFETY: valid parameters have no empty axis.
    let work = unsafe { WorkTile::of_block(attention, attention.seqlen_q.div_ceil(BLOCK_M)) };
    let shape = (work.queries, attention.head_dim_v);
    let o = GlobalTile::of_head::<E>(attention.o, &attention.o_strides, &work, work.head, shape);
    let dout = GlobalTile::of_head::<E>(params.dout, &params.dout_strides, &work, work.head, shape);
    // Of queries that no tile of keys adds to.
    let clears = params.tickets.steps_of_head > 0;
    let dq_shape = (work.queries, attention.head_dim);
    let dq = GlobalTile::of_head::<E>(params.dq, &params.dq_strides, &work, work.head, dq_shape);
    let aligned = is_aligned::<E>(&o) && is_aligned::<E>(&dout);
    let elements = const { CHUNK / E::BYTES as u32 };
    let lane = index::thread() % ROW_LANES;
    let mut i = index::thread() / ROW_LANES;
    while i < BLOCK_M {
        let row = work.tile * BLOCK_M + i;
        let exists = row < work.queries.len;
        let mut sum = 0.0;
        let mut column = elements * lane;
        while exists && column < attention.head_dim_v {
            // SAFETY: the row exists, and so does the column.
            sum += unsafe { product::<E>(&o, &dout, (row, column), aligned) };
            column += elements * ROW_LANES;
        }
        if exists && clears {
            let (first_key, end_key) = stored_ds::keys(attention, &work, row / GRANULE * GRANULE);
            let mut column = lane;
            while first_key >= end_key && column < attention.head_dim {
                // SAFETY: the row exists, and so does the column.
                unsafe { E::store(dq.at::<E>(row, column), 0.0) };
                column += ROW_LANES;
            }
        }
        // SAFETY: all lanes of the warp are here; a row that exists is stored by the first of its lanes.
        unsafe {
            let delta = reduce::<ROW_LANES>(sum, |a, b| a + b);
            if exists && lane == 0 {
                let at = 4 * work.lse_index(attention, row);
                // dlse of a row that sees no key may be NaN, and 0 · NaN is NaN.
                let counts = params.dlse != 0 && KeyRange::of_row(attention, &work, row).has_keys();
                let dlse = f32::load_if(counts, params.dlse + at);
                f32::store(params.delta + at, delta - dlse);
            }
        }
        i += THREADS / ROW_LANES;
    }
}

/// Whether chunks of its rows start at multiples of 16 bytes.
#[inline(always)]
fn is_aligned<E: Element>(tile: &GlobalTile) -> bool {
    (tile.address | (E::BYTES * tile.stride)).is_multiple_of(CHUNK as u64)
}

/// The sum of products of a chunk's elements, from `column` on, of both tensors.
///
/// # Safety
/// Row and column exist, and chunks start at multiples of 16 bytes where they are `aligned`.
#[inline(always)]
unsafe fn product<E: Element>(
    o: &GlobalTile,
    dout: &GlobalTile,
    (row, column): (u32, u32),
    aligned: bool,
) -> f32 {
    let elements = const { CHUNK / E::BYTES as u32 };
    let mut sum = 0.0;
    let mut j = 0;
    if aligned && column + elements <= o.columns {
        // SAFETY: the whole chunk exists, at a multiple of 16 bytes.
        let (a, b) = unsafe {
            (
                global::load4_if(true, o.at::<E>(row, column)),
                global::load4_if(true, dout.at::<E>(row, column)),
            )
        };
        while j < elements {
            sum = math::fma(E::unpack(&a, j as usize), E::unpack(&b, j as usize), sum);
            j += 1;
        }
    } else {
        while j < elements {
            let exists = column + j < o.columns;
            // SAFETY: an element is loaded only where it exists.
            let (a, b) = unsafe {
                (
                    E::load_if(exists, o.at::<E>(row, column + j)),
                    E::load_if(exists, dout.at::<E>(row, column + j)),
                )
            };
            sum = math::fma(a, b, sum);
            j += 1;
        }
    }
    sum
}
