//! `fa-bench serve` as a user runs it on a machine with no GPU.
#![allow(clippy::unwrap_used)]

mod common;

use common::{command, fails, figure, json, rows, stdout, words};
use serde_json::Value;

/// A trace that a CPU plays in a moment.
const SMALL: &str = "serve --backend cpu --requests 12 --shrink 32 --layers 2 --heads 4 --kv-heads 2 --dim 16 --step-tokens 100";

fn ours(document: &Value) -> &Value {
    let row = &rows(document)[0];
    assert_eq!(row["series"], "flash-attention");
    row
}

#[test]
fn a_trace_is_played_judged_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let (svg, file) = (folder.path().join("serve.svg"), folder.path().join("serve.json"));
    let text = stdout(&format!("{SMALL} --svg {} --json {}", svg.display(), file.display()));
    for said in ["trace: 12 requests, ", "a pool of 256 pages with 16 keys each", "modelled", "is the plot"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let document = common::read(&file);
    assert_eq!((&document["passed"], &document["stopped"]), (&true.into(), &Value::Null));
    let row = ours(&document);
    assert_eq!(row["case"], "conversation / 32 offline");
    assert!(row["check"]["passed"] == true && row["check"]["rows_checked"].as_u64().unwrap() > 100);
    let [attention, rest] = ["attention", "rest, modelled"].map(|name| figure(row, name));
    // The weights alone take 2 · 8.03e9 bytes at 4.8 TB/s.
    assert!((rest / figure(row, "steps") / (2.0 * 8.03e9 / 4.8e12) - 1.0).abs() < 1e-9);
    assert!((figure(row, "attention's share") - 100.0 * attention / (attention + rest)).abs() < 1e-9);
    for name in ["TPOT", "TTFT"] {
        let [median, most] = ["p50", "p99"].map(|percentile| figure(row, &format!("{name} {percentile}")));
        assert!(0.0 < median && median <= most, "{name}: {median} {most}");
    }
    assert!(figure(row, "tokens a second") > 0.0);
    // 16 keys of K and V, 2 heads of 16 columns in 2 bytes, 2 layers.
    assert_eq!(figure(row, "peak cache"), figure(row, "peak pages") * 16.0 * 2.0 * 2.0 * 32.0 * 2.0);
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert!(drawn.contains("conversation / 32 offline") && drawn.contains("Pages in use"));
}

#[test]
fn a_seed_names_the_schedule_and_a_small_pool_changes_it() {
    let of = |more: &str| {
        let document = json(&format!("{SMALL} {more} --json"));
        assert_eq!(document["passed"], true);
        ["steps", "peak pages", "peak batch", "preempted"].map(|name| figure(ours(&document), name))
    };
    let roomy = of("--seed 3");
    assert_eq!(roomy, of("--seed 3"));
    assert_ne!(roomy, of("--seed 4"));
    // Pages of 4 keys, which fewer sequences fill.
    let tight = of("--seed 3 --page-size 4 --pages 24");
    assert!(tight[0] > roomy[0] && tight[1] == 24.0, "{tight:?} {roomy:?}");
    assert!(tight[2] < roomy[2] && tight[3] > roomy[3], "{tight:?} {roomy:?}");
}

#[test]
fn requests_may_arrive_one_after_the_other() {
    let document = json(&format!("{SMALL} --trace code --rate 0.001 --json"));
    let row = ours(&document);
    assert_eq!((&row["case"], figure(row, "peak batch")), (&"code / 32 at 0.001/s".into(), 1.0));
    // The trace lasts for hours, in which little happens.
    assert!(figure(row, "tokens a second") < 1.0 && figure(row, "TTFT p99") < 10.0);
}

#[test]
fn the_gpu_kernels_play_in_the_simulator() {
    let document = json("serve --backend sim --requests 2 --dim 32 --heads 2 --kv-heads 1 --json");
    assert_eq!((&document["passed"], &ours(&document)["check"]["passed"]), (&true.into(), &true.into()));
    fails("serve --backend sim --requests 256 --shrink 1 --pages 8192", 2, "the simulator would need about");
}

#[test]
fn pytorch_plays_the_same_trace() {
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch");
    let mut run = command(&words("serve --backend cpu --requests 6 --shrink 32 --peer torch --json"));
    let output = run.env("PYTHONPATH", tests).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let (own, theirs) =
        (ours(&document), common::row(&document, "conversation / 32 offline", "torch default"));
    // All are there at the beginning, so that steps do not depend on what they take.
    for name in ["steps", "peak pages", "peak batch"] {
        assert_eq!(figure(own, name), figure(theirs, name), "{name}");
    }
    let ratio = figure(theirs, "attention") / figure(own, "attention");
    assert!((figure(theirs, "its attention over flash-attention's") / ratio - 1.0).abs() < 1e-9);
    assert_eq!(theirs["check"], Value::Null);
    let refused =
        |series: &str| common::row(&document, "conversation / 32 offline", series)["not_run"].clone();
    assert_eq!(refused("torch FLASH_ATTENTION"), "Flash attention here takes no mask.");
    assert_eq!(refused("torch CUDNN_ATTENTION"), "this PyTorch has no CUDNN_ATTENTION");
}

#[test]
fn each_refusal_names_argument_value_and_limit() {
    for (arguments, message) in [
        ("--requests 0", "'0' for '--requests <REQUESTS>': 1 to 1048576 is possible"),
        ("--rate 0", "'0' for '--rate <RATE>': a number above 0 is needed"),
        ("--rate nan", "a number above 0 is needed"),
        ("--context 1", "2 to 16777216 is possible"),
        ("--step-tokens 8 --max-batch 9", "--step-tokens 8 is less than --max-batch 9"),
        ("--pages 2 --shrink 1", "--pages 2: with 16 keys each they hold 32 keys, and a request needs "),
        ("--heads 3 --kv-heads 2", "2"),
        ("--dim 257", "257"),
        ("--parameters -1", "'-1' for '--parameters <COUNT>': a number above 0 is needed"),
        ("--dtype e4m3", "e4m3"),
        ("--trace chat", "conversation"),
        ("--device 0", "--device 0 chooses a GPU, but the backend is cpu"),
    ] {
        fails(&format!("serve --backend cpu {arguments}"), 2, message);
    }
    let large = "serve --backend cpu --page-size 16777216 --pages 268435456";
    fails(large, 1, "one layer needs 2305843009217888256 bytes");
    fails("serve --backend cpu --svg /no/such/folder/a.svg", 1, "/no/such/folder/a.svg: cannot be written");
}
