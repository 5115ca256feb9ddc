//! Problems by their text: one alone, and those that may have taken a GPU with them, each in a process of its
//! own.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use flash_attention::BackendKind;

use super::case::Case;
use super::crew::Found;
use super::outcome::{Kind, Stop};
use super::shrink::{Patience, shrink};
use crate::failure::usage;
use crate::output::Screen;
use crate::session::Session;

/// Starting a process and opening a GPU in it takes about a second.
const PATIENCE: Patience = Patience { attempts: 60, time: Duration::from_secs(90) };

/// Runs one problem and says what came of it; false if it failed.
pub(super) fn one(case: &Case, session: &Session, screen: &Screen) -> Result<bool> {
    session.header(screen)?;
    match super::machine(session)?.run(case) {
        Ok(()) => screen.line("right")?,
        Err(Stop::Large) => screen.line("planned; too large to be run here")?,
        Err(Stop::Refused(line)) => return Err(usage(line)),
        Err(Stop::Failed(failure)) => {
            screen.line(format!("FAIL {}: {failure}", case.operation().name()))?;
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

/// Whether a problem fails in a process of its own.
fn fails_alone(session: &Session, ordinal: usize, case: &Case) -> Result<bool> {
    let program = std::env::current_exe().context("this program's path")?;
    let (ordinal, text) = (ordinal.to_string(), case.text());
    let arguments = ["fuzz", "--backend", session.kind().name(), "--device", &ordinal, "--problem", &text];
    let mut command = Command::new(program);
    let status =
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    Ok(status.context("a process for one problem")?.code() == Some(1))
}
