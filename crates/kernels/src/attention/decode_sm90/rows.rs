//! The rows of O that an item gives, and where they go.

use crate::attention::combine::{COLUMNS, Running, Share, Sums};
use crate::attention::split_output::Target;
use crate::hopper::roles::WARPGROUP;
use crate::params::DecodeParams;
use crate::ptx::{barrier, cluster, index, shared};
use crate::registers::{Matrix, Registers as _};
use crate::softmax::with_sink;
use crate::tile::mma::Lane;

use super::consumer::{BARRIER, Column, register};
use super::fragments::column_of;
use super::tile::{Memory, Tile};
use crate::attention::work_items::{Item, has_clusters};

/// Most splits of a tile that a cluster merges, in as many blocks or fewer.
const MOST_SPLITS: usize = 8;

/// What becomes of rows of Oᵀ.
pub(super) struct Ends<T: Tile> {
    /// What the elements of each row are multiplied by.
    pub(super) factors: Column<T>,
    /// Their log-sum-exps.
    pub(super) lse: Column<T>,
    /// What the splits before count, and this one, where a block adds them up.
    pub(super) kept: Column<T>,
    pub(super) weights: Column<T>,
}

impl<T: Tile> Ends<T> {
    /// Of rows that saw no key.
    #[inline(always)]
    pub(super) fn none() -> Self {
        Self::new(Column::<T>::splat(0.0), Column::<T>::splat(f32::NEG_INFINITY))
    }

    /// Of rows that are not added to others.
    #[inline(always)]
    fn new(factors: Column<T>, lse: Column<T>) -> Self {
        Self { factors, lse, kept: Column::<T>::splat(1.0), weights: Column::<T>::splat(0.0) }
    }
}

/// Rows of Oᵀ before they are normalised.
pub(super) struct Rows<T: Tile> {
    o: T::O,
    ends: Ends<T>,
    /// What all elements are multiplied by behind their rows' factors, where they widen.
    factor: f32,
}

impl<T: Tile> Rows<T> {
    const COUNT: usize = <T::Scores as Matrix>::ROWS;

    /// Those of which products have added up `o`.
    #[inline(always)]
    pub(super) fn new(o: &T::O, ends: Ends<T>, v_descale: f32) -> Self {
        Self { o: *o, ends, factor: v_descale }
    }

    /// An element of a row, of its first or second column of a panel.
    #[inline(always)]
    fn element(&self, panel: usize, row: usize, second: usize) -> f32 {
        let value = self.o[panel][register(row, second)] * self.ends.factors[row];
        if T::WIDENS { value * self.factor } else { value }
    }

    /// Stores the rows that exist: as O and lse, or as those of a split, of which nothing reads O unless it
    /// has keys.
    ///
    /// # Safety
    /// All threads of the warpgroup call this together; the rows of O and lse are this block's.
    #[inline(always)]
    pub(super) unsafe fn store(mut self, params: &DecodeParams, item: &Item, lane: Lane) {
        let Item { work, of_split, rows, keys, .. } = item;
        let stores_o = keys.has_keys() || !of_split;
        let mut i = 0;
        while i < Self::COUNT {
            let row = lane.column(i);
            if row < *rows {
                let at = work.query_row(params, work.first_row + row);
                // Of several splits, who merges them takes the sink in.
                if !of_split {
                    let (sinks, head) = (&params.per_head.sinks, (work.batch, at.head));
                    // SAFETY: the sinks are readable, and the head is one of the launch's.
                    (self.ends.factors[i], self.ends.lse[i]) =
                        unsafe { with_sink((self.ends.factors[i], self.ends.lse[i]), sinks, head) };
                }
                let target = Target::new(params, work, at, *of_split);
                let mut panel = 0;
                while panel < T::O::ROWS {
                    let mut j = 0;
                    while j < 2 {
                        let column = 64 * panel as u32 + column_of_panel::<T>(lane, j);
                        if stores_o && column < params.cache.head_dim_v {
                            let value = self.element(panel, i, j);
                            // SAFETY: the element exists and is this thread's.
                            unsafe { target.store_o::<T::Element>(params, column, value) };
                        }
                        j += 1;
                    }
                    panel += 1;
                }
                if lane.row(0) == 0 {
                    // SAFETY: the row exists and is this thread's.
                    unsafe { target.store_lse(params, self.ends.lse[i]) };
                }
            }
            i += 1;
        }
    }
}

