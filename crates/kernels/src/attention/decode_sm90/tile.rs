//! A tile of the kernel: its sizes and its types, declared once.

use core::marker::PhantomData;

use crate::config::DecodeSm90Config;
use crate::element::{Bf16, E4m3, F16};
use crate::hopper::ring::{Count, Ring, Stages};
use crate::hopper::roles::WARPS;
use crate::ptx::shared;
use crate::ptx::wgmma::{Accumulator, Format, Span};
use crate::registers::{Columns, Matrix};
use crate::tile::mma::MmaElement;
use crate::tile::panels::{Extent, Panels};

use crate::attention::work_items::{ItemSlots, ItemTile};

/// A storage type of K and V, where that of Q and O is `E`.
pub trait Cache<E>: Copy {
    /// What products take, of all operands.
    type Operand: MmaElement + Format;
    /// Bytes of an element.
    const BYTES: u32;
}

impl Cache<F16> for F16 {
    type Operand = F16;
    const BYTES: u32 = 2;
}

impl Cache<Bf16> for Bf16 {
    type Operand = Bf16;
    const BYTES: u32 = 2;
}

impl<E> Cache<E> for E4m3 {
    type Operand = F16;
    const BYTES: u32 = 1;
}

/// What the kernel is compiled for.
pub trait Tile: Copy {
    /// Storage type of Q and O.
    type Element: MmaElement;
    /// What products take.
    type Operand: MmaElement + Format;
    /// A thread's part of a product: of Sᵀ, 64 keys × BLOCK_M rows of Q, or of 64 columns of Oᵀ.
    type Product: Accumulator;
    /// Its part of Sᵀ: all keys of a step.
    type S: Matrix<Row = Self::Product>;
    /// The same by rows of Q: two keys of each product.
    type Scores: Matrix;
    /// Its part of Oᵀ.
    type O: Matrix<Row = Self::Product>;
    /// The ring of tiles of K and V in turn.
    type Ring: Stages;

    /// What follows from the sizes.
    const CONFIG: DecodeSm90Config;
    /// Packed query rows.
    const BLOCK_M: u32 = Self::CONFIG.block_m;
    /// Keys of a step.
    const BLOCK_N: u32 = Self::CONFIG.block_n;
    /// Whether elements of K and V become wider on their way to products, and those of Q are scaled.
    const WIDENS: bool = Self::CONFIG.cache_bytes == 1;
    /// Whether a block can have several splits of a tile, and add them up where it has all.
    const ADDS_UP: bool;
    /// What weights are multiplied by before they are rounded: fp16 has nothing below 2⁻²⁴, where other
    /// types of Q do. The running softmax lets weights grow to 2⁸, and fp16 ends below 2¹⁶.
    const WEIGHT_SCALE: f32 = if Self::WIDENS { 128.0 } else { 1.0 };
}

impl<T: Tile> ItemTile for T {
    const ROWS: u32 = T::BLOCK_M;
    const KEYS: u32 = T::BLOCK_N;
    const DESCALES: bool = T::WIDENS;
    const ADDS_UP: bool = T::ADDS_UP;
    const CLUSTERS: bool = true;
}

/// A tile of the lists of entries, of Q and O in `E`, K and V in `C`: a thread has scores of `COLUMNS` rows
/// of Q and `KEYS` keys, of `PRODUCTS` products, and Oᵀ has `PANELS` times 64 columns.
#[derive(Clone, Copy, Debug)]
pub struct DecodeSm90Tile<
    E,
    C,
    const BLOCK_M: u32,
    const COLUMNS: usize,
    const PRODUCTS: usize,
    const KEYS: usize,
    const HEAD_DIM: u32,
    const PANELS: usize,
    const STAGES: u32,
    const ADDS_UP: bool,
>(PhantomData<(E, C)>);

impl<
    E,
    C,
    const M: u32,
    const COLUMNS: usize,
    const PRODUCTS: usize,
    const KEYS: usize,
    const D: u32,
    const PANELS: usize,
    const STAGES: u32,
    const ADDS_UP: bool,
> Tile for DecodeSm90Tile<E, C, M, COLUMNS, PRODUCTS, KEYS, D, PANELS, STAGES, ADDS_UP>
where
    E: MmaElement,
    C: Cache<E>,
    Columns<M>: Span,
{
    type Element = E;
    type Operand = C::Operand;
    type Product = <Columns<M> as Span>::Accumulator;
    type S = [<Columns<M> as Span>::Accumulator; PRODUCTS];
    type Scores = [[f32; KEYS]; COLUMNS];
    type O = [<Columns<M> as Span>::Accumulator; PANELS];
    type Ring = Count<STAGES>;

    const CONFIG: DecodeSm90Config = {
        let block_n = DecodeSm90Config::PRODUCT_KEYS * PRODUCTS as u32;
        let config =
            DecodeSm90Config { block_m: M, block_n, head_dim: D, stages: STAGES, cache_bytes: C::BYTES };
        assert!(config.is_well_formed() && 4 * COLUMNS as u32 == M && 64 * PANELS as u32 == D);
        assert!(KEYS == 2 * PRODUCTS && (!ADDS_UP || config.adds_up_splits()));
        config
    };
    const ADDS_UP: bool = ADDS_UP;
}

