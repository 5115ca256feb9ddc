//! Logits of a small Llama: of a prompt, and of tokens after it with a cache of keys and values.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{VarBuilder, VarMap};
use candle_transformers::models::llama::{Cache, Config, Llama};

use crate::accuracy::Compared;
use crate::weights;

const BATCH: usize = 2;
/// Tokens of the prompt.
const PROMPT: usize = 100;
/// Tokens that follow, one at a time.
const GENERATED: usize = 3;

/// Compares the logits with and without flash attention.
///
/// # Errors
/// When they differ by more than rounding, or a device fails.
pub(crate) fn run(device: &Device) -> Result<()> {
    let weights = VarMap::new();
    Llama::load(VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu), &config(false))?;
    weights::fill(&weights)?;
    // candle has no products of BF16 on the CPU.
    let dtypes = if device.is_cuda() { &[DType::F16, DType::BF16][..] } else { &[DType::F16] };
    for &stored in dtypes {
        let run = |flash: bool, dtype: DType, device: &Device| {
            logits(&weights::builder(&weights, stored, dtype, device)?, &config(flash), device)
        };
        let exact = run(false, DType::F32, &Device::Cpu)?;
        let (flash, plain) = (run(true, stored, device)?, run(false, stored, device)?);
        Compared { flash: &flash, plain: &plain, exact: &exact }
            .check(&format!("Llama, {stored:?}"), stored)?;
    }
    Ok(())
}

/// Two layers of four heads, of which two share a key head.
const fn config(use_flash_attn: bool) -> Config {
    Config {
        hidden_size: 256,
        intermediate_size: 512,
        vocab_size: 512,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        use_flash_attn,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: None,
        max_position_embeddings: 128,
        tie_word_embeddings: false,
    }
}

/// Logits after the prompt and after each token that follows, `[1 + GENERATED, BATCH, vocab_size]`.
fn logits(builder: &VarBuilder<'_>, config: &Config, device: &Device) -> Result<Tensor> {
    let model = Llama::load(builder.clone(), config)?;
    let mut cache = Cache::new(true, builder.dtype(), config, device)?;
    let tokens: Vec<u32> =
        (0..BATCH * (PROMPT + GENERATED)).map(|index| (index * 37 % config.vocab_size) as u32).collect();
    let tokens = Tensor::from_vec(tokens, (BATCH, PROMPT + GENERATED), device)?;
    let mut logits = vec![model.forward(&tokens.narrow(1, 0, PROMPT)?, 0, &mut cache)?];
    for position in PROMPT..PROMPT + GENERATED {
        logits.push(model.forward(&tokens.narrow(1, position, 1)?, position, &mut cache)?);
    }
    Tensor::stack(&logits, 0)
}
