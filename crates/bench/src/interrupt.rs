//! Ctrl-C: the first ends the experiment between two runs and keeps what was measured, the second ends the
//! program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;
use signal_hook::consts::SIGINT;
use signal_hook::flag;

/// Exit code of a program that Ctrl-C ended: 128 + SIGINT.
pub(crate) const EXIT_CODE: u8 = 130;

/// The user pressed Ctrl-C.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted by Ctrl-C")
    }
}

impl std::error::Error for Interrupted {}

static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From here on Ctrl-C is what [`check`] finds out.
///
/// # Errors
/// When the system lets no handler be set.
pub(crate) fn listen() -> anyhow::Result<()> {
    if REQUESTED.get().is_some() {
        return Ok(());
    }
    let requested = Arc::clone(REQUESTED.get_or_init(Arc::default));
    // In this order: the first signal finds the flag unset.
    flag::register_conditional_shutdown(SIGINT, EXIT_CODE.into(), Arc::clone(&requested))
        .and_then(|_| flag::register(SIGINT, requested))
        .map(drop)
        .context("Ctrl-C")
}

/// An error if Ctrl-C was pressed since [`listen`].
///
/// # Errors
/// [`Interrupted`].
pub(crate) fn check() -> Result<(), Interrupted> {
    match REQUESTED.get() {
        Some(requested) if requested.load(Ordering::Relaxed) => Err(Interrupted),
        _ => Ok(()),
    }
}
