//! Attention of few queries against a long K/V cache: contiguous or paged, each sequence of its own length.

mod cache;
#[cfg(feature = "cpu")]
mod cpu;
mod launch;
mod operation;
mod plan;
mod problem;
#[cfg(feature = "testing")]
mod reference;
mod widened;

pub use cache::{CacheData, E4m3Cache};
pub use launch::DecodeAddresses;
pub(crate) use launch::{dense_launch_params, params, partial_bytes};
pub(crate) use operation::without_merging;
pub(crate) use plan::{Cache, DecodeLaunchDetails, FewQueries, SharedSplits, splits_forward};
pub use plan::{DecodeKernel, DecodePlan, DecodeRequest};
pub use problem::{DecodeInputs, DecodeOptions, DecodeProblem, MAX_DECODE_SEQLEN_Q, MAX_TREE_SEQLEN_Q};
