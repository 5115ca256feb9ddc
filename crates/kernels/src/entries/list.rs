//! The kernels that are built: every (algorithm, configuration) pair, one PTX entry for each storage type.
//!
//! Adding one is adding a line, and `cargo xtask kernels` writes the source that follows from it.

use super::line::{
    Line, append, backward_delta, backward_dq_sm80, backward_keys, backward_keys_dq_sm90,
    backward_keys_dq_sm90_score_mod, backward_keys_dropout, backward_keys_ds_sm80, backward_keys_ds_sm90,
    backward_keys_ds_sm90_score_mod, backward_keys_sm80, backward_keys_sm80_score_mod, backward_keys_sm90,
    backward_queries, backward_queries_dropout, backward_queries_sm80, backward_queries_sm80_score_mod,
    backward_queries_sm90, backward_sinks, decode, decode_combine, decode_combine_sm90, decode_sm90,
    decode_sm90_adds_up, decode_sm90_e4m3, decode_sm90_e4m3_adds_up, forward_simt, forward_simt_dropout,
    forward_sm80, forward_sm80_dropout, forward_sm80_score_mod, forward_sm90, forward_sm90_cached,
    forward_sm90_cached_score_mod, forward_sm90_dropout, forward_sm90_dv, forward_sm90_e4m3,
    forward_sm90_e4m3_score_mod, forward_sm90_residues, forward_sm90_score_mod, gemm_simt, gemm_sm80,
    gemm_sm90, merge, mla_sm90, mma_peak, pack, read_peak, standard_scores, standard_softmax,
    standard_values, tile_schedule, transpose, widen,
};
use crate::variant::Storage;

