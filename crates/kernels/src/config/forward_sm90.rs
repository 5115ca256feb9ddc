//! Tiles of the Hopper attention kernel.

use super::feasibility::{
    Infeasible, Limits, OTHER_REGISTERS, SYSTEM_SHARED, all, check_multiple, check_shared,
};
use super::{LINE, SHARED};

/// Tile of `forward_sm90`: `block_m` query rows, 64 for each warpgroup that multiplies, against `block_n` key
/// rows of `head_dim` columns, whose values have `head_dim_v`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sm90Config {
    /// Query rows of a block (BLOCK_M), 128 or 192, or 64 of 16-bit types.
    pub block_m: u32,
    /// Key rows of a step (BLOCK_N), a multiple of 16; of 8-bit types at most [`Self::MAX_SUMMED`].
    pub block_n: u32,
    /// Columns of Q and K that the tile holds (HEAD_DIM), a multiple of 16; smaller head_dims are padded in
    /// shared memory.
    pub head_dim: u32,
    /// Columns of V and O (HEAD_DIM_V), a multiple of 16, at most HEAD_DIM.
    pub head_dim_v: u32,
    /// Bytes of an element of Q, K and V, 2, or 1: then V lies transposed in shared memory, and HEAD_DIM_V
    /// and BLOCK_N are multiples of 32. O's elements have 2.
    pub element_bytes: u32,
}

impl Sm90Config {
    /// Bytes of a row of a tensor map's box: the span of the swizzle.
    pub const BOX_BYTES: u32 = LINE;

    /// Most keys of a sum of 8-bit products: from zero, so many that weigh the same lose 0.2 % of their sum.
    pub const MAX_SUMMED: u32 = 128;

    /// Rows of a warpgroup: of a box of Q.
    pub const WARPGROUP_ROWS: u32 = 64;

    /// Rows of a warp: of a box of O.
    pub const WARP_ROWS: u32 = 16;

    /// Elements along K of a product, which has 32 bytes of them.
    pub const fn depth(&self) -> u32 {
        if self.element_bytes == 1 { 32 } else { 16 }
    }

    /// Warpgroups that multiply.
    pub const fn warpgroups(&self) -> u32 {
        self.block_m / Self::WARPGROUP_ROWS
    }

    /// Query rows of a short tile of so many, which the last of three warpgroups has no part in. Of two that
    /// take turns none can be left out.
    pub const fn short_block_m(block_m: u32) -> u32 {
        if block_m == 3 * Self::WARPGROUP_ROWS { 2 * Self::WARPGROUP_ROWS } else { block_m }
    }

    /// Threads of a block: a warpgroup more, which copies.
    pub const fn threads(&self) -> u32 {
        128 * (self.warpgroups() + 1)
    }

    /// Registers of a thread that multiplies, and of one that copies: together what the block starts with.
    /// Threads that copy get more where others can do without.
    pub const fn registers(&self) -> (u32, u32) {
        if self.warpgroups() == 1 {
            if self.blocks() == 3 { (120, 40) } else { (216, 40) }
        } else if self.warpgroups() == 2 {
            (232, 40)
        } else if self.accumulators() + OTHER_REGISTERS <= 152 {
            (152, 56)
        } else {
            (160, 32)
        }
    }

    /// Blocks that a multiprocessor has at once: of one warpgroup as many as there are registers for, since
    /// no other warpgroup works while it waits.
    pub const fn blocks(&self) -> u32 {
        if self.warpgroups() > 1 {
            1
        } else if self.accumulators() + OTHER_REGISTERS <= 120 {
            3
        } else {
            2
        }
    }

    /// Bytes of shared memory that a block may have.
    const fn shared_limit(&self) -> u32 {
        if self.blocks() == 1 {
            SHARED
        } else {
            Limits::of(90).shared_per_multiprocessor / self.blocks() - SYSTEM_SHARED
        }
    }

