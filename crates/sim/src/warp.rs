//! Operations at which the 32 lanes of a warp meet (PTX ISA, `shfl.sync`, `vote.sync`, `bar.warp.sync`),
//! and the meeting itself, for the operations of other files too.
//!
//! All 32 lanes take part, and all at the same operation and source location; anything else is
//! [`Error::Divergence`](crate::Error::Divergence), or a deadlock where lanes have finished.
//!
//! Only [`sync`] orders the lanes' accesses to memory: the PTX ISA gives that guarantee for
//! `bar.warp.sync`, while `shfl.sync` and `vote.sync` wait for the lanes without ordering memory.

use std::panic::Location;

use crate::context;
use crate::operation::{Operation, Results};

/// The `bits` of the lane whose index differs from this one's by `lane_mask` (`shfl.sync.bfly.b32`);
/// of `lane_mask` the low 5 bits count.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn shuffle_xor(bits: u32, lane_mask: u32) -> u32 {
    meet(Operation::ShuffleXor, [bits, lane_mask], Location::caller())[0]
}

/// The `bits` of lane `lane`, which each lane chooses for itself (`shfl.sync.idx.b32`); of `lane` the low 5
/// bits count.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn shuffle(bits: u32, lane: u32) -> u32 {
    meet(Operation::Shuffle, [bits, lane], Location::caller())[0]
}

/// As [`shuffle`], of the same lane.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn broadcast(value: u32, lane: u32) -> u32 {
    meet(Operation::Broadcast, [value, lane], Location::caller())[0]
}

/// Whether any lane's `predicate` holds (`vote.sync.any`).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn vote_any(predicate: bool) -> bool {
    meet(Operation::VoteAny, [predicate.into()], Location::caller())[0] != 0
}

/// A bit for each lane whose `predicate` holds (`vote.sync.ballot`).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn ballot(predicate: bool) -> u32 {
    meet(Operation::Ballot, [predicate.into()], Location::caller())[0]
}

/// Waits for all lanes and orders their shared-memory accesses (`bar.warp.sync`).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn sync() {
    meet(Operation::WarpSync, [], Location::caller());
}

/// Waits until the operation has taken place and returns what it gives this lane.
pub(crate) fn meet<const N: usize>(
    operation: Operation,
    operands: [u32; N],
    location: &'static Location<'static>,
) -> Results {
    let current = context::current();
    context::unwrap_or_fail(current.with(|block| block.arrive(operation, operands, location)));
    current.suspend();
    current.with(|block| block.threads[block.current].result)
}
