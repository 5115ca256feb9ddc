//! Child processes whose failure is one line.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail};

/// Runs a command to its end with its output caught.
///
/// # Errors
/// When it cannot be started, or fails; the error carries the command's name and its first error line.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    let name = name(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        bail!("{name} failed: {}", complaint(&output));
    }
    Ok(output)
}

/// As [`output`], for a command whose standard output is text.
pub(crate) fn stdout(command: &mut Command) -> Result<String> {
    let name = name(command);
    String::from_utf8(output(command)?.stdout)
        .with_context(|| format!("{name} printed something else than text"))
}

/// The program's file name.
fn name(command: &Command) -> String {
    let program = Path::new(command.get_program());
    program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()
}

/// The line of a failed command's output that says most: the first error, else the last line.
pub(crate) fn complaint(output: &Output) -> String {
    let text = [&output.stderr[..], b"\n", &output.stdout[..]].concat();
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let error = lines.clone().find(|line| {
        let line = line.to_ascii_lowercase();
        line.starts_with("e:") || line.contains("error") || line.contains("fatal")
    });
    error.or_else(|| lines.next_back()).map_or_else(|| output.status.to_string(), str::to_owned)
}
