//! Charts, ratios, trap and sentences of the first screen.

use super::*;

/// The grid of a pass, in which the library has `ratio` times cuDNN's speed, and twice FlashAttention-2's.
fn grid(pass: &'static str, ratio: f64) -> impl FnOnce(&mut Value) {
    move |document| {
        let mut rows = Vec::new();
        for (head_dim, causal) in [(64, false), (64, true), (128, false), (128, true)] {
            for seq in [512, 1024] {
                let case = format!("D={head_dim} S={seq} {} {pass}", if causal { "causal" } else { "full" });
                let speeds = [
                    (format!("{pass}_sm90"), 400.0),
                    ("torch CUDNN_ATTENTION".to_owned(), 400.0 / ratio),
                    ("torch FLASH_ATTENTION".to_owned(), 200.0),
                ];
                for (series, tflops) in speeds {
                    rows.push(row(document, &case, (head_dim, seq, causal), &series, tflops));
                }
            }
        }
        document["rows"] = rows.into();
    }
}

/// A staircase with a peer's default on it.
fn staircase(document: &mut Value) {
    document["axis"] = "head_dim (elements)".into();
    let step = |head_dim: u32, series: &str, tflops: f64| {
        let mut row =
            row(document, &format!("staircase D={head_dim}"), (head_dim, 2048, false), series, tflops);
        row["x"] = head_dim.into();
        row
    };
    document["rows"] = json!([
        step(128, "forward_sm90", 600.0),
        step(129, "forward_sm90", 480.0),
        step(128, "torch default", 500.0),
        step(129, "torch default", 100.0),
        step(128, "torch MATH", 30.0),
    ]);
}

