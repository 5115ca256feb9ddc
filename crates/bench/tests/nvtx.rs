//! NVTX: a library that listens, as a profiler brings one.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{command, words};

/// Compiles the listener of `tests/nvtx/`.
fn listener(folder: &Path) -> PathBuf {
    let library = folder.join("listener.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvtx/listener.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.args(["--edition", "2024", "--crate-type", "cdylib", "-C", "panic=abort", "-o"]);
    let output = command.arg(&library).arg(&source).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

/// What the listener heard of a run, a line for each beginning and end.
fn heard(line: &str, listens: bool) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut command = command(&words(line));
    command.env("NVTX_INJECTION64_PATH", listener(folder.path())).env("LISTENER_LOG", &log);
    if !listens {
        command.env("LISTENER_REFUSES", "1");
    }
    let output = command.current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    std::fs::read_to_string(log).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn runs_are_ranges_named_after_their_entries() {
    let lines = heard("flash --backend sim --seq 40 --dim 32", true);
    let (begins, ends): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.starts_with("push "));
    assert_eq!(begins.len(), 2, "{lines:?}");
    assert!(begins[0].starts_with("push forward_sm90_f16_m"), "{lines:?}");
    assert_eq!(begins[1].matches(" + ").count(), 2, "unfused attention has three entries: {lines:?}");
    assert!(ends.len() == begins.len() && ends.iter().all(|line| *line == "pop"), "{lines:?}");
    assert_eq!(lines[1], "pop", "a range ends before the next one begins");
    let lines = heard("profile --backend cpu --seq 40 --dim 20 --iterations 1 --warmup 0", true);
    assert_eq!(
        lines.iter().filter(|line| *line == "push forward_cpu").count(),
        6,
        "1 timed run and 5 traced"
    );
}

#[test]
fn a_listener_that_refuses_or_is_not_there_is_no_error() {
    let line = "--seq 20 --dim 4 --backend cpu --iterations 1";
    assert!(heard(line, false).is_empty());
    let output = command(&words(line)).env("NVTX_INJECTION64_PATH", "/no/such/library.so").output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