    /// Whether two warpgroups take turns: one multiplies while the other exponentiates. Three do so by
    /// themselves, and where rows are long there is too little to exponentiate (FlashAttention-3). Of 8 bits,
    /// whose sums keep a warpgroup from its scores, turns cost 10 %.
    pub const fn takes_turns(&self) -> bool {
        self.warpgroups() == 2 && self.head_dim <= 128 && self.element_bytes == 2
    }

    /// Columns of V whose sums over a block of 8-bit keys are held at once before they are added to O, in
    /// registers that held scores. Three warpgroups have fewer of these, and keep the tensor cores busy with
    /// narrower products.
    pub const fn part_columns(&self) -> u32 {
        if self.warpgroups() == 2 { 128 } else { 64 }
    }

    /// Tiles of K, and of V, that shared memory holds at once: three where O can have memory of its own
    /// beside them.
    pub const fn stages(&self) -> u32 {
        if self.needed(3, self.panels()) <= self.shared_limit() { 3 } else { 2 }
    }

    /// Panels that a row of O lies in, a line each.
    const fn panels(&self) -> u32 {
        (2 * self.head_dim_v).div_ceil(LINE)
    }

    /// Bytes of a row of so many columns in shared memory, in whole lines.
    const fn row_bytes(&self, columns: u32) -> u64 {
        (columns as u64 * self.element_bytes as u64).div_ceil(LINE as u64) * LINE as u64
    }

    /// Bytes of a stage of K.
    const fn k_bytes(&self) -> u32 {
        self.block_n * self.row_bytes(self.head_dim) as u32
    }

    /// Bytes of a stage of V, whose columns are rows where it is transposed.
    const fn v_bytes(&self) -> u32 {
        match self.element_bytes {
            1 => self.head_dim_v * (self.block_n.div_ceil(LINE) * LINE),
            _ => self.block_n * self.row_bytes(self.head_dim_v) as u32,
        }
    }

    /// Bytes of Q.
    const fn q_bytes(&self) -> u32 {
        self.block_m * self.row_bytes(self.head_dim) as u32
    }

    /// Where the rings of K and V begin: behind Q.
    pub const fn k_offset(&self) -> u32 {
        self.q_bytes()
    }

    /// Where the ring of V begins.
    pub const fn v_offset(&self) -> u32 {
        self.k_offset() + self.stages() * self.k_bytes()
    }

    /// Panels of O that have memory of their own, so that the next tile's Q can come while O leaves: all, or
    /// two that all leave through in turn, or none, where O leaves through Q's memory. That of 8-bit types
    /// would not hold it.
    pub const fn output_panels(&self) -> u32 {
        let stages = self.stages();
        if self.element_bytes == 1 || self.needed(stages, self.panels()) <= self.shared_limit() {
            self.panels()
        } else if self.needed(stages, 2) <= self.shared_limit() {
            2
        } else {
            0
        }
    }

    /// Whether tiles wait for copies that are made beside them. With a HEAD_DIM_V, who copies Q and K has no
    /// register for that.
    pub const fn waits_for_copies(&self) -> bool {
        self.head_dim == self.head_dim_v
    }

    /// Whether all of O has memory of its own.
    pub const fn own_output(&self) -> bool {
        self.output_panels() == self.panels()
    }

    /// Where O leaves through: behind the rings, if not where Q was.
    pub const fn o_offset(&self) -> u32 {
        if self.output_panels() > 0 { self.v_offset() + self.stages() * self.v_bytes() } else { 0 }
    }

    /// Bytes of what says which tile comes next: two slots of 80, and four barriers.
    pub const SCHEDULE_BYTES: u32 = 192;

    /// Bytes of the rings' barriers: two for each warpgroup's part of Q, and for each stage of K and of V. As
    /// many lie behind them, of which tiles that are fixed up land at those behind the full ones.
    const fn barrier_bytes(&self, stages: u32) -> u32 {
        16 * (self.warpgroups() + 2 * stages)
    }

