//! `ldmatrix`, `mma` and the packing conversions. Layouts are those of the tables of the PTX ISA,
//! written down here once more.

use fa_kernels::ptx::{barrier, convert, index, ldmatrix, mma, shared};
use fa_sim::{AccessKind, Error, launch};
use half::{bf16, f16};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::{SEEDS, one_block};

type A = [[f32; 16]; 16];
type B = [[f32; 8]; 16];
type D = [[f32; 8]; 16];

/// A change to the registers of A and B.
type Reorder = fn([u32; 4], [u32; 2]) -> ([u32; 4], [u32; 2]);

/// One storage type: its packing and its `mma`.
struct Kind {
    pack: fn(f32, f32) -> u32,
    multiply: unsafe fn(&mut [f32; 4], [u32; 4], [u32; 2]),
    round: fn(f32) -> f32,
}

const KINDS: [Kind; 2] = [
    Kind { pack: convert::pack_f16x2, multiply: mma::m16n8k16_f16, round: |x| f16::from_f32(x).to_f32() },
    Kind { pack: convert::pack_bf16x2, multiply: mma::m16n8k16_bf16, round: |x| bf16::from_f32(x).to_f32() },
];

/// Runs `kernel` on one warp, whose lanes get their index and give the four values of a D fragment, and
/// returns the matrix (PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": c_i).
fn warp(seed: u64, kernel: impl Fn(usize) -> [f32; 4] + Sync) -> D {
    let fragments: Vec<std::sync::Mutex<[f32; 4]>> = (0..32).map(|_| std::sync::Mutex::default()).collect();
    let run = || {
        let lane = index::thread() as usize;
        let fragment = kernel(lane);
        *fragments[lane].lock().unwrap() = fragment;
    };
    launch(&one_block(32, seed), &run).unwrap();
    let mut d = D::default();
    for (lane, fragment) in fragments.into_iter().enumerate() {
        for (i, value) in fragment.into_inner().unwrap().into_iter().enumerate() {
            let row = lane / 4 + if i < 2 { 0 } else { 8 };
            d[row][lane % 4 * 2 + i % 2] = value;
        }
    }
    d
}

/// A lane's part of A: the table's a_0 to a_7, two to a register.
fn fragment_a(kind: &Kind, a: &A, lane: usize) -> [u32; 4] {
    let element = |i: usize| {
        let row = lane / 4 + if matches!(i, 0 | 1 | 4 | 5) { 0 } else { 8 };
        let column = lane % 4 * 2 + (i & 1) + if i < 4 { 0 } else { 8 };
        a[row][column]
    };
    std::array::from_fn(|register| (kind.pack)(element(2 * register), element(2 * register + 1)))
}

/// A lane's part of B: the table's b_0 to b_3, two to a register.
fn fragment_b(kind: &Kind, b: &B, lane: usize) -> [u32; 2] {
    let element = |i: usize| b[lane % 4 * 2 + (i & 1) + if i < 2 { 0 } else { 8 }][lane / 4];
    std::array::from_fn(|register| (kind.pack)(element(2 * register), element(2 * register + 1)))
}

fn fragment_d(d: &D, lane: usize) -> [f32; 4] {
    std::array::from_fn(|i| d[lane / 4 + if i < 2 { 0 } else { 8 }][lane % 4 * 2 + i % 2])
}

fn random<const COLUMNS: usize>(rng: &mut ChaCha8Rng, kind: &Kind) -> [[f32; COLUMNS]; 16] {
    let mut value = || (kind.round)(rng.next_u32() as i32 as f32 * 2.0_f32.powi(-30));
    std::array::from_fn(|_| std::array::from_fn(|_| value()))
}

#[test]
fn each_element_of_a_meets_its_row_of_b() {
    for kind in &KINDS {
        // All different, and exact in both types.
        let b: B = std::array::from_fn(|k| std::array::from_fn(|n| (8 * k + n + 1) as f32));
        for (row, k) in (0..16).flat_map(|row| (0..16).map(move |k| (row, k))) {
            let mut a = A::default();
            a[row][k] = 1.0;
            let d = warp(0, |lane| {
                let mut acc = [0.0; 4];
                // SAFETY: the whole warp is here.
                unsafe { (kind.multiply)(&mut acc, fragment_a(kind, &a, lane), fragment_b(kind, &b, lane)) };
                acc
            });
            let mut expected = D::default();
            expected[row] = b[k];
            assert_eq!(d, expected, "A is 1 at ({row}, {k})");
        }
    }
}

