//! A tile of the kernel: its sizes, its types, and what it can do, declared once.

use core::marker::PhantomData;

use super::operand::Operand;
use crate::attention::alignment::Alignment;
use crate::config::Sm90Config;
use crate::dropout;
use crate::functions::{MaskMod, ScoreMod, Unchanged};
use crate::hopper::ring::Stages;
use crate::ptx::wgmma::{Accumulator, Span};
use crate::registers::{Columns, Registers, Width};
use crate::tile::panels::Extent;

/// What the kernel is compiled for.
pub trait Tile: Copy {
    /// Storage type of Q, K and V.
    type Element: Operand;
    /// A thread's part of the scores S of a block of keys.
    type S: Accumulator;
    /// Its part of a row of them.
    type Row: Registers<Value = f32>;
    /// P, rounded, as A of its product with V.
    type P: Registers<Value = u32>;
    /// What decides which of S's weights are dropped, a word for each four.
    type Drawn: Registers<Value = u32>;
    /// A thread's part of O.
    type O: Accumulator;
    /// Where rows and heads may start.
    type Alignment: Alignment;
    /// What takes the place of the scaled score.
    type ScoreMod: ScoreMod;
    /// What hides keys beside the window.
    type MaskMod: MaskMod;

    /// Query rows.
    const BLOCK_M: u32;
    /// Keys of a step.
    const BLOCK_N: u32;
    /// Columns that Q and K are padded to in shared memory.
    const HEAD_DIM: u32;
    /// Columns that V and O are.
    const HEAD_DIM_V: u32;
    /// Whether there is something between scores and mask ([`CapAndBias`](crate::score::CapAndBias)).
    const SCORE_MOD: bool;
    /// Whether weights are dropped.
    const DROPOUT: bool;

    /// Whether keys lie in a cache.
    const IN_CACHE: bool = Self::Alignment::IN_CACHE;
    /// What follows from the sizes.
    const CONFIG: Sm90Config = {
        let config = Sm90Config {
            block_m: Self::BLOCK_M,
            block_n: Self::BLOCK_N,
            head_dim: Self::HEAD_DIM,
            head_dim_v: Self::HEAD_DIM_V,
            element_bytes: Self::Element::BYTES,
        };
        assert!(config.is_well_formed() && Self::S::LEN as u32 * 2 == Self::BLOCK_N);
        // Rows of O leave through those of Q.
        assert!(Self::O::LEN as u32 * 2 == Self::HEAD_DIM_V && Self::HEAD_DIM_V <= Self::HEAD_DIM);
        assert!(Self::P::LEN as u32 * 8 == Self::BLOCK_N * Self::Element::BYTES);
        // Draws and boxes are of 16-bit elements.
        assert!(Self::Element::BYTES == 2 || !(Self::DROPOUT || Self::Alignment::BY_RESIDUES));
        assert!(!(Self::Alignment::BY_RESIDUES && (Self::SCORE_MOD || config.takes_turns())));
        assert!(!(Self::IN_CACHE && (Self::DROPOUT || config.block_m != 128)));
        assert!(!Self::DROPOUT || Self::SCORE_MOD && config.block_n.is_multiple_of(dropout::KEY_MULTIPLE));
        config
    };
    /// What the first key of a block is a multiple of.
    const KEY_MULTIPLE: u32 = if Self::IN_CACHE {
        Self::BLOCK_N
    } else if Self::DROPOUT {
        dropout::KEY_MULTIPLE
    } else {
        Self::Element::KEY_MULTIPLE
    };
    /// Whether two warpgroups take turns.
    const TAKES_TURNS: bool = Self::CONFIG.takes_turns();
}

/// A tile of the lists of entries.
#[derive(Clone, Copy, Debug)]
pub struct Sm90Tile<
    E,
    A,
    const BLOCK_M: u32,
    const BLOCK_N: u32,
    const HEAD_DIM: u32,
    const HEAD_DIM_V: u32,
    const SCORE_MOD: bool,
    const DROPOUT: bool,
>(PhantomData<(E, A)>);

