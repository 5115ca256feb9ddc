//! Communicators, whose gathers run on copy engines or are kernels, and the memory that they gather in.
//!
//! No call blocks: NCCL goes on with it in a thread of its own, and is asked until it is done (NCCL user
//! guide, "Fault Tolerance"). So a rank that is gone is noticed by whoever is asked meanwhile.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::functions::{BYTES, CommHandle, Config, NcclResult, UniqueId, WINDOW_SYMMETRIC, WindowHandle};
use super::{Failure, Nccl};
use crate::cuda::driver::{Context, Stream};
use crate::{Error, Result};

/// Asked while NCCL goes on with a call; an error ends the wait.
pub(in crate::cuda) type KeepOn<'a> = &'a dyn Fn() -> Result<()>;

/// Ranks that gather together, in an order of theirs.
pub(in crate::cuda) struct Communicator {
    nccl: &'static Nccl,
    context: Arc<Context>,
    handle: CommHandle,
    /// The rank's place in the order.
    place: usize,
    /// A call of it did not come to its end: nobody waits for it again.
    is_given_up: AtomicBool,
    is_aborted: AtomicBool,
    /// Calls are made one at a time.
    calling: Mutex<()>,
}

// SAFETY: the handle is an address that is only given to NCCL, whose functions any thread may call, one at a
// time for each communicator, as the lock sees to.
unsafe impl Send for Communicator {}
// SAFETY: as above.
unsafe impl Sync for Communicator {}

/// A place that NCCL writes to when it is done with a call. It stays where it is should the wait for that end
/// before.
struct Later<T>(*mut *mut T);

impl<T> Later<T> {
    fn new() -> Self {
        Self(Box::into_raw(Box::new(std::ptr::null_mut())))
    }

    /// What was written; after NCCL is done.
    fn take(self) -> *mut T {
        // SAFETY: made by `new`, taken once; NCCL writes it no more.
        *unsafe { Box::from_raw(self.0) }
    }
}

impl Communicator {
    /// What ranks find one another by; of one rank, which brings it to the others.
    ///
    /// # Errors
    /// When NCCL fails.
    pub(in crate::cuda) fn unique_id() -> Result<UniqueId> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: NCCL writes the id.
        unsafe { Nccl::get()?.ncclGetUniqueId(&raw mut id) }?;
        Ok(id)
    }

    /// Joins the other ranks of `id` with the GPU of `context`. Gathers run on copy engines, or are kernels.
    ///
    /// # Errors
    /// When NCCL fails, and the error of `keep_on`.
    pub(in crate::cuda) fn new(
        context: &Arc<Context>,
        id: UniqueId,
        (rank, world): (usize, usize),
        on_copy_engines: bool,
        keep_on: KeepOn<'_>,
    ) -> Result<Self> {
        let nccl = Nccl::get()?;
        context.make_current()?;
        let (mut handle, mut config) = (std::ptr::null_mut(), Config::new(on_copy_engines));
        // SAFETY: NCCL writes the handle and reads the config; ranks are below 2^31, as launchers count them.
        unsafe {
            nccl.ncclCommInitRankConfig(&raw mut handle, world as i32, id, rank as i32, &raw mut config)
        }?;
        let made = Self::of(nccl, context, handle, rank);
        made.settle(keep_on)?;
        Ok(made)
    }

    /// The same ranks in the reverse order.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(in crate::cuda) fn reversed(
        &self,
        world: usize,
        on_copy_engines: bool,
        keep_on: KeepOn<'_>,
    ) -> Result<Self> {
        self.split(world - 1 - self.place, Config::new(on_copy_engines), keep_on)
    }

    /// The same ranks in the same order, whose gathers are kernels: a few bytes come sooner by these, where
    /// nothing that runs beside them takes all multiprocessors.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(in crate::cuda) fn with_kernels(&self, keep_on: KeepOn<'_>) -> Result<Self> {
        self.split(self.place, Config::new(false), keep_on)
    }

    /// The same ranks, of which this one has another place.
    fn split(&self, place: usize, mut config: Config, keep_on: KeepOn<'_>) -> Result<Self> {
        let _one = self.calling();
        self.context.make_current()?;
        let handle = Later::new();
        // SAFETY: NCCL writes the handle once it is done, and reads the config now; the communicator lives.
        unsafe { self.nccl.ncclCommSplit(self.handle, 0, place as i32, handle.0, &raw mut config) }?;
        self.settle(keep_on)?;
        let made = Self::of(self.nccl, &self.context, handle.take(), place);
        made.settle(keep_on)?;
        Ok(made)
    }

    fn of(nccl: &'static Nccl, context: &Arc<Context>, handle: CommHandle, place: usize) -> Self {
        let [is_given_up, is_aborted] = [false; 2].map(AtomicBool::new);
        let (context, calling) = (Arc::clone(context), Mutex::new(()));
        Self { nccl, context, handle, place, is_given_up, is_aborted, calling }
    }

    /// Held while a call is made, and until NCCL is done with it.
    fn calling(&self) -> impl Sized {
        self.calling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until NCCL is done with the last call.
    fn settle(&self, keep_on: KeepOn<'_>) -> Result<()> {
        self.check_live()?;
        loop {
            let mut state = NcclResult::SUCCESS;
            // SAFETY: NCCL writes the state; the communicator lives.
            unsafe { self.nccl.ncclCommGetAsyncError(self.handle, &raw mut state) }?;
            if state != NcclResult::IN_PROGRESS {
                return Failure::check(self.nccl, "ncclCommGetAsyncError", state).map_err(Error::from);
            }
            if let Err(error) = keep_on() {
                self.give_up();
                return Err(error);
            }
            std::thread::yield_now();
        }
    }

    /// Refuses to use a communicator that was given up.
    fn check_live(&self) -> Result<()> {
        if !self.is_given_up.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::Context { reason: "ranks that were given up gather no more".to_owned() })
    }

    /// Refuses to go on once a gather has failed.
    ///
    /// # Errors
    /// NCCL's.
    pub(in crate::cuda) fn check(&self) -> Result<()> {
        let _one = self.calling();
        self.settle(&|| Ok(()))
    }

    /// Enqueues gathers in place at once, each of pieces of so many bytes, the first of which begins at an
    /// address.
    ///
    /// # Errors
    /// When NCCL fails, and the error of `keep_on`.
    ///
    /// # Safety
    /// All ranks enqueue the same gathers in the same order, of memory that lives until they are over, as
    /// long as all pieces, that nothing else writes meanwhile.
    pub(in crate::cuda) unsafe fn all_gathers(
        &self,
        gathers: &[(u64, usize)],
        stream: Stream,
        keep_on: KeepOn<'_>,
    ) -> Result<()> {
        let _one = self.calling();
        self.check_live()?;
        self.context.make_current()?;
        let is_group = gathers.len() > 1;
        if is_group {
            // SAFETY: it ends below, on this thread, whatever comes between.
            unsafe { self.nccl.ncclGroupStart() }?;
        }
        let enqueued = gathers.iter().try_for_each(|&(first, bytes)| {
            let own = first + (self.place * bytes) as u64;
            let (own, all) = (own as *const c_void, first as *mut c_void);
            // SAFETY: the caller's promise; a rank's own piece is where it belongs, which NCCL takes as in
            // place.
            unsafe { self.nccl.ncclAllGather(own, all, bytes, BYTES, self.handle, stream) }
        });
        if is_group {
            // SAFETY: it began above, on this thread.
            unsafe { self.nccl.ncclGroupEnd() }?;
        }
        enqueued?;
        self.settle(keep_on)
    }

    /// Refuses all that is asked of it from now on.
    pub(in crate::cuda) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    /// Ends what a communicator that was given up has begun, as far as NCCL can: that takes it a second and
    /// more.
    pub(in crate::cuda) fn abort(&self) {
        if !self.is_aborted.swap(true, Ordering::Relaxed) {
            let _ = self.context.make_current();
            // SAFETY: the communicator lives, and is not used again. There is nobody to tell of a failure.
            let _ = unsafe { self.nccl.ncclCommAbort(self.handle) };
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if *self.is_given_up.get_mut() {
            return self.abort();
        }
        let _ = self.context.make_current();
        // SAFETY: made by NCCL, destroyed once; streams are done with it.
        let _ = unsafe { self.nccl.ncclCommDestroy(self.handle) };
    }
}

