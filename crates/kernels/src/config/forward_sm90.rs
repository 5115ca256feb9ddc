//! Tiles of the Hopper attention kernel.

use super::feasibility::{Infeasible, all, check_multiple};

/// Shared memory of a block on Hopper (CUDA C++ Programming Guide, technical specifications).
const SHARED: u32 = 227 << 10;

/// Bytes of 64 columns of a row: the span of the swizzle.
const LINE: u32 = 128;

/// Tile of `forward_sm90`: `block_m` query rows, 64 for each warpgroup that multiplies, against `block_n` key rows of
/// `head_dim` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sm90Config {
    /// Query rows of a block (BLOCK_M), 128 or 192.
    pub block_m: u32,
    /// Key rows of a step (BLOCK_N), a multiple of 16.
    pub block_n: u32,
    /// Columns that the tile holds (HEAD_DIM), a multiple of 16; smaller head_dims are padded in shared memory.
    pub head_dim: u32,
    /// Tiles of K, and of V, that shared memory holds at once.
    pub stages: u32,
}

impl Sm90Config {
    /// Columns of a tensor map's box: the span of the swizzle.
    pub const BOX_COLUMNS: u32 = LINE / 2;

    /// Rows of a warpgroup: of a box of Q.
    pub const WARPGROUP_ROWS: u32 = 64;

    /// Rows of a warp: of a box of O.
    pub const WARP_ROWS: u32 = 16;

    /// Warpgroups that multiply.
    pub const fn warpgroups(&self) -> u32 {
        self.block_m / Self::WARPGROUP_ROWS
    }

    /// Threads of a block: a warpgroup more, which copies.
    pub const fn threads(&self) -> u32 {
        128 * (self.warpgroups() + 1)
    }

    /// Bytes of a row in shared memory, in whole panels of 64 columns.
    const fn row_bytes(&self) -> u32 {
        self.head_dim.div_ceil(Self::BOX_COLUMNS) * LINE
    }

    /// Where the rings of K and V begin: behind Q.
    pub const fn k_offset(&self) -> u32 {
        self.block_m * self.row_bytes()
    }

    /// Where the ring of V begins.
    pub const fn v_offset(&self) -> u32 {
        self.k_offset() + self.stages * self.block_n * self.row_bytes()
    }

    /// Where both rings end.
    const fn rings_end(&self) -> u32 {
        self.v_offset() + self.stages * self.block_n * self.row_bytes()
    }

    /// Bytes of the barriers, two for each warpgroup's part of Q, and for each stage of K and of V; and of what says
    /// which tile comes next.
    const fn barrier_bytes(&self) -> u32 {
        16 * (self.warpgroups() + 2 * self.stages) + Self::SCHEDULE_BYTES
    }

    /// Whether O leaves through memory of its own, so that the next tile's Q can come meanwhile, and not through that of Q.
    pub const fn own_output(&self) -> bool {
        self.rings_end() + self.k_offset() + self.barrier_bytes() <= SHARED
    }

    /// Bytes of what says which tile comes next: two slots of 32, and four barriers.
    pub const SCHEDULE_BYTES: u32 = 96;

    /// Where O leaves through.
    pub const fn o_offset(&self) -> u32 {
        if self.own_output() { self.rings_end() } else { 0 }
    }

    /// Where the barriers are, behind what says which tile comes next.
    pub const fn barriers_offset(&self) -> u32 {
        self.schedule_offset() + Self::SCHEDULE_BYTES
    }

    /// Where it says which tile comes next.
    pub const fn schedule_offset(&self) -> u32 {
        self.rings_end() + if self.own_output() { self.k_offset() } else { 0 }
    }

    /// Bytes of shared memory.
    pub const fn shared_bytes(&self) -> u32 {
        self.schedule_offset() + self.barrier_bytes()
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
            check_multiple("BLOCK_N", self.block_n, 16),
            check_multiple("HEAD_DIM", self.head_dim, 16),
        ]);
        if multiples.is_ok() && (self.threads() < 384 || self.threads() > 512) {
            return Err(Infeasible::Threads { needed: self.threads(), limit: 512 });
        }
        multiples
    }
}
