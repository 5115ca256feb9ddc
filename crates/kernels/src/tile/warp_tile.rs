//! A warp's part of a product in registers, from the fragments in shared memory to the rows in device memory.

use core::marker::PhantomData;

use crate::ptx::{global, index, warp};
use crate::tile::mma::{CHUNK, MmaElement, QUAD};
use crate::tile::mma_block::{Fragments, Panel};
use crate::tile::simt::GlobalTile;

/// Fragments of A and of B for sixteen of K.
type Loaded<const BLOCKS: usize, const PAIRS: usize> = ([[u32; 4]; BLOCKS], [[u32; 4]; PAIRS]);

/// A warp's part of C: `BLOCKS` × `PAIRS` blocks of 16 × 16, each two products of `mma`.
pub struct WarpTile<E, A, B, const BLOCKS: usize, const PAIRS: usize> {
    a: Fragments<A>,
    b: Fragments<B>,
    loaded: [Loaded<BLOCKS, PAIRS>; 2],
    acc: [[[[f32; 4]; 2]; PAIRS]; BLOCKS],
    element: PhantomData<E>,
}

impl<E: MmaElement, A: Panel, B: Panel, const BLOCKS: usize, const PAIRS: usize>
    WarpTile<E, A, B, BLOCKS, PAIRS>
{
    /// For the warp whose part begins at row `m` and column `n` of the block's tile.
    #[inline(always)]
    pub fn new(m: u32, n: u32) -> Self {
        Self {
            a: Fragments::of_a(m),
            b: Fragments::of_b(n),
            loaded: [([[0; 4]; BLOCKS], [[0; 4]; PAIRS]); 2],
            acc: [[[[0.0; 4]; 2]; PAIRS]; BLOCKS],
            element: PhantomData,
        }
    }

    /// Begins another tile.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.acc = [[[[0.0; 4]; 2]; PAIRS]; BLOCKS];
    }

    /// Loads the `part`-th sixteen of K of the stage at `stage` into buffer `buffer`.
    ///
    /// # Safety
    /// As [`Fragments::load`].
    #[inline(always)]
    pub unsafe fn load(&mut self, buffer: usize, stage: u32, part: usize) {
        let mut i = 0;
        while i < PAIRS {
            // SAFETY: the stage's panel of B is written, with a barrier between, and all lanes are here.
            self.loaded[buffer].1[i] = unsafe { self.b.load(stage + A::BYTES, i as u32, part as u32) };
            i += 1;
        }
        let mut i = 0;
        while i < BLOCKS {
            // SAFETY: the stage's panel of A is written, with a barrier between, and all lanes are here.
            self.loaded[buffer].0[i] = unsafe { self.a.load(stage, i as u32, part as u32) };
            i += 1;
        }
    }

    /// Adds the products of what buffer `buffer` holds.
    ///
    /// # Safety
    /// All 32 lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn multiply(&mut self, buffer: usize) {
        let (a, b) = self.loaded[buffer];
        let mut i = 0;
        while i < BLOCKS {
            let mut j = 0;
            while j < PAIRS {
                // SAFETY: all lanes of the warp are here.
                unsafe {
                    E::mma(&mut self.acc[i][j][0], a[i], [b[j][0], b[j][1]]);
                    E::mma(&mut self.acc[i][j][1], a[i], [b[j][2], b[j][3]]);
                }
                j += 1;
            }
            i += 1;
        }
    }

    /// Adds the products of the last step, in `parts` times sixteen of K, whose first fragments are loaded.
    ///
    /// # Safety
    /// As [`Self::load`].
    #[inline(always)]
    pub unsafe fn finish(&mut self, stage: u32, parts: usize) {
        let mut part = 0;
        while part < parts {
            // SAFETY: the stage is written, with a barrier between, and all lanes are here.
            unsafe {
                if part + 1 < parts {
                    self.load((part + 1) % 2, stage, part + 1);
                }
                self.multiply(part % 2);
            }
            part += 1;
        }
    }

    /// Calls `f` with row and column, within the warp's part, of each pair of neighbours that this lane has,
    /// and with the pair, times `factor` and rounded.
    #[inline(always)]
    pub fn each_pair(&self, factor: f32, mut f: impl FnMut(u32, u32, u32)) {
        let lane = index::reread_thread() % 32;
        let (group, pair) = (lane / QUAD, lane % QUAD);
        let mut i = 0;
        while i < 2 * BLOCKS {
            let mut j = 0;
            while j < 2 * PAIRS {
                let block = &self.acc[i / 2][j / 2][j % 2];
                let (low, high) = (block[2 * (i % 2)] * factor, block[2 * (i % 2) + 1] * factor);
                f(8 * i as u32 + group, 8 * j as u32 + 2 * pair, E::pack(low, high));
                j += 1;
            }
            i += 1;
        }
    }

    /// Rounds and stores what exists of the warp's part, which begins at row `m` and column `n` of C.
    ///
    /// # Safety
    /// C is writable, and all 32 lanes of the warp call this together.
    #[inline(always)]
    pub unsafe fn store(&self, c: &GlobalTile, m: u32, n: u32) {
        let lane = index::thread() % 32;
        let (group, pair) = (lane / QUAD, lane % QUAD);
        let in_chunks = (c.address | (2 * c.stride)).is_multiple_of(CHUNK as u64);
        let mut i = 0;
        while i < 2 * BLOCKS {
            let row = m + 8 * i as u32 + group;
            let mut j = 0;
            while j < PAIRS {
                let word = |j: usize, half: usize| {
                    let block = &self.acc[i / 2][j][half];
                    E::pack(block[2 * (i % 2)], block[2 * (i % 2) + 1])
                };
                let words = [word(j, 0), word(j, 1), word(j + 1, 0), word(j + 1, 1)];
                // The quad's columns of four products are neighbours; now each lane gets eight that are.
                // SAFETY: all lanes are here, and each stores only elements that exist and are its own.
                unsafe {
                    let words = transpose_quad(words);
                    let column = n + 16 * j as u32 + 8 * pair;
                    if row < c.rows {
                        let address = c.at::<E>(row, column);
                        if in_chunks && column + 8 <= c.columns {
                            global::store4(address, words);
                        } else {
                            store_elements(address, words, c.columns.saturating_sub(column));
                        }
                    }
                }
                j += 2;
            }
            i += 1;
        }
    }
}

