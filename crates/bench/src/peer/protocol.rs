//! What goes over the pipe: one JSON object a line in each direction, an answer to every request.

use flash_attention::gemm::GemmProblem;
use flash_attention::{DType, Problem};
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
        implementation: &'a str,
        /// What each call does with the tensors: `strided`, `copies` or `heads_as_rows`.
        form: &'a str,
        /// Of Q, K and V: `none`, `alone` from an O that is there, or `after` it.
        gradients: &'a str,
    },
    /// The same for C = A·B.
    Product { number: usize, m: usize, n: usize, k: usize, dtype: &'a str, orders: [&'a str; 3] },
    /// Make padded K and V of sequences with room for `keys` keys, and compute a step of one sequence.
    Serve {
        number: usize,
        layers: usize,
        sequences: usize,
        /// Query rows of a sequence at most.
        rows: usize,
        keys: usize,
        heads: usize,
        kv_heads: usize,
        head_dim: usize,
        dtype: &'a str,
        softmax_scale: f32,
        implementation: &'a str,
    },
    /// Time a step of these: `decoding` has the keys of each sequence with one query row, `filling` the
    /// query rows and keys of each other one.
    Step { number: usize, decoding: &'a [usize], filling: &'a [[usize; 2]], evictions: usize },
    /// Time runs, on a GPU with evictions of the L2 cache before each, and with a wait for each or for all.
    Time { number: usize, runs: usize, evictions: usize, waits: bool },
    /// Time a run, with evictions before it, and the host's part of it.
    Probe { number: usize, evictions: usize },
    /// Time one of the runs in a replayed CUDA graph.
    Replay { number: usize, runs: usize },
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
    Probe {
        device: f64,
        host: f64,
    },
    Bytes {
        bytes: u64,
    },
    /// This call cannot be made.
    Refused {
        refused: String,
    },
    /// No call of its kind can be made here.
    Missing {
        missing: String,
    },
}

/// Whose attention a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Implementation {
    /// `scaled_dot_product_attention` with FlashAttention-2 alone.
    Flash2,
    /// With cuDNN alone.
    Cudnn,
    /// With the kernels of memory-efficient attention alone.
    Efficient,
    /// Unfused.
    Math,
    /// `scaled_dot_product_attention` as it comes, which chooses by itself.
    Default,
    /// `flash_attn.cute` of the package flash-attn-4.
    Flash4,
    /// The same with gradients that have the same bits in each run.
    Flash4Deterministic,
}

impl Implementation {
    pub(crate) const ALL: [Self; 7] = [
        Self::Flash2,
        Self::Cudnn,
        Self::Efficient,
        Self::Math,
        Self::Default,
        Self::Flash4,
        Self::Flash4Deterministic,
    ];

    /// As in the rows, behind `torch `: every one takes tensors of PyTorch's.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Flash2 => "FLASH_ATTENTION",
            Self::Cudnn => "CUDNN_ATTENTION",
            Self::Efficient => "EFFICIENT_ATTENTION",
            Self::Math => "MATH",
            Self::Default => "default",
            Self::Flash4 => "FlashAttention-4",
            Self::Flash4Deterministic => "FlashAttention-4 deterministic",
        }
    }

    /// What must be there for it: where that lacks, so do all that need it.
    const fn needs(self) -> &'static str {
        match self {
            Self::Flash4 | Self::Flash4Deterministic => Self::Flash4.name(),
            other => other.name(),
        }
    }

    /// Whether this pass and form are worth a series beside the others: order matters to gradients alone, and
    /// other implementations than these two find by themselves which heads share K and V.
    pub(crate) fn takes(self, pass: Pass, form: Form) -> bool {
        (self != Self::Flash4Deterministic || pass != Pass::Forward)
            && (form != Form::HeadsAsRows || matches!(self, Self::Flash2 | Self::Cudnn))
    }
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

