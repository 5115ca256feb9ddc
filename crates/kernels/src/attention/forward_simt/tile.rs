//! A tile of the kernel: its sizes, its types, and what it can do, declared once.

use core::marker::PhantomData;

use crate::config::{ROW_LANES, SimtConfig};
use crate::element::Element;
use crate::registers::{Columns, Registers, Width};
use crate::tile::simt::{Loaded, ROWS};

/// What the kernel is compiled for.
pub trait Tile: Copy {
    /// Storage type.
    type Element: Element;
    /// A thread's part of a row of the scores S.
    type Row: Registers<Value = f32>;
    /// Its pairs of columns of a row of O.
    type Pairs: Registers<Value = [f32; 2]>;

    /// Query rows.
    const BLOCK_M: u32;
    /// Whether weights are dropped.
    const DROPOUT: bool;

    /// Keys of a step.
    const BLOCK_N: u32 = Self::CONFIG.block_n;
    /// Threads of a block.
    const THREADS: u32 = Self::CONFIG.threads();
    /// What follows from the sizes.
    const CONFIG: SimtConfig = {
        let config = SimtConfig {
            block_m: Self::BLOCK_M,
            block_n: ROW_LANES * Self::Row::LEN as u32,
            head_dim: 2 * ROW_LANES * Self::Pairs::LEN as u32,
        };
        assert!(config.is_well_formed());
        config
    };
}

/// A thread's part of the scores S of a block of keys.
pub(super) type Scores<T> = [<T as Tile>::Row; ROWS];

/// A thread's part of O.
pub(super) type Output<T> = [<T as Tile>::Pairs; ROWS];

/// A tile of the lists of entries.
#[derive(Clone, Copy, Debug)]
pub struct SimtTile<E, const BLOCK_M: u32, const BLOCK_N: u32, const HEAD_DIM: u32, const DROPOUT: bool>(
    PhantomData<E>,
);

impl<E, const M: u32, const N: u32, const D: u32, const DROPOUT: bool> Tile for SimtTile<E, M, N, D, DROPOUT>
where
    E: Element,
    Columns<N>: Width,
    Columns<D>: Width,
{
    type Element = E;
    type Row = <Columns<N> as Width>::Sixteenth;
    type Pairs = <Columns<D> as Width>::Pairs;

    const BLOCK_M: u32 = M;
    const DROPOUT: bool = DROPOUT;
}

/// The tile of Q.
pub(super) struct Queries<T>(PhantomData<T>);

impl<T: Tile> Loaded for Queries<T> {
    const ROWS: u32 = T::BLOCK_M;
    const COLUMNS: u32 = T::CONFIG.head_dim;
    const THREADS: u32 = T::THREADS;
}

/// A block of K or V.
pub(super) struct Keys<T>(PhantomData<T>);

impl<T: Tile> Loaded for Keys<T> {
    const ROWS: u32 = T::BLOCK_N;
    const COLUMNS: u32 = T::CONFIG.head_dim;
    const THREADS: u32 = T::THREADS;
}
