//! From a plan and addresses to the kernels' parameters.

use fa_kernels::mask::UNLIMITED;
use fa_kernels::params::{AttentionParams, Strides};

use crate::{MAX_SEQLEN, Problem, TensorLayout};

/// Addresses of a problem's tensors on the device that runs it (host addresses in the simulator).
///
/// Each points at the first element of its view; [`Problem::tensors`] says how far the views reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Queries.
    pub q: u64,
    /// Keys.
    pub k: u64,
    /// Values.
    pub v: u64,
    /// Output.
    pub o: u64,
    /// Log-sum-exp, fp32 [B, H, Sq] contiguous; `None` where it is not wanted.
    pub lse: Option<u64>,
    /// [`Plan::workspace_bytes`](crate::Plan::workspace_bytes) of memory, aligned to 16 bytes; unused where that is 0.
    pub workspace: u64,
}

/// The parameters that every entry of a plan for `problem` takes.
pub(crate) fn params(problem: &Problem, addresses: &Addresses) -> AttentionParams {
    let tensors = problem.tensors();
    // `Problem::new` bounds sequences by MAX_SEQLEN and head_dim by MAX_HEAD_DIM, and the grid check
    // bounds heads, so these casts keep their values.
    AttentionParams {
        q: addresses.q,
        k: addresses.k,
        v: addresses.v,
        o: addresses.o,
        lse: addresses.lse.unwrap_or(0),
        scores: addresses.workspace,
        q_strides: strides(&tensors.q),
        k_strides: strides(&tensors.k),
        v_strides: strides(&tensors.v),
        o_strides: strides(&tensors.o),
        seqlen_q: problem.seqlen_q() as u32,
        seqlen_k: problem.seqlen_k() as u32,
        heads: problem.heads() as u32,
        group: problem.group() as u32,
        head_dim: problem.head_dim() as u32,
        window_left: side(problem.window().0),
        window_span: side(problem.window().0) + side(problem.window().1),
        softmax_scale: problem.softmax_scale(),
        softcap: problem.softcap(),
        rows: problem.lse_len() as u64,
    }
}

/// A side of the window; one wider than any sequence hides nothing.
fn side(size: Option<usize>) -> u32 {
    size.map_or(UNLIMITED, |size| size.min(MAX_SEQLEN) as u32)
}

fn strides(layout: &TensorLayout) -> Strides {
    Strides {
        batch: layout.stride_batch as u64,
        row: layout.stride_seq as u64,
        head: layout.stride_head as u64,
    }
}
