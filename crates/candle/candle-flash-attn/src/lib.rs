//! [`candle_flash_attention`] under the name and version of candle-flash-attn.
//!
//! ```toml
//! [patch.crates-io]
//! candle-flash-attn = { path = "crates/candle/candle-flash-attn" }
//! ```

pub use candle_flash_attention::*;
