//! Parts of the algorithm by themselves: of the model, and of the CPU's own tiles where it has them.

use super::kernels::{MODEL, TileKernels};
use super::product::{BLOCK, Operand, Product, TILE_BYTES, TILE_ROW_BYTES};
use crate::cpu::softmax::State;

/// The model's functions, and those that this CPU can run.
fn tables() -> Vec<TileKernels> {
    #[allow(unused_mut, reason = "only this system and CPU have others")]
    let mut tables = vec![MODEL];
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if crate::cpu::Isa::available().contains(&crate::cpu::Isa::Amx) {
        tables.push(super::AMX);
    }
    tables
}

/// Numbers between −2 and 2, of which bf16 holds each.
fn numbers(count: usize, seed: usize) -> Vec<u16> {
    let value = |index: usize| ((index * 37 + seed * 101) % 129) as f32 / 32.0 - 2.0;
    (0..count).map(|index| half::bf16::from_f32(value(index)).to_bits()).collect()
}

/// C = A·B and C += A·B of two by one blocks and two steps, whose operands are tiles one after another.
#[test]
fn products_are_those_of_the_definition() {
    const DEPTH: usize = 64;
    let (a, b) = (numbers(2 * BLOCK * DEPTH, 1), numbers(BLOCK * DEPTH, 2));
    // Tiles [rows / 16][depth / 32][16 rows][32], and [columns / 16][depth / 32][16 pairs][16 columns][2].
    let of_a = |i: usize, k: usize| a[((i / 16 * 2 + k / 32) * 16 + i % 16) * 32 + k % 32];
    let of_b = |k: usize, j: usize| b[((j / 16 * 2 + k / 32) * 16 + k % 32 / 2) * 32 + j % 16 * 2 + k % 2];
    let wide = |bits| f64::from(half::bf16::from_bits(bits).to_f32());
    let exact = |i, j| (0..DEPTH).map(|k| wide(of_a(i, k)) * wide(of_b(k, j))).sum::<f64>();
    let operand = |data: &[u16]| Operand {
        data: data.as_ptr().cast(),
        row: TILE_ROW_BYTES,
        tile: 2 * TILE_BYTES,
        step: TILE_BYTES,
        part: 0,
    };
    for kernels in tables() {
        let mut c = vec![f32::NAN; 2 * BLOCK * BLOCK];
        for adds in [false, true] {
            let product = Product {
                a: operand(&a),
                b: operand(&b),
                parts: &[(0, 0)],
                steps: 2,
                blocks: (2, 1),
                c: c.as_mut_ptr(),
                c_stride: BLOCK,
                adds,
            };
            // SAFETY: the CPU has the tiles; the three matrices are as large as the product says.
            unsafe {
                (kernels.configure)();
                (kernels.multiply)(&product);
                (kernels.release)();
            }
            let times = if adds { 2.0 } else { 1.0 };
            for (index, found) in c.iter().enumerate() {
                // Multiples of 2⁻¹⁰ below 2¹⁰ are exact in fp32 in any order.
                assert_eq!(f64::from(*found), times * exact(index / BLOCK, index % BLOCK), "{index}");
            }
        }
    }
}

#[test]
fn transposed_words_are_where_they_belong() {
    let from: Vec<u32> = (0..16 * 19).collect();
    for kernels in tables() {
        let mut to = vec![u32::MAX; 16 * 17];
        // SAFETY: the CPU has the instruction set; both sides have 16 rows of 16 words.
        unsafe { (kernels.transpose)(from.as_ptr(), 19, to.as_mut_ptr(), 17) };
        for (index, word) in to.into_iter().enumerate() {
            let (i, j) = (index / 17, index % 17);
            assert_eq!(word, if j < 16 { from[j * 19 + i] } else { u32::MAX }, "{i}, {j}");
        }
    }
}

/// Scores of two keys more than a block of pairs has, with one lane whose maximum grows little and others
/// whose maximum grows much.
#[test]
fn weights_are_pairs_of_bf16_and_small_growth_keeps_the_maximum() {
    const KEYS: usize = 131;
    let score = |key: usize, lane: usize| ((key * 13 + lane * 7) % 41) as f32 / 4.0 - 5.0;
    for kernels in tables() {
        for (width, parts) in [(32, 1), (64, 2)] {
            let mut scores = vec![f32::NAN; KEYS.next_multiple_of(32) * width];
            for (index, value) in scores[..KEYS * width].iter_mut().enumerate() {
                *value = score(index / width, index % width);
            }
            let mut max: Vec<f32> = (0..width).map(|lane| if lane == 0 { 6.0 } else { f32::MIN }).collect();
            let (mut sum, mut rescale) = (vec![1.0_f32; width], vec![f32::NAN; width]);
            let state = State { max: max.as_mut_ptr(), sum: sum.as_mut_ptr(), rescale: rescale.as_mut_ptr() };
            // SAFETY: the CPU has the instruction set; scores are whole steps of keys, the state one row
            // each.
            unsafe { kernels.update((width, parts), scores.as_mut_ptr(), KEYS, 2.0, state) };
            // The largest score is 5, which is 10 in units of log2: within 8 of the first lane's maximum.
            for lane in 0..width {
                let (kept, factor) = if lane == 0 { (6.0, 1.0) } else { (10.0, 0.0) };
                assert_eq!((max[lane], rescale[lane]), (kept, factor), "{lane}");
                let exact = |key| (2.0 * f64::from(score(key, lane)) - kept as f64).exp2();
                let total = f64::from(factor) + (0..KEYS).map(exact).sum::<f64>();
                assert!((f64::from(sum[lane]) / total - 1.0).abs() < 1e-6, "{lane}");
                for key in 0..KEYS.next_multiple_of(32) {
                    let part = |part: usize| {
                        let word = scores[(key / 2 * parts + part) * width + lane].to_bits();
                        f64::from(f32::from_bits(if key % 2 == 0 { word << 16 } else { word & 0xffff_0000 }))
                    };
                    let found: f64 = (0..parts).map(part).sum();
                    let exact = if key < KEYS { exact(key) } else { 0.0 };
                    let roundoff = [1.0 / 256.0, 1.0 / 65_536.0][parts - 1];
                    assert!(
                        (found - exact).abs() <= 1.02 * roundoff * exact,
                        "{key}, {lane}: {found}, {exact}"
                    );
                }
            }
        }
    }
}
