//! A tile of both kernels: its sizes, its types, and what it can do, declared once.

use core::marker::PhantomData;

use crate::attention::gradient::Changes;
use crate::config::{BackwardConfig, ROW_LANES};
use crate::element::Element;
use crate::registers::{Columns, Registers, Width};
use crate::tile::simt::{Loaded, ROWS};

/// What a kernel is compiled for.
pub trait Tile: Changes {
    /// Storage type.
    type Element: Element;
    /// A thread's part of a row of the scores.
    type Row: Registers<Value = f32>;
    /// Its pairs of columns of a row of a gradient.
    type Pairs: Registers<Value = [f32; 2]>;

    /// Rows that a block owns: keys, or queries.
    const OWNED: u32;

    /// Rows of a step: queries, or keys.
    const STEP: u32 = Self::CONFIG.step;
    /// Threads of a block.
    const THREADS: u32 = Self::CONFIG.threads();
    /// What follows from the sizes.
    const CONFIG: BackwardConfig = {
        let config = BackwardConfig {
            owned: Self::OWNED,
            step: ROW_LANES * Self::Row::LEN as u32,
            head_dim: 2 * ROW_LANES * Self::Pairs::LEN as u32,
        };
        assert!(config.is_well_formed());
        config
    };
}

/// A thread's part of the scores, and of dS: its rows are those that the block owns, its columns those of a
/// step.
pub(super) type Scores<T> = [<T as Tile>::Row; ROWS];

/// A thread's part of a gradient of what the block owns.
pub(super) type Gradient<T> = [<T as Tile>::Pairs; ROWS];

/// A tile of the lists of entries.
#[derive(Clone, Copy, Debug)]
pub struct BackwardSimtTile<E, const OWNED: u32, const STEP: u32, const HEAD_DIM: u32, const DROPOUT: bool>(
    PhantomData<E>,
);

impl<E, const OWNED: u32, const STEP: u32, const HEAD_DIM: u32, const DROPOUT: bool> Changes
    for BackwardSimtTile<E, OWNED, STEP, HEAD_DIM, DROPOUT>
{
    const SCORE_MOD: bool = true;
    const DROPOUT: bool = DROPOUT;
}

impl<E, const OWNED: u32, const STEP: u32, const D: u32, const DROPOUT: bool> Tile
    for BackwardSimtTile<E, OWNED, STEP, D, DROPOUT>
where
    E: Element,
    Columns<STEP>: Width,
    Columns<D>: Width,
{
    type Element = E;
    type Row = <Columns<STEP> as Width>::Sixteenth;
    type Pairs = <Columns<D> as Width>::Pairs;

    const OWNED: u32 = OWNED;
}

/// What a block owns.
pub(super) struct Owned<T>(PhantomData<T>);

impl<T: Tile> Loaded for Owned<T> {
    const ROWS: u32 = T::OWNED;
    const COLUMNS: u32 = T::CONFIG.head_dim;
    const THREADS: u32 = T::THREADS;
}

/// What it goes over in a step.
pub(super) struct Step<T>(PhantomData<T>);

impl<T: Tile> Loaded for Step<T> {
    const ROWS: u32 = T::STEP;
    const COLUMNS: u32 = T::CONFIG.head_dim;
    const THREADS: u32 = T::THREADS;
}
