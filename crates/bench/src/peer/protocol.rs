//! What goes over the pipe: one JSON object a line in each direction, an answer to every request.

use flash_attention::Problem;
use flash_attention::gemm::GemmProblem;
use serde::{Deserialize, Serialize};

use crate::problem::{Layout, dropout};

/// The first line, which the peer sends without being asked.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Greeting {
    /// It is there.
    Ready { name: String, device: String },
    /// It lacks what it needs.
    Missing { missing: String },
}

/// What is asked of the peer.
#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum Request<'a> {
    /// Make inputs, and call once.
    Attention {
        number: usize,
        batch: usize,
        heads: usize,
        kv_heads: usize,
        seq: usize,
        kv_seq: usize,
        head_dim: usize,
        dtype: &'a str,
        layout: &'a str,
        causal: bool,
        softmax_scale: f32,
        dropout: f32,
        backend: &'a str,
        /// Whether each call first makes contiguous [B, H, S, D] tensors and last brings O back.
        copies: bool,
        /// Of Q, K and V: `none`, `alone` from an O that is there, or `after` it.
        gradients: &'a str,
    },
    /// The same for C = A·B.
    Product { number: usize, m: usize, n: usize, k: usize, dtype: &'a str, orders: [&'a str; 3] },
    /// Time runs.
    Time { number: usize, runs: usize },
    /// The most device memory that a run takes, the output included.
    Peak { number: usize },
    /// Let go of all inputs.
    Forget,
}

/// What the peer says to a request.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Answer {
    Ready {
        #[serde(rename = "ready")]
        _ready: bool,
    },
    Seconds {
        seconds: Vec<f64>,
    },
    Bytes {
        bytes: u64,
    },
    Refused {
        refused: String,
    },
}

/// Which part of training a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// O alone, with nothing kept for gradients.
    Forward,
    /// dQ, dK and dV, from an O that is there.
    Backward,
    /// Both, one after the other.
    Both,
}

impl Pass {
    /// What the peer is asked for beside O.
    const fn gradients(self) -> &'static str {
        match self {
            Self::Forward => "none",
            Self::Backward => "alone",
            Self::Both => "after",
        }
    }
}

/// A call to PyTorch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call<'a> {
    /// `scaled_dot_product_attention` with a backend; with `copies`, between copies to contiguous tensors and
    /// back.
    Attention { problem: &'a Problem, layout: Layout, backend: &'a str, copies: bool, pass: Pass },
    /// `torch.matmul`.
    Product { problem: &'a GemmProblem },
}

impl<'a> Call<'a> {
    /// The request, or why PyTorch has no such call.
    pub(super) fn request(&self, number: usize) -> Result<Request<'a>, String> {
        match *self {
            Call::Attention { problem, layout, backend, copies, pass } => {
                let right = if problem.causal() { Some(0) } else { None };
                let plain = problem.window() == (None, right)
                    && !problem.changes_scores()
                    && problem.cu_seqlens().is_none()
                    && problem.head_dim() == problem.head_dim_v();
                if !plain {
                    return Err(
                        "scaled_dot_product_attention has no such mask, scores or sequences".to_owned()
                    );
                }
                Ok(Request::Attention {
                    number,
                    batch: problem.batch(),
                    heads: problem.heads(),
                    kv_heads: problem.kv_heads(),
                    seq: problem.seqlen_q(),
                    kv_seq: problem.seqlen_k(),
                    head_dim: problem.head_dim(),
                    dtype: problem.dtype().name(),
                    layout: layout.name(),
                    causal: problem.causal(),
                    softmax_scale: problem.softmax_scale(),
                    dropout: dropout(problem),
                    backend,
                    copies,
                    gradients: pass.gradients(),
                })
            }
            Call::Product { problem } => {
                let matrices = problem.matrices();
                let orders = [matrices.a, matrices.b, matrices.c].map(|matrix| matrix.order.name());
                let dtype = problem.dtype().name();
                Ok(Request::Product { number, m: problem.m(), n: problem.n(), k: problem.k(), dtype, orders })
            }
        }
    }
}
