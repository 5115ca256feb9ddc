//! Matrix multiply-accumulate of a warpgroup on the tensor cores: D (64 × N) += A (64 × K) · B (K × N), A and
//! B of 16-bit elements and K = 16, or of 8-bit ones and K = 32, and D of fp32 (PTX ISA,
//! `wgmma.mma_async.sync.aligned.m64nNk16` and `m64nNk32`, from sm_90a on).
//!
//! A warpgroup is four warps, the first of them a multiple of four, which execute all of these functions
//! together. Of D, warp w holds rows 16w to 16w + 15, and its lane 4g + t in `accumulator[4j]` and `[4j + 1]`
//! the elements (g, 8j + 2t) and (g, 8j + 2t + 1), in `[4j + 2]` and `[4j + 3]` the same of row g + 8. A in
//! registers is laid out as the A of [`mma`](super::mma), so that four consecutive pairs of D, rounded and
//! packed, are the A of a product over their 16 columns. Of 8-bit elements, each register holds four
//! neighbours along K where it would hold two of 16 bits.
//!
//! Products run asynchronously. They read registers from [`fence`] on, and shared memory through the
//! asynchronous proxy; the accumulator is theirs until [`Accumulator::wait_group`] covers the group that they
//! were committed with.
//!
//! B is always in shared memory, A there or in registers. A descriptor says where (PTX ISA, "Matrix
//! descriptor format"): address / 16 in bits 0 to 13, leading byte offset / 16 in bits 16 to 29, stride byte
//! offset / 16 in bits 32 to 45, swizzle mode in bits 62 and 63.
//!
//! Inline assembly for the products, because LLVM has no intrinsic for them, and for the wait, which must
//! name the accumulator, or the compiler would read it early.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

use crate::element::{Bf16, E4m3, F16};
use crate::registers::{Columns, Registers, Width};

#[cfg(target_arch = "nvptx64")]
unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.wgmma.fence.sync.aligned"]
    fn wgmma_fence();
    #[link_name = "llvm.nvvm.wgmma.commit_group.sync.aligned"]
    fn wgmma_commit_group();
}

/// A storage type that A and B can have.
pub trait Format {
    /// Which.
    const STORAGE: Storage;
}

/// The storage types of [`Format`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// fp16.
    F16,
    /// bf16.
    Bf16,
    /// e4m3.
    E4m3,
}

impl Format for F16 {
    const STORAGE: Storage = Storage::F16;
}

impl Format for Bf16 {
    const STORAGE: Storage = Storage::Bf16;
}

impl Format for E4m3 {
    const STORAGE: Storage = Storage::E4m3;
}

/// Orders this warpgroup's accesses to the registers of the products that follow, before these products
/// (`wgmma.fence.sync.aligned`). Between products into one accumulator none is needed.
///
/// # Safety
/// All threads of the warpgroup execute this call together.
#[inline(always)]
#[track_caller]
pub unsafe fn fence() {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { wgmma_fence() }
        }
        _ => { twin!(fa_sim::wgmma::fence()) }
    }
}

/// Closes a group of all products that this warpgroup has issued since the last one
/// (`wgmma.commit_group.sync.aligned`).
///
/// # Safety
/// As [`fence`].
#[inline(always)]
#[track_caller]
pub unsafe fn commit_group() {
    cfg_select! {
        target_arch = "nvptx64" => {
            // SAFETY: the caller's contract is the instruction's.
            unsafe { wgmma_commit_group() }
        }
        _ => { twin!(fa_sim::wgmma::commit_group()) }
    }
}

/// What a thread holds of D: `[f32; N / 2]`, for each N that is a multiple of 16 up to 256.
///
/// `TRANS_A` and `TRANS_B` say of an operand in shared memory that consecutive elements run along M or N, and
/// not along K; those of 8-bit elements are never so. Without `accumulate`, what the accumulator held before
/// does not matter.
pub trait Accumulator: Registers<Value = f32> {
    /// Begins D (+)= A·B with both operands in shared memory.
    ///
    /// # Safety
    /// All threads of the warpgroup execute this call together, with equal arguments. The descriptors
    /// describe operands inside the block's shared memory, visible to the asynchronous proxy, which nobody
    /// writes until a [`Self::wait_group`] covers the product. [`fence`] has followed the last access to the
    /// accumulator.
    unsafe fn multiply_ss<E: Format, const TRANS_A: bool, const TRANS_B: bool>(
        &mut self,
        a: u64,
        b: u64,
        accumulate: bool,
    );

    /// As [`Self::multiply_ss`], with A in registers.
    ///
    /// # Safety
    /// As [`Self::multiply_ss`]; [`fence`] has followed the last write of `a` too.
    unsafe fn multiply_rs<E: Format, const TRANS_B: bool>(&mut self, a: [u32; 4], b: u64, accumulate: bool);

