//! A copy of the workspace with all defects woven in, and what is built of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use super::table;
use super::weave::weave;

/// What chooses a defect: its number in the environment variable `FA_MUTANT`.
const SWITCH: &str = r#"//! Which defect is chosen.

use std::sync::LazyLock;

static CHOSEN: LazyLock<usize> =
    LazyLock::new(|| std::env::var("FA_MUTANT").map_or(0, |text| text.parse().expect("FA_MUTANT is a number")));

/// Whether the defect of this number is chosen.
#[inline]
pub fn is(number: usize) -> bool {
    *CHOSEN == number
}
"#;

const SWITCH_MANIFEST: &str = r#"[package]
name = "fa-mutant"
version.workspace = true
edition.workspace = true
"#;

/// Crates that defects are woven into, by the name of their manifest's line that begins their dependencies.
const WOVEN: [(&str, &str); 2] = [
    ("crates/kernels/Cargo.toml", "[target.'cfg(not(target_arch = \"nvptx64\"))'.dependencies]\n"),
    ("crates/host/Cargo.toml", "[dependencies]\n"),
];

/// What the workspace is built from.
const COPIED: [&str; 6] = [
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    "crates",
    "xtask",
    // The functions of scores that tests compile.
    "demos/score-functions/src/functions.rs",
];

/// Packages whose tests look for defects, by their folders.
const TESTED: [(&str, &str); 2] = [("crates/kernels", "fa-kernels"), ("crates/host", "flash-attention")];

/// What was built.
pub(super) struct Built {
    /// Programs of tests.
    pub(super) tests: Vec<TestProgram>,
    pub(super) bench: PathBuf,
}

/// A program of tests.
pub(super) struct TestProgram {
    /// As in `flash-attention hopper`.
    pub(super) name: String,
    pub(super) program: PathBuf,
    /// Where cargo would run it.
    pub(super) folder: PathBuf,
}

/// Copies the workspace at `root` to `target/mutants/src`, weaves in all defects, and builds it once.
///
/// # Errors
/// When a defect's text is not there, or it does not compile.
pub(super) fn build(root: &Path) -> Result<Built> {
    let tree = root.join("target/mutants/src");
    write(root, &tree)?;
    // Of the whole workspace, as `ci` builds it: with other features each crate would be compiled once more.
    let tests = cargo(root, &tree, &["test", "--no-run", "--workspace"])?.into_iter();
    let tests = tests.filter(|artifact| artifact.profile.test).filter_map(Artifact::test_program).collect();
    let bench = cargo(root, &tree, &["build", "--workspace", "--bins"])?.into_iter();
    let bench =
        bench.filter(|artifact| artifact.target.name == "fa-bench").find_map(|artifact| artifact.executable);
    Ok(Built { tests, bench: bench.context("cargo built no fa-bench")? })
}

/// Makes `tree` what it should be; files that are it already stay as they are, so that cargo builds what
/// changed.
fn write(root: &Path, tree: &Path) -> Result<()> {
    let mut wanted = BTreeSet::new();
    for name in COPIED {
        list(root, Path::new(name), &mut wanted)?;
    }
    let defects: Vec<_> =
        table::numbered().map(|(family, number, defect)| (family.file, number, defect)).collect();
    for (file, _, defect) in &defects {
        ensure!(wanted.contains(Path::new(file)), "defect {}: there is no file {file}", defect.name);
    }
    for path in &wanted {
        let source = root.join(path);
        let bytes = fs::read(&source).with_context(|| format!("cannot read {}", source.display()))?;
        let of_file: Vec<_> = defects
            .iter()
            .filter(|(file, ..)| Path::new(file) == path)
            .map(|&(_, n, defect)| (n, defect))
            .collect();
        let manifest = WOVEN.iter().find(|(file, _)| Path::new(file) == path);
        let bytes = match manifest {
            Some((_, line)) => {
                let text = String::from_utf8(bytes)?;
                ensure!(text.contains(line), "{} has no line {line}", path.display());
                text.replacen(line, &format!("{line}fa-mutant = {{ path = \"../mutant\" }}\n"), 1)
                    .into_bytes()
            }
            None if of_file.is_empty() => bytes,
            None => {
                let text = String::from_utf8(bytes)?;
                weave(&text, &of_file).with_context(|| path.display().to_string())?.into_bytes()
            }
        };
        write_if_new(&tree.join(path), &bytes)?;
    }
    write_if_new(&tree.join("crates/mutant/Cargo.toml"), SWITCH_MANIFEST.as_bytes())?;
    write_if_new(&tree.join("crates/mutant/src/lib.rs"), SWITCH.as_bytes())?;
    wanted.extend(["crates/mutant/Cargo.toml", "crates/mutant/src/lib.rs"].map(PathBuf::from));
    let mut present = BTreeSet::new();
    for name in COPIED {
        list(tree, Path::new(name), &mut present)?;
    }
    for stale in present.difference(&wanted) {
        fs::remove_file(tree.join(stale)).with_context(|| format!("cannot remove {}", stale.display()))?;
    }
    Ok(())
}

/// Adds the files at or below `path`, from `root` on.
fn list(root: &Path, path: &Path, files: &mut BTreeSet<PathBuf>) -> Result<()> {
    let at = root.join(path);
    if !at.is_dir() {
        files.insert(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(&at).with_context(|| format!("cannot list {}", at.display()))? {
        list(root, &path.join(entry?.file_name()), files)?;
    }
    Ok(())
}

fn write_if_new(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// What cargo says about something that it built.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl Artifact {
    fn test_program(self) -> Option<TestProgram> {
        let folder = self.manifest_path.parent()?.to_owned();
        let (_, package) = TESTED.iter().find(|(name, _)| folder.ends_with(name))?;
        let unit = self.target.kind.iter().all(|kind| kind != "test");
        let name = if unit { "unit tests".to_owned() } else { self.target.name };
        Some(TestProgram { name: format!("{package} {name}"), program: self.executable?, folder })
    }
}

/// Runs cargo in `tree`, and returns what it built. Crates from elsewhere are shared with the workspace's own
/// builds.
fn cargo(root: &Path, tree: &Path, arguments: &[&str]) -> Result<Vec<Artifact>> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let line = format!("cargo {}", arguments.join(" "));
    let mut command = Command::new(program);
    command.args(arguments).args(["--quiet", "--message-format", "json-render-diagnostics"]);
    command.current_dir(tree);
    command.env("CARGO_TARGET_DIR", root.join("target/mutants/target"));
    command.env("CARGO_BUILD_BUILD_DIR", root.join("target"));
    let output = command.output().with_context(|| format!("cannot run `{line}`"))?;
    if !output.status.success() {
        // The switches read oddly: lints would hide what is wrong.
        let errors = String::from_utf8_lossy(&output.stderr);
        let errors = errors.split("\n\n").filter(|text| text.contains("error"));
        bail!("`{line}` failed in {}\n{}", tree.display(), errors.collect::<Vec<_>>().join("\n\n"));
    }
    let text = String::from_utf8(output.stdout)?;
    let artifacts = text.lines().filter(|text| text.contains("\"reason\":\"compiler-artifact\""));
    artifacts.map(|text| serde_json::from_str(text).context("cargo's message is not as expected")).collect()
}
