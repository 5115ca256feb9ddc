//! Tile of the kernel for decoding on Hopper.

use super::{Demand, Infeasible, Limits, all, check_multiple};

/// Tile of `decode_sm90`: `block_m` packed query rows against a ring of `stages` tiles of `block_n` keys, of
/// K and V in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeSm90Config {
    /// Query rows of a block (BLOCK_M), of all heads that share a key/value head: a multiple of 16 up to 64.
    pub block_m: u32,
    /// Key rows of a step (BLOCK_N), a multiple of 64, the rows of a product.
    pub block_n: u32,
    /// Columns that the tile holds (HEAD_DIM), a multiple of 64; smaller head_dims are padded in shared
    /// memory.
    pub head_dim: u32,
    /// Tiles of K or V that shared memory has room for, at least 2.
    pub stages: u32,
    /// Bytes of an element of K and V: 2, as those of Q, or 1.
    pub cache_bytes: u32,
}

impl DecodeSm90Config {
    /// Keys of a product.
    pub const PRODUCT_KEYS: u32 = 64;

    /// Bytes of a line of a tile, which the swizzle goes over.
    const LINE_BYTES: u32 = 128;

    /// Bytes of what is announced of the work, and its barriers.
    pub const SCHEDULE_BYTES: u32 = 128;

    /// Copies of Q in shared memory: one that is multiplied, and the next.
    pub const QUERY_STAGES: u32 = 2;

    /// Key rows of a box that one copy moves: all of a step of `block_n` where keys are contiguous, with a
    /// `page_size` of 0, else as many as divide both.
    #[inline(always)]
    pub const fn box_rows(block_n: u32, page_size: u32) -> u32 {
        let divisor = page_size & page_size.wrapping_neg();
        if page_size == 0 || divisor > block_n { block_n } else { divisor }
    }

    /// Threads of a block: a warpgroup that multiplies, a warp that copies K and V, and one that copies Q.
    pub const fn threads(&self) -> u32 {
        192
    }

    /// Bytes of a key's row of K or V: whole lines.
    const fn row_bytes(&self) -> u64 {
        let line = Self::LINE_BYTES as u64;
        (self.head_dim as u64).saturating_mul(self.cache_bytes as u64).div_ceil(line).saturating_mul(line)
    }

    /// Bytes of a tile of K or V.
    const fn tile_bytes(&self) -> u32 {
        self.block_n * self.row_bytes() as u32
    }

    /// Bytes of what each row of Q has of its own: its key on the diagonal and its slope, and of caches in 8
    /// bits the factor of its scores.
    pub const fn row_words_bytes(&self) -> u32 {
        if self.cache_bytes == 1 { 12 } else { 8 }
    }

    /// Where the first copy of Q lies.
    pub const fn q_offset(&self) -> u32 {
        self.stages * self.tile_bytes()
    }

    /// Where P lies.
    pub const fn p_offset(&self) -> u32 {
        self.q_offset() + Self::QUERY_STAGES * 2 * self.block_m * self.head_dim
    }

    /// Where what each row has of its own lies, of both copies of Q.
    pub const fn rows_offset(&self) -> u32 {
        self.p_offset() + 2 * self.block_m * self.block_n
    }

    /// Where the warps' maxima lie, a word for each row, and behind them their sums.
    pub const fn exchange_offset(&self) -> u32 {
        self.rows_offset() + Self::QUERY_STAGES * self.row_words_bytes() * self.block_m
    }

    /// Where the work is announced.
    pub const fn schedule_offset(&self) -> u32 {
        self.exchange_offset() + 2 * 4 * 4 * self.block_m
    }

    /// Where the barriers of the ring lie, and behind them those of Q.
    pub const fn barriers_offset(&self) -> u32 {
        self.schedule_offset() + Self::SCHEDULE_BYTES
    }

    /// Bytes of shared memory.
    pub const fn shared_bytes(&self) -> u32 {
        self.shared_needed() as u32
    }

    /// [`Self::shared_bytes`], for sizes that nobody has checked yet.
    #[inline]
    pub const fn shared_needed(&self) -> u64 {
        let (m, n) = (self.block_m as u64, self.block_n as u64);
        let (d, stages) = (self.head_dim as u64, self.stages as u64);
        let ring = self.row_bytes().saturating_mul(n).saturating_mul(stages);
        let of_rows = (Self::QUERY_STAGES * self.row_words_bytes()) as u64;
        let rows = m.saturating_mul(4 * d + 2 * n + 32 + of_rows);
        ring.saturating_add(rows).saturating_add(Self::SCHEDULE_BYTES as u64 + 16 * stages + 32)
    }

