//! The simulator backend: the GPU kernels' own source, run natively under detectors.

#[cfg(feature = "sim")]
mod run;

#[cfg(all(feature = "sim", feature = "testing"))]
use crate::operation::Launch;
use crate::{BackendKind, Device, Element, Operation, Plan, Result};

/// Shared memory of a block on Hopper (CUDA C++ Programming Guide, technical specifications).
const SHARED_PER_BLOCK: usize = 227 * 1024;

/// Bytes that an H200's memory moves in a second (its datasheet).
const BANDWIDTH: u64 = 4_800_000_000_000;

/// Runs GPU kernels on the CPU, one coroutine per GPU thread, in an order that a seed decides.
#[derive(Clone, Debug)]
pub struct Sim {
    device: Device,
    /// What only runs look at.
    #[cfg_attr(not(feature = "sim"), allow(dead_code))]
    seed: u64,
}

impl Sim {
    /// A simulated H200 whose threads advance in the order that `seed` gives.
    pub fn new(seed: u64) -> Self {
        let device = Device {
            backend: BackendKind::Sim,
            name: "simulated GPU".to_owned(),
            driver: "fa-sim".to_owned(),
            compute_capability: 90,
            multiprocessors: 132,
            shared_per_block: SHARED_PER_BLOCK,
            shared_per_multiprocessor: SHARED_PER_BLOCK + 1024,
            memory: u64::MAX,
            memory_bandwidth: BANDWIDTH,
        };
        Self::of_device(device, seed)
    }

    /// A simulated GPU with the limits of `device`, for plans that were made for it.
    pub const fn of_device(device: Device, seed: u64) -> Self {
        Self { device, seed }
    }

    /// The simulated device.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Runs a plan over host tensors and returns the bytes of global memory that it read and wrote.
    ///
    /// # Errors
    /// As [`Backend::run`](crate::Backend::run), and when the simulator finds a race, a deadlock, or an
    /// access out of bounds or of uninitialised shared memory in a kernel. Without the feature `sim`
    /// always: [`Error::NotBuilt`](crate::Error::NotBuilt).
    pub fn run<O: Operation, T: Element>(
        &self,
        plan: &Plan<O>,
        inputs: O::Inputs<'_, T>,
        mut outputs: O::Outputs<'_, T>,
    ) -> Result<Traffic> {
        plan.check(&self.device, inputs, &mut outputs)?;
        self.run_checked(plan, inputs, &mut outputs)
    }

    /// [`Self::run`] of a call that was checked.
    #[cfg(feature = "sim")]
    pub(crate) fn run_checked<O: Operation, T: Element>(
        &self,
        plan: &Plan<O>,
        inputs: O::Inputs<'_, T>,
        outputs: &mut O::Outputs<'_, T>,
    ) -> Result<Traffic> {
        run::run(self, plan, inputs, outputs)
    }

    /// As [`Self::run`], of the launches that `some` leaves of the plan's, in a workspace of the caller's.
    #[cfg(all(feature = "sim", feature = "testing"))]
    pub(crate) fn run_some<O: Operation, T: Element, W>(
        &self,
        plan: &Plan<O>,
        some: impl Fn(&[Launch<O>]) -> &[Launch<O>],
        (inputs, outputs): (O::Inputs<'_, T>, &mut O::Outputs<'_, T>),
        workspace: &mut [W],
    ) -> Result<Traffic> {
        plan.check(&self.device, inputs, outputs)?;
        run::run_some(self, plan, some, (inputs, outputs), workspace)
    }

    /// [`Self::run`] of a call that was checked, where no simulator was built.
    #[cfg(not(feature = "sim"))]
    pub(crate) fn run_checked<O: Operation, T: Element>(
        &self,
        _: &Plan<O>,
        _: O::Inputs<'_, T>,
        _: &mut O::Outputs<'_, T>,
    ) -> Result<Traffic> {
        Err(crate::Error::NotBuilt { backend: BackendKind::Sim })
    }
}

/// What a simulated run moved through device memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes loaded from global memory.
    pub bytes_read: u64,
    /// Bytes stored to global memory.
    pub bytes_written: u64,
    /// For each launch, how many barriers of its source were reached.
    pub barrier_sites: Vec<usize>,
}
