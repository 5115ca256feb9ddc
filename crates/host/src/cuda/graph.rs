//! CUDA graphs: launches recorded once and replayed with one call, which costs the host what a single launch
//! does.

use cudarc::driver::{CudaGraph, sys};

use super::driver::check;
use super::{CUstream, Cuda};
use crate::{Error, Result};

/// What was put on a stream, ready to be replayed on it.
pub struct Graph {
    graph: CudaGraph,
}

impl Cuda {
    /// Records what `enqueue` puts on this backend's stream, which is given to it, without running it.
    ///
    /// The driver refuses to record an allocation or a wait, so that a call that can be recorded makes none.
    /// Kernels must be loaded before ([`Self::load`], or a first call). To record on a stream of one's own,
    /// begin the capture there and enqueue as ever.
    ///
    /// # Errors
    /// The error of `enqueue`, and when the driver refuses to record what it does.
    ///
    /// # Safety
    /// What the launches read and write stays alive, and is touched by nothing else meanwhile, whenever the
    /// graph is replayed. `enqueue` leaves the stream's capture to this function.
    pub unsafe fn capture(&self, enqueue: impl FnOnce(CUstream) -> Result<()>) -> Result<Graph> {
        // Of this thread alone: what others allocate meanwhile is no concern of the recording.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        check("cuStreamBeginCapture", self.stream.begin_capture(mode))?;
        let enqueued = enqueue(self.stream());
        // In any case: a stream that goes on recording could not be used.
        let ended = self.stream.end_capture(sys::CUgraphInstantiate_flags(0));
        enqueued?;
        let graph = check("cuStreamEndCapture and cuGraphInstantiate", ended)?;
        let graph = graph.ok_or_else(|| Error::Cuda {
            call: "cuStreamEndCapture".to_owned(),
            name: "no graph".to_owned(),
            description: "the driver recorded nothing".to_owned(),
        })?;
        Ok(Graph { graph })
    }
}

impl Graph {
    /// Enqueues all that was recorded on the stream that it was recorded on.
    ///
    /// # Errors
    /// When the driver refuses the launch.
    pub fn launch(&self) -> Result<()> {
        check("cuGraphLaunch", self.graph.launch())
    }
}
