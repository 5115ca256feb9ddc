//! What happens to the scores of a lane's rows between Q·Kᵀ and the softmax.

use crate::attention::split_work::{QueryRow, Work, seen_keys};
use crate::config::WARP_KEYS;
use crate::mask::KeyRange;
use crate::params::DecodeParams;
use crate::ptx::{index, shared};
use crate::registers::{Matrix, Registers as _, Width};
use crate::score::{CapAndBias, for_each};
use crate::tile::mma::{Lane, MmaTile};

use super::tile::Tile;

/// Where the ALiBi slope of a row of Q lies: in the padding behind the row's columns.
#[inline(always)]
fn slope_address<W: Width>(q: MmaTile<W>, row: u32) -> u32 {
    q.at(row, W::COLUMNS)
}

/// Writes the slopes of the tile's rows behind those of Q, where there are some.
///
/// # Safety
/// The slopes that `params` describes are readable; all threads of the block call this together, and a
/// barrier follows.
#[inline(always)]
pub(super) unsafe fn fill_slopes<T: Tile>(params: &DecodeParams, work: &Work, q: MmaTile<T::HeadDim>) {
    if !params.per_head.alibi_slopes.are_there() {
        return;
    }
    let mut row = index::thread();
    while row < T::BLOCK_M {
        // A row of padding has a head of the group too.
        let QueryRow { head, .. } = work.query_row(params, work.first_row + row);
        // SAFETY: the head's slope is readable, and no thread reads the tile before a barrier.
        unsafe { shared::store(slope_address(q, row), params.per_head.alibi_slopes.of(work.batch, head)) };
        row += T::THREADS;
    }
}

/// A lane's rows of packed queries.
pub(super) struct Rows<S: Matrix, W> {
    /// The tile of Q.
    q: MmaTile<W>,
    /// The key on each row's diagonal, modulo 2^32: it is before the first of few keys of many rows.
    diagonals: S::Column<u32>,
    /// Whether scores are changed before they are masked.
    changed: bool,
    /// The keys that all rows of the tile see.
    whole: KeyRange,
}

impl<S: Matrix, W: Width> Rows<S, W> {
    /// Those of `lane`, in the tile `q` of `work` whose last row that exists is `last_row`, of a sequence
    /// with `used` keys.
    #[inline(always)]
    pub(super) fn new(
        params: &DecodeParams,
        work: &Work,
        (used, last_row): (u32, u32),
        q: MmaTile<W>,
        lane: Lane,
    ) -> Self {
        let mut diagonals = S::Column::<u32>::splat(0);
        let mut i = 0;
        while i < S::ROWS {
            let QueryRow { position, .. } = work.query_row(params, work.first_row + lane.row(i));
            diagonals[i] = (position + used).wrapping_sub(params.seqlen_q.get());
            i += 1;
        }
        // The last row's window begins furthest to the right, and the first row's ends furthest to the left.
        let first = seen_keys(params, used, last_row).first;
        let whole = KeyRange { first, end: seen_keys(params, used, work.first_row).end };
        Self { q, diagonals, changed: CapAndBias::is_needed(&params.attention()), whole }
    }

    /// The factor that is left for the softmax: it is positive.
    #[inline(always)]
    pub(super) fn softmax_scale(&self, params: &DecodeParams) -> f32 {
        if self.changed { 1.0 } else { params.softmax_scale }
    }

    /// Scales, bends and biases the scores of the [`WARP_KEYS`] keys from `first_key` on, and sets those of
    /// keys to −∞ that a row does not see, or that lie from `end` on.
    ///
    /// # Safety
    /// Slopes were written by [`fill_slopes`], with a barrier between.
    #[inline(always)]
    pub(super) unsafe fn apply(
        &self,
        params: &DecodeParams,
        s: &mut S,
        lane: Lane,
        first_key: u32,
        end: u32,
    ) {
        if self.changed {
            CapAndBias::bend(&params.attention(), s);
            if params.per_head.alibi_slopes.are_there() {
                let mut i = 0;
                while i < S::ROWS {
                    // SAFETY: the row's slope was written, with a barrier between.
                    let slope = unsafe { shared::load(slope_address(self.q, lane.row(i))) };
                    let mut j = 0;
                    while j < S::COLS {
                        let distance = self.diagonals[i].wrapping_sub(first_key + lane.column(j)) as i32;
                        s[i][j] = CapAndBias::with_slope(slope).biased(s[i][j], distance as f32);
                        j += 1;
                    }
                    i += 1;
                }
            }
        }
        if first_key < self.whole.first || first_key + WARP_KEYS > self.whole.end.min(end) {
            for_each(s, |score, i, j| {
                let key = first_key + lane.column(j);
                // One comparison for both sides of the window.
                let place = key.wrapping_sub(self.diagonals[i]).wrapping_add(params.window_left);
                if place > params.window_span || key >= end { f32::NEG_INFINITY } else { score }
            });
        }
    }
}
