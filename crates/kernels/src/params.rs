//! Launch parameters: the only contract between kernels and host.
//!
//! One `#[repr(C)]` value is passed to every entry as its single parameter: [`AttentionParams`] to those of
//! attention, [`BackwardParams`] to those of its backward pass, [`DecodeParams`] to those of the `decode`
//! family, [`AppendParams`] to those that write its cache, [`MergeParams`] to `merge`, [`GemmParams`] to
//! those of matrix multiplication; to those of Hopper, which copy by tensor maps, [`Mapped`].

mod append;
mod backward;
mod cache;
mod decode;
mod divisor;
mod functions;
mod merge;
mod pack;
mod schedule;
mod widen;

pub use append::{AppendParams, AppendTensor, RotaryParams};
pub use backward::{BackwardParams, StoredDs, Tickets};
pub use cache::{CacheParams, MAX_SPLITS, Pages};
pub use decode::DecodeParams;
pub use divisor::Divisor;
pub use functions::{FunctionData, MAX_FUNCTION_TENSORS, MAX_FUNCTION_VALUES};
pub use merge::{MAX_PARTS, MergeParams, MergePart};
pub use pack::{CopiesBeside, KeySequences, PackParams, PackTensor};
pub use schedule::ScheduleParams;
pub use widen::{WidenParams, WidenTensor};

use crate::attention::alignment::head_offset::HeadOffset;
use crate::element::Element as _;
use crate::ptx::index;
use crate::ptx::tma::TensorMap;

/// Strides of a [B, S, H, D] view in elements; the last dimension is contiguous.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strides {
    /// From one sequence to the next.
    pub batch: u64,
    /// From one row to the next.
    pub row: u64,
    /// From one head to the next.
    pub head: u64,
}

impl Strides {
    /// Elements from the first of the view to the first column of a head of a row.
    #[inline(always)]
    pub fn offset(&self, batch: u32, row: u32, head: u32) -> u64 {
        batch as u64 * self.batch + row as u64 * self.row + head as u64 * self.head
    }

    /// Whether rows of so many 16-bit elements from `address` on all start at multiples of 16 bytes, and are
    /// whole chunks of as many.
    #[inline(always)]
    pub fn are_in_chunks(&self, address: u64, columns: u32) -> bool {
        let elements = self.batch | self.row | self.head | columns as u64;
        (address | (2 * elements)).is_multiple_of(16)
    }
}

/// Dropout of attention weights: which are kept, `crate::dropout` says.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Dropout {
    /// Names the sequence of draws.
    pub seed: u64,
    /// Which draw of the seed.
    pub offset: u32,
    /// The probability times 2^32, 0 for no dropout; its last four bits do not count.
    pub threshold: u32,
    /// Factor on the weights that are kept, 1 / (1 − probability).
    pub scale: f32,
}

/// A value for each query head, fp32 `[H]` or `[B, H]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadValues {
    /// The first value; 0 where there are none.
    pub address: u64,
    /// Values from one sequence to the next: H, or 0 where all have the same.
    pub batch_stride: u64,
}

impl HeadValues {
    /// Whether there are values.
    #[inline(always)]
    pub const fn are_there(&self) -> bool {
        self.address != 0
    }

    /// The value of a sequence's head; 0 where there are none.
    ///
    /// # Safety
    /// The values, where there are some, are readable, and the head is one of theirs.
    #[inline(always)]
    pub unsafe fn of(&self, batch: u32, head: u32) -> f32 {
        let index = batch as u64 * self.batch_stride + head as u64;
        // SAFETY: the head's value is readable; without values nothing is read.
        unsafe { f32::load_if(self.are_there(), self.address + 4 * index) }
    }
}

/// What the elements of Q, K or V in 8 bits are multiplied by.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Descale {
    /// A value for each key/value head, fp32 `[Hkv]` or `[B, Hkv]`.
    pub per_head: HeadValues,
    /// Of all heads, where there are no such values.
    pub tensor: f32,
}

impl Default for Descale {
    /// Elements are what they stand for.
    fn default() -> Self {
        Self { per_head: HeadValues::default(), tensor: 1.0 }
    }
}

impl Descale {
    /// That of a sequence's key/value head.
    ///
    /// # Safety
    /// The values, where there are some, are readable, and the head is one of theirs.
    #[inline(always)]
    pub unsafe fn of(&self, batch: u32, kv_head: u32) -> f32 {
        // SAFETY: as the caller says.
        let of_head = unsafe { self.per_head.of(batch, kv_head) };
        if self.per_head.are_there() { of_head } else { self.tensor }
    }
}

