//! The CUDA backend: the driver API, loaded at run time, and the shipped PTX.
//!
//! Everything that an embedding runtime (candle, burn, cust) needs is [`Cuda::enqueue`]: raw device
//! pointers and a [`Stream`] in, launches enqueued, nothing allocated on the device and nothing synchronised.

mod buffer;
mod driver;
mod graph;
mod library;
mod memory;
mod modules;
mod nccl;
pub(crate) mod ranks;
mod resident;
mod tensor_map;
#[cfg(feature = "testing")]
pub(crate) mod timing;

use std::ffi::c_void;
use std::sync::Arc;

use fa_kernels::entries::{Entry, Params};
use fa_kernels::ptx::tma;

pub use driver::Stream;
pub use graph::Graph;
pub use memory::DeviceMemory;
pub(crate) use resident::Resident;

use crate::operation::Launch;
use crate::tensor_map::TensorMap;
use crate::{BackendKind, Device, Error, Operation, Plan, Result};
use buffer::Buffer;
use driver::{
    Context, DeviceAttribute, Driver, LaunchAttribute, LaunchConfig, OwnedStream, PointerAttribute,
};
use modules::Modules;
use tensor_map::TensorMaps;

/// The first driver that records in a graph that a launch may begin before the one in front of it has ended
/// (CUDA 12.3); with older ones none does.
const RECORDS_EARLY_BEGINNINGS: i32 = 12_030;

/// One GPU: its primary context, a stream of its own, the kernels loaded so far, and tensor maps of the last
/// calls.
#[derive(Clone)]
pub struct Cuda {
    context: Arc<Context>,
    stream: Arc<OwnedStream>,
    modules: Arc<Modules>,
    tensor_maps: Arc<TensorMaps>,
    device: Device,
    /// CUDA version of the driver, as 1000·major + 10·minor.
    cuda_version: i32,
}

impl Cuda {
    /// Opens GPU `ordinal` in its primary context, which is the one that the CUDA runtime,
    /// PyTorch, candle and burn use too.
    ///
    /// # Errors
    /// When there is no driver or no such device, or either is too old for the shipped kernels.
    pub fn new(ordinal: usize) -> Result<Self> {
        let driver = Driver::get()?;
        let cuda_version = driver.init()?;
        let context = Arc::new(Context::retain(driver, ordinal)?);
        let stream = Arc::new(OwnedStream::new(&context)?);
        let device = describe(&context, cuda_version)?;
        let (modules, tensor_maps) = (Arc::new(Modules::default()), Arc::new(TensorMaps::new()));
        Ok(Self { context, stream, modules, tensor_maps, device, cuda_version })
    }

    /// The GPU.
    pub const fn device(&self) -> &Device {
        &self.device
    }

    /// This backend's own stream.
    pub fn stream(&self) -> Stream {
        self.stream.handle()
    }

