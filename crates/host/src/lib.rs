//! FlashAttention for Rust: exact attention in linear memory, on an NVIDIA GPU, on the CPU, or, with the
//! feature `simulator`, in a simulator of the GPU.
//!
//! A call goes one way through: a [`Problem`] is validated once, [`plan`] chooses kernel and tile and
//! says why, and a [`Backend`] runs it.
//!
//! ```
//! use flash_attention::{Backend, DType, Options, Problem, Request, TensorLayout, Tensors};
//!
//! let layout = TensorLayout::bshd(1, 100, 2, 64); // batch, seqlen, heads, head_dim
//! let tensors = Tensors { q: layout, k: layout, v: layout, o: layout };
//! let options = Options { causal: true, ..Options::default() };
//! let problem = Problem::new(tensors, DType::F32, options)?;
//!
//! let backend = Backend::open(None)?; // a GPU if there is one, else the CPU
//! let plan = backend.plan(&problem, &Request::default())?;
//! let q = vec![0.5_f32; layout.span()];
//! let mut o = vec![0.0; layout.span()];
//! backend.forward(&problem, &plan, (&q, &q, &q), &mut o, None)?;
//! assert!((o[0] - 0.5).abs() < 1e-6);
//! # Ok::<(), flash_attention::Error>(())
//! ```
//!
//! Tensors that already lie on a GPU go through [`cuda::Cuda::forward`]: raw device pointers and a
//! stream in, launches enqueued, nothing allocated. Kernels alone, for any driver API, come from [`shipped`].
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod accuracy;
mod backend;
mod backward;
pub mod cpu;
pub mod cuda;
mod decode;
mod device;
mod dropout;
mod element;
mod error;
pub mod gemm;
mod launch;
mod layout;
mod plan;
mod problem;
pub mod reference;
pub mod shipped;
mod sim;
mod tensor_map;
mod varlen;
mod visibility;

pub use backend::{Backend, Prepared};
pub use backward::{
    BackwardAddresses, BackwardInputs, BackwardKernel, BackwardOutputs, BackwardPlan, BackwardProblem,
    BackwardRequest, ExpectedGradients, GradientInputs, GradientLayouts, GradientReport, Gradients, KvHead,
    PreparedBackward, plan_backward,
};
pub use decode::{
    DecodeAddresses, DecodeInputs, DecodeOptions, DecodePlan, DecodeProblem, DecodeRequest,
    MAX_DECODE_SEQLEN_Q, plan_decode,
};
pub use device::{BackendKind, Device};
pub use dropout::Dropout;
pub use element::{DType, Element};
pub use error::{Error, Result};
pub use launch::Addresses;
pub use layout::TensorLayout;
pub use plan::{Kernel, Plan, Request, Step, plan, plan_entry};
pub use problem::{Descale, MAX_HEAD_DIM, MAX_SEQLEN, MAX_SOFTCAP, Options, Problem, Tensors};
pub use sim::{Sim, Traffic};
