//! Operands of a warpgroup in shared memory, and their product.
#![allow(dead_code, reason = "each test binary uses a part of this module")]

use fa_sim::tma::Swizzle;
use fa_sim::wgmma::{Element, Options};
use fa_sim::{Error, Launch, Report, barrier, convert, fence, index, launch, shared};

use crate::common::one_block;

pub(crate) const M: usize = 64;
pub(crate) const K: usize = 16;

pub(crate) const KINDS: [Swizzle; 4] = [Swizzle::None, Swizzle::Bytes32, Swizzle::Bytes64, Swizzle::Bytes128];

pub(crate) fn run_on(threads: u32, seed: u64, kernel: impl Fn() + Sync) -> Result<Report, Error> {
    launch(&Launch { shared_bytes: 64 * 1024, ..one_block(threads, seed) }, &kernel)
}

pub(crate) fn run(seed: u64, kernel: impl Fn() + Sync) -> Result<Report, Error> {
    run_on(128, seed, kernel)
}

pub(crate) fn fails(seed: u64, kernel: impl Fn() + Sync) -> (Error, String) {
    let error = run(seed, kernel).expect_err("the kernel is broken");
    let message = error.to_string();
    (error, message)
}

/// Extent and bytes from one index to the next.
pub(crate) type Mode = (usize, u32);

/// An operand of 16-bit elements in shared memory, as the canonical layouts say: the offset of an element is
/// a sum of stride times index over a nest of modes along M or N, and one along K.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) start: u32,
    pub(crate) swizzle: Swizzle,
    pub(crate) transposed: bool,
    /// Bytes.
    pub(crate) leading: u32,
    pub(crate) stride: u32,
}

impl Layout {
    /// One that fits in 20 KiB, with room between groups where strides are free.
    pub(crate) fn new(start: u32, swizzle: Swizzle, transposed: bool) -> Self {
        let span = [16, 32, 64, 128][KINDS.iter().position(|&kind| kind == swizzle).expect("one of them")];
        let (leading, stride) = match (swizzle, transposed) {
            (Swizzle::None, false) => (128, 384),
            (Swizzle::None, true) => (8192, 256),
            (_, false) => (16, 8 * span),
            (_, true) => (16 * span, 8 * span),
        };
        Self { start, swizzle, transposed, leading, stride }
    }

    /// Address of element (`row`, `k`): (extent, bytes) of each mode.
    pub(crate) fn address(&self, row: usize, k: usize) -> u32 {
        let Self { leading, stride, .. } = *self;
        let span = match self.swizzle {
            Swizzle::None => 16,
            Swizzle::Bytes32 => 32,
            Swizzle::Bytes64 => 64,
            Swizzle::Bytes128 => 128,
        };
        let (rows, columns): (&[Mode], &[Mode]) = match (self.transposed, self.swizzle) {
            (false, Swizzle::None) => (&[(8, 16), (32, stride)], &[(8, 2), (2, leading)]),
            (false, _) => (&[(8, span), (32, stride)], &[(8, 2), (2, 16)]),
            (true, Swizzle::None) => (&[(8, 2), (32, stride)], &[(8, 16), (2, leading)]),
            (true, _) => (&[(8, 2), (span as usize / 16, 16), (32, leading)], &[(8, span), (2, stride)]),
        };
        let offset = |modes: &[Mode], mut index: usize| {
            let step = |&(extent, bytes): &Mode| {
                let here = (index % extent) as u32 * bytes;
                index /= extent;
                here
            };
            modes.iter().map(step).sum::<u32>()
        };
        self.swizzle.apply(self.start + offset(rows, row) + offset(columns, k))
    }

    pub(crate) fn descriptor(&self) -> u64 {
        let kind = match self.swizzle {
            Swizzle::None => 0,
            Swizzle::Bytes128 => 1,
            Swizzle::Bytes64 => 2,
            Swizzle::Bytes32 => 3,
        };
        u64::from(self.start >> 4)
            | u64::from(self.leading >> 4) << 16
            | u64::from(self.stride >> 4) << 32
            | kind << 62
    }

    /// All threads write the operand of 8-bit elements, `rows` of M or N, as bytes: element (`row`, `k`) is
    /// byte k of the row.
    pub(crate) fn write_e4m3(&self, rows: usize, value: fn(usize, usize) -> i32) {
        for index in (index::thread() as usize..rows * 2 * K).step_by(128) {
            let (row, k) = (index / (2 * K), index % (2 * K));
            shared::store(self.address(row, k / 2) + (k % 2) as u32, e4m3_of(value(row, k)));
        }
    }

    /// All threads write the operand, `rows` of M or N.
    pub(crate) fn write(&self, rows: usize, value: fn(usize, usize) -> i32, element: Element) {
        for index in (index::thread() as usize..rows * K).step_by(128) {
            let (row, k) = (index / K, index % K);
            shared::store(self.address(row, k), bits_of(value(row, k), element));
        }
    }
}

pub(crate) fn bits_of(value: i32, element: Element) -> u16 {
    match element {
        Element::F16 => convert::f32_to_f16(value as f32),
        Element::Bf16 => ((value as f32).to_bits() >> 16) as u16,
        Element::E4m3 => panic!("two of 8 bits are one of 16: see `write_e4m3`"),
    }
}

/// The bits of a number in e4m3.
pub(crate) fn e4m3_of(value: i32) -> u8 {
    convert::pack_e4m3x4([value as f32, 0.0, 0.0, 0.0]) as u8
}

pub(crate) fn a_at(row: usize, k: usize) -> i32 {
    ((row * 7 + k * 3) % 11) as i32 - 5
}

pub(crate) fn b_at(column: usize, k: usize) -> i32 {
    ((column * 5 + k * 9) % 13) as i32 - 6
}

pub(crate) fn product_at(row: usize, column: usize) -> f32 {
    (0..K).map(|k| a_at(row, k) * b_at(column, k)).sum::<i32>() as f32
}

/// Row and column of element `index` of this thread's accumulator (PTX ISA, "wgmma .m64nNk16 register
/// fragment layout for accumulator matrix D").
pub(crate) fn place(index: usize) -> (usize, usize) {
    let thread = index::thread() as usize;
    let row = thread / 32 * 16 + thread % 32 / 4 + if index % 4 < 2 { 0 } else { 8 };
    (row, index / 4 * 8 + thread % 4 * 2 + index % 2)
}

pub(crate) fn options(a: Layout, b: Layout) -> Options {
    Options {
        element: Element::F16,
        transposed_a: a.transposed,
        transposed_b: b.transposed,
        accumulate: true,
    }
}

pub(crate) fn ready() {
    fence::proxy_async();
    barrier::sync(0, 128);
}

pub(crate) fn default_layouts() -> (Layout, Layout) {
    let a = Layout::new(shared::base(), Swizzle::Bytes128, false);
    (a, Layout::new(shared::base() + 20 * 1024, Swizzle::Bytes128, true))
}

/// The default layouts, written and fenced.
pub(crate) fn operands() -> (Layout, Layout) {
    let (a, b) = default_layouts();
    a.write(M, a_at, Element::F16);
    b.write(64, b_at, Element::F16);
    ready();
    (a, b)
}

pub(crate) fn assert_products(sums: &[f32], times: f32) {
    for (index, &sum) in sums.iter().enumerate() {
        let (row, column) = place(index);
        assert_eq!(sum, times * product_at(row, column), "({row}, {column})");
    }
}
