// Written by `cargo xtask kernels`.
&[
    ("forward_simt", include_bytes!("forward_simt.ptx.zst")),
    ("forward_sm80", include_bytes!("forward_sm80.ptx.zst")),
    ("standard", include_bytes!("standard.ptx.zst")),
]
