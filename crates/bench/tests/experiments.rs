//! Each experiment as a user runs it on a machine with no GPU.
#![allow(clippy::unwrap_used)]

mod common;

use common::{fails, figure, json, read, row, rows, stdout};
use serde_json::Value;

/// Every row that ran was checked and is right, but those that are no kernel's.
fn all_right(document: &Value, unchecked: &[&str]) {
    assert_eq!((&document["passed"], &document["stopped"]), (&true.into(), &Value::Null), "{document:#}");
    for row in rows(document).iter().filter(|row| row["not_run"].is_null()) {
        let series = row["series"].as_str().unwrap();
        assert!(row["check"]["passed"] == true || unchecked.contains(&series), "{row:#}");
    }
}

#[test]
fn flash_sets_fused_beside_unfused() {
    let line = "flash --backend cpu --seq 40,70 --heads 2 --dim 33 --iterations 2";
    let document = json(&format!("{line} --json"));
    all_right(&document, &[]);
    let cases: Vec<_> =
        rows(&document).iter().map(|row| (row["x"].as_f64().unwrap(), &row["series"])).collect();
    let (fused, unfused) = (&"forward_cpu".into(), &"standard".into());
    assert_eq!(cases, [(40.0, fused), (40.0, unfused), (70.0, fused), (70.0, unfused)]);
    let median = |series| row(&document, "S=70", series)["measurement"]["median_s"].as_f64().unwrap();
    let speedup = figure(row(&document, "S=70", "forward_cpu"), "speedup over standard");
    assert!((speedup - median("standard") / median("forward_cpu")).abs() < 1e-9);
    assert_eq!(document["command"], format!("fa-bench {line}"));
    let text = stdout(line);
    let first = text.lines().next().unwrap();
    assert!(
        first.starts_with("flash: ") && first.contains("(on the CPU: smaller sizes than on a GPU)"),
        "{first}"
    );
    assert!(text.lines().nth(1).unwrap().starts_with("backend cpu (asked for): "), "{text}");
    assert!(text.contains("\nreported elsewhere: on an RTX 4090"), "{text}");
}

#[test]
fn flash_runs_the_gpu_kernels_in_the_simulator() {
    let document = json("flash --backend sim --seq 40 --dim 20 --causal --json");
    all_right(&document, &[]);
    let series = rows(&document)[0]["series"].as_str().unwrap();
    assert!(series.starts_with("forward_sm"), "a tensor-core kernel: {series}");
    fails("flash --backend sim --seq 16384", 2, "the simulator would need about");
}

#[test]
fn context_takes_a_grid_or_a_problem_and_one_process_on_one_gpu() {
    fails("context --grid published --kv-heads 8", 2, "--grid <GRID>' cannot be used with");
    fails("context --on-one --transport nccl-ce", 2, "--on-one is for ranks of one process");
}

#[test]
fn forward_runs_a_grid_or_the_problem_that_is_asked_for() {
    let document = json("forward --grid published --backend cpu --iterations 1 --warmup 0 --json");
    all_right(&document, &[]);
    assert_eq!(rows(&document).len(), 3 * 2 * 3);
    for row in rows(&document) {
        let problem = &row["problem"];
        let of = |name: &str| problem[name].as_u64().unwrap();
        assert_eq!((of("batch") * of("seq"), of("heads") * of("head_dim")), (256, 256));
        assert_eq!((row["x"].as_f64(), &problem["layout"]), (Some(of("seq") as f64), &"bhsd".into()));
    }
    let speeds: Vec<_> = rows(&document)
        .iter()
        .filter(|row| row["problem"]["head_dim"] == 256)
        .map(|row| 1e12 * row["measurement"]["tflops"].as_f64().unwrap())
        .collect();
    let fastest = speeds.into_iter().fold(0.0, f64::max);
    assert!((figure(&document, "D=256: fastest case") / fastest - 1.0).abs() < 1e-9);
    let line =
        "forward --backend cpu --batch 2 --heads 3 --seq 20,40 --dim 12 --layout bshd --iterations 1 --json";
    let document = json(line);
    let cases: Vec<_> = rows(&document).iter().map(|row| row["case"].as_str().unwrap()).collect();
    assert_eq!(cases, ["D=12 S=20 full", "D=12 S=40 full", "D=12 S=20 causal", "D=12 S=40 causal"]);
    assert_eq!(
        (&rows(&document)[0]["problem"]["batch"], &rows(&document)[0]["problem"]["heads"]),
        (&2.into(), &3.into())
    );
    let document = json(
        "forward --backend sim --seq 40 --dim 20 --heads 1 --batch 1 --causal --kernel forward_sm80 --json",
    );
    all_right(&document, &[]);
    assert_eq!((rows(&document).len(), &rows(&document)[0]["series"]), (1, &"forward_sm80".into()));
}

