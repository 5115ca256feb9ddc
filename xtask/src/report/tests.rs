use super::*;
use serde_json::{Value, json};

/// The document that the program's own tests are held against.
const GOLDEN: &str = include_str!("../../../crates/bench/tests/golden/document.json");

/// A folder with a document of an experiment whose rows `rows` makes of the golden one's first.
fn folder(experiment: &str, change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut document: Value = serde_json::from_str(GOLDEN).unwrap();
    document["experiment"] = experiment.into();
    change(&mut document);
    fs::write(folder.path().join(format!("{experiment}.json")), document.to_string()).unwrap();
    folder
}

/// Rows of two kernels at two lengths, with speedups.
fn curve(document: &mut Value) {
    let template = document["rows"][0].clone();
    let row = |seq: f64, series: &str, median: f64, speedup: Option<f64>| {
        let mut row = template.clone();
        row["case"] = format!("S={seq}").into();
        row["series"] = series.into();
        row["x"] = seq.into();
        row["measurement"]["median_s"] = median.into();
        let figure = |value| json!([{ "name": "speedup over standard", "unit": "x", "value": value }]);
        row["figures"] = speedup.map_or(json!([]), figure);
        row
    };
    document["rows"] = json!([
        row(512.0, "forward_sm90", 1e-3, Some(2.5)),
        row(512.0, "standard", 2.5e-3, None),
        row(1024.0, "forward_sm90", 2e-3, Some(4.5)),
        row(1024.0, "standard", 9e-3, None),
        { "case": "S=1024", "series": "torch <MATH>", "x": 1024.0, "figures": [], "not_run": "no room & no time" },
    ]);
}

fn report(folder: &Path) -> (String, String) {
    Report { folder: folder.to_owned() }.run().unwrap();
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    (read("REPORT.md"), read("report.html"))
}

#[test]
fn every_claim_leads_to_its_row() {
    let folder = folder("flash", curve);
    let (markdown, html) = report(folder.path());
    let claim = "forward_sm90 is 4.50 times as fast as unfused attention at S=1024";
    assert!(
        markdown.contains(&format!("- {claim} ([flash](#flash), [JSON](flash.json), `rows[2]`)")),
        "{markdown}"
    );
    assert!(html.contains(&format!("<li>{claim} (<a href=\"#flash-2\">flash</a>)</li>")), "{html}");
    assert!(html.contains("<tr id=\"flash-2\" title=\"rows[2] of flash.json\">"), "{html}");
    assert!(markdown.contains("fa-bench ") && html.contains("<code>fa-bench "), "the command");
}

#[test]
fn the_page_is_whole_without_a_network() {
    let folder = folder("flash", curve);
    let (markdown, html) = report(folder.path());
    for outside in ["http://", "https://", "src=", "@import", "<script", "<link"] {
        let found = html.replace("http://www.w3.org/2000/svg", "").contains(outside);
        assert!(!found, "{outside}");
    }
    assert_eq!(html.matches("<svg").count(), 2, "speedup and latency");
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
    let (markdown, _) = report(folder.path());
    for line in [
        "memory.json is not JSON: EOF",
        "matmul.json has schema 1, and this program reads 2; measure it again",
        "causal.json is no document of fa-bench: it has no schema",
        "- decode.json is not there; `fa-bench decode --json ",
    ] {
        assert!(markdown.contains(line), "{line}: {markdown}");
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
fn the_peer_is_summed_up_where_the_planners_choice_leads() {
    let with_peer = |document: &mut Value| {
        curve(document);
        document["peer"] = json!({ "name": "PyTorch 2", "program": "python3", "device": "a GPU" });
        for (row, ratio) in [(1, 2.0), (3, 0.5)] {
            document["rows"][row]["series"] = "torch CUDNN_ATTENTION".into();
            document["rows"][row]["figures"] =
                json!([{ "name": "its time over forward_sm90's", "unit": "x", "value": ratio }]);
        }
    };
    let (markdown, _) = report(folder("flash", with_peer).path());
    let claim = "the fastest of PyTorch 2, torch CUDNN_ATTENTION, takes 1.00 times as long in the geometric mean of 2 cases, \
                 and 0.50 times at least";
    assert!(markdown.contains(claim), "{markdown}");
    assert!(!report(folder("tiles", with_peer).path()).0.contains("geometric mean"));
}
