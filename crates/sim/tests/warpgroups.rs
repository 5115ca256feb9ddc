//! Products of a warpgroup: what they compute from every layout, and kernels that use them wrongly.

mod common;

use common::{assert_contains, one_block};
use fa_sim::tma::Swizzle;
use fa_sim::wgmma::{self, Element, Options};
use fa_sim::{Error, Launch, Report, Schedule, barrier, convert, fence, index, launch, shared, warp};

const SEEDS: std::ops::Range<u64> = 0..8;

const M: usize = 64;
const K: usize = 16;

const KINDS: [Swizzle; 4] = [Swizzle::None, Swizzle::Bytes32, Swizzle::Bytes64, Swizzle::Bytes128];

fn run_on(threads: u32, seed: u64, kernel: impl Fn() + Sync) -> Result<Report, Error> {
    launch(&Launch { shared_bytes: 64 * 1024, ..one_block(threads, seed) }, &kernel)
}

fn run(seed: u64, kernel: impl Fn() + Sync) -> Result<Report, Error> {
    run_on(128, seed, kernel)
}

fn fails(seed: u64, kernel: impl Fn() + Sync) -> (Error, String) {
    let error = run(seed, kernel).expect_err("the kernel is broken");
    let message = error.to_string();
    (error, message)
}

/// Extent and bytes from one index to the next.
type Mode = (usize, u32);

/// An operand of 16-bit elements in shared memory, as the canonical layouts say: the offset of an element is a sum
/// of stride times index over a nest of modes along M or N, and one along K.
#[derive(Clone, Copy, Debug)]
struct Layout {
    start: u32,
    swizzle: Swizzle,
    transposed: bool,
    /// Bytes.
    leading: u32,
    stride: u32,
}

