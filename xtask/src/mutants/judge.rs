//! What looks for defects: programs of tests, and `fa-bench verify` in the simulator.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::tree::{Built, TestProgram};

/// Which command a judge is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Stage {
    /// `cargo xtask test`.
    Quick,
    /// `cargo xtask ci`.
    Ci,
}

impl Stage {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Quick => "test",
            Self::Ci => "ci",
        }
    }
}

/// A command that should fail where there is a defect.
#[derive(Clone, Debug)]
pub(super) struct Judge {
    pub(super) stage: Stage,
    /// As in `flash-attention hopper`, or `verify --families --entry pack`.
    pub(super) name: String,
    program: PathBuf,
    arguments: Vec<String>,
    folder: PathBuf,
}

/// How a judge found a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    Passed,
    /// What failed first, and why.
    Failed {
        what: String,
        why: String,
    },
    /// It had not ended after so many seconds.
    TimedOut(u64),
}

/// Marks of lines that say that something failed: of libtest and of `verify`.
const TEST_FAILED: &str = " ... FAILED";
const ENTRY_FAILED: &str = "FAIL ";

/// Random problems of an operation.
const RANDOM_PROBLEMS: &str = "200";

/// The least time that a judge gets.
const LEAST_LIMIT: Duration = Duration::from_secs(90);

impl Judge {
    pub(super) fn of_tests(test: &TestProgram) -> Self {
        Self {
            stage: Stage::Quick,
            name: test.name.clone(),
            program: test.program.clone(),
            arguments: Vec::new(),
            folder: test.folder.clone(),
        }
    }

    /// The part of a stage's `verify` that is about entries with this text in their name.
    pub(super) fn of_entries(built: &Built, stage: Stage, entries: &str) -> Self {
        let of_stage: &[&str] = match stage {
            Stage::Quick => &["--families", "--schedules", "2"],
            Stage::Ci => &[],
        };
        Self::of_bench(built, stage, &[&["verify"], of_stage, &["--entry", entries]].concat())
    }

    /// Random problems of one operation, of which `cargo xtask ci` draws others among all operations.
    pub(super) fn of_operation(built: &Built, operation: &str) -> Self {
        Self::of_bench(built, Stage::Ci, &["fuzz", "--runs", RANDOM_PROBLEMS, "--operation", operation])
    }

    /// `fa-bench` on the simulator.
    fn of_bench(built: &Built, stage: Stage, arguments: &[&str]) -> Self {
        Self {
            stage,
            name: arguments.join(" "),
            program: built.bench.clone(),
            arguments: arguments.iter().chain(&["--backend", "sim"]).map(|&text| text.to_owned()).collect(),
            folder: PathBuf::from("."),
        }
    }

    /// Whether it runs tests.
    fn is_tests(&self) -> bool {
        self.arguments.is_empty()
    }

