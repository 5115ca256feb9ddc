//! The simulator backend: the GPU kernels' own source, run natively under detectors.

use fa_kernels::entries::{Entry, HAS_NATIVE, Params};
use fa_kernels::ptx::tma;
use fa_sim::{Buffer, Launch, Schedule};

use crate::gemm::{GemmAddresses, GemmPlan, GemmProblem};
use crate::launch::{Addresses, params};
use crate::tensor_map::TensorMap;
use crate::{BackendKind, Device, Element, Error, Plan, Problem, Result, Step, TensorLayout};

/// Shared memory of a block on Hopper (CUDA C++ Programming Guide, technical specifications).
const SHARED_PER_BLOCK: usize = 227 * 1024;

/// Runs GPU kernels on the CPU, one coroutine per GPU thread, in an order that a seed decides.
#[derive(Clone, Debug)]
pub struct Sim {
    device: Device,
    seed: u64,
}

impl Sim {
    /// A simulated GPU whose threads advance in the order that `seed` gives.
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
        };
        Self { device, seed }
    }

    /// The simulated device.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// Runs a plan over host tensors and returns the bytes of global memory that it read and wrote.
    ///
    /// # Errors
    /// When a buffer is too small, and when the simulator finds a race, a deadlock, or an access out
    /// of bounds or of uninitialised shared memory in a kernel.
    pub fn forward<T: Element>(
        &self,
        problem: &Problem,
        plan: &Plan,
        (q, k, v): (&[T], &[T], &[T]),
        o: &mut [T::Output],
        mut lse: Option<&mut [f32]>,
    ) -> Result<Traffic> {
        problem.check_buffers::<T>(q.len(), k.len(), v.len(), o.len(), lse.as_ref().map(|lse| lse.len()))?;
        let words = plan.workspace_bytes.div_ceil(16) as usize;
        let mut workspace: Vec<u128> = self.device.allocate(plan.workspace(), words)?;
        // NaN in every type, so that what is read before it is written shows.
        workspace.fill(u128::MAX);
        let (cu_seqlens_q, cu_seqlens_k) = problem.cu_seqlens().unwrap_or_default();
        let buffers = [
            Buffer::read("q", q),
            Buffer::read("k", k),
            Buffer::read("v", v),
            output("o", o, &problem.tensors().o),
            Buffer::read_write("workspace", &mut workspace),
            Buffer::read_write("lse", lse.as_deref_mut().unwrap_or_default()),
            Buffer::read("alibi_slopes", problem.alibi_slopes().unwrap_or_default()),
            Buffer::read("cu_seqlens_q", cu_seqlens_q),
            Buffer::read("cu_seqlens_k", cu_seqlens_k),
        ];
        let address = |tensor: usize| buffers[tensor].address;
        let addresses = Addresses {
            q: address(0),
            k: address(1),
            v: address(2),
            o: address(3),
            workspace: address(4),
            lse: lse.is_some().then(|| address(5)),
            alibi_slopes: Some(address(6)),
            cu_seqlens: Some((address(7), address(8))),
        };
        let mut traffic = Traffic::default();
        for step in plan.steps_at(&addresses) {
            let params = params(problem, step, &addresses, |map| encode(step.entry.name, map))?;
            self.run(step.entry, step.grid, &params, &buffers, &mut traffic)?;
        }
        Ok(traffic)
    }

    /// Runs launches one after another over `buffers`, whose addresses `params` hold.
    pub(crate) fn launch(&self, steps: &[Step], params: &Params, buffers: &[Buffer]) -> Result<Traffic> {
        let mut traffic = Traffic::default();
        for step in steps {
            self.run(step.entry, step.grid, params, buffers, &mut traffic)?;
        }
        Ok(traffic)
    }

    /// Multiplies host matrices and returns the bytes of global memory that were read and written.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn gemm<T: Element>(
        &self,
        problem: &GemmProblem,
        plan: &GemmPlan,
        (a, b): (&[T], &[T]),
        c: &mut [T],
    ) -> Result<Traffic> {
        problem.check_buffers::<T>(a.len(), b.len(), c.len())?;
        let c = Buffer::read_write("c", c).reaching(problem.matrices().c.byte_lines(size_of::<T>()));
        let buffers = [Buffer::read("a", a), Buffer::read("b", b), c];
        let [a, b, c] = buffers.each_ref().map(|buffer| buffer.address);
        let addresses = GemmAddresses { a, b, c };
        let mut traffic = Traffic::default();
        if let Some(step) = plan.step_at(&addresses) {
            let encode = |map: &TensorMap| encode(step.entry.name, map);
            let params = crate::gemm::params(problem, step.entry, &addresses, encode)?;
            self.run(step.entry, step.grid, &params, &buffers, &mut traffic)?;
        }
        Ok(traffic)
    }

    /// Runs one launch, whose parameters describe `buffers`, and adds to `traffic`.
    fn run<A: Sync, T: Sync>(
        &self,
        entry: &Entry<A, T>,
        grid: u32,
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
        // SAFETY: the launch is the entry's own, the parameters describe live buffers whose
        // sizes were checked, and the simulator refuses any access outside of them.
        let report = fa_sim::launch(&launch, &|| unsafe { run.call(params) })?;
        traffic.bytes_read += report.global_bytes_read;
        traffic.bytes_written += report.global_bytes_written;
        traffic.barrier_sites.push(report.barrier_sites);
        Ok(())
    }
}

/// The buffer of an output, of which nothing outside its view may be written.
pub(crate) fn output<T>(name: &str, values: &mut [T], layout: &TensorLayout) -> Buffer {
    Buffer::read_write(name, values).reaching(layout.byte_rows(size_of::<T>()))
}

/// A tensor map in the simulator's form.
fn encode(entry: &'static str, map: &TensorMap) -> Result<tma::TensorMap> {
    map.encode().map(tma::TensorMap).map_err(|reason| Error::UnfitEntry { entry, reason })
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
