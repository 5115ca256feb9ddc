// Written by `cargo xtask kernels`.
&[
]
