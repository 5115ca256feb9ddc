//! One file per experiment; `single` is what runs without a name.

pub(crate) mod alignment;
pub(crate) mod decode;
pub(crate) mod matmul;
pub(crate) mod single;
pub(crate) mod verify;
