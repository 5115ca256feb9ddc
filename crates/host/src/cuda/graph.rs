//! CUDA graphs: launches recorded once and replayed with one call, which costs the host what a single launch
//! does.

use super::driver::ExecutableGraph;
use super::{Cuda, Stream};
use crate::Result;

/// What was put on a stream, ready to be replayed on it.
pub struct Graph {
    graph: ExecutableGraph,
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
    pub unsafe fn capture(&self, enqueue: impl FnOnce(Stream) -> Result<()>) -> Result<Graph> {
        // Of this thread alone: what others allocate meanwhile is no concern of the recording.
        self.stream.begin_capture()?;
        let enqueued = enqueue(self.stream());
        // In any case: a stream that goes on recording could not be used.
        let ended = self.stream.end_capture();
        enqueued?;
        Ok(Graph { graph: ended?.instantiate()? })
    }
}

impl Graph {
    /// Enqueues all that was recorded on the stream that it was recorded on.
    ///
    /// # Errors
    /// When the driver refuses the launch.
    pub fn launch(&self) -> Result<()> {
        self.graph.launch()
    }
}
