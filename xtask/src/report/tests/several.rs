//! Charts of one problem on several GPUs.

use super::*;

/// Rows of a problem at some lengths: `(series, GPUs, TFLOP/s a GPU, % of linear)`.
fn sides(
    document: &mut Value,
    (heads, kv_heads): (u32, u32),
    seqs: &[u32],
    sides: &[(&str, u32, f64, Option<f64>)],
) {
    document["axis"] = "tokens of a sequence".into();
    let mut rows = Vec::new();
    for &seq in seqs {
        for &(series, gpus, tflops, of_linear) in sides {
            let mut row = row(document, &format!("H={heads} S={seq}"), (128, seq, true), series, 1.0);
            (row["problem"]["heads"], row["problem"]["kv_heads"]) = (heads.into(), kv_heads.into());
            (row["measurement"]["tflops"], row["plan"]) = (Value::Null, Value::Null);
            let figure =
                |name: &str, unit: &str, value: f64| json!({ "name": name, "unit": unit, "value": value });
            let mut figures =
                vec![figure("GPUs", "1", gpus.into()), figure("a GPU", "FLOP/s", 1e12 * tflops)];
            figures.extend(of_linear.map(|share| figure("of linear", "%", share)));
            row["figures"] = figures.into();
            rows.push(row);
        }
    }
    document["rows"] = rows.into();
}

/// Puts a document of the experiment under another name.
fn put_as(folder: &Path, name: &str, change: impl FnOnce(&mut Value)) {
    put(folder, name, |document| {
        document["experiment"] = "context".into();
        change(document);
    });
}

fn plot(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(format!("plots/{name}.svg"))).unwrap()
}

#[test]
fn all_documents_of_several_gpus_are_in_two_charts() {
    let folder = folder("context", |document| {
        let two = [
            ("one GPU", 1, 650.0, None),
            ("each by itself", 2, 640.0, Some(98.0)),
            ("together, peer", 2, 620.0, Some(95.0)),
            ("PyTorch context_parallel, cudnn", 2, 500.0, None),
            ("together, peer, on one GPU", 1, 600.0, Some(92.0)),
        ];
        sides(document, (32, 8), &[32_768, 131_072], &two);
    });
    put_as(folder.path(), "context_of_four", |document| {
        sides(document, (16, 16), &[32_768, 1_048_576], &[("together, nccl-ce", 4, 550.0, Some(85.0))]);
    });
    put_as(folder.path(), "unrelated", |document| document["experiment"] = "decode".into());
    let (markdown, html) = report(folder.path());
    for text in [
        "One problem on several GPUs runs at 85 % (32768 tokens, 4 GPUs) to 95 % (131072 tokens, 2 GPUs) of",
        "[JSON](context_of_four.json), `rows[0]`",
        "](plots/context-speed.svg)",
        "](plots/context-linear.svg)",
        "\n## context\n",
        "\n## context_of_four\n",
    ] {
        assert!(markdown.contains(text), "{text}: {markdown}");
    }
    assert!(!markdown.contains("unrelated") && !markdown.contains("## Forward"), "{markdown}");
    assert!(!markdown.contains("is not there"), "a folder of this alone lacks no other document: {markdown}");
    assert!(html.contains("<section id=\"context_of_four\">"), "{html}");
    let speed = plot(folder.path(), "context-speed");
    for text in [
        "32/8 heads, D=128, causal, f16",
        "16/16 heads, D=128, causal, f16",
        "TFLOP/s a GPU",
        "tokens of a sequence",
        "1024K",
        "together, peer, 2 GPUs",
        "together, nccl-ce, 4 GPUs",
        "PyTorch context_parallel, cudnn, 2 GPUs",
    ] {
        assert!(speed.contains(text), "{text}: {speed}");
    }
    assert!(!speed.contains("on one GPU"), "ranks that take turns have no speed: {speed}");
    let linear = plot(folder.path(), "context-linear");
    assert!(linear.contains("each by itself, 2 GPUs") && linear.contains("% of linear"), "{linear}");
    assert!(!linear.contains("PyTorch") && !linear.contains("one GPU<"), "no share was measured: {linear}");
}

#[test]
fn a_side_that_several_documents_have_is_the_first_ones() {
    let of = |share| {
        move |document: &mut Value| {
            sides(document, (8, 8), &[1024, 2048], &[("together, peer", 2, 500.0, Some(share))]);
        }
    };
    let folder = folder("context", of(90.0));
    put_as(folder.path(), "context_later", of(10.0));
    let (markdown, _) = report(folder.path());
    assert!(markdown.contains(" at 90 % (") && !markdown.contains(" at 10 % ("), "{markdown}");
    put(folder.path(), "flash", curve);
    let (markdown, _) = report(folder.path());
    assert!(markdown.contains("decode.json is not there"), "{markdown}");
}
