//! The committed kernels, checked with no toolchain: every listed entry ships, says what the list
//! says, and passes the gates.

use fa_kernels::shipped;
use fa_ptx_builder::{Workspace, archive, check, spec};

fn committed() -> archive::Shipped {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    archive::read(&Workspace::new(root).shipped()).expect("the committed kernels can be read")
}

#[test]
fn committed_kernels_match_the_list_and_pass_the_gates() {
    let specs = spec::listed();
    assert!(!specs.is_empty(), "the list of entries is not empty");
    let problems = check::committed(&committed(), &specs);
    assert!(problems.is_empty(), "run `cargo xtask kernels`:\n{}", problems.join("\n"));
}

#[test]
fn the_kernels_crate_embeds_the_committed_bytes() {
    let committed = committed();
    let manifest: shipped::Manifest =
        serde_json::from_str(shipped::MANIFEST).expect("the embedded manifest is JSON");
    assert_eq!(manifest, committed.manifest);
    for (family, text) in &committed.texts {
        let bytes = shipped::archive(family).unwrap_or_else(|| panic!("family {family} is embedded"));
        let embedded = zstd::stream::decode_all(bytes).expect("the embedded archive is zstd");
        assert!(embedded == text.as_bytes(), "archive {family}");
    }
    for (family, cubins) in &committed.cubins {
        let bytes =
            shipped::cubin_archive(family).unwrap_or_else(|| panic!("cubins of {family} are embedded"));
        let embedded = zstd::stream::decode_all(bytes).expect("the embedded archive is zstd");
        assert!(embedded == *cubins, "cubins of {family}");
    }
    assert_eq!(shipped::archive("no such family"), None);
}