impl<T: Tile> Rows<T> {
    /// Writes the rows, of one of the block's splits, to shared memory: normalised, with their log-sum-exps.
    ///
    /// # Safety
    /// All threads of the warpgroup call this together, copies to where they go are over, and nobody reads
    /// these yet.
    #[inline(always)]
    pub(super) unsafe fn hand_on(&self, split: u32, lane: Lane, memory: Memory<T>) {
        // Products of other warps may still read the ring.
        // SAFETY: all threads of the warpgroup are here, and no others come to the barrier.
        unsafe { barrier::sync(BARRIER, WARPGROUP) };
        let mut i = 0;
        while i < Self::COUNT {
            let row = lane.column(i);
            let mut panel = 0;
            while panel < T::O::ROWS {
                let mut j = 0;
                while j < 2 {
                    let column = 64 * panel as u32 + column_of_panel::<T>(lane, j);
                    // SAFETY: the element is this thread's.
                    unsafe { shared::store(memory.handed_on(split, row, column), self.element(panel, i, j)) };
                    j += 1;
                }
                panel += 1;
            }
            if lane.row(0) == 0 {
                // SAFETY: the row is this thread's.
                unsafe { shared::store(memory.handed_on_lse(split, row), self.ends.lse[i]) };
            }
            i += 1;
        }
    }
}

/// Which column of a panel a thread's first or second is.
#[inline(always)]
fn column_of_panel<T: Tile>(lane: Lane, second: usize) -> u32 {
    if T::WIDENS { column_of(lane, second) } else { lane.row(second) }
}

/// Stores the rows of an item; or where they are those of splits in a cluster, hands them on, unless that is
/// done, and merges and stores a part of all. A tile that has not several splits is the first block's.
///
/// # Safety
/// As [`Rows::store`], of the cluster's blocks; all threads of the others call [`follow_cluster`] meanwhile.
/// Copies to the ring are over.
#[inline(always)]
pub(super) unsafe fn store_or_merge<T: Tile>(
    rows: Option<Rows<T>>,
    params: &DecodeParams,
    item: &Item,
    lane: Lane,
    memory: Memory<T>,
) {
    // SAFETY: nobody else writes the ring any more, and others read what is written between the barriers, at
    // which all threads of the cluster arrive.
    unsafe {
        if has_clusters::<T>() && item.of_split {
            if !T::ADDS_UP
                && let Some(rows) = rows
            {
                rows.hand_on(0, lane, memory);
            }
            cluster::sync();
            merge_part(params, item, memory);
            cluster::leave();
            return;
        }
        if let (Some(rows), 0) = (rows, cluster::rank()) {
            rows.store(params, item, lane);
        }
        follow_cluster::<T>();
    }
}

/// Comes to the barriers of [`store_or_merge`] with the warps that store nothing.
///
/// # Safety
/// All lanes of the warp call this together, once, when the block's item is done with.
#[inline(always)]
pub(super) unsafe fn follow_cluster<T: Tile>() {
    if has_clusters::<T>() {
        // SAFETY: the launch has clusters, and all lanes are here.
        unsafe {
            cluster::sync();
            cluster::leave();
        }
    }
}

