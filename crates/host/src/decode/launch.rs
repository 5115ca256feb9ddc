//! From a plan and addresses to the decode kernels' parameters.

use fa_kernels::params::DecodeParams;

use super::DecodeProblem;
use crate::Result;
use crate::forward::PerHead;
use crate::launch::strides;

/// Addresses of a decode problem's tensors on the device that runs it (host addresses in the simulator).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeAddresses {
    /// Queries.
    pub q: u64,
    /// Keys: the first element of sequence 0 or of page 0.
    pub k: u64,
    /// Values, as keys.
    pub v: u64,
    /// Output.
    pub o: u64,
    /// Log-sum-exp, fp32 [B, H, Sq] contiguous; `None` where it is not wanted.
    pub lse: Option<u64>,
    /// Keys of each sequence, int32 `[B]`; `None` where all have Sk.
    pub seqused_k: Option<u64>,
    /// Pages of each sequence, int32 [B, max_pages]; `None` where K and V are contiguous.
    pub page_table: Option<u64>,
    /// [`Plan::workspace_bytes`](crate::Plan::workspace_bytes) of memory, aligned to 16 bytes; unused where
    /// that is 0.
    pub workspace: u64,
    /// What each head has.
    pub per_head: PerHead<u64>,
}

/// The parameters that every entry takes that splits the keys of `problem` into so many parts.
///
/// # Errors
/// When an address that the problem needs was left out.
pub(crate) fn params(
    problem: &DecodeProblem,
    num_splits: usize,
    addresses: &DecodeAddresses,
) -> Result<DecodeParams> {
    let dense = problem.dense();
    let tensors = dense.tensors();
    let rows = dense.lse_len() as u64;
    // `DecodeProblem::new` bounds sequences and head_dim, the planner the splits, and the grid check heads
    // and rows, so these casts keep their values.
    Ok(DecodeParams {
        q: addresses.q,
        k: addresses.k,
        v: addresses.v,
        o: addresses.o,
        lse: addresses.lse.unwrap_or(0),
        seqused_k: addresses.seqused_k.unwrap_or(0),
        page_table: addresses.page_table.unwrap_or(0),
        partial_o: addresses.workspace,
        partial_lse: addresses.workspace + 4 * num_splits as u64 * rows * dense.head_dim() as u64,
        q_strides: strides(&tensors.q),
        k_strides: strides(problem.k()),
        v_strides: strides(problem.v()),
        o_strides: strides(&tensors.o),
        rows,
        page_size: problem.k().seqlen as u32,
        max_pages: problem.max_pages().unwrap_or(0) as u32,
        seqlen_q: dense.seqlen_q() as u32,
        seqlen_k: dense.seqlen_k() as u32,
        heads: dense.heads() as u32,
        group: dense.group() as u32,
        head_dim: dense.head_dim() as u32,
        causal: dense.causal().into(),
        num_splits: num_splits as u32,
        softmax_scale: dense.softmax_scale(),
        per_head: dense.scores().params(&addresses.per_head)?,
    })
}
