//! `--peer torch`: a process that speaks the protocol, one that has no PyTorch, and the program's own script
//! over a module that stands in for PyTorch.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};

use common::{command, fails, figure, row, rows, words};
use serde_json::Value;

/// A run with the module that stands in for PyTorch on Python's path.
fn with_stand_in(line: &str) -> Value {
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch");
    let output =
        command(&words(&format!("{line} --peer torch --json"))).env("PYTHONPATH", modules).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{line}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A program that runs in place of Python.
#[cfg(unix)]
fn program(folder: &Path, text: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let path = folder.join("python");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn each_backend_has_a_row_with_its_ratio_or_its_refusal() {
    let document = with_stand_in("flash --backend cpu --seq 32,48 --dim 80 --heads 2 --iterations 7");
    let peer = &document["peer"];
    assert_eq!((&peer["name"], &peer["device"]), (&"PyTorch 0.0.test".into(), &"CPU, 3 threads".into()));
    let series: Vec<_> = rows(&document).iter().take(4).map(|row| &row["series"]).collect();
    assert_eq!(series, ["forward_cpu", "standard", "torch FLASH_ATTENTION", "torch MATH"]);
    let refused = row(&document, "S=32", "torch FLASH_ATTENTION");
    let reason = "Flash attention here takes head_dim up to 64.; No available kernel. Aborting execution.";
    assert_eq!((&refused["not_run"], &refused["measurement"]), (&reason.into(), &Value::Null));
    let (ours, theirs) = (row(&document, "S=48", "forward_cpu"), row(&document, "S=48", "torch MATH"));
    let median = |row: &Value| row["measurement"]["median_s"].as_f64().unwrap();
    let ratio = figure(theirs, "its time over forward_cpu's");
    assert!((ratio - median(theirs) / median(ours)).abs() < 1e-9);
    assert_eq!(theirs["measurement"]["times_s"].as_array().unwrap().len(), 7);
    assert_eq!((&document["passed"], &theirs["check"]), (&true.into(), &Value::Null));
}

#[test]
fn one_problem_has_the_peers_kernels_beside_ours() {
    let document = with_stand_in("--seq 40 --dim 33 --heads 2 --causal --backend cpu --iterations 6");
    let series: Vec<_> = rows(&document).iter().map(|row| &row["series"]).collect();
    assert_eq!(series, ["forward_cpu", "standard", "torch FLASH_ATTENTION", "torch MATH"]);
    for row in rows(&document) {
        assert_eq!(row["measurement"]["times_s"].as_array().unwrap().len(), 6, "{row:#}");
    }
    figure(row(&document, "S=40 D=33", "torch MATH"), "its time over forward_cpu's");
    assert_eq!(
        document["command"],
        "fa-bench --seq 40 --dim 33 --heads 2 --causal --backend cpu --iterations 6 --peer torch"
    );
    // What PyTorch has no call for is a row with the reason.
    let document = with_stand_in("--seq 40 --dim 33 --heads 2 --softcap 4 --backend cpu --iterations 2");
    let reason = row(&document, "S=40 D=33", "torch MATH")["not_run"].as_str().unwrap();
    assert!(reason.contains("no such mask, scores or sequences"), "{reason}");
    let document = with_stand_in("--seq 40 --dim 32 --heads 2 --dtype e4m3 --backend cpu --iterations 2");
    let refused = &row(&document, "S=40 D=32", "torch MATH")["not_run"];
    assert_eq!(refused, "Expected query to be of dtype: {Half, BFloat16}");
    let document = with_stand_in("--seq 40 --dim 33 --kernel forward_cpu --backend cpu --iterations 2");
    assert_eq!(rows(&document).len(), 3, "the kernel asked for, and two backends");
}

#[test]
fn gradients_go_to_the_peer_too() {
    let document = with_stand_in("backward --backend cpu --heads 2 --seq 32 --dim 16 --iterations 3");
    let ran = rows(&document).iter().filter(|row| row["measurement"].is_object());
    assert_eq!(ran.count(), 3 * 3 * 3, "three cases, three passes, ours and two backends");
    figure(row(&document, "D=16 full backward", "torch MATH"), "its time over backward_cpu's");
}

#[test]
fn products_grouped_heads_and_copies_go_to_the_peer_too() {
    let document = with_stand_in("matmul --backend cpu --m 8 --n 12 --k 10 --b-layout col --iterations 3");
    figure(row(&document, "8x12x10", "torch matmul"), "its time over gemm_cpu's");
    let document =
        with_stand_in("decode --backend cpu --heads 4 --kv-heads 2 --dim 16 --seq-k 40 --iterations 3");
    let ran = rows(&document).iter().filter(|row| row["measurement"].is_object());
    assert_eq!(ran.count(), 3, "ours, and two backends");
    let document = with_stand_in("layout --backend cpu --iterations 2");
    let case = "B=1 H=16 S=256 D=64 [B, L, H, D]";
    assert!(row(&document, case, "torch MATH with copies")["measurement"].is_object());
    let document = with_stand_in("memory --backend cpu --seq 32 --heads 1 --iterations 2");
    assert!(document["passed"] == true);
}

#[test]
fn a_python_without_pytorch_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    // A module of that name that lacks what is needed.
    std::fs::write(folder.path().join("torch.py"), "raise ImportError('no torch here')").unwrap();
    let output = command(&words("flash --backend cpu --seq 32 --peer torch"))
        .env("PYTHONPATH", folder.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), &*stderr),
        (
            Some(1),
            "error: --peer torch=python3: this Python has no usable PyTorch (no torch here); name one that has, as in \
             --peer torch=/path/to/python\n"
        )
    );
    let line = "flash --backend cpu --seq 32 --peer";
    let output = command(&words(&format!("{line} torch=/no/such/python"))).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: --peer torch=/no/such/python: cannot be run: "), "{stderr}");
    fails(&format!("{line} jax"), 2, "torch or torch=PYTHON is possible");
}

#[test]
#[cfg(unix)]
fn a_peer_that_ends_or_babbles_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let greeting = r#"{"name": "a peer", "device": "somewhere"}"#;
    let cases = [
        ("exit 0", "said \"\" in place of what it is"),
        ("echo hello; cat > /dev/null", "said \"hello\" in place of what it is"),
        (&format!("echo '{greeting}'; read line"), "a peer has ended"),
        (
            &format!("echo '{greeting}'; read line; echo nonsense; cat > /dev/null"),
            "a peer answers \"nonsense\"",
        ),
    ];
    for (script, message) in cases {
        let python = program(folder.path(), &format!("#!/bin/sh\n{script}\n"));
        let line = format!("flash --backend cpu --seq 32 --iterations 2 --peer torch={}", python.display());
        let output = command(&words(&line)).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{script}: {stderr}");
        assert!(stderr.contains(message) && stderr.lines().count() == 1, "{script}: {stderr}");
    }
}
