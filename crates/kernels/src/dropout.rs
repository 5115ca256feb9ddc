//! Dropout of attention weights, drawn anew wherever they are needed, and so never stored.
//!
//! Which weights are kept is a function of seed, offset, sequence, head, query and key alone: every kernel,
//! the CPU and the reference draw the same bits, whatever their tiles.

#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod fragment;

use crate::params::Dropout;
use crate::ptx::index;

/// Multipliers of a round (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, table 2:
/// Philox4x32).
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];

/// What the key rises by from round to round: the golden ratio, and the square root of 3 less 1.
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Rounds of Philox4x32-7: the fewest that pass BigCrush (Salmon et al., table 2).
const ROUNDS: u32 = 7;

/// Four random words of a counter (Philox4x32-7).
#[inline(always)]
pub const fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let mut round = 0;
    while round < ROUNDS {
        let first = MULTIPLIERS[0] as u64 * counter[0] as u64;
        let second = MULTIPLIERS[1] as u64 * counter[2] as u64;
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        round += 1;
    }
    counter
}

/// Where blocks of keys begin, so that no draw is of two blocks.
pub const KEY_MULTIPLE: u32 = 32;

/// The same of queries.
pub const QUERY_MULTIPLE: u32 = 16;

impl Dropout {
    /// Whether the weight of a query and a key is kept. `head` counts the query heads of all sequences, [B,
    /// H].
    #[inline(always)]
    pub const fn keeps(&self, head: u32, query: u32, key: u32) -> bool {
        let words = self.draw(head, query & !8, key & !25);
        let word = match key / 8 % 4 {
            0 => words[0],
            1 => words[1],
            2 => words[2],
            _ => words[3],
        };
        let byte = word >> (8 * (2 * (query / 8 % 2) + key % 2)) & 0xff;
        byte >= self.least(words)
    }

    /// The same, read again: the rounds' keys would otherwise be computed once, and kept in registers.
    #[inline(always)]
    pub fn reread(self) -> Self {
        let [low, high] = [self.seed as u32, (self.seed >> 32) as u32].map(index::unknown);
        Self { seed: (high as u64) << 32 | low as u64, ..self }
    }

    /// The least byte that keeps its weight: the threshold's first, or one more as often as its other bits
    /// ask for. All words decide about these, so that no three weights of a draw depend on each other by
    /// more than 2^−16.
    #[inline(always)]
    const fn least(&self, words: [u32; 4]) -> u32 {
        let rest = words[0] ^ words[1] ^ words[2] ^ words[3];
        (self.threshold / 16 + rest / 4096) >> 20
    }

    /// The words of 16 weights, of which a byte each is theirs: those that one thread has in a product of
    /// tensor cores, of queries eight apart and of pairs of keys eight apart. `query` and `key` are the
    /// first.
    #[inline(always)]
    const fn draw(&self, head: u32, query: u32, key: u32) -> [u32; 4] {
        philox([key, query, head, self.offset], [self.seed as u32, (self.seed >> 32) as u32])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that come with the authors' library, Random123 (`kat_vectors`), of seven rounds.
    #[test]
    fn philox_gives_the_known_answers() {
        let answers = [
            ([0; 4], [0; 2], [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a],
            ),
        ];
        for (counter, key, answer) in answers {
            assert_eq!(philox(counter, key), answer);
        }
    }

    #[test]
    fn as_many_are_dropped_as_asked_for_and_each_by_itself() {
        let dropout = Dropout { seed: 7, offset: 3, threshold: 1 << 30, scale: 4.0 / 3.0 };
        let kept = |head, offset| {
            let dropout = Dropout { offset, ..dropout };
            let mut bits = [false; 1 << 16];
            for (index, bit) in bits.iter_mut().enumerate() {
                *bit = dropout.keeps(head, index as u32 >> 8, index as u32 & 255);
            }
            bits
        };
        let first = kept(0, 3);
        let dropped = first.iter().filter(|&&kept| !kept).count() as f64 / 65536.0;
        // Five standard deviations of 2^16 draws.
        assert!((dropped - 0.25).abs() < 5.0 * (0.25 * 0.75 / 65536.0_f64).sqrt(), "{dropped}");
        for other in [kept(1, 3), kept(0, 4)] {
            let both = first.iter().zip(&other).filter(|(a, b)| !**a && !**b).count() as f64 / 65536.0;
            assert!((both - 0.0625).abs() < 5.0 * (0.0625 * 0.9375 / 65536.0_f64).sqrt(), "{both}");
        }
        assert!((0..1000).all(|key| Dropout { threshold: 0, ..dropout }.keeps(0, 0, key)));
    }

    /// The weights of a draw are two rows and pairs of neighbouring keys; each two are dropped as often as
    /// two that share nothing.
    #[test]
    fn weights_of_a_draw_are_dropped_by_themselves() {
        // Its first byte is 0x19, and nearly as often 0x1a is the least that is kept.
        let dropout = Dropout { seed: 1 << 40, offset: 0, threshold: 0x19f0_0000, scale: 1.0 };
        let p = f64::from(dropout.threshold) / 2.0_f64.powi(32);
        const DRAWS: u32 = 1 << 16;
        let places: [(u32, u32); 16] =
            core::array::from_fn(|i| (8 * (i as u32 / 2 % 2), 8 * (i as u32 / 4) + i as u32 % 2));
        let mut counts = [[0_u32; 16]; 16];
        for draw in 0..DRAWS {
            let (query, key) = (16 * (draw >> 8), 32 * (draw & 255));
            let dropped = places.map(|(row, column)| !dropout.keeps(3, query + row, key + column));
            for (i, j) in (0..16).flat_map(|i| (0..=i).map(move |j| (i, j))) {
                counts[i][j] += u32::from(dropped[i] && dropped[j]);
            }
        }
        for (i, j) in (0..16).flat_map(|i| (0..=i).map(move |j| (i, j))) {
            let expected = if i == j { p } else { p * p };
            let found = f64::from(counts[i][j]) / f64::from(DRAWS);
            let deviation = (expected * (1.0 - expected) / f64::from(DRAWS)).sqrt();
            assert!((found - expected).abs() < 5.0 * deviation, "{i} {j}: {found}, {expected}");
        }
    }

    #[test]
    fn thresholds_at_the_ends_drop_nothing_and_nearly_all() {
        let kept = |threshold| {
            let dropout = Dropout { seed: 2, offset: 0, threshold, scale: 1.0 };
            (0..1 << 16).filter(|&i| dropout.keeps(0, i >> 8, i & 255)).count()
        };
        assert_eq!((kept(0), kept(u32::MAX)), (1 << 16, 0));
        assert!((64..512).contains(&kept(0xff00_0000)));
    }
}
