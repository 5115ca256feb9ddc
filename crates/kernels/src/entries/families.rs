//! What a line of a kernel's family in the lists stands for: its entries, one for each storage type.
//!
//! The names that these macros mention are those of the file with the lists.

/// The three kernels of standard attention for one storage type.
macro_rules! standard {
    ($dtype:literal, $element:ty) => {
        group! {
            entry {
                concat!("standard_scores_", $dtype),
                StandardScores,
                $dtype,
                {
                    tile: standard_tile(standard::BLOCK_M, standard::BLOCK_N),
                    threads: standard::THREADS,
                    min_blocks: 2,
                    shared_bytes: standard::SCORES_SHARED_BYTES,
                    barriers: standard::BARRIERS,
                },
                standard::scores::<$element>
            }
            entry {
                concat!("standard_softmax_", $dtype),
                StandardSoftmax,
                $dtype,
                {
                    tile: standard_tile(standard::SOFTMAX_ROWS, 0),
                    threads: standard::THREADS,
                    min_blocks: 2,
                    shared_bytes: 0,
                    barriers: 0,
                },
                standard::softmax::<$element>
            }
            entry {
                concat!("standard_values_", $dtype),
                StandardValues,
                $dtype,
                {
                    tile: standard_tile(standard::BLOCK_M, standard::BLOCK_N),
                    threads: standard::THREADS,
                    min_blocks: 2,
                    shared_bytes: standard::VALUES_SHARED_BYTES,
                    barriers: standard::BARRIERS,
                },
                standard::values::<$element>
            }
        }
    };
}

/// One tile of `forward_simt` in each storage type.
macro_rules! forward_simt {
    ($m:literal, $n:literal, $d:literal, $blocks:literal) => {
        group! {
            forward_simt { "f32", f32, $m, $n, $d, $blocks }
            forward_simt { "f16", F16, $m, $n, $d, $blocks }
            forward_simt { "bf16", Bf16, $m, $n, $d, $blocks }
        }
    };
    ($dtype:literal, $element:ty, $m:literal, $n:literal, $d:literal, $blocks:literal) => {
        forward_simt! { $dtype, $element, $m, $n, $d, $blocks, ForwardSimt, "", false }
    };
    ($dtype:literal, $element:ty, $m:literal, $n:literal, $d:literal, $blocks:literal,
     $algorithm:ident, $suffix:literal, $dropout:literal) => {
        entry! {
            concat!("forward_simt_", $dtype, "_m", $m, "_n", $n, "_d", $d, $suffix),
            $algorithm,
            $dtype,
            {
                tile: Tile { block_m: $m, block_n: $n, head_dim: $d },
                threads: simt($m, $n, $d).threads(),
                min_blocks: $blocks,
                shared_bytes: simt($m, $n, $d).shared_bytes(),
                barriers: forward_simt::BARRIERS,
            },
            forward_simt::forward_simt::<forward_simt::SimtTile<$element, $m, $n, $d, $dropout>>
        }
    };
}

/// One tile of `forward_simt` with dropout.
macro_rules! forward_simt_dropout {
    ($m:literal, $n:literal, $d:literal, $blocks:literal) => {
        group! {
            forward_simt { "f32", f32, $m, $n, $d, $blocks, ForwardSimtDropout, "_dropout", true }
            forward_simt { "f16", F16, $m, $n, $d, $blocks, ForwardSimtDropout, "_dropout", true }
            forward_simt { "bf16", Bf16, $m, $n, $d, $blocks, ForwardSimtDropout, "_dropout", true }
        }
    };
}

