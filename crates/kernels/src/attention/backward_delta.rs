//! delta = rowsum(dO ∘ O), which every element of a row of dS needs (Dao 2023, arXiv:2307.08691, Algorithm 2,
//! line 4).

use crate::element::Element;
use crate::params::BackwardParams;
use crate::ptx::{index, math};
use crate::scheduler::WorkTile;
use crate::softmax::reduce;
use crate::tile::simt::GlobalTile;

/// Threads of a block.
pub const THREADS: u32 = 128;
/// Query rows of a block.
pub const BLOCK_M: u32 = 32;

/// Columns that a lane takes of the widest row.
const COLUMNS: usize = 256 / 32;

/// delta of [`BLOCK_M`] query rows, in fp32: each warp takes one row after another.
///
/// Launch: ⌈Sq / BLOCK_M⌉·H·B blocks of [`THREADS`] threads, without shared memory.
///
/// # Safety
/// `params` describes valid device memory, and the launch is as above.
#[inline(always)]
pub unsafe fn backward_delta<E: Element>(params: &BackwardParams) {
    let attention = &params.attention;
    // SAFETY: valid parameters have no empty axis.
    let work = unsafe { WorkTile::of_block(attention, attention.seqlen_q.div_ceil(BLOCK_M)) };
    let shape = (work.queries, attention.head_dim_v);
    let o = GlobalTile::of_head::<E>(attention.o, &attention.o_strides, &work, work.head, shape);
    let dout = GlobalTile::of_head::<E>(params.dout, &params.dout_strides, &work, work.head, shape);
    let lane = index::thread() % 32;
    let mut i = index::thread() / 32;
    while i < BLOCK_M {
        let row = work.tile * BLOCK_M + i;
        if row < work.queries.len {
            let mut products = [(0.0, 0.0); COLUMNS];
            let mut j = 0;
            while j < COLUMNS {
                let column = lane + 32 * j as u32;
                let exists = column < attention.head_dim_v;
                // SAFETY: the row exists, and an element is loaded only where its column does.
                products[j] = unsafe {
                    (
                        E::load_if(exists, o.at::<E>(row, column)),
                        E::load_if(exists, dout.at::<E>(row, column)),
                    )
                };
                j += 1;
            }
            let mut sum = 0.0;
            let mut j = 0;
            while j < COLUMNS {
                sum = math::fma(products[j].0, products[j].1, sum);
                j += 1;
            }
            // SAFETY: a row is one warp's, whose lanes are all here; its entry is stored by the first.
            unsafe {
                let delta = reduce::<32>(sum, |a, b| a + b);
                if lane == 0 {
                    f32::store(params.delta + 4 * work.lse_index(attention, row), delta);
                }
            }
        }
        i += THREADS / 32;
    }
}
