//! Attention of sequences of one length.

use candle_core::{Result, Tensor};

use crate::op::{self, Attention};
use crate::problem::Settings;

/// Attention as an operation for [`Tensor::apply_op3`], with the fields of candle-flash-attn's.
///
/// The functions keep the log-sum-exp of the forward pass for the gradient; this computes it a second time.
#[derive(Clone, Debug)]
pub struct FlashAttn {
    /// Factor on the scores.
    pub softmax_scale: f32,
    /// Slopes of ALiBi, f32 `[heads]`.
    pub alibi_slopes: Option<Tensor>,
    /// Keys before a query's position that it sees; `None` for all.
    pub window_size_left: Option<usize>,
    /// Keys after a query's position that it sees; `None` for all, `Some(0)` for a causal mask.
    pub window_size_right: Option<usize>,
    /// Bends scores s to softcap · tanh(s / softcap); `None` or 0 for off.
    pub softcap: Option<f32>,
}

impl Attention for FlashAttn {
    fn settings(&self) -> Settings<'_> {
        Settings {
            softmax_scale: self.softmax_scale,
            alibi_slopes: self.alibi_slopes.as_ref(),
            window: (self.window_size_left, self.window_size_right),
            softcap: self.softcap.unwrap_or(0.0),
            varlen: None,
        }
    }
}

/// softmax(q · kᵀ · softmax_scale) · v, with a causal mask or none.
///
/// * `q` - queries, `[batch, seqlen_q, heads, head_dim]`.
/// * `k`, `v` - keys and values, `[batch, seqlen_k, kv_heads, head_dim]`.
/// * `softmax_scale` - factor on the scores.
/// * `causal` - whether a query sees no key after its own position, aligned bottom-right.
///
/// Returns `[batch, seqlen_q, heads, head_dim]`, contiguous, in the type of `q`.
///
/// # Errors
/// When shapes, types or devices of the tensors do not fit one another, rows are not contiguous, `head_dim`
/// is not 1 to 256, a number is out of range, or the device fails. The message names argument, value and
/// limit.
pub fn flash_attn(q: &Tensor, k: &Tensor, v: &Tensor, softmax_scale: f32, causal: bool) -> Result<Tensor> {
    flash_attn_windowed(q, k, v, softmax_scale, None, causal.then_some(0))
}

/// [`flash_attn`] with a sliding window.
///
/// * `q` - queries, `[batch, seqlen_q, heads, head_dim]`.
/// * `k`, `v` - keys and values, `[batch, seqlen_k, kv_heads, head_dim]`.
/// * `softmax_scale` - factor on the scores.
/// * `window_size_left`, `window_size_right` - keys before and after a query's position that it sees; `None`
///   for all, `Some(0)` on the right for a causal mask.
///
/// Returns `[batch, seqlen_q, heads, head_dim]`, contiguous, in the type of `q`.
///
/// # Errors
/// As [`flash_attn`].
pub fn flash_attn_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    flash_attn_alibi_windowed_softcap(q, k, v, None, softmax_scale, window_size_left, window_size_right, 0.0)
}

/// [`flash_attn`] with ALiBi.
///
/// * `q` - queries, `[batch, seqlen_q, heads, head_dim]`.
/// * `k`, `v` - keys and values, `[batch, seqlen_k, kv_heads, head_dim]`.
/// * `alibi_slopes` - f32 `[heads]`: scores get `-slope · distance` added.
/// * `softmax_scale` - factor on the scores.
/// * `causal` - whether a query sees no key after its own position, aligned bottom-right.
///
/// Returns `[batch, seqlen_q, heads, head_dim]`, contiguous, in the type of `q`.
///
/// # Errors
/// As [`flash_attn`].
pub fn flash_attn_alibi(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    causal: bool,
) -> Result<Tensor> {
    flash_attn_alibi_windowed(q, k, v, alibi_slopes, softmax_scale, None, causal.then_some(0))
}

/// [`flash_attn`] with ALiBi and a sliding window.
///
/// * `q` - queries, `[batch, seqlen_q, heads, head_dim]`.
/// * `k`, `v` - keys and values, `[batch, seqlen_k, kv_heads, head_dim]`.
/// * `alibi_slopes` - f32 `[heads]`: scores get `-slope · distance` added.
/// * `softmax_scale` - factor on the scores.
/// * `window_size_left`, `window_size_right` - keys before and after a query's position that it sees; `None`
///   for all, `Some(0)` on the right for a causal mask.
///
/// Returns `[batch, seqlen_q, heads, head_dim]`, contiguous, in the type of `q`.
///
/// # Errors
/// As [`flash_attn`].
pub fn flash_attn_alibi_windowed(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: &Tensor,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> Result<Tensor> {
    let (slopes, left, right) = (Some(alibi_slopes), window_size_left, window_size_right);
    flash_attn_alibi_windowed_softcap(q, k, v, slopes, softmax_scale, left, right, 0.0)
}

/// [`flash_attn`] with ALiBi, a sliding window and a softcap.
///
/// * `q` - queries, `[batch, seqlen_q, heads, head_dim]`.
/// * `k`, `v` - keys and values, `[batch, seqlen_k, kv_heads, head_dim]`.
/// * `alibi_slopes` - f32 `[heads]`, or `None`: scores get `-slope · distance` added.
/// * `softmax_scale` - factor on the scores.
/// * `window_size_left`, `window_size_right` - keys before and after a query's position that it sees; `None`
///   for all, `Some(0)` on the right for a causal mask.
/// * `softcap` - bends scores s to softcap · tanh(s / softcap); 0 is off.
///
/// Returns `[batch, seqlen_q, heads, head_dim]`, contiguous, in the type of `q`.
///
/// # Errors
/// As [`flash_attn`].
#[expect(clippy::too_many_arguments, reason = "the arguments are candle-flash-attn's")]
pub fn flash_attn_alibi_windowed_softcap(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    softmax_scale: f32,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
    softcap: f32,
) -> Result<Tensor> {
    let attention = FlashAttn {
        softmax_scale,
        alibi_slopes: alibi_slopes.cloned(),
        window_size_left,
        window_size_right,
        softcap: Some(softcap),
    };
    op::apply(q, k, v, attention)
}