/// The keys of a step, of K or V.
#[derive(Clone, Copy)]
pub(super) struct CacheRows<T>(PhantomData<T>);

impl<T: Tile> Extent for CacheRows<T> {
    const ROWS: u32 = T::BLOCK_N;
    const COLUMNS: u32 = T::CONFIG.head_dim;
    const ELEMENT_BYTES: u32 = T::CONFIG.cache_bytes;
}

/// Packed rows of Q.
#[derive(Clone, Copy)]
pub(super) struct QueryRows<T>(PhantomData<T>);

impl<T: Tile> Extent for QueryRows<T> {
    const ROWS: u32 = T::BLOCK_M;
    const COLUMNS: u32 = T::CONFIG.head_dim;
    const ELEMENT_BYTES: u32 = 2;
}

/// Rows of P of a step.
#[derive(Clone, Copy)]
pub(super) struct WeightRows<T>(PhantomData<T>);

impl<T: Tile> Extent for WeightRows<T> {
    const ROWS: u32 = T::BLOCK_M;
    const COLUMNS: u32 = T::BLOCK_N;
    const ELEMENT_BYTES: u32 = 2;
}

/// The stages of Q.
pub(super) type QueryStages = Count<{ DecodeSm90Config::QUERY_STAGES }>;

/// Where tiles and barriers lie in shared memory.
#[derive(Clone, Copy)]
pub(super) struct Memory<T> {
    base: u32,
    tile: PhantomData<T>,
}

impl<T: Tile> Memory<T> {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { base: shared::base(), tile: PhantomData }
    }

    /// Makes all barriers.
    ///
    /// # Safety
    /// One thread calls this, and a block barrier follows.
    #[inline(always)]
    pub(super) unsafe fn init(self) {
        // SAFETY: one thread makes the barriers, which lie behind all tiles, before the block barrier.
        unsafe {
            Ring::<T::Ring>::init(self.ring_barriers(), WARPS);
            Ring::<QueryStages>::init(self.query_barriers(), WARPS);
            ItemSlots::init(self.slots(), WARPS + 1);
        }
    }

    /// The first tile of the ring; the others lie behind it.
    #[inline(always)]
    pub(super) fn ring(self) -> Panels<CacheRows<T>> {
        Panels::new(self.base)
    }

    /// Where a column of a row lies that a block hands on to others of its cluster, of one of its splits:
    /// where the ring was, or behind all else where it still is when the first split is done.
    #[inline(always)]
    pub(super) fn handed_on(self, split: u32, row: u32, column: u32) -> u32 {
        const { assert!(T::CONFIG.part_bytes() <= T::CONFIG.q_offset()) };
        let base = if T::ADDS_UP { self.base + T::CONFIG.shared_bytes() } else { self.base };
        // Four columns more, so that rows begin in other banks.
        base + split * T::CONFIG.part_bytes() + 4 * (row * (T::CONFIG.head_dim + 4) + column)
    }

    /// Where the log-sum-exp of such a row lies.
    #[inline(always)]
    pub(super) fn handed_on_lse(self, split: u32, row: u32) -> u32 {
        self.handed_on(split, T::BLOCK_M, row)
    }

    /// The first copy of Q.
    #[inline(always)]
    pub(super) fn q(self) -> Panels<QueryRows<T>> {
        Panels::new(self.base + T::CONFIG.q_offset())
    }

    /// P.
    #[inline(always)]
    pub(super) fn p(self) -> Panels<WeightRows<T>> {
        Panels::new(self.base + T::CONFIG.p_offset())
    }

    /// Where a row's key on the diagonal lies, its ALiBi slope, and the factor of its scores where K widens,
    /// of a copy of Q.
    #[inline(always)]
    pub(super) fn row(self, stage: u32, row: u32) -> u32 {
        self.base + T::CONFIG.rows_offset() + T::CONFIG.row_words_bytes() * (stage * T::BLOCK_M + row)
    }

    /// Where a warp's maximum of a row lies.
    #[inline(always)]
    pub(super) fn max(self, warp: u32, row: u32) -> u32 {
        self.base + T::CONFIG.exchange_offset() + 4 * (warp * T::BLOCK_M + row)
    }

    /// Where a warp's sum of a row lies.
    #[inline(always)]
    pub(super) fn sum(self, warp: u32, row: u32) -> u32 {
        self.max(WARPS + warp, row)
    }

    #[inline(always)]
    pub(super) fn slots(self) -> u32 {
        const { assert!(ItemSlots::BYTES == DecodeSm90Config::SCHEDULE_BYTES) };
        self.base + T::CONFIG.schedule_offset()
    }

    #[inline(always)]
    pub(super) fn ring_barriers(self) -> u32 {
        self.base + T::CONFIG.barriers_offset()
    }

    #[inline(always)]
    pub(super) fn query_barriers(self) -> u32 {
        self.ring_barriers() + Ring::<T::Ring>::BYTES
    }
}
