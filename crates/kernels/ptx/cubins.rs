// Written by `cargo xtask kernels`.
&[
    ("backward_sm90", include_bytes!("backward_sm90.cubin.zst")),
    ("forward_sm90", include_bytes!("forward_sm90.cubin.zst")),
    ("gemm_sm90", include_bytes!("gemm_sm90.cubin.zst")),
    ("pack", include_bytes!("pack.cubin.zst")),
]
