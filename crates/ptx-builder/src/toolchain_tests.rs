#![allow(clippy::unwrap_used)]
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;
use crate::check::fixture;

/// Taken by each test that runs a program it has written: a child started meanwhile by another thread
/// would hold the file open for writing, and the system refuses to run such a file.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An executable that prints `text`, with the folders above it.
fn program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\ncat <<'END'\n{text}\nEND\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn rustc_text(version: &str) -> String {
    format!("rustc {version} (0123abcd 2026-05-25)\nbinary: rustc\nrelease: {version}\nLLVM version: 22.1.8")
}

fn compiler(version: &str, origin: Origin) -> Compiler {
    Compiler {
        origin,
        rustc: PathBuf::from("rustc"),
        version: version.to_owned(),
        core: DeviceCore::Source(PathBuf::from("library")),
        libraries: None,
    }
}

fn ptxas(version: &str) -> Ptxas {
    Ptxas { path: PathBuf::from("ptxas"), version: version.to_owned() }
}

#[test]
fn versions_are_read_from_the_tools() {
    assert_eq!(
        compiler_version(&rustc_text("1.96.0")).unwrap(),
        "rustc 1.96.0 (0123abcd 2026-05-25), LLVM 22.1.8"
    );
    let text = "ptxas: NVIDIA (R) Ptx optimizing assembler\nCopyright (c) 2005-2025 NVIDIA Corporation\n\
                Cuda compilation tools, release 13.0, V13.0.88\nBuild cuda_13.0.r13.0/compiler.36424714_0\n";
    assert_eq!(ptxas_version(text), Some("13.0.88"));
    assert_eq!(ptxas_version("no assembler"), None);
}

#[test]
fn compilers_older_than_the_workspace_are_refused() {
    let _alone = one_at_a_time();
    assert!(recent("rustc 1.95.0 (59807616e 2026-04-14)"));
    assert!(recent("rustc 1.100.0-nightly (0 2027-01-01)"));
    assert!(!recent("rustc 1.94.1 (0 2026-02-01)"));
    assert!(!recent("something else"));

    let folder = tempfile::tempdir().unwrap();
    unpack_fake(folder.path(), "1.85.0");
    let error = Compiler::unpacked(folder.path()).unwrap_err().to_string();
    assert!(error.contains("rustc 1.85.0") && error.ends_with("at least 1.95 is needed"), "{error}");
}

/// The parts of an unpacked compiler that the search looks at.
fn unpack_fake(prefix: &Path, version: &str) {
    program(&prefix.join("usr/bin/rustc"), &rustc_text(version));
    for file in ["usr/lib/x86_64-linux-gnu/librustc_driver-01.so", "usr/src/rustc-x/library/core/src/lib.rs"]
    {
        let path = prefix.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
}

#[test]
fn an_unpacked_compiler_is_found_with_its_libraries_and_sources() {
    let _alone = one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    assert!(Compiler::unpacked(folder.path()).unwrap().is_none());
    unpack_fake(folder.path(), "1.96.0");
    let compiler = Compiler::unpacked(folder.path()).unwrap().unwrap();
    assert_eq!(compiler.origin, Origin::Debian);
    assert_eq!(compiler.core, DeviceCore::Source(folder.path().join("usr/src/rustc-x/library")));
    assert_eq!(compiler.libraries, Some(folder.path().join("usr/lib/x86_64-linux-gnu")));
}

#[test]
fn a_sysroot_counts_only_with_core_for_the_target() {
    let _alone = one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    program(&folder.path().join("bin/rustc"), &rustc_text("1.95.0"));
    assert!(Compiler::of_sysroot(folder.path()).is_none());
    let core = folder.path().join("lib/rustlib").join(TARGET).join("lib/libcore-01.rlib");
    fs::create_dir_all(core.parent().unwrap()).unwrap();
    fs::write(&core, "").unwrap();
    let compiler = Compiler::of_sysroot(folder.path()).unwrap();
    assert_eq!((compiler.origin, compiler.core), (Origin::Rustup, DeviceCore::Ready(core)));
}

#[test]
fn the_versions_of_the_manifest_are_preferred() {
    let manifest = fixture::shipped().manifest;
    let found = Found {
        compilers: vec![
            compiler("rustc 1.95.0, LLVM 22.1.2", Origin::Rustup),
            compiler(&manifest.compiler, Origin::Debian),
        ],
        assemblers: vec![ptxas("12.9.86"), ptxas(PTXAS_VERSION)],
    };
    let chosen = found.choose(Some(&manifest)).unwrap();
    assert_eq!(chosen.compiler.origin, Origin::Debian);
    assert_eq!(chosen.compiler_reason, "the manifest was built by it");
    assert_eq!(chosen.ptxas.version, manifest.ptxas);
    let chosen = found.choose(None).unwrap();
    assert_eq!(chosen.compiler.origin, Origin::Rustup);
    assert_eq!(chosen.ptxas_reason, "the pinned version");
}

#[test]
fn a_missing_tool_is_named() {
    let error = Found::default().choose(None).unwrap_err().to_string();
    assert_eq!(error, "no device compiler found: run `cargo xtask toolchain`");
    let found =
        Found { compilers: vec![compiler("rustc 1.96.0, LLVM 22", Origin::Debian)], assemblers: Vec::new() };
    assert_eq!(found.choose(None).unwrap_err().to_string(), "no ptxas found: run `cargo xtask toolchain`");
}