/// What each head has of its own.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerHead {
    /// ALiBi slopes.
    pub alibi_slopes: HeadValues,
    /// Attention sinks: a score of each row that has no value.
    pub sinks: HeadValues,
}

/// Parameters of an attention kernel.
///
/// Addresses are device addresses (in the simulator, host addresses). Shapes: Q and O
/// [B, Sq, H, D], K and V [B, Sk, H / `group`, D], each with its strides; `lse` fp32 [B, H, Sq].
///
/// With `cu_seqlens_q` and `cu_seqlens_k` the sequences have lengths of their own and lie behind one another:
/// Q and O are [total_q, H, D], K and V [total_k, H / `group`, D], `lse` [H, total_q], and batch strides 0.
///
/// With `seqused_k` a sequence has the first of its keys alone, and masks are aligned to the last of these.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionParams {
    /// First element of Q.
    pub q: u64,
    /// First element of K.
    pub k: u64,
    /// First element of V.
    pub v: u64,
    /// First element of O.
    pub o: u64,
    /// First element of `lse`, or 0 where it is not wanted.
    pub lse: u64,
    /// Scores in the storage type, `seqlen_k` for each element of `lse`; only the unfused kernels have them.
    pub scores: u64,
    /// Strides of Q.
    pub q_strides: Strides,
    /// Strides of K.
    pub k_strides: Strides,
    /// Strides of V.
    pub v_strides: Strides,
    /// Strides of O.
    pub o_strides: Strides,
    /// Strides of `lse`.
    pub lse_strides: Strides,
    /// First query row of each sequence and of what follows the last, u32 [B + 1]; 0 where all are equally
    /// long.
    pub cu_seqlens_q: u64,
    /// First key row of each sequence and of what follows the last, u32 [B + 1]; 0 where all are equally
    /// long.
    pub cu_seqlens_k: u64,
    /// Keys of each sequence that count, its first ones, int32 `[B]`; 0 where all do. More than it has count
    /// as all, fewer than none as none. K and V behind them may hold anything.
    pub seqused_k: u64,
    /// Query rows of the longest sequence, at least 1.
    pub seqlen_q: u32,
    /// Key rows of the longest sequence, at least 1.
    pub seqlen_k: u32,
    /// Query heads, at least 1.
    pub heads: u32,
    /// Query heads that share one key/value head, at least 1.
    pub group: u32,
    /// Columns of each row of Q and K, 1 to the entry's HEAD_DIM.
    pub head_dim: u32,
    /// Columns of each row of V and O, 1 to the entry's HEAD_DIM.
    pub head_dim_v: u32,
    /// Query i sees key j only if j ≥ i + Sk − Sq − `window_left`; [`UNLIMITED`](crate::mask::UNLIMITED)
    /// hides nothing.
    pub window_left: u32,
    /// `window_left` + right: it sees key j only if j ≤ i + Sk − Sq + right. A right side of 0 is the causal
    /// mask.
    pub window_span: u32,
    /// Factor on Q·Kᵀ.
    pub softmax_scale: f32,
    /// Bound that scaled scores are bent to, softcap·tanh(s / softcap); 0 for none.
    pub softcap: f32,
    /// What each head has.
    pub per_head: PerHead,
    /// Read by the entries with dropout alone.
    pub dropout: Dropout,
    /// Read by entries that are compiled with functions of scores alone.
    pub functions: FunctionData,
}

impl AttentionParams {
    /// The same: what follows from scale and softcap would otherwise be computed once, and kept in registers.
    #[inline(always)]
    pub fn reread_scale(&self) -> Self {
        let again = |x: f32| f32::from_bits(index::unknown(x.to_bits()));
        Self { softmax_scale: again(self.softmax_scale), softcap: again(self.softcap), ..*self }
    }
}

