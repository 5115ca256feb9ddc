//! Whether this machine can compile functions of scores into kernels.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a toolchain was unpacked by `cargo xtask toolchain`, as `fa-ptx-builder` reads it.
const UNPACKED: &str = "FA_DEVICE_TOOLCHAIN";

/// One line: what there is of a device compiler and an assembler, and how to get what is missing.
pub(super) fn note() -> String {
    let unpacked = env::var_os(UNPACKED).map(PathBuf::from);
    let found = [
        ("a rustc with core for nvptx64-nvidia-cuda", compiler(unpacked.as_deref())),
        ("ptxas", assembler(unpacked.as_deref())),
    ];
    let missing: Vec<_> = found.iter().filter(|(_, path)| path.is_none()).map(|(what, _)| *what).collect();
    let there: Vec<_> = found.iter().filter_map(|(_, path)| path.as_deref()).collect();
    let there = there.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    if missing.is_empty() {
        return format!("functions of your own can be compiled into kernels: {there}");
    }
    format!(
        "functions of your own cannot be compiled into kernels, which all else does without: no {}; `cargo xtask toolchain` \
         in a checkout unpacks both, and {UNPACKED} says where",
        missing.join(", and no ")
    )
}

/// The folder of the target's libraries, or the unpacked compiler.
fn compiler(unpacked: Option<&Path>) -> Option<PathBuf> {
    let unpacked = unpacked.map(|folder| folder.join("debian/usr/bin/rustc")).filter(|rustc| rustc.is_file());
    unpacked.or_else(|| {
        let mut rustc = Command::new("rustc");
        let output =
            rustc.args(["--print", "target-libdir", "--target", "nvptx64-nvidia-cuda"]).output().ok()?;
        let folder = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
        folder.read_dir().ok()?.next().is_some().then_some(folder)
    })
}

/// The first ptxas where the builder looks.
fn assembler(unpacked: Option<&Path>) -> Option<PathBuf> {
    let unpacked = unpacked.and_then(|folder| folder.read_dir().ok()).into_iter().flatten().flatten();
    let unpacked = unpacked.map(|entry| entry.path());
    let cuda = env::var_os("CUDA_PATH").map(|path| PathBuf::from(path).join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = unpacked.chain(cuda).chain(env::split_paths(&path));
    folders.map(|folder| folder.join("ptxas")).find(|file| file.is_file())
}