/// Places of texts, which must be there and in this order.
fn in_order(text: &str, parts: &[&str]) {
    let places: Vec<_> =
        parts.iter().map(|part| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"))).collect();
    assert!(places.is_sorted(), "{parts:?} are at {places:?}");
}

/// All of a report's beginning: both grids, the trap, and everything that has a sentence.
fn everything() -> tempfile::TempDir {
    let folder = folder("forward", grid("forward", 1.25));
    put(folder.path(), "backward", grid("backward", 0.5));
    put(folder.path(), "alignment", staircase);
    put(folder.path(), "doctor", curve);
    put(folder.path(), "flash", curve);
    put(folder.path(), "memory", |document| {
        curve(document);
        for (row, bytes) in [(3, 0.0), (4, 4194304.0)] {
            document["rows"][row]["figures"] =
                json!([{ "name": "extra memory", "unit": "B", "value": bytes }]);
        }
    });
    put(folder.path(), "matmul", |document| {
        let product = |series: &str, tflops: f64| {
            let mut row = row(document, "1024x1024x1024", (64, 1024, false), series, tflops);
            let sizes = json!({ "m": 1024, "n": 1024, "k": 1024, "dtype": "f16", "layouts": ["row", "row", "row"],
                "leading_dimensions": [1024, 1024, 1024] });
            (row["problem"], row["product"]) = (Value::Null, sizes);
            row
        };
        document["rows"] =
            json!([product("gemm_sm90", 300.0), product("gemm_sm80", 200.0), product("torch matmul", 400.0)]);
    });
    folder
}

#[test]
fn it_begins_with_both_passes_the_ratios_and_the_trap() {
    let (markdown, html) = report(everything().path());
    let parts = [
        "# Measurements on ",
        "## Forward\n\nThe forward pass (forward_sm90) runs at 1.25 times the speed of the best peer in the geometric mean of 8 \
         problems",
        "](plots/headline-forward.svg)",
        "## Backward\n\nThe backward pass (backward_sm90) runs at 0.50 times",
        "](plots/headline-backward.svg)",
        "## Times the speed of the best peer",
        "| forward D=64 full | 1.25 | 1.25 | 1.25 | cuDNN |",
        "| backward D=128 causal | *0.50* | *0.50* | *0.50* | cuDNN |",
        "## The trap",
        "forward_sm90 keeps 80 % of its TFLOP/s, while PyTorch's default falls to 20 %.",
        "](plots/alignment-staircase.svg)",
        "## Beside speed",
        "\n## flash\n",
        "\n## doctor\n",
        "\n## Not run\n",
        "torch <MATH> was not run: no room & no time",
        "Made by `cargo xtask report`",
    ];
    in_order(&markdown, &parts);
    assert!(markdown.contains("![Memory beside the tensors (none: forward_sm90), "), "{markdown}");
    let parts = [
        "<h2>Forward</h2>",
        "<h2>Backward</h2>",
        "<h2>Times the speed of the best peer</h2>",
        "<td class=\"behind\" title=\"cuDNN\">0.50</td>",
        "<h2>The trap",
        "<h2>Experiments</h2>",
        "<section id=\"flash\">",
        "<section id=\"doctor\">",
        "<section id=\"not-run\">",
        "was not run: no room &amp; no time",
        "Made by <code>",
    ];
    in_order(&html, &parts);
}

#[test]
fn the_beginning_has_at_most_six_sentences_each_with_a_subject() {
    let folder = everything();
    let (markdown, html) = report(folder.path());
    let sentences = [
        "The forward pass (",
        "The backward pass (",
        "From head_dim 128 to 129, where rows no longer start at multiples of 16 bytes, forward_sm90 keeps",
        "All ",
        "At S=1024 forward_sm90 takes 0 B beside its tensors, and unfused attention 4.00 MiB.",
        "Matrix multiplication runs at 0.75 times cuBLAS's speed in the geometric mean of 1 products.",
    ];
    let (beginning, _) = markdown.split_once("\n## forward\n").unwrap();
    let prose: Vec<_> =
        beginning.lines().filter(|line| line.contains(". (") || line.ends_with('.')).collect();
    assert_eq!(prose.len(), SENTENCES, "{prose:#?}");
    for (line, sentence) in prose.iter().zip(sentences) {
        assert!(line.trim_start_matches("- ").starts_with(sentence), "{line}");
    }
    assert_eq!(html.matches("<p class=\"claim\">").count(), SENTENCES);
    // The warning is one of the six.
    for name in ["forward", "backward", "alignment", "doctor", "flash", "memory", "matmul"] {
        let path = folder.path().join(format!("{name}.json"));
        let mut document: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        document["backend"] = "cpu".into();
        fs::write(&path, document.to_string()).unwrap();
    }
    let (markdown, html) = report(folder.path());
    assert!(markdown.contains("There was no GPU") && html.contains("There was no GPU"));
    assert_eq!(html.matches("<p class=\"claim\">").count(), SENTENCES - 1);
}

#[test]
fn every_claim_leads_to_its_row() {
    let folder = folder("flash", curve);
    let (markdown, html) = report(folder.path());
    let claim = "The forward pass (forward_sm90) runs at 1.00 times the speed of the best peer in the geometric mean of 2 \
                 problems, and at 0.50 times in the worst of them (D=64 full S=512).";
    assert!(
        markdown.contains(&format!("{claim} ([flash](#flash), [JSON](flash.json), `rows[0]`)")),
        "{markdown}"
    );
    assert!(html.contains(&format!("{claim} (<a href=\"#flash-0\">flash</a>)</p>")), "{html}");
    assert!(html.contains("<tr id=\"flash-0\" title=\"rows[0] of flash.json\">"), "{html}");
    assert!(markdown.contains("fa-bench ") && html.contains("<code>fa-bench "), "the command");
}

#[test]
fn a_grid_comes_before_other_documents() {
    let folder = folder("flash", curve);
    let (markdown, _) = report(folder.path());
    assert!(markdown.contains("| forward D=64 full | *0.50* | 2.00 | 1.00 | cuDNN |"), "{markdown}");
    put(folder.path(), "forward", grid("forward", 1.25));
    let (markdown, _) = report(folder.path());
    assert!(markdown.contains("| forward D=64 full | 1.25 | 1.25 | 1.25 | cuDNN |"), "{markdown}");
    assert!(!markdown.contains("| forward D=64 full | *0.50*"), "{markdown}");
    let svg = fs::read_to_string(folder.path().join("plots/headline-forward.svg")).unwrap();
    for text in
        ["D=64 full", "D=128 full", "D=64 causal", "D=128 causal", "TFLOP/s", "S, sequence length", "cuDNN"]
    {
        assert!(svg.contains(text), "{text}: {svg}");
    }
    assert_eq!(svg.matches("<svg ").count(), 1 + 1 + 3 + 4, "all, title, legend and panels");
}

#[test]
fn another_devices_documents_do_not_compare() {
    let folder = folder("flash", curve);
    put(folder.path(), "cpu", |document| {
        grid("forward", 1.25)(document);
        document["device"]["name"] = "another CPU".into();
    });
    let (markdown, _) = report(folder.path());
    assert!(
        markdown.contains("| forward D=64 full |") && !markdown.contains("| forward D=128 full |"),
        "{markdown}"
    );
    assert!(markdown.contains("\n## cpu\n"), "it has its section");
}

#[test]
fn one_length_alone_is_bars() {
    let folder = folder("backward", |document| {
        let one =
            |case: &str, series: &str, tflops: f64| row(document, case, (64, 2048, false), series, tflops);
        let mut rows = [
            one("D=64 full forward", "forward_sm90", 400.0),
            one("D=64 full backward", "backward_sm80", 100.0),
            one("D=64 full forward and backward", "forward_sm90 + backward_sm80", 150.0),
            one("D=64 full backward", "torch CUDNN_ATTENTION", 400.0),
            one("D=64 dropout backward", "backward_simt", 10.0),
        ];
        rows.iter_mut().for_each(|row| row["x"] = Value::Null);
        rows[4]["problem"]["dropout"] = 0.5.into();
        document["rows"] = rows.to_vec().into();
    });
    let (markdown, _) = report(folder.path());
    assert!(markdown.contains("| backward D=64 full | *0.25* | *0.25* | cuDNN |"), "{markdown}");
    let plot = |name: &str| fs::read_to_string(folder.path().join(format!("plots/{name}.svg"))).unwrap();
    let headline = plot("headline-backward");
    assert!(headline.contains("D=64 full, S=2048") && !headline.contains("backward_simt"), "{headline}");
    // Bars of a case stand together under its name.
    let bars = plot("backward-speed");
    in_order(
        &bars,
        &["D=64 full backward", "backward_sm80", "cuDNN", "D=64 dropout backward", "backward_simt"],
    );
    assert!(!bars.contains("forward_sm90"), "{bars}");
}

#[test]
fn the_trap_shows_a_peers_pair_where_it_has_no_staircase() {
    let folder = folder("alignment", |document| {
        staircase(document);
        let rows = document["rows"].as_array_mut().unwrap();
        rows.truncate(2);
        let mut pair = [rows[0].clone(), rows[1].clone(), rows[1].clone()];
        for (row, (series, tflops)) in
            pair.iter_mut().zip([("torch A", 400.0), ("torch A", 40.0), ("torch B", 100.0)])
        {
            row["series"] = series.into();
            row["measurement"]["tflops"] = tflops.into();
            row["problem"]["batch"] = 16.into();
            (row["x"], row["plan"], row["check"]) = (Value::Null, Value::Null, Value::Null);
        }
        rows.extend(pair);
    });
    let (markdown, _) = report(folder.path());
    assert!(
        markdown.contains("keeps 80 % of its TFLOP/s, while the best of its peers falls to 25 %."),
        "{markdown}"
    );
    let svg = fs::read_to_string(folder.path().join("plots/alignment-staircase.svg")).unwrap();
    assert!(svg.contains("torch A") && svg.contains("(peers: B=16 "), "{svg}");
}