/// Parameters of an attention kernel whose blocks each go through several tiles of queries.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PersistentParams {
    /// The problem.
    pub attention: AttentionParams,
    /// Tiles of queries in all, of each head `short_tiles` and `whole_tiles` where the batch is not packed.
    pub tiles: u32,
    /// Tiles of each head that have fewer rows than the kernel's tile, so that blocks can get even shares:
    /// those of its first rows, which see the fewest keys under a causal mask. They are computed last. A
    /// packed batch has none.
    pub short_tiles: u32,
    /// Tiles behind them that have all rows; not read for a packed batch.
    pub whole_tiles: u32,
    /// Heads, of one sequence after the other, whose tiles are computed at about the same time, so that their
    /// K and V are found in L2; at least 1. Those of a packed batch are of one sequence.
    pub heads_per_swizzle: u32,
    /// 1 where the blocks of the grid take tiles in turn back and forth, so that the last begins every second
    /// round; 0 where the first begins each.
    pub snake_order: u32,
    /// Tiles, the last ones, that are a block each, below `tiles`; the other blocks of the grid take the
    /// others in turn.
    pub tail_tiles: u32,
    /// 0 where O leaves through its tensor map; 1 where warps store those of their rows themselves that the
    /// map would not clip: at the end of a packed sequence; 2 where O has no map, and they store all.
    pub o_by_rows: u32,
    /// Sequences of a packed batch; 0 where each has a batch index.
    pub sequences: u32,
    /// From one sequence to that whose tiles come next, modulo `sequences`, to which it is coprime.
    pub sequence_step: u32,
    /// What `attention::tile_schedule` has written before, for this packed batch and BLOCK_M. Of a batch that
    /// is not packed, a counter of tiles taken that is 0. Address 0 where blocks take tiles in turn.
    pub schedule: u64,
    /// Bytes from the barriers where consumers wait for V to those where it lands, to be fixed up; 0 where it
    /// lands where they wait.
    pub v_fix_up: u32,
    /// As `v_fix_up`, for Q and K.
    pub qk_fix_up: u32,
    /// The most columns that boxes of V have before their head, so that they start with sectors of 32 bytes;
    /// 0 where they need not, or cannot in all rows alike.
    pub v_margin: u32,
    /// As `v_margin`, for Q and K.
    pub qk_margin: u32,
    /// What Q, K and V in 8 bits are multiplied by, beside softmax_scale.
    pub descale: [Descale; 3],
    /// What of Q, K and V is copied beside this launch, of a batch that is not packed and has a `schedule`.
    pub copies: CopiesBeside,
    /// Read by the entries over a K/V cache alone. There, a head of `attention` is a pack of query heads that
    /// are rows of one tile, `tiles` counts those of all splits, and packed sequences have one split.
    pub cache: CacheParams,
}

/// Parameters of a matrix multiplication C = A·B: A is M × K, B is K × N, and C is M × N and row-major (a
/// column-major C is a row-major Cᵀ = Bᵀ·Aᵀ).
///
/// Addresses as in [`AttentionParams`]. A leading dimension is the distance from one row to the next, or from
/// one column to the next where consecutive elements run along columns, in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GemmParams {
    /// First element of A.
    pub a: u64,
    /// First element of B.
    pub b: u64,
    /// First element of C.
    pub c: u64,
    /// Leading dimension of A.
    pub lda: u32,
    /// Leading dimension of B.
    pub ldb: u32,
    /// Leading dimension of C.
    pub ldc: u32,
    /// Rows of A and C, at least 1.
    pub m: u32,
    /// Columns of B and C, at least 1.
    pub n: u32,
    /// Columns of A and rows of B, at least 1.
    pub k: u32,
    /// 1 where consecutive elements of A run along K (row-major), 0 where they run along M. Entries that are
    /// built for one order do not read it.
    pub a_along_k: u32,
    /// 1 where consecutive elements of B run along K (column-major), 0 where they run along N; as
    /// `a_along_k`.
    pub b_along_k: u32,
}

/// The tensor maps of an attention kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionMaps {
    /// Of Q, one for each class of heads; all are valid, be there fewer classes.
    pub q: [TensorMap; HeadOffset::MAX_CLASSES],
    /// As `q`, of K.
    pub k: [TensorMap; HeadOffset::MAX_CLASSES],
    /// As `q`, of V.
    pub v: [TensorMap; HeadOffset::MAX_CLASSES],
    /// Of O, whose heads are of one class; not read where [`PersistentParams::o_by_rows`] is 2.
    pub o: TensorMap,
}

/// Parameters of a kernel that copies by tensor maps: the maps, which the kernel takes by their address, and
/// the parameters that the kernel would have without.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped<M, P> {
    /// One for each tensor, or [`AttentionMaps`].
    pub maps: M,
    /// The others.
    pub params: P,
}

// The parameters that every driver takes (CUDA C++ Programming Guide, "Function parameters").
const _: () = assert!(size_of::<Mapped<AttentionMaps, PersistentParams>>() <= 4096);
