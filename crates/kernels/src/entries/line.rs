//! What a line of the lists stands for: a kernel with its tile, in each of its storage types.

extern crate alloc;

use alloc::vec::Vec;

use crate::attention::{
    append as appending, backward_sinks as sinks, transpose as transposition, widen as widening,
};
use crate::config::{
    BackwardConfig, BackwardDqConfig, BackwardMmaConfig, BackwardSm90Config, DecodeConfig, DecodeSm90Config,
    GemmConfig, GemmSimtConfig, GemmSm90Config, MmaConfig, SimtConfig, Sm90Config,
};
use crate::entries::{Algorithm, GemmAlgorithm};
use crate::gemm::simt::BLOCK_K;
use crate::variant::{Config, Fixed, Kernel, Layout, Storage, Variant};

/// A line of the lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    kernel: Kernel,
    /// Of products, with the first layout; the line stands for all of them.
    config: Config,
    dtypes: &'static [Storage],
    min_blocks: u32,
}

const REAL: &[Storage] = &[Storage::F32, Storage::F16, Storage::Bf16];
const HALF: &[Storage] = &[Storage::F16, Storage::Bf16];

impl Line {
    /// What it stands for, in order.
    pub(super) fn variants(&self) -> Vec<Variant> {
        let Self { kernel, config, dtypes, min_blocks } = *self;
        let of_type = |dtype| {
            config.layouts().into_iter().map(move |config| Variant { kernel, config, dtype, min_blocks })
        };
        dtypes.iter().copied().flat_map(of_type).collect()
    }
}

const fn of(algorithm: Algorithm, config: Config, dtypes: &'static [Storage], min_blocks: u32) -> Line {
    Line { kernel: Kernel::Attention(algorithm), config, dtypes, min_blocks }
}

const fn one(dtype: Storage) -> &'static [Storage] {
    match dtype {
        Storage::F32 => &[Storage::F32],
        Storage::F16 => &[Storage::F16],
        Storage::Bf16 => &[Storage::Bf16],
        Storage::E4m3 => &[Storage::E4m3],
        Storage::B16 => &[Storage::B16],
        Storage::B8 => &[Storage::B8],
    }
}

pub(super) const fn standard_scores(dtype: Storage) -> Line {
    of(Algorithm::StandardScores, Config::Fixed(Fixed::SCORES), one(dtype), 2)
}

pub(super) const fn standard_softmax(dtype: Storage) -> Line {
    of(Algorithm::StandardSoftmax, Config::Fixed(Fixed::SOFTMAX), one(dtype), 2)
}

pub(super) const fn standard_values(dtype: Storage) -> Line {
    of(Algorithm::StandardValues, Config::Fixed(Fixed::VALUES), one(dtype), 2)
}

/// BLOCK_M, BLOCK_N, HEAD_DIM, blocks per multiprocessor.
pub(super) const fn forward_simt(block_m: u32, block_n: u32, head_dim: u32, min_blocks: u32) -> Line {
    let config = Config::Simt(SimtConfig { block_m, block_n, head_dim });
    of(Algorithm::ForwardSimt, config, REAL, min_blocks)
}

/// As [`forward_simt`].
pub(super) const fn forward_simt_dropout(block_m: u32, block_n: u32, head_dim: u32, min_blocks: u32) -> Line {
    let kernel = Kernel::Attention(Algorithm::ForwardSimtDropout);
    Line { kernel, ..forward_simt(block_m, block_n, head_dim, min_blocks) }
}

/// BLOCK_M, BLOCK_N, HEAD_DIM, warps, blocks per multiprocessor.
pub(super) const fn forward_sm80(
    block_m: u32,
    block_n: u32,
    head_dim: u32,
    warps: u32,
    min_blocks: u32,
) -> Line {
    let config = Config::Mma(MmaConfig { block_m, block_n, head_dim, warps });
    of(Algorithm::ForwardSm80, config, HALF, min_blocks)
}

