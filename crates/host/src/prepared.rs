//! A plan readied to be run as often as one likes.

use crate::backend::Host;
#[cfg(feature = "cuda")]
use crate::cuda::Resident;
use crate::{Element, Operation, Plan, Problem, Result};

/// A plan readied by [`Backend::prepare`](crate::Backend::prepare): its inputs, and buffers for its outputs.
pub struct Prepared<'a, T: Element, O: Operation = Problem> {
    pub(crate) inputs: O::Inputs<'a, T>,
    pub(crate) results: O::Results<T>,
    pub(crate) state: State<'a, O>,
}

/// Where the runs are.
pub(crate) enum State<'a, O: Operation> {
    /// On a GPU; the results are copied when they are asked for.
    #[cfg(feature = "cuda")]
    Device(Box<Resident<O>>),
    /// In host memory, the results in place.
    Host { host: &'a Host, plan: Box<Plan<O>>, extra_bytes: u64 },
}

impl<'a, T: Element, O: Operation> Prepared<'a, T, O> {
    pub(crate) fn on_host(
        host: &'a Host,
        plan: Plan<O>,
        inputs: O::Inputs<'a, T>,
        results: O::Results<T>,
    ) -> Self {
        Self { inputs, results, state: State::Host { host, plan: Box::new(plan), extra_bytes: 0 } }
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn on_device(resident: Resident<O>, inputs: O::Inputs<'a, T>, results: O::Results<T>) -> Self {
        Self { inputs, results, state: State::Device(Box::new(resident)) }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan<O> {
        match &self.state {
            #[cfg(feature = "cuda")]
            State::Device(resident) => resident.plan(),
            State::Host { plan, .. } => plan,
        }
    }

    /// Runs once; on a GPU it is enqueued, and this does not wait for it.
    ///
    /// # Errors
    /// When the device fails, or the simulator finds a fault in a kernel.
    pub fn run(&mut self) -> Result<()> {
        match &mut self.state {
            #[cfg(feature = "cuda")]
            State::Device(resident) => resident.run(),
            State::Host { host, plan, extra_bytes } => {
                *extra_bytes = host.run(plan, self.inputs, &mut O::outputs(&mut self.results))?;
                Ok(())
            }
        }
    }

    /// The outputs of the last run, in their whole spans; what their views do not reach is unspecified.
    ///
    /// # Errors
    /// When a kernel faulted.
    pub fn outputs(&mut self) -> Result<&O::Results<T>> {
        #[cfg(feature = "cuda")]
        if let State::Device(resident) = &self.state {
            resident.read(self.inputs, &mut O::outputs(&mut self.results))?;
        }
        Ok(&self.results)
    }

    /// Bytes of memory that the last run took beside the tensors.
    pub fn extra_bytes(&self) -> u64 {
        match &self.state {
            #[cfg(feature = "cuda")]
            State::Device(resident) => resident.plan().workspace_bytes(),
            State::Host { extra_bytes, .. } => *extra_bytes,
        }
    }

    /// GPU kernels that one run launches; on the CPU, 0.
    pub fn launches(&self) -> usize {
        self.plan().launches().len()
    }
}
