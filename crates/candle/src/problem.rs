//! From candle's layouts and what a call asks for to the problems of the library.

use candle_core::{DType, Layout, Result, Shape, Tensor, bail};
use flash_attention::backward::{BackwardProblem, GradientLayouts};
use flash_attention::forward::MAX_HEAD_DIM;
use flash_attention::{Options, Problem, TensorLayout, Tensors};

use crate::FlashAttnVarLen;

/// What attention computes: what both public structs come down to.
#[derive(Clone, Copy)]
pub(crate) struct Settings<'a> {
    pub(crate) softmax_scale: f32,
    pub(crate) alibi_slopes: Option<&'a Tensor>,
    pub(crate) window: (Option<usize>, Option<usize>),
    pub(crate) softcap: f32,
    /// The sequences, where tensors are packed.
    pub(crate) varlen: Option<&'a FlashAttnVarLen>,
}

/// Layouts of Q, K and V.
#[derive(Clone, Copy)]
pub(crate) struct Layouts<'a> {
    pub(crate) q: &'a Layout,
    pub(crate) k: &'a Layout,
    pub(crate) v: &'a Layout,
}

/// An error of the library as one of candle's.
pub(crate) fn error(error: flash_attention::Error) -> candle_core::Error {
    candle_core::Error::Msg(format!("flash-attn: {error}")).bt()
}

impl Settings<'_> {
    /// Q, K, V as they lie, and O contiguous.
    pub(crate) fn tensors(&self, layouts: Layouts<'_>) -> Result<Tensors> {
        let of = if self.varlen.is_some() { packed } else { dense };
        let (q, k, v) = (of("q", layouts.q)?, of("k", layouts.k)?, of("v", layouts.v)?);
        check_head_dim("q", q.head_dim)?;
        check_head_dim("v", v.head_dim)?;
        Ok(Tensors { q, k, v, o: TensorLayout::bshd(q.batch, q.seqlen, q.heads, v.head_dim) })
    }

    /// What is asked beside the shapes, without ALiBi, of sequences of so many keys.
    pub(crate) fn options(&self, seqlen_k: usize) -> Options {
        let longest = self.varlen.map_or(seqlen_k, |varlen| varlen.max_seqlen_k);
        let (left, right) = self.window;
        let within = |side: Option<usize>| side.filter(|&keys| keys <= longest);
        Options {
            softmax_scale: Some(self.softmax_scale),
            window: (within(left), within(right)),
            softcap: self.softcap,
            ..Options::default()
        }
    }

    /// ALiBi's slopes, where there are some: f32 `[H]`.
    pub(crate) fn alibi_slopes(&self, heads: usize) -> Result<Option<&Tensor>> {
        let Some(slopes) = self.alibi_slopes else { return Ok(None) };
        if slopes.dtype() != DType::F32 {
            bail!("flash-attn: alibi_slopes is {:?}; F32 is needed", slopes.dtype());
        }
        if slopes.dims() != [heads] {
            bail!(
                "flash-attn: alibi_slopes has shape {:?}; [{heads}], one per head, is needed",
                slopes.dims()
            );
        }
        Ok(Some(slopes))
    }
}

impl FlashAttnVarLen {
    /// The number of sequences, from the shapes of the offsets.
    pub(crate) fn batch(&self) -> Result<usize> {
        for (name, seqlens) in [("seqlens_q", &self.seqlens_q), ("seqlens_k", &self.seqlens_k)] {
            if seqlens.dtype() != DType::U32 {
                bail!("flash-attn: {name} is {:?}; U32 is needed", seqlens.dtype());
            }
            if seqlens.rank() != 1 || seqlens.elem_count() < 2 {
                let shape = seqlens.dims();
                bail!("flash-attn: {name} has shape {shape:?}; [batch + 1], at least [2], is needed");
            }
        }
        let [q, k] = [&self.seqlens_q, &self.seqlens_k].map(Tensor::elem_count);
        if q != k {
            bail!("flash-attn: seqlens_q has {q} elements, but seqlens_k has {k}");
        }
        Ok(q - 1)
    }
}

/// The shape of O: that of Q, with rows as long as those of V.
pub(crate) fn output_shape(layouts: Layouts<'_>) -> Shape {
    let mut dims = layouts.q.dims().to_vec();
    if let (Some(last), Some(&head_dim)) = (dims.last_mut(), layouts.v.dims().last()) {
        *last = head_dim;
    }
    Shape::from(dims)
}

/// The gradients of `forward`, contiguous, for a dO that lies as `dout` says.
pub(crate) fn backward(forward: Problem, dout: &Layout) -> Result<BackwardProblem> {
    let of = if forward.is_packed() { packed } else { dense };
    let Tensors { q, k, v, .. } = *forward.tensors();
    let [dq, dk, dv] = [q, k, v].map(contiguous);
    BackwardProblem::new(forward, GradientLayouts { dout: of("dO", dout)?, dq, dk, dv }).map_err(error)
}

fn contiguous(of: TensorLayout) -> TensorLayout {
    TensorLayout::bshd(of.batch, of.seqlen, of.heads, of.head_dim)
}

/// A [B, S, H, D] tensor.
pub(crate) fn dense(name: &'static str, layout: &Layout) -> Result<TensorLayout> {
    let (&[b, s, h, d], &[batch, seq, head, dim]) = (layout.dims(), layout.stride()) else {
        let shape = layout.dims();
        bail!(
            "flash-attn: {name} has shape {shape:?}; four axes, [batch, seqlen, heads, head_dim], are needed"
        );
    };
    Ok(TensorLayout::strided([b, s, h, d], [batch, seq, head, dim]))
}

/// A [total, H, D] tensor.
pub(crate) fn packed(name: &'static str, layout: &Layout) -> Result<TensorLayout> {
    let (&[s, h, d], &[seq, head, dim]) = (layout.dims(), layout.stride()) else {
        let shape = layout.dims();
        bail!("flash-attn: {name} has shape {shape:?}; three axes, [total, heads, head_dim], are needed");
    };
    Ok(TensorLayout::strided([1, s, h, d], [s.saturating_mul(seq), seq, head, dim]))
}

pub(crate) fn check_head_dim(name: &'static str, value: usize) -> Result<()> {
    if (1..=MAX_HEAD_DIM).contains(&value) {
        return Ok(());
    }
    bail!(
        "flash-attn: head_dim of {name} is {value}; any from 1 to {MAX_HEAD_DIM} is supported \
         (candle-flash-attn has multiples of 8 up to 512)"
    )
}