/// As [`forward_sm80`].
pub(super) const fn forward_sm80_score_mod(
    block_m: u32,
    block_n: u32,
    head_dim: u32,
    warps: u32,
    min_blocks: u32,
) -> Line {
    let kernel = Kernel::Attention(Algorithm::ForwardSm80ScoreMod);
    Line { kernel, ..forward_sm80(block_m, block_n, head_dim, warps, min_blocks) }
}

/// As [`forward_sm80`].
pub(super) const fn forward_sm80_dropout(
    block_m: u32,
    block_n: u32,
    head_dim: u32,
    warps: u32,
    min_blocks: u32,
) -> Line {
    let kernel = Kernel::Attention(Algorithm::ForwardSm80Dropout);
    Line { kernel, ..forward_sm80(block_m, block_n, head_dim, warps, min_blocks) }
}

/// BLOCK_M, BLOCK_N, HEAD_DIM.
pub(super) const fn forward_sm90(block_m: u32, block_n: u32, head_dim: u32) -> Line {
    forward_sm90_dv(block_m, block_n, head_dim, head_dim)
}

/// BLOCK_M, BLOCK_N, HEAD_DIM, HEAD_DIM_V.
pub(super) const fn forward_sm90_dv(block_m: u32, block_n: u32, head_dim: u32, head_dim_v: u32) -> Line {
    let config = Sm90Config { block_m, block_n, head_dim, head_dim_v, element_bytes: 2 };
    of(Algorithm::ForwardSm90, Config::Sm90(config), HALF, config.blocks())
}

/// As [`forward_sm90`].
pub(super) const fn forward_sm90_score_mod(block_m: u32, block_n: u32, head_dim: u32) -> Line {
    let kernel = Kernel::Attention(Algorithm::ForwardSm90ScoreMod);
    Line { kernel, ..forward_sm90(block_m, block_n, head_dim) }
}

/// As [`forward_sm90`].
pub(super) const fn forward_sm90_dropout(block_m: u32, block_n: u32, head_dim: u32) -> Line {
    let kernel = Kernel::Attention(Algorithm::ForwardSm90Dropout);
    Line { kernel, ..forward_sm90(block_m, block_n, head_dim) }
}

/// As [`forward_sm90`].
pub(super) const fn forward_sm90_residues(block_m: u32, block_n: u32, head_dim: u32) -> Line {
    let kernel = Kernel::Attention(Algorithm::ForwardSm90Residues);
    Line { kernel, ..forward_sm90(block_m, block_n, head_dim) }
}

/// As [`forward_sm90`].
pub(super) const fn forward_sm90_cached(block_m: u32, block_n: u32, head_dim: u32) -> Line {
    let kernel = Kernel::Attention(Algorithm::ForwardSm90Cached);
    Line { kernel, ..forward_sm90(block_m, block_n, head_dim) }
}

/// As [`forward_sm90`].
pub(super) const fn forward_sm90_cached_score_mod(block_m: u32, block_n: u32, head_dim: u32) -> Line {
    let kernel = Kernel::Attention(Algorithm::ForwardSm90CachedScoreMod);
    Line { kernel, ..forward_sm90(block_m, block_n, head_dim) }
}

/// As [`forward_sm90`].
pub(super) const fn forward_sm90_e4m3(block_m: u32, block_n: u32, head_dim: u32) -> Line {
    let config =
        Config::Sm90(Sm90Config { block_m, block_n, head_dim, head_dim_v: head_dim, element_bytes: 1 });
    of(Algorithm::ForwardSm90, config, &[Storage::E4m3], 1)
}

/// As [`forward_sm90_e4m3`].
pub(super) const fn forward_sm90_e4m3_score_mod(block_m: u32, block_n: u32, head_dim: u32) -> Line {
    let kernel = Kernel::Attention(Algorithm::ForwardSm90ScoreMod);
    Line { kernel, ..forward_sm90_e4m3(block_m, block_n, head_dim) }
}

/// BLOCK_M, HEAD_DIM, warps, stages, blocks per multiprocessor.
pub(super) const fn decode(block_m: u32, head_dim: u32, warps: u32, stages: u32, min_blocks: u32) -> Line {
    let config = Config::Decode(DecodeConfig { block_m, head_dim, warps, stages });
    of(Algorithm::Decode, config, HALF, min_blocks)
}

