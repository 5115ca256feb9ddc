//! Dropout of what a thread holds of a product of tensor cores: of 16 weights in one draw.

use super::Dropout;
use crate::ptx::{bytes, index, warp};
use crate::registers::Registers;
use crate::tile::mma::QUAD;

/// The bit of a thread's weight among those that are kept: of row `i` and column `j` of what it holds, as
/// [`tile::mma`](crate::tile::mma) counts them. A warp has 16 rows and at most 64 columns, or 32 of each.
#[inline(always)]
pub const fn kept_bit(i: usize, j: usize) -> u32 {
    (16 * (j % 2) + 8 * (i / 2) + j / 2 * 2 + i % 2) as u32
}

impl Dropout {
    /// The words of a thread's weights in a product of tensor cores, one for each four of them, in the order
    /// of the product's registers: of each 32 columns from `key` on, row `query` and row `query` + 8.
    ///
    /// Modulo 16 `query` is below 8, and modulo 32 `key` is even and below 8.
    #[inline(always)]
    pub fn draw_of_fragment<W: Registers<Value = u32>>(&self, head: u32, query: u32, key: u32) -> W {
        let mut drawn = W::ZERO;
        let mut at = 0;
        while at < W::LEN {
            let words = self.draw(head, query, key + 8 * at as u32);
            let mut word = 0;
            while word < words.len() {
                drawn[at + word] = words[word];
                word += 1;
            }
            at += words.len();
        }
        drawn
    }

    /// All ones in place of each weight that is kept, as 16-bit halves of eight registers: the weights of the
    /// words of a draw, in order.
    #[inline(always)]
    pub fn masks(&self, words: [u32; 4]) -> [u32; 8] {
        // Bytes as mantissas of fp16 numbers from 1024 on.
        let least = ONES * (EXPONENT + self.least(words));
        let mut masks = [0; 8];
        let mut i = 0;
        while i < masks.len() {
            masks[i] = mask(words[i / 2], i % 2, least);
            i += 1;
        }
        masks
    }

    /// Which of a thread's weights are kept, each at [`kept_bit`], where a warp's rows are 16 or 32 queries,
    /// and its columns 16 or 32 keys. `query` and `key` are those of the thread's first weight.
    ///
    /// Modulo 16 `query` is below 8, and modulo as many as there are keys `key` is even and below 8.
    #[inline(always)]
    pub fn kept_of_queries(&self, head: u32, (query, key): (u32, u32), (queries, keys): (u32, u32)) -> u32 {
        let (mut kept, mut m) = (0, 0);
        while m < queries / 16 {
            let words = self.reread().draw(head, query + 16 * m, key & !25);
            let least = ONES * (EXPONENT + self.least(words));
            let mut i = 0;
            while i < keys / 4 {
                let word = if key & 16 == 0 { words[i as usize / 2] } else { words[i as usize / 2 % 2 + 2] };
                kept |= mask(word, i as usize % 2, least) & ONES << (8 * m + i);
                i += 1;
            }
            m += 1;
        }
        kept
    }

    /// As [`Self::kept_of_queries`], where a warp's rows are keys, and its columns 16, 32 or, of 16 keys, 64
    /// queries.
    ///
    /// The lanes of two neighbouring keys need the same draws: each makes those of every second query, and
    /// gives the other one its half. Modulo 16 `query` is even and below 8, and modulo as many as there are
    /// keys `key` is below 8.
    ///
    /// # Safety
    /// All lanes of the warp call this together.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn kept_of_keys(
        &self,
        head: u32,
        (query, key): (u32, u32),
        (queries, keys): (u32, u32),
    ) -> u32 {
        let is_odd = key % 2;
        let own = self.kept_of_both_keys(head, (query + is_odd, key), (queries, keys));
        // SAFETY: the warp's lanes are together. The value is moved, and nothing is done with it as a number.
        let other = unsafe { warp::shuffle_xor(f32::from_bits(own), QUAD) }.to_bits();
        // This lane's key has a half of each: even queries go below, odd ones above.
        bytes::permute(own, other, if is_odd == 0 { 0x5410 } else { 0x3276 })
    }

    /// Which weights of every second query of [`Self::kept_of_keys`] are kept, of pairs of neighbouring keys.
    /// Bit 8p + 4m + 2h + k is that of query `query` + 16m + 8h and the even key of a pair. With p = k = 0
    /// that is `key`'s pair, else the one 16p + 8k behind it. The bit of the odd key is 16 above.
    ///
    /// Modulo 16 `query` is below 8.
    #[inline(always)]
    fn kept_of_both_keys(&self, head: u32, (query, key): (u32, u32), (queries, keys): (u32, u32)) -> u32 {
        let (groups, pairs) = (queries / 16, keys / 16);
        // Two draws at a time: the kernels have no registers for four, and one would wait for itself.
        let together = groups.min(2);
        let (mut kept, mut draws) = (0, if groups > 2 { index::unknown(groups / 2) } else { 1 });
        while draws > 0 {
            draws -= 1;
            let mut m = together;
            while m > 0 {
                m -= 1;
                let words = self.reread().draw(head, query + 16 * (together * draws + m), key & !25);
                let least = ONES * (EXPONENT + self.least(words));
                kept <<= 4;
                let mut p = 0;
                while p < pairs {
                    let is_first = (key + 16 * p) & 16 == 0;
                    let of_keys = if is_first { [words[0], words[1]] } else { [words[2], words[3]] };
                    let mut i = 0;
                    while i < 4 {
                        kept |= mask(of_keys[i % 2], i / 2, least) & ONES << (8 * p + i as u32);
                        i += 1;
                    }
                    p += 1;
                }
            }
        }
        kept
    }
}

