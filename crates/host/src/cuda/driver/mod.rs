//! The CUDA driver API without a CUDA toolkit: libcuda is opened when it is first needed, and each function
//! is looked up when it is first called.
//!
//! A driver without one of the functions serves everything that does not call it. Names and values are those
//! of `cuda.h`.

mod context;
mod error;
mod event;
mod functions;
mod graph;
mod stream;
mod types;
mod version;

use std::sync::OnceLock;

use super::library::Library;
use crate::{Error, Result};
pub(super) use context::Context;
pub(super) use error::Failure;
pub(super) use event::Event;
use functions::Functions;
pub(super) use graph::ExecutableGraph;
use graph::RecordedGraph;
pub(super) use stream::OwnedStream;
pub use stream::Stream;
pub(super) use types::*;
pub(super) use version::version_name;

/// The driver's library, as its installation names it for the system's loader.
const FILE: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// The driver of this process.
pub(super) struct Driver {
    library: Library,
    functions: Functions,
}

impl Driver {
    /// The driver, which is opened once; a failure to open it is kept too.
    ///
    /// # Errors
    /// [`Error::NoCudaDevice`] when it cannot be opened.
    pub(super) fn get() -> Result<&'static Self> {
        static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
        let opened = DRIVER.get_or_init(|| Self::open(FILE));
        opened.as_ref().map_err(|reason| Error::NoCudaDevice { reason: reason.clone() })
    }

    fn open(file: &str) -> Result<Self, String> {
        let library = Library::open(file)
            .map_err(|reason| format!("the NVIDIA driver cannot be loaded: {file}: {reason}"))?;
        Ok(Self { library, functions: Functions::default() })
    }

    /// Initialises the driver and returns its CUDA version as 1000·major + 10·minor.
    ///
    /// # Errors
    /// When it sees no device, or is too old for the shipped kernels.
    pub(super) fn init(&self) -> Result<i32> {
        // SAFETY: 0 is the only flag (CUDA driver API, "Initialization").
        unsafe { self.cuInit(0) }
            .map_err(|failure| Error::NoCudaDevice { reason: Error::from(failure).to_string() })?;
        let version = self.version()?;
        version::require(version, crate::shipped::least_ptx_isa()?)?;
        Ok(version)
    }

    /// The CUDA version that the driver supports, as 1000·major + 10·minor.
    fn version(&self) -> Result<i32, Failure<'_>> {
        let mut version = 0;
        // SAFETY: the driver writes one integer.
        unsafe { self.cuDriverGetVersion(&raw mut version) }?;
        Ok(version)
    }

    /// Number of GPUs that the driver sees.
    pub(super) fn device_count(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the driver writes one integer.
        unsafe { self.cuDeviceGetCount(&raw mut count) }?;
        Ok(count.max(0) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_is_not_there_is_named() {
        let reason = Driver::open("libcuda-that-is-missing.so.1").err().unwrap();
        let start = "the NVIDIA driver cannot be loaded: libcuda-that-is-missing.so.1: ";
        assert!(reason.strip_prefix(start).is_some_and(|why| !why.is_empty()), "{reason}");
    }
}
