//! The program as a user runs it: what it prints where, and how it exits.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use common::{fa_bench, fails, figure, json, rows, stdout, words};

#[test]
fn cpu_run_says_what_ran_where_and_why() {
    let text = stdout("--seq 100 --dim 33 --heads 2 --kv-heads 1 --causal --backend cpu --iterations 3");
    assert!(text.starts_with(
        "single: one problem, and every kernel of the backend on it\nbackend cpu (asked for): "
    ));
    assert!(text.contains("problem B=1 H=2 Hkv=1 Sq=100 Sk=100 D=33 f16 bshd causal mask"), "{text}");
    assert!(text.contains("plan: forward_cpu: fused, on all cores; "), "{text}");
    for kernel in ["forward_cpu", "standard"] {
        let rows = text.lines().map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
        let row = rows.into_iter().find(|cells| cells.get(1..3) == Some(&["S=100 D=33", kernel])).unwrap();
        assert_eq!(row[row.len() - 2], "pass", "{row:?}");
    }
}

#[test]
fn copies_for_tensor_maps_count_as_extra_memory() {
    let line = "--seq 300 --kv-seq 200 --dim 129 --heads 2 --kv-heads 1 --layout bhsd --backend sim --kernel forward_sm90";
    let document = json(&format!("{line} --json"));
    let kernel = &rows(&document)[0];
    let entries: Vec<_> = kernel["plan"]["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["entry"].as_str().unwrap())
        .collect();
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0], "pack");
    assert!(entries[1].starts_with("forward_sm90_f16"));
    // Rows of 144 columns, for two query heads and one key head; each tensor ends at a multiple of 256 bytes.
    let bytes = |rows: u64| (rows * 288).next_multiple_of(256);
    assert_eq!(kernel["measurement"]["extra_bytes"], bytes(600) + 2 * bytes(200));
    assert!(stdout(line).contains("bytes of workspace, about"));
}

#[test]
fn json_holds_what_was_measured() {
    let document = json(
        "--seq 50 --kv-seq 70 --dim 8 --dtype bf16 --layout bhsd --backend cpu --seed 5 --iterations 4 --json",
    );
    assert_eq!((&document["schema"], &document["seed"]), (&2.into(), &5.into()));
    assert_eq!(
        (document["experiment"].as_str(), document["backend"].as_str()),
        (Some("single"), Some("cpu"))
    );
    assert!(document["device"]["name"].is_string() && document["revision"].is_string());
    let problem = &rows(&document)[0]["problem"];
    assert_eq!(
        (&problem["kv_seq"], &problem["dtype"], &problem["layout"]),
        (&70.into(), &"bf16".into(), &"bhsd".into())
    );
    assert_eq!(problem["flops"], 4.0 * 8.0 * 50.0 * 70.0 * 8.0);
    let kernels = rows(&document);
    assert_eq!(
        kernels.iter().map(|kernel| &kernel["series"]).collect::<Vec<_>>(),
        ["forward_cpu", "standard"]
    );
    for kernel in kernels {
        let run = &kernel["measurement"];
        let times: Vec<_> =
            run["times_s"].as_array().unwrap().iter().map(|time| time.as_f64().unwrap()).collect();
        let (least, most) = (run["min_s"].as_f64().unwrap(), run["max_s"].as_f64().unwrap());
        assert_eq!(times.len(), 4);
        assert!(times.iter().all(|time| (least..=most).contains(time)) && least > 0.0);
        let check = &kernel["check"];
        assert!(check["max_error"].as_f64().unwrap() <= check["bound"].as_f64().unwrap());
        assert_eq!(check["passed"], true);
        assert!(run["tflops"].as_f64().unwrap() > 0.0);
    }
    assert!(kernels[1]["measurement"]["extra_bytes"].as_u64().unwrap() >= 4 * 8 * 50 * 70);
    let bytes = f64::from(8 * 2 * 2 * (50 + 70) * 8);
    let bandwidth = bytes / kernels[0]["measurement"]["median_s"].as_f64().unwrap();
    assert!((figure(&kernels[0], "effective bandwidth") / bandwidth - 1.0).abs() < 1e-9);
    assert!(figure(&kernels[0], "speedup over standard") > 0.0);
    assert_eq!(document["passed"], true);
}

#[test]
fn json_goes_to_a_file_beside_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("result.json");
    let text = stdout(&format!("--seq 20 --dim 4 --backend cpu --iterations 1 --json {}", path.display()));
    assert!(
        text.contains("| forward_cpu |") && text.ends_with(&format!("JSON written to {}\n", path.display()))
    );
    let document: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(rows(&document)[0]["problem"]["seq"], 20);
}

