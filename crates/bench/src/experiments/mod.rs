//! One file per experiment; `single` is what runs without a name.

pub(crate) mod alignment;
pub(crate) mod all;
pub(crate) mod backward;
pub(crate) mod causal;
pub(crate) mod decode;
pub(crate) mod doctor;
pub(crate) mod dtypes;
pub(crate) mod flash;
pub(crate) mod fuzz;
pub(crate) mod generations;
pub(crate) mod layout;
pub(crate) mod matmul;
pub(crate) mod memory;
pub(crate) mod pitfalls;
pub(crate) mod profile;
pub(crate) mod roofline;
pub(crate) mod scaling;
pub(crate) mod single;
pub(crate) mod sums;
pub(crate) mod tiles;
pub(crate) mod traffic;
pub(crate) mod verify;