    fn command(&self, defect: usize) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(&self.folder).env("FA_MUTANT", defect.to_string());
        // The same cases for each defect, and none made smaller: that one fails is enough.
        command.envs([("PROPTEST_RNG_SEED", "1"), ("PROPTEST_MAX_SHRINK_ITERS", "0")]);
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }

    /// Runs with the defect of this number, 0 for none, until something fails or what should take `usual`
    /// takes five times as long.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub(super) fn run(&self, defect: usize, usual: Duration) -> Result<Finding> {
        let limit = (5 * usual).max(LEAST_LIMIT);
        let mut running = Running::start(self.command(defect), &self.name)?;
        let mark = if self.is_tests() { TEST_FAILED } else { ENTRY_FAILED };
        loop {
            match running.line(limit) {
                Line::Text(line) if line.contains(mark) => {
                    let said = line.trim().trim_start_matches("test ").trim_start_matches(ENTRY_FAILED);
                    // The path of a test has colons of its own.
                    let ends: &[char] = if self.is_tests() { &[' ', ','] } else { &[' ', ',', ':'] };
                    let what = said.split(ends).next().unwrap_or_default().to_owned();
                    // `fuzz` says why in the same line, `verify` in the next one.
                    let why = match said[what.len()..].strip_prefix(": ") {
                        Some(why) => why.to_owned(),
                        None => match running.line(running.start.elapsed() + Duration::from_secs(2)) {
                            Line::Text(next) => next.trim().to_owned(),
                            Line::Ended | Line::TimedOut => String::new(),
                        },
                    };
                    drop(running);
                    let why = if self.is_tests() { self.reason(defect, &what, limit)? } else { why };
                    return Ok(Finding::Failed { what, why });
                }
                Line::Text(_) => {}
                Line::TimedOut => return Ok(Finding::TimedOut(limit.as_secs())),
                Line::Ended => {
                    let status = running.child.wait()?;
                    let what = status.to_string();
                    return Ok(match status.success() {
                        true => Finding::Passed,
                        false => Finding::Failed { what, why: String::new() },
                    });
                }
            }
        }
    }

    /// What a test says when it fails by itself; nothing where it does not within `limit`.
    fn reason(&self, defect: usize, test: &str, limit: Duration) -> Result<String> {
        let mut command = self.command(defect);
        command.args(["--exact", test, "--test-threads", "1"]);
        let running = Running::start(command, test)?;
        let mut is_next = false;
        while let Line::Text(line) = running.line(limit) {
            if is_next {
                return Ok(line.trim().to_owned());
            }
            is_next = line.contains("panicked at ");
        }
        Ok(String::new())
    }
}

/// A program whose lines are read as they come; ended when this is dropped.
struct Running {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
    start: Instant,
}

enum Line {
    Text(String),
    TimedOut,
    Ended,
}

impl Running {
    fn start(mut command: Command, name: &str) -> Result<Self> {
        let mut child = command.spawn().with_context(|| format!("cannot run {name}"))?;
        let output = child.stdout.take().context("a pipe was asked for")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Self { child, lines, start: Instant::now() })
    }

    /// The next line, if it comes within `limit` from the start on.
    fn line(&self, limit: Duration) -> Line {
        match self.lines.recv_timeout(limit.saturating_sub(self.start.elapsed())) {
            Ok(line) => Line::Text(line),
            Err(RecvTimeoutError::Timeout) => Line::TimedOut,
            Err(RecvTimeoutError::Disconnected) => Line::Ended,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(script: &str, arguments: &[&str]) -> Judge {
        let arguments = ["-c", script, "sh"].iter().chain(arguments).map(|text| (*text).to_owned()).collect();
        let program = PathBuf::from("sh");
        Judge { stage: Stage::Quick, name: "sh".to_owned(), program, arguments, folder: PathBuf::from(".") }
    }

    #[test]
    fn a_program_that_fails_is_ended_and_its_line_is_read() {
        let usual = Duration::from_secs(1);
        assert_eq!(judge("echo 'pass one'", &[]).run(0, usual).unwrap(), Finding::Passed);
        let failed = judge("echo 'FAIL two   head_dim 1'; echo '     schedule 3: a race'; sleep 60", &[]);
        let finding = Finding::Failed { what: "two".to_owned(), why: "schedule 3: a race".to_owned() };
        assert_eq!(failed.run(0, usual).unwrap(), finding);
        let failed = judge("sleep 3; echo 'FAIL gemm: 1.5 in place of 1; replay: x'; sleep 60", &["x"]);
        let finding =
            Finding::Failed { what: "gemm".to_owned(), why: "1.5 in place of 1; replay: x".to_owned() };
        assert_eq!(failed.run(0, usual).unwrap(), finding);
        let chosen = judge("test \"$FA_MUTANT\" = 0", &[]);
        assert_eq!(chosen.run(0, usual).unwrap(), Finding::Passed);
        assert!(
            matches!(chosen.run(7, usual).unwrap(), Finding::Failed { what, .. } if what == "exit status: 1")
        );
    }
}
