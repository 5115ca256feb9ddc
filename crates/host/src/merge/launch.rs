//! From a plan and addresses to the kernel's parameters.

use fa_kernels::params::{MAX_PARTS, MergeParams, MergePart};

use super::MergeProblem;
use crate::launch::strides;

/// Addresses of a part's results on the device that runs the merge (host addresses in the simulator).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartAddresses {
    /// O.
    pub o: u64,
    /// Log-sum-exp.
    pub lse: u64,
}

/// Addresses of a merge's tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeAddresses {
    /// Those of the parts, in the problem's order; others are not looked at.
    pub parts: [PartAddresses; MAX_PARTS],
    /// Output.
    pub o: u64,
    /// Log-sum-exp, fp32 [B, H, Sq] contiguous; `None` where it is not wanted.
    pub lse: Option<u64>,
}

/// The parameters of the launch.
pub(super) fn params(problem: &MergeProblem, addresses: &MergeAddresses) -> MergeParams {
    let mut parts = [MergePart::default(); MAX_PARTS];
    for ((part, layout), at) in parts.iter_mut().zip(problem.parts()).zip(&addresses.parts) {
        let (o_strides, lse_strides) = (strides(&layout.o), strides(&layout.lse));
        *part = MergePart { o: at.o, lse: at.lse, o_strides, lse_strides };
    }
    let o = problem.o();
    // The planner bounds rows, and memory the columns of a row, so these casts keep their values.
    MergeParams {
        parts,
        o: addresses.o,
        lse: addresses.lse.unwrap_or(0),
        o_strides: strides(o),
        rows: problem.lse_len() as u64,
        count: problem.parts().len() as u32,
        seqlen_q: o.seqlen as u32,
        heads: o.heads as u32,
        head_dim: o.head_dim as u32,
    }
}