#[test]
fn cpu_runs_on_the_cpu_whatever_else_there_is() {
    let document = json("cpu --seq 24 --dim 8 --heads 2 --iterations 2 --dtype bf16 --json");
    all_right(&document, &[]);
    assert_eq!((&document["backend"], rows(&document).len()), (&"cpu".into(), 2));
    assert_eq!(rows(&document)[1]["case"], "D=8 S=24 causal");
}

#[test]
fn memory_is_what_the_allocator_counts() {
    let document = json("memory --backend cpu --seq 256,512 --heads 1 --iterations 1 --json");
    all_right(&document, &[]);
    let extra = |case, series| figure(row(&document, case, series), "extra memory");
    // The scores alone are Sq·Sk·4 bytes, and little else is beside them.
    for (case, scores) in [("S=256", 256 * 256 * 4), ("S=512", 512 * 512 * 4)] {
        let taken = extra(case, "standard");
        assert!((f64::from(scores)..2.0 * f64::from(scores)).contains(&taken), "{case}: {taken}");
    }
    assert!(extra("S=512", "forward_cpu") < extra("S=512", "standard"));
    let saved = figure(row(&document, "S=512", "forward_cpu"), "saved");
    assert!(saved > 0.0 && saved < 100.0);
}

#[test]
fn scaling_fits_an_exponent_to_each_kernel() {
    let document =
        json("scaling --backend cpu --seq 32,64 --long-seq 128 --heads 1 --dim 16 --iterations 2 --json");
    all_right(&document, &[]);
    assert_eq!(rows(&document).len(), 5);
    for series in ["forward_cpu", "standard"] {
        assert!(figure(&document, &format!("{series}: time grows as S to the power")).is_finite());
    }
}

#[test]
fn causal_counts_useful_operations() {
    let document = json("causal --backend cpu --seq 64 --heads 1 --iterations 2 --json");
    all_right(&document, &[]);
    let row = row(&document, "causal", "forward_cpu");
    let (time, per_flop) =
        (figure(row, "time over the full mask's"), figure(row, "time per useful FLOP over the full mask's"));
    // 64 rows see 64 keys without the mask, and 32.5 on average with it.
    assert!((per_flop / time - 64.0 / 32.5).abs() < 1e-9, "{time} {per_flop}");
}

#[test]
fn backward_times_both_passes_and_measures_what_p_would_take() {
    for (backend, kernels, sizes) in [
        ("cpu", ["forward_cpu", "backward_cpu"], "--heads 2 --seq 96"),
        ("sim", ["forward_sm90", "backward_sm90"], "--seq 40"),
    ] {
        let document = json(&format!("backward --backend {backend} {sizes} --dim 24 --iterations 2 --json"));
        all_right(&document, &[]);
        let case = |pass| format!("D=24 causal {pass}");
        let (forward, backward) =
            (row(&document, &case("forward"), kernels[0]), row(&document, &case("backward"), kernels[1]));
        let both = row(&document, &case("forward and backward"), &kernels.join(" + "));
        let tflops = |row: &Value| {
            let measurement = &row["measurement"];
            measurement["tflops"].as_f64().unwrap() * measurement["median_s"].as_f64().unwrap()
        };
        // Operations, of which the backward pass has 2.5 times the forward pass's.
        assert!((tflops(backward) / tflops(forward) - 2.5).abs() < 1e-9);
        assert!((tflops(both) / tflops(forward) - 3.5).abs() < 1e-9);
        for gradient in ["dQ", "dK", "dV"] {
            let [error, bound] =
                ["max error", "bound"].map(|what| figure(backward, &format!("{gradient} {what}")));
            assert!(0.0 < error && error <= bound, "{gradient}: {error} {bound}");
        }
        assert!(figure(backward, "P, if it were stored") > 0.0 && figure(backward, "extra memory") > 0.0);
    }
}

