mod beginning;
mod several;

use super::*;
use serde_json::{Value, json};

/// The document that the program's own tests are held against.
const GOLDEN: &str = include_str!("../../../crates/bench/tests/golden/document.json");

/// A folder with a document of an experiment whose rows `rows` makes of the golden one's first.
fn folder(experiment: &str, change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), experiment, change);
    folder
}

/// Writes a document beside others.
fn put(folder: &Path, experiment: &str, change: impl FnOnce(&mut Value)) {
    let mut document: Value = serde_json::from_str(GOLDEN).unwrap();
    (document["experiment"], document["backend"]) = (experiment.into(), "cuda".into());
    change(&mut document);
    fs::write(folder.join(format!("{experiment}.json")), document.to_string()).unwrap();
}

/// A row of a kernel of the library, or of a peer where `series` begins with `torch`.
fn row(
    document: &Value,
    case: &str,
    (head_dim, seq, causal): (u32, u32, bool),
    series: &str,
    tflops: f64,
) -> Value {
    let mut row = document["rows"][0].clone();
    row["case"] = case.into();
    row["series"] = series.into();
    row["x"] = seq.into();
    for (name, value) in [("head_dim", head_dim), ("head_dim_v", head_dim), ("seq", seq), ("kv_seq", seq)] {
        row["problem"][name] = value.into();
    }
    row["problem"]["causal"] = causal.into();
    row["problem"]["window"] = if causal { json!([null, 0]) } else { json!([null, null]) };
    row["measurement"]["tflops"] = tflops.into();
    if series.starts_with("torch") {
        (row["plan"], row["check"]) = (Value::Null, Value::Null);
    }
    row
}

/// Rows of three kernels at two lengths, with speedups.
fn curve(document: &mut Value) {
    let kernel = |seq: u32, series: &str, median: f64, speedup: Option<f64>| {
        let mut row = row(document, &format!("S={seq}"), (64, seq, false), series, 0.1 / median);
        row["measurement"]["median_s"] = median.into();
        let figure = |value| json!([{ "name": "speedup over standard", "unit": "x", "value": value }]);
        row["figures"] = speedup.map_or(json!([]), figure);
        row
    };
    document["rows"] = json!([
        kernel(512, "forward_sm90", 1e-3, Some(2.5)),
        kernel(512, "standard", 2.5e-3, None),
        kernel(512, "torch CUDNN_ATTENTION", 0.5e-3, None),
        kernel(1024, "forward_sm90", 2e-3, Some(4.5)),
        kernel(1024, "standard", 9e-3, None),
        kernel(1024, "torch CUDNN_ATTENTION", 4e-3, None),
        { "case": "S=1024", "series": "torch <MATH>", "x": 1024.0, "figures": [], "not_run": "no room & no time" },
    ]);
}

fn report(folder: &Path) -> (String, String) {
    super::read(folder).unwrap().write(folder).unwrap();
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    (read("REPORT.md"), read("report.html"))
}

#[test]
fn the_page_is_whole_without_a_network() {
    let folder = folder("flash", curve);
    // As the command does it, with PNGs where there are fonts.
    Report { folder: folder.path().to_owned() }.run().unwrap();
    let (markdown, html) = report(folder.path());
    for outside in ["http://", "https://", "src=", "@import", "<script", "<link"] {
        let found = html.replace("http://www.w3.org/2000/svg", "").contains(outside);
        assert!(!found, "{outside}");
    }
    assert_eq!(html.matches("<figure").count(), 3, "the beginning, speedup and latency");
    assert!(html.contains("prefers-color-scheme: dark") && html.contains("\"currentColor\""));
    assert!(!html.contains("\"#FFFFFF\"") && !html.contains("\"#010203\""), "plots have the page's colours");
    assert!(html.contains("torch &lt;MATH&gt; was not run: no room &amp; no time"), "{html}");
    for name in ["flash-speedup", "flash-latency"] {
        assert!(markdown.contains(&format!("(plots/{name}.svg)")));
        let svg = fs::read_to_string(folder.path().join(format!("plots/{name}.svg"))).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("forward_sm90"), "{svg}");
    }
}

#[test]
fn every_experiment_can_be_shown() {
    for experiment in EXPERIMENTS {
        let folder = folder(experiment, curve);
        let (markdown, _) = report(folder.path());
        assert!(markdown.contains(&format!("\n## {experiment}\n")), "{markdown}");
    }
}

#[test]
fn what_cannot_be_read_is_a_line() {
    let folder = folder("flash", curve);
    fs::write(folder.path().join("memory.json"), "{\"schema\": 2, ").unwrap();
    fs::write(folder.path().join("matmul.json"), "{\"schema\": 1}").unwrap();
    fs::write(folder.path().join("causal.json"), "[]").unwrap();
    // A second document of an experiment, and JSON of another kind, are no part of the report.
    fs::copy(folder.path().join("flash.json"), folder.path().join("flash_again.json")).unwrap();
    fs::write(folder.path().join("trace.json"), "{\"traceEvents\": []}").unwrap();
    let (markdown, _) = report(folder.path());
    assert_eq!(markdown.matches("\n## flash\n").count(), 1);
    assert!(!markdown.contains("trace"), "{markdown}");
    let (_, end) = markdown.split_once("\n## Not run\n").unwrap();
    for line in [
        "memory.json is not JSON: EOF",
        "matmul.json has schema 1, and this program reads 2; measure it again",
        "causal.json is no document of fa-bench: it has no schema",
        "- decode.json is not there; `fa-bench decode --json ",
    ] {
        assert!(end.contains(line), "{line}: {markdown}");
    }
    let empty = tempfile::tempdir().unwrap();
    let error = Report { folder: empty.path().to_owned() }.run().unwrap_err().to_string();
    assert!(error.contains("no document of an experiment can be read"), "{error}");
    let error = Report { folder: empty.path().join("missing") }.run().unwrap_err().to_string();
    assert!(error.ends_with("missing: no such folder; `fa-bench all` makes one"), "{error}");
}

#[test]
fn a_run_that_was_stopped_says_so() {
    let folder = folder("flash", |document| {
        curve(document);
        document["stopped"] = "interrupted by Ctrl-C".into();
    });
    let (markdown, html) = report(folder.path());
    assert!(markdown.contains("**Incomplete**: interrupted by Ctrl-C"));
    assert!(html.contains("Incomplete: interrupted by Ctrl-C"));
}

#[test]
fn a_plot_that_stayed_keeps_its_png() {
    let folder = folder("flash", curve);
    let written = || super::read(folder.path()).unwrap().write(folder.path()).unwrap();
    let names = |written: &[(PathBuf, String)]| {
        written.iter().map(|(path, _)| path.file_name().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = written();
    assert_eq!(names(&all), ["headline-forward.svg", "flash-speedup.svg", "flash-latency.svg"]);
    for (path, _) in &all {
        fs::write(path.with_extension("png"), "painted").unwrap();
    }
    assert_eq!(written(), []);
    fs::remove_file(all[0].0.with_extension("png")).unwrap();
    fs::write(&all[1].0, "<svg/>").unwrap();
    assert_eq!(names(&written()), ["headline-forward.svg", "flash-speedup.svg"]);
}