/// The largest error of D = C + A·B as a multiple of what fp32 sums in any order may have.
fn error_of(d: &D, a: &A, b: &B, c: &D) -> f64 {
    let mut worst = 0.0_f64;
    for (m, n) in (0..16).flat_map(|m| (0..8).map(move |n| (m, n))) {
        let products: Vec<f64> = (0..16).map(|k| f64::from(a[m][k]) * f64::from(b[k][n])).collect();
        let exact = f64::from(c[m][n]) + products.iter().sum::<f64>();
        let size = f64::from(c[m][n]).abs() + products.iter().map(|product| product.abs()).sum::<f64>();
        // 16 sums, each rounded to 24 bits.
        worst = worst.max((f64::from(d[m][n]) - exact).abs() / (16.0 * 2.0_f64.powi(-24) * size));
    }
    worst
}

#[test]
fn random_products_are_as_exact_as_fp32_sums() {
    for kind in &KINDS {
        for seed in SEEDS {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let (a, b, c): (A, B, D) =
                (random(&mut rng, kind), random(&mut rng, kind), random(&mut rng, &KINDS[0]));
            let product = |reorder: Reorder| {
                warp(seed, |lane| {
                    let mut acc = fragment_d(&c, lane);
                    let (a, b) = reorder(fragment_a(kind, &a, lane), fragment_b(kind, &b, lane));
                    // SAFETY: the whole warp is here.
                    unsafe { (kind.multiply)(&mut acc, a, b) };
                    acc
                })
            };
            let error = error_of(&product(|a, b| (a, b)), &a, &b, &c);
            assert!(error <= 1.0, "seed {seed}: {error} times what fp32 allows");
            // The measure is one that a wrong fragment does not pass.
            let wrong: [Reorder; 4] = [
                |[a0, a1, a2, a3], b| ([a0, a2, a1, a3], b),
                |[a0, a1, a2, a3], b| ([a1, a0, a3, a2], b),
                |a, [b0, b1]| (a, [b1, b0]),
                |a, b| (a.map(|halves| halves.rotate_left(16)), b),
            ];
            for (case, reorder) in wrong.into_iter().enumerate() {
                let error = error_of(&product(reorder), &a, &b, &c);
                assert!(error > 100.0, "seed {seed}, case {case}: {error}");
            }
        }
    }
}

/// Writes each thread's row of eight 16-bit elements, 8·row + column, and waits for all of them.
fn write_rows(threads: u32) {
    for pair in 0..4 {
        let low = 8 * index::thread() + 2 * pair;
        // SAFETY: each thread writes its own 16 bytes; the barrier is for the whole block.
        unsafe {
            shared::store(
                shared::base() + 16 * index::thread() + 4 * pair,
                f32::from_bits(low | (low + 1) << 16),
            );
        }
    }
    // SAFETY: as above.
    unsafe { barrier::sync(0, threads) };
}

#[test]
fn matrices_arrive_as_the_isa_says() {
    for seed in SEEDS {
        let kernel = || {
            let lane = index::thread();
            write_rows(32);
            // SAFETY: the whole warp is here, and the rows are written.
            let (plain, transposed, plain_2, transposed_2) = unsafe {
                let row = shared::base() + 16 * lane;
                (
                    ldmatrix::load_x4(row),
                    ldmatrix::load_x4_transposed(row),
                    ldmatrix::load_x2(row),
                    ldmatrix::load_x2_transposed(row),
                )
            };
            for matrix in 0..4 {
                let element = |row: u32, column: u32| 64 * matrix + 8 * row + column;
                let (row, column) = (lane / 4, lane % 4 * 2);
                let register = matrix as usize;
                assert_eq!(plain[register], element(row, column) | element(row, column + 1) << 16);
                assert_eq!(transposed[register], element(column, row) | element(column + 1, row) << 16);
            }
            assert_eq!((plain_2, transposed_2), ([plain[0], plain[1]], [transposed[0], transposed[1]]));
        };
        launch(&one_block(32, seed), &kernel).unwrap();
    }
}

