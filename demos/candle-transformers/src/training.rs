//! One training step of Würstchen's attention block.
//!
//! Norms, rotary embeddings and `softmax_last_dim` of candle-nn have no gradients, so that language models of
//! candle-transformers do not train. This block has none of them once its attention is flash attention.

use candle_core::backprop::GradStore;
use candle_core::{D, DType, Device, Result, Tensor, bail};
use candle_nn::{Linear, Module, Optimizer, SGD, VarBuilder, VarMap, linear, ops};
use candle_transformers::models::wuerstchen::attention_processor::Attention;

use crate::accuracy::Compared;
use crate::weights::{self, uniform};

const CHANNELS: usize = 64;
const HEADS: usize = 4;
const HEAD_DIM: usize = 32;

/// Compares the gradients of all variables with those of plain attention, and takes a step along them.
///
/// # Errors
/// When a gradient is missing or off by more than rounding, when the loss does not fall, or a device fails.
pub(crate) fn run(device: &Device) -> Result<()> {
    let variables = VarMap::new();
    let builder = VarBuilder::from_varmap(&variables, DType::F32, device);
    let block = |flash: bool| Attention::new(CHANNELS, HEADS, HEAD_DIM, flash, builder.clone());
    let (flash, fused) = (block(true)?, block(false)?);
    weights::fill(&variables)?;
    let plain = Plain::new(&builder)?;
    let data = Data::new(device)?;

    let loss = data.loss(&flash.forward(&data.image, &data.context)?)?;
    let gradients = loss.backward()?;
    let of_plain = |dtype: DType| data.loss(&plain.forward(&data, dtype)?)?.backward();
    // The block casts Q, K and V to F16 for flash attention.
    let (rounded, exact) = (of_plain(DType::F16)?, of_plain(DType::F32)?);
    let of_fused = data.loss(&fused.forward(&data.image, &data.context)?)?.backward()?;
    for (name, variable) in weights::named(&variables)? {
        let what = format!("gradient of {name}");
        let of = |store: &'static str, gradients: &GradStore| match gradients.get(&variable) {
            Some(gradient) => Ok(gradient.clone()),
            None => bail!("{what}: {store} has none"),
        };
        let flash = of("flash attention", &gradients)?;
        let (plain, exact) = (of("plain attention", &rounded)?, of("plain attention", &exact)?);
        Compared { flash: &flash, plain: &plain, exact: &exact }.check(&what, DType::F16)?;
        if of_fused.get(&variable).is_none() {
            println!("{what}: none with use_flash_attn: false");
        }
    }

    SGD::new(variables.all_vars(), 0.1)?.step(&gradients)?;
    let before = loss.to_scalar::<f32>()?;
    let after = data.loss(&flash.forward(&data.image, &data.context)?)?.to_scalar::<f32>()?;
    println!("loss {before:.4} before the step, {after:.4} after it");
    if after < before {
        return Ok(());
    }
    bail!("the loss is {after} after the step; below {before} is needed")
}

/// Inputs and the output that is wanted.
///
/// One image: of several, candle 0.11 multiplies the transposed pixels by a weight wrongly on the CPU.
struct Data {
    /// `[batch, channels, height, width]`
    image: Tensor,
    /// `[batch, seqlen_k, channels]`
    context: Tensor,
    target: Tensor,
}

impl Data {
    fn new(device: &Device) -> Result<Self> {
        let on = |seed: u64, shape: &[usize]| uniform(seed, shape)?.to_device(device);
        Ok(Self {
            image: on(100, &[1, CHANNELS, 8, 8])?,
            context: on(101, &[1, 20, CHANNELS])?,
            target: on(102, &[1, CHANNELS, 8, 8])?,
        })
    }

    fn loss(&self, output: &Tensor) -> Result<Tensor> {
        (output - &self.target)?.sqr()?.sum_all()? / 1000.0
    }
}

/// The same block of operations that have gradients.
struct Plain {
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
}

impl Plain {
    fn new(builder: &VarBuilder<'_>) -> Result<Self> {
        let inner = HEADS * HEAD_DIM;
        Ok(Self {
            q: linear(CHANNELS, inner, builder.pp("to_q"))?,
            k: linear(CHANNELS, inner, builder.pp("to_k"))?,
            v: linear(CHANNELS, inner, builder.pp("to_v"))?,
            out: linear(inner, CHANNELS, builder.pp("to_out.0"))?,
        })
    }

    /// The block, with attention in `dtype`.
    fn forward(&self, data: &Data, dtype: DType) -> Result<Tensor> {
        let pixels = data.image.flatten_from(2)?.t()?.contiguous()?;
        let heads = |rows: Tensor| {
            let (batch, seqlen, _) = rows.dims3()?;
            rows.reshape((batch, seqlen, HEADS, HEAD_DIM))?.transpose(1, 2)?.contiguous()?.to_dtype(dtype)
        };
        let q = heads(self.q.forward(&pixels)?)?;
        let (k, v) = (heads(self.k.forward(&data.context)?)?, heads(self.v.forward(&data.context)?)?);
        let scores = (q.matmul(&k.t()?)? / (HEAD_DIM as f64).sqrt())?;
        let o = ops::softmax(&scores, D::Minus1)?.matmul(&v)?.to_dtype(DType::F32)?;
        let rows = o.transpose(1, 2)?.flatten_from(2)?;
        self.out.forward(&rows)?.t()?.reshape(data.image.shape())
    }
}
