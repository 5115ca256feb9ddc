//! The operation as candle calls it: which backend and which type, and what stays for the backward pass.

use std::sync::OnceLock;

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp3, DType, Device, Layout, Result, Shape, Tensor, WithDType, bail};
use flash_attention::Element;
use half::{bf16, f16};

use crate::problem::{Layouts, Settings};
use crate::{FlashAttn, FlashAttnVarLen, cpu};

/// A type of tensors here and in the library.
pub(crate) trait Scalar: WithDType + Element<Output = Self> {}

impl Scalar for f16 {}
impl Scalar for bf16 {}
impl Scalar for f32 {}

/// A call's settings, and the log-sum-exp that its backward pass reads.
pub(crate) trait Attention {
    /// Whether [`Self::keep`] keeps anything.
    const KEEPS: bool = false;

    fn settings(&self) -> Settings<'_>;

    /// Keeps the log-sum-exp of the forward pass.
    fn keep(&self, _lse: Tensor) {}

    /// What was kept.
    fn lse(&self) -> Option<&Tensor> {
        None
    }
}

/// Attention of one call, with its log-sum-exp.
pub(crate) struct Kept<A> {
    attention: A,
    lse: OnceLock<Tensor>,
}

impl<A: Attention> Attention for Kept<A> {
    const KEEPS: bool = true;

    fn settings(&self) -> Settings<'_> {
        self.attention.settings()
    }

    fn keep(&self, lse: Tensor) {
        // The operation is of one call, so that nothing was kept before.
        let _ = self.lse.set(lse);
    }

    fn lse(&self) -> Option<&Tensor> {
        self.lse.get()
    }
}

/// Attention of Q, K and V; what a gradient needs is kept where one can be asked for.
pub(crate) fn apply<A>(q: &Tensor, k: &Tensor, v: &Tensor, attention: A) -> Result<Tensor>
where
    A: Attention + CustomOp3 + Send + Sync + 'static,
    Kept<A>: CustomOp3,
{
    if [q, k, v].iter().any(|tensor| tensor.track_op()) {
        q.apply_op3(k, v, Kept { attention, lse: OnceLock::new() })
    } else {
        q.apply_op3_no_bwd(k, v, &attention)
    }
}

/// Evaluates `$call` with `$type` as the type of elements that `$dtype` names.
macro_rules! by_dtype {
    ($dtype:expr, $type:ident => $call:expr) => {
        match $dtype {
            candle_core::DType::F16 => {
                type $type = half::f16;
                $call
            }
            candle_core::DType::BF16 => {
                type $type = half::bf16;
                $call
            }
            candle_core::DType::F32 => {
                type $type = f32;
                $call
            }
            dtype => candle_core::bail!("flash-attn: q is {dtype:?}; F16, BF16 and F32 are supported"),
        }
    };
}

pub(crate) use by_dtype;

/// [`CustomOp3`] of a type that is [`Attention`].
macro_rules! custom_op {
    ($attention:ty) => {
        impl CustomOp3 for $attention {
            fn name(&self) -> &'static str {
                "flash-attn"
            }

            fn cpu_fwd(
                &self,
                q: &CpuStorage,
                q_layout: &Layout,
                k: &CpuStorage,
                k_layout: &Layout,
                v: &CpuStorage,
                v_layout: &Layout,
            ) -> Result<(CpuStorage, Shape)> {
                check_dtypes([q.dtype(), k.dtype(), v.dtype()])?;
                let layouts = Layouts { q: q_layout, k: k_layout, v: v_layout };
                by_dtype!(q.dtype(), T => cpu::forward::<T, _>(self, [q, k, v], layouts))
            }

            #[cfg(feature = "cuda")]
            fn cuda_fwd(
                &self,
                q: &CudaStorage,
                q_layout: &Layout,
                k: &CudaStorage,
                k_layout: &Layout,
                v: &CudaStorage,
                v_layout: &Layout,
            ) -> Result<(CudaStorage, Shape)> {
                check_dtypes([q.dtype(), k.dtype(), v.dtype()])?;
                let layouts = Layouts { q: q_layout, k: k_layout, v: v_layout };
                by_dtype!(q.dtype(), T => crate::cuda::forward::<T, _>(self, [q, k, v], layouts))
            }

            fn bwd(
                &self,
                q: &Tensor,
                k: &Tensor,
                v: &Tensor,
                o: &Tensor,
                dout: &Tensor,
            ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
                let [dq, dk, dv] = backward(self, Saved { q, k, v, o }, dout)?;
                Ok((Some(dq), Some(dk), Some(dv)))
            }
        }
    };
}

custom_op!(FlashAttn);
custom_op!(FlashAttnVarLen);
custom_op!(Kept<FlashAttn>);
custom_op!(Kept<FlashAttnVarLen>);

/// Inputs and output of the forward pass.
#[derive(Clone, Copy)]
pub(crate) struct Saved<'a> {
    pub(crate) q: &'a Tensor,
    pub(crate) k: &'a Tensor,
    pub(crate) v: &'a Tensor,
    pub(crate) o: &'a Tensor,
}

impl Saved<'_> {
    pub(crate) fn layouts(&self) -> Layouts<'_> {
        Layouts { q: self.q.layout(), k: self.k.layout(), v: self.v.layout() }
    }
}

fn backward<A: Attention>(attention: &A, saved: Saved<'_>, dout: &Tensor) -> Result<[Tensor; 3]> {
    if attention.settings().varlen.is_some_and(|varlen| varlen.block_table.is_some()) {
        bail!("flash-attn: block_table is given, and pages of K and V have no gradients");
    }
    // A number that is repeated has rows of stride 0.
    let rows_lie_together = dout.stride().last() == Some(&1);
    let dout = if rows_lie_together { dout.clone() } else { dout.contiguous()? };
    match saved.q.device() {
        Device::Cpu => by_dtype!(saved.q.dtype(), T => cpu::backward::<T, _>(attention, saved, &dout)),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => {
            by_dtype!(saved.q.dtype(), T => crate::cuda::backward::<T, _>(attention, saved, &dout))
        }
        device => bail!("flash-attn: q is on {:?}; the CPU and CUDA are supported", device.location()),
    }
}

fn check_dtypes([q, k, v]: [DType; 3]) -> Result<()> {
    for (name, dtype) in [("k", k), ("v", v)] {
        if dtype != q {
            bail!("flash-attn: {name} is {dtype:?}, but q is {q:?}");
        }
    }
    Ok(())
}
