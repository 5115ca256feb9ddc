//! A merge's one launch: a warp for each row.

use fa_kernels::entries::{Algorithm, Entry};
use fa_kernels::params::MAX_PARTS;

use super::MergeProblem;
use crate::operation::{Choice, Launch};
use crate::plan::{built_for, check_target, checked_grid, unsupported_dtype};
use crate::{BackendKind, Device, Error, Plan, Result};

/// The kernel; on the CPU, which has none of a GPU's, a plan names it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MergeKernel {
    /// Since sm_80.
    Merge,
}

impl MergeKernel {
    /// The name that messages and documents use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Merge => "merge",
        }
    }
}

/// How a merge will be computed.
pub type MergePlan = Plan<MergeProblem>;

/// Chooses the entry of the storage type.
///
/// # Errors
/// When there is none, the device is too old, or the grid would be too large.
pub(super) fn plan(problem: &MergeProblem, device: &Device) -> Result<Choice<MergeProblem>> {
    if device.backend == BackendKind::Cpu {
        let reason = "a loop over rows: it is bound by memory".to_owned();
        return Ok(Choice::on_cpu(MergeKernel::Merge, vec![reason]));
    }
    let (kernel, dtype) = (MergeKernel::Merge.name(), problem.storage());
    let entry = built_for(Algorithm::Merge, dtype)
        .next()
        .ok_or_else(|| unsupported_dtype(kernel, Algorithm::Merge, dtype))?;
    plan_entry(problem, device, entry)
}

/// Plans one given entry.
///
/// # Errors
/// When it merges nothing or another storage type, or as [`plan`].
pub(super) fn plan_entry(
    problem: &MergeProblem,
    device: &Device,
    entry: &'static Entry,
) -> Result<Choice<MergeProblem>> {
    let unfit = |reason: String| Error::UnfitEntry { entry: entry.name, reason };
    if entry.algorithm != Algorithm::Merge {
        return Err(unfit("it is no kernel for merging".to_owned()));
    }
    if entry.dtype != problem.storage().name() {
        return Err(unfit(format!("it is for {}, and the problem is {}", entry.dtype, problem.storage())));
    }
    check_target(entry, device, MergeKernel::Merge.name())?;
    let rows = problem.lse_len() as u128;
    // Rows are counted in 32 bits.
    checked_grid(rows)?;
    let grid = checked_grid(rows.div_ceil(entry.tile.block_m.into()))?;
    let reason =
        format!("merge: a warp for each row reads {} of at most {MAX_PARTS} parts", problem.parts().len());
    Ok(Choice {
        kernel: MergeKernel::Merge,
        tile: None,
        launches: vec![Launch::new(entry, grid)],
        unaligned: Vec::new(),
        workspace_bytes: 0,
        reasons: vec![reason],
    })
}