#[test]
fn the_backward_pass_alone_has_one_row() {
    let document = json("backward --backend cpu --alone --only causal --heads 2 --seq 96 --dim 24 --json");
    all_right(&document, &[]);
    assert_eq!(rows(&document).len(), 1);
    let backward = row(&document, "D=24 causal backward", "backward_cpu");
    assert!(figure(backward, "dK max error") <= figure(backward, "dK bound"));
}

#[test]
fn generations_run_on_the_gpu_kernels_alone() {
    let document = json("generations --backend sim --seq 64 --json");
    all_right(&document, &[]);
    let series: Vec<_> = rows(&document).iter().map(|row| &row["series"]).collect();
    let kernels = ["standard", "forward_simt", "forward_sm80", "forward_sm90"];
    assert_eq!(series[..4], kernels);
    assert_eq!(series[4..], ["backward_simt", "backward_sm80", "backward_sm90"]);
    row(&document, "S=64 backward", "backward_sm90");
    let notes = json("generations --backend cpu --seq 64 --iterations 1 --json")["notes"].to_string();
    assert!(notes.contains("GPU kernels"), "{notes}");
}

#[test]
fn dtypes_have_each_their_error() {
    let document = json("dtypes --backend cpu --seq 64 --heads 1 --iterations 2 --json");
    all_right(&document, &[]);
    let bound = |dtype| row(&document, dtype, "forward_cpu")["check"]["bound"].as_f64().unwrap();
    assert!(bound("f32") < bound("f16") && bound("f16") < bound("bf16") && bound("bf16") < bound("e4m3"));
    assert_eq!(figure(row(&document, "f32", "forward_cpu"), "speedup over f32"), 1.0);
}

#[test]
fn layout_adds_the_copies_to_the_kernel() {
    let document = json("layout --backend cpu --iterations 2 --json");
    all_right(&document, &["the copies alone"]);
    let name = "B=1 H=16 S=256 D=64";
    let copies = row(&document, name, "the copies alone");
    let kernel = row(&document, &format!("{name} [B, H, L, D]"), "forward_cpu");
    let median = |row: &Value| row["measurement"]["median_s"].as_f64().unwrap();
    assert!((figure(copies, "call with copies") - median(kernel) - median(copies)).abs() < 1e-12);
}

#[test]
fn alignment_compares_two_head_dims_and_climbs_the_staircase() {
    let line = "alignment --backend cpu --heads 2 --seq 32 --iterations 2 --staircase 30,33";
    let document = json(&format!("{line} --json"));
    all_right(&document, &[]);
    let head_dims: Vec<_> = rows(&document).iter().map(|row| row["x"].as_f64()).collect();
    assert_eq!(head_dims, [None, None, Some(30.0), Some(31.0), Some(32.0), Some(33.0)]);
    let median = |row: usize| rows(&document)[row]["measurement"]["median_s"].as_f64().unwrap();
    let increase = figure(&document, "head_dim 129 against 128: latency increase");
    assert!((increase - 100.0 * (median(1) / median(0) - 1.0)).abs() < 1e-9);
    assert!((figure(&rows(&document)[2], "time over its step's") - median(2) / median(4)).abs() < 1e-9);
    let start = |row: usize| figure(&rows(&document)[row], "rows start at multiples of");
    assert_eq!([start(0), start(1), start(2), start(4)], [128.0, 2.0, 4.0, 64.0]);
    fails("alignment --backend cpu --staircase 30,300", 2, "'--staircase <FIRST,LAST>'");
}