    /// Bytes of the device's memory that are free, as its allocator counts them over all processes.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn free_bytes(&self) -> Result<u64> {
        self.context.free_bytes()
    }

    /// Device memory for `what`.
    fn buffer(&self, what: &'static str, bytes: usize) -> Result<Buffer> {
        Buffer::new(&self.context, &self.device.name, what, bytes)
    }

    /// Loads a plan's kernels, so that the first [`Self::enqueue`] does not pay for the driver's compiler.
    ///
    /// # Errors
    /// When the plan is for another device, and when the driver refuses a kernel; the error carries its
    /// compiler's log.
    pub fn load<O: Operation>(&self, plan: &Plan<O>) -> Result<()> {
        plan.check_device(&self.device)?;
        self.context.make_current()?;
        let mut launches = plan.launches().iter().chain(plan.unaligned());
        launches.try_for_each(|launch| self.modules.function(launch.entry, launch.shared_bytes).map(drop))
    }

    /// Loads PTX of the caller's for `entry`, in place of what ships or was loaded of it.
    ///
    /// # Errors
    /// When the driver refuses it; the error carries its compiler's log.
    ///
    /// # Safety
    /// The PTX is a module whose entry is `entry` in name, parameters, and what it computes.
    pub unsafe fn load_ptx<A, T>(&self, entry: &'static Entry<A, T>, ptx: &str) -> Result<()> {
        self.context.make_current()?;
        self.modules.load(entry, ptx)
    }

    /// Enqueues a plan's launches on `stream` and returns; the outputs are there once the stream gets so far.
    ///
    /// Allocates nothing on the device and synchronises nothing, and tensor maps go by value with a launch;
    /// after [`Self::load`] it can be recorded in a CUDA graph ([`Self::capture`]). Lengths and page tables
    /// of decode problems are not looked at: a length beyond the cache's counts as all of it.
    ///
    /// # Errors
    /// When the plan is for another device, when an address that the problem needs was left out, and when the
    /// driver refuses a kernel or a launch.
    ///
    /// # Safety
    /// The addresses are device memory of this context that the problem's views stay inside of, aligned to
    /// their element type, and a workspace of [`Plan::workspace_bytes`]. They and `stream` stay alive until
    /// the launches are over, and nothing else writes the tensors meanwhile. Outputs and workspace overlap
    /// neither the inputs nor one another, where an operation does not say otherwise. Entries of a page table
    /// that hold a sequence's keys name pages of K and V.
    pub unsafe fn enqueue<O: Operation>(
        &self,
        plan: &Plan<O>,
        addresses: &O::Addresses,
        stream: Stream,
    ) -> Result<()> {
        plan.check_device(&self.device)?;
        // SAFETY: the caller vouches for addresses and stream; the launches are the plan's for them.
        unsafe { self.enqueue_launches(plan, plan.launches_at(addresses), addresses, stream) }
    }

    /// Enqueues some of a plan's launches.
    ///
    /// # Safety
    /// As [`Self::enqueue`].
    unsafe fn enqueue_launches<O: Operation>(
        &self,
        plan: &Plan<O>,
        launches: &[Launch<O>],
        addresses: &O::Addresses,
        stream: Stream,
    ) -> Result<()> {
        self.context.make_current()?;
        launches.iter().try_for_each(|launch| {
            let params = O::params(plan, launch, addresses, |map| self.tensor_map(map))?;
            // SAFETY: the operation makes the parameters that its entries take, of the caller's addresses.
            unsafe { self.enqueue_launch(launch, &params, stream) }
        })
    }

    /// Refuses an address that is no memory of this GPU.
    pub(crate) fn check_address(&self, tensor: &'static str, address: u64) -> Result<()> {
        self.context.make_current()?;
        let (mut ordinal, this) = (-1, self.context.ordinal());
        let (value, driver) = ((&raw mut ordinal).cast::<c_void>(), self.context.driver());
        // SAFETY: the driver writes one integer, and only looks the address up.
        let found = unsafe { driver.cuPointerGetAttribute(value, PointerAttribute::DeviceOrdinal, address) };
        let reason = match (found, usize::try_from(ordinal)) {
            (Ok(()), Ok(ordinal)) if ordinal == this => return Ok(()),
            (Ok(()), Ok(ordinal)) => format!("is memory of GPU {ordinal}, and this is GPU {this}"),
            _ => format!("is no memory of a GPU, and GPU {this}'s was expected"),
        };
        Err(Error::Address { tensor, address, reason })
    }

    /// A tensor map in the form that goes by value with a launch.
    fn tensor_map(&self, map: &TensorMap) -> Result<tma::TensorMap> {
        self.tensor_maps.encoded(self.cuda_version, map)
    }

    /// Enqueues one launch in the current context.
    ///
    /// # Safety
    /// `params` are what the entry takes, and describe device memory that it may use until the launch is
    /// over.
    unsafe fn enqueue_launch<O: Operation>(
        &self,
        launch: &Launch<O>,
        params: &Params,
        stream: Stream,
    ) -> Result<()> {
        let &Launch { entry, grid, cluster, shared_bytes, .. } = launch;
        let function = self.modules.function(entry, shared_bytes)?;
        let params: *const c_void = match params {
            Params::Attention(params) => (&raw const *params).cast(),
            Params::Persistent(params) => (&raw const *params).cast(),
            Params::Backward(params) => (&raw const *params).cast(),
            Params::Decode(params) => (&raw const *params).cast(),
            Params::Append(params) => (&raw const *params).cast(),
            Params::Merge(params) => (&raw const *params).cast(),
            Params::Pack(params) => (&raw const *params).cast(),
            Params::Widen(params) => (&raw const *params).cast(),
            Params::Schedule(params) => (&raw const *params).cast(),
            Params::Gemm(params) => (&raw const *params).cast(),
            Params::MappedDecode(params) => (&raw const *params).cast(),
            Params::MappedGemm(params) => (&raw const *params).cast(),
            Params::MappedBackward(params) => (&raw const *params).cast(),
        };
        let (mut arguments, driver) = ([params.cast_mut()], self.context.driver());
        let begins_early = entry.begins_early && self.cuda_version >= RECORDS_EARLY_BEGINNINGS;
        // No entry has both.
        let attribute = match (begins_early, cluster) {
            (true, _) => Some(LaunchAttribute::BEGINS_EARLY),
            (false, 2..) => Some(LaunchAttribute::cluster(cluster)),
            (false, _) => None,
        };
        // SAFETY: the function is the entry's, whose one parameter is `params`, copied by the call; its
        // memory is the caller's promise. Entries that begin early wait before they use it.
        let launched = unsafe {
            if let Some(attribute) = attribute {
                let config = LaunchConfig {
                    grid: [grid, 1, 1],
                    block: [entry.threads, 1, 1],
                    shared_bytes,
                    stream,
                    attributes: &raw const attribute,
                    count: 1,
                };
                driver.cuLaunchKernelEx(&config, function, arguments.as_mut_ptr(), std::ptr::null_mut())
            } else {
                driver.cuLaunchKernel(
                    function,
                    grid,
                    1,
                    1,
                    entry.threads,
                    1,
                    1,
                    shared_bytes,
                    stream,
                    arguments.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            }
        };
        launched.map_err(|failure| failure.of(entry.name))
    }
}

