//! Kernels with asynchronous copies and the tensor cores' m16n8k16.

use super::*;

entries! { sm_80;
    // (BLOCK_M, BLOCK_N, HEAD_DIM, warps, blocks per multiprocessor that the registers leave room for);
    // of each HEAD_DIM the fastest first, as measured on an H200. Four warps of 32 rows load each row of
    // K and V half as often as eight warps of 16, where the accumulators leave registers for it.
    forward_sm80(128, 48, 32, 4, 2);
    forward_sm80(128, 64, 48, 4, 2);
    forward_sm80(128, 64, 64, 4, 2);
    forward_sm80(128, 64, 80, 4, 2);
    forward_sm80(128, 64, 96, 4, 2);
    forward_sm80(128, 48, 112, 4, 2);
    forward_sm80(128, 48, 128, 4, 2);
    forward_sm80(128, 32, 144, 4, 2);
    forward_sm80(128, 64, 160, 8, 1);
    forward_sm80(128, 16, 176, 4, 2);
    forward_sm80(128, 64, 192, 8, 1);
    forward_sm80(64, 32, 192, 4, 2);
    forward_sm80(128, 64, 208, 8, 1);
    forward_sm80(64, 32, 208, 4, 2);
    forward_sm80(128, 64, 224, 8, 1);
    forward_sm80(64, 32, 224, 4, 2);
    forward_sm80(128, 64, 256, 8, 1);
    forward_sm80(64, 32, 256, 4, 2);
    // One tile of each HEAD_DIM, which leaves registers for what is done to scores.
    forward_sm80_score_mod(128, 64, 32, 4, 2);
    forward_sm80_score_mod(128, 64, 64, 4, 2);
    forward_sm80_score_mod(128, 64, 96, 4, 2);
    forward_sm80_score_mod(128, 32, 128, 4, 2);
    forward_sm80_score_mod(128, 64, 144, 8, 1);
    forward_sm80_score_mod(128, 64, 160, 8, 1);
    forward_sm80_score_mod(128, 64, 192, 8, 1);
    forward_sm80_score_mod(128, 32, 256, 8, 1);
    // (BLOCK_M, HEAD_DIM, warps, stages, blocks per multiprocessor that registers and Hopper's shared memory
    // leave room for). Of each HEAD_DIM and BLOCK_M the ring with the most bytes in flight stands first, and
    // each HEAD_DIM has one that fits the 99 KiB of the smallest devices since sm_80.
    decode(16, 64, 4, 5, 2);
    decode(32, 64, 4, 5, 2);
    decode(64, 64, 4, 5, 2);
    decode(16, 96, 4, 3, 2);
    decode(32, 96, 4, 3, 2);
    decode(16, 128, 4, 3, 2);
    decode(16, 128, 4, 2, 2);
    decode(32, 128, 4, 3, 2);
    decode(16, 192, 4, 2, 2);
    decode(16, 192, 2, 3, 2);
    decode(16, 256, 2, 3, 2);
    decode(16, 256, 2, 2, 2);
    decode_combine();
    // (rows that a block owns, rows of a step, HEAD_DIM, warps, blocks per multiprocessor that the registers
    // leave room for). Warps of 32 rows load each row of the others half as often as those of 16, where the
    // accumulators leave registers for it.
    backward_keys_sm80(128, 32, 64, 4, 2);
    backward_keys_sm80(64, 32, 128, 4, 2);
    backward_queries_sm80(128, 32, 64, 4, 2);
    backward_queries_sm80(128, 32, 128, 4, 2);
}