#[test]
fn tiles_that_are_built_run_and_say_what_they_take() {
    let document = json("tiles --backend sim --dim 32 --seq 64 --json");
    all_right(&document, &[]);
    let names: Vec<_> = rows(&document).iter().map(|row| row["series"].as_str().unwrap()).collect();
    for family in ["forward_simt_f16_", "forward_sm80_f16_", "forward_sm90_f16_"] {
        assert!(names.iter().any(|name| name.starts_with(family)), "{names:?}");
    }
    for row in rows(&document) {
        assert!(figure(row, "shared memory") > 0.0 && figure(row, "registers") > 0.0);
        assert_eq!(figure(row, "spilled"), 0.0);
        let block_n = row["plan"]["tile"][1].as_f64().unwrap();
        assert_eq!(figure(row, "loop trips"), (64.0 / block_n).ceil());
    }
    let fixed = json("tiles --backend cpu --seq 64 --heads 1 --iterations 1 --json");
    assert!(fixed["figures"][0]["name"].as_str().unwrap().starts_with("fastest: forward_cpu"));
}

#[test]
fn roofline_measures_its_ceilings() {
    let document = json("roofline --backend cpu --iterations 2 --budget 0.1 --json");
    all_right(&document, &["copy"]);
    let (bytes, operations) =
        (figure(&document, "the roof over bytes"), figure(&document, "the roof over operations"));
    let ridge = figure(&document, "the ridge between them");
    assert!((ridge - operations / bytes).abs() <= 1e-9 * ridge);
    let product = row(&document, "M=N=K=256", "gemm_cpu");
    // 2·256³ operations over three matrices of 256² elements of 2 bytes.
    assert!((product["x"].as_f64().unwrap() - 2.0 * 256.0 / 6.0).abs() < 1e-6);
    let roof = figure(product, "roof here");
    assert!(roof <= operations * (1.0 + 1e-9));
}

#[test]
fn traffic_is_counted_exactly() {
    let document = json("traffic --seq 128 --full --backend cpu --json");
    all_right(&document, &[]);
    // One block of 128 rows reads Q, K and V once, and writes O and lse once.
    let tensor = f64::from(128 * 64 * 2);
    for series in ["forward_sm80", "forward_sm90"] {
        let row = row(&document, "S=128", series);
        assert_eq!((figure(row, "read"), figure(row, "written")), (3.0 * tensor, tensor + 4.0 * 128.0));
    }
    assert!(figure(row(&document, "S=128", "forward_simt"), "fewer read") > 0.0);
    let many = json("traffic --seq 128 --full --batch 2 --heads 3 --json");
    let series = "forward_sm90";
    assert_eq!(
        figure(row(&many, "S=128", series), "read"),
        6.0 * figure(row(&document, "S=128", series), "read"),
        "one head stands for all"
    );
}

#[test]
fn pitfalls_say_the_factor() {
    let document = json("pitfalls --backend cpu --seq 32 --heads 1 --iterations 2 --json");
    all_right(&document, &[]);
    let with_factor = rows(&document).iter().filter(|row| row["figures"].as_array().unwrap().len() == 1);
    assert_eq!(with_factor.count(), 3);
    let refused: Vec<_> = rows(&document).iter().filter(|row| !row["not_run"].is_null()).collect();
    assert_eq!(refused.len(), 3, "without a GPU there is nothing to wait for, to launch or to enqueue");
}

