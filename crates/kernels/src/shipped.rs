//! The built kernels that this crate ships: compressed PTX and its manifest.
