//! Products of a warpgroup: what they compute from every layout, and when.

mod common;
#[path = "common/operands.rs"]
mod operands;

use fa_sim::wgmma::{self, Element, Options};
use fa_sim::{index, shared, warp};
use operands::*;

const SEEDS: std::ops::Range<u64> = 0..8;

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

/// The product of K = 32 columns.
fn wide_product_at(row: usize, column: usize) -> f32 {
    (0..2 * K).map(|k| a_at(row, k) * b_at(column, k)).sum::<i32>() as f32
}

/// This thread's registers of A (PTX ISA, "wgmma .m64nNk32 register fragment layout for matrix A"): four
/// neighbours along K in each.
fn e4m3_registers() -> [u32; 4] {
    let thread = index::thread() as usize;
    std::array::from_fn(|register| {
        let row = thread / 32 * 16 + thread % 32 / 4 + 8 * (register % 2);
        let k = thread % 4 * 4 + 16 * (register / 2);
        u32::from_le_bytes(std::array::from_fn(|i| e4m3_of(a_at(row, k + i))))
    })
}

#[test]
fn products_of_8_bit_elements_from_every_swizzle() {
    let base = shared::base();
    for (seed, (kind_a, kind_b)) in (0..).zip(KINDS.into_iter().flat_map(|a| KINDS.map(|b| (a, b)))) {
        let (a, b) = (Layout::new(base, kind_a, false), Layout::new(base + 20 * 1024, kind_b, false));
        let report = run(seed, || {
            a.write_e4m3(M, a_at);
            b.write_e4m3(64, b_at);
            ready();
            let options = Options { element: Element::E4m3, ..options(a, b) };
            let (mut shared, mut registers) = ([0.0; 32], [1.0; 32]);
            wgmma::fence();
            wgmma::multiply_ss(&mut shared, a.descriptor(), b.descriptor(), options);
            wgmma::multiply_rs(&mut registers, e4m3_registers(), b.descriptor(), options);
            wgmma::commit_group();
            wgmma::wait_group(0, &mut shared);
            wgmma::wait_group(0, &mut registers);
            for index in 0..32 {
                let (row, column) = place(index);
                let product = wide_product_at(row, column);
                assert_eq!((shared[index], registers[index]), (product, 1.0 + product), "({row}, {column})");
            }
        });
        report.unwrap_or_else(|error| panic!("{a:?} {b:?}: {error}"));
    }
}

#[test]
fn operands_of_8_bit_elements_are_not_transposed() {
    for transposed in [0, 1] {
        let (_, message) = fails(0, || {
            let (a, b) = operands();
            let (transposed_a, transposed_b) = (transposed == 0, transposed == 1);
            let options = Options { element: Element::E4m3, transposed_a, transposed_b, ..options(a, b) };
            let mut sums = [0.0; 32];
            wgmma::fence();
            wgmma::multiply_ss(&mut sums, a.descriptor(), b.descriptor(), options);
        });
        assert!(message.contains("an operand is transposed"), "{message}");
    }
}
