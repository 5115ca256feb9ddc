//! One way in for all operations and all backends.

#[cfg(feature = "cuda")]
use crate::cuda::{Cuda, Resident};
use crate::sim::Sim;
use crate::{BackendKind, Device, Element, Error, Operation, Plan, Prepared, Result};

/// Where operations run, opened and ready.
pub struct Backend {
    driver: Driver,
    reason: String,
}

enum Driver {
    #[cfg(feature = "cuda")]
    Cuda(Cuda),
    Host(Host),
}

/// A backend that reads and writes host memory.
pub(crate) enum Host {
    #[cfg(feature = "cpu")]
    Cpu(Device),
    Sim(Sim),
}

impl Backend {
    /// Opens the backend asked for, or without one a CUDA device if there is a usable one, else the CPU.
    ///
    /// # Errors
    /// When the backend asked for cannot be used, or was left out of the build.
    pub fn open(kind: Option<BackendKind>) -> Result<Self> {
        let asked = || "asked for".to_owned();
        match kind {
            None => Self::open_best(),
            Some(BackendKind::Cuda) => Self::open_cuda(asked()),
            Some(BackendKind::Cpu) => Self::open_cpu(asked()),
            Some(BackendKind::Sim) => BackendKind::Sim.check_built().map(|()| Self::simulator(0)),
        }
    }

    /// A GPU if there is a usable one, else the CPU.
    fn open_best() -> Result<Self> {
        let no_gpu = match Self::open_cuda("a usable CUDA device is there".to_owned()) {
            Ok(cuda) => return Ok(cuda),
            Err(error) => error,
        };
        match (BackendKind::Cpu.is_built(), BackendKind::Cuda.is_built()) {
            (true, _) => Self::open_cpu(no_gpu.to_string()),
            (false, true) => Err(no_gpu),
            (false, false) => Err(Error::NoBackend),
        }
    }

    #[cfg(feature = "cuda")]
    fn open_cuda(reason: String) -> Result<Self> {
        Ok(Self { driver: Driver::Cuda(Cuda::new(0)?), reason })
    }

    #[cfg(not(feature = "cuda"))]
    fn open_cuda(_: String) -> Result<Self> {
        Err(Error::NotBuilt { backend: BackendKind::Cuda })
    }

    #[cfg(feature = "cpu")]
    fn open_cpu(reason: String) -> Result<Self> {
        Ok(Self { driver: Driver::Host(Host::Cpu(crate::cpu::backend::device())), reason })
    }

    #[cfg(not(feature = "cpu"))]
    fn open_cpu(_: String) -> Result<Self> {
        Err(Error::NotBuilt { backend: BackendKind::Cpu })
    }

    /// The simulator with the thread order that `seed` gives. It plans always; without the feature
    /// `sim` its runs are [`Error::NotBuilt`].
    pub fn simulator(seed: u64) -> Self {
        Sim::new(seed).into()
    }

    /// A CUDA device opened by the caller.
    #[cfg(feature = "cuda")]
    pub fn cuda(cuda: Cuda) -> Self {
        Self { driver: Driver::Cuda(cuda), reason: "asked for".to_owned() }
    }

    /// The GPU, where this backend drives one.
    #[cfg(feature = "cuda")]
    pub const fn as_cuda(&self) -> Option<&Cuda> {
        match &self.driver {
            Driver::Cuda(cuda) => Some(cuda),
            Driver::Host(_) => None,
        }
    }

    /// The device.
    pub const fn device(&self) -> &Device {
        match &self.driver {
            #[cfg(feature = "cuda")]
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
            #[cfg(feature = "cuda")]
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
            #[cfg(feature = "cuda")]
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
            #[cfg(feature = "cpu")]
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
            #[cfg(feature = "cpu")]
            Self::Cpu(_) => O::run_on_cpu(plan, inputs, outputs),
            Self::Sim(sim) => sim.run_checked(plan, inputs, outputs).map(|_| plan.workspace_bytes()),
        }
    }
}
