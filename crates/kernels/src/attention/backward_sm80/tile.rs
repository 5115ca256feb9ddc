//! A tile of both kernels: its sizes and its types, declared once.

use core::marker::PhantomData;

use crate::attention::gradient::Changes;
use crate::config::BackwardMmaConfig;
use crate::registers::{Columns, Matrix, Width};
use crate::tile::mma::{MmaElement, QUAD};
use crate::tile::mma_copy::Copied;

/// What a kernel is compiled for.
pub trait Tile: Changes + Copy {
    /// Storage type.
    type Element: MmaElement;
    /// A lane's part of the scores, and of dS: its rows are those that the block owns, its columns those of
    /// a step.
    type S: Matrix;
    /// Its part of a gradient of what the block owns, or of the columns of it that its warp has.
    type Gradient: Matrix;
    /// Columns that all tensors are padded to in shared memory.
    type HeadDim: Width;

    /// Warps of a block.
    const WARPS: u32;
    /// Whether it stores dS.
    const STORES_DS: bool;

    /// Columns of a gradient that a warp has.
    const GRADIENT_COLUMNS: u32 = QUAD * Self::Gradient::COLS as u32;
    /// Warps that own the same rows, and a share of the gradients' columns each.
    const COLUMN_WARPS: u32 = Self::HeadDim::COLUMNS / Self::GRADIENT_COLUMNS;
    /// Rows of a warp.
    const WARP_ROWS: u32 = 8 * Self::S::ROWS as u32;
    /// Rows that a block owns: keys, or queries.
    const OWNED: u32 = Self::CONFIG.owned;
    /// Rows of a step: queries, or keys.
    const STEP: u32 = Self::CONFIG.step;
    /// Threads of a block.
    const THREADS: u32 = Self::CONFIG.threads();
    /// What follows from the sizes.
    const CONFIG: BackwardMmaConfig = {
        let config = BackwardMmaConfig {
            owned: Self::WARP_ROWS * Self::WARPS / Self::COLUMN_WARPS,
            step: QUAD * Self::S::COLS as u32,
            head_dim: Self::HeadDim::COLUMNS,
            warps: Self::WARPS,
            stores_ds: Self::STORES_DS,
        };
        assert!(config.is_well_formed() && Self::Gradient::ROWS == Self::S::ROWS);
        assert!(config.gradient_columns() == Self::GRADIENT_COLUMNS);
        assert!(!Self::DROPOUT || matches!(config.step, 16 | 32));
        config
    };
}

/// A tile of the lists of entries: a lane has `ROWS` rows of each product, its warp eight times as many, and
/// `COLUMNS` columns of a gradient. With `SCORE_MOD` a launch may change scores by more than a positive
/// factor, or drop weights.
#[derive(Clone, Copy, Debug)]
pub struct BackwardSm80Tile<
    E,
    const WARPS: u32,
    const ROWS: usize,
    const STEP: u32,
    const HEAD_DIM: u32,
    const COLUMNS: u32,
    const SCORE_MOD: bool,
    const STORES_DS: bool,
>(PhantomData<E>);

impl<
    E,
    const WARPS: u32,
    const ROWS: usize,
    const STEP: u32,
    const HEAD_DIM: u32,
    const COLUMNS: u32,
    const SCORE_MOD: bool,
    const STORES_DS: bool,
> Changes for BackwardSm80Tile<E, WARPS, ROWS, STEP, HEAD_DIM, COLUMNS, SCORE_MOD, STORES_DS>
{
    const SCORE_MOD: bool = SCORE_MOD;
    const DROPOUT: bool = SCORE_MOD;
}

impl<
    E,
    const WARPS: u32,
    const ROWS: usize,
    const STEP: u32,
    const D: u32,
    const COLUMNS: u32,
    const SCORE_MOD: bool,
    const STORES_DS: bool,
> Tile for BackwardSm80Tile<E, WARPS, ROWS, STEP, D, COLUMNS, SCORE_MOD, STORES_DS>
where
    E: MmaElement,
    Columns<STEP>: Width,
    Columns<D>: Width,
    Columns<COLUMNS>: Width,
{
    type Element = E;
    type S = [<Columns<STEP> as Width>::Quarter; ROWS];
    type Gradient = [<Columns<COLUMNS> as Width>::Quarter; ROWS];
    type HeadDim = Columns<D>;

    const WARPS: u32 = WARPS;
    const STORES_DS: bool = STORES_DS;
}

/// The rows of a step of a tensor, on their way into shared memory; and so many of those that a block owns.
pub(super) struct StepRows<T>(PhantomData<T>);

impl<T: Tile> Copied for StepRows<T> {
    type Columns = T::HeadDim;
    const ROWS: u32 = T::STEP;
    const THREADS: u32 = T::THREADS;
}
