//! Problems by their text: one alone, and those that may have taken a GPU with them, each in a process of its
//! own.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use flash_attention::BackendKind;

use super::case::Case;
use super::crew::Found;
use super::outcome::{Kind, Stop};
use super::shrink::{Patience, shrink};
use super::worker::{ENDLESS, Worker};
use crate::failure::usage;
use crate::output::Screen;
use crate::session::Session;

/// Starting a process and opening a GPU in it takes about a second.
const PATIENCE: Patience = Patience { attempts: 60, time: Duration::from_secs(90) };

/// Runs one problem and says what came of it; false if it failed.
pub(super) fn one(case: &Case, session: &Session, screen: &Screen) -> Result<bool> {
    session.header(screen)?;
    match Worker::of(session)?.run(case) {
        Ok(()) => screen.line("right")?,
        Err(Stop::Large) => screen.line("planned; too large to be run here")?,
        Err(Stop::Refused(line)) => return Err(usage(line)),
        Err(Stop::Failed(failure)) => {
            screen.line(format!("{FAILED}{}: {failure}", case.operation().name()))?;
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a failure may be another problem's, which left the device unusable for all.
pub(super) fn took_the_device(session: &Session, found: &Found) -> bool {
    session.kind() == BackendKind::Cuda && found.failure.kind == Kind::Fault
}

/// Of problems that were on the device when it failed, those that fail alone, made smaller; all of them if
/// none does.
pub(super) fn culprits(session: &Session, ordinal: usize, suspects: Vec<Found>) -> Result<Vec<Found>> {
    let mut culprits = Vec::new();
    for found in &suspects {
        if !fails_alone(session, ordinal, &found.case)? {
            continue;
        }
        let (case, _) =
            shrink(&found.case, PATIENCE, |case| fails_alone(session, ordinal, case).unwrap_or(false));
        culprits.push(Found { case, ..found.clone() });
    }
    Ok(if culprits.is_empty() { suspects } else { culprits })
}

/// What a failure's line begins with.
const FAILED: &str = "FAIL ";

/// Whether a problem fails in a process of its own, or does not end there.
fn fails_alone(session: &Session, ordinal: usize, case: &Case) -> Result<bool> {
    let program = std::env::current_exe().context("this program's path")?;
    let (ordinal, text) = (ordinal.to_string(), case.text());
    let arguments = ["fuzz", "--backend", session.kind().name(), "--device", &ordinal, "--problem", &text];
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().context("a process for one problem")?;
    let begin = Instant::now();
    while child.try_wait().context("a process for one problem")?.is_none() {
        if begin.elapsed() > ENDLESS {
            child.kill().and_then(|()| child.wait()).context("a process that does not end")?;
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(20));
    }
    // A few lines, which a pipe holds. Without GPU it fails too, and then says something else.
    let mut said = String::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_string(&mut said).context("what a process for one problem says")?;
    }
    Ok(said.lines().any(|line| line.starts_with(FAILED)))
}
