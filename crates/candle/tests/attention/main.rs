//! Each function on the CPU against plain attention of candle's own operations.
#![allow(clippy::unwrap_used)]

#[cfg(feature = "cuda")]
mod cuda;
mod dense;
mod errors;
mod gradients;
mod paged;
mod plain;
mod varlen;
