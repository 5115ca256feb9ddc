//! What a thread runs problems on.

use std::time::Duration;

use anyhow::Result;
use flash_attention::cuda::Cuda;
use flash_attention::sim::Sim;
use flash_attention::{Backend, BackendKind};

use super::bench::Bench;
use super::case::Case;
use super::crew::Crew;
use super::machine::{OnGpu, OnHost};
use super::outcome::Stop;
use crate::failure::usage;
use crate::session::Session;

/// What no problem takes; kernels take milliseconds.
pub(super) const ENDLESS: Duration = Duration::from_secs(60);

/// A machine of a backend, on which a thread runs problems.
pub(super) enum Worker {
    Host(OnHost),
    Gpu(Box<OnGpu>),
}

impl Worker {
    /// One for the backend of a session.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn of(session: &Session) -> Result<Self> {
        Ok(match session.kind() {
            BackendKind::Cpu => Self::Host(OnHost::Cpu(Backend::open(Some(BackendKind::Cpu))?)),
            BackendKind::Sim => Self::Host(OnHost::Sim(Sim::new(0).device().clone())),
            BackendKind::Cuda => Self::Gpu(Box::new(OnGpu::new(gpu(session)?)?)),
        })
    }

    /// Runs problems until there are no more.
    pub(super) fn work(self, crew: &Crew, index: usize) {
        match self {
            Self::Host(machine) => crew.work(index, &mut Bench::new(machine)),
            Self::Gpu(machine) => crew.work(index, &mut Bench::new(*machine)),
        }
    }

    /// Runs one problem.
    ///
    /// # Errors
    /// Why it did not come to a right end.
    pub(super) fn run(self, case: &Case) -> std::result::Result<(), Stop> {
        match self {
            Self::Host(machine) => Bench::new(machine).run(case),
            Self::Gpu(machine) => Bench::new(*machine).run(case),
        }
    }
}

fn gpu(session: &Session) -> Result<&Cuda> {
    session.backend.as_cuda().ok_or_else(|| usage("the backend is no GPU"))
}
