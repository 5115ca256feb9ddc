//! Dropout of attention weights, drawn anew wherever they are needed, and so never stored.
//!
//! Which weights are kept is a function of seed, offset, sequence, head, query and key alone: every kernel,
//! the CPU and the reference draw the same bits, whatever their tiles.

use crate::params::Dropout;

/// Multipliers of a round (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, table 2:
/// Philox4x32).
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];

/// What the key rises by from round to round: the golden ratio, and the square root of 3 less 1.
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Rounds of Philox4x32-10.
const ROUNDS: u32 = 10;

/// Four random words of a counter (Philox4x32-10).
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

impl Dropout {
    /// Whether the weight of a query and a key is kept. `head` counts the query heads of all sequences, [B,
    /// H].
    #[inline(always)]
    pub const fn keeps(&self, head: u32, query: u32, key: u32) -> bool {
        let seed = [self.seed as u32, (self.seed >> 32) as u32];
        // Four keys share a draw.
        let words = philox([key / 4, query, head, self.offset], seed);
        let word = match key % 4 {
            0 => words[0],
            1 => words[1],
            2 => words[2],
            _ => words[3],
        };
        word >= self.threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that come with the authors' library, Random123 (`kat_vectors`).
    #[test]
    fn philox_gives_the_known_answers() {
        let answers = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
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
}
