//! Blocks that run together and read each other's shared memory (PTX ISA, "Cluster of Cooperative Thread
//! Arrays").
//!
//! A block reads what another of its cluster had written when both last came through [`sync`]. Until both
//! come through it again, who owns the bytes leaves them alone; and no block ends before others have read it
//! for the last time, which again is a [`sync`], or a [`leave`]. What breaks this is
//! [`Error::Cluster`](crate::Error::Cluster), under any schedule.

use std::panic::Location;

use bytemuck::Pod;

use crate::context;
use crate::operation::Operation;
use crate::shared::assert_access_size;
use crate::warp;

/// Most blocks of a cluster that every device takes (CUDA C++ Programming Guide, "Thread Block Clusters").
pub const MAX_SIZE: u32 = 8;

/// Index of this block in its cluster (`%cluster_ctarank`).
///
/// # Panics
/// Outside a kernel.
#[inline]
pub fn rank() -> u32 {
    context::with(|block| block.cluster.as_ref().map_or(0, |member| member.rank))
}

/// Blocks of this cluster (`%cluster_nctarank`).
///
/// # Panics
/// Outside a kernel.
#[inline]
pub fn size() -> u32 {
    context::with(|block| block.cluster.as_ref().map_or(1, |member| member.board.size()))
}

/// Waits until all threads of all blocks of the cluster have arrived, and orders what they did in shared
/// memory before it against what they do after it (`barrier.cluster.arrive.release.aligned` and
/// `barrier.cluster.wait.acquire.aligned`).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn sync() {
    warp::meet(Operation::ClusterBarrier { orders: true }, [], Location::caller());
}

/// As [`sync`], but that it orders nothing (`barrier.cluster.arrive.relaxed.aligned`): blocks come to it so
/// that each stays until others have read its shared memory. A barrier orders where all warps [`sync`].
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn leave() {
    warp::meet(Operation::ClusterBarrier { orders: false }, [], Location::caller());
}

/// Loads a value of 1, 2, 4, 8 or 16 bytes at `address` in the shared memory of the block `rank`
/// (`mapa.shared::cluster`, `ld.shared::cluster`).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn load<T: Pod>(rank: u32, address: u32) -> T {
    const { assert_access_size(size_of::<T>()) };
    let location = Location::caller();
    let current = context::current();
    current.maybe_preempt();
    if rank == self::rank() {
        return crate::shared::load(address);
    }
    let bytes = context::unwrap_or_fail(
        current.with(|block| block.read_of_cluster(rank, address, size_of::<T>(), location)),
    );
    bytemuck::pod_read_unaligned(&bytes[..size_of::<T>()])
}
