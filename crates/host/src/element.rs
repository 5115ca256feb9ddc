//! Storage types of Q, K, V and O.

use half::{bf16, f16};

/// Storage type of a tensor; arithmetic accumulates in fp32 whatever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16: the upper half of an fp32.
    Bf16,
}

impl DType {
    /// All of them, in the order in which they are listed to people.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Bf16];

    /// Size of one element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Unit roundoff: the largest relative error of rounding to this type.
    pub const fn roundoff(self) -> f64 {
        match self {
            Self::F32 => 1.0 / (1_u64 << 24) as f64,
            Self::F16 => 1.0 / (1_u64 << 11) as f64,
            Self::Bf16 => 1.0 / (1_u64 << 8) as f64,
        }
    }

    /// The name that the command line and the kernel entries use: `f32`, `f16` or `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
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
}

/// A Rust type that tensors can be stored in: `f32`, [`half::f16`] or [`half::bf16`].
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// The same type as a value.
    const DTYPE: DType;

    /// Exact.
    fn to_f32(self) -> f32;

    /// Rounds to nearest even.
    fn from_f32(value: f32) -> Self;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;

    fn to_f32(self) -> f32 {
        self
    }

    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Element for f16 {
    const DTYPE: DType = DType::F16;

    fn to_f32(self) -> f32 {
        self.to_f32()
    }

    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;

    fn to_f32(self) -> f32 {
        self.to_f32()
    }

    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
}