/// Reads the device's limits and refuses one that the shipped kernels do not run on.
fn describe(context: &Context, cuda_version: i32) -> Result<Device> {
    use DeviceAttribute as Attribute;
    let get = |attribute| context.attribute(attribute);
    let capability = 10 * get(Attribute::ComputeCapabilityMajor)? + get(Attribute::ComputeCapabilityMinor)?;
    let name = context.name()?;
    let least =
        fa_kernels::entries::entries().map(|entry| entry.target.compute_capability()).min().unwrap_or(0);
    if (capability as u32) < least {
        return Err(Error::DeviceTooOld {
            device: name,
            found: dotted(capability as u32),
            needed: dotted(least),
        });
    }
    // kHz, and bits that move twice in a clock.
    let memory_clock = get(Attribute::MemoryClockRate)?.max(0) as u64;
    let memory_width = get(Attribute::GlobalMemoryBusWidth)?.max(0) as u64;
    Ok(Device {
        backend: BackendKind::Cuda,
        driver: format!("CUDA {} driver", driver::version_name(cuda_version)),
        compute_capability: capability as u32,
        multiprocessors: get(Attribute::MultiprocessorCount)? as u32,
        shared_per_block: get(Attribute::MaxSharedMemoryPerBlockOptin)? as usize,
        shared_per_multiprocessor: get(Attribute::MaxSharedMemoryPerMultiprocessor)? as usize,
        memory: context.total_bytes()?,
        memory_bandwidth: 2 * 1000 * memory_clock * memory_width / 8,
        name,
    })
}

/// 75 as 7.5.
fn dotted(capability: u32) -> String {
    format!("{}.{}", capability / 10, capability % 10)
}
