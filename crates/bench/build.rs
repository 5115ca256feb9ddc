//! Records which sources the program was built from.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rustc-env=FA_BENCH_REVISION={}", revision().unwrap_or_else(|| "unknown".to_owned()));
    // A commit moves HEAD or what it points at; an edit of any crate decides about `-dirty`.
    for file in ["HEAD", "logs/HEAD", "packed-refs"] {
        if let Some(path) =
            git(&["rev-parse", "--git-path", file]).map(PathBuf::from).filter(|path| path.exists())
        {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    println!("cargo:rerun-if-changed=..");
}

/// The commit, with `-dirty` if tracked files differ from it; `None` outside of a git checkout.
fn revision() -> Option<String> {
    git(&["describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output =
        Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
