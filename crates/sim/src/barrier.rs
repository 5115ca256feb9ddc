//! Named barriers of a block (PTX ISA, `barrier.cta.sync.aligned`, `barrier.cta.arrive.aligned`).

use std::panic::Location;

use crate::context;
use crate::operation::Operation;
use crate::warp;

/// Waits at barrier `barrier` (0 to 15) until `threads` threads have arrived there, and orders their
/// shared-memory accesses before it against those after it. Threads that [`arrive`] count too. Threads that
/// do not take part are not ordered.
///
/// `threads` is a multiple of 32, at most the block's size, and the same for all who meet. The
/// 32 lanes of a warp arrive together, from one source location, as `.aligned` asks. A warp with
/// lanes that have left the kernel never arrives; this is stricter than hardware that counts
/// such a warp, because a kernel that leans on it breaks under `.aligned`.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn sync(barrier: u32, threads: u32) {
    let location = Location::caller();
    context::unwrap_or_fail(context::with(|block| block.check_barrier(barrier, threads, location)));
    warp::meet(Operation::Barrier { barrier, threads }, [], location);
}

/// Arrives at barrier `barrier` as [`sync`] does, and does not wait (`barrier.cta.arrive.aligned`): what
/// this warp did before is ordered before what those do that wait there, and nothing the other way round.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn arrive(barrier: u32, threads: u32) {
    let location = Location::caller();
    context::unwrap_or_fail(context::with(|block| block.check_barrier(barrier, threads, location)));
    warp::meet(Operation::BarrierArrive { barrier, threads }, [], location);
}
