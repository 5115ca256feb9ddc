// Written by `cargo xtask kernels`.
&[
    #[cfg(feature = "backward")]
    ("backward_sm90", include_bytes!("backward_sm90.cubin.zst")),
    #[cfg(feature = "decode")]
    ("decode_sm90", include_bytes!("decode_sm90.cubin.zst")),
    #[cfg(feature = "forward")]
    ("forward_sm90", include_bytes!("forward_sm90.cubin.zst")),
    #[cfg(feature = "decode")]
    ("forward_sm90_cached", include_bytes!("forward_sm90_cached.cubin.zst")),
    #[cfg(feature = "gemm")]
    ("gemm_sm90", include_bytes!("gemm_sm90.cubin.zst")),
    #[cfg(feature = "decode")]
    ("mla_sm90", include_bytes!("mla_sm90.cubin.zst")),
    #[cfg(any(feature = "forward", feature = "backward"))]
    ("pack", include_bytes!("pack.cubin.zst")),
]
