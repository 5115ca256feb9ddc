//! Panics that are results: kept from stderr, and where they happened.

use std::panic::{self, PanicHookInfo};
use std::sync::{Mutex, PoisonError};

/// Message and place of panics that nobody has asked for yet.
static SEEN: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

type Hook = Box<dyn Fn(&PanicHookInfo<'_>) + Sync + Send + 'static>;

/// While it lives, panics of the whole process are noted and not printed.
pub(super) struct Quiet {
    before: Option<Hook>,
}

impl Quiet {
    pub(super) fn begin() -> Self {
        let before = panic::take_hook();
        panic::set_hook(Box::new(|info| {
            let payload = info.payload();
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
            let place = info.location().map_or(String::new(), ToString::to_string);
            SEEN.lock().unwrap_or_else(PoisonError::into_inner).push((text, place));
        }));
        Self { before: Some(before) }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // Nobody may set a hook while unwinding: that aborts, with nothing said.
        if !std::thread::panicking()
            && let Some(before) = self.before.take()
        {
            panic::set_hook(before);
        }
    }
}

/// A panic's message with the place where one of this message happened.
pub(super) fn described(text: &str) -> String {
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = seen.iter().position(|(message, _)| message == text).map(|index| seen.swap_remove(index).1);
    found.map_or_else(|| format!("panicked: {text}"), |place| format!("panicked at {place}: {text}"))
}
