//! A problem with what was chosen for it: nothing runs one problem with another's plan.

use std::sync::Arc;

use fa_kernels::entries::Entry;

use super::Operation;
use crate::{BackendKind, Device, Element, Error, Problem, Result};

/// One launch of a GPU kernel: a one-dimensional grid of an entry's blocks.
#[derive(Debug)]
pub struct Launch<O: Operation = Problem> {
    /// The entry, with its threads.
    pub entry: &'static Entry<O::Algorithm, O::Tile>,
    /// Number of blocks.
    pub grid: u32,
    /// Blocks of each cluster, which divide these.
    pub cluster: u32,
    /// Bytes of shared memory of a block: the entry's, and what this launch needs behind them.
    pub shared_bytes: u32,
    /// Whether it may run beside the launch in front of it, and waits by itself for what that does.
    pub beside: bool,
    pub(crate) details: O::Details,
}

impl<O: Operation> Clone for Launch<O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O: Operation> Copy for Launch<O> {}

impl<O: Operation> Launch<O> {
    pub(crate) fn new(entry: &'static Entry<O::Algorithm, O::Tile>, grid: u32) -> Self {
        let shared_bytes = entry.shared_bytes;
        Self { entry, grid, cluster: 1, shared_bytes, beside: false, details: O::Details::default() }
    }
}

/// What a planner chose.
#[derive(Clone, Debug)]
pub struct Choice<O: Operation> {
    pub(crate) kernel: O::Kernel,
    pub(crate) tile: Option<(usize, usize)>,
    pub(crate) launches: Vec<Launch<O>>,
    pub(crate) unaligned: Vec<Launch<O>>,
    pub(crate) workspace_bytes: u64,
    pub(crate) reasons: Vec<String>,
}

impl<O: Operation> Choice<O> {
    /// A kernel that launches nothing: one of the CPU's.
    pub(crate) const fn on_cpu(kernel: O::Kernel, reasons: Vec<String>) -> Self {
        Self { kernel, tile: None, launches: Vec::new(), unaligned: Vec::new(), workspace_bytes: 0, reasons }
    }
}

/// How a problem will be computed on a device: a value that can be printed, kept, and run as often as one
/// likes on that device and on others like it.
#[derive(Clone, Debug)]
pub struct Plan<O: Operation = Problem> {
    problem: Arc<O>,
    device: Device,
    choice: Choice<O>,
}

impl<O: Operation> Plan<O> {
    /// Chooses kernel, tiles and launches for `problem` on `device`: a pure function.
    ///
    /// # Errors
    /// When the request names a kernel, storage type or tile that is not there or does not fit, a grid would
    /// be too large, or the device is a CPU and the feature `cpu` is not there.
    pub fn new(problem: &O, device: &Device, request: &O::Request) -> Result<Self> {
        if device.backend == BackendKind::Cpu {
            device.backend.check_built()?;
        }
        Ok(Self::of(problem, device, problem.choose(device, request)?))
    }

    /// A plan with one given entry, which need not be in the list: how a sweep runs the variants that it
    /// built. Where there are other launches, they are the planner's choice.
    ///
    /// # Errors
    /// When the entry is of no such kernel, is for another storage type, smaller head_dims or other operands,
    /// or does not run on the device.
    pub fn of_entry(
        problem: &O,
        device: &Device,
        entry: &'static Entry<O::Algorithm, O::Tile>,
    ) -> Result<Self> {
        Ok(Self::of(problem, device, problem.choose_entry(device, entry)?))
    }

    /// The same launches, for a problem that differs in nothing that they depend on.
    pub(crate) fn with_problem(&self, problem: O) -> Self {
        Self { problem: Arc::new(problem), ..self.clone() }
    }

    pub(crate) fn of(problem: &O, device: &Device, choice: Choice<O>) -> Self {
        Self { problem: Arc::new(problem.clone()), device: device.clone(), choice }
    }

    /// The same plan with launches that compute the same.
    pub(crate) fn with_launches(mut self, launches: Vec<Launch<O>>) -> Self {
        self.choice.launches = launches;
        self
    }

    /// The problem.
    pub fn problem(&self) -> &O {
        &self.problem
    }

    /// The device that it was made for.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// The kernel chosen.
    pub const fn kernel(&self) -> O::Kernel {
        self.choice.kernel
    }

    /// (BLOCK_M, BLOCK_N), where the kernel has tiles that can be chosen; on the CPU, what was asked for.
    pub const fn tile(&self) -> Option<(usize, usize)> {
        self.choice.tile
    }

    /// The launches in order; none on the CPU.
    pub fn launches(&self) -> &[Launch<O>] {
        &self.choice.launches
    }

    /// The launches in place of all others where a tensor turns out to start at no multiple of 16 bytes, and
    /// they need it to.
    pub fn unaligned(&self) -> &[Launch<O>] {
        &self.choice.unaligned
    }

    /// The launches for tensors at these addresses.
    pub fn launches_at(&self, addresses: &O::Addresses) -> &[Launch<O>] {
        let is_aligned = self.choice.unaligned.is_empty() || O::is_aligned(self, addresses);
        O::needed(if is_aligned { &self.choice.launches } else { &self.choice.unaligned }, addresses)
    }

