//! A tile of the kernels: its sizes and types, declared once.

use core::marker::PhantomData;

use crate::attention::alignment::{Aligned, Alignment};
use crate::attention::stored_ds;
use crate::config::BackwardSm90Config;
use crate::hopper::ring::Stages;
use crate::ptx::wgmma::{Accumulator, Format, Span};
use crate::registers::{Columns, Registers};
use crate::tile::mma::MmaElement;
use crate::tile::panels::{Extent, Extents};
use crate::tile::wgmma::LINE;

/// What the kernel is compiled for.
pub trait Tile: Copy {
    /// Storage type of all tensors.
    type Element: MmaElement + Format;
    /// A thread's part of the scores of a step, and of dP: owned rows by rows of the step.
    type S: Accumulator;
    /// It, rounded, as A of a product with the step.
    type Packed: Registers<Value = u32>;
    /// Its part of a gradient.
    type Gradient: Accumulator;
    /// Where rows and heads may start.
    type Alignment: Alignment;

    /// Whether a block owns keys, and computes dK and dV; else it owns queries, and computes dQ.
    const OWNS_KEYS: bool;
    /// Whether it stores dS too, and goes on to tiles of queries, which compute dQ from it.
    const STORES_DS: bool;
    /// Whether a further warpgroup adds its part of dQ to sums.
    const SUMS_DQ: bool;
    /// Rows of a step.
    const STEP: u32;
    /// Columns that rows are padded to in shared memory.
    const HEAD_DIM: u32;
    /// Whether a launch may change scores by more than a positive factor
    /// ([`CapAndBias`](crate::score::CapAndBias)), or drop weights.
    const SCORE_MOD: bool;

    /// What follows from the sizes.
    const CONFIG: BackwardSm90Config = {
        let config = BackwardSm90Config {
            owns_keys: Self::OWNS_KEYS,
            stores_ds: Self::STORES_DS,
            sums_dq: Self::SUMS_DQ,
            step: Self::STEP,
            head_dim: Self::HEAD_DIM,
        };
        assert!(config.is_well_formed() && Self::S::LEN as u32 * 2 == Self::STEP);
        assert!(Self::Packed::LEN * 2 == Self::S::LEN && Self::Gradient::LEN as u32 * 2 == Self::HEAD_DIM);
        assert!(!Self::STORES_DS || Self::OWNS_KEYS && Self::STEP.is_multiple_of(stored_ds::PIECE_QUERIES));
        assert!(!Self::SCORE_MOD || Self::STORES_DS || Self::SUMS_DQ);
        assert!(!Self::SUMS_DQ || Self::OWNS_KEYS && Self::STEP == stored_ds::PANEL && !Self::STORES_DS);
        config
    };
}

/// A tile of the lists of entries.
#[derive(Clone, Copy, Debug)]
pub struct BackwardSm90Tile<
    E,
    const OWNS_KEYS: bool,
    const STORES_DS: bool,
    const SUMS_DQ: bool,
    const STEP: u32,
    const HEAD_DIM: u32,
    const SCORE_MOD: bool,
>(PhantomData<E>);

impl<
    E,
    const OWNS_KEYS: bool,
    const STORES_DS: bool,
    const SUMS_DQ: bool,
    const STEP: u32,
    const D: u32,
    const SCORE_MOD: bool,
> Tile for BackwardSm90Tile<E, OWNS_KEYS, STORES_DS, SUMS_DQ, STEP, D, SCORE_MOD>
where
    E: MmaElement + Format,
    Columns<STEP>: Span,
    Columns<D>: Span,
{
    type Element = E;
    type S = <Columns<STEP> as Span>::Accumulator;
    type Packed = <Columns<STEP> as Span>::Packed16;
    type Gradient = <Columns<D> as Span>::Accumulator;
    type Alignment = Aligned;

    const OWNS_KEYS: bool = OWNS_KEYS;
    const STORES_DS: bool = STORES_DS;
    const SUMS_DQ: bool = SUMS_DQ;
    const STEP: u32 = STEP;
    const HEAD_DIM: u32 = D;
    const SCORE_MOD: bool = SCORE_MOD;
}

