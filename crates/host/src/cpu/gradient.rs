//! P and dS of one panel, from its scores and dO·Vᵀ.

use super::exp::exp2;
use super::lanes::Lanes;

/// What each query's P and dS need beside products.
#[derive(Clone, Copy)]
pub(super) struct RowStats {
    /// lse in units of log2; +∞ where the query sees no key.
    pub(super) shift: *const f32,
    /// rowsum(dO ∘ O) − dlse.
    pub(super) delta: *const f32,
}

impl RowStats {
    /// Those after the first `count`.
    ///
    /// # Safety
    /// Both rows have at least `count` elements.
    pub(super) const unsafe fn skip(self, count: usize) -> Self {
        // SAFETY: `count` elements lie before the ones that the pointers lead to.
        unsafe { Self { shift: self.shift.add(count), delta: self.delta.add(count) } }
    }
}

/// Where the queries of a panel lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queries {
    /// Along the lanes; its rows are keys.
    Across,
    /// Along its rows; the lanes are keys.
    Down,
}

/// Replaces `p` [rows, N registers] of scores in units of log2 by P = 2^(score − shift), and `ds` of dO·Vᵀ by
/// P ∘ (dO·Vᵀ − delta).
///
/// # Safety
/// The CPU has the instruction set of `L`; `p` and `ds` are readable and writable for `rows` rows, and
/// `stats` readable for one row, or with queries down for `rows` elements.
#[inline(always)]
pub(super) unsafe fn differentiate<L: Lanes, const N: usize>(
    (p, ds): (*mut f32, *mut f32),
    rows: usize,
    stats: RowStats,
    queries: Queries,
) {
    // SAFETY: all offsets stay inside the rows that the caller vouches for.
    unsafe {
        for row in 0..rows {
            for n in 0..N {
                let of = |values: *const f32| match queries {
                    Queries::Across => L::load(values.add(n * L::WIDTH)),
                    Queries::Down => L::splat(*values.add(row)),
                };
                let at = (row * N + n) * L::WIDTH;
                let weight = exp2(L::load(p.add(at)).sub(of(stats.shift)));
                weight.store(p.add(at));
                weight.mul(L::load(ds.add(at)).sub(of(stats.delta))).store(ds.add(at));
            }
        }
    }
}
