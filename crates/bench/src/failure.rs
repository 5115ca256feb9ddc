//! How a run ends that did not go well.

use std::io;
use std::process::ExitCode;

use crate::interrupt::{self, Interrupted};

/// The arguments are at fault: exit code 2, as for those that do not parse.
#[derive(Debug)]
pub(crate) struct Usage(String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// An error that names an argument, its value and the limit.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    Usage(message.into()).into()
}

/// Whether the arguments are at fault rather than the machine or a kernel.
pub(crate) fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<Usage>()
        || error.downcast_ref::<flash_attention::Error>().is_some_and(flash_attention::Error::is_usage)
}

/// Says on stderr what went wrong, and which exit code that is: 2 for usage, 1 for the rest.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if error.chain().any(is_broken_pipe) {
        // Whoever read stdout has had enough. 128 + SIGPIPE is what a program has that this signal ends.
        return ExitCode::from(141);
    }
    say(error);
    if error.chain().any(|cause| cause.is::<Interrupted>()) {
        return ExitCode::from(interrupt::EXIT_CODE);
    }
    if error.chain().any(is_lost_peer) {
        leave(1);
    }
    ExitCode::from(if is_usage(error) { 2 } else { 1 })
}

/// Whether another rank is gone, or said nothing.
fn is_lost_peer(cause: &(dyn std::error::Error + 'static)) -> bool {
    matches!(cause.downcast_ref(), Some(flash_attention::Error::Peer { .. }))
}

/// Ends the process as it is: the driver's end would wait for a stream that waits for a rank that is gone.
fn leave(code: i32) -> ! {
    // SAFETY: it takes a number, and does not return.
    unsafe { libc::_exit(code) }
}

/// Says on stderr, in a line, what went wrong.
pub(crate) fn say(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
}

fn is_broken_pipe(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The parser's message without its blank lines and usage text: one line.
pub fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let said = text.lines().map(str::trim).filter(|line| !line.is_empty());
    said.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .collect::<Vec<_>>()
        .join(" ")
}
