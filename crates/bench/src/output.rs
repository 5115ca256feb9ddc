//! What goes to the terminal: lines on stdout, progress on stderr.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::args::ReportArgs;
use crate::json::Destination;

/// Stdout for people. Silent where the JSON document goes there; a closed pipe is an error, not a panic.
pub(crate) struct Screen {
    enabled: bool,
}

impl Screen {
    /// All of stdout.
    pub(crate) const fn stdout() -> Self {
        Self { enabled: true }
    }

    pub(crate) fn line(&self, text: impl Display) -> io::Result<()> {
        if !self.enabled {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{text}")?;
        stdout.flush()
    }

    /// A bar of `length` steps on stderr if somebody looks at it, cleared once it is dropped.
    pub(crate) fn progress(&self, length: usize, what: impl Into<String>) -> Progress {
        let visible = self.enabled && io::stderr().is_terminal();
        let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(length as u64), target).with_message(what.into());
        // The template is a constant: if it did not parse, the default bar would stand in for it.
        if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} {elapsed}") {
            bar.set_style(style);
        }
        Progress(bar)
    }
}

/// A progress bar.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn step(&self) {
        self.advance(1);
    }

    pub(crate) fn advance(&self, steps: usize) {
        self.0.inc(steps as u64);
    }

    /// Does something with the bar out of the way, such as printing a line.
    pub(crate) fn suspend<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.suspend(work)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

impl ReportArgs {
    /// Makes sure that the JSON document can be written, and gives the terminal to what remains.
    pub(crate) fn open(&self) -> anyhow::Result<Screen> {
        self.json.as_ref().map_or(Ok(()), Destination::check)?;
        Ok(Screen { enabled: self.json != Some(Destination::Stdout) })
    }

    /// Writes the JSON document where it was asked for.
    pub(crate) fn write(&self, document: &impl Serialize, screen: &Screen) -> anyhow::Result<()> {
        let Some(destination) = &self.json else { return Ok(()) };
        destination.write(document)?;
        if let Destination::File(path) = destination {
            screen.line(format!("JSON written to {}", path.display()))?;
        }
        Ok(())
    }
}
