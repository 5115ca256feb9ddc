//! Ends a process whose GPU waits for a rank that is gone, where nothing else can.
//!
//! A stream may wait for such a rank's copies for ever, and with it whoever waits for the stream: `item()` of
//! a tensor, say, which never hears of the rank.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use flash_attention::backward::BackwardProblem;
use flash_attention::cuda::Stream;
use flash_attention::distributed::{Distributed, RankPlan, ShardAddresses};
use flash_attention::{Error, Result};

/// How often ranks are looked after.
const TICK: Duration = Duration::from_millis(100);

/// How long the end of a process may take where its GPU waits for a rank that is gone.
const LEAVING: Duration = Duration::from_secs(3);

unsafe extern "C" {
    /// Ends the process without its `atexit` functions, of which the driver's waits for streams.
    safe fn _exit(code: c_int) -> !;
}

/// A plan of either pass.
pub(crate) enum Work {
    Forward(RankPlan),
    Backward(RankPlan<BackwardProblem>),
}

impl Work {
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Self::Forward(plan) => plan.memory_bytes(),
            Self::Backward(plan) => plan.memory_bytes(),
        }
    }

    pub(crate) fn reasons(&self) -> &[String] {
        match self {
            Self::Forward(plan) => plan.reasons(),
            Self::Backward(plan) => plan.reasons(),
        }
    }

    /// # Errors
    /// As [`RankPlan::wait`].
    pub(crate) fn wait(&self, deadline: Duration) -> Result<()> {
        match self {
            Self::Forward(plan) => plan.wait(deadline),
            Self::Backward(plan) => plan.wait(deadline),
        }
    }

    /// # Errors
    /// As [`RankPlan::forward`] and [`RankPlan::backward`].
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn run(&self, addresses: &ShardAddresses, stream: Stream) -> Result<()> {
        // SAFETY: the caller's promise, which both passes ask for in the same words.
        unsafe {
            match self {
                Self::Forward(plan) => plan.forward(addresses, stream),
                Self::Backward(plan) => plan.backward(addresses, stream),
            }
        }
    }
}

/// Ranks that have met, and what Python knows of them.
pub(crate) struct Joined {
    group: Distributed,
    /// What was called last; streams do all else before.
    last: Mutex<Weak<Work>>,
    /// Whether a call has raised that a rank is gone.
    is_told: AtomicBool,
}

impl Joined {
    pub(crate) fn new(group: Distributed) -> Self {
        Self { group, last: Mutex::default(), is_told: AtomicBool::new(false) }
    }

    pub(crate) const fn group(&self) -> &Distributed {
        &self.group
    }

    /// Keeps in mind that Python hears of a rank that is gone.
    pub(crate) fn told(&self, error: Error) -> Error {
        if matches!(error, Error::Peer { .. }) {
            self.is_told.store(true, Ordering::Relaxed);
        }
        error
    }

    pub(crate) fn begins(&self, work: &Arc<Work>) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(work);
    }

    /// The process is about to end: where its GPU waits for a rank that is gone, it has three seconds for it.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub(crate) fn leave(&self) -> io::Result<()> {
        if let Some(error) = self.waits_for() {
            // The driver may be half gone by then: nothing is asked of it any more.
            spawn(move || {
                thread::sleep(LEAVING);
                end(&error)
            })?;
        }
        Ok(())
    }

    /// The rank that is gone and that this GPU's work waits for, if there is one.
    fn waits_for(&self) -> Option<Error> {
        self.group.check().err()?;
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).upgrade()?;
        // The ranks have given up already, so that this changes nothing for them.
        last.wait(Duration::ZERO).err().filter(|error| matches!(error, Error::Peer { .. }))
    }
}

/// Looks after ranks until they part. The process ends this long after its GPU has begun to wait for a rank
/// that is gone, if no call has raised it.
///
/// # Errors
/// When there is no thread to be had.
pub(crate) fn watch(joined: &Arc<Joined>, exit_after: Duration) -> io::Result<()> {
    let joined = Arc::downgrade(joined);
    spawn(move || {
        let mut since = None;
        loop {
            thread::sleep(TICK);
            let Some(joined) = joined.upgrade() else { return };
            let Some(error) = joined.waits_for().filter(|_| !joined.is_told.load(Ordering::Relaxed)) else {
                since = None;
                continue;
            };
            if since.get_or_insert_with(Instant::now).elapsed() >= exit_after {
                end(&error);
            }
        }
    })
}

fn end(error: &Error) -> ! {
    eprintln!("flash_attention_rs: {error}; the GPU waits for it, and the process ends");
    _exit(1)
}

fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("flash-attention".to_owned()).spawn(run)?;
    Ok(())
}