/// BLOCK_M, BLOCK_N, HEAD_DIM, stages, blocks per multiprocessor.
pub(super) const fn decode_sm90(
    block_m: u32,
    block_n: u32,
    head_dim: u32,
    stages: u32,
    min_blocks: u32,
) -> Line {
    let config = DecodeSm90Config { block_m, block_n, head_dim, stages, cache_bytes: 2 };
    of(Algorithm::DecodeSm90, Config::DecodeSm90(config), HALF, min_blocks)
}

/// As [`decode_sm90`].
pub(super) const fn decode_sm90_e4m3(
    block_m: u32,
    block_n: u32,
    head_dim: u32,
    stages: u32,
    min_blocks: u32,
) -> Line {
    let config = DecodeSm90Config { block_m, block_n, head_dim, stages, cache_bytes: 1 };
    of(Algorithm::DecodeSm90E4m3, Config::DecodeSm90(config), HALF, min_blocks)
}

/// As [`decode_sm90`].
pub(super) const fn decode_sm90_adds_up(
    block_m: u32,
    block_n: u32,
    head_dim: u32,
    stages: u32,
    min_blocks: u32,
) -> Line {
    let kernel = Kernel::Attention(Algorithm::DecodeSm90AddsUp);
    Line { kernel, ..decode_sm90(block_m, block_n, head_dim, stages, min_blocks) }
}

/// As [`decode_sm90`].
pub(super) const fn decode_sm90_e4m3_adds_up(
    block_m: u32,
    block_n: u32,
    head_dim: u32,
    stages: u32,
    min_blocks: u32,
) -> Line {
    let kernel = Kernel::Attention(Algorithm::DecodeSm90E4m3AddsUp);
    Line { kernel, ..decode_sm90_e4m3(block_m, block_n, head_dim, stages, min_blocks) }
}

pub(super) const fn decode_combine() -> Line {
    of(Algorithm::DecodeCombine, Config::Fixed(Fixed::COMBINE), HALF, 4)
}

/// As [`decode_combine`].
pub(super) const fn decode_combine_sm90() -> Line {
    of(Algorithm::DecodeCombineSm90, Config::Fixed(Fixed::COMBINE), HALF, 4)
}

/// All query heads over one latent key.
pub(super) const fn mla_sm90() -> Line {
    of(Algorithm::MlaSm90, Config::Fixed(Fixed::MLA), HALF, 1)
}

pub(super) const fn append() -> Line {
    of(Algorithm::Append, Config::Fixed(Fixed::APPEND), REAL, appending::MIN_BLOCKS)
}

pub(super) const fn merge() -> Line {
    of(Algorithm::Merge, Config::Fixed(Fixed::MERGE), REAL, 4)
}

pub(super) const fn pack() -> Line {
    of(Algorithm::Pack, Config::Fixed(Fixed::PACK), &[Storage::B16], 1)
}

pub(super) const fn transpose() -> Line {
    of(Algorithm::Transpose, Config::Fixed(Fixed::TRANSPOSE), &[Storage::B8], transposition::MIN_BLOCKS)
}

pub(super) const fn widen() -> Line {
    of(Algorithm::Widen, Config::Fixed(Fixed::WIDEN), HALF, widening::MIN_BLOCKS)
}

pub(super) const fn tile_schedule() -> Line {
    of(Algorithm::TileSchedule, Config::Fixed(Fixed::SCHEDULE), &[Storage::B16], 1)
}

pub(super) const fn backward_delta() -> Line {
    of(Algorithm::BackwardDelta, Config::Fixed(Fixed::DELTA), REAL, 8)
}

pub(super) const fn backward_sinks() -> Line {
    let min_blocks = sinks::MIN_BLOCKS;
    of(Algorithm::BackwardSinks, Config::Fixed(Fixed::SINKS), &[Storage::F32], min_blocks)
}