impl<
    E,
    A,
    const M: u32,
    const N: u32,
    const D: u32,
    const DV: u32,
    const SCORE_MOD: bool,
    const DROPOUT: bool,
> Tile for Sm90Tile<E, A, M, N, D, DV, SCORE_MOD, DROPOUT>
where
    E: Operand,
    A: Alignment,
    Columns<N>: Span,
    Columns<DV>: Span,
{
    type Element = E;
    type S = <Columns<N> as Span>::Accumulator;
    type Row = <Columns<N> as Width>::Quarter;
    type P = E::Packed<Columns<N>>;
    type Drawn = <Columns<N> as Width>::Eighth;
    type O = <Columns<DV> as Span>::Accumulator;
    type Alignment = A;
    type ScoreMod = Unchanged;
    type MaskMod = Unchanged;

    const BLOCK_M: u32 = M;
    const BLOCK_N: u32 = N;
    const HEAD_DIM: u32 = D;
    const HEAD_DIM_V: u32 = DV;
    const SCORE_MOD: bool = SCORE_MOD;
    const DROPOUT: bool = DROPOUT;
}

/// A tile with functions of scores, without a softcap and ALiBi.
#[derive(Clone, Copy, Debug)]
pub struct Modified<T, S, M>(PhantomData<(T, S, M)>);

impl<T: Tile, S: ScoreMod, M: MaskMod> Tile for Modified<T, S, M> {
    type Element = T::Element;
    type S = T::S;
    type Row = T::Row;
    type P = T::P;
    type Drawn = T::Drawn;
    type O = T::O;
    type Alignment = T::Alignment;
    type ScoreMod = S;
    type MaskMod = M;

    const BLOCK_M: u32 = T::BLOCK_M;
    const BLOCK_N: u32 = T::BLOCK_N;
    const HEAD_DIM: u32 = T::HEAD_DIM;
    const HEAD_DIM_V: u32 = T::HEAD_DIM_V;
    const SCORE_MOD: bool = S::CHANGES;
    const DROPOUT: bool = false;
}

/// Stages of K, and of V.
#[derive(Clone, Copy)]
pub(super) struct KeyStages<T>(PhantomData<T>);

impl<T: Tile> Stages for KeyStages<T> {
    const COUNT: u32 = T::CONFIG.stages();
}

/// A warpgroup's rows of Q.
#[derive(Clone, Copy)]
pub(super) struct QueryRows<T>(PhantomData<T>);

impl<T: Tile> Extent for QueryRows<T> {
    const ROWS: u32 = Sm90Config::WARPGROUP_ROWS;
    const COLUMNS: u32 = T::HEAD_DIM;
    const ELEMENT_BYTES: u32 = T::Element::BYTES;
}

/// A block of K.
#[derive(Clone, Copy)]
pub(super) struct KeyBlock<T>(PhantomData<T>);

impl<T: Tile> Extent for KeyBlock<T> {
    const ROWS: u32 = T::BLOCK_N;
    const COLUMNS: u32 = T::HEAD_DIM;
    const ELEMENT_BYTES: u32 = T::Element::BYTES;
}

/// A block of V.
#[derive(Clone, Copy)]
pub(super) struct ValueBlock<T>(PhantomData<T>);

impl<T: Tile> Extent for ValueBlock<T> {
    const ROWS: u32 = if T::Element::TRANSPOSES_VALUES { T::HEAD_DIM_V } else { T::BLOCK_N };
    const COLUMNS: u32 = if T::Element::TRANSPOSES_VALUES { T::BLOCK_N } else { T::HEAD_DIM_V };
    const ELEMENT_BYTES: u32 = T::Element::BYTES;
}

/// A warpgroup's rows of O.
#[derive(Clone, Copy)]
pub(super) struct OutputRows<T>(PhantomData<T>);

impl<T: Tile> Extent for OutputRows<T> {
    const ROWS: u32 = Sm90Config::WARPGROUP_ROWS;
    const COLUMNS: u32 = T::HEAD_DIM_V;
    const ELEMENT_BYTES: u32 = 2;
}