/// Merges every so many four columns of the splits that the cluster's blocks have handed on, as
/// [`combine`](crate::attention::combine) does, and stores them.
///
/// # Safety
/// The blocks have, with a barrier between, and leave them until the next. All threads of the warpgroup call
/// this; O and lse are the cluster's. What it loads it stores, so that no load is on its way behind it.
#[inline(always)]
unsafe fn merge_part<T: Tile>(params: &DecodeParams, item: &Item, memory: Memory<T>) {
    let chunks = T::CONFIG.head_dim / COLUMNS;
    let (rank, blocks) = (cluster::rank(), cluster::size());
    let mut chunk = rank * WARPGROUP + index::reread_thread() % WARPGROUP;
    while chunk < item.rows * chunks {
        let (row, column) = (chunk / chunks, chunk % chunks * COLUMNS);
        let mut lses = [f32::NEG_INFINITY; MOST_SPLITS];
        let mut values = [[0.0; COLUMNS as usize]; MOST_SPLITS];
        let (mut of, mut split) = (0, 0);
        let mut i = 0;
        while i < MOST_SPLITS {
            if column < params.cache.head_dim_v && of < blocks {
                // SAFETY: as the caller says.
                unsafe {
                    lses[i] = cluster::load(of, memory.handed_on_lse(split, row));
                    values[i] = cluster::load4(of, memory.handed_on(split, row, column));
                }
            }
            split += 1;
            if !T::ADDS_UP || split == item.splits {
                (of, split) = (of + 1, 0);
            }
            i += 1;
        }
        let at = item.work.query_row(params, item.work.first_row + row);
        // SAFETY: the row is the cluster's, and the columns are this thread's.
        unsafe { Sums::of(&lses, &values).store::<T::Element>(params, item.work.batch, &at, column) };
        chunk += blocks * WARPGROUP;
    }
}

/// The rows of the splits that were taken in, as [`combine`](crate::attention::combine) takes them in.
pub(super) struct AddedUp<T: Tile> {
    o: T::O,
    exponents: Column<T>,
    sum: Column<T>,
}

impl<T: Tile> AddedUp<T> {
    /// Of no split.
    #[inline(always)]
    pub(super) fn none() -> Self {
        let Running { exponent, sum } = Running::NONE;
        Self { o: T::O::zero(), exponents: Column::<T>::splat(exponent), sum: Column::<T>::splat(sum) }
    }

    /// Finds what the splits before the next one count, and what that one, by the log-sum-exps of its rows.
    #[inline(always)]
    pub(super) fn weigh(&mut self, ends: &mut Ends<T>) {
        let mut i = 0;
        while i < Rows::<T>::COUNT {
            let mut running = self.running(i);
            let Share { kept, weight } = running.take(ends.lse[i]);
            (ends.kept[i], ends.weights[i]) = (kept, weight);
            (self.exponents[i], self.sum[i]) = (running.exponent, running.sum);
            i += 1;
        }
    }

    /// Takes the split in that was weighed, or has no keys.
    #[inline(always)]
    pub(super) fn take(&mut self, rows: &Rows<T>) {
        let mut i = 0;
        while i < Rows::<T>::COUNT {
            let share = Share { kept: rows.ends.kept[i], weight: rows.ends.weights[i] };
            let mut panel = 0;
            while panel < T::O::ROWS {
                let mut j = 0;
                while j < 2 {
                    let at = register(i, j);
                    self.o[panel][at] = share.add(self.o[panel][at], rows.element(panel, i, j));
                    j += 1;
                }
                panel += 1;
            }
            i += 1;
        }
    }

    #[inline(always)]
    fn running(&self, row: usize) -> Running {
        Running { exponent: self.exponents[row], sum: self.sum[row] }
    }

    /// The rows of all of them.
    #[inline(always)]
    pub(super) fn finish(&self) -> Rows<T> {
        let [mut factors, mut lse] = [Column::<T>::splat(0.0); 2];
        let mut i = 0;
        while i < Rows::<T>::COUNT {
            (factors[i], lse[i]) = self.running(i).finish();
            i += 1;
        }
        Rows { o: self.o, ends: Ends::new(factors, lse), factor: 1.0 }
    }
}
