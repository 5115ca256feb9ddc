//! Where problems are run, and what all of them are judged by.

use flash_attention::accuracy::Accuracy;
use flash_attention::{BackendKind, Error};

use super::case::Operation;
use super::machine::{Machine, Memory};
use super::outcome::{Failure, Kind, Stop};

/// A machine and the memory that its problems lie in, one after another.
pub(super) struct Bench<M> {
    pub(super) machine: M,
    pub(super) memory: Memory,
}

/// What a problem may take to be run; others are planned alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Of all tensors.
    bytes: u128,
    /// Multiplications and additions.
    flops: f64,
}

impl Limits {
    pub(super) const fn of(backend: BackendKind) -> Self {
        match backend {
            BackendKind::Cuda => Self { bytes: 256 << 20, flops: 1e12 },
            BackendKind::Cpu => Self { bytes: 256 << 20, flops: 1e10 },
            BackendKind::Sim => Self { bytes: 32 << 20, flops: 1e9 },
        }
    }

    /// Whether tensors of so many elements, of at most 4 bytes each, beside a workspace of so many bytes, are
    /// few enough.
    ///
    /// # Errors
    /// [`Stop::Large`].
    pub(super) fn check_memory(&self, spans: &[usize], workspace: u64) -> Result<(), Stop> {
        let bytes = 4 * spans.iter().map(|&span| span as u128).sum::<u128>() + u128::from(workspace);
        if bytes > self.bytes { Err(Stop::Large) } else { Ok(()) }
    }

    /// The same of operations.
    ///
    /// # Errors
    /// [`Stop::Large`].
    pub(super) fn check_flops(&self, flops: f64) -> Result<(), Stop> {
        if flops > self.flops { Err(Stop::Large) } else { Ok(()) }
    }
}

impl<M: Machine> Bench<M> {
    pub(super) fn new(machine: M) -> Self {
        Self { machine, memory: Memory::new() }
    }

    pub(super) fn limits(&self) -> Limits {
        Limits::of(self.machine.device().backend)
    }
}

/// What each storage type of an operation without e4m3 is refused with.
pub(super) fn unsupported(operation: Operation, dtype: flash_attention::DType) -> Stop {
    let available = flash_attention::DType::RESULTS.map(flash_attention::DType::name).join(", ");
    Error::UnsupportedDType { kernel: operation.name(), dtype, available }.into()
}

/// A failure where a result is not within its bound.
pub(super) fn judged(name: &str, accuracy: &Accuracy, of: impl FnOnce() -> String) -> Result<(), Failure> {
    if accuracy.passed() {
        return Ok(());
    }
    Err(Failure::new(Kind::Inexact, format!("{name} {accuracy}{}", of())))
}

/// Rows of the reference, each of which takes so many operations: enough to see most tiles, few enough to be
/// quick.
pub(super) fn rows_to_check(operations: usize) -> usize {
    const OPERATIONS: usize = 4 << 20;
    (OPERATIONS / operations.max(1)).clamp(4, 48)
}
