//! What a rank in a process of its own has of the others.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::cuda::Cuda;
use crate::cuda::driver::{Event, Stream};
use crate::cuda::nccl::{Communicator, KeepOn, Memory, Nccl, UniqueId, version_name};
use crate::distributed::{Fingerprint, Gather, Group, World};
use crate::{Error, Result};

/// How pieces go from a GPU to those of other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// NCCL's gathers by copy engines, which take no multiprocessor (NCCL 2.28 and later), between GPUs that
    /// reach one another's memory.
    NcclCopyEngines,
    /// NCCL's gathers by kernels (NCCL 2.19 and later), in front of attention wherever a multiprocessor is
    /// done with a tile.
    NcclKernels,
}

impl Transport {
    /// Copy engines where NCCL has these gathers, else kernels.
    fn of(nccl: &Nccl) -> Self {
        match nccl.check_copy_engines() {
            Ok(()) => Self::NcclCopyEngines,
            Err(_) => Self::NcclKernels,
        }
    }

    /// Refuses a version of NCCL that has not what is needed.
    ///
    /// # Errors
    /// [`Error::NoNccl`], with the version.
    fn check(self, nccl: &Nccl) -> Result<()> {
        match self {
            Self::NcclCopyEngines => nccl.check_copy_engines(),
            Self::NcclKernels => nccl.check_kernels(),
        }
    }
}

/// The ranks that a process has met, until it and all its plans are done with them.
pub(super) struct Joined {
    pub(super) cuda: Cuda,
    pub(super) transport: Transport,
    /// Before the group, which tells the others that this rank is done.
    forth: Arc<Communicator>,
    back: Arc<Communicator>,
    /// For what is small, and nothing runs beside: made when it is first needed.
    small: OnceLock<Arc<Communicator>>,
    is_aborted: AtomicBool,
    pub(super) group: Group,
    patience: Duration,
}

impl Joined {
    /// Meets the other ranks.
    ///
    /// # Errors
    /// As [`Distributed::with_transport`](super::Distributed::with_transport).
    pub(super) fn new(
        world: World,
        cuda: &Cuda,
        patience: Duration,
        transport: Option<Transport>,
    ) -> Result<Self> {
        let nccl = Nccl::get()?;
        let transport = transport.unwrap_or_else(|| Transport::of(nccl));
        transport.check(nccl)?;
        let id = if world.rank == 0 { Communicator::unique_id()?.0 } else { [0; 128] };
        let fingerprint = [
            ("flash-attention", env!("CARGO_PKG_VERSION").to_owned()),
            ("NCCL", version_name(nccl.version())),
            ("transport", format!("{transport:?}")),
        ];
        let (rank, size) = (world.rank, world.size);
        let (group, brought) = Group::meet(world, &fingerprint, &id, patience)?;
        let Ok(id) = brought.try_into() else {
            return Err(Error::Context { reason: "rank 0 brought no id of NCCL".to_owned() });
        };
        let until = Instant::now() + patience;
        let keep_on = || keep_on(&group, until);
        let on_copy_engines = transport == Transport::NcclCopyEngines;
        let ranks = (rank, size);
        let forth = Communicator::new(&cuda.context, UniqueId(id), ranks, on_copy_engines, &keep_on)?;
        let back = forth.reversed(size, on_copy_engines, &keep_on)?;
        let (forth, back, small) = (Arc::new(forth), Arc::new(back), OnceLock::new());
        let is_aborted = AtomicBool::new(false);
        Ok(Self { cuda: cuda.clone(), transport, forth, back, small, is_aborted, group, patience })
    }

    /// How pieces go, in words.
    pub(super) fn reason(&self) -> Result<String> {
        let nccl = Nccl::get()?;
        let by = match self.transport {
            Transport::NcclCopyEngines => "pieces by copy engines".to_owned(),
            Transport::NcclKernels => match nccl.check_copy_engines() {
                Ok(()) => "pieces by kernels".to_owned(),
                Err(_) => "pieces by kernels, since this NCCL has no gathers by copy engines".to_owned(),
            },
        };
        Ok(format!("{by}, {}", nccl.name()))
    }

    /// Gives all communicators up, and lets NCCL end what they have begun in a thread of its own, since that
    /// takes longer than a rank should wait for its error.
    fn abort(&self) {
        let given_up: Vec<_> = self.communicators().cloned().collect();
        given_up.iter().for_each(|communicator| communicator.give_up());
        if !self.is_aborted.swap(true, Ordering::Relaxed) {
            std::thread::spawn(move || given_up.iter().for_each(|communicator| communicator.abort()));
        }
    }

    fn communicators(&self) -> impl Iterator<Item = &Arc<Communicator>> {
        [&self.forth, &self.back].into_iter().chain(self.small.get())
    }

    /// Refuses to go on once a rank is gone.
    pub(super) fn check(&self) -> Result<()> {
        self.group.check()
    }

    /// Refuses to go on where ranks disagree in what they are about to compute.
    pub(super) fn agree(&self, fingerprint: &Fingerprint) -> Result<()> {
        self.group.agree(fingerprint, self.patience)
    }

