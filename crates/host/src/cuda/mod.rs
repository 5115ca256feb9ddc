//! The CUDA backend: the driver API through `cudarc`, loaded at run time, and the shipped PTX.
//!
//! Everything that an embedding runtime (candle, burn, cust) needs is [`Cuda::forward`]: raw device
//! pointers and a stream in, launches enqueued, nothing allocated and nothing synchronised.

mod buffer;
mod driver;
mod modules;
mod resident;

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result, sys};

pub use cudarc::driver::sys::CUstream;
pub use resident::Resident;

use crate::launch::{Addresses, params};
use crate::{BackendKind, Device, Element, Error, Plan, Problem, Result};
use driver::{attribute, check};
use modules::Modules;

/// One GPU: its primary context, a stream of its own, and the kernels loaded so far.
#[derive(Clone)]
pub struct Cuda {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    modules: Arc<Modules>,
    device: Device,
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
        Ok(Self { context, stream, modules: Arc::new(Modules::default()), device, l2_bytes })
    }

    /// The GPU.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// This backend's own stream.
    pub fn stream(&self) -> CUstream {
        self.stream.cu_stream()
    }

    /// Loads a plan's kernels, so that the first [`Self::forward`] does not pay for the driver's compiler.
    ///
    /// # Errors
    /// When the driver refuses a kernel; the error carries its compiler's log.
    pub fn load(&self, plan: &Plan) -> Result<()> {
        check("cuCtxSetCurrent", self.context.bind_to_thread())?;
        plan.steps.iter().try_for_each(|step| self.modules.function(step.entry).map(drop))
    }

    /// Enqueues a plan's launches on `stream` and returns; O and lse are there once the stream gets so far.
    ///
    /// Allocates nothing and synchronises nothing; after [`Self::load`] it can be captured in a CUDA graph.
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
        check("cuCtxSetCurrent", self.context.bind_to_thread())?;
        let mut params = params(problem, addresses)?;
        for step in &plan.steps {
            let function = self.modules.function(step.entry)?;
            let mut arguments = [(&raw mut params).cast()];
            // SAFETY: the function is the entry's, whose one parameter is `params`, copied by the
            // call; its memory is the caller's promise.
            let launched = unsafe {
                result::launch_kernel(
                    function,
                    (step.grid, 1, 1),
                    (step.entry.threads, 1, 1),
                    step.entry.shared_bytes,
                    stream,
                    &mut arguments,
                )
            };
            check(&format!("cuLaunchKernel({})", step.entry.name), launched)?;
        }
        Ok(())
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
        Resident::new(self, problem, plan, (q, k, v))
    }
}

/// Reads the device's limits and refuses one that the shipped kernels do not run on.
fn describe(context: &CudaContext, cuda_version: i32) -> Result<Device> {
    use sys::CUdevice_attribute as Attribute;
    let get = |which| attribute(context, which);
    let capability = 10 * get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
        + get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let name = check("cuDeviceGetName", context.name())?;
    let least = fa_kernels::entries::entries().map(|entry| entry.target).min().unwrap_or(0);
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
