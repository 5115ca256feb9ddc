//! CUDA graphs: what a stream was given while it recorded.

use std::sync::Arc;

use super::{CuGraph, CuGraphExec, OwnedStream};
use crate::Result;

/// A recording, destroyed when it is dropped.
///
/// Functions that take the same graph must not run at a time (CUDA driver API, "Graphs thread safety"): the
/// handle keeps it to one thread.
pub(in crate::cuda) struct RecordedGraph {
    handle: CuGraph,
    stream: Arc<OwnedStream>,
}

/// A recording in the form that is launched, destroyed when it is dropped. It too stays with one thread.
pub(in crate::cuda) struct ExecutableGraph {
    handle: CuGraphExec,
    stream: Arc<OwnedStream>,
}

impl RecordedGraph {
    /// Takes over a graph that `stream` recorded.
    pub(super) const fn new(handle: CuGraph, stream: Arc<OwnedStream>) -> Self {
        Self { handle, stream }
    }

    /// Readies it for launches on the stream that recorded it.
    pub(in crate::cuda) fn instantiate(&self) -> Result<ExecutableGraph> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the driver writes one handle; the graph lives, and 0 stands for no flags.
        unsafe { self.stream.driver().cuGraphInstantiateWithFlags(&raw mut handle, self.handle, 0) }?;
        Ok(ExecutableGraph { handle, stream: Arc::clone(&self.stream) })
    }
}

impl ExecutableGraph {
    /// Enqueues all that was recorded.
    pub(in crate::cuda) fn launch(&self) -> Result<()> {
        self.stream.make_current()?;
        // SAFETY: graph and stream live.
        unsafe { self.stream.driver().cuGraphLaunch(self.handle, self.stream.handle()) }?;
        Ok(())
    }
}

impl Drop for RecordedGraph {
    fn drop(&mut self) {
        // A failure leaves nothing to be done.
        // SAFETY: recorded once, destroyed once; what was made of it is a copy.
        let _ = unsafe { self.stream.driver().cuGraphDestroy(self.handle) };
    }
}

impl Drop for ExecutableGraph {
    fn drop(&mut self) {
        // A failure leaves nothing to be done.
        // SAFETY: made by `instantiate`, destroyed once; a launch that runs is let run to its end.
        let _ = unsafe { self.stream.driver().cuGraphExecDestroy(self.handle) };
    }
}
