//! Kernels for Turing and everything later.

use super::*;

entries! { sm_75;
    standard("f32", f32);
    standard("f16", F16);
    standard("bf16", Bf16);
    // (BLOCK_M, BLOCK_N, HEAD_DIM, blocks per multiprocessor that the registers leave room for). Each
    // HEAD_DIM has a tile of at most 64 KiB, the shared memory of the smallest device that the PTX runs on;
    // the larger ones reuse each K and V row more, are faster, and stand first. Two blocks, so that one
    // computes while the other loads, wherever that costs no spill.
    forward_simt(64, 64, 32, 2);
    forward_simt(64, 32, 32, 2);
    forward_simt(64, 64, 64, 2);
    forward_simt(64, 32, 64, 1);
    forward_simt(32, 32, 64, 2);
    forward_simt(64, 64, 96, 2);
    forward_simt(64, 32, 96, 1);
    forward_simt(64, 64, 128, 2);
    forward_simt(64, 32, 128, 1);
    forward_simt(32, 32, 128, 2);
    forward_simt(64, 64, 160, 1);
    forward_simt(64, 32, 160, 1);
    forward_simt(32, 32, 160, 2);
    forward_simt(64, 64, 192, 1);
    forward_simt(64, 32, 192, 1);
    forward_simt(32, 32, 192, 2);
    forward_simt(64, 64, 256, 1);
    forward_simt(64, 32, 256, 1);
    forward_simt(32, 32, 256, 2);
    forward_simt(32, 16, 256, 2);
    backward_delta();
    // (rows that a block owns, rows of a step, HEAD_DIM, blocks per multiprocessor); as above, the larger
    // first, and one of at most 64 KiB for each HEAD_DIM. dK and dV take twice the registers of dQ.
    backward_keys(64, 64, 64, 1);
    backward_keys(64, 32, 64, 1);
    backward_keys(64, 32, 128, 1);
    backward_keys(32, 16, 128, 2);
    backward_keys(64, 32, 256, 1);
    backward_keys(8, 16, 256, 4);
    backward_queries(64, 64, 64, 2);
    backward_queries(64, 32, 64, 2);
    backward_queries(32, 32, 128, 3);
    backward_queries(32, 16, 128, 2);
    backward_queries(64, 32, 256, 1);
    backward_queries(8, 16, 256, 4);
    // One tile of each HEAD_DIM, of at most 64 KiB, that draws which weights are dropped.
    forward_simt_dropout(64, 32, 64, 1);
    forward_simt_dropout(32, 32, 128, 2);
    forward_simt_dropout(32, 16, 256, 2);
    backward_keys_dropout(64, 32, 64, 1);
    backward_keys_dropout(32, 16, 128, 2);
    backward_keys_dropout(8, 16, 256, 4);
    backward_queries_dropout(64, 32, 64, 1);
    backward_queries_dropout(32, 16, 128, 2);
    backward_queries_dropout(8, 16, 256, 4);
}