#[test]
fn a_matrix_read_without_a_barrier_is_a_race_of_the_lane_that_names_the_row() {
    for seed in SEEDS {
        let error = launch(&one_block(64, seed), &|| {
            if index::thread() < 32 {
                write_rows(32);
            } else {
                // SAFETY: not sound, and reported: warp 1 does not wait for warp 0.
                unsafe { ldmatrix::load_x4(shared::base() + 16 * (index::thread() - 32)) };
            }
        })
        .unwrap_err();
        let Error::Race { first, second, offset, .. } = &error else { panic!("seed {seed}: {error}") };
        let reader = if first.kind == AccessKind::Read { first } else { second };
        assert_eq!((reader.thread, reader.site.file), (32 + offset / 16, file!()), "{error}");
    }
}

#[test]
fn lanes_that_do_not_come_are_waited_for() {
    for kind in &KINDS {
        let error = launch(&one_block(32, 3), &|| {
            if index::thread() != 9 {
                // SAFETY: not sound, and reported: a lane is missing.
                unsafe { (kind.multiply)(&mut [0.0; 4], [0; 4], [0; 2]) };
            }
        })
        .unwrap_err();
        assert!(matches!(error, Error::Deadlock { .. }), "{error}");
    }
}

#[test]
fn packed_sums_are_operands_of_the_next_product() {
    for (kind, seed) in KINDS.iter().zip(SEEDS) {
        // Small integers, so that everything is exact.
        let small = |m: usize, n: usize| ((3 * m + 5 * n) % 4) as f32 - 1.0;
        let a: A = std::array::from_fn(|m| std::array::from_fn(|k| small(m, k)));
        let wide: A = std::array::from_fn(|k| std::array::from_fn(|n| small(n + 1, k * k)));
        let b: B = std::array::from_fn(|k| std::array::from_fn(|n| small(k, n * n + 2)));
        let half =
            |first: usize| -> B { std::array::from_fn(|k| std::array::from_fn(|n| wide[k][first + n])) };
        let (left, right) = (half(0), half(8));
        let d = warp(seed, |lane| {
            let (mut sums, mut acc) = ([[0.0; 4]; 2], [0.0; 4]);
            let a = fragment_a(kind, &a, lane);
            // SAFETY: the whole warp is here.
            unsafe {
                for (sums, b) in sums.iter_mut().zip([&left, &right]) {
                    (kind.multiply)(sums, a, fragment_b(kind, b, lane));
                }
                let p = [sums[0][..2].as_ref(), &sums[0][2..], &sums[1][..2], &sums[1][2..]]
                    .map(|pair| (kind.pack)(pair[0], pair[1]));
                (kind.multiply)(&mut acc, p, fragment_b(kind, &b, lane));
            }
            acc
        });
        for (m, n) in (0..16).flat_map(|m| (0..8).map(move |n| (m, n))) {
            let p = |j: usize| (0..16).map(|k| a[m][k] * wide[k][j]).sum::<f32>();
            assert_eq!(d[m][n], (0..16).map(|j| p(j) * b[j][n]).sum::<f32>(), "({m}, {n})");
        }
    }
}

#[test]
fn packing_rounds_each_half_to_nearest_even() {
    for high in (0..=u16::MAX).step_by(7) {
        for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let x = f32::from_bits(u32::from(high) << 16 | low);
            let y = f32::from_bits(u32::from(high.rotate_left(8)) << 16 | low);
            for (packed, round, canonical) in [
                (convert::pack_f16x2(x, y), (|x| f16::from_f32(x).to_bits()) as fn(f32) -> u16, 0x7fff),
                (convert::pack_bf16x2(x, y), |x| bf16::from_f32(x).to_bits(), 0x7fff),
            ] {
                let expected = |x: f32| if x.is_nan() { canonical } else { round(x) };
                assert_eq!(
                    (packed as u16, (packed >> 16) as u16),
                    (expected(x), expected(y)),
                    "{x:e}, {y:e}"
                );
            }
        }
    }
}
