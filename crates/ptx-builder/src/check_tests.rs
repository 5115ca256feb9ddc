#![allow(clippy::unwrap_used)]
use super::fixture::{shipped, spec};
use super::*;

/// The problems after a change to the committed set.
fn problems_after(change: impl FnOnce(&mut Shipped)) -> Vec<String> {
    let mut shipped = shipped();
    change(&mut shipped);
    committed(&shipped, &[spec()])
}

/// Replaces the text and keeps the manifest's hash and lengths in step with it.
fn with_text(shipped: &mut Shipped, from: &str, to: &str) {
    let text = shipped.texts["test"].replace(from, to);
    shipped.manifest.archives[0].length = text.len();
    shipped.manifest.archives[0].sha256 = source::hash_bytes(text.as_bytes());
    shipped.manifest.entries[0].length = text.len();
    shipped.texts.insert("test".to_owned(), text);
}

#[test]
fn a_whole_set_has_no_problem() {
    assert!(problems_after(|_| {}).is_empty());
}

#[test]
fn each_fact_is_compared_with_the_list() {
    let problems = problems_after(|shipped| {
        let row = &mut shipped.manifest.entries[0];
        row.dtype = "f16".to_owned();
        row.shared_bytes = 513;
    });
    assert_eq!(
        problems,
        [
            "k: dtype is f16 in the manifest and f32 in the list",
            "k: shared_bytes is 513 in the manifest and 512 in the list"
        ]
    );
}

#[test]
fn missing_and_unlisted_entries_are_named() {
    assert_eq!(
        problems_after(|shipped| shipped.manifest.entries[0].name = "other".to_owned()),
        ["k: listed, and not in the manifest", "other: in the manifest, and not listed"]
    );
    let twice = problems_after(|shipped| shipped.manifest.entries.extend_from_within(..));
    assert_eq!(twice, ["an entry has two rows in the manifest"]);
}

#[test]
fn a_changed_text_is_found() {
    let edited = problems_after(|shipped| {
        let text = shipped.texts["test"].replace("ret;", "nop;");
        shipped.texts.insert("test".to_owned(), text);
    });
    assert_eq!(edited, ["archive test: its text is not the one that the manifest hashes"]);
    let cubin = problems_after(|shipped| shipped.cubins.get_mut("test").unwrap()[0] = 0);
    assert_eq!(cubin, ["k: its cubin is not the one that the manifest hashes"]);
    let barrier = problems_after(|shipped| with_text(shipped, "ret;", "bar.sync 0, 128;\nret;"));
    assert_eq!(barrier, ["k: barriers: 2 in the PTX, 1 in the source"]);
    let bounds = problems_after(|shipped| with_text(shipped, ".maxntid 128", ".maxntid 256"));
    assert_eq!(bounds, ["k: its PTX has not the launch bounds `.maxntid 128, 1, 1 .minnctapersm 2`"]);
    let version = problems_after(|shipped| with_text(shipped, ".version 6.3", ".version 8.6"));
    assert_eq!(version, ["k: its PTX is 8.6 for sm_75"]);
}

#[test]
fn a_place_outside_the_archive_is_found() {
    let problems = problems_after(|shipped| shipped.manifest.entries[0].offset = usize::MAX);
    assert_eq!(problems, ["k: its place lies outside the archive of test"]);
}

#[test]
fn spills_in_the_manifest_are_found() {
    let problems = problems_after(|shipped| shipped.manifest.entries[0].resources[0].spill_stores = 4);
    assert_eq!(problems, ["k: spill: 4 bytes of spill stores, 0 of spill loads, 0 of stack frame on sm_90"]);
}

#[test]
fn another_layout_is_refused() {
    let problems = problems_after(|shipped| shipped.manifest.schema = SCHEMA + 1);
    assert_eq!(problems, [format!("the manifest has layout {}, and {SCHEMA} is needed", SCHEMA + 1)]);
}

#[test]
fn differences_compare_text_rows_and_figures_of_the_same_ptxas() {
    let old = shipped();
    assert!(differences(&old, &old).is_empty());

    let mut text = shipped();
    with_text(&mut text, "ret;", "nop;\nret;");
    assert_eq!(differences(&old, &text), ["k: the rebuilt PTX differs"]);

    let mut figures = shipped();
    figures.manifest.entries[0].resources[0].registers = 11;
    assert_eq!(differences(&old, &figures), ["k: the rebuilt row of the manifest differs"]);
    figures.manifest.ptxas = "13.1.0".to_owned();
    assert!(differences(&old, &figures).is_empty());

    let mut fewer = shipped();
    fewer.manifest.entries.clear();
    assert_eq!(differences(&old, &fewer), ["the rebuilt manifest or its set of entries differs"]);
}
