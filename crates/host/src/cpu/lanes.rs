//! One vector register of fp32 lanes: the few operations that the kernels are made of.
//!
//! The crate `pulp` was measured in their place: the same speed within noise, for nine more crates and
//! 25 CPU seconds more in a clean build.

/// A register of fp32 lanes.
///
/// A value exists only on a CPU that has its instructions, because [`Self::splat`] and
/// [`Self::load`], which alone make one from nothing, demand it. All functions are
/// `#[inline(always)]`: they compile to the intended instruction only inside a caller that
/// enables the instruction set ([`super::isa::dispatch`]).
pub(super) trait Lanes: Copy {
    /// Lanes in a register.
    const WIDTH: usize;
    /// Rows of the register tile: with [`Self::TILE_VECTORS`], as many accumulators as the register
    /// file holds beside one row of operands.
    const TILE_ROWS: usize;
    /// Registers in each row of the register tile.
    const TILE_VECTORS: usize;

    /// All lanes equal to `value`.
    ///
    /// # Safety
    /// The CPU has this type's instruction set.
    unsafe fn splat(value: f32) -> Self;

    /// Loads from any alignment.
    ///
    /// # Safety
    /// The CPU has this type's instruction set, and `from` is readable for `WIDTH` elements.
    unsafe fn load(from: *const f32) -> Self;

    /// Stores to any alignment.
    ///
    /// # Safety
    /// `to` is writable for `WIDTH` elements.
    unsafe fn store(self, to: *mut f32);

    /// self · factor + addend, rounded once where the hardware can.
    fn mul_add(self, factor: Self, addend: Self) -> Self;

    /// Sum.
    fn add(self, other: Self) -> Self;

    /// Difference.
    fn sub(self, other: Self) -> Self;

    /// Product.
    fn mul(self, other: Self) -> Self;

    /// The larger; a NaN in `other` always comes through.
    fn max(self, other: Self) -> Self;

    /// Quotient.
    fn div(self, other: Self) -> Self;

    /// `self` in lanes where `index` < `limit`, `otherwise` elsewhere.
    fn where_below(self, index: Self, limit: Self, otherwise: Self) -> Self;

    /// Asks for the cache line at `address`, which need not be valid; where there is no such
    /// instruction in stable Rust, nothing.
    #[inline(always)]
    fn prefetch(_address: *const f32) {}

    /// The float whose bits are this one's, shifted left by the width of the mantissa: the low bits
    /// become the exponent.
    fn exponent_from_low_bits(self) -> Self;
}

/// Four lanes in plain Rust, which compile to the target's baseline vectors, or to scalars.
#[derive(Clone, Copy)]
pub(super) struct Portable([f32; 4]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, combine: impl Fn(f32, f32) -> f32) -> Self {
        let (a, b) = (self.0, other.0);
        Self([combine(a[0], b[0]), combine(a[1], b[1]), combine(a[2], b[2]), combine(a[3], b[3])])
    }
}

impl Lanes for Portable {
    const WIDTH: usize = 4;
    // Twelve accumulators of sixteen registers, as on SSE.
    const TILE_ROWS: usize = 4;
    const TILE_VECTORS: usize = 3;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches for four readable elements.
        Self(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller vouches for four writable elements.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        // `f32::mul_add` would call a software routine on a baseline without the instruction.
        self.mul(factor).add(addend)
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }

    #[inline(always)]
    fn where_below(self, index: Self, limit: Self, otherwise: Self) -> Self {
        let (value, i, l, other) = (self.0, index.0, limit.0, otherwise.0);
        let choose = |lane: usize| if i[lane] < l[lane] { value[lane] } else { other[lane] };
        Self([choose(0), choose(1), choose(2), choose(3)])
    }

    #[inline(always)]
    fn exponent_from_low_bits(self) -> Self {
        self.zip(self, |a, _| f32::from_bits(a.to_bits() << 23))
    }
}
