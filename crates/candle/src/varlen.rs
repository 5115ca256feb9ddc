//! Attention of sequences of different lengths, packed one after the other.

use candle_core::{Result, Tensor};

use crate::op::{self, Attention};
use crate::problem::Settings;

/// Attention of packed sequences as an operation for [`Tensor::apply_op3`], with the fields of
/// candle-flash-attn's.
///
/// The functions keep the log-sum-exp of the forward pass for the gradient; this computes it a second time.
#[derive(Clone, Debug)]
pub struct FlashAttnVarLen {
    /// Factor on the scores.
    pub softmax_scale: f32,
    /// Query rows of the longest sequence, or a bound of them.
    pub max_seqlen_q: usize,
    /// Keys of the longest sequence, or a bound of them.
    pub max_seqlen_k: usize,
    /// First query row of each sequence and end of the last, u32 `[batch + 1]`.
    pub seqlens_q: Tensor,
    /// First key of each sequence and end of the last, u32 `[batch + 1]`.
    pub seqlens_k: Tensor,
    /// Pages of each sequence, u32 or i32 `[batch, max_pages]`, where K and V are pages.
    pub block_table: Option<Tensor>,
    /// `None`: spans that the causal mask does not cut are not supported.
    pub mm_prefix_ranges: Option<Tensor>,
    /// Keys of a page, where K and V are pages.
    pub page_block_size: Option<usize>,
    /// Slopes of ALiBi, f32 `[heads]`.
    pub alibi_slopes: Option<Tensor>,
    /// Keys before a query's position that it sees; `None` for all.
    pub window_size_left: Option<usize>,
    /// Keys after a query's position that it sees; `None` for all, `Some(0)` for a causal mask.
    pub window_size_right: Option<usize>,
    /// Bends scores s to softcap · tanh(s / softcap); `None` or 0 for off.
    pub softcap: Option<f32>,
}

impl Attention for FlashAttnVarLen {
    fn settings(&self) -> Settings<'_> {
        Settings {
            softmax_scale: self.softmax_scale,
            alibi_slopes: self.alibi_slopes.as_ref(),
            window: (self.window_size_left, self.window_size_right),
            softcap: self.softcap.unwrap_or(0.0),
            varlen: Some(self),
        }
    }
}

/// [`flash_attn`](crate::flash_attn) of packed sequences.
///
/// * `q` - queries of all sequences, `[total_q, heads, head_dim]`.
/// * `k`, `v` - keys and values of all sequences, `[total_k, kv_heads, head_dim]`.
/// * `seqlens_q`, `seqlens_k` - first row of each sequence and end of the last, u32 `[batch + 1]`, from 0 on.
/// * `max_seqlen_q`, `max_seqlen_k` - rows of the longest sequence, or a bound of them.
/// * `softmax_scale` - factor on the scores.
/// * `causal` - whether a query sees no key after its own position, aligned bottom-right.
///
/// Returns `[total_q, heads, head_dim]`, contiguous, in the type of `q`.
///
/// # Errors
/// As [`flash_attn`](crate::flash_attn), and when the offsets do not fit the tensors. On a GPU their values
/// are not looked at.
#[expect(clippy::too_many_arguments, reason = "the arguments are candle-flash-attn's")]
pub fn flash_attn_varlen(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_varlen_windowed(
        q,
        k,
        v,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        None,
        causal.then_some(0),
    )
}

