//! Weights and inputs that are the same ones in each run.

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor, Var, bail};
use candle_nn::{VarBuilder, VarMap};

/// Fills matrices and biases of a model. Weights of norms stay 1.
pub(crate) fn fill(weights: &VarMap) -> Result<()> {
    for (seed, (name, variable)) in named(weights)?.into_iter().enumerate() {
        let limit = match *variable.dims() {
            [_, inputs] => (3.0 / inputs as f32).sqrt(),
            _ if name.ends_with("bias") => 0.1,
            _ => continue,
        };
        let values = (uniform(seed as u64, variable.dims())? * f64::from(limit))?;
        variable.set(&values.to_device(variable.device())?)?;
    }
    Ok(())
}

/// The weights rounded to `stored`, for a model that computes in `dtype`.
pub(crate) fn builder(
    weights: &VarMap,
    stored: DType,
    dtype: DType,
    device: &Device,
) -> Result<VarBuilder<'static>> {
    let rounded = named(weights)?
        .into_iter()
        .map(|(name, variable)| Ok((name, variable.as_detached_tensor().to_dtype(stored)?)))
        .collect::<Result<HashMap<_, _>>>()?;
    Ok(VarBuilder::from_tensors(rounded, dtype, device))
}

/// Numbers from -1 to 1, in F32 on the CPU.
pub(crate) fn uniform(seed: u64, shape: &[usize]) -> Result<Tensor> {
    let numbers: Vec<f32> = (0..shape.iter().product::<usize>() as u64)
        .map(|index| hash(seed << 32 | index) as f32 / u32::MAX as f32 * 2.0 - 1.0)
        .collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu)
}

/// SplitMix64's finaliser, the upper half of it.
fn hash(value: u64) -> u32 {
    let value = value.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((value ^ value >> 31) >> 32) as u32
}

/// Variables by name, in its order.
pub(crate) fn named(weights: &VarMap) -> Result<Vec<(String, Var)>> {
    let Ok(variables) = weights.data().lock() else { bail!("a thread panicked with the weights locked") };
    let mut named: Vec<_> =
        variables.iter().map(|(name, variable)| (name.clone(), variable.clone())).collect();
    named.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(named)
}
