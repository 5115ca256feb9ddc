//! The arithmetic of tensor cores, and which lane or address holds what.

pub(crate) mod descriptor;
mod e4m3;
pub(crate) mod mma;
pub(crate) mod wgmma;
