//! A tile of the kernel: its sizes, its types, and what it can do, declared once.

use core::marker::PhantomData;

use crate::config::MmaConfig;
use crate::dropout;
use crate::functions::{MaskMod, ScoreMod, Unchanged};
use crate::registers::{Columns, Matrix, Width};
use crate::softmax::OnlineSoftmax;
use crate::tile::mma::{MmaElement, QUAD};
use crate::tile::mma_copy::Copied;

/// What the kernel is compiled for.
pub trait Tile: Copy {
    /// Storage type.
    type Element: MmaElement;
    /// A lane's part of the scores S of a block of keys.
    type S: Matrix;
    /// Its part of O.
    type O: Matrix<Column<f32> = <Self::S as Matrix>::Column<f32>>;
    /// Columns that Q, K and V are padded to in shared memory.
    type HeadDim: Width;
    /// What takes the place of the scaled score.
    type ScoreMod: ScoreMod;
    /// What hides keys beside the window.
    type MaskMod: MaskMod;

    /// Warps of a block.
    const WARPS: u32;
    /// Whether there is something between scores and mask ([`CapAndBias`](crate::score::CapAndBias)): it has
    /// entries of its own, so that the others do not pay for it.
    const SCORE_MOD: bool;
    /// Whether weights are dropped.
    const DROPOUT: bool;

    /// Query rows.
    const BLOCK_M: u32 = Self::CONFIG.block_m;
    /// Keys of a step.
    const BLOCK_N: u32 = Self::CONFIG.block_n;
    /// Threads of a block.
    const THREADS: u32 = Self::CONFIG.threads();
    /// What follows from the sizes.
    const CONFIG: MmaConfig = {
        let config = MmaConfig {
            block_m: 8 * Self::S::ROWS as u32 * Self::WARPS,
            block_n: QUAD * Self::S::COLS as u32,
            head_dim: Self::HeadDim::COLUMNS,
            warps: Self::WARPS,
        };
        assert!(config.is_well_formed() && QUAD * Self::O::COLS as u32 == config.head_dim);
        assert!(!Self::DROPOUT || Self::SCORE_MOD && config.block_n.is_multiple_of(dropout::KEY_MULTIPLE));
        config
    };
}

/// A tile of the lists of entries: a lane has `ROWS` rows of each product, its warp eight times as many.
#[derive(Clone, Copy, Debug)]
pub struct Sm80Tile<
    E,
    const WARPS: u32,
    const ROWS: usize,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const SCORE_MOD: bool,
    const DROPOUT: bool,
>(PhantomData<E>);

impl<
    E,
    const WARPS: u32,
    const ROWS: usize,
    const N: u32,
    const D: u32,
    const SCORE_MOD: bool,
    const DROPOUT: bool,
> Tile for Sm80Tile<E, WARPS, ROWS, N, D, SCORE_MOD, DROPOUT>
where
    E: MmaElement,
    Columns<N>: Width,
    Columns<D>: Width,
{
    type Element = E;
    type S = [<Columns<N> as Width>::Quarter; ROWS];
    type O = [<Columns<D> as Width>::Quarter; ROWS];
    type HeadDim = Columns<D>;
    type ScoreMod = Unchanged;
    type MaskMod = Unchanged;

    const WARPS: u32 = WARPS;
    const SCORE_MOD: bool = SCORE_MOD;
    const DROPOUT: bool = DROPOUT;
}

/// A tile with functions of scores, without a softcap and ALiBi.
#[derive(Clone, Copy, Debug)]
pub struct Modified<T, S, M>(PhantomData<(T, S, M)>);

impl<T: Tile, S: ScoreMod, M: MaskMod> Tile for Modified<T, S, M> {
    type Element = T::Element;
    type S = T::S;
    type O = T::O;
    type HeadDim = T::HeadDim;
    type ScoreMod = S;
    type MaskMod = M;

    const WARPS: u32 = T::WARPS;
    const SCORE_MOD: bool = S::CHANGES;
    const DROPOUT: bool = false;
}

/// The running max and sum of a lane's rows.
pub(super) type Softmax<T> = OnlineSoftmax<<<T as Tile>::S as Matrix>::Column<f32>, QUAD>;

/// Rows of Q that are copied at a time: a few, because it happens once and need not be unrolled.
pub(super) struct QueryRows<T>(PhantomData<T>);

impl<T: Tile> Copied for QueryRows<T> {
    type Columns = T::HeadDim;
    const ROWS: u32 = 32;
    const THREADS: u32 = T::THREADS;
}

/// A block of K or V.
pub(super) struct KeyBlock<T>(PhantomData<T>);

impl<T: Tile> Copied for KeyBlock<T> {
    type Columns = T::HeadDim;
    const ROWS: u32 = T::BLOCK_N;
    const THREADS: u32 = T::THREADS;
}
