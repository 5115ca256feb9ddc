//! Each function on the CPU against plain attention of candle's own operations.
#![allow(clippy::unwrap_used)]

mod context;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod cuda_context;
mod dense;
mod errors;
mod gradients;
mod paged;
mod plain;
mod varlen;