    /// Bytes of device memory beside the tensors.
    pub const fn workspace_bytes(&self) -> u64 {
        self.choice.workspace_bytes
    }

    /// Why, one sentence per choice.
    pub fn reasons(&self) -> &[String] {
        &self.choice.reasons
    }

    /// Refuses a device that the plan was not made for.
    pub(crate) fn check_device(&self, device: &Device) -> Result<()> {
        if self.device.is_like(device) {
            return Ok(());
        }
        Err(Error::OtherDevice { planned: self.device.describe(), device: device.describe() })
    }

    /// Checks all that a call over host tensors can get wrong: the device, the type, lengths and indices.
    pub(crate) fn check<T: Element>(
        &self,
        device: &Device,
        inputs: O::Inputs<'_, T>,
        outputs: &mut O::Outputs<'_, T>,
    ) -> Result<()> {
        self.check_device(device)?;
        let expected = self.problem.dtype();
        if T::DTYPE != expected {
            return Err(Error::DTypeMismatch { given: T::DTYPE, expected });
        }
        O::tensors(self, inputs, outputs, &mut |tensor| tensor.check().map(|()| 0))?;
        self.problem.check_inputs(inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{DecodeInputs, DecodeOptions, DecodeProblem, DecodeRequest};
    use crate::forward::Outputs;
    use crate::sim::Sim;
    use crate::{Backend, BackendKind, DType, Options, Request, TensorLayout, Tensors};

    const LAYOUT: TensorLayout = TensorLayout::bshd(1, 4, 2, 8);
    const TENSORS: Tensors = Tensors { q: LAYOUT, k: LAYOUT, v: LAYOUT, o: LAYOUT };

    #[test]
    fn a_plan_runs_on_devices_like_its_own_alone() {
        let sim = Sim::new(0);
        let problem = Problem::new(TENSORS, DType::F32, Options::default()).unwrap();
        let plan = Plan::new(&problem, sim.device(), &Request::default()).unwrap();
        let values = [0.0_f32; 64];
        let run = |backend: &Backend| {
            let mut o = [0.0_f32; 64];
            backend.run(&plan, (&values[..], &values[..], &values[..]), Outputs { o: &mut o, lse: None })
        };
        let smaller = Device { multiprocessors: 2, ..sim.device().clone() };
        assert_eq!(
            run(&Sim::of_device(smaller, 0).into()).unwrap_err().to_string(),
            "the plan was made for simulated GPU (sm_90, 132 multiprocessors, 232448 bytes of shared memory per \
             block), and this is simulated GPU (sm_90, 2 multiprocessors, 232448 bytes of shared memory per block)"
        );
        let cpu = Backend::open(Some(BackendKind::Cpu)).unwrap();
        assert!(matches!(run(&cpu).unwrap_err(), Error::OtherDevice { .. }));
        assert!(cpu.prepare(&plan, (&values[..], &values[..], &values[..])).is_err());
        // Another handle on the same kind of device.
        run(&Sim::new(7).into()).unwrap();
    }

    #[test]
    fn each_refusal_names_argument_value_and_limit() {
        let cpu = Backend::open(Some(BackendKind::Cpu)).unwrap();
        let problem = Problem::new(TENSORS, DType::F32, Options::default()).unwrap();
        let plan = cpu.plan(&problem, &Request::default()).unwrap();
        let values = [0.0_f32; 64];
        let refused = |k: &[f32], o_len: usize, lse_len: usize| {
            let (mut o, mut lse) = (vec![0.0_f32; o_len], vec![0.0; lse_len]);
            let outputs = Outputs { o: &mut o, lse: Some(&mut lse) };
            cpu.run(&plan, (&values[..], k, &values[..]), outputs).unwrap_err().to_string()
        };
        let message = |tensor, len, needed| {
            format!("{tensor}: buffer has {len} elements; its shape and strides reach {needed}")
        };
        assert_eq!(refused(&values[1..], 64, 8), message("k", 63, 64));
        assert_eq!(refused(&values, 63, 8), message("o", 63, 64));
        assert_eq!(refused(&values, 64, 7), message("lse", 7, 8));
        let halves = [half::f16::ZERO; 64];
        let mut o = [half::f16::ZERO; 64];
        let outputs = Outputs { o: &mut o, lse: None };
        let error = cpu.run(&plan, (&halves[..], &halves[..], &halves[..]), outputs).unwrap_err().to_string();
        assert_eq!(error, "buffers hold f16, but the problem was made for f32");
        let decode = DecodeProblem::new(TENSORS, DType::F32, DecodeOptions::default());
        let plan = cpu.plan(&decode.unwrap(), &DecodeRequest::default()).unwrap();
        let inputs = DecodeInputs { seqused_k: Some(&[]), ..DecodeInputs::new(&values, &values, &values) };
        let mut o = [0.0_f32; 64];
        let error = cpu.run(&plan, inputs, Outputs { o: &mut o, lse: None }).unwrap_err().to_string();
        assert_eq!(error, message("seqused_k", 0, 1));
    }
}
