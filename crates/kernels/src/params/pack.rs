//! Launch parameters of the kernel that packs rows.

use super::Strides;

/// Parameters of `attention::pack`.
///
/// Heads go in groups: one of those with the fewest, and as many of the others as share it. Units of the
/// first group come before those of the next.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackParams {
    /// What is copied; those behind the last have no units.
    pub tensors: [PackTensor; Self::MOST],
    /// Units of a group in the first tensor, in the first two, in three, and in all; blocks of
    /// `attention::transpose`.
    pub ends: [u32; Self::MOST],
    /// The first unit of the launch.
    pub first: u32,
    /// That behind its last.
    pub end: u32,
    /// Counters in device memory, of which `cleared` are set to 0. Where none is, each unit counts for its
    /// group; 0 where there are none.
    pub counters: u64,
    /// Counters that are set to 0.
    pub cleared: u32,
    /// Whose keys `attention::transpose` copies; not read by `attention::pack`.
    pub keys: KeySequences,
}

/// Sequences of keys that lie behind one another, or of which not all are used.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeySequences {
    /// u32 offsets, one more than there are sequences; 0 where each has a batch index.
    pub cu_seqlens: u64,
    /// How many keys of each are used, int32; 0 where all are.
    pub seqused: u64,
    /// Sequences that lie behind one another; 0 where each has a batch index.
    pub count: u32,
}

impl PackParams {
    /// The most tensors of a launch: Q, K, V and dO.
    pub const MOST: usize = 4;

    /// The group of a unit.
    #[inline(always)]
    pub const fn group(&self, unit: u32) -> u32 {
        // Where there is a unit, a group has some.
        let all = if self.ends[3] > 0 { self.ends[3] } else { 1 };
        unit / all
    }

    /// Address of the counter of a group.
    #[inline(always)]
    pub const fn counter(&self, group: u32) -> u64 {
        CopiesBeside { counters: self.counters, first: 0, awaited: 0, heads: 0 }.counter(group)
    }
}

/// What `attention::pack` copies beside the launch that reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopiesBeside {
    /// Counters in device memory: of tiles taken, and of what is copied of each group of heads; 0 where
    /// nothing is copied beside.
    pub counters: u64,
    /// The first group that is.
    pub first: u32,
    /// What its counter is when it has been.
    pub awaited: u32,
    /// Groups of a sequence: heads of K and V.
    pub heads: u32,
}

impl CopiesBeside {
    /// Whether there are any.
    #[inline(always)]
    pub const fn are_there(&self) -> bool {
        self.counters != 0
    }

    /// Counters of so many groups, of 4 bytes each.
    pub const fn counter_count(groups: u64) -> u64 {
        1 + groups
    }

    /// Address of the counter of a group.
    #[inline(always)]
    pub const fn counter(&self, group: u32) -> u64 {
        self.counters + 4 * (1 + group as u64)
    }
}

/// A [B, S, H, D] view, and where it is copied to: [B, H, S, 16 bytes·`chunks`], contiguous. Elements have 16
/// bits, or 8 in `attention::transpose`.
///
/// Addresses as in [`AttentionParams`](super::AttentionParams).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackTensor {
    /// First element.
    pub source: u64,
    /// Byte address behind the last element; no byte outside of the two is read.
    pub end: u64,
    /// First element of the copy, at a multiple of 16 bytes.
    pub target: u64,
    /// Strides of the view.
    pub strides: Strides,
    /// Rows of each head, at least 1.
    pub rows: u32,
    /// Heads of each sequence, at least 1.
    pub heads: u32,
    /// Its heads in a group, at least 1.
    pub group: u32,
    /// Columns of each row, at least 1.
    pub columns: u32,
    /// 16 bytes of each row of the copy, enough to hold the columns; at most 32.
    pub chunks: u32,
    /// Rows of a unit, [`unit_rows`](crate::attention::pack::unit_rows) of these chunks; not read by
    /// `attention::transpose`.
    pub unit_rows: u32,
    /// Units of each head, its rows over those rounded up; of `attention::transpose`, blocks.
    pub head_blocks: u32,
}