#[test]
fn profile_writes_traces_that_load() {
    let folder = tempfile::tempdir().unwrap();
    let traces = folder.path().display();
    let document = json(&format!("profile --backend sim --seq 40 --dim 16 --traces {traces} --json"));
    all_right(&document, &[]);
    for (file, kernels) in [("trace_fa_on.json", 1), ("trace_fa_off.json", 1)] {
        let trace = read(&folder.path().join(file));
        let events = trace["traceEvents"].as_array().unwrap();
        let bars: Vec<_> = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == 1).collect();
        assert_eq!(bars.len(), 5 * kernels);
        assert!(
            bars.iter().all(|bar| bar["dur"].as_f64().unwrap() > 0.0 && bar["ts"].as_f64().unwrap() >= 0.0)
        );
        assert!(bars.windows(2).all(|pair| pair[0]["ts"].as_f64() < pair[1]["ts"].as_f64()));
    }
    fails(
        "profile --backend cpu --traces /no/such/folder",
        1,
        "/no/such/folder/trace_fa_on.json: cannot be written",
    );
}

#[test]
fn doctor_lists_kernels_and_what_is_missing() {
    let document = json("doctor --backend sim --json");
    assert!(row(&document, "f16", "forward_sm90")["not_run"].is_null());
    let reason = row(&document, "f32", "forward_sm80")["not_run"].as_str().unwrap();
    assert!(reason.contains("has no f32 entry"), "{reason}");
    assert!(document["notes"].to_string().contains("tensor maps (TMA) and clusters: yes"));
    // Wherever a device compiler is, the line says so.
    assert!(document["notes"].to_string().contains("functions of your own can"));
    let text = stdout("doctor --backend cpu");
    assert!(text.contains("note: no GPU is used: the CPU was asked for"), "{text}");
    assert!(text.contains("a CUDA toolkit is not needed"), "{text}");
}

#[test]
fn decode_reports_the_bandwidth_of_the_cache() {
    let line = "decode --batch 2 --heads 8 --kv-heads 2 --dim 40 --seq-q 3 --seq-k 100 --page-size 16 --seqused-k 70 --causal";
    let document = json(&format!("{line} --backend sim --num-splits 3 --clusters false --json"));
    let row = &rows(&document)[0];
    let launched: Vec<_> =
        row["plan"]["steps"].as_array().unwrap().iter().map(|step| &step["entry"]).collect();
    assert_eq!(launched, ["decode_sm90_f16_m16_n128_d64_s6", "decode_combine_sm90_f16"]);
    assert_eq!((figure(row, "splits"), figure(row, "rows of a page")), (3.0, 16.0));
    // Sk is rounded up to whole pages; K and V of 70 keys of 2 heads in 2 sequences.
    assert_eq!(row["problem"]["kv_seq"], 112);
    let bytes = figure(row, "K and V used");
    assert_eq!(bytes, f64::from(2 * 2 * 70 * 2 * 40 * 2));
    let rate = bytes / row["measurement"]["median_s"].as_f64().unwrap();
    assert!((figure(row, "of K and V") - rate).abs() <= 1e-9 * rate);
    assert_eq!((&row["check"]["passed"], &document["passed"]), (&true.into(), &true.into()));
    let text = stdout(&format!("{line} --backend cpu --dtype f32 --iterations 2"));
    assert!(
        text.starts_with("decode: ") && text.contains("causal mask") && text.contains("pages of 16"),
        "{text}"
    );
    let text = stdout("decode --backend cpu --iterations 1 --heads 2 --kv-heads 1 --dim 8");
    assert!(text.contains("on the CPU: smaller sizes than on a GPU") && text.contains(" Sk=2048 "), "{text}");
}

#[test]
fn decode_names_argument_value_and_limit() {
    let cases = [
        ("--kv-heads 3", "kv_heads is 3, which does not divide heads = 32"),
        ("--page-size 0", "k: axis seqlen has length 0"),
        ("--seq-k 0", "k: axis seqlen has length 0"),
        ("--seqused-k 300", "seqused_k[0] is 300; a sequence has room for 256 keys"),
        ("--num-splits 129", "num_splits is 129; 1 to 128 are possible here"),
        ("--entry decode_f16_m16_d64_w4_s5", "is not built, or not for f16 at head_dim 128"),
        ("--dtype f32", "kernel decode has no f32 entry; it has f16, bf16"),
        ("--dim 257", "head_dim is 257; kernels take 1 to 256"),
        ("--num-splits many", "'many' for '--num-splits <COUNT>'"),
    ];
    for (arguments, message) in cases {
        fails(&format!("decode --backend sim {arguments}"), 2, message);
    }
}

