// Written by `cargo xtask kernels`.
&[
    ("backward_simt", include_bytes!("backward_simt.ptx.zst")),
    ("backward_sm80", include_bytes!("backward_sm80.ptx.zst")),
    ("backward_sm90", include_bytes!("backward_sm90.ptx.zst")),
    ("decode", include_bytes!("decode.ptx.zst")),
    ("forward_simt", include_bytes!("forward_simt.ptx.zst")),
    ("forward_sm80", include_bytes!("forward_sm80.ptx.zst")),
    ("forward_sm90", include_bytes!("forward_sm90.ptx.zst")),
    ("gemm_simt", include_bytes!("gemm_simt.ptx.zst")),
    ("gemm_sm80", include_bytes!("gemm_sm80.ptx.zst")),
    ("gemm_sm90", include_bytes!("gemm_sm90.ptx.zst")),
    ("mma_peak", include_bytes!("mma_peak.ptx.zst")),
    ("pack", include_bytes!("pack.ptx.zst")),
    ("standard", include_bytes!("standard.ptx.zst")),
]
