//! The CUDA backend: the driver API through `cudarc`, loaded at run time, and the shipped PTX.
//!
//! Everything that an embedding runtime (candle, burn, cust) needs is [`Cuda::forward`]: raw device
//! pointers and a stream in, launches enqueued, nothing allocated on the device and nothing synchronised.

mod backward;
mod buffer;
mod clock;
mod copy;
mod driver;
mod gemm;
mod graph;
mod memory;
mod modules;
mod resident;
mod tensor_map;

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};
use fa_kernels::entries::{Entry, Params};
use fa_kernels::ptx::tma;

pub use backward::ResidentBackward;
pub use copy::DeviceCopy;
pub use cudarc::driver::sys::CUstream;
pub use gemm::{MmaPeak, ResidentGemm};
pub use graph::Graph;
pub use memory::DeviceMemory;
pub use resident::{LaunchSpan, Resident};

use crate::launch::{Addresses, params};
use crate::tensor_map::TensorMap;
use crate::{
    BackendKind, DecodeAddresses, DecodeInputs, DecodePlan, DecodeProblem, Device, Element, Error, Plan,
    Problem, Result, Step, decode,
};
use buffer::Buffer;
use driver::{attribute, check};
use modules::Modules;
use tensor_map::TensorMaps;

/// One GPU: its primary context, a stream of its own, the kernels loaded so far, and tensor maps of the last
/// calls.
#[derive(Clone)]
pub struct Cuda {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    modules: Arc<Modules>,
    tensor_maps: Arc<TensorMaps>,
    device: Device,
    /// CUDA version of the driver, as 1000·major + 10·minor.
    cuda_version: i32,
    l2_bytes: usize,
}

impl Cuda {
    /// Opens GPU `ordinal` in its primary context, which is the one that the CUDA runtime,
    /// PyTorch, candle and burn use too.
    ///
    /// # Errors
    /// When there is no driver or no such device, or either is too old for the shipped kernels.
    pub fn new(ordinal: usize) -> Result<Self> {
        let cuda_version = driver::init()?;
        let devices = check("cuDeviceGetCount", result::device::get_count())? as usize;
        if ordinal >= devices {
            return Err(Error::NoCudaDevice {
                reason: format!("device {ordinal} was asked for, and the driver sees {devices}"),
            });
        }
        let context = check("cuDevicePrimaryCtxRetain", CudaContext::new(ordinal))?;
        // Streams are the caller's to order; cudarc's own bookkeeping would add events to each launch.
        // SAFETY: every buffer of this backend is used on one stream, or synchronised between streams.
        unsafe { context.disable_event_tracking() };
        let stream = check("cuStreamCreate", context.new_stream())?;
        let device = describe(&context, cuda_version)?;
        let l2_bytes =
            attribute(&context, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize;
        let (modules, tensor_maps) = (Arc::new(Modules::default()), Arc::new(TensorMaps::new()));
        Ok(Self { context, stream, modules, tensor_maps, device, cuda_version, l2_bytes })
    }

    /// The GPU.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// This backend's own stream.
    pub fn stream(&self) -> CUstream {
        self.stream.cu_stream()
    }

    /// Bytes of the device's memory that are free, as its allocator counts them over all processes.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn free_bytes(&self) -> Result<u64> {
        check("cuCtxSetCurrent", self.context.bind_to_thread())?;
        let (free, _) = check("cuMemGetInfo", self.context.mem_get_info())?;
        Ok(free as u64)
    }

    /// Device memory for `what`.
    fn buffer(&self, what: &'static str, bytes: usize) -> Result<Buffer> {
        Buffer::new(&self.context, &self.device.name, what, bytes)
    }

    /// Device memory with a copy of `values`.
    fn buffer_of<T: Copy>(&self, what: &'static str, values: &[T]) -> Result<Buffer> {
        let buffer = self.buffer(what, size_of_val(values))?;
        buffer.write(values, self.stream())?;
        Ok(buffer)
    }

