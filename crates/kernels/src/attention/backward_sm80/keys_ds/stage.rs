//! A step of the loop in shared memory, and what it is copied from.

use crate::attention::backward_sm80::Tile;
use crate::params::BackwardParams;
use crate::ptx::{cp_async, index, shared};
use crate::scheduler::WorkTile;
use crate::tile::mma::MmaTile;
use crate::tile::mma_copy::TileCopy;
use crate::tile::simt::GlobalTile;

/// A step in shared memory: Q, dO, then lse and delta.
#[derive(Clone, Copy)]
pub(super) struct Stage<T: Tile> {
    pub(super) q: MmaTile<T::HeadDim>,
}

impl<T: Tile> Stage<T> {
    /// Bytes of it.
    const BYTES: u32 = MmaTile::<T::HeadDim>::bytes(2 * T::STEP) + T::CONFIG.stats_bytes();

    /// The `index`-th of both, behind the rows that the block owns.
    #[inline(always)]
    pub(super) fn new(index: u32) -> Self {
        let owned = MmaTile::<T::HeadDim>::new(shared::base()).from_row(2 * T::OWNED);
        Self { q: MmaTile::new(owned.address + index * Self::BYTES) }
    }

    #[inline(always)]
    pub(super) fn dout(self) -> MmaTile<T::HeadDim> {
        self.q.from_row(T::STEP)
    }

    /// Address of lse of the step's rows; delta stands behind it.
    #[inline(always)]
    pub(super) fn stats(self) -> u32 {
        self.q.from_row(2 * T::STEP).address
    }
}

/// Q and dO of the tile's query head, from `row` on.
#[inline(always)]
pub(super) fn queries<T: Tile>(params: &BackwardParams, work: &WorkTile, row: u32) -> [GlobalTile; 2] {
    let attention = &params.attention;
    let of = |address, strides, columns| {
        let tile =
            GlobalTile::of_head::<T::Element>(address, strides, work, work.head, (work.queries, columns));
        tile.from::<T::Element>(row, 0)
    };
    [
        of(attention.q, &attention.q_strides, attention.head_dim),
        of(params.dout, &params.dout_strides, attention.head_dim_v),
    ]
}

/// Q, dO, lse and delta of a query head, on their way into stages.
pub(super) struct Streams<C> {
    q: C,
    dout: C,
    /// Address of this thread's row of lse, or of delta.
    stats: u64,
}

impl<C> Streams<C> {
    /// Those of the tile's query head, from `row` on.
    #[inline(always)]
    pub(super) fn new<T: Tile>(params: &BackwardParams, work: &WorkTile, row: u32) -> Self
    where
        C: TileCopy<T::HeadDim>,
    {
        const { assert!(T::THREADS >= 2 * T::STEP) };
        let thread = index::reread_thread();
        let stats = if thread < T::STEP { params.attention.lse } else { params.delta };
        let [q, dout] = queries::<T>(params, work, row);
        Self {
            q: C::new::<T::Element>(&q),
            dout: C::new::<T::Element>(&dout),
            stats: stats + 4 * work.lse_index(&params.attention, row + thread % T::STEP),
        }
    }

    /// Begins to copy a step of which `rows` rows exist. Of the others lse is −∞, so that every P is 0.
    ///
    /// # Safety
    /// All threads of the block call this together, the rows are readable, and no thread reads the stage.
    #[inline(always)]
    pub(super) unsafe fn copy<T: Tile>(&mut self, rows: u32, stage: Stage<T>)
    where
        C: TileCopy<T::HeadDim>,
    {
        // SAFETY: all threads are here, the rows are readable, and no thread reads the stage.
        unsafe {
            self.q.copy(rows, stage.q);
            self.dout.copy(rows, stage.dout());
            let thread = index::reread_thread();
            if thread < 2 * T::STEP {
                let target = stage.stats() + 4 * thread;
                if thread % T::STEP < rows {
                    cp_async::copy4(target, self.stats, 4);
                } else {
                    let absent = if thread < T::STEP { f32::NEG_INFINITY } else { 0.0 };
                    shared::store_b32(target, absent.to_bits());
                }
            }
        }
        self.stats += 4 * T::STEP as u64;
    }

    /// Brings into place what this warp's copies brought.
    ///
    /// # Safety
    /// As [`TileCopy::settle`].
    #[inline(always)]
    pub(super) unsafe fn settle<T: Tile>(&self, stage: Stage<T>)
    where
        C: TileCopy<T::HeadDim>,
    {
        // SAFETY: all threads are here, after the stage's copies were waited for.
        unsafe {
            self.q.settle(stage.q);
            self.dout.settle(stage.dout());
        }
    }
}
