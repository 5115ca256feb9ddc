//! P and dS from products, for the kernels of the backward pass (Dao 2023, arXiv:2307.08691, Algorithm 2,
//! lines 11 to 14).

use core::f32::consts::LOG2_E;

use crate::element::Element;
use crate::mask::MaskCorner;
use crate::params::{AttentionParams, BackwardParams};
use crate::ptx::{index, math};
use crate::registers::{Matrix, Register, Registers};
use crate::scheduler::WorkTile;
use crate::score::{CapAndBias, for_each};

/// What a kernel does beside the products, in all of its launches.
pub trait Changes {
    /// Whether anything but a positive factor lies between products and scores.
    const SCORE_MOD: bool;
    /// Whether weights are dropped.
    const DROPOUT: bool;
}

/// What a query row's P and dS need beside its products.
#[derive(Clone, Copy)]
pub(super) struct RowStats {
    /// lse·log2(e); +∞, which makes every P 0, where the row does not exist or sees no key.
    pub(super) shift: f32,
    /// delta = rowsum(dO ∘ O) − dlse.
    pub(super) delta: f32,
}

impl Register for RowStats {
    const ZERO: Self = Self { shift: 0.0, delta: 0.0 };
}

impl RowStats {
    /// Those of `R::LEN` rows, each so many behind `row`.
    ///
    /// # Safety
    /// lse and delta of the sequence's rows are readable.
    #[inline(always)]
    pub(super) unsafe fn load<R: Registers<Value = Self>>(
        params: &BackwardParams,
        work: &WorkTile,
        row: u32,
        behind: impl Fn(usize) -> u32,
    ) -> R {
        let mut stats = R::splat(Self { shift: f32::INFINITY, delta: 0.0 });
        let mut i = 0;
        while i < R::LEN {
            let row = row + behind(i);
            let (exists, at) = (row < work.queries.len, 4 * work.lse_index(&params.attention, row));
            // SAFETY: lse and delta are readable for the sequence's rows, and only a row that exists is read.
            let (lse, delta) = unsafe {
                (f32::load_if(exists, params.attention.lse + at), f32::load_if(exists, params.delta + at))
            };
            let sees = exists && lse != f32::NEG_INFINITY;
            stats[i] = Self { shift: if sees { lse * LOG2_E } else { f32::INFINITY }, delta };
            i += 1;
        }
        stats
    }
}

/// Where a thread's element [0][0] lies in its sequence.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) row: u32,
    pub(super) key: u32,
    /// Whether all rows of the tile see all of its keys.
    pub(super) whole: bool,
}

/// Turns a thread's elements of Q·Kᵀ and dO·Vᵀ into P and dS / softmax_scale. `query` says how many rows
/// behind `place` an element lies and which of `stats` is its row's, `key` how many keys behind it. `keeps`
/// says whether dropout keeps its weight, of a query head counted over all sequences. With dropout, P is as V
/// sees it.
#[inline(always)]
#[allow(
    clippy::too_many_arguments,
    reason = "a struct of them would be made in two places to be taken apart in one"
)]
pub(super) fn differentiate<C: Changes, S: Matrix, R: Registers<Value = RowStats>>(
    params: &AttentionParams,
    work: &WorkTile,
    score_mod: CapAndBias,
    (p, ds): (&mut S, &mut S),
    place: Place,
    stats: &R,
    query: impl Fn(usize, usize) -> (u32, usize),
    key: impl Fn(usize, usize) -> u32,
    keeps: impl Fn(u32, usize, usize) -> bool,
) {
    let changes_scores = C::SCORE_MOD && CapAndBias::is_needed(params);
    // Asked twice, of a head that is read anew: loops that draw have no registers to keep the answer in.
    let drop = |head: u32, i: usize, j: usize| {
        let keeps = keeps(head, i, j);
        if keeps { params.dropout.scale } else { 0.0 }
    };
    let head = work.batch * params.heads + work.head;
    for_each(ds, |dp, i, j| {
        let kept = if C::DROPOUT { drop(head, i, j) } else { 1.0 };
        dp * kept - stats[query(i, j).1].delta
    });
    if changes_scores {
        CapAndBias::bend(params, p);
        if params.softcap != 0.0 {
            for_each(ds, |distance, i, j| distance * CapAndBias::slope(params, p[i][j]));
        }
        let corner = (place.row + work.keys.len).wrapping_sub(work.queries.len + place.key);
        score_mod.add_bias(p, corner, |i, j| query(i, j).0 as f32 - key(i, j) as f32);
    }
    let scale = if changes_scores { LOG2_E } else { params.softmax_scale * LOG2_E };
    let corner = MaskCorner::new(params, work, place.row, place.key);
    for_each(p, |score, i, j| {
        let (rows, of_row) = query(i, j);
        let hidden = !place.whole && corner.hides(params, key(i, j), rows);
        if hidden { 0.0 } else { math::exp2(math::fma(score, scale, -stats[of_row].shift)) }
    });
    for_each(ds, |distance, i, j| p[i][j] * distance);
    if C::DROPOUT {
        let head = index::unknown(head);
        for_each(p, |weight, i, j| weight * drop(head, i, j));
    }
}
