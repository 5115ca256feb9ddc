//! `--peer torch`: a process that speaks the protocol, one that has no PyTorch, and the program's own script
//! over a module that stands in for PyTorch.
#![allow(clippy::unwrap_used)]

mod common;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::{command, fails, figure, row, rows, words};
use serde_json::Value;

/// Folders of Python modules of the tests, as Python takes them.
fn modules(names: &[&str]) -> OsString {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    std::env::join_paths(names.iter().map(|name| tests.join(name))).unwrap()
}

fn run_with(line: &str, folders: &[&str]) -> Value {
    let mut run = command(&words(&format!("{line} --peer torch --json")));
    let output = run.env("PYTHONPATH", modules(folders)).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{line}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A run with the module that stands in for PyTorch on Python's path.
fn with_stand_in(line: &str) -> Value {
    run_with(line, &["torch"])
}

/// The same with the one that stands in for FlashAttention-4 too.
fn with_flash_4(line: &str) -> Value {
    run_with(line, &["torch", "flash_attn_4"])
}

/// The different series of a document in the order of their first rows, each with its number of measurements.
fn series(document: &Value) -> Vec<(&str, usize)> {
    let mut series: Vec<(&str, usize)> = Vec::new();
    for row in rows(document) {
        let name = row["series"].as_str().unwrap();
        let measured = usize::from(row["measurement"].is_object());
        match series.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += measured,
            None => series.push((name, measured)),
        }
    }
    series
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
    // As many threads as ours.
    let device = format!("CPU, {} threads", document["device"]["multiprocessors"]);
    assert_eq!((&peer["name"], &peer["device"]), (&"PyTorch 0.0.test".into(), &device.into()));
    let series: Vec<_> = rows(&document).iter().take(5).map(|row| &row["series"]).collect();
    assert_eq!(series, ["forward_cpu", "standard", "torch FLASH_ATTENTION", "torch MATH", "torch default"]);
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
    assert_eq!(series, ["forward_cpu", "standard", "torch FLASH_ATTENTION", "torch MATH", "torch default"]);
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
    assert_eq!(rows(&document).len(), 4, "the kernel asked for, two backends, and the default");
}