#[test]
fn the_simulator_runs_the_gpu_kernels() {
    let document = json("--seq 40 --dim 20 --heads 2 --backend sim --dtype f32 --json");
    let kernels = rows(&document);
    let entries = |kernel: &Value| kernel["plan"]["steps"].as_array().unwrap().len();
    assert_eq!(kernels.iter().map(entries).collect::<Vec<_>>(), [1, 3]);
    assert!(kernels[0]["plan"]["steps"][0]["entry"].as_str().unwrap().starts_with("forward_simt_f32_"));
    assert!(kernels.iter().all(|kernel| kernel["check"]["passed"] == true));
}

#[test]
fn a_kernel_and_a_tile_can_be_asked_for() {
    let document = json(
        "--seq 40 --dim 60 --heads 1 --backend sim --kernel forward_simt --block-m 32 --block-n 32 --json",
    );
    assert_eq!(rows(&document).len(), 1);
    assert_eq!(rows(&document)[0]["plan"]["tile"], serde_json::json!([32, 32]));
}

#[test]
fn a_tile_without_a_kernel_goes_to_the_one_that_has_it() {
    let text = stdout("--seq 40 --dim 64 --heads 1 --backend sim --block-m 32 --block-n 32");
    let reason =
        "plan: forward_simt: forward_sm90, which would be faster, has no such tile for this problem; ";
    assert!(text.contains(reason), "{text}");
    assert!(
        text.contains("S=40 D=64 forward_sm90 was not run: BLOCK_M = 32, BLOCK_N = 32 is not built"),
        "{text}"
    );
}

#[test]
fn a_window_hides_keys_on_both_sides() {
    let line = "--seq 30 --kv-seq 50 --dim 20 --heads 2 --window-left 7 --window-right 2";
    for backend in ["cpu", "sim"] {
        let document = json(&format!("{line} --backend {backend} --iterations 1 --json"));
        assert_eq!(rows(&document)[0]["problem"]["window"], serde_json::json!([7, 2]));
        // The last two rows have no 8th, 9th and 10th key on their right.
        assert_eq!(rows(&document)[0]["problem"]["flops"], f64::from(4 * 2 * 20 * (30 * 10 - 3)));
        assert_eq!(document["passed"], true);
    }
    assert!(stdout(&format!("{line} --backend cpu --iterations 1")).contains(" window 7,2 softmax_scale="));
}

#[test]
fn changed_scores_come_to_their_own_entry() {
    let document = json("--seq 30 --dim 20 --heads 2 --causal --softcap 4 --alibi --backend sim --json");
    assert_eq!(
        (&rows(&document)[0]["problem"]["softcap"], &rows(&document)[0]["problem"]["alibi"]),
        (&4.0.into(), &true.into())
    );
    let entry = rows(&document)[0]["plan"]["steps"][0]["entry"].as_str().unwrap();
    assert!(entry.starts_with("forward_sm90_f16_") && entry.ends_with("_score_mod"), "{entry}");
    assert_eq!(document["passed"], true);
    let text = stdout("--seq 9 --dim 8 --softcap 4 --alibi --backend cpu --iterations 1");
    assert!(text.contains(" softcap=4 alibi\n"), "{text}");
}

#[test]
fn rows_that_start_anywhere_are_read_where_they_are() {
    let line = "--seq 128 --dim 12 --heads 2 --layout bhsd --kernel forward_sm90 --backend sim";
    let document = json(&format!("{line} --json"));
    let steps = rows(&document)[0]["plan"]["steps"].as_array().unwrap();
    let entry = steps[0]["entry"].as_str().unwrap();
    assert!(steps.len() == 1 && entry.ends_with("_residues"), "{entry}");
    assert_eq!(document["passed"], true);
    let text = stdout(line);
    assert!(
        text.contains("keys are taken in 2 classes by where their rows start, 12 elements apart"),
        "{text}"
    );
}

#[test]
fn a_packed_batch_has_sequences_of_different_lengths() {
    let line = "--cu-seqlens-q 0,30,30,37 --cu-seqlens-k 0,9,20,60 --dim 20 --heads 2 --causal";
    for backend in ["cpu", "sim"] {
        let document = json(&format!("{line} --backend {backend} --iterations 1 --json"));
        assert_eq!(
            rows(&document)[0]["problem"]["cu_seqlens"],
            serde_json::json!([[0, 30, 30, 37], [0, 9, 20, 60]])
        );
        // The last 9 of 30 queries see 1 to 9 keys, and 7 queries see 34 to 40.
        assert_eq!(rows(&document)[0]["problem"]["flops"], f64::from(4 * 2 * 20 * (45 + 7 * 37)));
        assert_eq!(document["passed"], true);
    }
    let text = stdout("--cu-seqlens-q 0,8,9 --dim 8 --backend cpu --iterations 1");
    assert!(text.contains("B=2 ") && text.contains(" packed total_q=9 total_k=9\n"), "{text}");
}

