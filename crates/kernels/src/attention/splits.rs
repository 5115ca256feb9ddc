//! How the keys of each sequence of a decode problem are split over blocks.

use core::hint::{assert_unchecked, cold_path};

use crate::mask::KeyRange;
use crate::params::{CacheParams, DecodeParams};
use crate::ptx::{global, index, math};
use crate::softmax::reduce;

/// Splits have a multiple of so many keys: the most that a kernel takes in a step.
const SPLIT_MULTIPLE: u32 = 128;

/// Where the splits of each sequence begin and end.
#[derive(Clone, Copy)]
pub(super) struct Splits<'a> {
    cache: &'a CacheParams,
    /// As [`DecodeParams::short_split_bits`].
    short_bits: u32,
}

impl<'a> Splits<'a> {
    #[inline(always)]
    pub(super) fn of(params: &'a DecodeParams) -> Self {
        Self { cache: &params.cache, short_bits: params.short_split_bits }
    }

    /// Of a kernel that splits no sequence finer for being short.
    #[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
    #[inline(always)]
    pub(super) fn of_cache(cache: &'a CacheParams) -> Self {
        Self { cache, short_bits: 0 }
    }

    /// Keys of each split of a sequence with `used` keys, from its first on; 0 where splits are even parts.
    #[inline(always)]
    pub(super) fn keys(self, used: u32) -> u32 {
        let Self { cache, short_bits } = self;
        if cache.split_keys == 0 {
            return 0;
        }
        let splits = cache.num_splits.get();
        // SAFETY: a divisor is not 0. Without this the division would carry a call to the panic for a zero
        // divisor, which a kernel cannot link. By its factor, it would spill where registers are full.
        unsafe { assert_unchecked(splits > 0) };
        let keys = match short_bits {
            0 => cache.split_keys,
            bits => cache.split_keys.min((used + (1 << bits) - 1) >> bits),
        };
        keys.max(used.div_ceil(splits)).next_multiple_of(SPLIT_MULTIPLE)
    }

    /// Splits of a sequence with `used` keys that may have some, at least 1.
    #[inline(always)]
    pub(super) fn count(self, used: u32) -> u32 {
        let keys = self.keys(used);
        if keys == 0 {
            return self.cache.num_splits.get();
        }
        // SAFETY: it is not 0 here. Without this the division would carry a call to the panic for a zero
        // divisor, which a kernel cannot link.
        unsafe { assert_unchecked(keys > 0) };
        used.div_ceil(keys).max(1)
    }

    /// The keys of a split, of those `seen` of a sequence with `used` keys, in steps of `block_n`.
    #[inline(always)]
    pub(super) fn part(self, split: u32, used: u32, seen: KeyRange, block_n: u32) -> KeyRange {
        match self.keys(used) {
            0 => even_part(self.cache, split, seen, block_n),
            keys => run(split, 1, keys, seen),
        }
    }
}

/// The keys of a run of `splits` splits of so many `keys`, of those `seen`.
#[inline(always)]
pub(super) fn run(first: u32, splits: u32, keys: u32, seen: KeyRange) -> KeyRange {
    KeyRange { first: (first * keys).max(seen.first), end: ((first + splits) * keys).min(seen.end) }
}

/// A split's even part of the keys `seen`, in steps of `block_n`.
#[inline(always)]
fn even_part(cache: &CacheParams, split: u32, seen: KeyRange, block_n: u32) -> KeyRange {
    let blocks = seen.end.saturating_sub(seen.first).div_ceil(block_n);
    // Splits differ by at most one block; the first ones have it.
    let (least, longer) = (blocks / cache.num_splits, blocks % cache.num_splits);
    let first = seen.first + (split * least + split.min(longer)) * block_n;
    let blocks = least + (split < longer) as u32;
    KeyRange { first, end: (first + blocks * block_n).min(seen.end) }
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

/// Whether the splits of a tile are one block's, which adds them up: where sequences are so many and so alike
/// that whole tiles keep the device reading. All warps of a problem's launches find the same.
///
/// # Safety
/// As [`are_enough_unlike`].
#[inline(always)]
pub(super) unsafe fn are_of_one_block(params: &DecodeParams) -> bool {
    if params.seqused_k == 0 {
        return are_enough_alike(params);
    }
    // Out of the way of those who go on: a launch reads its code for the first time, and jumps are slow.
    cold_path();
    // SAFETY: as the caller says.
    unsafe { are_enough_unlike(params) }
}

/// [`are_of_one_block`] where all sequences have all keys.
#[inline(always)]
pub(super) fn are_enough_alike(params: &DecodeParams) -> bool {
    params.enough_sequences > 0.0 && params.enough_sequences <= params.batch as f32
}

/// [`are_of_one_block`] where each sequence has its own keys.
///
/// # Safety
/// `params` describes valid device memory; all 32 lanes of the warp call this together.
#[inline(always)]
pub(super) unsafe fn are_enough_unlike(params: &DecodeParams) -> bool {
    if params.enough_sequences == 0.0 {
        return false;
    }
    let [mut longest, mut all] = [0.0; 2];
    let mut batch = index::thread() % 32;
    while batch < params.batch {
        // SAFETY: the sequence exists.
        let used = unsafe { used_keys(params, batch) } as f32;
        (longest, all) = (math::max(longest, used), all + used);
        batch += 32;
    }
    // SAFETY: all lanes of the warp are here.
    unsafe {
        longest = reduce::<32>(longest, math::max);
        all = reduce::<32>(all, |a, b| a + b);
    }
    longest * params.enough_sequences <= all
}
