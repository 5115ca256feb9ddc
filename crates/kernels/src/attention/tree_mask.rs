//! Queries that are a tree of draft tokens (SpecInfer; Miao et al. 2024, arXiv:2305.09781): which of the
//! newest keys each of them sees.

use crate::params::DecodeParams;
use crate::ptx::global;
use crate::registers::Matrix;

/// Sets scores to −∞ of keys that a query does not see, in a thread's part of a step of `keys` keys from
/// `first_key` on: `position` says of which query of the sequence its score `[i][j]` is, and `key` of which
/// of the step's keys. The sequence has `used` keys.
///
/// # Safety
/// The mask that `params` describes, if any, is readable, and the sequence one of its.
#[inline(always)]
pub(super) unsafe fn hide<S: Matrix>(
    params: &DecodeParams,
    s: &mut S,
    (batch, used): (u32, u32),
    (first_key, keys): (u32, u32),
    position: impl Fn(usize) -> u32,
    key: impl Fn(usize) -> u32,
) {
    let is_older = first_key + keys + params.seqlen_q.get() <= used;
    if params.tree_mask == 0 || is_older {
        return;
    }
    // Which of the newest keys the step's first is; negative where it is older.
    let first = (first_key + params.seqlen_q.get()).wrapping_sub(used);
    let mut i = 0;
    while i < S::ROWS {
        let position = position(i);
        // SAFETY: a query that exists has a word for each half of its newest keys.
        let bits = unsafe { bits_of(params, batch, position) };
        let mut j = 0;
        while j < S::COLS {
            if !sees(bits, first.wrapping_add(key(j)) as i32) {
                s[i][j] = f32::NEG_INFINITY;
            }
            j += 1;
        }
        i += 1;
    }
}

/// The bits of a query; none of one past the last.
///
/// # Safety
/// The mask is readable, and the sequence one of its.
#[inline(always)]
unsafe fn bits_of(params: &DecodeParams, batch: u32, position: u32) -> [u32; 2] {
    let exists = position < params.seqlen_q.get();
    let row = batch as u64 * params.seqlen_q.get() as u64 + position as u64;
    let address = params.tree_mask + 8 * row;
    // SAFETY: the caller's mask has 8 bytes for each query.
    unsafe { [global::load_b32_if(exists, address), global::load_b32_if(exists, address + 4)] }
}

/// Whether a query with these bits sees the newest key of this number, or one before, which all see.
#[inline(always)]
fn sees(bits: [u32; 2], newest: i32) -> bool {
    let word = if newest & 32 == 0 { bits[0] } else { bits[1] };
    newest < 0 || word >> (newest & 31) & 1 == 1
}