/// One tile of `forward_sm80` in each storage type that tensor cores take.
macro_rules! forward_sm80 {
    ($m:literal, $n:literal, $d:literal, $warps:literal, $blocks:literal) => {
        group! {
            forward_sm80 { "f16", F16, $m, $n, $d, $warps, $blocks }
            forward_sm80 { "bf16", Bf16, $m, $n, $d, $warps, $blocks }
        }
    };
    ($dtype:literal, $element:ty, $m:literal, $n:literal, $d:literal, $warps:literal, $blocks:literal) => {
        forward_sm80! { $dtype, $element, $m, $n, $d, $warps, $blocks, ForwardSm80, "", false }
    };
    ($dtype:literal, $element:ty, $m:literal, $n:literal, $d:literal, $warps:literal, $blocks:literal,
     $algorithm:ident, $suffix:literal, $score_mod:literal) => {
        entry! {
            concat!("forward_sm80_", $dtype, "_m", $m, "_n", $n, "_d", $d, "_w", $warps, $suffix),
            $algorithm,
            $dtype,
            {
                tile: Tile { block_m: $m, block_n: $n, head_dim: $d },
                threads: mma($m, $n, $d, $warps).threads(),
                min_blocks: $blocks,
                shared_bytes: mma($m, $n, $d, $warps).shared_bytes(),
                barriers: forward_sm80::barriers(mma($m, $n, $d, $warps)),
            },
            forward_sm80::forward_sm80::<
                forward_sm80::Sm80Tile<$element, $warps, { $m / $warps / 8 }, $n, $d, $score_mod>
            >
        }
    };
}

/// One tile of `forward_sm80` with a `ScoreMod`.
macro_rules! forward_sm80_score_mod {
    ($m:literal, $n:literal, $d:literal, $warps:literal, $blocks:literal) => {
        group! {
            forward_sm80 { "f16", F16, $m, $n, $d, $warps, $blocks, ForwardSm80ScoreMod, "_score_mod", true }
            forward_sm80 { "bf16", Bf16, $m, $n, $d, $warps, $blocks, ForwardSm80ScoreMod, "_score_mod", true }
        }
    };
}

/// One tile of `decode` in each storage type that tensor cores take.
macro_rules! decode {
    ($m:literal, $d:literal, $warps:literal, $stages:literal, $blocks:literal) => {
        group! {
            decode { "f16", F16, $m, $d, $warps, $stages, $blocks }
            decode { "bf16", Bf16, $m, $d, $warps, $stages, $blocks }
        }
    };
    ($dtype:literal, $element:ty, $m:literal, $d:literal, $warps:literal, $stages:literal, $blocks:literal) => {
        entry! {
            concat!("decode_", $dtype, "_m", $m, "_d", $d, "_w", $warps, "_s", $stages),
            Decode,
            $dtype,
            {
                tile: Tile {
                    block_m: $m,
                    block_n: decode_config($m, $d, $warps, $stages).block_n(),
                    head_dim: $d,
                },
                threads: decode_config($m, $d, $warps, $stages).threads(),
                min_blocks: $blocks,
                shared_bytes: decode_config($m, $d, $warps, $stages).shared_bytes(),
                barriers: decode::BARRIERS,
            },
            decode::decode::<decode::DecodeTile<$element, { $m / 8 }, $d, $warps, { $stages - 1 }>>,
            Decode,
            crate::params::DecodeParams
        }
    };
}

/// The kernel that merges the splits of `decode`, in each storage type.
macro_rules! decode_combine {
    () => {
        group! {
            decode_combine { "f16", F16 }
            decode_combine { "bf16", Bf16 }
        }
    };
    ($dtype:literal, $element:ty) => {
        entry! {
            concat!("decode_combine_", $dtype),
            DecodeCombine,
            $dtype,
            {
                tile: standard_tile(1, 0),
                threads: combine::THREADS,
                min_blocks: 4,
                shared_bytes: 0,
                barriers: 0,
            },
            combine::combine::<$element>,
            Decode,
            crate::params::DecodeParams
        }
    };
}

