//! The backward pass: dQ, dK, dV and the gradient of sinks from dO and dlse by recomputation
//! (FlashAttention-2, arXiv:2307.08691, Algorithm 2).

#[cfg(feature = "testing")]
mod judge;
mod launch;
mod operation;
mod packed;
mod pairs;
mod plan;
mod problem;
#[cfg(feature = "testing")]
mod reference;
mod request;
mod stored;
mod summed;
mod way;

#[cfg(feature = "testing")]
pub use judge::{ExpectedGradients, GradientReport};
pub use launch::BackwardAddresses;
pub(crate) use launch::params;
pub use plan::BackwardPlan;
pub use problem::{
    BackwardInputs, BackwardOutputs, BackwardPart, BackwardProblem, BackwardResults, GradientLayouts,
};
#[cfg(feature = "testing")]
pub use reference::{GradientInputs, Gradients, KvHead};
pub use request::{BackwardKernel, BackwardRequest};
pub use stored::DEFAULT_WORKSPACE_LIMIT;