/// Every line of attention.
pub(super) const LIST: &[Line] = &[
    // For Turing and everything later.
    standard_scores(Storage::F32),
    standard_softmax(Storage::F32),
    standard_values(Storage::F32),
    standard_scores(Storage::F16),
    standard_softmax(Storage::F16),
    standard_values(Storage::F16),
    standard_scores(Storage::Bf16),
    standard_softmax(Storage::Bf16),
    standard_values(Storage::Bf16),
    // Writes new keys and values to a cache.
    append(),
    // (BLOCK_M, BLOCK_N, HEAD_DIM, blocks per multiprocessor that the registers leave room for). Each
    // HEAD_DIM has a tile of at most 64 KiB, the shared memory of the smallest device that the PTX runs on;
    // the larger ones reuse each K and V row more, are faster, and stand first. Two blocks, so that one
    // computes while the other loads, wherever that costs no spill.
    forward_simt(64, 64, 32, 2),
    forward_simt(64, 32, 32, 2),
    forward_simt(64, 64, 64, 2),
    forward_simt(64, 32, 64, 1),
    forward_simt(32, 32, 64, 2),
    forward_simt(64, 64, 96, 2),
    forward_simt(64, 32, 96, 1),
    forward_simt(64, 64, 128, 2),
    forward_simt(64, 32, 128, 1),
    forward_simt(32, 32, 128, 2),
    forward_simt(64, 64, 160, 1),
    forward_simt(64, 32, 160, 1),
    forward_simt(32, 32, 160, 2),
    forward_simt(64, 64, 192, 1),
    forward_simt(64, 32, 192, 1),
    forward_simt(32, 32, 192, 2),
    forward_simt(64, 64, 256, 1),
    forward_simt(64, 32, 256, 1),
    forward_simt(32, 32, 256, 2),
    forward_simt(32, 16, 256, 2),
    backward_delta(),
    // It reads what is fp32 whatever the storage type.
    backward_sinks(),
    // (rows that a block owns, rows of a step, HEAD_DIM, blocks per multiprocessor); as above, the larger
    // first, and one of at most 64 KiB for each HEAD_DIM. dK and dV take twice the registers of dQ.
    backward_keys(64, 64, 64, 1),
    backward_keys(64, 32, 64, 1),
    backward_keys(64, 32, 128, 1),
    backward_keys(32, 16, 128, 2),
    backward_keys(64, 32, 256, 1),
    backward_keys(8, 16, 256, 4),
    backward_queries(64, 64, 64, 2),
    backward_queries(64, 32, 64, 2),
    backward_queries(32, 32, 128, 3),
    backward_queries(32, 16, 128, 2),
    backward_queries(64, 32, 256, 1),
    backward_queries(8, 16, 256, 4),
    // One tile of each HEAD_DIM, of at most 64 KiB, that draws which weights are dropped.
    forward_simt_dropout(64, 32, 64, 1),
    forward_simt_dropout(32, 32, 128, 2),
    forward_simt_dropout(32, 16, 256, 2),
    backward_keys_dropout(64, 32, 64, 1),
    backward_keys_dropout(32, 16, 128, 2),
    backward_keys_dropout(8, 16, 256, 4),
    backward_queries_dropout(64, 32, 64, 1),
    backward_queries_dropout(32, 16, 128, 2),
    backward_queries_dropout(8, 16, 256, 4),
    // Since sm_80: asynchronous copies, and the tensor cores' m16n8k16.
    //
    // (BLOCK_M, BLOCK_N, HEAD_DIM, warps, blocks per multiprocessor that the registers leave room for);
    // of each HEAD_DIM the fastest first, as measured on an H200. Four warps of 32 rows load each row of
    // K and V half as often as eight warps of 16, where the accumulators leave registers for it.
    forward_sm80(128, 48, 32, 4, 2),
    forward_sm80(128, 64, 48, 4, 2),
    forward_sm80(128, 64, 64, 4, 2),
    forward_sm80(128, 64, 80, 4, 2),
    forward_sm80(128, 64, 96, 4, 2),
    forward_sm80(128, 48, 112, 4, 2),
    forward_sm80(128, 48, 128, 4, 2),
    forward_sm80(128, 32, 144, 4, 2),
    forward_sm80(128, 64, 160, 8, 1),
    forward_sm80(128, 16, 176, 4, 2),
    forward_sm80(128, 64, 192, 8, 1),
    forward_sm80(64, 32, 192, 4, 2),
    forward_sm80(128, 64, 208, 8, 1),
    forward_sm80(64, 32, 208, 4, 2),
    forward_sm80(128, 64, 224, 8, 1),
    forward_sm80(64, 32, 224, 4, 2),
    forward_sm80(128, 64, 256, 8, 1),
    forward_sm80(64, 32, 256, 4, 2),
    // One tile of each HEAD_DIM, which leaves registers for what is done to scores.
    forward_sm80_score_mod(128, 64, 32, 4, 2),
    forward_sm80_score_mod(128, 64, 64, 4, 2),
    forward_sm80_score_mod(128, 64, 96, 4, 2),
    forward_sm80_score_mod(128, 32, 128, 4, 2),
    forward_sm80_score_mod(128, 64, 144, 8, 1),
    forward_sm80_score_mod(128, 64, 160, 8, 1),
    forward_sm80_score_mod(128, 64, 192, 8, 1),
    forward_sm80_score_mod(128, 32, 256, 8, 1),
    // Those that draw which weights are dropped, and change scores too.
    forward_sm80_dropout(128, 64, 64, 4, 2),
    forward_sm80_dropout(128, 64, 128, 8, 1),
    forward_sm80_dropout(128, 64, 192, 8, 1),
    forward_sm80_dropout(128, 32, 256, 8, 1),
    // (BLOCK_M, HEAD_DIM, warps, stages, blocks per multiprocessor that registers and Hopper's shared memory
    // leave room for). Of each HEAD_DIM and BLOCK_M the ring with the most bytes in flight stands first, and
    // each HEAD_DIM has one that fits the 99 KiB of the smallest devices since sm_80.
    decode(16, 64, 4, 5, 2),
    decode(32, 64, 4, 5, 2),
    decode(64, 64, 4, 5, 2),
    decode(16, 96, 4, 3, 2),
    decode(32, 96, 4, 3, 2),
    decode(16, 128, 4, 3, 2),
    decode(16, 128, 4, 2, 2),
    decode(32, 128, 4, 3, 2),
    decode(16, 192, 4, 2, 2),
    decode(16, 192, 2, 3, 2),
    decode(16, 256, 2, 3, 2),
    decode(16, 256, 2, 2, 2),
    decode_combine(),
    merge(),
    // (rows that a block owns, rows of a step, HEAD_DIM, warps, blocks per multiprocessor that the registers
    // leave room for). Warps of 32 rows load each row of the others half as often as those of 16, where the
    // accumulators leave registers for it. Two warps share 16 rows where one does not hold dK and dV of them.
    // Each HEAD_DIM has one that fits the 99 KiB of the smallest devices since sm_80.
    backward_keys_sm80(128, 32, 64, 4, 2),
    backward_keys_sm80(64, 32, 128, 4, 2),
    backward_keys_sm80(64, 16, 160, 4, 2),
    backward_keys_sm80(64, 16, 192, 8, 1),
    backward_keys_sm80(64, 16, 256, 8, 1),
    backward_queries_sm80(128, 32, 64, 4, 2),
    backward_queries_sm80(128, 32, 128, 4, 2),
    backward_queries_sm80(64, 32, 128, 4, 2),
    backward_queries_sm80(64, 32, 160, 4, 2),
    backward_queries_sm80(64, 16, 192, 4, 2),
    backward_queries_sm80(64, 16, 256, 4, 2),
    // Those that store dS, and dQ as its product with K.
    backward_keys_ds_sm80(128, 32, 64, 4, 2),
    backward_keys_ds_sm80(128, 64, 128, 8, 1),
    backward_keys_ds_sm80(64, 32, 128, 4, 2),
    backward_dq_sm80((128, 64, 64), (4, 1), 4, 2),
    backward_dq_sm80((128, 64, 128), (2, 2), 3, 2),
    // Whatever is done to scores, and weights that are dropped.
    backward_keys_sm80_score_mod(128, 16, 64, 4, 2),
    backward_keys_sm80_score_mod(64, 32, 128, 4, 2),
    backward_keys_sm80_score_mod(64, 16, 160, 4, 2),
    backward_keys_sm80_score_mod(64, 16, 192, 8, 1),
    backward_keys_sm80_score_mod(64, 16, 256, 8, 1),
    backward_queries_sm80_score_mod(128, 32, 64, 4, 2),
    backward_queries_sm80_score_mod(64, 32, 128, 4, 2),
    backward_queries_sm80_score_mod(64, 32, 160, 4, 2),
    backward_queries_sm80_score_mod(64, 16, 192, 4, 2),
    backward_queries_sm80_score_mod(64, 16, 256, 4, 2),
    // Of Hopper alone: copies by tensor maps, and wgmma.
    //
    // (BLOCK_M, BLOCK_N, HEAD_DIM): the fastest of those that were swept on an H200, of 64 and 128 for full
    // rounds of long sequences, for short ones, and at 64 for short ones under a causal mask, where fewer
    // keys are masked in vain. More than 64 keys a step lose from 144 columns on, where two warpgroups have
    // shared memory for three blocks of them, or three for larger tiles of queries. Tiles of 64 rows, of
    // which a multiprocessor has three, are for problems of few steps: one waits while the others multiply.
    forward_sm90(192, 128, 32),
    forward_sm90(192, 128, 64),
    forward_sm90(128, 128, 64),
    forward_sm90(192, 64, 64),
    forward_sm90(64, 64, 64),
    forward_sm90(192, 64, 80),
    forward_sm90(192, 64, 96),
    forward_sm90(192, 64, 112),
    forward_sm90(192, 80, 128),
    forward_sm90(128, 128, 128),
    forward_sm90(192, 64, 144),
    forward_sm90(128, 64, 160),
    forward_sm90(128, 64, 176),
    forward_sm90(128, 64, 192),
    forward_sm90(128, 64, 208),
    forward_sm90(128, 64, 224),
    forward_sm90(128, 64, 240),
    forward_sm90(128, 64, 256),
    // With HEAD_DIM_V: head_dim 192 of Q and K beside 128 of V and O, as in multi-head latent attention.
    forward_sm90_dv(192, 80, 192, 128),
    // Those that change scores, for long sequences and for short ones.
    forward_sm90_score_mod(192, 128, 64),
    forward_sm90_score_mod(192, 64, 64),
    forward_sm90_score_mod(192, 80, 128),
    forward_sm90_score_mod(128, 128, 128),
    forward_sm90_score_mod(128, 64, 256),
    // Those that draw which weights are dropped, and change scores too.
    forward_sm90_dropout(192, 128, 64),
    forward_sm90_dropout(128, 128, 128),
    forward_sm90_dropout(128, 64, 256),
    // Rows that lie no multiple of 16 bytes apart, in tiles of three warpgroups, which take no turns. Their
    // steps are short, for each class of keys ends with one that is not full. Wider rows are copied in as
    // little time as their classes take.
    forward_sm90_residues(192, 64, 32),
    forward_sm90_residues(192, 64, 64),
    forward_sm90_residues(192, 64, 80),
    forward_sm90_residues(192, 64, 96),
    forward_sm90_residues(192, 64, 112),
    forward_sm90_residues(192, 64, 128),
    forward_sm90_residues(192, 64, 144),
    // Over a K/V cache, in steps that pages of powers of two divide. Two warpgroups, whose rows a pack of
    // heads fills sooner. At 256 columns more than 32 keys a step spill.
    forward_sm90_cached(128, 128, 64),
    forward_sm90_cached(128, 128, 128),
    forward_sm90_cached(128, 64, 192),
    forward_sm90_cached(128, 32, 256),
    forward_sm90_cached_score_mod(128, 128, 64),
    forward_sm90_cached_score_mod(128, 128, 128),
    forward_sm90_cached_score_mod(128, 64, 192),
    forward_sm90_cached_score_mod(128, 32, 256),
    // Of 8 bits: as many keys a step as registers hold, and no more than a sum may have.
    forward_sm90_e4m3(192, 128, 64),
    forward_sm90_e4m3(192, 96, 64),
    forward_sm90_e4m3(192, 128, 96),
    forward_sm90_e4m3(192, 96, 128),
    forward_sm90_e4m3(128, 128, 128),
    forward_sm90_e4m3(128, 128, 160),
    forward_sm90_e4m3(128, 128, 192),
    forward_sm90_e4m3(128, 96, 224),
    forward_sm90_e4m3(128, 96, 256),
    forward_sm90_e4m3_score_mod(192, 128, 64),
    forward_sm90_e4m3_score_mod(192, 96, 64),
    forward_sm90_e4m3_score_mod(192, 128, 96),
    forward_sm90_e4m3_score_mod(192, 96, 128),
    forward_sm90_e4m3_score_mod(128, 128, 128),
    forward_sm90_e4m3_score_mod(128, 128, 160),
    forward_sm90_e4m3_score_mod(128, 128, 192),
    forward_sm90_e4m3_score_mod(128, 96, 224),
    forward_sm90_e4m3_score_mod(128, 96, 256),
    // (BLOCK_M, BLOCK_N, HEAD_DIM, stages, blocks per multiprocessor): as many tiles of K and V as shared
    // memory holds, and as many keys as registers do. Two blocks, so that one copies on while the other ends.
    decode_sm90(16, 128, 64, 6, 2),
    decode_sm90(32, 128, 64, 5, 2),
    decode_sm90(64, 128, 64, 9, 1),
    decode_sm90(16, 128, 128, 3, 2),
    decode_sm90(32, 128, 128, 5, 1),
    decode_sm90(64, 64, 128, 10, 1),
    decode_sm90(16, 128, 192, 4, 1),
    decode_sm90(64, 64, 192, 6, 1),
    decode_sm90(16, 128, 256, 3, 1),
    decode_sm90(32, 64, 256, 5, 1),
    // Of caches in e4m3, whose lines have 128 columns: half of them are empty at 64.
    decode_sm90_e4m3(16, 128, 64, 6, 2),
    decode_sm90_e4m3(16, 128, 128, 6, 2),
    decode_sm90_e4m3(16, 64, 128, 12, 2),
    decode_sm90_e4m3(32, 64, 128, 10, 2),
    decode_sm90_e4m3(64, 64, 128, 20, 1),
    decode_sm90_e4m3(16, 64, 256, 5, 2),
    // The same with blocks that can have several splits of a tile, whose sum takes the registers of an O.
    decode_sm90_adds_up(16, 128, 64, 6, 2),
    decode_sm90_adds_up(32, 128, 64, 5, 1),
    decode_sm90_adds_up(16, 128, 128, 3, 2),
    decode_sm90_adds_up(32, 128, 128, 5, 1),
    decode_sm90_adds_up(16, 128, 192, 4, 1),
    decode_sm90_adds_up(16, 128, 256, 3, 1),
    decode_sm90_e4m3_adds_up(16, 128, 64, 6, 2),
    decode_sm90_e4m3_adds_up(16, 64, 128, 12, 2),
    decode_combine_sm90(),
    // Of latent caches: 64 rows, of 576 columns, of which 512 are values.
    mla_sm90(),
    // (rows of a step, HEAD_DIM): a block owns 128, or 64 above HEAD_DIM 160.
    backward_keys_sm90(64, 64),
    backward_keys_sm90(64, 96),
    backward_keys_sm90(64, 128),
    backward_keys_ds_sm90(128, 64),
    backward_keys_ds_sm90(64, 64),
    backward_keys_ds_sm90(64, 96),
    backward_keys_ds_sm90(64, 128),
    backward_keys_ds_sm90(32, 144),
    backward_keys_ds_sm90(32, 160),
    backward_keys_ds_sm90(64, 192),
    backward_keys_ds_sm90(64, 256),
    // Whatever is done to scores, and weights that are dropped.
    backward_keys_ds_sm90_score_mod(64, 64),
    backward_keys_ds_sm90_score_mod(64, 96),
    backward_keys_ds_sm90_score_mod(64, 128),
    backward_keys_ds_sm90_score_mod(32, 160),
    backward_keys_ds_sm90_score_mod(64, 192),
    backward_keys_ds_sm90_score_mod(64, 256),
    // dQ summed where dS is made.
    backward_keys_dq_sm90(64, 64),
    backward_keys_dq_sm90_score_mod(64, 64),
    backward_queries_sm90(128, 64),
    backward_queries_sm90(128, 96),
    backward_queries_sm90(128, 128),
    // Copies what tensor maps cannot describe.
    pack(),
    // Copies V of 8 bits for the tensor cores.
    transpose(),
    // Widens caches in e4m3.
    widen(),
    // Puts the tiles of a packed batch into an order.
    tile_schedule(),
];

/// Every line of matrix multiplication.
pub(super) const GEMM: &[Line] = &[
    // (BLOCK_M, BLOCK_N, blocks per multiprocessor that the registers leave room for), the largest first.
    gemm_simt(128, 64, 3),
    gemm_simt(64, 64, 4),
    // The larger a warp's part, the fewer bytes of shared memory for each product; the largest first.
    gemm_sm80((128, 256, 64), (2, 4), 3, 1, true),
    gemm_sm80((128, 128, 32), (2, 2), 4, 2, true),
    gemm_sm80((64, 64, 64), (2, 2), 3, 4, true),
    gemm_sm80((128, 128, 32), (4, 2), 3, 1, false),
    mma_peak(Storage::F16),
    mma_peak(Storage::Bf16),
    read_peak(),
    // (BLOCK_M, BLOCK_N, stages): the whole shared memory of a multiprocessor.
    gemm_sm90(128, 256, 4),
    gemm_sm90(128, 128, 6),
];