/// Steps that shared memory holds.
#[derive(Clone, Copy)]
pub(super) struct StepStages<T>(PhantomData<T>);

impl<T: Tile> Stages for StepStages<T> {
    const COUNT: u32 = T::CONFIG.stages();
}

/// Steps of a tile of queries that it holds, where dS is stored.
#[derive(Clone, Copy)]
pub(super) struct QueryStages<T>(PhantomData<T>);

impl<T: Tile> Stages for QueryStages<T> {
    const COUNT: u32 = T::CONFIG.query_stages();
}

/// Steps whose dS is on its way to the warpgroup that sums dQ.
#[derive(Clone, Copy)]
pub(super) struct DsStages<T>(PhantomData<T>);

impl<T: Tile> Stages for DsStages<T> {
    const COUNT: u32 = T::CONFIG.ds_stages();
}

/// Steps whose sum of dQ is on its way.
#[derive(Clone, Copy)]
pub(super) struct SumStages<T>(PhantomData<T>);

impl<T: Tile> Stages for SumStages<T> {
    const COUNT: u32 = T::CONFIG.sum_stages();
}

/// Steps whose sum is stored, and not counted yet.
#[derive(Clone, Copy)]
pub(super) struct SavedStages<T>(PhantomData<T>);

impl<T: Tile> Stages for SavedStages<T> {
    const COUNT: u32 = T::CONFIG.saved_stages();
}

/// dQ of a step in fp32, in lines: a view of 16-bit elements.
#[derive(Clone, Copy)]
pub(super) struct SumRows<T>(PhantomData<T>);

impl<T: Tile> Extent for SumRows<T> {
    const ROWS: u32 = T::CONFIG.sum_bytes() / LINE;
    const COLUMNS: u32 = LINE / 2;
    const ELEMENT_BYTES: u32 = 2;
}

/// Tiles of which shared memory holds what a block owns.
#[derive(Clone, Copy)]
pub(super) struct OwnedStages<T>(PhantomData<T>);

impl<T: Tile> Stages for OwnedStages<T> {
    const COUNT: u32 = T::CONFIG.owned_stages();
}

/// The rows that a block owns of a tensor.
#[derive(Clone, Copy)]
pub(super) struct OwnedRows<T>(PhantomData<T>);

impl<T: Tile> Extent for OwnedRows<T> {
    const ROWS: u32 = T::CONFIG.owned();
    const COLUMNS: u32 = T::HEAD_DIM;
    const ELEMENT_BYTES: u32 = 2;
}

/// The rows of a step of a tensor.
#[derive(Clone, Copy)]
pub(super) struct StepRows<T>(PhantomData<T>);

impl<T: Tile> Extent for StepRows<T> {
    const ROWS: u32 = T::STEP;
    const COLUMNS: u32 = T::HEAD_DIM;
    const ELEMENT_BYTES: u32 = 2;
}

/// The keys of a step of a tile of queries.
#[derive(Clone, Copy)]
pub(super) struct KeyRows<T>(PhantomData<T>);

impl<T: Tile> Extent for KeyRows<T> {
    const ROWS: u32 = BackwardSm90Config::KEYS;
    const COLUMNS: u32 = T::HEAD_DIM;
    const ELEMENT_BYTES: u32 = 2;
}

/// The rows of dQ of a tile of queries, on their way out through the memory of what a tile of keys owns.
#[derive(Clone, Copy)]
pub(super) struct QueryRows<T>(PhantomData<T>);

impl<T: Tile> Extent for QueryRows<T> {
    const ROWS: u32 = T::CONFIG.queries();
    const COLUMNS: u32 = T::HEAD_DIM;
    const ELEMENT_BYTES: u32 = 2;
}

/// A step of keys of a panel of dS.
pub(super) type DsRows = Extents<{ BackwardSm90Config::KEYS }, { stored_ds::PANEL }>;
