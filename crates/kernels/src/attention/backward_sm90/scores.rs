//! What lies between products and P where scores are changed or weights dropped, and what dS needs of it.
//!
//! No registers are left for scores beside P. So P, once it is rounded for dV, is multiplied by the slope of
//! softcap, which dS needs, and the sign of that product says whether the weight was dropped.

use core::f32::consts::LOG2_E;

use super::block::Block;
use super::tile::Tile;
use crate::dropout::fragment::kept_bit;
use crate::params::AttentionParams;
use crate::ptx::{index, math, shared};
use crate::registers::Registers as _;
use crate::scheduler::WorkTile;
use crate::score::CapAndBias;
use crate::tile::mma::MmaElement as _;

/// The query head of a step.
#[derive(Clone, Copy, Default)]
pub(super) struct QueryHead {
    /// Its number in its sequence.
    head: u32,
    score_mod: CapAndBias,
}

impl QueryHead {
    /// What [`Self::follow`] goes on from to a block's first head.
    #[inline(always)]
    pub(super) fn before<T: Tile>(block: &Block<T>) -> Self {
        Self { head: block.work.head.wrapping_sub(1), ..Self::default() }
    }

    /// This head's work, of a block's.
    #[inline(always)]
    pub(super) fn of(&self, work: &WorkTile) -> WorkTile {
        WorkTile { head: self.head, ..*work }
    }

    /// Goes on to the head of the step that begins with `row`: the next one where a head's steps begin.
    ///
    /// # Safety
    /// The ALiBi slopes that `params` describes are readable.
    #[inline(always)]
    unsafe fn follow<T: Tile>(&mut self, params: &AttentionParams, block: &Block<T>, row: u32) {
        if row == block.first {
            self.head = self.head.wrapping_add(1);
            // SAFETY: the block goes over heads that the problem has.
            self.score_mod = unsafe { CapAndBias::of_head(params, &self.of(&block.work)) };
        }
    }
}

/// A thread's part of a step's scores: which they are, and where lse of its queries lies in shared memory.
pub(super) struct Place {
    /// The step's first query.
    pub(super) row: u32,
    /// Query of the thread's first score.
    pub(super) query: u32,
    /// Key of its first score.
    pub(super) key: u32,
    /// Address of the statistics.
    pub(super) statistics: u32,
}

/// Keys of a warp.
const KEYS: u32 = 16;

/// How many queries and keys a thread's score lies behind its first one.
#[inline(always)]
const fn behind(score: usize) -> (u32, u32) {
    (8 * (score as u32 / 4) + score as u32 % 2, 8 * (score as u32 / 2 % 2))
}

/// Scores from products, in place: scale and softcap, where a launch has anything but a positive factor.
#[inline(always)]
pub(super) fn bend<T: Tile>(params: &AttentionParams, s: &mut T::S) {
    if !drops::<T>(params) || CapAndBias::is_needed(params) {
        let mut scores = [*s];
        CapAndBias::bend(params, &mut scores);
        *s = scores[0];
    }
}

/// Turns scores that are bent and masked into weights for [`gradient_of_score`], and rounds P as A of its
/// product with dO, with zeros for weights that are dropped.
///
/// # Safety
/// All lanes of the warp call this together, `params` is valid, and the statistics are there.
#[inline(always)]
pub(super) unsafe fn weigh<T: Tile>(
    params: &AttentionParams,
    block: &Block<T>,
    place: &Place,
    head: &mut QueryHead,
    (s, packed): (&mut T::S, &mut T::Packed),
) {
    // SAFETY: the lanes are together, and valid parameters have readable slopes.
    let kept = unsafe {
        head.follow(params, block, place.row);
        if drops::<T>(params) {
            let head = block.work.batch * params.heads + head.head;
            params.dropout.kept_of_keys(head, (place.query, place.key), (T::STEP, KEYS))
        } else {
            0
        }
    };
    // SAFETY: the statistics are there.
    unsafe {
        let state = (head.score_mod, kept);
        if drops::<T>(params) {
            if CapAndBias::is_needed(params) {
                weigh_as::<T, true, true>(params, block, place, state, (s, packed));
            } else {
                weigh_as::<T, false, true>(params, block, place, state, (s, packed));
            }
        } else {
            weigh_as::<T, true, false>(params, block, place, state, (s, packed));
        }
    }
}

/// Whether a launch drops weights.
#[inline(always)]
pub(super) fn drops<T: Tile>(params: &AttentionParams) -> bool {
    T::SCORE_MOD && params.dropout.threshold != 0
}

/// As [`weigh`], of weights of which those with a bit in `kept` are kept.
///
/// # Safety
/// The statistics are there.
#[inline(always)]
unsafe fn weigh_as<T: Tile, const CHANGED: bool, const DROPS: bool>(
    params: &AttentionParams,
    block: &Block<T>,
    place: &Place,
    (score_mod, kept): (CapAndBias, u32),
    (s, packed): (&mut T::S, &mut T::Packed),
) {
    let scale = if CHANGED { LOG2_E } else { params.softmax_scale * LOG2_E };
    let (queries, keys) = (block.work.queries.len, block.work.keys.len);
    let corner = (place.query + keys).wrapping_sub(queries + place.key) as i32 as f32;
    let inverse_softcap = CapAndBias::inverse_softcap(params);
    let mut columns = 0;
    while 8 * columns < T::S::LEN {
        // SAFETY: the stage is there, and with it the statistics of all of its queries.
        let shifts: [f32; 4] = unsafe { shared::load4(place.statistics + 64 * columns as u32) };
        let mut seen = [0.0; 8];
        let mut j = 0;
        while j < seen.len() {
            let at = 8 * columns + j;
            let bent = s[at];
            let (query, key) = behind(at);
            let score =
                if CHANGED { score_mod.biased(bent, corner + (query as f32 - key as f32)) } else { bent };
            let p = math::exp2(math::fma(score, scale, shifts[j / 4 * 2 + j % 2]));
            let weight = if CHANGED { p * CapAndBias::slope_of_masked(bent, inverse_softcap) } else { p };
            let is_kept = !DROPS || kept >> bit_of(at) & 1 != 0;
            seen[j] = if is_kept { p } else { 0.0 };
            s[at] = if is_kept { weight } else { -weight };
            j += 1;
        }
        let mut i = 0;
        while i < 4 {
            // Rounded here, and not between the products, which would wait for it.
            packed[4 * columns + i] = index::unknown(T::Element::pack(seen[2 * i], seen[2 * i + 1]));
            i += 1;
        }
        columns += 1;
    }
}

/// dS / softmax_scale from what [`weigh`] made of the score, dP and delta.
#[inline(always)]
pub(super) fn gradient_of_score<const DROPS: bool>(
    params: &AttentionParams,
    weight: f32,
    dp: f32,
    delta: f32,
) -> f32 {
    if DROPS {
        let factor = if weight.is_sign_negative() { 0.0 } else { params.dropout.scale };
        weight.abs() * math::fma(dp, factor, -delta)
    } else {
        weight * (dp - delta)
    }
}

/// The bit of a thread's score among those that are kept.
#[inline(always)]
const fn bit_of(score: usize) -> u32 {
    kept_bit(score / 2 % 2, score / 4 * 2 + score % 2)
}
