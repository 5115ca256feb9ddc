// Written by `cargo xtask kernels`.
&[
    ("forward_simt", include_bytes!("forward_simt.ptx.zst")),
    ("standard", include_bytes!("standard.ptx.zst")),
]
