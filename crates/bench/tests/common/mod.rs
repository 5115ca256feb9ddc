//! Running the program as a user does.
#![allow(dead_code, reason = "no file of tests needs all of it")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fa-bench"));
    command.args(arguments).stdin(Stdio::null());
    command
}

pub(crate) fn fa_bench(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

pub(crate) fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Stdout of a run that must succeed.
pub(crate) fn stdout(line: &str) -> String {
    let output = fa_bench(&words(line));
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn json(line: &str) -> Value {
    serde_json::from_str(&stdout(line)).unwrap()
}

pub(crate) fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Checks that a run fails with one line on stderr that contains `message`, and prints nothing.
pub(crate) fn fails(line: &str, code: i32, message: &str) {
    let output = fa_bench(&words(line));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{line}: {stderr}");
    assert!(stderr.starts_with("error: ") && stderr.contains(message), "{line}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{line}: {stderr}");
    assert!(output.stdout.is_empty(), "{line}: {}", String::from_utf8_lossy(&output.stdout));
}

pub(crate) fn rows(document: &Value) -> &Vec<Value> {
    document["rows"].as_array().unwrap()
}

/// The row of a case and series.
pub(crate) fn row<'a>(document: &'a Value, case: &str, series: &str) -> &'a Value {
    let found = rows(document).iter().find(|row| row["case"] == case && row["series"] == series);
    found.unwrap_or_else(|| panic!("{case} {series}: {document:#}"))
}

/// The value of a figure of a row or a document.
pub(crate) fn figure(of: &Value, name: &str) -> f64 {
    let figures = of["figures"].as_array().unwrap();
    let found = figures.iter().find(|figure| figure["name"] == name);
    found.unwrap_or_else(|| panic!("{name}: {of:#}"))["value"].as_f64().unwrap()
}
