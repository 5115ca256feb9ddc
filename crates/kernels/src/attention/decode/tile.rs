//! A tile of the kernel: its sizes and its types, declared once.

use core::marker::PhantomData;

use crate::config::{DecodeConfig, WARP_KEYS};
use crate::ptx::cp_async;
use crate::registers::{Columns, Matrix, Registers, Width};
use crate::softmax::OnlineSoftmax;
use crate::tile::mma::{MmaElement, QUAD};

/// What the kernel is compiled for.
pub trait Tile: Copy {
    /// Storage type.
    type Element: MmaElement;
    /// A lane's part of the scores S of its warp's keys.
    type S: Matrix;
    /// Its part of O.
    type O: Matrix<Column<f32> = <Self::S as Matrix>::Column<f32>>;
    /// Columns that Q, K and V are padded to in shared memory.
    type HeadDim: Width;
    /// One value for each warp of a block.
    type Warps: Registers<Value = f32>;

    /// Tiles of K and V that are being copied while one is worked on.
    const AHEAD: u32;

    /// Waits until at most the copies of `AHEAD` tiles are in flight.
    fn wait();

    /// Packed query rows.
    const BLOCK_M: u32 = Self::CONFIG.block_m;
    /// Threads of a block.
    const THREADS: u32 = Self::CONFIG.threads();
    /// What follows from the sizes.
    const CONFIG: DecodeConfig = {
        let config = DecodeConfig {
            block_m: 8 * Self::S::ROWS as u32,
            head_dim: Self::HeadDim::COLUMNS,
            warps: Self::Warps::LEN as u32,
            stages: Self::AHEAD + 1,
        };
        assert!(config.is_well_formed() && QUAD * Self::O::COLS as u32 == config.head_dim);
        config
    };
}

/// A tile of the lists of entries: a lane has `ROWS` rows of each product, the block eight times as many.
#[derive(Clone, Copy, Debug)]
pub struct DecodeTile<E, const ROWS: usize, const HEAD_DIM: u32, const WARPS: usize, const AHEAD: usize>(
    PhantomData<E>,
);

impl<E, const ROWS: usize, const D: u32, const WARPS: usize, const AHEAD: usize> Tile
    for DecodeTile<E, ROWS, D, WARPS, AHEAD>
where
    E: MmaElement,
    Columns<D>: Width,
{
    type Element = E;
    type S = [<Columns<WARP_KEYS> as Width>::Quarter; ROWS];
    type O = [<Columns<D> as Width>::Quarter; ROWS];
    type HeadDim = Columns<D>;
    type Warps = [f32; WARPS];

    const AHEAD: u32 = AHEAD as u32;

    #[inline(always)]
    #[track_caller]
    fn wait() {
        cp_async::wait_group::<AHEAD>();
    }
}

/// The running max and sum of a lane's rows.
pub(super) type Softmax<T> = OnlineSoftmax<<<T as Tile>::S as Matrix>::Column<f32>, QUAD>;
