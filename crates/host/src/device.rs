//! What a plan needs to know of the device that it is for.

use fa_kernels::config::Limits;

use crate::{Error, Result};

/// Where attention runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackendKind {
    /// An NVIDIA GPU, through the driver and the shipped PTX.
    Cuda,
    /// All cores of this machine, with SIMD.
    Cpu,
    /// The GPU kernels' own source, run natively under race and deadlock detection. Slow; for tests.
    Sim,
}

impl BackendKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Cuda, Self::Cpu, Self::Sim];

    /// Whether this program was built with it: with the feature of its name.
    pub const fn is_built(self) -> bool {
        match self {
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Cpu => cfg!(feature = "cpu"),
            Self::Sim => cfg!(feature = "sim"),
        }
    }

    /// Refuses a backend that this program was built without.
    pub(crate) const fn check_built(self) -> Result<()> {
        if self.is_built() { Ok(()) } else { Err(Error::NotBuilt { backend: self }) }
    }

    /// The name that the command line uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Cpu => "cpu",
            Self::Sim => "sim",
        }
    }
}

impl std::fmt::Display for BackendKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A device, as far as planning and reports need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The backend that drives it.
    pub backend: BackendKind,
    /// The maker's name for it.
    pub name: String,
    /// Driver and its CUDA version, or what stands in for them.
    pub driver: String,
    /// Compute capability as major·10 + minor; 0 where there is none.
    pub compute_capability: u32,
    /// Multiprocessors of a GPU, cores of a CPU.
    pub multiprocessors: u32,
    /// Bytes of shared memory that one block may use.
    pub shared_per_block: usize,
    /// Bytes of shared memory of one multiprocessor.
    pub shared_per_multiprocessor: usize,
    /// Bytes of memory in all.
    pub memory: u64,
    /// Bytes that memory moves in a second, as its clock and width have it; 0 where that is not known.
    pub memory_bandwidth: u64,
}

impl Device {
    /// `H200 (sm_90, 132 multiprocessors)`-like description in one line.
    pub fn describe(&self) -> String {
        match self.backend {
            BackendKind::Cuda => format!(
                "{} (sm_{}, {} multiprocessors, {:.0} GiB, {})",
                self.name,
                self.compute_capability,
                self.multiprocessors,
                self.memory as f64 / f64::from(1 << 30),
                self.driver
            ),
            BackendKind::Cpu => format!("{} ({} threads, {})", self.name, self.multiprocessors, self.driver),
            BackendKind::Sim => format!(
                "{} (sm_{}, {} multiprocessors, {} bytes of shared memory per block)",
                self.name, self.compute_capability, self.multiprocessors, self.shared_per_block
            ),
        }
    }

    /// Whether a plan for this device runs on `other` too: all that planners look at is the same.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let limits = |device: &Self| {
            let shared = (device.shared_per_block, device.shared_per_multiprocessor);
            let memory = device.memory_bandwidth;
            (device.backend, device.compute_capability, device.multiprocessors, shared, memory)
        };
        limits(self) == limits(other) && self.name == other.name
    }

    /// What it leaves a block of a GPU kernel.
    pub fn limits(&self) -> Limits {
        let bytes = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        Limits::with_shared(bytes(self.shared_per_block), bytes(self.shared_per_multiprocessor))
    }

    /// A zeroed vector in host memory for `what`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the allocator would abort.
    pub(crate) fn allocate<T: Copy + Default>(&self, what: &'static str, len: usize) -> Result<Vec<T>> {
        let mut values = Vec::new();
        values.try_reserve_exact(len).map_err(|_| Error::OutOfMemory {
            what,
            needed: len as u128 * size_of::<T>() as u128,
            available: self.memory.into(),
            device: self.name.clone(),
        })?;
        values.resize(len, T::default());
        Ok(values)
    }
}
