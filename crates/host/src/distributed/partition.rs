//! Which rank has which rows of a sequence.

use std::ops::Range;

use crate::{Error, Result};

/// How the 2N chunks of a sequence are dealt out to N ranks, two each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Partition {
    /// Rank r has the chunks r and 2N − 1 − r, so that under a causal mask all ranks see as many keys
    /// (ring-flash-attention's zigzag; Llama 3 Herd of Models, section 3.3.2).
    #[default]
    ZigZag,
    /// Rank r has the chunks 2r and 2r + 1, as full masks and most data loaders have it.
    Contiguous,
}

/// One of the two chunks that each rank has: all ranks' low ones come before all high ones in a zigzag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The first in the sequence.
    Low,
    /// The second.
    High,
}

impl Half {
    /// Both, in the order of their rows.
    pub const ALL: [Self; 2] = [Self::Low, Self::High];
}

/// A sequence cut into two chunks for each rank, all of the same length but for the last ones, which may be
/// shorter or empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    rows: usize,
    chunk: usize,
    world: usize,
    partition: Partition,
}

impl Cut {
    /// Cuts `rows` rows for `world` ranks. Chunks begin at multiples of `multiple` rows, a tile's, so that
    /// tiles are those of one device.
    ///
    /// # Errors
    /// When there are no ranks, or fewer than two rows for each.
    pub fn new(rows: usize, world: usize, partition: Partition, multiple: usize) -> Result<Self> {
        let chunks = world.saturating_mul(2);
        if world == 0 || rows < chunks {
            return Err(Error::ContextRows { rows, world, needed: chunks.max(2) });
        }
        let chunk = rows.div_ceil(chunks).next_multiple_of(multiple.max(1));
        Ok(Self { rows, chunk, world, partition })
    }

    /// Number of ranks.
    pub const fn world(&self) -> usize {
        self.world
    }

    /// Rows of the sequence.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Rows of each chunk but the last ones.
    pub const fn chunk_len(&self) -> usize {
        self.chunk
    }

    /// Rows of a chunk, counted over the sequence; none of those behind its end.
    pub fn chunk_rows(&self, chunk: usize) -> Range<usize> {
        let at = |chunk: usize| (chunk * self.chunk).min(self.rows);
        at(chunk)..at(chunk + 1)
    }

    /// Which chunk a half of a rank is.
    pub const fn chunk_of(&self, rank: usize, half: Half) -> usize {
        match (self.partition, half) {
            (Partition::ZigZag, Half::Low) => rank,
            (Partition::ZigZag, Half::High) => 2 * self.world - 1 - rank,
            (Partition::Contiguous, Half::Low) => 2 * rank,
            (Partition::Contiguous, Half::High) => 2 * rank + 1,
        }
    }

    /// The rank that has a chunk, and which half of its it is.
    pub fn owner(&self, chunk: usize) -> (usize, Half) {
        match self.partition {
            Partition::ZigZag if chunk < self.world => (chunk, Half::Low),
            Partition::ZigZag => (2 * self.world - 1 - chunk, Half::High),
            Partition::Contiguous => (chunk / 2, Half::ALL[chunk % 2]),
        }
    }

    /// Rows of a rank's half, counted over the sequence: what rotary embeddings and losses need.
    pub fn rows_of(&self, rank: usize, half: Half) -> Range<usize> {
        self.chunk_rows(self.chunk_of(rank, half))
    }

    /// How many rows a rank has.
    pub fn len_of(&self, rank: usize) -> usize {
        Half::ALL.map(|half| self.rows_of(rank, half).len()).iter().sum()
    }

    /// Where a half's rows begin among those that the rank has: the high ones lie behind the low ones.
    pub fn local_start(&self, rank: usize, half: Half) -> usize {
        match half {
            Half::Low => 0,
            Half::High => self.rows_of(rank, Half::Low).len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn each_row_is_one_ranks(
            (world, more) in (1..9_usize, 0..500_usize),
            multiple in 1..70_usize,
            is_zigzag in any::<bool>(),
        ) {
            let partition = if is_zigzag { Partition::ZigZag } else { Partition::Contiguous };
            let cut = Cut::new(2 * world + more, world, partition, multiple).unwrap();
            let mut owned = vec![0; cut.rows()];
            for rank in 0..world {
                for half in Half::ALL {
                    let rows = cut.rows_of(rank, half);
                    prop_assert_eq!(cut.owner(cut.chunk_of(rank, half)), (rank, half));
                    prop_assert!(rows.is_empty() || rows.start.is_multiple_of(multiple));
                    prop_assert!(rows.len() <= cut.chunk_len());
                    rows.for_each(|row| owned[row] += 1);
                }
                let low = cut.rows_of(rank, Half::Low).len();
                prop_assert_eq!(cut.local_start(rank, Half::High), low);
                prop_assert_eq!(cut.len_of(rank), low + cut.rows_of(rank, Half::High).len());
            }
            prop_assert!(owned.iter().all(|&count| count == 1));
        }

        /// What the last chunk lacks, less than a tile, is all that ranks differ by.
        #[test]
        fn zigzag_balances_a_causal_mask((world, tiles) in (1..9_usize, 16..40_usize), cut_off in 0..64_usize) {
            let rows = 2 * world * tiles * 64 - cut_off;
            let cut = Cut::new(rows, world, Partition::ZigZag, 64).unwrap();
            let pairs = |rows: Range<usize>| rows.map(|row| row + 1).sum::<usize>() as f64;
            let loads: Vec<f64> = (0..world)
                .map(|rank| Half::ALL.map(|half| pairs(cut.rows_of(rank, half))).iter().sum())
                .collect();
            let mean = loads.iter().sum::<f64>() / world as f64;
            let most = mean / (1.0 - 1.0 / (world * tiles) as f64);
            prop_assert!(loads.iter().all(|&load| world == 1 || load <= most), "{:?}", loads);
        }
    }

    #[test]
    fn too_few_rows_are_refused() {
        let refused = |rows, world| Cut::new(rows, world, Partition::ZigZag, 64).unwrap_err().to_string();
        assert_eq!(refused(7, 4), "a sequence of 7 rows cannot be cut for 4 ranks; at least 8 are needed");
        assert_eq!(refused(7, 0), "a sequence of 7 rows cannot be cut for 0 ranks; at least 2 are needed");
    }
}
