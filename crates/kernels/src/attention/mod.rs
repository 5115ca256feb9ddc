//! Attention algorithms, one per file, each generic over storage type and tile.

pub mod forward_simt;
pub mod standard;
