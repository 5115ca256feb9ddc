//! The block whose kernel is running on this OS thread, and the ways out of the kernel:
//! suspending a thread, failing the launch, panicking.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{self, PanicHookInfo};
use std::ptr;
use std::sync::Once;

use crate::block::Block;
use crate::error::Error;

thread_local! {
    static CURRENT: Cell<*mut Block> = const { Cell::new(ptr::null_mut()) };
    static PANIC: RefCell<Option<Panic>> = const { RefCell::new(None) };
}

/// What the panic hook saw of a kernel's panic.
#[derive(Default)]
pub(crate) struct Panic {
    pub(crate) message: String,
    pub(crate) location: String,
}

/// Makes a block the current one until it is dropped.
pub(crate) struct Entered(());

impl Entered {
    /// # Safety
    /// `block` stays valid, and no reference to it is alive whenever kernel code runs, until the
    /// value is dropped.
    pub(crate) unsafe fn new(block: *mut Block) -> Self {
        CURRENT.set(block);
        Self(())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(ptr::null_mut());
    }
}

/// Whether a kernel is running on this OS thread.
pub fn is_inside() -> bool {
    !CURRENT.get().is_null()
}

/// The block of the running thread. Valid in that thread for as long as its kernel runs.
#[derive(Clone, Copy)]
pub(crate) struct Current(*mut Block);

/// The block of the running thread.
#[inline]
pub(crate) fn current() -> Current {
    let block = CURRENT.get();
    if block.is_null() {
        outside();
    }
    Current(block)
}

#[cold]
fn outside() -> ! {
    panic!("a simulated GPU operation was called outside fa_sim::launch");
}

impl Current {
    /// Runs `f` on the block. `f` neither suspends the thread nor comes here again.
    #[inline]
    pub(crate) fn with<R>(self, f: impl FnOnce(&mut Block) -> R) -> R {
        // SAFETY: `Entered::new`'s contract: the block is valid and the executor holds no
        // reference to it while kernel code runs. All threads of a block run on one OS thread,
        // and `f` does not suspend, so this is the only reference.
        f(unsafe { &mut *self.0 })
    }

    /// Lets the executor run another thread; returns when it resumes this one.
    #[inline]
    pub(crate) fn suspend(self) {
        let yielder = self.with(|block| block.current_yielder());
        // SAFETY: the yielder stands on the stack of the running coroutine, below this frame.
        unsafe { (*yielder).suspend(()) };
    }

    /// Gives way to another thread where the schedule preempts here.
    #[inline]
    pub(crate) fn maybe_preempt(self) {
        if self.with(Block::preempt_current) {
            self.suspend();
        }
    }
}

/// Runs `f` on the block of the running thread, as [`Current::with`].
#[inline]
pub(crate) fn with<R>(f: impl FnOnce(&mut Block) -> R) -> R {
    current().with(f)
}

/// Suspends the running thread for good: the block ends without it.
#[cold]
pub(crate) fn park() -> ! {
    loop {
        current().suspend();
    }
}

/// The payload of an unwind that leaves a failed kernel.
struct Abort;

/// Fails the launch with `error` and unwinds the running thread out of its kernel.
#[cold]
pub(crate) fn fail(error: Box<Error>) -> ! {
    with(|block| block.fail(*error));
    panic::resume_unwind(Box::new(Abort))
}

/// The value of `result`, or the end of the launch.
#[inline]
pub(crate) fn unwrap_or_fail<T>(result: Result<T, Box<Error>>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => fail(error),
    }
}

/// What a payload caught at the root of a thread says, with the place that the hook saw.
pub(crate) fn take_panic(payload: &(dyn Any + Send)) -> Panic {
    PANIC
        .take()
        .unwrap_or_else(|| Panic { message: message_of(payload), location: String::from("an unknown place") })
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| String::from("a payload that is no string"))
}

/// Keeps panics of kernels off stderr: they are reported as errors. Other panics go on to the
/// hook that was there before.
pub(crate) fn install_panic_hook() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if is_inside() {
                PANIC.set(Some(describe(info)));
            } else {
                previous(info);
            }
        }));
    });
}

fn describe(info: &PanicHookInfo<'_>) -> Panic {
    Panic {
        message: message_of(info.payload()),
        location: info
            .location()
            .map(|location| format!("{}:{}", location.file(), location.line()))
            .unwrap_or_default(),
    }
}
