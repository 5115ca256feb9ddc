//! The tuning loop as a user runs it, with no GPU and no toolchain.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn xtask(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(line.split_whitespace()).stdin(Stdio::null()).output().unwrap()
}

fn stdout(line: &str) -> String {
    let output = xtask(line);
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The last cell of the row that begins with these cells.
fn verdict(text: &str, first: &[&str]) -> String {
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let row =
        text.lines().map(cells).find(|cells| cells.get(1..=first.len()).is_some_and(|row| row == first));
    let row = row.unwrap_or_else(|| panic!("no row {first:?} in\n{text}"));
    row[row.len() - 2].clone()
}

fn fails(line: &str, code: i32, message: &str) {
    let output = xtask(line);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{line}: {stderr}");
    assert!(stderr.contains(message), "{line}: {stderr}");
}

#[test]
fn a_dry_run_lists_what_is_feasible_and_why_the_rest_is_not() {
    let text = stdout(
        "bench sweep --kernel forward_sm80 --block-m 64,128 --block-n 32,64,128 --warps 4,8 --dim 64,128,129 \
         --dry-run",
    );
    assert_eq!(verdict(&text, &["forward_sm80", "128x32", "4", "-", "2", "128", "128"]), "feasible");
    assert_eq!(verdict(&text, &["forward_sm80", "128x32", "4", "-", "2", "144", "129"]), "feasible");
    assert_eq!(
        verdict(&text, &["forward_sm80", "64x32", "8", "-", "2", "64", "64"]),
        "rejected: BLOCK_M is 64; a positive multiple of 128 is needed"
    );
    assert_eq!(
        verdict(&text, &["forward_sm80", "128x128", "4", "-", "1", "128", "128"]),
        "rejected: at least 288 registers (256 of them S and O); a thread of 1 x 128 has 255"
    );
    assert_eq!(
        verdict(&text, &["forward_sm80", "128x128", "8", "-", "2", "144", "129"]),
        "rejected: 391168 bytes of shared memory for 2 blocks; a multiprocessor has 233472"
    );
    assert!(text.lines().last().unwrap().contains(" tiles are feasible on sm_90, "), "{text}");
}

#[test]
fn a_dry_run_has_the_axes_that_a_kernel_has() {
    let text = stdout("bench sweep --kernel decode --dry-run");
    assert_eq!(verdict(&text, &["decode", "16x64", "4", "5", "2", "64", "64"]), "feasible");
    let reason = "rejected: 2 stages; at least 3 are needed";
    assert_eq!(verdict(&text, &["decode", "32x64", "4", "2", "2", "128", "128"]), reason);
    let text = stdout("bench sweep --kernel backward_sm80 --dry-run");
    assert_eq!(verdict(&text, &["backward_keys_sm80", "32x128", "4", "-", "2", "64", "64"]), "feasible");
    assert_eq!(verdict(&text, &["backward_queries_sm80", "128x32", "4", "-", "2", "64", "64"]), "feasible");
    let text = stdout("bench sweep --kernel gemm_sm90 --operands row_col --dry-run");
    assert_eq!(verdict(&text, &["gemm_sm90", "128x256", "12", "4", "1", "0", "row_col"]), "feasible");
}

#[test]
fn the_limits_are_those_of_the_architecture() {
    let line = "bench sweep --kernel forward_simt --block-m 64 --block-n 64 --dim 128 --dtype f32 --dry-run";
    assert_eq!(verdict(&stdout(line), &["forward_simt", "64x64", "8", "-", "2", "128", "128"]), "feasible");
    assert_eq!(
        verdict(
            &stdout(&format!("{line} --arch 75")),
            &["forward_simt", "64x64", "8", "-", "2", "128", "128"]
        ),
        "rejected: 84992 bytes of shared memory; a block has 65536"
    );
}

#[test]
fn bad_arguments_are_usage_errors() {
    let sweep = "bench sweep --dry-run --kernel";
    fails(&format!("{sweep} standard"), 2, "invalid value 'standard' for '--kernel <KERNEL>'");
    fails(&format!("{sweep} forward_simt --warps 4"), 2, "--warps: a tile of forward_simt has nothing there");
    fails(&format!("{sweep} decode --causal"), 2, "--causal: decode is swept without it");
    fails(&format!("{sweep} gemm_sm90 --arch 80"), 2, "kernel gemm_sm90 needs sm_90a; --arch is sm_80");
    fails(&format!("{sweep} forward_sm80 --dim 300"), 2, "head_dim is 300; kernels take 1 to 256");
    fails(&format!("{sweep} forward_sm80 --block-m 0"), 2, "--block-m");
    fails(&format!("{sweep} forward_sm80 --arch 75"), 2, "kernel forward_sm80 needs sm_80; --arch is sm_75");
    fails("bench sweep --dry-run", 2, "--kernel");
    fails("bench sweep --built nowhere --kernel forward_simt", 2, "--built");
    fails("bench sweep --built nowhere", 1, "--built nowhere: no index.json");
}

#[test]
fn without_a_gpu_a_sweep_says_so_before_it_builds() {
    if Path::new("/dev/nvidia0").exists() {
        return;
    }
    fails("bench sweep --kernel forward_simt --dim 64", 1, "no CUDA device: ");
}

#[test]
fn the_committed_table_is_what_the_committed_sweeps_give() {
    let text = stdout("bench tune --check");
    assert!(text.contains("crates/host/src/plan/tuned.rs is what "), "{text}");
}

#[test]
fn a_report_needs_documents() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let message = format!("error: {}: no such folder; `fa-bench all` makes one\n", missing.display());
    fails(&format!("report {}", missing.display()), 1, &message);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/bench/tests/golden/document.json");
    std::fs::copy(golden, folder.path().join("flash.json")).unwrap();
    let text = stdout(&format!("report {}", folder.path().display()));
    assert!(text.contains("left out: scaling.json is not there; `fa-bench scaling --json "), "{text}");
    assert!(text.ends_with("report.html from 1 experiments\n"), "{text}");
    let names = ["REPORT.md", "report.html", "plots/flash-latency.svg"];
    assert!(names.iter().all(|name| folder.path().join(name).exists()), "{text}");
}