/// [`flash_attn_varlen`] with a sliding window.
///
/// * `q` - queries of all sequences, `[total_q, heads, head_dim]`.
/// * `k`, `v` - keys and values of all sequences, `[total_k, kv_heads, head_dim]`.
/// * `seqlens_q`, `seqlens_k` - first row of each sequence and end of the last, u32 `[batch + 1]`, from 0 on.
/// * `max_seqlen_q`, `max_seqlen_k` - rows of the longest sequence, or a bound of them.
/// * `softmax_scale` - factor on the scores.
/// * `window_size_left`, `window_size_right` - keys before and after a query's position that it sees; `None`
///   for all, `Some(0)` on the right for a causal mask.
///
/// Returns `[total_q, heads, head_dim]`, contiguous, in the type of `q`.
///
/// # Errors
/// As [`flash_attn`](crate::flash_attn), and when the offsets do not fit the tensors.
#[expect(clippy::too_many_arguments, reason = "the arguments are candle-flash-attn's")]
pub fn flash_attn_varlen_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    flash_attn_varlen_alibi_windowed_softcap(
        q,
        k,
        v,
        None,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        window_size_left,
        window_size_right,
        0.0,
    )
}

/// [`flash_attn_varlen`] against pages of keys and values, with a sliding window and a softcap, without
/// gradients.
///
/// Pages are read where they lie if `q` has batch · `max_seqlen_q` rows and `max_seqlen_q` is at most 16,
/// under the causal mask or none, without softcap, and not for F32 on a GPU. Each sequence must then have
/// `max_seqlen_q` query rows. For all else `k` and `v` are copied in this call: `max_seqlen_k` keys of every
/// sequence, rounded up to whole pages.
///
/// * `q` - queries of all sequences, `[total_q, heads, head_dim]`.
/// * `k`, `v` - pages of keys and values, `[pages, page_block_size, kv_heads, head_dim]`.
/// * `seqlens_q`, `seqlens_k` - first row of each sequence and end of the last, u32 `[batch + 1]`, from 0 on.
/// * `block_table` - pages of each sequence, u32 or i32 `[batch, max_pages]`. Entries that hold a sequence's
///   keys must name pages that there are, which a GPU does not check; others may be anything.
/// * `mm_prefix_ranges` - `None`; spans that the causal mask does not cut are not supported.
/// * `max_seqlen_q`, `max_seqlen_k` - rows of the longest sequence, or a bound of them.
/// * `softmax_scale` - factor on the scores.
/// * `window_size_left`, `window_size_right` - keys before and after a query's position that it sees; `None`
///   for all, `Some(0)` on the right for a causal mask.
/// * `page_block_size` - keys of a page, as `k` and `v` have them.
/// * `softcap` - bends scores s to softcap · tanh(s / softcap); `None` or 0 is off.
///
/// Returns `[total_q, heads, head_dim]`, contiguous, in the type of `q`.
///
/// # Errors
/// As [`flash_attn_varlen`]; when pages of `k`, of `v` and `page_block_size` differ, or the block table has
/// another shape or type; on a GPU, when copies of `k` or `v` have more than 2³¹ elements, or pages that are
/// copied have 2³² or more.
#[expect(clippy::too_many_arguments, reason = "the arguments are candle-flash-attn's")]
pub fn flash_attn_varlen_paged_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    block_table: &Tensor,
    mm_prefix_ranges: Option<&Tensor>,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    page_block_size: usize,
    softcap: Option<f32>,
) -> Result<Tensor> {
    let attention = FlashAttnVarLen {
        softmax_scale,
        max_seqlen_q,
        max_seqlen_k,
        seqlens_q: seqlens_q.clone(),
        seqlens_k: seqlens_k.clone(),
        block_table: Some(block_table.clone()),
        mm_prefix_ranges: mm_prefix_ranges.cloned(),
        page_block_size: Some(page_block_size),
        alibi_slopes: None,
        window_size_left,
        window_size_right,
        softcap,
    };
    op::apply(q, k, v, attention)
}