    /// Begins D = A·B as [`Self::multiply_ss`] without `accumulate`; no register is kept for what the
    /// accumulator held.
    ///
    /// # Safety
    /// As [`Self::multiply_ss`].
    unsafe fn begin_ss<E: Format>(&mut self, a: u64, b: u64);

    /// As [`Self::begin_ss`], with A in registers.
    ///
    /// # Safety
    /// As [`Self::multiply_rs`].
    unsafe fn begin_rs<E: Format>(&mut self, a: [u32; 4], b: u64);

    /// Waits until at most the `PENDING` youngest groups of this warpgroup are not complete
    /// (`wgmma.wait_group.sync.aligned`). The accumulator of a group that is must be named by a call of its
    /// own.
    ///
    /// # Safety
    /// As [`fence`].
    unsafe fn wait_group<const PENDING: usize>(&mut self);
}

/// What a thread holds of [`Columns`] of a warpgroup's 64 rows.
pub trait Span: Width {
    /// In fp32, as D.
    type Accumulator: Accumulator;
    /// Rounded to 16 bits, as A.
    type Packed16: Registers<Value = u32>;
    /// Rounded to 8 bits, as A.
    type Packed8: Registers<Value = u32>;
}

/// What the simulator is told of a product.
#[cfg(feature = "sim")]
const fn options<E: Format>(
    transposed_a: bool,
    transposed_b: bool,
    accumulate: bool,
) -> fa_sim::wgmma::Options {
    let element = match E::STORAGE {
        Storage::F16 => fa_sim::wgmma::Element::F16,
        Storage::Bf16 => fa_sim::wgmma::Element::Bf16,
        Storage::E4m3 => fa_sim::wgmma::Element::E4m3,
    };
    fa_sim::wgmma::Options { element, transposed_a, transposed_b, accumulate }
}

/// A product as assembly: the accumulator's registers are operands 0 to N / 2 − 1. Operands of 8-bit elements
/// have no transpositions to name.
#[cfg(target_arch = "nvptx64")]
macro_rules! product {
    ($element:ident, ($transposed:literal, $($transpositions:tt)*), ($($operands:tt)*), $($arguments:tt)*) => {
        match $element::STORAGE {
            Storage::Bf16 => product!("k16.f32.bf16.bf16", $transposed;
                $($arguments)*, $($operands)*, $($transpositions)*),
            Storage::F16 => product!("k16.f32.f16.f16", $transposed;
                $($arguments)*, $($operands)*, $($transpositions)*),
            Storage::E4m3 => product!("k32.f32.e4m3.e4m3", ""; $($arguments)*, $($operands)*),
        }
    };
    ($format:literal, $transposed:literal; $columns:literal, [$first:literal $($index:literal)*], $d:ident,
     $accumulate:ident, $a:literal, $($operands:tt)*) => {
        asm!("{{", ".reg .pred accumulate;", "setp.ne.b32 accumulate, {accumulate}, 0;",
            concat!("wgmma.mma_async.sync.aligned.m64n", $columns, $format,
                " {{{", $first, "}" $(, ", {", $index, "}")*, "}}, ", $a, ", {b}, accumulate, 1, 1", $transposed, ";"),
            "}}",
            inlateout(reg32) $d[$first], $(inlateout(reg32) $d[$index],)* accumulate = in(reg32) $accumulate as u32,
            $($operands)*, options(nostack))
    };
}

/// As [`product`], of operands whose consecutive elements run along K, and without reading the accumulator.
#[cfg(target_arch = "nvptx64")]
macro_rules! first_product {
    ($element:ident, $transposed:literal, ($($operands:tt)*), $($arguments:tt)*) => {
        match $element::STORAGE {
            Storage::Bf16 => first_product!("k16.f32.bf16.bf16", $transposed; $($arguments)*, $($operands)*),
            Storage::F16 => first_product!("k16.f32.f16.f16", $transposed; $($arguments)*, $($operands)*),
            Storage::E4m3 => first_product!("k32.f32.e4m3.e4m3", ""; $($arguments)*, $($operands)*),
        }
    };
    ($format:literal, $transposed:literal; $columns:literal, [$first:literal $($index:literal)*], $d:ident,
     $a:literal, $($operands:tt)*) => {
        asm!("{{", ".reg .pred accumulate;", "setp.ne.b32 accumulate, 0, 0;",
            concat!("wgmma.mma_async.sync.aligned.m64n", $columns, $format,
                " {{{", $first, "}" $(, ", {", $index, "}")*, "}}, ", $a, ", {b}, accumulate, 1, 1", $transposed, ";"),
            "}}",
            out(reg32) $d[$first], $(out(reg32) $d[$index],)* $($operands)*, options(nostack))
    };
}

