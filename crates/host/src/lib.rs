//! FlashAttention for Rust.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod element;
mod error;
mod layout;
mod problem;

pub use element::{DType, Element};
pub use error::{Error, Result};
pub use layout::TensorLayout;
pub use problem::{MAX_HEAD_DIM, MAX_SEQLEN, Options, Problem, Tensors};
