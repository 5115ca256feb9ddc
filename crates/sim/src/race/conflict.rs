//! What the detector finds.

use crate::error::AccessKind;
use crate::site::SiteId;

/// An earlier access that races with the one being recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// Offset of the first byte concerned.
    pub(crate) offset: usize,
    /// The thread, or the agent (`asynchronous.rs`) from the number of threads on.
    pub(crate) thread: usize,
    pub(crate) kind: AccessKind,
    pub(crate) site: SiteId,
    /// Whether it is a copy that its thread has not waited for.
    pub(crate) in_flight: bool,
    /// Whether it is an ordinary write that is ordered, but with no proxy fence on the way.
    pub(crate) unfenced: bool,
}