macro_rules! accumulator {
    ($columns:literal, [$($index:literal)*]) => {
        impl Span for Columns<$columns> {
            type Accumulator = [f32; $columns / 2];
            type Packed16 = [u32; $columns / 4];
            type Packed8 = [u32; $columns / 8];
        }

        impl Accumulator for [f32; $columns / 2] {
            #[inline(always)]
            #[track_caller]
            unsafe fn multiply_ss<E: Format, const TRANS_A: bool, const TRANS_B: bool>(
                &mut self,
                a: u64,
                b: u64,
                accumulate: bool,
            ) {
                cfg_select! {
                    target_arch = "nvptx64" => {
                        // SAFETY: the caller's contract is the instruction's.
                        unsafe {
                            product!(E, (", {trans_a}, {trans_b}",
                                trans_a = const TRANS_A as u32, trans_b = const TRANS_B as u32),
                                (a = in(reg64) a, b = in(reg64) b),
                                $columns, [$($index)*], self, accumulate, "{a}")
                        }
                    }
                    _ => { twin!(fa_sim::wgmma::multiply_ss(self, a, b, options::<E>(TRANS_A, TRANS_B, accumulate))) }
                }
            }

            #[inline(always)]
            #[track_caller]
            unsafe fn multiply_rs<E: Format, const TRANS_B: bool>(&mut self, a: [u32; 4], b: u64, accumulate: bool) {
                cfg_select! {
                    target_arch = "nvptx64" => {
                        // SAFETY: the caller's contract is the instruction's.
                        unsafe {
                            product!(E, (", {trans_b}", trans_b = const TRANS_B as u32),
                                (a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                                b = in(reg64) b),
                                $columns, [$($index)*], self, accumulate, "{{{a0}, {a1}, {a2}, {a3}}}")
                        }
                    }
                    _ => { twin!(fa_sim::wgmma::multiply_rs(self, a, b, options::<E>(false, TRANS_B, accumulate))) }
                }
            }

            #[inline(always)]
            #[track_caller]
            unsafe fn begin_ss<E: Format>(&mut self, a: u64, b: u64) {
                cfg_select! {
                    target_arch = "nvptx64" => {
                        // SAFETY: the caller's contract is the instruction's.
                        unsafe {
                            first_product!(E, ", 0, 0", (a = in(reg64) a, b = in(reg64) b), $columns, [$($index)*], self, "{a}")
                        }
                    }
                    _ => { twin!(fa_sim::wgmma::multiply_ss(self, a, b, options::<E>(false, false, false))) }
                }
            }

            #[inline(always)]
            #[track_caller]
            unsafe fn begin_rs<E: Format>(&mut self, a: [u32; 4], b: u64) {
                cfg_select! {
                    target_arch = "nvptx64" => {
                        // SAFETY: the caller's contract is the instruction's.
                        unsafe {
                            first_product!(E, ", 0",
                                (a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
                                b = in(reg64) b),
                                $columns, [$($index)*], self, "{{{a0}, {a1}, {a2}, {a3}}}")
                        }
                    }
                    _ => { twin!(fa_sim::wgmma::multiply_rs(self, a, b, options::<E>(false, false, false))) }
                }
            }

            #[inline(always)]
            #[track_caller]
            unsafe fn wait_group<const PENDING: usize>(&mut self) {
                cfg_select! {
                    target_arch = "nvptx64" => {
                        // SAFETY: the caller's contract is the instruction's. The comment names each
                        // register: what is read after the wait was then written by it.
                        unsafe {
                            asm!("wgmma.wait_group.sync.aligned {pending};", concat!("//", $(" {", $index, "}"),*),
                                $(inlateout(reg32) self[$index],)* pending = const PENDING, options(nostack))
                        }
                    }
                    _ => { twin!(fa_sim::wgmma::wait_group(PENDING, self)) }
                }
            }
        }
    };
}

/// One [`Accumulator`] for each N, whose registers are those of the N before and eight more.
macro_rules! accumulators {
    ([$($before:literal)*]) => {};
    ([$($before:literal)*] $columns:literal [$($more:literal)*] $($rest:tt)*) => {
        accumulator!($columns, [$($before)* $($more)*]);
        accumulators! { [$($before)* $($more)*] $($rest)* }
    };
}

accumulators! { []
    16 [0 1 2 3 4 5 6 7]
    32 [8 9 10 11 12 13 14 15]
    48 [16 17 18 19 20 21 22 23]
    64 [24 25 26 27 28 29 30 31]
    80 [32 33 34 35 36 37 38 39]
    96 [40 41 42 43 44 45 46 47]
    112 [48 49 50 51 52 53 54 55]
    128 [56 57 58 59 60 61 62 63]
    144 [64 65 66 67 68 69 70 71]
    160 [72 73 74 75 76 77 78 79]
    176 [80 81 82 83 84 85 86 87]
    192 [88 89 90 91 92 93 94 95]
    208 [96 97 98 99 100 101 102 103]
    224 [104 105 106 107 108 109 110 111]
    240 [112 113 114 115 116 117 118 119]
    256 [120 121 122 123 124 125 126 127]
}