#[test]
fn values_may_have_a_head_dim_of_their_own() {
    for (backend, dim, dim_v) in [("cpu", 20, 70), ("sim", 20, 70), ("sim", 70, 20)] {
        let line =
            format!("--seq 30 --dim {dim} --dim-v {dim_v} --heads 2 --backend {backend} --iterations 1");
        let document = json(&format!("{line} --json"));
        assert_eq!(rows(&document)[0]["problem"]["head_dim_v"], dim_v);
        assert_eq!(rows(&document)[0]["problem"]["flops"], f64::from(2 * 2 * 30 * 30 * 90));
        assert_eq!(document["passed"], true);
        assert!(stdout(&line).contains(&format!(" Dv={dim_v}\n")));
    }
}

#[test]
fn bad_shapes_name_argument_value_and_limit() {
    let cases = [
        ("--seq 64 --dim 0", "head_dim is 0; kernels take 1 to 256"),
        ("--seq 64 --dim 300", "head_dim is 300; kernels take 1 to 256"),
        ("--seq 64 --dim 64 --dim-v 257", "v: head_dim is 257; kernels take 1 to 256"),
        ("--seq 64 --dim 64 --dim-v 0", "v: head_dim is 0; kernels take 1 to 256"),
        ("--seq 0 --dim 64", "q: axis seqlen has length 0"),
        ("--seq 8 --kv-seq 0 --dim 64", "k: axis seqlen has length 0"),
        ("--seq 8 --dim 64 --batch 0", "q: axis batch has length 0"),
        ("--seq 8 --dim 64 --heads 0", "q: axis heads has length 0"),
        ("--seq 8 --dim 64 --kv-heads 3", "kv_heads is 3, which does not divide heads = 8"),
        ("--seq 2000000000 --dim 64", "q: seqlen is 2000000000; the limit is 1073741824"),
        ("--seq 9999999999999999999 --dim 64", "exceeds the address space"),
        (
            "--seq 64 --dim 64 --softmax-scale nan",
            "softmax_scale is NaN; a number of at most 1.8446744e19 in magnitude is needed",
        ),
        ("--dim 64", "--seq is missing"),
        (
            "--cu-seqlens-q 0,5,4 --dim 64",
            "cu_seqlens_q: offset 2 is 4; the one before is 5, and none may decrease",
        ),
        ("--cu-seqlens-q 1,5 --dim 64", "cu_seqlens_q: offset 0 is 1; the first must be 0"),
        ("--cu-seqlens-q 0,5 --cu-seqlens-k 0,3,9 --dim 64", "cu_seqlens_q has 2 offsets and cu_seqlens_k 3"),
        ("--cu-seqlens-q 0 --dim 64", "at least 2"),
        ("--cu-seqlens-q 0,-5 --dim 64", "-5"),
        ("--seq 64", "--dim is missing"),
    ];
    for (line, message) in cases {
        fails(&format!("{line} --backend cpu"), 2, message);
    }
}

#[test]
fn bad_names_and_numbers_are_usage_errors() {
    let cases = [
        ("--dtype f8", "'f8' for '--dtype <DTYPE>' [possible values: f32, f16, bf16, e4m3]"),
        (
            "--kernel flash",
            "'flash' for '--kernel <KERNEL>' [possible values: decode, forward_sm90, forward_sm80, forward_simt, forward_cpu, standard]",
        ),
        ("--backend tpu", "'tpu' for '--backend <BACKEND>' [possible values: cuda, cpu, sim]"),
        ("--layout hsbd", "'hsbd' for '--layout <LAYOUT>' [possible values: bshd, bhsd]"),
        ("--batch many", "'many' for '--batch <BATCH>'"),
        ("--iterations 0", "at least 1 is needed"),
        ("--budget -1", "'-1'"),
        ("--window-left -3", "'-3' for '--window-left <KEYS>'"),
        ("--window-right -1", "a side of the window is 0 or more keys, or left out"),
        ("--window-left near", "'near' for '--window-left <KEYS>'"),
        ("--softcap -5", "softcap is -5.0; 0 (off) or 1.1754944e-38 to 1e30 is needed"),
        ("--softcap inf", "softcap is inf; 0 (off) or 1.1754944e-38 to 1e30 is needed"),
        ("--cu-seqlens-q 0,4", "'--cu-seqlens-q <ROWS>'"),
        ("--fast", "unexpected argument '--fast'"),
        ("--backend cpu --device 1", "--device 1 chooses a GPU, but the backend is cpu"),
        ("--backend cpu --kernel forward_simt", "does not run on backend cpu; it has forward_cpu, standard"),
        ("--backend sim --kernel standard --block-m 64", "BLOCK_M = 64"),
        (
            "--backend sim --block-m 48",
            "BLOCK_M = 48, BLOCK_N = any is not built for forward_sm90 at head_dim 64; built: ",
        ),
        (
            "--backend sim --block-m 1024 --block-n 1024",
            "bytes of shared memory; simulated GPU has 232448 per block",
        ),
        ("--backend cpu --block-m 0", "BLOCK_M = 0"),
    ];
    for (arguments, message) in cases {
        fails(&format!("--seq 64 --dim 64 {arguments}"), 2, message);
    }
    fails("align", 2, "'alignment'");
    fails("--seq 64 --dim 64 verify", 2, "verify");
}

