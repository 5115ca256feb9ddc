//! Whether a tile can be built and launched at all, asked before anything is compiled.

/// What a device leaves a block and its threads (CUDA C++ Programming Guide, technical specifications).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of shared memory that one block may use.
    pub shared_per_block: u32,
    /// Bytes of shared memory of one multiprocessor.
    pub shared_per_multiprocessor: u32,
    /// Threads of a block.
    pub threads_per_block: u32,
    /// 32-bit registers of a thread.
    pub registers_per_thread: u32,
    /// 32-bit registers of a multiprocessor.
    pub registers_per_multiprocessor: u32,
}

/// Bytes of each block's shared memory that the system keeps for itself since sm_80.
pub(super) const SYSTEM_SHARED: u32 = 1024;

/// Registers that a thread of an attention kernel needs beside S and O, at the least: fragments, addresses,
/// and each row's running max and sum. No kernel of the list gets by with fewer.
pub(super) const OTHER_REGISTERS: u64 = 32;

impl Limits {
    /// The limits of an architecture, by its compute capability as major·10 + minor; for one that is not
    /// known, those of the smallest device that the PTX runs on.
    #[inline]
    pub const fn of(compute_capability: u32) -> Self {
        let shared_kib = match compute_capability {
            80 | 87 => 163,
            86 | 89 | 120 | 121 => 99,
            90 | 100 | 103 => 227,
            _ => 64,
        };
        // Turing keeps nothing back.
        let system = if compute_capability < 80 { 0 } else { SYSTEM_SHARED };
        Self::with_shared(shared_kib << 10, (shared_kib << 10) + system)
    }

    /// The limits of a device with so many bytes of shared memory for a block and a multiprocessor. All
    /// devices since sm_75 agree on the rest.
    #[inline]
    pub const fn with_shared(shared_per_block: u32, shared_per_multiprocessor: u32) -> Self {
        Self {
            shared_per_block,
            shared_per_multiprocessor,
            threads_per_block: super::MAX_THREADS,
            registers_per_thread: 255,
            registers_per_multiprocessor: 1 << 16,
        }
    }

    /// Registers that each thread may have when `blocks` blocks of `threads` threads share a multiprocessor;
    /// they are handed out in eights.
    #[inline]
    pub const fn registers(&self, threads: u32, blocks: u32) -> u32 {
        let threads = threads as u64 * blocks as u64;
        if threads == 0 {
            return self.registers_per_thread;
        }
        let share = (self.registers_per_multiprocessor as u64 / threads / 8 * 8) as u32;
        if share < self.registers_per_thread { share } else { self.registers_per_thread }
    }
}

/// What a tile asks of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Threads of a block.
    pub threads: u32,
    /// Blocks that are to run on a multiprocessor at once, at least 1.
    pub min_blocks: u32,
    /// fp32 registers of a thread for S and O.
    pub accumulators: u64,
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u64,
}

impl Demand {
    /// Whether a device can give that.
    ///
    /// # Errors
    /// The first limit that is exceeded.
    #[inline]
    pub const fn check(&self, limits: &Limits) -> Result<(), Infeasible> {
        if self.threads > limits.threads_per_block {
            return Err(Infeasible::Threads { needed: self.threads, limit: limits.threads_per_block });
        }
        if let Err(reason) = check_shared(self.shared_bytes, limits) {
            return Err(reason);
        }
        let together = self.min_blocks as u64 * (self.shared_bytes + SYSTEM_SHARED as u64);
        if self.min_blocks > 1 && together > limits.shared_per_multiprocessor as u64 {
            let limit = limits.shared_per_multiprocessor;
            return Err(Infeasible::SharedOfBlocks { blocks: self.min_blocks, needed: together, limit });
        }
        let needed = self.accumulators.saturating_add(OTHER_REGISTERS);
        let limit = limits.registers(self.threads, self.min_blocks);
        if needed > limit as u64 {
            return Err(Infeasible::Registers {
                needed,
                accumulators: self.accumulators,
                limit,
                threads: self.threads,
                blocks: self.min_blocks,
            });
        }
        Ok(())
    }
}

