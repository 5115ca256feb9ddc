//! The documents of experiments: their one schema, what ends early, and `all`.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use common::{command, fa_bench, fails, json, read, stdout, words};
use serde_json::Value;

/// The names of all fields, with where they stand; elements of a list share their place.
fn fields(value: &Value, place: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| {
            found.insert(format!("{place}.{name}"));
            fields(value, &format!("{place}.{name}"), found);
        }),
        Value::Array(list) => list.iter().for_each(|value| fields(value, place, found)),
        _ => {}
    }
}

/// A field that goes away or changes its name raises the schema, and this file with it.
#[test]
fn documents_have_the_fields_of_the_golden_one() {
    let golden = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/document.json"));
    let mut expected = BTreeSet::new();
    fields(&golden, "", &mut expected);
    let mut found = BTreeSet::new();
    for line in ["scaling --backend sim --seq 32,64 --long-seq 96 --dim 16", "matmul --backend sim --size 32"]
    {
        let document = json(&format!("{line} --json"));
        assert_eq!(document["schema"], golden["schema"]);
        fields(&document, "", &mut found);
    }
    // What only a peer's run has.
    let peer: Vec<_> = expected.iter().filter(|name| name.starts_with(".peer.")).cloned().collect();
    assert_eq!(peer, [".peer.device", ".peer.name", ".peer.program"]);
    found.extend(peer);
    assert_eq!(found, expected);
}

#[test]
fn all_writes_a_document_for_each_experiment() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("results/here");
    let text = stdout(&format!(
        "all --backend cpu --budget 0.05 --only doctor,causal --results {}",
        results.display()
    ));
    assert!(text.starts_with("all: 2 experiments on "), "{text}");
    let document = read(&results.join("causal.json"));
    assert_eq!(document["command"], "fa-bench causal --backend cpu --budget 0.05 --seed 0");
    assert_eq!(
        (&document["passed"], read(&results.join("doctor.json"))["passed"].clone()),
        (&true.into(), true.into())
    );
}

#[test]
fn a_results_folder_that_cannot_be_written_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let place = file.join("results");
    fails(&format!("all --results {}", place.display()), 1, &format!("{}: cannot be made", place.display()));
    let path = place.join("flash.json");
    fails(
        &format!("flash --json {}", path.display()),
        1,
        &format!("--json {}: cannot be written", path.display()),
    );
    fails("all --only flesh", 2, "'flesh' for '--only <NAME,…>'");
    fails("flesh", 2, "'flash'");
}

#[test]
#[cfg(unix)]
fn ctrl_c_keeps_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flash.json");
    // The second problem runs until it is stopped.
    let line = format!(
        "flash --backend cpu --seq 32,256 --heads 1 --dim 16 --iterations 1000000000 --budget 1 --json {}",
        path.display()
    );
    let line = line.replace("--budget 1", "--budget 3");
    let mut child = command(&words(&line))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Rows of the first problem are there as soon as it is measured.
    while !std::fs::read_to_string(&path).is_ok_and(|text| text.contains("S=32")) {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let before = read(&path);
    assert!(before["stopped"].as_str().unwrap().contains("still running"));
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("4 rows are kept") && stderr.lines().count() == 1, "{stderr}");
    let document = read(&path);
    let rows = document["rows"].as_array().unwrap();
    // Of the second problem, what was timed until then, or that nothing was.
    assert_eq!((rows.len(), &rows[2]["case"]), (4, &"S=256".into()));
    for row in &rows[2..] {
        let runs = row["measurement"]["times_s"].as_array().map_or(0, Vec::len);
        assert!(runs > 0 || row["not_run"] == "interrupted by Ctrl-C", "{row:#}");
    }
    assert!(document["stopped"].as_str().unwrap().contains("interrupted by Ctrl-C"));
}

#[test]
#[cfg(unix)]
fn ctrl_c_shows_what_one_problem_took_so_far() {
    use std::io::{BufRead as _, BufReader, Read as _};
    let line = "--seq 64 --dim 16 --heads 1 --backend cpu --kernel forward_cpu --warmup 0 --iterations 1000000000 \
                --budget 1000";
    let mut child = command(&words(line)).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("plan: ") {
        assert!(said.read_line(&mut text).unwrap() > 0, "it ended by itself: {text}");
    }
    // Runs of microseconds: by then there are some.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    said.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");
    assert!(text.contains("| S=64 D=16 | forward_cpu |"), "{text}");
}

#[test]
fn an_experiment_that_fails_keeps_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flash.json");
    let line = format!("flash --backend sim --seq 32,16384 --dim 16 --json {}", path.display());
    let output = fa_bench(&words(&line));
    assert_eq!(output.status.code(), Some(2));
    let document = read(&path);
    assert_eq!(document["rows"].as_array().unwrap().len(), 2);
    assert!(document["stopped"].as_str().unwrap().contains("the simulator would need"));
}
