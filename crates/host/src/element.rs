//! Storage types of Q, K, V and O.

use float8::F8E4M3;
use half::{bf16, f16};

use crate::{Error, Result};

/// Storage type of a tensor; arithmetic accumulates in fp32 whatever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of an fp32.
    Bf16,
    /// OCP 8-bit floating point E4M3 (Micikevicius et al. 2022, arXiv:2209.05433): 4 bits of exponent with
    /// bias 7, 3 of mantissa, up to 448, no infinities. A type of Q, K and V alone.
    E4m3,
}

impl DType {
    /// All of them, in the order in which they are listed to people.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::E4m3];

    /// Those that results come in: [`Self::output`] of each is itself.
    pub const RESULTS: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Size of one element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::E4m3 => 1,
        }
    }

    /// Unit roundoff: the largest relative error of rounding to this type.
    pub const fn roundoff(self) -> f64 {
        match self {
            Self::F32 => 1.0 / (1_u64 << 24) as f64,
            Self::F16 => 1.0 / (1_u64 << 11) as f64,
            Self::Bf16 => 1.0 / (1_u64 << 8) as f64,
            Self::E4m3 => 1.0 / (1_u64 << 4) as f64,
        }
    }

    /// Storage type of O where this is that of Q, K and V: the same, but bf16 for e4m3, as FlashAttention-3
    /// has it. It keeps a bit more than P's four, and V's descale factor may take O out of fp16's range.
    pub const fn output(self) -> Self {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => self,
            Self::E4m3 => Self::Bf16,
        }
    }

    /// Whether a problem whose results have the type of its inputs can have this one.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] where it cannot.
    pub(crate) fn check_as_result(self, kernel: &'static str) -> Result<()> {
        if Self::RESULTS.contains(&self) {
            return Ok(());
        }
        let available = Self::RESULTS.map(Self::name).join(", ");
        Err(Error::UnsupportedDType { kernel, dtype: self, available })
    }

    /// What weights of at most 1 are multiplied by before they are rounded to this type, a power of two: e4m3
    /// has nothing between 0 and 2⁻⁹, and room above 1.
    #[cfg(feature = "testing")]
    pub(crate) const fn weight_scale(self) -> f32 {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1.0,
            Self::E4m3 => 256.0,
        }
    }

    /// The name that the command line and the kernel entries use: `f32`, `f16`, `bf16` or `e4m3`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::E4m3 => "e4m3",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
    impl Sealed for float8::F8E4M3 {}
}

/// A Rust type that tensors can be stored in: `f32`, [`half::f16`], [`half::bf16`] or, for Q, K and V,
/// [`float8::F8E4M3`].
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// The same type as a value.
    const DTYPE: DType;

    /// What O is stored in where Q, K and V are stored in this: [`DType::output`] as a type.
    type Output: Element<Output = Self::Output>;

    /// Exact.
    fn to_f32(self) -> f32;

    /// Rounds to nearest even; e4m3, which has no infinities, takes what is too large for the largest.
    fn from_f32(value: f32) -> Self;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
    type Output = Self;

    fn to_f32(self) -> f32 {
        self
    }

    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Element for f16 {
    const DTYPE: DType = DType::F16;
    type Output = Self;

    fn to_f32(self) -> f32 {
        self.to_f32()
    }

    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;
    type Output = Self;

    fn to_f32(self) -> f32 {
        self.to_f32()
    }

    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Element for F8E4M3 {
    const DTYPE: DType = DType::E4m3;
    type Output = bf16;

    fn to_f32(self) -> f32 {
        WIDE[usize::from(self.to_bits())]
    }

    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
}

/// Each e4m3 number in fp32, by its bits: a look-up costs the CPU less than the arithmetic.
static WIDE: [f32; 256] = {
    let mut wide = [0.0; 256];
    let mut bits = 0;
    while bits < 256 {
        wide[bits] = F8E4M3::to_f32(&F8E4M3::from_bits(bits as u8));
        bits += 1;
    }
    wide
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of an e4m3 number by its definition.
    fn value(bits: u8) -> f64 {
        let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
        let magnitude = match exponent {
            0 => mantissa / 8.0 * 2.0_f64.powi(-6),
            _ => (1.0 + mantissa / 8.0) * 2.0_f64.powi(exponent - 7),
        };
        if bits < 128 { magnitude } else { -magnitude }
    }

    #[test]
    fn results_are_of_types_that_are_their_own_results() {
        let results = DType::ALL.into_iter().filter(|dtype| dtype.output() == *dtype);
        assert!(results.eq(DType::RESULTS));
        assert!(DType::ALL.iter().all(|dtype| DType::RESULTS.contains(&dtype.output())));
    }

    #[test]
    fn e4m3_is_what_its_definition_says() {
        for bits in 0..=u8::MAX {
            let wide = Element::to_f32(F8E4M3::from_bits(bits));
            if bits & 0x7f == 0x7f {
                assert!(wide.is_nan());
                continue;
            }
            assert_eq!(f64::from(wide), value(bits), "{bits:#x}");
            assert_eq!(<F8E4M3 as Element>::from_f32(wide).to_bits(), bits);
        }
        assert_eq!(value(0x7e), 448.0);
    }

    #[test]
    fn e4m3_rounds_ties_to_even_and_saturates() {
        let rounded = |x: f64| <F8E4M3 as Element>::from_f32(x as f32).to_bits();
        for bits in 0..0x7e {
            let (low, high) = (value(bits), value(bits + 1));
            let middle = (low + high) / 2.0;
            assert_eq!(rounded(middle), bits + bits % 2, "{bits:#x}");
            assert_eq!(
                (rounded(middle.next_down() * (1.0 - 1e-6)), rounded(middle * (1.0 + 1e-6))),
                (bits, bits + 1)
            );
            assert_eq!(rounded(-middle), 0x80 | (bits + bits % 2));
        }
        assert_eq!([448.1, 1e9, f64::INFINITY, -f64::INFINITY].map(rounded), [0x7e, 0x7e, 0x7e, 0xfe]);
        assert_eq!(rounded(f64::NAN) & 0x7f, 0x7f);
    }
}