    /// Where it says which tile comes next.
    pub const fn schedule_offset(&self) -> u32 {
        self.barriers_offset() - Self::SCHEDULE_BYTES
    }

    /// Where the barriers are, at the end.
    pub const fn barriers_offset(&self) -> u32 {
        self.shared_bytes() - 2 * self.barrier_bytes(self.stages())
    }

    /// Bytes from a full barrier to that where tiles land that are fixed up before they fill the stage.
    pub const fn fix_up_distance(&self) -> u32 {
        self.barrier_bytes(self.stages())
    }

    /// Bytes of shared memory.
    pub const fn shared_bytes(&self) -> u32 {
        self.needed(self.stages(), self.output_panels())
    }

    /// Bytes of shared memory with so many stages, and so many panels of O.
    const fn needed(&self, stages: u32, output_panels: u32) -> u32 {
        let tiles = self.q_bytes() + stages * (self.k_bytes() + self.v_bytes());
        let output = self.block_m * LINE * output_panels;
        tiles + output + Self::SCHEDULE_BYTES + 2 * self.barrier_bytes(stages)
    }

    /// [`Self::shared_bytes`], or what Q and two stages alone take, for sizes that nobody has checked yet.
    #[inline]
    pub const fn shared_needed(&self) -> u64 {
        let (k_rows, v_rows) = (self.block_m as u64 + 2 * self.block_n as u64, 2 * self.block_n as u64);
        let of_k = k_rows.saturating_mul(self.row_bytes(self.head_dim));
        let tiles = of_k.saturating_add(v_rows.saturating_mul(self.row_bytes(self.head_dim_v)));
        if tiles > self.shared_limit() as u64 { tiles } else { self.shared_bytes() as u64 }
    }

    /// Registers that a thread needs for its parts of S, P and O; those of S hold the parts of 8-bit sums
    /// too.
    #[inline]
    pub const fn accumulators(&self) -> u64 {
        let p = self.block_n * self.element_bytes / 8;
        let part = if self.element_bytes == 1 && self.part_columns() > self.block_n {
            self.part_columns()
        } else {
            self.block_n
        };
        (part / 2 + p + self.head_dim_v / 2) as u64
    }

    /// Whether the shape is one that the kernel can be instantiated with.
    #[inline]
    pub const fn is_well_formed(&self) -> bool {
        self.check_shape().is_ok()
    }

    /// As [`Self::is_well_formed`].
    ///
    /// # Errors
    /// The size that it cannot be instantiated with.
    #[inline]
    pub const fn check_shape(&self) -> Result<(), Infeasible> {
        let multiples = all([
            check_multiple("BLOCK_M", self.block_m, Self::WARPGROUP_ROWS),
            check_multiple("BLOCK_N", self.block_n, self.depth()),
            check_multiple("HEAD_DIM", self.head_dim, self.depth()),
            check_multiple("HEAD_DIM_V", self.head_dim_v, self.depth()),
        ]);
        if multiples.is_ok() && (self.block_m > 192 || (self.block_m < 128 && self.element_bytes == 1)) {
            let available = if self.element_bytes == 1 { "128, 192" } else { "64, 128, 192" };
            return Err(Infeasible::Rows { block_m: self.block_m, available });
        }
        if multiples.is_ok() && self.element_bytes == 1 && self.block_n > Self::MAX_SUMMED {
            return Err(Infeasible::Summed { block_n: self.block_n, limit: Self::MAX_SUMMED });
        }
        multiples
    }