/// Rows that a block owns, rows of a step, HEAD_DIM, blocks per multiprocessor.
pub(super) const fn backward_keys(owned: u32, step: u32, head_dim: u32, min_blocks: u32) -> Line {
    let config = Config::Backward(BackwardConfig { owned, step, head_dim });
    of(Algorithm::BackwardKeys, config, REAL, min_blocks)
}

/// As [`backward_keys`].
pub(super) const fn backward_queries(owned: u32, step: u32, head_dim: u32, min_blocks: u32) -> Line {
    let kernel = Kernel::Attention(Algorithm::BackwardQueries);
    Line { kernel, ..backward_keys(owned, step, head_dim, min_blocks) }
}

/// As [`backward_keys`].
pub(super) const fn backward_keys_dropout(owned: u32, step: u32, head_dim: u32, min_blocks: u32) -> Line {
    let kernel = Kernel::Attention(Algorithm::BackwardKeysDropout);
    Line { kernel, ..backward_keys(owned, step, head_dim, min_blocks) }
}

/// As [`backward_keys`].
pub(super) const fn backward_queries_dropout(owned: u32, step: u32, head_dim: u32, min_blocks: u32) -> Line {
    let kernel = Kernel::Attention(Algorithm::BackwardQueriesDropout);
    Line { kernel, ..backward_keys(owned, step, head_dim, min_blocks) }
}

/// Rows that a block owns, rows of a step, HEAD_DIM, warps, blocks per multiprocessor.
pub(super) const fn backward_keys_sm80(
    owned: u32,
    step: u32,
    head_dim: u32,
    warps: u32,
    min_blocks: u32,
) -> Line {
    let config = Config::BackwardMma(BackwardMmaConfig { owned, step, head_dim, warps, stores_ds: false });
    of(Algorithm::BackwardKeysSm80, config, HALF, min_blocks)
}

/// As [`backward_keys_sm80`].
pub(super) const fn backward_queries_sm80(
    owned: u32,
    step: u32,
    head_dim: u32,
    warps: u32,
    min_blocks: u32,
) -> Line {
    let kernel = Kernel::Attention(Algorithm::BackwardQueriesSm80);
    Line { kernel, ..backward_keys_sm80(owned, step, head_dim, warps, min_blocks) }
}

/// As [`backward_keys_sm80`].
pub(super) const fn backward_keys_sm80_score_mod(
    owned: u32,
    step: u32,
    head_dim: u32,
    warps: u32,
    min_blocks: u32,
) -> Line {
    let kernel = Kernel::Attention(Algorithm::BackwardKeysSm80ScoreMod);
    Line { kernel, ..backward_keys_sm80(owned, step, head_dim, warps, min_blocks) }
}

/// As [`backward_keys_sm80`].
pub(super) const fn backward_queries_sm80_score_mod(
    owned: u32,
    step: u32,
    head_dim: u32,
    warps: u32,
    min_blocks: u32,
) -> Line {
    let kernel = Kernel::Attention(Algorithm::BackwardQueriesSm80ScoreMod);
    Line { kernel, ..backward_keys_sm80(owned, step, head_dim, warps, min_blocks) }
}

/// As [`backward_keys_sm80`].
pub(super) const fn backward_keys_ds_sm80(
    owned: u32,
    step: u32,
    head_dim: u32,
    warps: u32,
    min_blocks: u32,
) -> Line {
    let stores_ds = true;
    let config = Config::BackwardMma(BackwardMmaConfig { owned, step, head_dim, warps, stores_ds });
    of(Algorithm::BackwardKeysDsSm80, config, HALF, min_blocks)
}

/// (BLOCK_M, BLOCK_N, HEAD_DIM), warps along M and HEAD_DIM, stages, blocks per multiprocessor.
pub(super) const fn backward_dq_sm80(
    (block_m, block_n, head_dim): (u32, u32, u32),
    (warps_m, warps_n): (u32, u32),
    stages: u32,
    min_blocks: u32,
) -> Line {
    let config = BackwardDqConfig { block_m, block_n, head_dim, warps_m, warps_n, stages };
    of(Algorithm::BackwardDqSm80, Config::BackwardDq(config), HALF, min_blocks)
}

