//! Launch parameters of the decode kernels.

use super::{AttentionParams, CacheParams, Divisor, PerHead, Strides};

/// Parameters of `attention::decode` and `attention::combine`.
///
/// Addresses are device addresses (in the simulator, host addresses). Q is [B, Sq, H, D] and O
/// [B, Sq, H, Dv]. K and V are [B, Sk, H / `group`, D or Dv], or with a page table
/// [num_pages, page_size, H / `group`, D or Dv].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DecodeParams {
    /// First element of Q.
    pub q: u64,
    /// First element of K.
    pub k: u64,
    /// First element of V.
    pub v: u64,
    /// First element of O.
    pub o: u64,
    /// fp32 [B, H, Sq] contiguous, or 0 where it is not wanted.
    pub lse: u64,
    /// Keys of each sequence, int32 `[B]`, or 0 where all have `seqlen_k`; more count as `seqlen_k`.
    pub seqused_k: u64,
    /// Strides of Q.
    pub q_strides: Strides,
    /// Strides of K; with a page table, `batch` is from one page to the next.
    pub k_strides: Strides,
    /// Strides of V; with a page table, `batch` is from one page to the next.
    pub v_strides: Strides,
    /// Strides of O.
    pub o_strides: Strides,
    /// Where keys lie and how they are split, with a head in each tile.
    pub cache: CacheParams,
    /// Sequences.
    pub batch: u32,
    /// Query rows of each sequence.
    pub seqlen_q: Divisor,
    /// Key rows that a sequence has room for, at least 1.
    pub seqlen_k: u32,
    /// Query heads.
    pub heads: Divisor,
    /// Key/value heads.
    pub kv_heads: Divisor,
    /// Query heads that share one key/value head.
    pub group: Divisor,
    /// Tiles of Sq·`group` packed rows of a key/value head, of as many rows as the entry's have.
    pub tiles: Divisor,
    /// Columns of each row of Q and K, 1 to the entry's HEAD_DIM.
    pub head_dim: u32,
    /// As [`AttentionParams::window_left`], with the sequence's keys for Sk.
    pub window_left: u32,
    /// `window_left` + right.
    pub window_span: u32,
    /// Factor on Q·Kᵀ.
    pub softmax_scale: f32,
    /// Bound that scaled scores are bent to; 0 for none.
    pub softcap: f32,
    /// log2 of the most splits of a sequence that has no more keys than so many times `cache.split_keys`:
    /// each has fewer. 0 where such a sequence is split no finer.
    pub short_split_bits: u32,
    /// How many times the longest sequence's keys all sequences have at least where whole tiles are read
    /// best: then the splits of a tile are one block's, which adds them up. 0 where each is stored.
    pub enough_sequences: f32,
    /// Whether K and V are more than L2 holds, 1 or 0: then they make room in it before others.
    pub exceeds_l2: u32,
    /// What each head has.
    pub per_head: PerHead,
    /// Which of the newest Sq keys each query sees, beside all before those: u64 [B, Sq], of whose rows bit j
    /// is the j-th of these; 0 where the window alone decides. With it, Sq is at most 64.
    pub tree_mask: u64,
}

impl DecodeParams {
    /// What scores and masks depend on, as kernels of whole sequences have it.
    #[inline(always)]
    pub fn attention(&self) -> AttentionParams {
        AttentionParams {
            window_left: self.window_left,
            window_span: self.window_span,
            softmax_scale: self.softmax_scale,
            softcap: self.softcap,
            per_head: self.per_head,
            ..AttentionParams::default()
        }
    }
}
