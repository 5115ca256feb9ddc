//! Which keys a query sees.

use crate::params::AttentionParams;

/// How many keys query `row` sees: always the first so many of `seqlen_k`.
///
/// The causal mask is aligned bottom-right (FlashAttention-2.1): query i sees key j if
/// j ≤ i + Sk − Sq, so rows i < Sq − Sk see none. Rows past Sq (tile padding) give at most Sk.
#[inline(always)]
pub fn visible_keys(params: &AttentionParams, row: u32) -> u32 {
    if params.causal == 0 {
        return params.seqlen_k;
    }
    (row + 1 + params.seqlen_k).saturating_sub(params.seqlen_q).min(params.seqlen_k)
}
