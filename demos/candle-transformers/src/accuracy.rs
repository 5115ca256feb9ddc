//! How far results may lie from those in F32.

use candle_core::{DType, Device, Result, Tensor, bail};

/// The same values with flash attention, without it in the same type, and without it in F32.
pub(crate) struct Compared<'a> {
    pub(crate) flash: &'a Tensor,
    pub(crate) plain: &'a Tensor,
    pub(crate) exact: &'a Tensor,
}

impl Compared<'_> {
    /// Prints both errors against F32.
    ///
    /// # Errors
    /// When that of flash attention is above twice the plain one's and a rounding of the largest value.
    pub(crate) fn check(&self, what: &str, dtype: DType) -> Result<()> {
        let largest = largest(self.exact)?;
        let (flash, plain) = (distance(self.flash, self.exact)?, distance(self.plain, self.exact)?);
        let bound = 2.0 * plain + rounding(dtype)? * largest;
        println!(
            "{what}: largest value {largest:.2e}, error {flash:.1e}, plain {plain:.1e}, bound {bound:.1e}"
        );
        // A NaN is not below the bound.
        if flash <= bound {
            return Ok(());
        }
        bail!("{what}: the error is {flash:.1e}; at most {bound:.1e} is rounding")
    }
}

/// Half the distance from 1 to the next number.
fn rounding(dtype: DType) -> Result<f32> {
    match dtype {
        DType::F16 => Ok(2.0_f32.powi(-11)),
        DType::BF16 => Ok(2.0_f32.powi(-8)),
        dtype => bail!("dtype is {dtype:?}; F16 or BF16 is needed"),
    }
}

fn largest(values: &Tensor) -> Result<f32> {
    let values = values.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    // `max` drops NaN.
    let larger = |largest: f32, value: &f32| if value.is_nan() { f32::NAN } else { largest.max(value.abs()) };
    Ok(values.iter().fold(0.0, larger))
}

fn distance(found: &Tensor, expected: &Tensor) -> Result<f32> {
    let on_cpu = |tensor: &Tensor| tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32);
    largest(&(on_cpu(found)? - on_cpu(expected)?)?)
}