#[test]
fn a_report_leaves_out_what_it_cannot_read() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("flash.json", "{\"schema\": 2, \"experiment\": \"fl");
    write("memory.json", "{\"schema\": 1}");
    let message = format!(
        "error: {place}: no document of an experiment can be read: {place}/flash.json is not JSON: EOF"
    );
    fails(&format!("report {place}"), 1, &message);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/bench/tests/golden/document.json");
    std::fs::copy(golden, folder.path().join("causal.json")).unwrap();
    let text = stdout(&format!("report {place}"));
    for line in [
        format!("left out: {place}/flash.json is not JSON: EOF while parsing a string at line 1 column "),
        format!("left out: {place}/memory.json has schema 1, and this program reads 2; measure it again"),
    ] {
        assert!(text.contains(&line), "{line}: {text}");
    }
    let markdown = std::fs::read_to_string(folder.path().join("REPORT.md")).unwrap();
    assert!(markdown.contains("memory.json has schema 1"), "{markdown}");
    std::fs::remove_dir_all(folder.path().join("plots")).unwrap();
    write("plots", "a file where the folder of plots should be");
    fails(&format!("report {place}"), 1, &format!("error: {place}/plots: cannot be made: "));
}

#[test]
fn a_release_is_published_by_hand() {
    fails("release", 2, "error: --dry-run is missing: a release is published by hand\n\ngit tag v");
    fails("release", 2, "\ncargo publish -p fa-sim -p fa-kernels -p flash-attention\n");
    fails("release --dry-run --write-api", 2, "cannot be used with");
}

#[test]
fn a_default_build_of_the_library_has_no_simulator() {
    let tree = |features: &[&str]| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["tree", "-p", "flash-attention", "-e", "normal", "--prefix", "none"]).args(features);
        let output = cargo.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let has = |tree: &str, name: &str| tree.lines().any(|line| line.split(' ').next() == Some(name));
    let (default, simulated) = (tree(&[]), tree(&["--features", "sim"]));
    assert!(
        has(&default, "fa-kernels") && has(&default, "rayon") && has(&default, "libloading"),
        "{default}"
    );
    let alone = tree(&["--no-default-features"]);
    assert!(has(&alone, "fa-kernels"), "{alone}");
    for name in ["fa-sim", "corosensei"] {
        assert!(!has(&default, name) && has(&simulated, name), "{name}");
    }
    for name in ["rayon", "matrixmultiply", "libloading", "ruzstd", "serde_json"] {
        assert!(has(&default, name) && !has(&alone, name), "{name}");
    }
}