impl Layout {
    /// One that fits in 20 KiB, with room between groups where strides are free.
    fn new(start: u32, swizzle: Swizzle, transposed: bool) -> Self {
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
    fn address(&self, row: usize, k: usize) -> u32 {
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

    fn descriptor(&self) -> u64 {
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

    /// All threads write the operand, `rows` of M or N.
    fn write(&self, rows: usize, value: fn(usize, usize) -> i32, element: Element) {
        for index in (index::thread() as usize..rows * K).step_by(128) {
            let (row, k) = (index / K, index % K);
            shared::store(self.address(row, k), bits_of(value(row, k), element));
        }
    }
}

fn bits_of(value: i32, element: Element) -> u16 {
    match element {
        Element::F16 => convert::f32_to_f16(value as f32),
        Element::Bf16 => ((value as f32).to_bits() >> 16) as u16,
    }
}

fn a_at(row: usize, k: usize) -> i32 {
    ((row * 7 + k * 3) % 11) as i32 - 5
}

fn b_at(column: usize, k: usize) -> i32 {
    ((column * 5 + k * 9) % 13) as i32 - 6
}

fn product_at(row: usize, column: usize) -> f32 {
    (0..K).map(|k| a_at(row, k) * b_at(column, k)).sum::<i32>() as f32
}

/// Row and column of element `index` of this thread's accumulator (PTX ISA, "wgmma .m64nNk16 register fragment
/// layout for accumulator matrix D").
fn place(index: usize) -> (usize, usize) {
    let thread = index::thread() as usize;
    let row = thread / 32 * 16 + thread % 32 / 4 + if index % 4 < 2 { 0 } else { 8 };
    (row, index / 4 * 8 + thread % 4 * 2 + index % 2)
}

fn options(a: Layout, b: Layout) -> Options {
    Options {
        element: Element::F16,
        transposed_a: a.transposed,
        transposed_b: b.transposed,
        accumulate: true,
    }
}

fn ready() {
    fence::proxy_async();
    barrier::sync(0, 128);
}

fn default_layouts() -> (Layout, Layout) {
    let a = Layout::new(shared::base(), Swizzle::Bytes128, false);
    (a, Layout::new(shared::base() + 20 * 1024, Swizzle::Bytes128, true))
}

/// The default layouts, written and fenced.
fn operands() -> (Layout, Layout) {
    let (a, b) = default_layouts();
    a.write(M, a_at, Element::F16);
    b.write(64, b_at, Element::F16);
    ready();
    (a, b)
}

/// D += 2 A·B for N columns, both operands in shared memory.
fn check<const N: usize, const REGISTERS: usize>(a: Layout, b: Layout, element: Element) {
    a.write(M, a_at, element);
    b.write(N, b_at, element);
    ready();
    let options = Options { element, ..options(a, b) };
    let mut sums: [f32; REGISTERS] = std::array::from_fn(|index| 1000.0 + place(index).0 as f32);
    wgmma::fence();
    wgmma::multiply_ss(&mut sums, a.descriptor(), b.descriptor(), options);
    wgmma::multiply_ss(&mut sums, a.descriptor(), b.descriptor(), options);
    wgmma::commit_group();
    wgmma::wait_group(0, &mut sums);
    for (index, &sum) in sums.iter().enumerate() {
        let (row, column) = place(index);
        assert_eq!(sum, 1000.0 + row as f32 + 2.0 * product_at(row, column), "({row}, {column})");
    }
}

#[test]
fn products_from_every_layout() {
    let base = shared::base();
    for (kind_a, kind_b) in KINDS.into_iter().flat_map(|a| KINDS.map(|b| (a, b))) {
        for order in 0..4 {
            let a = Layout::new(base, kind_a, order % 2 == 1);
            let b = Layout::new(base + 20 * 1024, kind_b, order / 2 == 1);
            run(order, || check::<64, 32>(a, b, Element::F16))
                .unwrap_or_else(|error| panic!("{a:?} {b:?}: {error}"));
        }
    }
}

#[test]
fn products_of_every_width() {
    let (a, b) = default_layouts();
    for seed in SEEDS {
        run(seed, || check::<8, 4>(a, b, Element::F16)).expect("n = 8");
        run(seed, || check::<80, 40>(a, b, Element::Bf16)).expect("n = 80");
        run(seed, || check::<256, 128>(a, Layout { transposed: false, ..b }, Element::Bf16))
            .expect("n = 256");
    }
}

/// This thread's registers of A (PTX ISA, "wgmma .m64nNk16 register fragment layout for matrix A").
fn a_registers() -> [u32; 4] {
    let thread = index::thread() as usize;
    std::array::from_fn(|register| {
        let row = thread / 32 * 16 + thread % 32 / 4 + 8 * (register % 2);
        let k = thread % 4 * 2 + 8 * (register / 2);
        let half = |k| u32::from(bits_of(a_at(row, k), Element::F16));
        half(k) | half(k + 1) << 16
    })
}

fn assert_products(sums: &[f32], times: f32) {
    for (index, &sum) in sums.iter().enumerate() {
        let (row, column) = place(index);
        assert_eq!(sum, times * product_at(row, column), "({row}, {column})");
    }
}

#[test]
fn products_of_registers_in_groups() {
    for seed in SEEDS {
        let report = run(seed, || {
            let (a, b) = operands();
            let replace = Options { accumulate: false, ..options(a, b) };
            let (mut first, mut second) = ([f32::NAN; 32], [0.0; 32]);
            wgmma::fence();
            wgmma::multiply_rs(&mut first, a_registers(), b.descriptor(), replace);
            wgmma::commit_group();
            wgmma::multiply_ss(&mut second, a.descriptor(), b.descriptor(), options(a, b));
            wgmma::multiply_rs(&mut second, a_registers(), b.descriptor(), options(a, b));
            wgmma::commit_group();
            assert!(first.iter().chain(&second).all(|sum| sum.is_nan()), "nothing is there before the wait");
            wgmma::wait_group(1, &mut first);
            assert_products(&first, 1.0);
            assert!(second.iter().all(|sum| sum.is_nan()));
            wgmma::wait_group(1, &mut second);
            assert!(second.iter().all(|sum| sum.is_nan()), "its group is the one that may be under way");
            wgmma::wait_group(0, &mut second);
            assert_products(&second, 2.0);
        });
        report.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn an_accumulator_that_a_later_wait_names() {
    for seed in SEEDS {
        run(seed, || {
            let (a, b) = operands();
            let (mut first, mut second) = ([0.0; 32], [0.0; 32]);
            wgmma::fence();
            for sums in [&mut first, &mut second] {
                wgmma::multiply_ss(sums, a.descriptor(), b.descriptor(), options(a, b));
            }
            wgmma::commit_group();
            wgmma::wait_group(0, &mut first);
            // Moved, it is still the same one.
            let mut moved = second;
            assert!(moved[0].is_nan());
            wgmma::wait_group(0, &mut moved);
            assert_eq!(first, moved);
            assert_products(&moved, 1.0);
        })
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn warps_of_a_warpgroup_need_not_be_in_step() {
    for seed in SEEDS {
        let report = run_on(256, seed, || {
            if index::thread() < 128 {
                let (a, b) = operands();
                let mut sums = [0.0; 32];
                wgmma::fence();
                for _ in 0..3 {
                    wgmma::multiply_ss(&mut sums, a.descriptor(), b.descriptor(), options(a, b));
                    wgmma::commit_group();
                    wgmma::wait_group(1, &mut sums);
                    warp::sync();
                }
                wgmma::wait_group(0, &mut sums);
                assert_products(&sums, 3.0);
            }
        });
        report.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// One product whose parts a test leaves out or adds to.
fn one_product(before: impl Fn(), under_way: impl Fn(&mut [f32; 32]), after: impl Fn(&mut [f32; 32])) {
    let (a, b) = operands();
    let mut sums = [0.0; 32];
    before();
    wgmma::multiply_ss(&mut sums, a.descriptor(), b.descriptor(), options(a, b));
    under_way(&mut sums);
    after(&mut sums);
}

fn finish(sums: &mut [f32; 32]) {
    wgmma::commit_group();
    wgmma::wait_group(0, sums);
}

#[test]
fn products_that_lack_something() {
    for seed in SEEDS {
        run(seed, || one_product(wgmma::fence, |_| {}, finish)).expect("a sound product");
        let lacks = |part: &str, kernel: &(dyn Fn() + Sync)| {
            let (error, message) = fails(seed, kernel);
            assert!(matches!(error, Error::Wgmma { .. }), "seed {seed}: {message}");
            assert_contains(&message, &[part, file!()]);
        };
        lacks("no wgmma::fence since the last wgmma::wait_group", &|| one_product(|| {}, |_| {}, finish));
        lacks("no wgmma::commit_group closes the group", &|| {
            one_product(wgmma::fence, |_| {}, |sums| wgmma::wait_group(0, sums));
        });
        lacks("no wgmma::wait_group of the thread covers this product", &|| {
            one_product(wgmma::fence, |_| {}, |_| wgmma::commit_group());
        });
        lacks("no wgmma::wait_group has been given the accumulator", &|| {
            one_product(wgmma::fence, |_| {}, |_| finish(&mut [0.0; 32]));
        });
        lacks("or it has been overwritten under way", &|| {
            one_product(wgmma::fence, |sums| *sums = [0.0; 32], finish)
        });
        lacks("its accumulator has been used before the wgmma::wait_group", &|| {
            one_product(wgmma::fence, |sums| sums[5] *= 2.0, finish);
        });
        lacks("its accumulator has been used before the wgmma::wait_group", &|| {
            one_product(wgmma::fence, |sums| sums.iter_mut().for_each(|sum| *sum *= 0.5), finish);
        });
    }
}

#[test]
fn operands_that_are_written_too_early_or_too_late() {
    let write = || shared::store(shared::base() + 4 * (index::thread() % 8), 0_u32);
    for seed in SEEDS {
        let (error, message) = fails(seed, || {
            one_product(
                wgmma::fence,
                |_| {
                    if index::thread() == 9 {
                        write()
                    }
                },
                finish,
            );
        });
        match error {
            Error::NotAwaited { .. } => assert_contains(
                &message,
                &[
                    "thread 9 writes at",
                    "thread 0 multiplies by wgmma at",
                    "no wgmma::wait_group of that warpgroup",
                ],
            ),
            // The other warps have not issued it yet.
            Error::Race { .. } => {
                assert_contains(
                    &message,
                    &["multiplies by wgmma at", "thread 9 writes at", "no barrier between"],
                );
            }
            _ => panic!("seed {seed}: {message}"),
        }
        // Another warp writes after the wait of its own, and nothing orders that after this one's.
        run(seed, || {
            one_product(wgmma::fence, |_| {}, finish);
            if index::thread() == 127 {
                write();
            }
        })
        .expect("the product is complete for the whole warpgroup");
        let unfenced = |fence_late: bool| {
            move || {
                let (a, b) = default_layouts();
                a.write(M, a_at, Element::F16);
                b.write(64, b_at, Element::F16);
                barrier::sync(0, 128);
                if fence_late {
                    fence::proxy_async();
                }
                let mut sums = [0.0; 32];
                wgmma::fence();
                wgmma::multiply_ss(&mut sums, a.descriptor(), b.descriptor(), options(a, b));
                finish(&mut sums);
            }
        };
        for fence_late in [false, true] {
            let (error, message) = fails(seed, unfenced(fence_late));
            assert!(matches!(error, Error::MissingProxyFence { .. }), "seed {seed}: {message}");
            assert_contains(
                &message,
                &["multiplies by wgmma at", " writes at ", "no fence::proxy_async by thread"],
            );
        }
        let (error, message) = fails(seed, || {
            let (a, b) = default_layouts();
            a.write(M, a_at, Element::F16);
            b.write(64, b_at, Element::F16);
            fence::proxy_async();
            let mut sums = [0.0; 32];
            wgmma::fence();
            wgmma::multiply_ss(&mut sums, a.descriptor(), b.descriptor(), options(a, b));
            finish(&mut sums);
        });
        assert!(matches!(error, Error::Race { .. }), "seed {seed}: {message}");
        let (error, message) = fails(seed, || {
            let (a, b) = default_layouts();
            a.write(M, a_at, Element::F16);
            ready();
            let mut sums = [0.0; 32];
            wgmma::fence();
            wgmma::multiply_ss(&mut sums, a.descriptor(), b.descriptor(), options(a, b));
            finish(&mut sums);
        });
        assert!(matches!(error, Error::SharedUninitialised { .. }), "seed {seed}: {message}");
    }
}

#[test]
fn warps_that_disagree() {
    let warp = || index::thread() / 32;
    for seed in SEEDS {
        let disagree = |what: &str, kernel: &(dyn Fn(Layout, Layout, &mut [f32]) + Sync)| {
            let (error, message) = fails(seed, || {
                let (a, b) = operands();
                let mut sums = [0.0; 32];
                wgmma::fence();
                kernel(a, b, &mut sums);
                wgmma::commit_group();
                wgmma::wait_group(0, &mut sums);
            });
            assert!(matches!(error, Error::Wgmma { .. } | Error::Deadlock { .. }), "seed {seed}: {message}");
            assert_contains(&message, &[what]);
        };
        disagree("with other descriptors", &|a, b, sums| {
            let further = if warp() == 2 { 2 } else { 0 };
            wgmma::multiply_ss(sums, a.descriptor() + further, b.descriptor(), options(a, b));
        });
        disagree("with other places", &|a, b, sums| match warp() {
            1 => wgmma::multiply_ss(sums, a.descriptor(), b.descriptor(), options(a, b)),
            _ => wgmma::multiply_ss(sums, a.descriptor(), b.descriptor(), options(a, b)),
        });
        disagree("with other groups", &|a, b, sums| {
            if warp() == 3 {
                wgmma::commit_group();
            }
            wgmma::multiply_ss(sums, a.descriptor(), b.descriptor(), options(a, b));
        });
        disagree("with other operations", &|a, b, sums| {
            let accumulate = warp() == 0;
            let options = Options { accumulate, ..options(a, b) };
            wgmma::multiply_ss(sums, a.descriptor(), b.descriptor(), options);
        });
        disagree("lanes of the warp bring different descriptors", &|a, b, sums| {
            let further = if index::thread() == 70 { 2 } else { 0 };
            wgmma::multiply_ss(sums, a.descriptor() + further, b.descriptor(), options(a, b));
        });
        disagree("wait at wgmma::wait_group with 0 pending", &|a, b, sums| {
            if warp() != 2 {
                wgmma::multiply_ss(sums, a.descriptor(), b.descriptor(), options(a, b));
            }
        });
    }
}

#[test]
fn products_that_the_device_does_not_take() {
    let message = |threads, kernel: &(dyn Fn() + Sync)| {
        run_on(threads, 0, kernel).expect_err("the product is invalid").to_string()
    };
    let (a, b) = default_layouts();
    let multiply = |sums: &mut [f32], b_bits: u64| {
        wgmma::fence();
        wgmma::multiply_ss(sums, a.descriptor(), b_bits, options(a, b));
    };
    for (message, part) in [
        (
            message(128, &|| multiply(&mut [0.0; 6], b.descriptor())),
            "n is 12, not a multiple of 8 from 8 to 256",
        ),
        (message(128, &|| multiply(&mut [0.0; 132], b.descriptor())), "n is 264"),
        (message(64, &|| multiply(&mut [0.0; 32], b.descriptor())), "threads 0 on are no whole warpgroup"),
        (message(128, &|| multiply(&mut [0.0; 32], 1 << 49)), "base offset 1, only 0 is modelled"),
        (message(128, &|| multiply(&mut [0.0; 32], 1 << 47)), "reserved bits set"),
        (message(128, &|| multiply(&mut [0.0; 32], b.descriptor() | 0x3fff)), "out of bounds"),
    ] {
        assert!(message.contains(part), "`{part}` is missing from: {message}");
    }
}

#[test]
fn races_unreported_show_as_the_result_they_give() {
    let result = |seed| {
        let schedule = Schedule::from_seed(seed).without_race_detection();
        let config = Launch { shared_bytes: 64 * 1024, schedule, ..one_block(128, 0) };
        launch(&config, &|| {
            one_product(
                wgmma::fence,
                |_| {
                    barrier::sync(0, 128);
                    (index::thread()..5120).step_by(128).for_each(|word| {
                        shared::store(shared::base() + 4 * word, 0_u32);
                    });
                    barrier::sync(0, 128);
                },
                |sums| {
                    finish(sums);
                    assert_products(sums, 1.0);
                },
            );
        })
    };
    assert!(result(0).is_err(), "ascending order: computed at the wait");
    assert!(result(1).is_ok(), "descending order: computed at the issue");
}
