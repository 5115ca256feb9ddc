//! The simulator backend: the GPU kernels' own source, run natively under detectors.

use fa_kernels::entries::{Entry, HAS_NATIVE, Params};
use fa_kernels::ptx::tma;
use fa_sim::{Buffer, Launch, Schedule};

use crate::operation::{Data, Tensor};
use crate::tensor_map::TensorMap;
use crate::{BackendKind, Device, Element, Error, Operation, Plan, Result};

/// Shared memory of a block on Hopper (CUDA C++ Programming Guide, technical specifications).
const SHARED_PER_BLOCK: usize = 227 * 1024;

/// Bytes that an H200's memory moves in a second (its datasheet).
const BANDWIDTH: u64 = 4_800_000_000_000;

/// Runs GPU kernels on the CPU, one coroutine per GPU thread, in an order that a seed decides.
#[derive(Clone, Debug)]
pub struct Sim {
    device: Device,
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
    /// access out of bounds or of uninitialised shared memory in a kernel.
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
    pub(crate) fn run_checked<O: Operation, T: Element>(
        &self,
        plan: &Plan<O>,
        inputs: O::Inputs<'_, T>,
        outputs: &mut O::Outputs<'_, T>,
    ) -> Result<Traffic> {
        let words = plan.workspace_bytes().div_ceil(16) as usize;
        let mut workspace: Vec<u128> = self.device.allocate("the workspace", words)?;
        // NaN in every type, so that what is read before it is written shows.
        workspace.fill(u128::MAX);
        let mut buffers = Vec::new();
        let addresses = O::tensors(plan, inputs, outputs, &mut |tensor| {
            let Tensor { name, layout, element_bytes, data } = tensor;
            let buffer = match data {
                Data::Input(data) => Buffer::read(name, data),
                Data::Output(data) => {
                    Buffer::read_write(name, data).reaching(layout.byte_rows(element_bytes))
                }
                Data::Workspace => Buffer::read_write("workspace", &mut workspace),
            };
            let address = buffer.address;
            buffers.push(buffer);
            Ok(address)
        })?;
        let mut traffic = Traffic::default();
        for launch in plan.launches_at(&addresses) {
            let encode = |map: &TensorMap| {
                let unfit = |reason| Error::UnfitEntry { entry: launch.entry.name, reason };
                map.encode().map(tma::TensorMap).map_err(unfit)
            };
            let params = O::params(plan, launch, &addresses, encode)?;
            self.launch((launch.entry, launch.grid), &params, &buffers, &mut traffic)?;
        }
        Ok(traffic)
    }

    /// Runs one launch, whose parameters describe `buffers`, and adds to `traffic`.
    fn launch<A: Sync, T: Sync>(
        &self,
        (entry, grid): (&Entry<A, T>, u32),
        params: &Params,
        buffers: &[Buffer],
        traffic: &mut Traffic,
    ) -> Result<()> {
        let run = entry.run.ok_or_else(|| match HAS_NATIVE {
            true => Error::UnfitEntry {
                entry: entry.name,
                reason: "it exists as PTX alone, and the simulator runs native code".to_owned(),
            },
            false => Error::NoSimulator,
        })?;
        let launch = Launch {
            name: entry.name,
            grid,
            block: entry.threads,
            shared_bytes: entry.shared_bytes,
            schedule: Schedule::from_seed(self.seed),
            buffers,
        };
        // SAFETY: the launch has the entry's threads and shared memory, the parameters describe live buffers
        // whose sizes were checked, and the simulator refuses any access outside of them.
        let report = fa_sim::launch(&launch, &|| unsafe { run.call(params) })?;
        traffic.bytes_read += report.global_bytes_read;
        traffic.bytes_written += report.global_bytes_written;
        traffic.barrier_sites.push(report.barrier_sites);
        Ok(())
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
