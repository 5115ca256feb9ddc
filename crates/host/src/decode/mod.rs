//! Attention of few queries against a long K/V cache: contiguous or paged, each sequence of its own length.

mod cpu;
mod launch;
mod plan;
mod problem;
mod reference;
mod sim;

pub use launch::DecodeAddresses;
pub(crate) use launch::params;
pub use plan::{DecodePlan, DecodeRequest, plan_decode};
pub use problem::{DecodeInputs, DecodeOptions, DecodeProblem, MAX_DECODE_SEQLEN_Q};

pub(crate) use cpu::run as run_on_cpu;