#[test]
fn what_does_not_fit_memory_is_refused_before_it_is_allocated() {
    let output = fa_bench(&words("--seq 100000000 --heads 64 --dim 128 --backend cpu"));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    // Q, K, V and twice O in f16, and twice lse in fp32.
    let needed = 100_000_000_u64 * 64 * (5 * 128 * 2 + 2 * 4);
    assert!(
        stderr.starts_with(&format!("error: Q, K, V, O and lse needs {needed} bytes; the host has ")),
        "{stderr}"
    );
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn a_baseline_alone_that_does_not_fit_is_refused() {
    // 16 TiB of scores beside tensors of 20 MiB.
    let line = "--seq 2097152 --kv-seq 2097152 --heads 1 --dim 1 --backend cpu --kernel standard";
    fails(line, 1, "the score matrix with Q, K, V, O and lse needs 17592");
}

#[test]
fn a_run_that_the_simulator_would_not_finish_is_refused() {
    fails(
        "--seq 16384 --dim 128 --backend sim",
        2,
        "choose a smaller problem, another --backend, or --force",
    );
}

#[test]
fn an_unwritable_json_path_is_refused_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing/result.json");
    for path in [missing.as_path(), folder.path()] {
        let message = format!("--json {}: cannot be written: ", path.display());
        for experiment in ["--seq 64 --dim 64", "alignment", "matmul", "verify"] {
            fails(&format!("{experiment} --json {}", path.display()), 1, &message);
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn cuda_runs_where_there_is_a_gpu_and_says_why_not_elsewhere() {
    let line = "--seq 300 --dim 129 --causal --backend cuda --json";
    let output = fa_bench(&words(line));
    if output.status.success() {
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&document["backend"], &document["passed"]), (&"cuda".into(), &true.into()));
        assert!(document["device"]["compute_capability"].as_u64().unwrap() >= 75);
    } else {
        assert!(!Path::new("/dev/nvidia0").exists(), "{output:?}");
        fails(line, 1, "no CUDA device: ");
    }
}

#[test]
#[cfg(unix)]
fn a_closed_pipe_ends_it_quietly() {
    use std::os::unix::process::ExitStatusExt as _;
    let mut child = Command::new(env!("CARGO_BIN_EXE_fa-bench"))
        .args(words("--seq 20 --dim 4 --backend cpu --iterations 1"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.status.signal()), (Some(141), None));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn a_grid_takes_no_sizes_beside_it() {
    for line in [
        "forward --batch 4",
        "forward --seq 64 --causal",
        "forward --layout bshd",
        "backward --seq 64",
        "decode --seq-k 100",
        "matmul --size 64",
        "matmul --kernel gemm_cpu",
        "cpu --dim 16",
    ] {
        let (name, arguments) = line.split_once(' ').unwrap();
        let line = format!("{name} --grid published {arguments}");
        fails(&line, 2, "'--grid <GRID>' cannot be used with");
    }
    fails("forward --grid all", 2, "[possible values: published]");
    fails("cpu --backend sim", 2, "--backend sim: this experiment runs on the CPU");
    fails("cpu --device 0", 2, "--device 0 chooses a GPU, but this experiment runs on the CPU");
}

#[test]
fn help_names_every_experiment_and_its_arguments() {
    let help = stdout("--help");
    for word in [
        "all",
        "alignment",
        "cpu",
        "decode",
        "forward",
        "matmul",
        "verify",
        "--seq",
        "--dim",
        "--kv-heads",
        "--json",
        "--force",
    ] {
        assert!(help.contains(word), "{word}: {help}");
    }
    for line in [
        "Benchmarks attention kernels: without an experiment's name, all kernels",
        "  all          Every experiment that the report shows",
        "  causal       What a causal mask costs\n",
        "  forward      The forward pass over the sequence length, beside cuDNN, FlashAttention-2 and -4",
    ] {
        assert!(help.contains(line), "{line}: {help}");
    }
    assert!(stdout("verify --help").contains("--schedules"));
    assert!(stdout("--version").starts_with("fa-bench "));
}