/// All ones in each half whose byte is at least `least`, an fp16 number: of the bytes of a word's first or
/// second row.
#[inline(always)]
fn mask(word: u32, row: usize, least: u32) -> u32 {
    let pair = bytes::permute(word, (ONES * EXPONENT) >> 8, [0x4140, 0x4342][row]);
    bytes::halves_at_least(pair, least)
}

/// 1 in both halves of a word.
const ONES: u32 = 0x0001_0001;

/// The fp16 number 1024, from which on neighbours are 1 apart.
const EXPONENT: u32 = 0x6400;

#[cfg(test)]
mod tests {
    use super::*;

    const DROPOUT: Dropout = Dropout { seed: 9, offset: 4, threshold: 0x8123_4567, scale: 1.0 };

    #[test]
    fn a_fragment_has_the_weights_that_the_definition_gives() {
        let (head, query, key) = (5, 16 + 3, 64 + 6);
        let words: [u32; 8] = DROPOUT.draw_of_fragment(head, query, key);
        for (draw, words) in words.as_chunks::<4>().0.iter().enumerate() {
            for (register, mask) in DROPOUT.masks(*words).into_iter().enumerate() {
                for half in 0..2 {
                    let key = key + 32 * draw as u32 + 8 * (register as u32 / 2) + half;
                    let keeps = DROPOUT.keeps(head, query + 8 * (register as u32 % 2), key);
                    assert_eq!(mask >> (16 * half) & 0xffff == 0xffff, keeps, "{draw} {register} {half}");
                    assert!([0, 0xffff].contains(&(mask >> (16 * half) & 0xffff)));
                }
            }
        }
    }

    #[test]
    fn bits_of_queries_are_the_weights_that_the_definition_gives() {
        let (head, query) = (5, 64 + 5);
        for (key, queries, keys) in
            [(96, 16, 16), (102, 32, 16), (112 + 2, 16, 16), (68, 16, 32), (70, 32, 32)]
        {
            let kept = DROPOUT.kept_of_queries(head, (query, key), (queries, keys));
            for (i, j) in elements((queries, keys)) {
                let of = (query + 8 * i as u32, key + 8 * (j as u32 / 2) + j as u32 % 2);
                let is_kept = kept >> kept_bit(i, j) & 1 != 0;
                assert_eq!(is_kept, DROPOUT.keeps(head, of.0, of.1), "{key} {queries} {keys} {i} {j}");
            }
        }
    }

    #[test]
    fn bits_of_both_keys_are_the_weights_that_the_definition_gives() {
        let (head, query) = (5, 64 + 5);
        for (key, queries, keys) in
            [(96, 64, 16), (101, 32, 16), (112 + 2, 64, 16), (112 + 7, 16, 16), (67, 16, 32), (70, 32, 32)]
        {
            let kept = DROPOUT.kept_of_both_keys(head, (query, key), (queries, keys));
            // Where odd queries will be are the weights of the odd key with the even ones.
            for (i, j) in elements((keys, queries)) {
                let of = (query + 8 * (j as u32 / 2), (key & !1) + 8 * i as u32 + j as u32 % 2);
                let is_kept = kept >> kept_bit(i, j) & 1 != 0;
                assert_eq!(is_kept, DROPOUT.keeps(head, of.0, of.1), "{key} {queries} {keys} {i} {j}");
            }
        }
    }

    /// Rows and columns of what a thread holds of so many of its warp's.
    fn elements((rows, columns): (u32, u32)) -> impl Iterator<Item = (usize, usize)> {
        (0..rows as usize / 8).flat_map(move |i| (0..columns as usize / 4).map(move |j| (i, j)))
    }
}
