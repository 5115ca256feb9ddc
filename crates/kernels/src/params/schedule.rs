//! Launch parameters of the kernel that puts the tiles of a packed batch into an order.

use super::AttentionParams;

/// Parameters of `attention::tile_schedule`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScheduleParams {
    /// The problem, of which lengths are read.
    pub attention: AttentionParams,
    /// What is written, a multiple of 16: [`Self::bytes`] of `most` rows of tiles.
    pub schedule: u64,
    /// Sequences, at most [`Self::MAX_SEQUENCES`].
    pub sequences: u32,
    /// Queries of a tile, at least 1.
    pub block_m: u32,
    /// The most tiles of a head that all sequences together have room for.
    pub most: u32,
}

impl ScheduleParams {
    /// The most sequences.
    pub const MAX_SEQUENCES: u32 = 1024;

    /// Byte offset of how many tiles were taken behind the first of each block.
    pub const TAKEN: u64 = 0;

    /// Byte offset of how many tiles a head has in all sequences together.
    pub const HEAD_TILES: u64 = 4;

    /// Byte offset of the rows of tiles, of [`Self::ROW_BYTES`] each.
    pub const ROWS: u64 = 16;

    /// Bytes of a row of tiles, those of all heads at one place: the sequence, and the row that its first
    /// tiles are in.
    pub const ROW_BYTES: u64 = 8;

    /// Bytes of a schedule of so many rows of tiles.
    pub const fn bytes(rows: u64) -> u64 {
        Self::ROWS + Self::ROW_BYTES * rows
    }
}
