//! The backward pass: dQ, dK and dV from dO by recomputation (FlashAttention-2, arXiv:2307.08691, Algorithm
//! 2).

mod backend;
mod judge;
mod launch;
mod plan;
mod problem;
mod reference;
mod sim;

pub use backend::PreparedBackward;
pub use judge::{ExpectedGradients, GradientReport};
pub use launch::BackwardAddresses;
pub(crate) use launch::params;
pub use plan::{BackwardKernel, BackwardPlan, BackwardRequest, plan_backward};
pub use problem::{BackwardInputs, BackwardOutputs, BackwardProblem, GradientLayouts};
pub use reference::{GradientInputs, Gradients, KvHead};
