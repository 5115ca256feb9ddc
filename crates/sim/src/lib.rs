//! A GPU thread block on the CPU.
//!
//! The kernels of `fa-kernels` are ordinary Rust. On the GPU their hardware operations are PTX
//! instructions; on the host they are the functions of this crate, so that the same source runs
//! under `cargo test` on a machine with no GPU.
//!
//! * Each GPU thread is a stackful coroutine; a block runs on one OS thread, and the blocks of
//!   a grid are spread over the cores.
//! * The order in which a block's threads advance is a function of a [`Schedule`] and the block's
//!   index alone: the same seed gives a bit-identical execution, on one core or on many.
//! * Each access to shared memory is checked for bounds, alignment, initialisation and, exactly,
//!   for data races by happens-before. Each access to global memory is checked against the
//!   buffers of the [`Launch`].
//! * Blocks of a launch may learn of each other by [`global::fetch_add`], [`global::add_release`] and
//!   [`global::wait_at_least`]. Then their accesses to global memory are checked for races with each other,
//!   by happens-before too. The order in which blocks happen to run does not hide one.
//! * Asynchronous copies land at a time that the schedule draws; any access to their bytes before
//!   the wait that covers them is reported.
//! * What Hopper adds, tensor transfers (TMA), barriers in shared memory and products of a warpgroup, are
//!   operations of authors of their own in the happens-before order: only who has waited for one comes after
//!   it, under any schedule. What passes from ordinary stores to them needs its proxy fence.
//! * Threads that can never advance are a [`Error::Deadlock`] that says who waits where.
//!
//! ```
//! use fa_sim::{Launch, Schedule, barrier, index, launch, shared};
//!
//! let kernel = || {
//!     let address = shared::base() + 4 * index::thread();
//!     shared::store(address, 1.0_f32);
//!     barrier::sync(0, 64);
//!     let neighbour = shared::base() + 4 * ((index::thread() + 1) % 64);
//!     assert_eq!(shared::load::<f32>(neighbour), 1.0);
//! };
//! let config = Launch {
//!     name: "neighbours",
//!     grid: 2,
//!     block: 64,
//!     shared_bytes: 256,
//!     schedule: Schedule::from_seed(7),
//!     buffers: &[],
//! };
//! assert_eq!(launch(&config, &kernel)?.barrier_sites, 1);
//! # Ok::<(), fa_sim::Error>(())
//! ```
//!
//! # What differs from the hardware
//! Threads of a warp interleave freely between the points where they meet, as PTX allows since
//! sm_70; no warp runs in lockstep. Time, caches and bank conflicts are not modelled. Sums of an `mma` or a
//! `wgmma` are rounded in an order of this crate's own.
//!
//! In global memory a block is one agent. Races between its threads are not seen there, nor whether a barrier
//! and a proxy fence lie between their accesses and the thread that releases or waits. Launches whose blocks
//! call none of the three functions above are not checked. Before the first such call of a launch, a worker
//! records the first 4,096 accesses of the blocks that it has at hand, and no others. Buffers that are read
//! only are left out. A TMA load reads from its issue until it lands, which may be before its wait.
//!
//! Registers that a `wgmma` under way reads or writes are not watched: its A is read at the issue, and of its
//! accumulator only what a wait or the next product is given is looked at. Reading the accumulator too early
//! gives NaN. Which accesses to registers lie between a product and its `wgmma::fence` is not seen; a fence
//! since the last wait is asked for. A proxy fence has to be the writer's. Of clusters there are
//! barriers and loads alone; their threads arrive and wait in one. Multicast, cache hints,
//! im2col, interleaved maps, and descriptors with a base offset are not modelled. A `setmaxnreg` takes and
//! gives nothing.
//!
//! A kernel that overruns its coroutine stack (256 KiB) hits a guard page, which ends the process.

pub mod barrier;
pub mod bytes;
pub mod cluster;
pub mod convert;
pub mod cp_async;
pub mod fence;
pub mod global;
pub mod index;
pub mod ldmatrix;
pub mod math;
pub mod mbarrier;
pub mod mma;
pub mod setmaxnreg;
pub mod shared;
pub mod stmatrix;
pub mod tma;
pub mod warp;
pub mod wgmma;

mod between;
mod block;
mod buffer;
mod context;
mod deadlock;
mod error;
mod executor;
mod grid;
mod launch;
mod operation;
mod race;
mod schedule;
mod site;
mod stacks;
mod state;
mod tensor_core;
mod tensor_map;
mod threads;

pub use buffer::{Buffer, BufferAccess};
pub use context::is_inside as is_in_kernel;
pub use error::{Access, AccessKind, Error, Threads, Wait, Waiters};
pub use grid::{Neighbours, launch, launch_clusters};
pub use launch::{Launch, Report};
pub use operation::Operation;
pub use schedule::{Order, Schedule};
pub use site::Site;
pub use threads::WARP;