    /// Whether the tile can be built and launched.
    ///
    /// # Errors
    /// The size or the limit that forbids it.
    #[inline]
    pub const fn check(&self, min_blocks: u32, limits: &Limits) -> Result<(), Infeasible> {
        if let Err(reason) = self.check_shape() {
            return Err(reason);
        }
        if min_blocks != self.blocks() {
            return Err(Infeasible::Blocks { blocks: min_blocks, limit: self.blocks() });
        }
        if let Err(reason) = check_shared(self.shared_needed(), limits) {
            return Err(reason);
        }
        let together = min_blocks as u64 * (self.shared_needed() + SYSTEM_SHARED as u64);
        if min_blocks > 1 && together > limits.shared_per_multiprocessor as u64 {
            let limit = limits.shared_per_multiprocessor;
            return Err(Infeasible::SharedOfBlocks { blocks: min_blocks, needed: together, limit });
        }
        let (accumulators, limit) = (self.accumulators(), self.registers().0);
        // Rounding to 8 bits lets go of four scores for each register of P, where 16 bits let go of two.
        let sooner = if self.element_bytes == 1 { 4 } else { 0 };
        let needed = accumulators + OTHER_REGISTERS - sooner;
        if needed > limit as u64 {
            let threads = self.threads();
            return Err(Infeasible::Registers { needed, accumulators, limit, threads, blocks: 1 });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use super::*;
    use alloc::string::ToString as _;

    #[test]
    fn o_has_memory_of_its_own_where_there_is_some() {
        let config =
            Sm90Config { block_m: 192, block_n: 80, head_dim: 128, head_dim_v: 128, element_bytes: 2 };
        assert_eq!(config.shared_bytes(), 256 * (192 + 6 * 80 + 192) + 32 * (3 + 6) + 192);
        assert!(config.own_output() && !config.takes_turns());
        let config =
            Sm90Config { block_m: 128, block_n: 80, head_dim: 256, head_dim_v: 256, element_bytes: 2 };
        assert_eq!(config.shared_bytes(), 512 * (128 + 4 * 80) + 32 * (2 + 4) + 192);
        assert_eq!(config.output_panels(), 0);
        let config = Sm90Config { block_n: 64, ..config };
        assert_eq!(config.shared_bytes(), 512 * (128 + 4 * 64) + 256 * 128 + 32 * (2 + 4) + 192);
        assert!(config.output_panels() == 2 && !config.own_output());
    }

    #[test]
    fn narrower_values_leave_room_for_more_keys() {
        let config =
            Sm90Config { block_m: 192, block_n: 80, head_dim: 192, head_dim_v: 128, element_bytes: 2 };
        assert_eq!(config.shared_bytes(), 384 * (192 + 2 * 80) + 256 * (2 * 80 + 192) + 32 * (3 + 4) + 192);
        assert_eq!((config.v_offset(), config.o_offset()), (384 * (192 + 160), 384 * 352 + 256 * 160));
        assert_eq!(
            (config.stages(), config.accumulators(), config.registers()),
            (2, 40 + 20 + 64, (160, 32))
        );
        assert!(config.own_output() && !config.takes_turns());
        let config = Sm90Config { block_m: 128, block_n: 112, ..config };
        assert_eq!(config.shared_bytes(), 384 * (128 + 224) + 256 * (224 + 128) + 32 * (2 + 4) + 192);
        assert!(config.own_output() && !config.takes_turns());
        let config = Sm90Config { block_n: 128, ..config };
        assert_eq!(config.shared_bytes(), 384 * (128 + 256) + 256 * 256 + 32 * (2 + 4) + 192);
        assert_eq!((config.output_panels(), config.accumulators()), (0, 64 + 32 + 64));
        let wide = Sm90Config { head_dim_v: 192, ..config };
        assert!(matches!(wide.check(1, &Limits::of(90)), Err(Infeasible::SharedMemory { .. })));
    }

    #[test]
    fn of_8_bits_v_is_transposed_and_o_is_twice_as_large() {
        let config =
            Sm90Config { block_m: 192, block_n: 96, head_dim: 128, head_dim_v: 128, element_bytes: 1 };
        let (q, k, v, o) = (192 * 128, 96 * 128, 128 * 128, 192 * 256);
        assert_eq!(config.shared_bytes(), q + 3 * (k + v) + o + 32 * (3 + 6) + 192);
        assert_eq!((config.v_offset(), config.o_offset()), (q + 3 * k, q + 3 * (k + v)));
        assert!(config.own_output() && !config.takes_turns());
        assert_eq!(config.check(1, &Limits::of(90)), Ok(()));
    }

    #[test]
    fn of_8_bits_scores_and_parts_of_o_share_registers() {
        let config =
            Sm90Config { block_m: 192, block_n: 96, head_dim: 128, head_dim_v: 128, element_bytes: 1 };
        assert_eq!((config.part_columns(), config.accumulators()), (64, 48 + 12 + 64));
        let wide = Sm90Config { block_m: 128, head_dim: 256, head_dim_v: 256, ..config };
        assert_eq!((wide.part_columns(), wide.accumulators()), (128, 64 + 12 + 128));
        assert_eq!(wide.check(1, &Limits::of(90)), Ok(()));
        let reason = |config: Sm90Config| config.check(1, &Limits::of(90)).expect_err("it is infeasible");
        let full = Sm90Config { block_n: 128, ..config };
        assert!(matches!(reason(full), Infeasible::Registers { needed: 172, limit: 160, .. }));
        let long = Sm90Config { block_n: 160, ..config };
        let text = "BLOCK_N is 160; a sum of 8-bit products takes at most 128 keys";
        assert_eq!(reason(long).to_string(), text);
        let odd = Sm90Config { block_n: 80, ..config };
        assert_eq!(reason(odd).to_string(), "BLOCK_N is 80; a positive multiple of 32 is needed");
    }

    #[test]
    fn blocks_of_one_warpgroup_share_a_multiprocessor() {
        let config = Sm90Config { block_m: 64, block_n: 64, head_dim: 64, head_dim_v: 64, element_bytes: 2 };
        assert_eq!((config.blocks(), config.stages(), config.registers()), (3, 3, (120, 40)));
        assert!(config.own_output() && !config.takes_turns());
        assert_eq!(config.check(3, &Limits::of(90)), Ok(()));
        let one = config.check(1, &Limits::of(90)).expect_err("three are built");
        assert!(matches!(one, Infeasible::Blocks { blocks: 1, limit: 3 }));
        let long = Sm90Config { block_n: 128, ..config };
        assert_eq!((long.blocks(), long.stages(), long.registers()), (2, 3, (216, 40)));
        let wide = Sm90Config { head_dim: 128, head_dim_v: 128, ..long };
        let reason = wide.check(2, &Limits::of(90)).expect_err("two do not fit");
        assert!(matches!(reason, Infeasible::SharedOfBlocks { blocks: 2, .. }));
        let of_8_bits = Sm90Config { element_bytes: 1, ..config };
        assert_eq!(
            of_8_bits.check_shape().expect_err("it has two warpgroups or three").to_string(),
            "BLOCK_M is 64; there is 128, 192"
        );
    }

    #[test]
    fn each_reason_names_value_and_limit() {
        let reason = |block_m, block_n, head_dim| {
            Sm90Config { block_m, block_n, head_dim, head_dim_v: head_dim, element_bytes: 2 }
                .check(1, &Limits::of(90))
                .expect_err("it is infeasible")
                .to_string()
        };
        assert_eq!(reason(256, 80, 128), "BLOCK_M is 256; there is 64, 128, 192");
        assert_eq!(reason(128, 72, 128), "BLOCK_N is 72; a positive multiple of 16 is needed");
        assert_eq!(reason(128, 128, 256), "327680 bytes of shared memory; a block has 232448");
        assert_eq!(
            reason(128, u32::MAX - 15, 256),
            "8796093054976 bytes of shared memory; a block has 232448"
        );
        assert_eq!(
            reason(192, 96, 128),
            "at least 168 registers (136 of them S and O); a thread of 1 x 512 has 160"
        );
    }
}
