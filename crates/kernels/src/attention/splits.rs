//! How the keys of each sequence of a decode problem are split over blocks.

use core::hint::assert_unchecked;

use crate::params::DecodeParams;
use crate::ptx::global;

/// Splits have a multiple of so many keys: the most that a kernel takes in a step.
const SPLIT_MULTIPLE: u32 = 128;

/// Keys of each split of a sequence with `used` keys, from its first on; 0 where splits are even parts.
#[inline(always)]
pub(super) fn split_keys(params: &DecodeParams, used: u32) -> u32 {
    if params.split_keys == 0 {
        return 0;
    }
    // SAFETY: valid parameters have at least one split. Without this the division would carry a call to the
    // panic for a zero divisor, which a kernel cannot link.
    unsafe { assert_unchecked(params.num_splits > 0) };
    params.split_keys.max(used.div_ceil(params.num_splits)).next_multiple_of(SPLIT_MULTIPLE)
}

/// Splits of a sequence with `used` keys that may have some, at least 1.
#[inline(always)]
pub(super) fn count(params: &DecodeParams, used: u32) -> u32 {
    let keys = split_keys(params, used);
    if keys == 0 {
        return params.num_splits;
    }
    // SAFETY: it is not 0 here. Without this the division would carry a call to the panic for a zero divisor,
    // which a kernel cannot link.
    unsafe { assert_unchecked(keys > 0) };
    used.div_ceil(keys).max(1)
}

/// Keys of a sequence.
///
/// # Safety
/// `params` describes valid device memory.
#[inline(always)]
pub(super) unsafe fn used_keys(params: &DecodeParams, batch: u32) -> u32 {
    if params.seqused_k == 0 {
        return params.seqlen_k;
    }
    // SAFETY: `seqused_k` has a readable entry for each sequence.
    let used = unsafe { global::load_b32_if(true, params.seqused_k + 4 * batch as u64) } as i32;
    (used.max(0) as u32).min(params.seqlen_k)
}