    /// Loads a plan's kernels, so that the first [`Self::forward`] does not pay for the driver's compiler.
    ///
    /// # Errors
    /// When the driver refuses a kernel; the error carries its compiler's log.
    pub fn load(&self, plan: &Plan) -> Result<()> {
        self.load_steps(&plan.steps)?;
        self.load_steps(plan.unaligned.as_slice())
    }

    /// As [`Self::load`], for [`Self::decode`].
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_decode(&self, plan: &DecodePlan) -> Result<()> {
        self.load_steps(&plan.steps)
    }

    fn load_steps(&self, steps: &[Step]) -> Result<()> {
        check("cuCtxSetCurrent", self.context.bind_to_thread())?;
        steps.iter().try_for_each(|step| self.modules.function(step.entry).map(drop))
    }

    /// Loads PTX of the caller's for `entry`, in place of what ships or was loaded under its name.
    ///
    /// # Errors
    /// When the driver refuses it; the error carries its compiler's log.
    ///
    /// # Safety
    /// The PTX is a module whose entry is `entry` in name, parameters, and what it computes.
    pub unsafe fn load_ptx(&self, entry: &'static Entry, ptx: &str) -> Result<()> {
        check("cuCtxSetCurrent", self.context.bind_to_thread())?;
        self.modules.load(entry, ptx)
    }

    /// Enqueues a plan's launches on `stream` and returns; O and lse are there once the stream gets so far.
    ///
    /// Allocates nothing on the device and synchronises nothing; after [`Self::load`] it can be recorded in a
    /// CUDA graph ([`Self::capture`]).
    ///
    /// # Errors
    /// When an address that the problem needs was left out, and when the driver refuses a kernel or a launch.
    ///
    /// # Safety
    /// `plan` was made for `problem` and this device. The addresses are device memory of this
    /// context that the problem's views stay inside of, aligned to their element type; they and
    /// `stream` stay alive until the launches are over, nothing else writes the tensors meanwhile,
    /// and O, lse and workspace do not overlap the inputs.
    pub unsafe fn forward(
        &self,
        problem: &Problem,
        plan: &Plan,
        addresses: &Addresses,
        stream: CUstream,
    ) -> Result<()> {
        // SAFETY: the caller's contract.
        plan.steps_at(addresses)
            .iter()
            .try_for_each(|step| unsafe { self.forward_step(problem, step, addresses, stream) })
    }

    /// Enqueues one of a plan's launches.
    ///
    /// # Safety
    /// As [`Self::forward`].
    unsafe fn forward_step(
        &self,
        problem: &Problem,
        step: &Step,
        addresses: &Addresses,
        stream: CUstream,
    ) -> Result<()> {
        check("cuCtxSetCurrent", self.context.bind_to_thread())?;
        let params = params(problem, step, addresses, |map| self.tensor_map(map))?;
        // SAFETY: the caller's contract; the entry takes these parameters.
        unsafe { self.enqueue(step.entry, step.grid, &params, stream) }
    }

    /// A tensor map in the form that goes by value with a launch.
    fn tensor_map(&self, map: &TensorMap) -> Result<tma::TensorMap> {
        self.tensor_maps.encoded(self.cuda_version, map)
    }

    /// As [`Self::forward`], of a decode problem. Nothing is checked on the way: lengths beyond the cache's
    /// count as all of it.
    ///
    /// # Errors
    /// When the driver refuses a kernel or a launch.
    ///
    /// # Safety
    /// As [`Self::forward`]; and the page table's entries that hold a sequence's keys name pages of K and V.
    pub unsafe fn decode(
        &self,
        problem: &DecodeProblem,
        plan: &DecodePlan,
        addresses: &DecodeAddresses,
        stream: CUstream,
    ) -> Result<()> {
        let params = Params::Decode(decode::params(problem, plan, addresses));
        // SAFETY: the caller's contract.
        unsafe { self.launch(&plan.steps, &params, stream) }
    }