#[test]
fn gradients_go_to_the_peer_too() {
    let line = "backward --backend cpu --heads 2 --seq 32 --dim 16 --iterations 3";
    let document = with_stand_in(line);
    let ran = rows(&document).iter().filter(|row| row["measurement"].is_object());
    assert_eq!(ran.count(), 3 * 3 * 4, "three cases, three passes, ours, two backends and the default");
    figure(row(&document, "D=16 full backward", "torch MATH"), "its time over backward_cpu's");
    let lacking = rows(&document).iter().filter(|row| row["series"] == "torch FlashAttention-4");
    let reasons: Vec<_> = lacking.map(|row| row["not_run"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["this Python cannot import flash_attn.cute: No module named 'flash_attn'"]);
    let document = with_flash_4(line);
    let names = series(&document);
    // Without dropout; order matters to gradients alone.
    assert!(names.contains(&("torch FlashAttention-4", 2 * 3)), "{names:?}");
    assert!(names.contains(&("torch FlashAttention-4 deterministic", 2 * 2)), "{names:?}");
    let dropped = row(&document, "D=16 dropout backward", "torch FlashAttention-4");
    assert_eq!(dropped["not_run"], "FlashAttention-4 drops no weights");
}

#[test]
fn the_published_grids_have_their_rivals_and_a_headline() {
    let line = "forward --grid published --backend cpu --iterations 2 --warmup 0";
    let document = with_flash_4(line);
    let cases = 3 * 2 * 3;
    assert_eq!(
        series(&document),
        [
            ("forward_cpu", cases),
            ("torch CUDNN_ATTENTION", 0),
            ("torch FLASH_ATTENTION", cases / 3),
            ("torch default", cases),
            ("torch FlashAttention-4", cases * 2 / 3),
        ]
    );
    let lacking: Vec<_> =
        rows(&document).iter().filter(|row| row["series"] == "torch CUDNN_ATTENTION").collect();
    assert_eq!((lacking.len(), &lacking[0]["not_run"]), (1, &"this PyTorch has no CUDNN_ATTENTION".into()));
    let ratios: Vec<f64> = rows(&document)
        .iter()
        .filter(|row| row["series"] == "torch default" && row["problem"]["head_dim"] == 128)
        .map(|row| figure(row, "its time over forward_cpu's"))
        .collect();
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let name = "D=128: speed over torch default's";
    assert!((figure(&document, &format!("{name}, geometric mean")) / mean - 1.0).abs() < 1e-9);
    assert!((figure(&document, &format!("{name}, least")) / least - 1.0).abs() < 1e-9);
    let mut run = command(&words(&format!("{line} --peer torch")));
    let output = run.env("PYTHONPATH", modules(&["torch", "flash_attn_4"])).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let table = text.split("mean (least) over the cases of each head_dim").nth(1).unwrap();
    for word in
        ["D=64 ", "D=128 ", "D=256 ", "times torch default's speed", "times torch FlashAttention-4's speed"]
    {
        assert!(table.contains(word), "{word}: {text}");
    }
    assert!(!text.contains("geometric mean: "), "figures of the table stand there alone: {text}");
}

#[test]
fn the_other_grids_are_compared_too() {
    let document = with_flash_4("backward --grid published --backend cpu --iterations 2 --warmup 0");
    let cases = 3 * 2 * 3;
    let names = series(&document);
    assert_eq!(names[0], ("backward_cpu", cases));
    assert_eq!(names.last(), Some(&("torch FlashAttention-4 deterministic", cases * 2 / 3)));
    figure(row(&document, "D=128 S=256 causal backward", "torch default"), "its time over backward_cpu's");
    figure(&document, "D=64: speed over torch FlashAttention-4 deterministic's, least");
    let document = with_stand_in("cpu --seq 32,40 --dim 16,24 --iterations 3");
    assert_eq!(series(&document), [("forward_cpu", 8), ("torch default", 8), ("torch FLASH_ATTENTION", 8)]);
    assert_eq!(rows(&document)[0]["problem"]["dtype"], "f32");
    let document = with_flash_4("decode --grid published --backend cpu --iterations 2");
    let names = series(&document);
    assert!(names.contains(&("torch FLASH_ATTENTION with heads as rows", 0)), "{names:?}");
    let packed =
        row(&document, "decode B=1 H=8 Hkv=2 Sq=1 Sk=1024 D=128", "torch FLASH_ATTENTION with heads as rows");
    assert!(packed["not_run"].as_str().unwrap().contains("takes head_dim up to 64"));
    let line = "decode --backend cpu --heads 4 --kv-heads 2 --dim 16 --seq-k 40 --iterations 3";
    let names = with_flash_4(line);
    assert!(series(&names).contains(&("torch FLASH_ATTENTION with heads as rows", 1)));
}

/// Answers of the program's own script on a device in memory, and the letters of what it did there.
fn on_a_device(requests: &[&str]) -> (Vec<Value>, String) {
    use std::io::Write as _;
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    // By its text, as the program runs it: beside its file, `import torch` would find itself.
    let script = include_str!("../src/peer/torch.py");
    let mut child = std::process::Command::new("python3")
        .args(["-c", script, "cuda:0", "1"])
        .env("PYTHONPATH", modules(&["torch", "flash_attn_4"]))
        .env("TRACE", &trace)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    requests.iter().for_each(|request| writeln!(input, "{request}").unwrap());
    drop(input);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let answers = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (answers, std::fs::read_to_string(trace).unwrap())
}

/// A request for attention of B=1 H=2 S=8 D=16.
fn attention(number: usize, implementation: &str, gradients: &str) -> String {
    format!(
        "{{\"op\": \"attention\", \"number\": {number}, \"batch\": 1, \"heads\": 2, \"kv_heads\": 2, \"seq\": 8, \
         \"kv_seq\": 8, \"head_dim\": 16, \"dtype\": \"f16\", \"layout\": \"bhsd\", \"causal\": true, \
         \"softmax_scale\": 0.25, \"dropout\": 0.0, \"implementation\": \"{implementation}\", \
         \"form\": \"strided\", \"gradients\": \"{gradients}\"}}"
    )
}

#[test]
fn on_a_gpu_runs_rest_or_follow_each_other_as_ours_do() {
    let time = |evictions, waits| {
        format!(
            "{{\"op\": \"time\", \"number\": 1, \"runs\": 3, \"evictions\": {evictions}, \"waits\": {waits}}}"
        )
    };
    let replay = |number| format!("{{\"op\": \"replay\", \"number\": {number}, \"runs\": 100}}");
    for implementation in ["default", "FLASH_ATTENTION", "FlashAttention-4"] {
        let requests = [
            attention(1, implementation, "none"),
            time(16, true),
            time(1, false),
            "{\"op\": \"probe\", \"number\": 1, \"evictions\": 4}".to_owned(),
            replay(1),
            replay(1),
            attention(2, implementation, "alone"),
            replay(2),
        ];
        let (answers, trace) = on_a_device(&requests.each_ref().map(String::as_str));
        assert_eq!(answers[0]["device"], "a device in memory");
        // A call takes a millisecond of the device's; evictions are no part of it.
        let seconds = |answer: &Value| -> Vec<f64> {
            let list = answer["seconds"].as_array().unwrap().iter();
            list.map(|seconds| (seconds.as_f64().unwrap() * 1e9).round() / 1e9).collect()
        };
        assert_eq!((seconds(&answers[2]), seconds(&answers[3])), (vec![1e-3; 3], vec![1e-3; 3]));
        assert!((answers[4]["device"].as_f64().unwrap() - 1e-3).abs() < 1e-9, "{answers:?}");
        assert!(answers[4]["host"].as_f64().unwrap() > 0.0);
        assert_eq!([seconds(&answers[5]), seconds(&answers[6])], [vec![1e-3], vec![1e-3]]);
        let (rested, graph) = ("z".repeat(16) + "as", "a".repeat(100));
        let expected = [
            "a".to_owned(),
            rested.repeat(3) + "Ssss",
            "za".repeat(3) + "Ssss",
            "zzzzas".repeat(2) + "Sss" + "zaS",
            // The first replay of a graph does not count.
            graph.clone() + &graph + "s" + &graph + "s",
            // O that is there, and the first call, which the preparation makes.
            "ab".to_owned(),
        ];
        assert_eq!(trace, expected.concat(), "{implementation}");
        assert!(answers[8]["refused"].as_str().unwrap().contains("no capture"), "{answers:?}");
    }
}

#[test]
fn a_service_is_timed_behind_one_layer_of_each_step() {
    let serve = "{\"op\": \"serve\", \"number\": 1, \"layers\": 3, \"sequences\": 4, \"rows\": 8, \"keys\": 32, \
                 \"heads\": 4, \"kv_heads\": 2, \"head_dim\": 16, \"dtype\": \"bf16\", \
                 \"softmax_scale\": 0.25, \"implementation\": \"default\"}";
    let step = |filling: &str| {
        format!(
            "{{\"op\": \"step\", \"number\": 1, \"decoding\": [5, 32, 1], \"filling\": [{filling}], \
             \"evictions\": 2}}"
        )
    };
    let (answers, trace) = on_a_device(&[serve, &step("[4, 4], [8, 20]"), &step("")]);
    let seconds = |answer: &Value| (answer["seconds"][0].as_f64().unwrap() * 1e9).round() / 1e9;
    // Three layers of three calls, and of the one call of those that decode.
    assert_eq!((seconds(&answers[2]), seconds(&answers[3])), (9e-3, 3e-3), "{answers:?}");
    let timed = |calls: usize| "z".repeat(2 * 3 * calls) + &"a".repeat(3 * calls) + "sSs";
    let expected = ["aa".to_owned(), "a".repeat(3), timed(3), "a".to_owned(), timed(1)];
    assert_eq!(trace, expected.concat());
}

#[test]
fn products_grouped_heads_and_copies_go_to_the_peer_too() {
    let document = with_stand_in("matmul --backend cpu --m 8 --n 12 --k 10 --b-layout col --iterations 3");
    figure(row(&document, "8x12x10", "torch matmul"), "its time over gemm_cpu's");
    let document =
        with_stand_in("decode --backend cpu --heads 4 --kv-heads 2 --dim 16 --seq-k 40 --iterations 3");
    let names = series(&document);
    let ran =
        ["decode", "torch FLASH_ATTENTION", "torch default", "torch FLASH_ATTENTION with heads as rows"];
    assert!(ran.iter().all(|name| names.contains(&(name, 1))), "{names:?}");
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