/// Whether a block's shared memory is there.
///
/// # Errors
/// [`Infeasible::SharedMemory`] where it is not.
#[inline]
pub const fn check_shared(needed: u64, limits: &Limits) -> Result<(), Infeasible> {
    if needed > limits.shared_per_block as u64 {
        return Err(Infeasible::SharedMemory { needed, limit: limits.shared_per_block });
    }
    Ok(())
}

/// Why a tile cannot be built or launched. Its text names the value and the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Infeasible {
    /// A size of the tile that the kernel cannot be instantiated with.
    Multiple {
        /// The parameter.
        what: &'static str,
        /// Its value.
        value: u32,
        /// What it must be a positive multiple of.
        of: u32,
    },
    /// More keys than one sum of 8-bit products may have.
    Summed {
        /// The tile's.
        block_n: u32,
        /// Keys that a sum may have.
        limit: u32,
    },
    /// Rows of queries that the kernel has no warpgroups for.
    Rows {
        /// The tile's.
        block_m: u32,
        /// Those that there are.
        available: &'static str,
    },
    /// Products of a step that the kernel is not there for.
    Depth {
        /// The tile's.
        block_k: u32,
        /// Those that there are.
        available: &'static str,
    },
    /// Too few stages of a ring in shared memory.
    Stages {
        /// The tile's.
        stages: u32,
        /// Those that it needs.
        needed: u32,
    },
    /// More blocks on a multiprocessor than the kernel shares its registers out for.
    Blocks {
        /// Blocks asked for.
        blocks: u32,
        /// Blocks that there can be.
        limit: u32,
    },
    /// Too many threads in a block, or none.
    Threads {
        /// Threads that the tile has.
        needed: u32,
        /// Threads that a block may have.
        limit: u32,
    },
    /// Too little shared memory for a block.
    SharedMemory {
        /// Bytes that the tile takes.
        needed: u64,
        /// Bytes that a block may have.
        limit: u32,
    },
    /// Too little shared memory for the blocks that are to run at once.
    SharedOfBlocks {
        /// The blocks.
        blocks: u32,
        /// Bytes that they take together.
        needed: u64,
        /// Bytes of the multiprocessor.
        limit: u32,
    },
    /// Too few registers.
    Registers {
        /// Registers that a thread takes at the least.
        needed: u64,
        /// Those for S and O among them.
        accumulators: u64,
        /// Registers that a thread may have.
        limit: u32,
        /// Threads of a block.
        threads: u32,
        /// Blocks that share the registers.
        blocks: u32,
    },
    /// The kernel is not there for this storage type.
    StorageType {
        /// The type.
        dtype: &'static str,
        /// Those that there are.
        available: &'static str,
    },
}

/// [`Infeasible::Multiple`] unless `value` is a positive multiple of `of`.
#[inline]
pub(super) const fn check_multiple(what: &'static str, value: u32, of: u32) -> Result<(), Infeasible> {
    if of > 0 && value > 0 && value.is_multiple_of(of) {
        return Ok(());
    }
    Err(Infeasible::Multiple { what, value, of })
}

/// The first error of some results.
#[inline]
pub(super) const fn all<const N: usize>(results: [Result<(), Infeasible>; N]) -> Result<(), Infeasible> {
    let mut index = 0;
    while index < results.len() {
        if results[index].is_err() {
            return results[index];
        }
        index += 1;
    }
    Ok(())
}

