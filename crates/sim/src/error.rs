//! Everything that can go wrong in a launch, each with the threads and places involved.

mod parts;

pub use parts::{Access, AccessKind, Phase, Threads, Wait, Waiters};

use parts::{describe, describe_site, missing};

use crate::operation::Operation;
use crate::site::Site;

/// Why a launch failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The launch configuration is not one that a device accepts.
    #[error("invalid launch of {kernel}: {reason}")]
    InvalidLaunch {
        /// Name of the kernel.
        kernel: String,
        /// The argument, its value and its limit.
        reason: String,
    },

    /// Two threads access the same byte, at least one writes, and nothing orders the two.
    #[error(
        "race in block {block} of {kernel} at shared address {address} (offset {offset}): \
         {second} and {first}, with no barrier between"
    )]
    Race {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// First shared address that both touch.
        address: u32,
        /// `address` less the base of shared memory.
        offset: u32,
        /// The access that this schedule ran first.
        first: Access,
        /// The access at which the race was found.
        second: Access,
    },

    /// Blocks access the same byte of global memory, at least one writes, and nothing orders the two.
    #[error(
        "race between blocks of {kernel} at byte {offset} of buffer `{buffer}`: {second} in block {block} \
         and {first} in block {other}{of_launch}, with no global::add_release and global::wait_at_least between"
    )]
    RaceBetweenBlocks {
        /// Name of the kernel.
        kernel: String,
        /// Name of the buffer.
        buffer: Box<str>,
        /// First byte of the buffer that both touch.
        offset: u64,
        /// Index of the block of `second`.
        block: u32,
        /// Index of the block of `first`, counted on over launches beside each other if it is of one before.
        other: u32,
        /// Says so, if it is.
        of_launch: &'static str,
        /// The access that was recorded first.
        first: Box<Access>,
        /// The access at which the race was found.
        second: Box<Access>,
    },

    /// An access outside the block's shared memory.
    #[error(
        "shared access out of bounds in block {block} of {kernel}: {access} {bytes} bytes at address {address}, \
         shared memory is {base} to {end}"
    )]
    SharedOutOfBounds {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// Shared address of the access.
        address: u32,
        /// Bytes accessed.
        bytes: u32,
        /// First address of shared memory.
        base: u32,
        /// Address just past shared memory.
        end: u32,
        /// The access.
        access: Access,
    },

    /// A shared address that is no multiple of the access size (PTX ISA, "Addresses as Operands").
    #[error(
        "misaligned shared access in block {block} of {kernel}: {access} {bytes} bytes at address {address} \
         (offset {offset}), which is no multiple of {bytes}"
    )]
    SharedMisaligned {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// Shared address of the access.
        address: u32,
        /// `address` less the base of shared memory.
        offset: u32,
        /// Bytes accessed.
        bytes: u32,
        /// The access.
        access: Access,
    },

    /// A read of shared memory that no thread of the block has written.
    #[error(
        "uninitialised shared read in block {block} of {kernel}: {access} {bytes} bytes at address {address} \
         (offset {offset}), which no thread has written"
    )]
    SharedUninitialised {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// Shared address of the access.
        address: u32,
        /// `address` less the base of shared memory.
        offset: u32,
        /// Bytes accessed.
        bytes: u32,
        /// The access.
        access: Access,
    },

    /// An access outside the buffers of the launch, or a write to one that it may only read, or to bytes that
    /// no view reaches.
    #[error(
        "global access out of bounds in block {block} of {kernel}: {access} {bytes} bytes at {address:#x}, {nearest}"
    )]
    GlobalOutOfBounds {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// Global address of the access.
        address: u64,
        /// Bytes accessed.
        bytes: u32,
        /// Where the address lies relative to the nearest buffer.
        nearest: String,
        /// The access.
        access: Access,
    },

    /// A global address that is no multiple of the access size.
    #[error(
        "misaligned global access in block {block} of {kernel}: {access} {bytes} bytes at {address:#x}, \
         which is no multiple of {alignment}"
    )]
    GlobalMisaligned {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// Global address of the access.
        address: u64,
        /// Bytes accessed.
        bytes: u32,
        /// What the address has to be a multiple of.
        alignment: u32,
        /// The access.
        access: Access,
    },

    /// An access to bytes that an asynchronous copy may still be writing.
    #[error(
        "copy in flight in block {block} of {kernel} at shared address {address} (offset {offset}): \
         {access}, where {copy} and {}", missing(.committed)
    )]
    CopyInFlight {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// First shared address concerned.
        address: u32,
        /// `address` less the base of shared memory.
        offset: u32,
        /// The access.
        access: Access,
        /// The copy.
        copy: Access,
        /// Whether a `commit_group` has closed the copy's group.
        committed: bool,
    },

    /// A thread returned with copies in flight: nothing in the kernel can ever use them safely.
    #[error("copy never waited for in block {block} of {kernel}: {copy} and returns; {}", missing(.committed))]
    CopyNotAwaited {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// The thread's first such copy.
        copy: Access,
        /// Whether a `commit_group` has closed the copy's group.
        committed: bool,
    },

    /// An access to bytes that an operation of the async proxy may still be using.
    #[error(
        "asynchronous operation not waited for in block {block} of {kernel} at shared address {address} \
         (offset {offset}): {access}, where {operation} and no {wait} comes before"
    )]
    NotAwaited {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// First shared address concerned.
        address: u32,
        /// `address` less the base of shared memory.
        offset: u32,
        /// The access.
        access: Access,
        /// The operation.
        operation: Access,
        /// The wait that is missing.
        wait: Wait,
    },

    /// An operation of the async proxy on bytes that were written through the generic proxy.
    #[error(
        "missing proxy fence in block {block} of {kernel} at shared address {address} (offset {offset}): {access}, \
         where {write} with no fence::proxy_async by thread {} between its write and the synchronisation",
        .write.thread
    )]
    MissingProxyFence {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// First shared address concerned.
        address: u32,
        /// `address` less the base of shared memory.
        offset: u32,
        /// The operation of the async proxy.
        access: Access,
        /// The write.
        write: Access,
    },

    /// A block uses what others of its cluster have in a way that nothing orders.
    #[error("cluster misused in block {block} of {kernel}{}: {reason}", describe_site(site.as_ref()))]
    Cluster {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block in the grid.
        block: u32,
        /// Where it was, unless it is about the block's end.
        site: Option<Site>,
        /// What is wrong.
        reason: String,
    },

    /// An mbarrier used as none can be.
    #[error(
        "mbarrier misused in block {block} of {kernel} at shared address {address} (offset {offset}): \
         thread {thread} at {site}: {reason}"
    )]
    Mbarrier {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// Shared address of the barrier.
        address: u32,
        /// `address` less the base of shared memory.
        offset: u32,
        /// The thread that found out.
        thread: u32,
        /// Where it was.
        site: Site,
        /// What is wrong.
        reason: String,
    },

    /// A TMA transfer with arguments that the device does not take.
    #[error("invalid transfer in block {block} of {kernel}: {access}: {reason}")]
    InvalidTransfer {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// The transfer.
        access: Access,
        /// The argument, its value and its limit.
        reason: String,
    },

    /// A thread, or the block, ended with a TMA transfer under way.
    #[error("transfer never waited for in block {block} of {kernel}: {transfer} and returns; {reason}")]
    TransferNotAwaited {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// The transfer.
        transfer: Access,
        /// What is missing.
        reason: &'static str,
    },

    /// A product of a warpgroup that the device does not take, or whose result is undefined.
    #[error("wgmma misused in block {block} of {kernel}: thread {thread} at {site}: {reason}")]
    Wgmma {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// The thread that found out.
        thread: u32,
        /// Where it was, or where the product was issued.
        site: Site,
        /// What is wrong.
        reason: String,
    },

    /// A `setmaxnreg` that the device does not take.
    #[error("invalid setmaxnreg in block {block} of {kernel}: thread {thread} at {site}: {reason}")]
    InvalidRegisters {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// The thread that found out.
        thread: u32,
        /// Where it was.
        site: Site,
        /// What is wrong.
        reason: String,
    },

    /// A copy that is to read more bytes than it writes.
    #[error("invalid copy in block {block} of {kernel}: {access}: bytes is {bytes}, the limit is {limit}")]
    InvalidCopy {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// Bytes to read.
        bytes: u32,
        /// Bytes that the copy writes.
        limit: u32,
        /// The copy.
        access: Access,
    },

    /// Lanes of one warp wait for each other at different operations or places.
    #[error(
        "divergence in block {block} of {kernel}: thread {second_thread} reaches {second_operation} at {second} \
         while thread {first_thread} of its warp waits at {first_operation} at {first}"
    )]
    Divergence {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// The lane that waits.
        first_thread: u32,
        /// What it waits for.
        first_operation: Operation,
        /// Where it waits.
        first: Site,
        /// The lane that arrived elsewhere.
        second_thread: u32,
        /// What it arrived at.
        second_operation: Operation,
        /// Where it arrived.
        second: Site,
    },

    /// Warps that wait at one barrier for different numbers of threads.
    #[error(
        "barrier mismatch in block {block} of {kernel}: thread {second_thread} reaches barrier {barrier} \
         for {second_threads} arrivals at {second} while thread {first_thread} waits there \
         for {first_threads} at {first}"
    )]
    BarrierMismatch {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// Index of the barrier.
        barrier: u32,
        /// A thread that waits.
        first_thread: u32,
        /// The number of threads it waits for.
        first_threads: u32,
        /// Where it waits.
        first: Site,
        /// The thread that disagrees.
        second_thread: u32,
        /// The number of threads it waits for.
        second_threads: u32,
        /// Where it arrived.
        second: Site,
    },

    /// A barrier index or thread count that `bar.sync` does not take.
    #[error("invalid barrier in block {block} of {kernel}: thread {thread} at {site}: {reason}")]
    InvalidBarrier {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// The thread that arrived.
        thread: u32,
        /// Where it arrived.
        site: Site,
        /// The argument, its value and its limit.
        reason: String,
    },

    /// No thread can advance and some have not finished.
    #[error("deadlock in block {block} of {kernel}: {}", describe(.waiting, .finished))]
    Deadlock {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// Who waits where.
        waiting: Vec<Waiters>,
        /// The threads that returned from the kernel.
        finished: Threads,
    },

    /// The kernel panicked.
    #[error("panic in block {block} of {kernel}: thread {thread}: {message}, at {location}")]
    KernelPanic {
        /// Name of the kernel.
        kernel: String,
        /// Index of the block.
        block: u32,
        /// The thread that panicked.
        thread: u32,
        /// The panic's message.
        message: String,
        /// `file:line` of the panic.
        location: String,
    },

    /// The operating system gave no memory for the coroutine stacks of a block.
    #[error("no stacks for the {threads} threads of a block of {kernel}: {reason}")]
    Stacks {
        /// Name of the kernel.
        kernel: String,
        /// Threads of a block.
        threads: u32,
        /// The operating system's message.
        reason: String,
    },
}
