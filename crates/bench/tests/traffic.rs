//! `traffic` beside hardware counters, with scripts in the place of Nsight Compute.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use common::{command, figure, row, stdout, words};
use serde_json::Value;

/// How a script reads the profiler's arguments: its log is $log, its kernels are $kernels, how many $count,
/// and what it is to run "$@".
const ARGUMENTS: &str = r#"#!/bin/sh
while [ -z "$log" ]; do
  case "$1" in
    --log-file) log=$2 ;;
    --kernel-name) kernels=$2 ;;
    --launch-count) count=$2 ;;
  esac
  case "$1" in
    --csv | --force-overwrite) shift ;;
    *) shift 2 ;;
  esac
done
"#;

/// Puts a script `ncu` into a folder.
fn ncu(folder: &Path, script: &str) {
    let path = folder.join("ncu");
    std::fs::write(&path, format!("{ARGUMENTS}{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

const CASE: &str = "B=1 H=2 S=64 D=16";

/// A document of `traffic` on few rows, with that script first on the path.
fn traffic(script: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    ncu(folder.path(), script);
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let line = "traffic --backend sim --seq 64 --dim 16 --batch 1 --heads 2 --ncu ncu --json";
    let output = command(&words(line)).env("PATH", path).env("FOLDER", folder.path()).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The note on counters.
fn note(document: &Value) -> &str {
    document["notes"].as_array().unwrap().last().unwrap().as_str().unwrap()
}

/// Answers as Nsight Compute does, with as many bytes as the launch's number says, once the program has run.
const COUNTS: &str = r#"
"$@" > "$FOLDER/document" || exit 1
{
  echo "==PROF== Connected to process 7 ($1)"
  echo '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
  id=0
  while [ $id -lt "$count" ]; do
    echo "\"$id\",\"7\",\"kernel(int, int)\",\"dram__bytes_read.sum\",\"byte\",\"1,00$id\""
    echo "\"$id\",\"7\",\"kernel(int, int)\",\"dram__bytes_write.sum\",\"byte\",\"50\""
    echo "\"$id\",\"7\",\"kernel(int, int)\",\"lts__t_bytes.sum\",\"byte\",\"3000\""
    id=$((id + 1))
  done
} > "$log"
"#;

#[test]
fn counters_stand_beside_the_simulator_and_the_model() {
    let document = traffic(COUNTS);
    let fused = row(&document, CASE, "forward_sm90");
    let of = |name| figure(fused, name);
    assert_eq!((of("DRAM read"), of("DRAM written"), of("through L2")), (1000.0, 50.0, 3000.0));
    let unfused = row(&document, CASE, "standard");
    assert_eq!(
        (figure(unfused, "DRAM read"), figure(unfused, "through L2")),
        (3003.0, 9000.0),
        "three launches"
    );
    // Both heads: one block of 64 rows reads Q, K and V once each, and O and lse are written once.
    let tensor = f64::from(64 * 16 * 2);
    assert_eq!((of("read"), of("written")), (2.0 * 3.0 * tensor, 2.0 * (tensor + 4.0 * 64.0)));
    assert!(of("model") > 0.0);
    assert!(note(&document).starts_with("DRAM and L2 are the hardware's counters"));
}

#[test]
fn the_profiled_process_launches_the_kernel_on_the_problem() {
    let script = format!("echo \"$kernels $count $*\" >> \"$FOLDER/../asked\"\n{COUNTS}");
    let outer = tempfile::tempdir().unwrap();
    let inner = outer.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    ncu(&inner, &script);
    let line = "traffic --backend sim --seq 64 --dim 16 --batch 1 --heads 2 --seed 3 --json --ncu";
    let program = inner.join("ncu").display().to_string();
    let output = command(&words(line)).arg(program).env("FOLDER", &inner).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let asked = std::fs::read_to_string(outer.path().join("asked")).unwrap();
    let lines: Vec<_> = asked.lines().collect();
    assert_eq!(lines.len(), 4, "{asked}");
    assert!(lines[0].starts_with("regex:^(standard_scores_f16") && lines[0].contains(")$ 3 "), "{asked}");
    for (line, kernel) in lines.iter().zip(["standard", "forward_simt", "forward_sm80", "forward_sm90"]) {
        let words = format!(
            "--batch 1 --heads 2 --seq 64 --dim 16 --dtype f16 --kernel {kernel} --backend sim --seed 3 --causal"
        );
        assert!(line.ends_with(&words), "{line}");
    }
    // The last of those documents: the process ran what it was asked for.
    let document = common::read(&inner.join("document"));
    assert_eq!((&document["rows"][0]["series"], &document["passed"]), (&"forward_sm90".into(), &true.into()));
}

#[test]
fn a_profiler_that_counts_nothing_is_a_note() {
    let cases = [
        (
            "echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission' > \"$log\"; exit 1",
            "the driver lets only administrators read counters (ERR_NVGPUCTRPERM)",
        ),
        (
            "echo '==ERROR== Unknown metric lts__t_bytes.sum' > \"$log\"; exit 1",
            "ncu failed: ==ERROR== Unknown metric lts__t_bytes.sum",
        ),
        ("echo 'error: no CUDA device' >&2; exit 9", "ncu failed: error: no CUDA device"),
        ("exit 3", "ncu failed: exit status: 3"),
        ("echo '==WARNING== No kernels were profiled.' > \"$log\"", "ncu profiled no kernel"),
        ("echo '\"ID\",\"Metric Name\"' > \"$log\"", "ncu gives dram__bytes_read.sum 0 times for 3 launches"),
    ];
    for (script, reason) in cases {
        let document = traffic(script);
        assert_eq!(note(&document), format!("no hardware counters: {reason}"), "{script}");
        let fused = row(&document, CASE, "forward_sm90");
        assert!(figure(fused, "read") > 0.0, "the simulator's bytes are there");
        assert!(!fused["figures"].to_string().contains("DRAM"));
    }
    let text = stdout("traffic --backend sim --seq 64 --dim 16 --batch 1 --heads 1 --ncu /no/such/ncu");
    let reason =
        "note: no hardware counters: /no/such/ncu (Nsight Compute) is not installed, or not on the PATH";
    assert!(text.contains(reason), "{text}");
    let text = stdout("traffic --backend sim --seq 64 --dim 16");
    assert!(!text.contains("hardware counters:"), "without a GPU nobody is asked: {text}");
}