#[test]
fn matmul_runs_every_kernel_of_the_backend() {
    let document =
        json("matmul --backend sim --m 40 --n 70 --k 33 --b-layout col --c-layout col --gap 1 --json");
    let runs = rows(&document);
    assert_eq!(runs.iter().map(|run| &run["series"]).collect::<Vec<_>>(), ["gemm_sm80", "gemm_simt"]);
    for run in runs {
        assert_eq!(run["check"]["passed"], true);
        assert_eq!(run["product"]["layouts"], serde_json::json!(["row", "col", "col"]));
    }
    assert_eq!(runs[0]["product"]["leading_dimensions"], serde_json::json!([34, 34, 41]));
    assert!(runs[0]["plan"]["steps"][0]["entry"].as_str().unwrap().ends_with("_unaligned"));
    let document = json("matmul --backend sim --m 40 --n 72 --k 32 --json");
    let kernels: Vec<_> = rows(&document).iter().map(|run| &run["series"]).collect();
    assert_eq!(kernels, ["gemm_sm90", "gemm_sm80", "gemm_simt"]);
    assert_eq!((&document["experiment"], &document["passed"]), (&"matmul".into(), &true.into()));
}

#[test]
fn grids_of_the_other_operations_run_the_planners_kernels() {
    let document = json("backward --grid published --dim 64 --backend cpu --iterations 1 --warmup 0 --json");
    all_right(&document, &[]);
    assert_eq!(rows(&document).len(), 2 * 3, "of one head_dim");
    assert!(rows(&document).iter().all(|row| row["series"] == "backward_cpu"));
    assert_eq!(rows(&document)[0]["case"], "D=64 S=64 full backward");
    let document = json("decode --grid published --backend cpu --page-size 16 --iterations 1 --json");
    all_right(&document, &[]);
    assert_eq!(rows(&document).len(), 3);
    assert_eq!(figure(&rows(&document)[1], "rows of a page"), 16.0);
    let document = json("matmul --grid published --backend sim --json");
    all_right(&document, &[]);
    assert_eq!((rows(&document).len(), &rows(&document)[0]["series"]), (1, &"gemm_sm90".into()));
}

#[test]
fn matmul_takes_sizes_and_a_tile() {
    let text = stdout("matmul --backend cpu --size 32,48 --dtype f32 --iterations 3");
    assert!(text.contains("| 32x32x32 ") && text.contains("| 48x48x48 "), "{text}");
    let document =
        json("matmul --backend sim --size 64 --kernel gemm_sm80 --block-m 128 --block-n 256 --json");
    assert_eq!(rows(&document)[0]["plan"]["tile"], serde_json::json!([128, 256, 64]));
    let cases = [
        ("--size 0", "at least 1 is needed"),
        ("--m 4 --n 4", "--k <K>"),
        ("--size 4 --m 4 --n 4 --k 4", "cannot be used with"),
        ("--a-layout diagonal", "[possible values: row, col]"),
        ("--size 64 --backend cpu --kernel gemm_simt", "does not run on backend cpu; it has gemm_cpu"),
        ("--size 64 --backend sim --block-m 48", "BLOCK_M = 48, BLOCK_N = any is not built for gemm_sm80"),
        ("--size 64 --backend sim --dtype f32 --kernel gemm_sm80", "kernel gemm_sm80 has no f32 entry"),
        (
            "--size 33 --backend sim --kernel gemm_sm90",
            "kernel gemm_sm90 cannot be run: the leading dimension of A is 33",
        ),
        ("--m 2000000000 --n 1 --k 1 --backend cpu", "a: rows is 2000000000; the limit is 1073741824"),
        ("--size 4096 --backend sim", "choose a smaller problem, another --backend, or --force"),
    ];
    for (arguments, message) in cases {
        fails(&format!("matmul {arguments}"), 2, message);
    }
}