/// [`flash_attn_varlen`] with ALiBi.
///
/// * `q` - queries of all sequences, `[total_q, heads, head_dim]`.
/// * `k`, `v` - keys and values of all sequences, `[total_k, kv_heads, head_dim]`.
/// * `alibi_slopes` - f32 `[heads]`: scores get `-slope · distance` added.
/// * `seqlens_q`, `seqlens_k` - first row of each sequence and end of the last, u32 `[batch + 1]`, from 0 on.
/// * `max_seqlen_q`, `max_seqlen_k` - rows of the longest sequence, or a bound of them.
/// * `softmax_scale` - factor on the scores.
/// * `causal` - whether a query sees no key after its own position, aligned bottom-right.
///
/// Returns `[total_q, heads, head_dim]`, contiguous, in the type of `q`.
///
/// # Errors
/// As [`flash_attn`](crate::flash_attn), and when the offsets do not fit the tensors.
#[expect(clippy::too_many_arguments, reason = "the arguments are candle-flash-attn's")]
pub fn flash_attn_varlen_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_varlen_alibi_windowed(
        q,
        k,
        v,
        alibi_slopes,
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        None,
        causal.then_some(0),
    )
}

/// [`flash_attn_varlen`] with ALiBi and a sliding window.
///
/// * `q` - queries of all sequences, `[total_q, heads, head_dim]`.
/// * `k`, `v` - keys and values of all sequences, `[total_k, kv_heads, head_dim]`.
/// * `alibi_slopes` - f32 `[heads]`: scores get `-slope · distance` added.
/// * `seqlens_q`, `seqlens_k` - first row of each sequence and end of the last, u32 `[batch + 1]`, from 0 on.
/// * `max_seqlen_q`, `max_seqlen_k` - rows of the longest sequence, or a bound of them.
/// * `softmax_scale` - factor on the scores.
/// * `window_size_left`, `window_size_right` - keys before and after a query's position that it sees; `None`
///   for all, `Some(0)` on the right for a causal mask.
///
/// Returns `[total_q, heads, head_dim]`, contiguous, in the type of `q`.
///
/// # Errors
/// As [`flash_attn`](crate::flash_attn), and when the offsets do not fit the tensors.
#[expect(clippy::too_many_arguments, reason = "the arguments are candle-flash-attn's")]
pub fn flash_attn_varlen_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    flash_attn_varlen_alibi_windowed_softcap(
        q,
        k,
        v,
        Some(alibi_slopes),
        seqlens_q,
        seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        softmax_scale,
        window_size_left,
        window_size_right,
        0.0,
    )
}

/// [`flash_attn_varlen`] with ALiBi, a sliding window and a softcap.
///
/// * `q` - queries of all sequences, `[total_q, heads, head_dim]`.
/// * `k`, `v` - keys and values of all sequences, `[total_k, kv_heads, head_dim]`.
/// * `alibi_slopes` - f32 `[heads]`, or `None`: scores get `-slope · distance` added.
/// * `seqlens_q`, `seqlens_k` - first row of each sequence and end of the last, u32 `[batch + 1]`, from 0 on.
/// * `max_seqlen_q`, `max_seqlen_k` - rows of the longest sequence, or a bound of them.
/// * `softmax_scale` - factor on the scores.
/// * `window_size_left`, `window_size_right` - keys before and after a query's position that it sees; `None`
///   for all, `Some(0)` on the right for a causal mask.
/// * `softcap` - bends scores s to softcap · tanh(s / softcap); 0 is off.
///
/// Returns `[total_q, heads, head_dim]`, contiguous, in the type of `q`.
///
/// # Errors
/// As [`flash_attn`](crate::flash_attn), and when the offsets do not fit the tensors.
#[expect(clippy::too_many_arguments, reason = "the arguments are candle-flash-attn's")]
pub fn flash_attn_varlen_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    max_seqlen_q: usize,
    max_seqlen_k: usize,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let attention = FlashAttnVarLen {
        softmax_scale,
        max_seqlen_q,
        max_seqlen_k,
        seqlens_q: seqlens_q.clone(),
        seqlens_k: seqlens_k.clone(),
        block_table: None,
        mm_prefix_ranges: None,
        page_block_size: None,
        alibi_slopes: alibi_slopes.cloned(),
        window_size_left,
        window_size_right,
        softcap: Some(softcap),
    };
    op::apply(q, k, v, attention)
}