// Formatting would be a function of its own in the device's PTX.
#[cfg(not(target_arch = "nvptx64"))]
impl core::fmt::Display for Infeasible {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Multiple { what, value, of } => {
                write!(f, "{what} is {value}; a positive multiple of {of} is needed")
            }
            Self::Summed { block_n, limit } => {
                write!(f, "BLOCK_N is {block_n}; a sum of 8-bit products takes at most {limit} keys")
            }
            Self::Rows { block_m, available } => write!(f, "BLOCK_M is {block_m}; there is {available}"),
            Self::Blocks { blocks, limit } => {
                write!(f, "{blocks} blocks for a multiprocessor; the kernel takes {limit}")
            }
            Self::Threads { needed, limit } => write!(f, "{needed} threads; a block has 1 to {limit}"),
            Self::SharedMemory { needed, limit } => {
                write!(f, "{needed} bytes of shared memory; a block has {limit}")
            }
            Self::SharedOfBlocks { blocks, needed, limit } => {
                write!(f, "{needed} bytes of shared memory for {blocks} blocks; a multiprocessor has {limit}")
            }
            Self::Registers { needed, accumulators, limit, threads, blocks } => write!(
                f,
                "at least {needed} registers ({accumulators} of them S and O); a thread of {blocks} x {threads} \
                 has {limit}"
            ),
            Self::Depth { block_k, available } => write!(f, "BLOCK_K is {block_k}; there is {available}"),
            Self::Stages { stages, needed } => write!(f, "{stages} stages; at least {needed} are needed"),
            Self::StorageType { dtype, available } => write!(f, "no {dtype} entry; there is {available}"),
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
impl core::error::Error for Infeasible {}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use super::*;
    use crate::config::{MmaConfig, SimtConfig};
    use alloc::string::ToString as _;

    const HOPPER: Limits = Limits::of(90);

    fn mma(block_m: u32, block_n: u32, head_dim: u32, warps: u32, min_blocks: u32) -> Result<(), Infeasible> {
        MmaConfig { block_m, block_n, head_dim, warps }.check(min_blocks, &HOPPER)
    }

    #[test]
    fn each_reason_names_value_and_limit() {
        let simt = |block_m, block_n, head_dim, limits| {
            SimtConfig { block_m, block_n, head_dim }
                .check(2, &limits)
                .expect_err("it is infeasible")
                .to_string()
        };
        let cases = [
            (mma(100, 64, 64, 4, 2), "BLOCK_M is 100; a positive multiple of 64 is needed"),
            (mma(128, 24, 64, 4, 2), "BLOCK_N is 24; a positive multiple of 16 is needed"),
            (mma(128, 64, 0, 4, 2), "HEAD_DIM is 0; a positive multiple of 16 is needed"),
            (mma(128, 64, 64, 0, 2), "0 threads; a block has 1 to 1024"),
            (mma(1024, 64, 64, 64, 2), "2048 threads; a block has 1 to 1024"),
            (mma(128, 128, 256, 8, 1), "337920 bytes of shared memory; a block has 232448"),
            (
                mma(128, 64, 192, 8, 2),
                "309248 bytes of shared memory for 2 blocks; a multiprocessor has 233472",
            ),
            (
                mma(128, 128, 128, 4, 1),
                "at least 288 registers (256 of them S and O); a thread of 1 x 128 has 255",
            ),
            (
                mma(128, 32, 192, 8, 2),
                "at least 144 registers (112 of them S and O); a thread of 2 x 256 has 128",
            ),
        ];
        for (result, message) in cases {
            assert_eq!(result.expect_err("it is infeasible").to_string(), message);
        }
        assert_eq!(mma(128, 64, 96, 8, 2), Ok(()), "112 registers of 128");
        assert_eq!(simt(60, 32, 64, HOPPER), "BLOCK_M is 60; a positive multiple of 8 is needed");
        assert_eq!(simt(512, 32, 64, HOPPER), "2048 threads; a block has 1 to 1024");
        assert_eq!(simt(64, 64, 128, Limits::of(75)), "84992 bytes of shared memory; a block has 65536");
    }

    #[test]
    fn sizes_that_nobody_checked_do_not_overflow() {
        let huge = u32::MAX - 15;
        let config = MmaConfig { block_m: huge, block_n: huge, head_dim: 256, warps: 1 };
        assert!(check_shared(config.shared_needed(), &HOPPER).is_err());
        assert!(config.check(1, &HOPPER).is_err());
        let config = SimtConfig { block_m: u32::MAX - 7, block_n: huge, head_dim: 256 };
        assert!(check_shared(config.shared_needed(), &HOPPER).is_err());
        assert!(config.check(1, &HOPPER).is_err());
    }

    #[test]
    fn registers_are_shared_by_the_blocks_of_a_multiprocessor() {
        let shares = [(128, 1), (128, 2), (256, 1), (256, 2), (1024, 1)];
        assert_eq!(
            shares.map(|(threads, blocks)| HOPPER.registers(threads, blocks)),
            [255, 255, 255, 128, 64]
        );
    }
}
