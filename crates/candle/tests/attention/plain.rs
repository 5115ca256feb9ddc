//! Attention as its definition has it, in f32, and tensors to try it with.

use candle_core::{DType, Device, Result, Tensor, Var};

/// Number n of a fixed sequence of numbers from -1 to 1.
fn number(seed: u32, index: usize) -> f32 {
    let mixed = (index as u32 ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    let mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35);
    (mixed >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// A tensor of fixed values.
pub(crate) fn values(seed: u32, shape: &[usize], dtype: DType) -> Tensor {
    let numbers: Vec<f32> = (0..shape.iter().product()).map(|index| number(seed, index)).collect();
    Tensor::from_vec(numbers, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

/// A variable of fixed values.
pub(crate) fn variable(seed: u32, shape: &[usize], dtype: DType) -> Var {
    Var::from_tensor(&values(seed, shape, dtype)).unwrap()
}

/// Offsets of sequences of these lengths.
pub(crate) fn offsets(lengths: &[usize]) -> Tensor {
    let mut offsets = vec![0_u32];
    for &length in lengths {
        offsets.push(offsets[offsets.len() - 1] + length as u32);
    }
    Tensor::new(offsets, &Device::Cpu).unwrap()
}

/// What changes plain attention.
#[derive(Clone, Default)]
pub(crate) struct Plain {
    pub(crate) scale: f32,
    pub(crate) left: Option<usize>,
    pub(crate) right: Option<usize>,
    pub(crate) softcap: f32,
    pub(crate) slopes: Option<Vec<f32>>,
}

impl Plain {
    pub(crate) fn new(scale: f32, causal: bool) -> Self {
        Self { scale, right: causal.then_some(0), ..Self::default() }
    }

    pub(crate) fn windowed(scale: f32, left: Option<usize>, right: Option<usize>) -> Self {
        Self { scale, left, right, ..Self::default() }
    }

    pub(crate) fn alibi(self, slopes: &Tensor) -> Self {
        Self { slopes: Some(slopes.to_vec1().unwrap()), ..self }
    }

    /// O of [B, S, H, D] tensors, in f32.
    pub(crate) fn dense(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let (_, sq, heads, _) = q.dims4()?;
        let (_, sk, kv_heads, _) = k.dims4()?;
        let by_heads = |tensor: &Tensor| tensor.to_dtype(DType::F32)?.transpose(1, 2)?.contiguous();
        let repeated = |tensor: &Tensor| {
            let (b, hkv, s, d) = tensor.dims4()?;
            let group = heads / kv_heads;
            tensor.unsqueeze(2)?.broadcast_as((b, hkv, group, s, d))?.contiguous()?.reshape((b, heads, s, d))
        };
        let (q, k, v) = (by_heads(q)?, repeated(&by_heads(k)?)?, repeated(&by_heads(v)?)?);
        let mut scores = (q.matmul(&k.t()?.contiguous()?)? * f64::from(self.scale))?;
        if self.softcap != 0.0 {
            let softcap = f64::from(self.softcap);
            scores = ((scores / softcap)?.tanh()? * softcap)?;
        }
        if let Some(slopes) = &self.slopes {
            let bias = |head: usize, i: usize, j: usize| {
                -slopes[head] * ((i + sk) as f32 - sq as f32 - j as f32).abs()
            };
            scores = scores.broadcast_add(&table([heads, sq, sk], bias)?)?;
        }
        let sees = |i: usize, j: usize| {
            let (position, key) = ((i + sk) as isize - sq as isize, j as isize);
            self.left.is_none_or(|left| key >= position - left as isize)
                && self.right.is_none_or(|right| key <= position + right as isize)
        };
        let visible = table([1, sq, sk], |_, i, j| f32::from(sees(i, j)))?;
        let hidden = table([1, sq, sk], |_, i, j| if sees(i, j) { 0.0 } else { -1e30 })?;
        let scores = scores.broadcast_add(&hidden)?;
        let weights = scores.broadcast_sub(&scores.max_keepdim(3)?.detach())?.exp()?;
        let weights = weights.broadcast_mul(&visible)?;
        // Weights of a row that sees no key have the sum 0, and are divided by 1.
        let sees_none = table([1, sq, 1], |_, i, _| f32::from(!(0..sk).any(|j| sees(i, j))))?;
        let sums = weights.sum_keepdim(3)?.broadcast_add(&sees_none)?;
        weights.broadcast_div(&sums)?.matmul(&v)?.transpose(1, 2)
    }

    /// O of packed sequences of these lengths, in f32.
    pub(crate) fn packed(&self, [q, k, v]: [&Tensor; 3], lengths: &[(usize, usize)]) -> Result<Tensor> {
        let (mut first_q, mut first_k, mut parts) = (0, 0, Vec::new());
        for &(sq, sk) in lengths.iter() {
            let rows = |tensor: &Tensor, first, len| tensor.narrow(0, first, len)?.unsqueeze(0);
            match (sq, sk) {
                (0, _) => {}
                (_, 0) => parts.push(Tensor::zeros((sq, q.dim(1)?, v.dim(2)?), DType::F32, &Device::Cpu)?),
                _ => {
                    let (k, v) = (rows(k, first_k, sk)?, rows(v, first_k, sk)?);
                    parts.push(self.dense(&rows(q, first_q, sq)?, &k, &v)?.squeeze(0)?);
                }
            }
            (first_q, first_k) = (first_q + sq, first_k + sk);
        }
        Tensor::cat(&parts, 0)
    }
}

fn table([a, b, c]: [usize; 3], value: impl Fn(usize, usize, usize) -> f32) -> Result<Tensor> {
    let at = |index: usize| value(index / c / b, index / c % b, index % c);
    Tensor::from_vec((0..a * b * c).map(at).collect::<Vec<_>>(), (1, a, b, c), &Device::Cpu)
}

/// What values up to about 1 may differ by.
pub(crate) fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        _ => 1e-5,
    }
}

/// Asserts that tensors have one shape, and values no further apart than `tolerance` times 1 + what is
/// expected.
#[track_caller]
pub(crate) fn assert_close(what: &str, found: &Tensor, expected: &Tensor, tolerance: f32) {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let [found, expected] = [found, expected]
        .map(|tensor| tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap());
    for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let close = (found - expected).abs() <= tolerance * (1.0 + expected.abs());
        assert!(close, "{what}: element {index} is {found}, and {expected} was expected");
    }
}