/// Memory that all ranks know a window of, so that copy engines reach it.
pub(in crate::cuda) struct Memory {
    nccl: &'static Nccl,
    context: Arc<Context>,
    address: *mut c_void,
    bytes: usize,
    windows: Vec<(Arc<Communicator>, WindowHandle)>,
}

// SAFETY: the address is device memory's, which the host does not touch; windows are only given to NCCL.
unsafe impl Send for Memory {}
// SAFETY: as above; no method changes anything.
unsafe impl Sync for Memory {}

impl Memory {
    /// So many bytes, the same on all ranks, known to all of these communicators.
    ///
    /// # Errors
    /// When there is not enough memory, NCCL fails, and the error of `keep_on`.
    pub(in crate::cuda) fn new(
        context: &Arc<Context>,
        bytes: usize,
        communicators: &[&Arc<Communicator>],
        keep_on: KeepOn<'_>,
    ) -> Result<Self> {
        let nccl = Nccl::get()?;
        context.make_current()?;
        let mut address = std::ptr::null_mut();
        // SAFETY: NCCL writes one address.
        unsafe { nccl.ncclMemAlloc(&raw mut address, bytes.max(1)) }?;
        let windows = Vec::new();
        let mut memory = Self { nccl, context: Arc::clone(context), address, bytes, windows };
        for &communicator in communicators {
            let _one = communicator.calling();
            communicator.check_live()?;
            let window = Later::new();
            let (handle, bytes) = (communicator.handle, bytes.max(1));
            // SAFETY: the memory is as long as said, and its windows go before it; NCCL writes the window's
            // handle once it is done.
            unsafe { nccl.ncclCommWindowRegister(handle, address, bytes, window.0, WINDOW_SYMMETRIC) }?;
            communicator.settle(keep_on)?;
            memory.windows.push((Arc::clone(communicator), window.take()));
        }
        Ok(memory)
    }

    pub(in crate::cuda) fn address(&self) -> u64 {
        self.address as u64
    }

    pub(in crate::cuda) const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = self.context.make_current();
        for (communicator, window) in &self.windows {
            let _one = communicator.calling();
            if !communicator.is_given_up.load(Ordering::Relaxed) {
                // SAFETY: registered once; who uses the memory is done with it. A failure leaves nothing to
                // be done.
                let _ = unsafe { self.nccl.ncclCommWindowDeregister(communicator.handle, *window) };
            }
        }
        // SAFETY: allocated by NCCL, freed once.
        let _ = unsafe { self.nccl.ncclMemFree(self.address) };
    }
}