/// Of `backward_sm90`: rows of a step, HEAD_DIM.
const fn backward_sm90(algorithm: Algorithm, step: u32, head_dim: u32) -> Line {
    let owns_keys = !matches!(algorithm, Algorithm::BackwardQueriesSm90);
    let (stores_ds, sums_dq) = (algorithm.stores_ds(), algorithm.sums_dq());
    let config = BackwardSm90Config { owns_keys, stores_ds, sums_dq, step, head_dim };
    of(algorithm, Config::BackwardSm90(config), HALF, 1)
}

/// Rows of a step, HEAD_DIM.
pub(super) const fn backward_keys_sm90(step: u32, head_dim: u32) -> Line {
    backward_sm90(Algorithm::BackwardKeysSm90, step, head_dim)
}

/// As [`backward_keys_sm90`].
pub(super) const fn backward_keys_ds_sm90(step: u32, head_dim: u32) -> Line {
    backward_sm90(Algorithm::BackwardKeysDsSm90, step, head_dim)
}

/// As [`backward_keys_sm90`].
pub(super) const fn backward_keys_ds_sm90_score_mod(step: u32, head_dim: u32) -> Line {
    backward_sm90(Algorithm::BackwardKeysDsSm90ScoreMod, step, head_dim)
}

/// As [`backward_keys_sm90`].
pub(super) const fn backward_keys_dq_sm90(step: u32, head_dim: u32) -> Line {
    backward_sm90(Algorithm::BackwardKeysDqSm90, step, head_dim)
}

/// As [`backward_keys_sm90`].
pub(super) const fn backward_keys_dq_sm90_score_mod(step: u32, head_dim: u32) -> Line {
    backward_sm90(Algorithm::BackwardKeysDqSm90ScoreMod, step, head_dim)
}

/// As [`backward_keys_sm90`].
pub(super) const fn backward_queries_sm90(step: u32, head_dim: u32) -> Line {
    backward_sm90(Algorithm::BackwardQueriesSm90, step, head_dim)
}

const fn product(
    algorithm: GemmAlgorithm,
    config: Config,
    dtypes: &'static [Storage],
    min_blocks: u32,
) -> Line {
    Line { kernel: Kernel::Gemm(algorithm), config, dtypes, min_blocks }
}

/// BLOCK_M, BLOCK_N, blocks per multiprocessor.
pub(super) const fn gemm_simt(block_m: u32, block_n: u32, min_blocks: u32) -> Line {
    let config = Config::GemmSimt(GemmSimtConfig { block_m, block_n, block_k: BLOCK_K });
    product(GemmAlgorithm::GemmSimt, config, REAL, min_blocks)
}

/// (BLOCK_M, BLOCK_N, BLOCK_K), warps along M and N, stages, blocks per multiprocessor, and whether rows
/// start at multiples of 16 bytes.
pub(super) const fn gemm_sm80(
    (block_m, block_n, block_k): (u32, u32, u32),
    (warps_m, warps_n): (u32, u32),
    stages: u32,
    min_blocks: u32,
    aligned: bool,
) -> Line {
    let config = GemmConfig { block_m, block_n, block_k, warps_m, warps_n, stages };
    let config = Config::GemmSm80 { config, layout: Layout::ALL[0], aligned };
    product(GemmAlgorithm::GemmSm80, config, HALF, min_blocks)
}

/// BLOCK_M, BLOCK_N, stages.
pub(super) const fn gemm_sm90(block_m: u32, block_n: u32, stages: u32) -> Line {
    let config = GemmSm90Config { block_m, block_n, stages };
    let config = Config::GemmSm90 { config, layout: Layout::ALL[0] };
    product(GemmAlgorithm::GemmSm90, config, HALF, 1)
}

pub(super) const fn mma_peak(dtype: Storage) -> Line {
    product(GemmAlgorithm::MmaPeak, Config::Fixed(Fixed::PEAK), one(dtype), 2)
}

pub(super) const fn read_peak() -> Line {
    product(GemmAlgorithm::ReadPeak, Config::Fixed(Fixed::READ), one(Storage::B16), 4)
}
