// Written by `cargo xtask kernels`.
&[
    #[cfg(feature = "decode")]
    ("append", include_bytes!("append.ptx.zst")),
    #[cfg(feature = "backward")]
    ("backward_simt", include_bytes!("backward_simt.ptx.zst")),
    #[cfg(feature = "backward")]
    ("backward_sm80", include_bytes!("backward_sm80.ptx.zst")),
    #[cfg(feature = "backward")]
    ("backward_sm90", include_bytes!("backward_sm90.ptx.zst")),
    #[cfg(feature = "decode")]
    ("decode", include_bytes!("decode.ptx.zst")),
    #[cfg(feature = "decode")]
    ("decode_sm90", include_bytes!("decode_sm90.ptx.zst")),
    #[cfg(feature = "forward")]
    ("forward_simt", include_bytes!("forward_simt.ptx.zst")),
    #[cfg(feature = "forward")]
    ("forward_sm80", include_bytes!("forward_sm80.ptx.zst")),
    #[cfg(feature = "forward")]
    ("forward_sm90", include_bytes!("forward_sm90.ptx.zst")),
    #[cfg(feature = "decode")]
    ("forward_sm90_cached", include_bytes!("forward_sm90_cached.ptx.zst")),
    #[cfg(feature = "gemm")]
    ("gemm_simt", include_bytes!("gemm_simt.ptx.zst")),
    #[cfg(feature = "gemm")]
    ("gemm_sm80", include_bytes!("gemm_sm80.ptx.zst")),
    #[cfg(feature = "gemm")]
    ("gemm_sm90", include_bytes!("gemm_sm90.ptx.zst")),
    #[cfg(feature = "decode")]
    ("mla_sm90", include_bytes!("mla_sm90.ptx.zst")),
    #[cfg(feature = "gemm")]
    ("mma_peak", include_bytes!("mma_peak.ptx.zst")),
    #[cfg(any(feature = "forward", feature = "backward"))]
    ("pack", include_bytes!("pack.ptx.zst")),
    #[cfg(feature = "gemm")]
    ("read_peak", include_bytes!("read_peak.ptx.zst")),
    #[cfg(feature = "forward")]
    ("standard", include_bytes!("standard.ptx.zst")),
]
