//! An entry of matrix multiplication as the host sees it.

use super::Entry;

/// What an entry computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GemmAlgorithm {
    /// `gemm::simt`.
    GemmSimt,
    /// `gemm::sm80`.
    GemmSm80,
    /// `gemm::sm90`.
    GemmSm90,
    /// `gemm::peak`.
    MmaPeak,
    /// `gemm::read`.
    ReadPeak,
}

impl GemmAlgorithm {
    /// The kernel family, which is also the name of the archive that its PTX ships in.
    pub const fn family(self) -> &'static str {
        match self {
            Self::GemmSimt => "gemm_simt",
            Self::GemmSm80 => "gemm_sm80",
            Self::GemmSm90 => "gemm_sm90",
            Self::MmaPeak => "mma_peak",
            Self::ReadPeak => "read_peak",
        }
    }
}

/// The tile of an entry, and what it asks of its operands; 0 where an algorithm has no tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmTile {
    /// Rows of C of a block.
    pub block_m: u32,
    /// Columns of C of a block.
    pub block_n: u32,
    /// Products of a step.
    pub block_k: u32,
    /// Whether consecutive elements of A run along K, and those of B; `None` where both ways will do.
    pub along_k: Option<(bool, bool)>,
    /// Whether rows must start at multiples of 16 bytes, as `gemm::sm80` says.
    pub aligned: bool,
}

/// One PTX entry of matrix multiplication.
pub type GemmEntry = Entry<GemmAlgorithm, GemmTile>;