    /// Bytes of the rows of O and lse that a block hands on of a split: with the alignment of shared memory.
    pub const fn part_bytes(&self) -> u32 {
        self.block_m * (4 * self.head_dim + 32)
    }

    /// Registers that a thread needs for its parts of S and O, and each row's running max and sum.
    #[inline]
    pub const fn accumulators(&self) -> u64 {
        (self.block_m as u64 / 2).saturating_mul((self.head_dim as u64 + self.block_n as u64) / 64 + 1)
    }

    /// Whether a block can add up the splits of a tile: whether registers have room for a second O.
    #[inline]
    pub const fn adds_up_splits(&self) -> bool {
        match self.cache_bytes {
            1 => self.block_m <= 16 && self.block_n * self.head_dim <= 64 * 128,
            _ => self.block_m * self.head_dim <= 32 * 128,
        }
    }

    /// Whether the shape is one that the kernel can be instantiated with, whatever the device.
    #[inline]
    pub const fn is_well_formed(&self) -> bool {
        self.check_shape().is_ok()
    }

    /// As [`Self::is_well_formed`], with the reason.
    ///
    /// # Errors
    /// The first size that does not fit.
    #[inline]
    pub const fn check_shape(&self) -> Result<(), Infeasible> {
        if self.block_m > 64 {
            return Err(Infeasible::Rows { block_m: self.block_m, available: "16, 32, 48, 64" });
        }
        let sizes = all([
            check_multiple("BLOCK_M", self.block_m, 16),
            check_multiple("BLOCK_N", self.block_n, Self::PRODUCT_KEYS),
            check_multiple("HEAD_DIM", self.head_dim, 64),
        ]);
        if sizes.is_ok() && self.stages < 2 {
            return Err(Infeasible::Stages { stages: self.stages, needed: 2 });
        }
        sizes
    }

    /// Whether the tile can be built and launched with so many blocks on a multiprocessor.
    ///
    /// # Errors
    /// The size or the limit that forbids it.
    #[inline]
    pub const fn check(&self, min_blocks: u32, limits: &Limits) -> Result<(), Infeasible> {
        if let Err(reason) = self.check_shape() {
            return Err(reason);
        }
        let (threads, accumulators) = (self.threads(), self.accumulators());
        Demand { threads, min_blocks, accumulators, shared_bytes: self.shared_needed() }.check(limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_shared_memory_adds_up() {
        let config = DecodeSm90Config { block_m: 16, block_n: 64, head_dim: 128, stages: 6, cache_bytes: 2 };
        assert_eq!(config.shared_bytes(), config.barriers_offset() + 16 * 6 + 32);
        assert_eq!(config.check(2, &Limits::of(90)), Ok(()));
        // Twice as many of half the bytes, and a word more for each row of both copies of Q.
        let of_8_bits = DecodeSm90Config { stages: 12, cache_bytes: 1, ..config };
        assert_eq!(of_8_bits.shared_bytes(), config.shared_bytes() + 16 * 6 + 2 * 4 * 16);
        let narrow = DecodeSm90Config { head_dim: 64, ..of_8_bits };
        assert_eq!(narrow.q_offset(), of_8_bits.q_offset());
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_numbers() {
        let config = DecodeSm90Config { block_m: 16, block_n: 64, head_dim: 128, stages: 7, cache_bytes: 2 };
        assert!(matches!(config.check(2, &Limits::of(90)), Err(Infeasible::SharedOfBlocks { .. })));
        let stages = DecodeSm90Config { stages: 1, ..config };
        assert_eq!(stages.check(1, &Limits::of(90)), Err(Infeasible::Stages { stages: 1, needed: 2 }));
        let columns = DecodeSm90Config { head_dim: 96, ..config };
        let of = Infeasible::Multiple { what: "HEAD_DIM", value: 96, of: 64 };
        assert_eq!(columns.check(1, &Limits::of(90)), Err(of));
        let rows = DecodeSm90Config { block_m: 80, ..config };
        let available = Infeasible::Rows { block_m: 80, available: "16, 32, 48, 64" };
        assert_eq!(rows.check(1, &Limits::of(90)), Err(available));
    }
}
