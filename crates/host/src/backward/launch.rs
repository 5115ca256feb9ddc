//! From a problem and addresses to the backward kernels' parameters.

use fa_kernels::entries::Params;
use fa_kernels::params::{BackwardParams, Strides};

use super::{BackwardProblem, GradientLayouts};
use crate::forward::Addresses;
use crate::launch::{attention_params, strides};
use crate::{Error, Result, TensorLayout};

/// Addresses of a backward problem's tensors on the device that runs it (host addresses in the simulator).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackwardAddresses {
    /// Those of the forward pass, whose O and lse are read; the workspace is that of the backward plan,
    /// aligned to 4 bytes.
    pub forward: Addresses,
    /// Gradient of the output.
    pub dout: u64,
    /// Gradient of the queries.
    pub dq: u64,
    /// Gradient of the keys.
    pub dk: u64,
    /// Gradient of the values.
    pub dv: u64,
}

/// The parameters that every launch of a plan for `problem` takes.
///
/// # Errors
/// When lse, or another address that the problem needs, was left out.
pub(crate) fn params(problem: &BackwardProblem, addresses: &BackwardAddresses) -> Result<Params> {
    let forward = problem.forward();
    if addresses.forward.lse.is_none() {
        return Err(Error::MissingAddress { tensor: "lse" });
    }
    let GradientLayouts { dout, dq, dk, dv } = problem.layouts();
    // A packed batch has no steps from one sequence to the next.
    let is_packed = forward.cu_seqlens().is_some();
    let strides = |layout: &TensorLayout| {
        let strides = strides(layout);
        Strides { batch: if is_packed { 0 } else { strides.batch }, ..strides }
    };
    Ok(Params::Backward(BackwardParams {
        attention: attention_params(forward, &addresses.forward)?,
        dout: addresses.dout,
        dq: addresses.dq,
        dk: addresses.dk,
        dv: addresses.dv,
        delta: addresses.forward.workspace,
        dout_strides: strides(dout),
        dq_strides: strides(dq),
        dk_strides: strides(dk),
        dv_strides: strides(dv),
    }))
}
