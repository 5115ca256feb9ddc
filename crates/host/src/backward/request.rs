//! What a backward plan is asked for.

use std::fmt;

use super::stored::{DEFAULT_WORKSPACE_LIMIT, Storage};
use crate::{BackendKind, Device};

/// A kernel that computes gradients; what a person can ask for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackwardKernel {
    /// FlashAttention v2's backward pass on Hopper's tensor cores (`wgmma`), fed by tensor maps: 16-bit
    /// types, and the simulator. What no tensor map describes is copied first.
    BackwardSm90,
    /// FlashAttention v2's backward pass on tensor cores (`mma.sync`): NVIDIA GPUs since sm_80 in 16-bit
    /// types, and the simulator.
    BackwardSm80,
    /// FlashAttention v2's backward pass on fp32 FMA: any NVIDIA GPU, and the simulator.
    BackwardSimt,
    /// The same on all cores with SIMD.
    BackwardCpu,
}

impl BackwardKernel {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::BackwardSm90, Self::BackwardSm80, Self::BackwardSimt, Self::BackwardCpu];

    /// The name that the command line uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BackwardSm90 => "backward_sm90",
            Self::BackwardSm80 => "backward_sm80",
            Self::BackwardSimt => "backward_simt",
            Self::BackwardCpu => "backward_cpu",
        }
    }

    /// What it multiplies with.
    pub(super) const fn units(self) -> &'static str {
        match self {
            Self::BackwardSm90 => "on Hopper's tensor cores, fed by tensor maps",
            Self::BackwardSm80 => "on tensor cores",
            Self::BackwardSimt => "on fp32 FMA",
            Self::BackwardCpu => "on all cores",
        }
    }

    /// The kernels of a backend, the fastest first.
    pub const fn of_backend(backend: BackendKind) -> &'static [Self] {
        match backend {
            BackendKind::Cuda | BackendKind::Sim => {
                &[Self::BackwardSm90, Self::BackwardSm80, Self::BackwardSimt]
            }
            BackendKind::Cpu => &[Self::BackwardCpu],
        }
    }
}

impl fmt::Display for BackwardKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What the caller leaves open, the planner chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackwardRequest {
    /// The kernel.
    pub kernel: Option<BackwardKernel>,
    /// The entry of the launch that it is for, by its name; without `kernel` also the kernel that it is of.
    pub entry: Option<String>,
    /// Bytes of dS that may be stored, with dK and dV in fp32 where a head's dS is not stored at a time, or
    /// of dQ in fp32; beside delta, which is 4 bytes a row, and beside copies of what tensor maps do not
    /// describe. `None` for [`DEFAULT_WORKSPACE_LIMIT`]. Scores are computed twice where not even some
    /// queries' dS fits.
    pub workspace_limit: Option<u64>,
    /// Queries of a head of which dS is stored at a time at most, rounded up to whole tiles, and fewer where
    /// they do not fit; more, where a whole head fits and parts of it, with the sums between them, do not.
    /// `None` for what is estimated to be the fastest. Bits do not depend on it.
    pub unit_rows: Option<usize>,
    /// Multiprocessors that are left to other kernels by launches whose blocks stay until all is done, as
    /// those that store dS do; at least two are used. (FlashAttention-3 has an argument of this name.)
    pub sm_margin: u32,
}

impl BackwardRequest {
    /// The device, with the multiprocessors that launches may stay on.
    pub(super) fn without_margin(&self, device: &Device) -> Device {
        let multiprocessors = device.multiprocessors.saturating_sub(self.sm_margin);
        let least = device.multiprocessors.min(2);
        Device { multiprocessors: multiprocessors.max(least), ..device.clone() }
    }

    pub(super) fn workspace_limit(&self) -> u64 {
        self.workspace_limit.unwrap_or(DEFAULT_WORKSPACE_LIMIT)
    }

    pub(super) fn storage(&self) -> Storage {
        Storage { limit: self.workspace_limit(), unit_rows: self.unit_rows }
    }
}