/// The kernel that packs rows of 16-bit elements.
macro_rules! pack {
    () => {
        group! {
            pack { "pack" }
        }
    };
    ($name:literal) => {
        entry! {
            $name,
            Pack,
            "b16",
            {
                tile: standard_tile(0, 0),
                threads: pack::THREADS,
                min_blocks: pack::MIN_BLOCKS,
                shared_bytes: 0,
                barriers: 0,
            },
            pack::pack,
            Pack,
            crate::params::PackParams
        }
    };
}

/// The kernel that transposes V of 8-bit elements.
macro_rules! transpose {
    () => {
        group! {
            transpose { "transpose_b8" }
        }
    };
    ($name:literal) => {
        entry! {
            $name,
            Transpose,
            "b8",
            {
                tile: standard_tile(0, 0),
                threads: transpose::THREADS,
                min_blocks: transpose::MIN_BLOCKS,
                shared_bytes: 0,
                barriers: 0,
            },
            transpose::transpose,
            Pack,
            crate::params::PackParams
        }
    };
}

/// One tile of `forward_sm90` in each storage type of 16 bits.
macro_rules! forward_sm90 {
    ($m:literal, $n:literal, $d:literal) => {
        group! {
            forward_sm90 { "f16", F16, $m, $n, $d }
            forward_sm90 { "bf16", Bf16, $m, $n, $d }
        }
    };
    ($dtype:literal, $element:ty, $m:literal, $n:literal, $d:literal) => {
        forward_sm90! { $dtype, $element, $m, $n, $d, ForwardSm90, "", barriers, false, ByHeads, 2 }
    };
    ($dtype:literal, $element:ty, $m:literal, $n:literal, $d:literal,
     $algorithm:ident, $suffix:literal, $barriers:ident, $score_mod:literal, $alignment:ident, $bytes:literal) => {
        entry! {
            concat!("forward_sm90_", $dtype, "_m", $m, "_n", $n, "_d", $d, $suffix),
            $algorithm,
            $dtype,
            {
                tile: Tile { block_m: $m, block_n: $n, head_dim: $d },
                threads: sm90($m, $n, $d, $bytes).threads(),
                min_blocks: 1,
                shared_bytes: sm90($m, $n, $d, $bytes).shared_bytes(),
                barriers: forward_sm90::$barriers(sm90($m, $n, $d, $bytes)),
            },
            forward_sm90::forward_sm90::<forward_sm90::Sm90Tile<$element, $alignment, $m, $n, $d, $score_mod>>,
            Persistent,
            Mapped<crate::params::AttentionMaps, crate::params::PersistentParams>
        }
    };
}

/// One tile of `forward_sm90` with a `ScoreMod`.
macro_rules! forward_sm90_score_mod {
    ($m:literal, $n:literal, $d:literal) => {
        group! {
            forward_sm90 { "f16", F16, $m, $n, $d, ForwardSm90ScoreMod, "_score_mod", barriers, true, ByHeads, 2 }
            forward_sm90 { "bf16", Bf16, $m, $n, $d, ForwardSm90ScoreMod, "_score_mod", barriers, true, ByHeads, 2 }
        }
    };
}

/// One tile of `forward_sm90` with classes of rows.
macro_rules! forward_sm90_residues {
    ($m:literal, $n:literal, $d:literal) => {
        group! {
            forward_sm90 {
                "f16", F16, $m, $n, $d, ForwardSm90Residues, "_residues", residues_barriers, false, ByRows, 2
            }
            forward_sm90 {
                "bf16", Bf16, $m, $n, $d, ForwardSm90Residues, "_residues", residues_barriers, false, ByRows, 2
            }
        }
    };
}

/// One tile of `forward_sm90` in e4m3.
macro_rules! forward_sm90_e4m3 {
    ($m:literal, $n:literal, $d:literal) => {
        group! {
            forward_sm90 { "e4m3", E4m3, $m, $n, $d, ForwardSm90, "", barriers, false, ByHeads, 1 }
        }
    };
}
