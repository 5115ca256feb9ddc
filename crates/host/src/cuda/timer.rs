//! Time between two points of a stream.

use std::time::Duration;

use cudarc::driver::{CudaEvent, sys};

use super::Cuda;
use super::driver::check;
use crate::Result;

/// Two device events.
pub(super) struct Timer([CudaEvent; 2]);

impl Timer {
    pub(super) fn new(cuda: &Cuda) -> Result<Self> {
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let event = || check("cuEventCreate", cuda.context.new_event(flags));
        Ok(Self([event()?, event()?]))
    }

    /// Marks where the time begins on the backend's stream.
    pub(super) fn begin(&self, cuda: &Cuda) -> Result<()> {
        check("cuEventRecord", self.0[0].record(&cuda.stream))
    }

    /// Marks its end, waits for it, and returns the time between.
    pub(super) fn end(&self, cuda: &Cuda) -> Result<Duration> {
        check("cuEventRecord", self.0[1].record(&cuda.stream))?;
        let milliseconds = check("cuEventElapsedTime", self.0[0].elapsed_ms(&self.0[1]))?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds) / 1e3))
    }
}