    /// Enqueues launches that share their parameters.
    ///
    /// # Safety
    /// The parameters are those that the steps' entries take, and describe memory as [`Self::forward`] says.
    unsafe fn launch(&self, steps: &[Step], params: &Params, stream: CUstream) -> Result<()> {
        check("cuCtxSetCurrent", self.context.bind_to_thread())?;
        // SAFETY: the caller's contract.
        steps.iter().try_for_each(|step| unsafe { self.enqueue(step.entry, step.grid, params, stream) })
    }

    /// Enqueues one launch of an entry in the current context.
    ///
    /// # Safety
    /// `params` are what the entry takes, and describe device memory that it may use until the launch is
    /// over.
    unsafe fn enqueue<A, T>(
        &self,
        entry: &'static Entry<A, T>,
        grid: u32,
        params: &Params,
        stream: CUstream,
    ) -> Result<()> {
        let function = self.modules.function(entry)?;
        let params: *const c_void = match params {
            Params::Attention(params) => (&raw const *params).cast(),
            Params::Persistent(params) => (&raw const *params).cast(),
            Params::Backward(params) => (&raw const *params).cast(),
            Params::Decode(params) => (&raw const *params).cast(),
            Params::Pack(params) => (&raw const *params).cast(),
            Params::Gemm(params) => (&raw const *params).cast(),
            Params::MappedGemm(params) => (&raw const *params).cast(),
        };
        let mut arguments = [params.cast_mut()];
        // SAFETY: the function is the entry's, whose one parameter is `params`, copied by the call; its
        // memory is the caller's promise.
        let launched = unsafe {
            result::launch_kernel(
                function,
                (grid, 1, 1),
                (entry.threads, 1, 1),
                entry.shared_bytes,
                stream,
                &mut arguments,
            )
        };
        check(format_args!("cuLaunchKernel({})", entry.name), launched)
    }

    /// Copies host tensors to the device, where the problem can be run as often as one likes.
    ///
    /// # Errors
    /// When a buffer is too small for its view, or the device's memory for the problem.
    pub fn upload<T: Element>(
        &self,
        problem: &Problem,
        plan: &Plan,
        (q, k, v): (&[T], &[T], &[T]),
    ) -> Result<Resident<T>> {
        Resident::forward(self, problem, plan, (q, k, v))
    }

    /// As [`Self::upload`], of a decode problem.
    ///
    /// # Errors
    /// When a buffer is too small, an input out of range, or the device's memory too small.
    pub fn upload_decode<T: Element>(
        &self,
        problem: &DecodeProblem,
        plan: &DecodePlan,
        inputs: &DecodeInputs<'_, T>,
    ) -> Result<Resident<T>> {
        Resident::decode(self, problem, plan, inputs)
    }
}

/// Reads the device's limits and refuses one that the shipped kernels do not run on.
fn describe(context: &CudaContext, cuda_version: i32) -> Result<Device> {
    use sys::CUdevice_attribute as Attribute;
    let get = |which| attribute(context, which);
    let capability = 10 * get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
        + get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let name = check("cuDeviceGetName", context.name())?;
    let least =
        fa_kernels::entries::entries().map(|entry| entry.target.compute_capability()).min().unwrap_or(0);
    if (capability as u32) < least {
        return Err(Error::DeviceTooOld {
            device: name,
            found: dotted(capability as u32),
            needed: dotted(least),
        });
    }
    Ok(Device {
        backend: BackendKind::Cuda,
        driver: format!("CUDA {} driver", driver::version_name(cuda_version)),
        compute_capability: capability as u32,
        multiprocessors: get(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        shared_per_block: get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
        shared_per_multiprocessor: get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?
            as usize,
        memory: check("cuDeviceTotalMem", context.total_mem())? as u64,
        name,
    })
}

/// 75 as 7.5.
fn dotted(capability: u32) -> String {
    format!("{}.{}", capability / 10, capability % 10)
}
