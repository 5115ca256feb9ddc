//! Kernels of Hopper alone: copies by tensor maps, and wgmma.

use super::*;

entries! { sm_90a;
    // (BLOCK_M, BLOCK_N, HEAD_DIM): the fastest of those that were swept on an H200, of 64 and 128 for full
    // rounds of long sequences, for short ones, and at 64 for short ones under a causal mask, where fewer
    // keys are masked in vain. More than 64 keys a step lose from 144 columns on, where two warpgroups have
    // shared memory for three blocks of them, or three for larger tiles of queries.
    forward_sm90(192, 128, 32);
    forward_sm90(192, 128, 64);
    forward_sm90(128, 128, 64);
    forward_sm90(192, 64, 64);
    forward_sm90(192, 64, 80);
    forward_sm90(192, 64, 96);
    forward_sm90(192, 64, 112);
    forward_sm90(192, 80, 128);
    forward_sm90(128, 128, 128);
    forward_sm90(192, 64, 144);
    forward_sm90(128, 64, 160);
    forward_sm90(128, 64, 176);
    forward_sm90(128, 64, 192);
    forward_sm90(128, 64, 208);
    forward_sm90(128, 64, 224);
    forward_sm90(128, 64, 240);
    forward_sm90(128, 64, 256);
    // One tile of each HEAD_DIM, which leaves registers for what is done to scores.
    forward_sm90_score_mod(128, 128, 64);
    forward_sm90_score_mod(128, 96, 128);
    forward_sm90_score_mod(128, 64, 256);
    // Rows that lie no multiple of 16 bytes apart, in tiles of three warpgroups, which take no turns. Their
    // steps are short, for each class of keys ends with one that is not full. Wider rows are copied in as
    // little time as their classes take.
    forward_sm90_residues(192, 64, 32);
    forward_sm90_residues(192, 64, 64);
    forward_sm90_residues(192, 64, 80);
    forward_sm90_residues(192, 64, 96);
    forward_sm90_residues(192, 64, 112);
    forward_sm90_residues(192, 64, 128);
    forward_sm90_residues(192, 64, 144);
    // Of 8 bits: as many keys a step as registers hold, and no more than a sum may have.
    forward_sm90_e4m3(192, 128, 64);
    forward_sm90_e4m3(192, 96, 64);
    forward_sm90_e4m3(192, 96, 128);
    forward_sm90_e4m3(128, 128, 128);
    forward_sm90_e4m3(128, 96, 256);
    // Copies what tensor maps cannot describe.
    pack();
    // Copies V of 8 bits for the tensor cores.
    transpose();
}
