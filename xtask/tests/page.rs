//! report.html in a real browser: at the widths of a phone and of a desk, light and dark.
//!
//! It needs a Chromium, as Debian's package `chromium` is; `CHROMIUM` names one that is not on the PATH.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// The page with frames around it, which a script outside of the report measures.
const FRAMES: &str = include_str!("page/frames.html");

/// The least contrast of text (WCAG 2.2, success criterion 1.4.3).
const CONTRAST: f64 = 4.5;

/// The least pixels of a letter's size in a chart.
const LETTER: f64 = 9.0;

/// A browser that runs: `CHROMIUM` where it is set, else the usual names.
fn chromium(named: Option<String>) -> Result<String, String> {
    let usual = || ["chromium", "chromium-browser", "google-chrome"].map(str::to_owned).to_vec();
    let programs = named.map_or_else(usual, |program| vec![program]);
    let runs = |program: &&String| {
        let version = Command::new(program).arg("--version").stdin(Stdio::null()).output();
        version.is_ok_and(|output| output.status.success())
    };
    programs.iter().find(runs).cloned().ok_or_else(|| {
        format!(
            "no Chromium runs ({}): `apt-get install chromium` brings one, or CHROMIUM=/path/to/one names it",
            programs.join(", ")
        )
    })
}

/// The report of the committed documents, as `cargo xtask report` makes it.
fn report(folder: &Path) -> String {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results/h200");
    fs::create_dir(folder.join("plots")).unwrap();
    // Plots that are up to date are not painted again.
    for part in ["", "plots"] {
        for entry in fs::read_dir(results.join(part)).unwrap() {
            let path = entry.unwrap().path();
            if path
                .extension()
                .is_some_and(|extension| ["json", "svg", "png"].iter().any(|one| extension == *one))
            {
                fs::copy(&path, folder.join(part).join(path.file_name().unwrap())).unwrap();
            }
        }
    }
    let output = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("report").arg(folder).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::read_to_string(folder.join("report.html")).unwrap()
}

/// What a browser with no network measures of a page in frames of each width, light and dark.
fn measured(browser: &str, folder: &Path, page: &str) -> Vec<Value> {
    let quoted = page.replace('&', "&amp;").replace('"', "&quot;");
    let frame = |(width, scheme): (u32, &str)| {
        let style = format!("width: {width}px; color-scheme: {scheme}");
        let data = format!("data-scheme=\"{scheme}\"");
        format!("<iframe {data} style=\"{style}\" srcdoc=\"{quoted}\"></iframe>\n")
    };
    let settings = [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")];
    let frames: String = settings.map(frame).concat();
    let path = folder.join("frames.html");
    fs::write(&path, FRAMES.replace("<!-- frames -->", &frames)).unwrap();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .args(["--virtual-time-budget=20000", "--dump-dom"])
        .arg(format!("file://{}", path.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let result = dom.split_once("<pre id=\"measured\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let (json, _) = result.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let measured: Vec<Value> =
        serde_json::from_str(&json.replace("&amp;", "&").replace("&lt;", "<")).unwrap();
    assert_eq!(measured.len(), settings.len());
    for (frame, (width, scheme)) in measured.iter().zip(settings) {
        assert_eq!((&frame["width"], &frame["dark"]), (&width.into(), &(scheme == "dark").into()), "{frame}");
    }
    measured
}

/// How much lighter the lighter of two colours is (WCAG 2.2, contrast ratio); they are written `rgb(r, g,
/// b)`.
fn contrast(one: &str, other: &str) -> f64 {
    let luminance = |colour: &str| {
        let inner = colour.strip_prefix("rgb(").and_then(|rest| rest.strip_suffix(')')).unwrap();
        let linear = |part: &str| match part.trim().parse::<f64>().unwrap() / 255.0 {
            c if c <= 0.04045 => c / 12.92,
            c => ((c + 0.055) / 1.055).powf(2.4),
        };
        let parts: Vec<_> = inner.split(',').map(linear).collect();
        0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
    };
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

#[test]
fn a_missing_browser_is_one_line() {
    let error = chromium(Some("/nowhere/chromium".to_owned())).unwrap_err();
    assert_eq!(
        error,
        "no Chromium runs (/nowhere/chromium): `apt-get install chromium` brings one, or CHROMIUM=/path/to/one names it"
    );
}

#[test]
fn the_page_fits_a_phone_and_a_desk_in_light_and_dark() {
    assert!((contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") - 21.0).abs() < 1e-9);
    let browser = chromium(std::env::var("CHROMIUM").ok()).unwrap_or_else(|error| panic!("{error}"));
    let folder = tempfile::tempdir().unwrap();
    let page = report(folder.path());
    let frames = measured(&browser, folder.path(), &page);
    for frame in &frames {
        let (width, scheme) = (frame["width"].as_u64().unwrap(), &frame["scheme"]);
        let reach = frame["reach"].as_u64().unwrap();
        assert!(reach <= width, "{width} px {scheme}: the page is {reach} px wide");
        assert_eq!(frame["fetched"], serde_json::json!([]), "{width} px {scheme}");
        assert!(frame["plots"].as_u64().unwrap() >= 10 && frame["hidden"] == 0, "{frame}");
        assert_eq!(frame["collisions"], serde_json::json!([]), "{width} px {scheme}: text of charts");
        let (smallest, share) = (frame["smallest"].as_f64().unwrap(), frame["share"].as_f64().unwrap());
        assert!(smallest >= LETTER, "{width} px {scheme}: text of {smallest:.1} px in a chart");
        assert!(share >= 0.9, "{width} px {scheme}: the first chart takes {share:.2} of the width");
        let headings: Vec<_> =
            frame["headings"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
        assert_eq!(headings[..2], ["Forward", "Backward"], "{width} px {scheme}");
        assert_eq!(headings[headings.len() - 2..], ["doctor", "Not run"], "{width} px {scheme}");
        // A chart is on the first screen of a phone and of a desk.
        let beginning: Vec<_> =
            frame["beginning"].as_array().unwrap().iter().map(|top| top.as_u64().unwrap()).collect();
        assert!(beginning.len() == 4 && beginning[0] < 400, "{width} px {scheme}: {beginning:?}");
        let paper = frame["paper"].as_str().unwrap();
        for (what, colour) in frame["colours"].as_object().unwrap() {
            let reached = contrast(colour.as_str().unwrap(), paper);
            assert!(
                reached >= CONTRAST,
                "{scheme}: {what} {colour} on {paper} has a contrast of {reached:.2}"
            );
        }
    }
    assert_ne!(frames[0]["paper"], frames[1]["paper"], "light and dark");
    // The measurement finds what it is for.
    let wide = page.replace(
        "<main>",
        "<main><div style=\"width: 2000px\">wide</div><img src=\"http://example.com/a.png\"><div class=\"panels\"><svg \
         viewBox=\"0 0 480 60\"><text x=\"9\" y=\"30\" font-size=\"4\">one</text><text x=\"9\" y=\"30\">two</text><text \
         x=\"479\" y=\"50\">three</text></svg></div>",
    );
    for frame in measured(&browser, folder.path(), &wide) {
        assert!(frame["reach"].as_u64().unwrap() >= 2000, "{frame}");
        assert_eq!(frame["fetched"], serde_json::json!(["http://example.com/a.png"]));
        assert_eq!(frame["collisions"], serde_json::json!(["three leaves its panel", "one on two"]));
        assert!(frame["smallest"].as_f64().unwrap() < LETTER || frame["width"] == 1280, "{frame}");
    }
}
