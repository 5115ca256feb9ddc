//! What a line of a backward kernel's family in the lists stands for; as `families.rs`.

/// The kernel that begins a backward pass, in each storage type.
macro_rules! backward_delta {
    () => {
        group! {
            backward_delta { "f32", f32 }
            backward_delta { "f16", F16 }
            backward_delta { "bf16", Bf16 }
        }
    };
    ($dtype:literal, $element:ty) => {
        entry! {
            concat!("backward_delta_", $dtype),
            BackwardDelta,
            $dtype,
            {
                tile: standard_tile(backward_delta::BLOCK_M, 0),
                threads: backward_delta::THREADS,
                min_blocks: 8,
                shared_bytes: 0,
                barriers: 0,
            },
            backward_delta::backward_delta::<$element>,
            Backward,
            crate::params::BackwardParams
        }
    };
}

/// One tile of `backward_simt`'s kernel for dK and dV, in each storage type.
macro_rules! backward_keys {
    ($owned:literal, $step:literal, $d:literal, $blocks:literal) => {
        backward_keys! { $owned, $step, $d, $blocks, BackwardKeys, "", false }
    };
    ($owned:literal, $step:literal, $d:literal, $blocks:literal,
     $algorithm:ident, $suffix:literal, $dropout:literal) => {
        group! {
            backward_keys { "f32", f32, $owned, $step, $d, $blocks, $algorithm, $suffix, $dropout }
            backward_keys { "f16", F16, $owned, $step, $d, $blocks, $algorithm, $suffix, $dropout }
            backward_keys { "bf16", Bf16, $owned, $step, $d, $blocks, $algorithm, $suffix, $dropout }
        }
    };
    ($dtype:literal, $element:ty, $n:literal, $m:literal, $d:literal, $blocks:literal,
     $algorithm:ident, $suffix:literal, $dropout:literal) => {
        entry! {
            concat!("backward_keys_", $dtype, "_m", $m, "_n", $n, "_d", $d, $suffix),
            $algorithm,
            $dtype,
            {
                tile: Tile { block_m: $m, block_n: $n, head_dim: $d },
                threads: backward($n, $m, $d).threads(),
                min_blocks: $blocks,
                shared_bytes: backward($n, $m, $d).shared_bytes(),
                barriers: backward_simt::BARRIERS,
            },
            backward_simt::backward_keys::<backward_simt::BackwardSimtTile<$element, $n, $m, $d, $dropout>>,
            Backward,
            crate::params::BackwardParams
        }
    };
}

/// One tile of `backward_simt`'s kernel for dQ, in each storage type.
macro_rules! backward_queries {
    ($owned:literal, $step:literal, $d:literal, $blocks:literal) => {
        backward_queries! { $owned, $step, $d, $blocks, BackwardQueries, "", false }
    };
    ($owned:literal, $step:literal, $d:literal, $blocks:literal,
     $algorithm:ident, $suffix:literal, $dropout:literal) => {
        group! {
            backward_queries { "f32", f32, $owned, $step, $d, $blocks, $algorithm, $suffix, $dropout }
            backward_queries { "f16", F16, $owned, $step, $d, $blocks, $algorithm, $suffix, $dropout }
            backward_queries { "bf16", Bf16, $owned, $step, $d, $blocks, $algorithm, $suffix, $dropout }
        }
    };
    ($dtype:literal, $element:ty, $m:literal, $n:literal, $d:literal, $blocks:literal,
     $algorithm:ident, $suffix:literal, $dropout:literal) => {
        entry! {
            concat!("backward_queries_", $dtype, "_m", $m, "_n", $n, "_d", $d, $suffix),
            $algorithm,
            $dtype,
            {
                tile: Tile { block_m: $m, block_n: $n, head_dim: $d },
                threads: backward($m, $n, $d).threads(),
                min_blocks: $blocks,
                shared_bytes: backward($m, $n, $d).shared_bytes(),
                barriers: backward_simt::BARRIERS,
            },
            backward_simt::backward_queries::<backward_simt::BackwardSimtTile<$element, $m, $n, $d, $dropout>>,
            Backward,
            crate::params::BackwardParams
        }
    };
}

/// One tile of `backward_simt`'s kernel for dK and dV with dropout.
macro_rules! backward_keys_dropout {
    ($owned:literal, $step:literal, $d:literal, $blocks:literal) => {
        backward_keys! { $owned, $step, $d, $blocks, BackwardKeysDropout, "_dropout", true }
    };
}

/// One tile of `backward_simt`'s kernel for dQ with dropout.
macro_rules! backward_queries_dropout {
    ($owned:literal, $step:literal, $d:literal, $blocks:literal) => {
        backward_queries! { $owned, $step, $d, $blocks, BackwardQueriesDropout, "_dropout", true }
    };
}

/// One tile of `backward_sm80`'s kernel for dK and dV, in each storage type that tensor cores take.
macro_rules! backward_keys_sm80 {
    ($owned:literal, $step:literal, $d:literal, $warps:literal, $blocks:literal) => {
        group! {
            backward_keys_sm80 { "f16", F16, $owned, $step, $d, $warps, $blocks }
            backward_keys_sm80 { "bf16", Bf16, $owned, $step, $d, $warps, $blocks }
        }
    };
    ($dtype:literal, $element:ty, $n:literal, $m:literal, $d:literal, $warps:literal, $blocks:literal) => {
        entry! {
            concat!("backward_keys_sm80_", $dtype, "_m", $m, "_n", $n, "_d", $d, "_w", $warps),
            BackwardKeysSm80,
            $dtype,
            {
                tile: Tile { block_m: $m, block_n: $n, head_dim: $d },
                threads: backward_mma($n, $m, $d, $warps).threads(),
                min_blocks: $blocks,
                shared_bytes: backward_mma($n, $m, $d, $warps).shared_bytes(),
                barriers: backward_sm80::BARRIERS,
            },
            backward_sm80::backward_keys::<
                backward_sm80::BackwardSm80Tile<$element, $warps, { $n / $warps / 8 }, $m, $d>
            >,
            Backward,
            crate::params::BackwardParams
        }
    };
}

/// One tile of `backward_sm80`'s kernel for dQ, in each storage type that tensor cores take.
macro_rules! backward_queries_sm80 {
    ($owned:literal, $step:literal, $d:literal, $warps:literal, $blocks:literal) => {
        group! {
            backward_queries_sm80 { "f16", F16, $owned, $step, $d, $warps, $blocks }
            backward_queries_sm80 { "bf16", Bf16, $owned, $step, $d, $warps, $blocks }
        }
    };
    ($dtype:literal, $element:ty, $m:literal, $n:literal, $d:literal, $warps:literal, $blocks:literal) => {
        entry! {
            concat!("backward_queries_sm80_", $dtype, "_m", $m, "_n", $n, "_d", $d, "_w", $warps),
            BackwardQueriesSm80,
            $dtype,
            {
                tile: Tile { block_m: $m, block_n: $n, head_dim: $d },
                threads: backward_mma($m, $n, $d, $warps).threads(),
                min_blocks: $blocks,
                shared_bytes: backward_mma($m, $n, $d, $warps).shared_bytes(),
                barriers: backward_sm80::BARRIERS,
            },
            backward_sm80::backward_queries::<
                backward_sm80::BackwardSm80Tile<$element, $warps, { $m / $warps / 8 }, $n, $d>
            >,
            Backward,
            crate::params::BackwardParams
        }
    };
}