/// What a call does with the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// It takes them through their strides.
    Strided,
    /// It copies them to contiguous [B, H, S, D] tensors first, and O back last.
    Copies,
    /// It takes the query heads that share a key/value head as rows of one, so that K and V are read once.
    HeadsAsRows,
}

impl Form {
    /// As the peer is told.
    const fn name(self) -> &'static str {
        match self {
            Self::Strided => "strided",
            Self::Copies => "copies",
            Self::HeadsAsRows => "heads_as_rows",
        }
    }

    /// What a series has behind its name.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Strided => "",
            Self::Copies => " with copies",
            Self::HeadsAsRows => " with heads as rows",
        }
    }
}

/// A call of attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionCall<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) layout: Layout,
    pub(crate) implementation: Implementation,
    pub(crate) form: Form,
    pub(crate) pass: Pass,
}

/// The attention of a service's steps, over K and V that are padded to the longest sequence of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServeCall {
    pub(crate) layers: usize,
    /// Sequences at a time at most.
    pub(crate) sequences: usize,
    /// Query rows of a sequence at most.
    pub(crate) rows: usize,
    /// Keys of a sequence at most.
    pub(crate) keys: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) dtype: DType,
    pub(crate) softmax_scale: f32,
    pub(crate) implementation: Implementation,
}

/// A call to the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call<'a> {
    /// Steps of a service.
    Serve(ServeCall),
    Attention(AttentionCall<'a>),
    /// `torch.matmul`.
    Product {
        problem: &'a GemmProblem,
    },
}

impl<'a> Call<'a> {
    /// The series of its rows.
    pub(crate) fn series(&self) -> String {
        match self {
            Self::Attention(call) => format!("torch {}{}", call.implementation.name(), call.form.suffix()),
            Self::Serve(call) => format!("torch {}", call.implementation.name()),
            Self::Product { .. } => "torch matmul".to_owned(),
        }
    }

    /// What must be there for it, by a name.
    pub(crate) const fn needs(&self) -> &'static str {
        match self {
            Self::Attention(call) => call.implementation.needs(),
            Self::Serve(call) => call.implementation.needs(),
            Self::Product { .. } => "matmul",
        }
    }

    /// The request, or why PyTorch has no such call.
    pub(super) fn request(&self, number: usize) -> Result<Request<'a>, String> {
        match *self {
            Self::Attention(call) => call.request(number),
            Self::Serve(call) => Ok(call.request(number)),
            Self::Product { problem } => {
                let matrices = problem.matrices();
                let orders = [matrices.a, matrices.b, matrices.c].map(|matrix| matrix.order.name());
                let dtype = problem.dtype().name();
                Ok(Request::Product { number, m: problem.m(), n: problem.n(), k: problem.k(), dtype, orders })
            }
        }
    }
}

impl ServeCall {
    const fn request<'a>(self, number: usize) -> Request<'a> {
        let Self { layers, sequences, rows, keys, heads, kv_heads, head_dim, softmax_scale, .. } = self;
        let (dtype, implementation) = (self.dtype.name(), self.implementation.name());
        Request::Serve {
            number,
            layers,
            sequences,
            rows,
            keys,
            heads,
            kv_heads,
            head_dim,
            dtype,
            softmax_scale,
            implementation,
        }
    }
}

impl<'a> AttentionCall<'a> {
    fn request(self, number: usize) -> Result<Request<'a>, String> {
        let Self { problem, layout, implementation, form, pass } = self;
        let right = if problem.causal() { Some(0) } else { None };
        let plain = problem.window() == (None, right)
            && !problem.changes_scores()
            && problem.cu_seqlens().is_none()
            && problem.head_dim() == problem.head_dim_v();
        if !plain {
            return Err("scaled_dot_product_attention has no such mask, scores or sequences".to_owned());
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
            implementation: implementation.name(),
            form: form.name(),
            gradients: pass.gradients(),
        })
    }
}