/// Stores the first `elements` of eight 16-bit elements, one by one.
///
/// # Safety
/// They exist at `address`, and no other thread accesses them.
#[inline(always)]
unsafe fn store_elements(address: u64, words: [u32; 4], elements: u32) {
    let mut i = 0;
    while i < 8 {
        if (i as u32) < elements {
            let half = (words[i / 2] >> (16 * (i % 2))) as u16;
            // SAFETY: the element exists, and no other thread accesses it.
            unsafe { global::store_b16(address + 2 * i as u64, half) };
        }
        i += 1;
    }
}

/// Transposes the 4×4 words that the lanes of a quad hold: lane t gets word t of each, in their order.
///
/// # Safety
/// All 32 lanes of the warp call this together.
#[inline(always)]
#[track_caller]
unsafe fn transpose_quad(words: [u32; 4]) -> [u32; 4] {
    let lane = index::thread() % QUAD;
    // SAFETY: all lanes of the warp are here.
    let exchange = |word: u32, mask: u32| unsafe { warp::shuffle_xor(f32::from_bits(word), mask) }.to_bits();
    let [a, b, c, d] = words;
    // Blocks of 2×2 first, then the two blocks off the diagonal.
    let odd = lane % 2 == 1;
    let (ab, cd) = (exchange(if odd { a } else { b }, 1), exchange(if odd { c } else { d }, 1));
    let [a, b, c, d] = if odd { [ab, b, cd, d] } else { [a, ab, c, cd] };
    let high = lane / 2 == 1;
    let (ac, bd) = (exchange(if high { a } else { c }, 2), exchange(if high { b } else { d }, 2));
    if high { [ac, bd, c, d] } else { [a, b, ac, bd] }
}
