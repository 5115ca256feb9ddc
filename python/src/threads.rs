//! The threads of calls on the CPU.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// A pool, and the process that has its threads.
struct Threads {
    process: u32,
    pool: ThreadPool,
}

/// Runs a call on this process's threads, which wait where it does.
pub(crate) fn run<R: Send>(call: impl FnOnce() -> PyResult<R> + Send) -> PyResult<R> {
    pool()?.install(call)
}

/// The pool of this process: a fork has the memory of its parent's, but none of the threads.
fn pool() -> PyResult<&'static ThreadPool> {
    // No lock: a fork may have been made while another thread held it.
    static CURRENT: AtomicPtr<Threads> = AtomicPtr::new(ptr::null_mut());
    let process = std::process::id();
    let found = CURRENT.load(Ordering::Acquire);
    // SAFETY: what is stored was leaked below, so that it lives for ever, and is never written again.
    if let Some(threads) = unsafe { found.as_ref() }.filter(|threads| threads.process == process) {
        return Ok(&threads.pool);
    }
    let pool = ThreadPoolBuilder::new()
        .build()
        .map_err(|error| PyRuntimeError::new_err(format!("no threads for calls on the CPU: {error}")))?;
    let made = Box::into_raw(Box::new(Threads { process, pool }));
    let chosen = match CURRENT.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        Err(first) => {
            // SAFETY: nothing else knows of what was made here.
            drop(unsafe { Box::from_raw(made) });
            first
        }
    };
    // SAFETY: as above; another thread that was first is of this process.
    Ok(unsafe { &(*chosen).pool })
}
