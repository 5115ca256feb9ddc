//! Merging results of attention over disjoint parts of the keys: a cascade, in which sequences that share a
//! prefix attend to it in one call and to their own keys in another.

#[cfg(feature = "cpu")]
mod cpu;
mod launch;
mod operation;
mod plan;
mod problem;

pub use fa_kernels::params::MAX_PARTS;
pub use launch::{MergeAddresses, PartAddresses};
pub use plan::{MergeKernel, MergePlan};
pub use problem::{MergePart, MergeProblem, PartLayout};
