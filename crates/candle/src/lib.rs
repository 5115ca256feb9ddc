//! FlashAttention for candle: the functions of candle-flash-attn 0.11, with gradients, on NVIDIA GPUs and on
//! the CPU.
//!
//! ```
//! use candle_core::{Device, Tensor, Var};
//! use candle_flash_attention::flash_attn;
//!
//! let random = || Var::randn(0.0_f32, 1.0, (1, 100, 4, 64), &Device::Cpu); // batch, seqlen, heads, head_dim
//! let (q, k, v) = (random()?, random()?, random()?);
//! let o = flash_attn(&q, &k, &v, 1.0 / 8.0, true)?;
//! let gradients = o.sqr()?.sum_all()?.backward()?;
//! assert_eq!(gradients.get(&q).map(Tensor::dims), Some([1, 100, 4, 64].as_slice()));
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! Tensors are F16, BF16 or F32, with any strides whose rows are contiguous: a transposed [batch, heads,
//! seqlen, head_dim] tensor needs no copy. `kv_heads` divides `heads`, and `head_dim` is 1 to 256. Query i
//! stands at position i + seqlen_k - seqlen_q: masks are aligned bottom-right.
//!
//! The feature `cuda` is for tensors on GPUs. Lengths and slopes that lie there are not copied to the host.

#[cfg(feature = "cuda")]
mod cuda;

mod context;
mod cpu;
mod dense;
mod gathered;
mod op;
mod paged;
mod problem;
mod varlen;

pub use context::ContextParallel;
pub use dense::{
    FlashAttn, flash_attn, flash_attn_alibi, flash_attn_alibi_windowed, flash_attn_alibi_windowed_softcap,
    flash_attn_windowed,
};
pub use varlen::{
    FlashAttnVarLen, flash_attn_varlen, flash_attn_varlen_alibi, flash_attn_varlen_alibi_windowed,
    flash_attn_varlen_alibi_windowed_softcap, flash_attn_varlen_paged_windowed, flash_attn_varlen_windowed,
};

/// The code of the README, which is run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
