//! One run of the program: its backend, and what every experiment does with it.

use std::time::Duration;

use anyhow::Context as _;
use flash_attention::cuda::Cuda;
use flash_attention::gemm::GemmProblem;
use flash_attention::{Backend, BackendKind, Device, Plan, Problem, shipped};

use crate::args::{BackendArgs, MeasureArgs};
use crate::failure::usage;
use crate::memory;
use crate::output::Screen;
use crate::timer::{Effort, Pacing};

/// FLOP/s of the simulator on one core, measured on 64-row tiles of forward_simt; small problems, which
/// fill no tile, are slower.
const SIM_FLOPS_PER_CORE: f64 = 1.5e8;

/// Seconds that a run on the simulator may be expected to take without `--force`.
const SIM_PATIENCE: f64 = 120.0;

/// An opened backend.
pub(crate) struct Session {
    pub(crate) backend: Backend,
    /// The CPU, for the size of its memory.
    host: Device,
}

impl Session {
    /// Opens the backend asked for, or the best that there is.
    pub(crate) fn open(args: &BackendArgs) -> anyhow::Result<Self> {
        let backend = match (args.backend, args.device) {
            (None | Some(BackendKind::Cuda), Some(ordinal)) => Backend::cuda(Cuda::new(ordinal)?),
            (Some(kind), Some(ordinal)) => {
                return Err(usage(format!("--device {ordinal} chooses a GPU, but the backend is {kind}")));
            }
            (kind, None) => Backend::open(kind)?,
        };
        let host = Backend::open(Some(BackendKind::Cpu)).context("the host's memory")?.device().clone();
        Ok(Self { backend, host })
    }

    pub(crate) const fn device(&self) -> &Device {
        self.backend.device()
    }

    pub(crate) const fn kind(&self) -> BackendKind {
        self.backend.device().backend
    }

    /// What runs where, why, and from which sources.
    pub(crate) fn header(&self, screen: &Screen) -> std::io::Result<()> {
        let device = self.device();
        screen.line(format!(
            "backend {} ({}): {}",
            device.backend,
            self.backend.reason(),
            device.describe()
        ))?;
        let compiler = ptx_compiler().unwrap_or_else(|reason| reason);
        screen.line(format!("fa-bench {VERSION} (revision {REVISION}), kernels' PTX by {compiler}"))?;
        if device.backend == BackendKind::Sim {
            screen.line("the simulator checks kernels; its times say nothing about a GPU")?;
        }
        Ok(())
    }

    /// Refuses a problem whose tensors do not fit, before anything is allocated.
    pub(crate) fn check_tensors(&self, problem: &Problem) -> flash_attention::Result<()> {
        memory::check_tensors(problem, self.device(), &self.host)
    }

    /// Refuses a plan whose workspace does not fit beside the tensors.
    pub(crate) fn check_workspace(&self, problem: &Problem, plan: &Plan) -> flash_attention::Result<()> {
        memory::check_workspace(problem, plan, self.device(), &self.host)
    }

    /// Refuses matrices that do not fit, before anything is allocated.
    pub(crate) fn check_matrices(&self, problem: &GemmProblem) -> flash_attention::Result<()> {
        memory::check_matrices(problem, self.device(), &self.host)
    }

    /// Refuses so many bytes where they do not fit, before they are allocated.
    pub(crate) fn check_bytes(&self, what: &'static str, bytes: u128) -> flash_attention::Result<()> {
        memory::check_bytes(what, bytes, self.device(), &self.host)
    }

    /// How much measuring this backend is worth by default: `iterations` is the experiment's.
    pub(crate) fn effort(&self, args: &MeasureArgs, iterations: usize) -> Effort {
        let (warmup, iterations, least, pacing) = match self.kind() {
            BackendKind::Cuda => (10, iterations, 20, Pacing::Device { warm: Duration::ZERO }),
            BackendKind::Cpu => (10, iterations, 3, Pacing::Caches),
            BackendKind::Sim => (0, 1, 1, Pacing::Simulated),
        };
        Effort {
            warmup: args.warmup.unwrap_or(warmup),
            iterations: args.iterations.unwrap_or(iterations),
            least,
            budget: Duration::from_secs_f64(args.budget),
            pacing,
        }
    }

    /// Refuses what the simulator would take very long for, unless `--force` is given.
    ///
    /// `plans` are the kernels that will run on `problem`.
    pub(crate) fn check_patience(
        &self,
        problem: &Problem,
        plans: usize,
        effort: &Effort,
        args: &MeasureArgs,
    ) -> anyhow::Result<()> {
        self.check_flops(problem.flops(), plans, effort, args)
    }

    /// [`Self::check_patience`] by the operations of one run.
    pub(crate) fn check_flops(
        &self,
        flops: f64,
        plans: usize,
        effort: &Effort,
        args: &MeasureArgs,
    ) -> anyhow::Result<()> {
        if self.kind() != BackendKind::Sim || args.force {
            return Ok(());
        }
        // One checked run, and at least one timed one: what the budget does not cut.
        let runs = plans * (1 + effort.least);
        let seconds = runs as f64 * flops / (SIM_FLOPS_PER_CORE * f64::from(self.host.multiprocessors));
        if seconds <= SIM_PATIENCE {
            return Ok(());
        }
        Err(usage(format!(
            "the simulator would need about {} for {flops:.1e} FLOP in {runs} runs, and the limit is {}; choose a \
             smaller problem, another --backend, or --force",
            patience(seconds),
            patience(SIM_PATIENCE),
        )))
    }
}

/// This program's version.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The sources that it was built from.
pub(crate) const REVISION: &str = env!("FA_BENCH_REVISION");

/// The compiler of the shipped kernels, or why there is none.
pub(crate) fn ptx_compiler() -> Result<&'static str, &'static str> {
    shipped::manifest().map(|manifest| manifest.compiler.as_str()).map_err(|_| "an unknown compiler")
}

/// A duration in the largest unit that it fills.
fn patience(seconds: f64) -> String {
    for (unit, name) in
        [(86_400.0 * 365.0, "years"), (86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")]
    {
        if seconds >= 2.0 * unit {
            return format!("{:.0} {name}", seconds / unit);
        }
    }
    format!("{seconds:.0} seconds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_in_the_largest_unit_that_they_fill() {
        assert_eq!(
            [60.0, 120.0, 7300.0, 1e6, 1e12].map(patience),
            ["60 seconds", "2 minutes", "2 hours", "12 days", "31710 years"]
        );
    }
}
