//! One way in for all operations and all backends.

use fa_kernels::entries::HAS_NATIVE;

use crate::cuda::{Cuda, Resident};
use crate::sim::Sim;
use crate::{BackendKind, Device, Element, Error, Operation, Plan, Prepared, Result, cpu};

/// Where operations run, opened and ready.
pub struct Backend {
    driver: Driver,
    reason: String,
}

enum Driver {
    Cuda(Cuda),
    Host(Host),
}

/// A backend that reads and writes host memory.
pub(crate) enum Host {
    Cpu(Device),
    Sim(Sim),
}

impl Backend {
    /// Opens the backend asked for, or without one a CUDA device if there is a usable one, else the CPU.
    ///
    /// # Errors
    /// When the backend asked for cannot be used.
    pub fn open(kind: Option<BackendKind>) -> Result<Self> {
        match kind {
            Some(BackendKind::Cuda) => Ok(Self::cuda(Cuda::new(0)?)),
            Some(BackendKind::Cpu) => Ok(Self::cpu("asked for".to_owned())),
            Some(BackendKind::Sim) if !HAS_NATIVE => Err(Error::NoSimulator),
            Some(BackendKind::Sim) => Ok(Self::simulator(0)),
            None => Ok(match Cuda::new(0) {
                Ok(cuda) => {
                    Self { driver: Driver::Cuda(cuda), reason: "a usable CUDA device is there".to_owned() }
                }
                Err(error) => Self::cpu(error.to_string()),
            }),
        }
    }

    /// The simulator with the thread order that `seed` gives. It plans always; without the feature
    /// `simulator` its runs are [`Error::NoSimulator`].
    pub fn simulator(seed: u64) -> Self {
        Sim::new(seed).into()
    }

    /// A CUDA device opened by the caller.
    pub fn cuda(cuda: Cuda) -> Self {
        Self { driver: Driver::Cuda(cuda), reason: "asked for".to_owned() }
    }

    fn cpu(reason: String) -> Self {
        Self { driver: Driver::Host(Host::Cpu(cpu::backend::device())), reason }
    }

    /// The GPU, where this backend drives one.
    pub const fn as_cuda(&self) -> Option<&Cuda> {
        match &self.driver {
            Driver::Cuda(cuda) => Some(cuda),
            Driver::Host(_) => None,
        }
    }

    /// The device.
    pub const fn device(&self) -> &Device {
        match &self.driver {
            Driver::Cuda(cuda) => cuda.device(),
            Driver::Host(host) => host.device(),
        }
    }

    /// Why this backend: it was asked for, or what decided.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// [`Plan::new`] for this backend's device.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn plan<O: Operation>(&self, problem: &O, request: &O::Request) -> Result<Plan<O>> {
        Plan::new(problem, self.device(), request)
    }

    /// Runs a plan over host tensors: once, with copies where the device has a memory of its own.
    ///
    /// # Errors
    /// When the plan is for another device, a buffer is of another type than the problem or too small for its
    /// view, an index is out of range, the device's memory is too small, or the device fails.
    pub fn run<O: Operation, T: Element>(
        &self,
        plan: &Plan<O>,
        inputs: O::Inputs<'_, T>,
        mut outputs: O::Outputs<'_, T>,
    ) -> Result<()> {
        plan.check(self.device(), inputs, &mut outputs)?;
        match &self.driver {
            Driver::Host(host) => host.run(plan, inputs, &mut outputs).map(drop),
            Driver::Cuda(cuda) => {
                let resident = Resident::new(cuda, plan, inputs, &mut outputs)?;
                resident.run()?;
                resident.read(inputs, &mut outputs)
            }
        }
    }

    /// Readies a plan to be run as often as one likes: on a GPU, its tensors go to the device.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn prepare<'a, O: Operation, T: Element>(
        &'a self,
        plan: &Plan<O>,
        inputs: O::Inputs<'a, T>,
    ) -> Result<Prepared<'a, T, O>> {
        let mut results = plan.problem().results(self.device())?;
        let mut outputs = O::outputs(&mut results);
        plan.check(self.device(), inputs, &mut outputs)?;
        Ok(match &self.driver {
            Driver::Host(host) => {
                drop(outputs);
                Prepared::on_host(host, plan.clone(), inputs, results)
            }
            Driver::Cuda(cuda) => {
                let resident = Resident::new(cuda, plan, inputs, &mut outputs)?;
                drop(outputs);
                Prepared::on_device(resident, inputs, results)
            }
        })
    }
}

impl From<Sim> for Backend {
    fn from(sim: Sim) -> Self {
        Self { driver: Driver::Host(Host::Sim(sim)), reason: "asked for".to_owned() }
    }
}

impl Host {
    const fn device(&self) -> &Device {
        match self {
            Self::Cpu(device) => device,
            Self::Sim(sim) => sim.device(),
        }
    }

    /// Runs a plan whose call was checked, and returns the bytes of memory taken beside the tensors.
    pub(crate) fn run<O: Operation, T: Element>(
        &self,
        plan: &Plan<O>,
        inputs: O::Inputs<'_, T>,
        outputs: &mut O::Outputs<'_, T>,
    ) -> Result<u64> {
        match self {
            Self::Cpu(_) => O::run_on_cpu(plan, inputs, outputs),
            Self::Sim(sim) => sim.run_checked(plan, inputs, outputs).map(|_| plan.workspace_bytes()),
        }
    }
}