    /// Memory that ranks gather in, as long on all of them.
    pub(super) fn memory(&self, bytes: usize) -> Result<Memory> {
        let known_to = [&self.forth, &self.back];
        let known_to = match self.transport {
            Transport::NcclCopyEngines => &known_to[..],
            Transport::NcclKernels => &[],
        };
        self.patiently(|keep_on| Memory::new(&self.cuda.context, bytes, known_to, keep_on))
    }

    /// Memory that ranks gather small pieces in, and who gathers them. All ranks call it together.
    pub(super) fn small_memory(&self, bytes: usize) -> Result<(Memory, Arc<Communicator>)> {
        self.patiently(|keep_on| {
            let small = match self.small.get() {
                Some(small) => small,
                None => {
                    let made = Arc::new(self.forth.with_kernels(keep_on)?);
                    self.small.get_or_init(|| made)
                }
            };
            let known_to = match self.transport {
                Transport::NcclCopyEngines => std::slice::from_ref(&small),
                Transport::NcclKernels => &[],
            };
            Ok((Memory::new(&self.cuda.context, bytes, known_to, keep_on)?, Arc::clone(small)))
        })
    }

    /// Enqueues a stage's gathers, of elements of so many bytes of tensors that begin at these addresses.
    ///
    /// # Errors
    /// When NCCL fails, and when a rank is gone.
    ///
    /// # Safety
    /// As [`Communicator::all_gathers`].
    pub(super) unsafe fn gather(
        &self,
        gathers: &[Gather],
        place: impl Fn(&Gather) -> (u64, usize),
        copies: Stream,
    ) -> Result<()> {
        for (reversed, communicator) in [(false, &self.forth), (true, &self.back)] {
            let pieces: Vec<_> = gathers.iter().filter(|of| of.reversed == reversed).map(&place).collect();
            // Each launch of kernels waits for multiprocessors again: one for all is sooner.
            let at_once = match self.transport {
                Transport::NcclCopyEngines => 1,
                Transport::NcclKernels => pieces.len().max(1),
            };
            for pieces in pieces.chunks(at_once) {
                // SAFETY: the caller's promise.
                self.patiently(|keep_on| unsafe { communicator.all_gathers(pieces, copies, keep_on) })?;
            }
        }
        Ok(())
    }

    /// Waits for NCCL no longer than for a rank.
    pub(super) fn patiently<R>(&self, call: impl FnOnce(KeepOn<'_>) -> Result<R>) -> Result<R> {
        let until = Instant::now() + self.patience;
        call(&|| keep_on(&self.group, until))
    }

    /// Waits for the end of a call's work, for as long as `deadline`.
    ///
    /// # Errors
    /// As [`RankPlan::wait`](super::RankPlan::wait).
    pub(super) fn wait(&self, end: &Event, deadline: Duration) -> Result<()> {
        let until = Instant::now() + deadline;
        while !end.has_come()? {
            let failed = self.communicators().find_map(|one| one.check().err());
            if let Some(error) = failed {
                self.group.give_up(&error.to_string());
            } else if Instant::now() >= until {
                self.group.give_up(&format!("its work did not end within {deadline:.1?}"));
            }
            if let Err(error) = self.group.check() {
                self.abort();
                return Err(error);
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        // To destroy a communicator would wait for a rank that is gone.
        if self.group.check().is_err() {
            self.abort();
        }
    }
}

/// Whether it is worth waiting on.
fn keep_on(group: &Group, until: Instant) -> Result<()> {
    group.check()?;
    if Instant::now() < until {
        return Ok(());
    }
    group.give_up("NCCL did not come to an end in time");
    group.check()
}

/// What streams use until a call's work is over, which it has the end of.
pub(super) trait InUse {
    /// The end of the last call's work.
    fn end(&self) -> &Event;
}

/// Given back once streams are done with it. Where a rank is gone it is kept for ever: a stream may wait for
/// its copies for ever, and so would who frees memory, for all streams.
pub(super) struct UntilDone<T: InUse> {
    of: Arc<Joined>,
    held: ManuallyDrop<T>,
}

impl<T: InUse> UntilDone<T> {
    pub(super) fn new(of: &Arc<Joined>, held: T) -> Self {
        Self { of: Arc::clone(of), held: ManuallyDrop::new(held) }
    }

    /// The other ranks.
    pub(super) fn joined(&self) -> &Joined {
        &self.of
    }

    /// Waits for the last call's work.
    ///
    /// # Errors
    /// As [`RankPlan::wait`](super::RankPlan::wait).
    pub(super) fn wait(&self, deadline: Duration) -> Result<()> {
        self.of.wait(self.held.end(), deadline)
    }
}

impl<T: InUse> Deref for UntilDone<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.held
    }
}

impl<T: InUse> Drop for UntilDone<T> {
    fn drop(&mut self) {
        // Whoever waited has heard of what failed.
        let _ = self.wait(self.of.patience);
        if self.of.check().is_ok() {
            // SAFETY: nobody has dropped it, and nobody uses it behind this.
            unsafe { ManuallyDrop::drop(&mut self.held) };
        }
    }
}
