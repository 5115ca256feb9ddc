//! `cargo xtask release --dry-run`: the checklist of a release, walked.

mod api;
mod metadata;
mod packages;

use std::env;
use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use fa_ptx_builder::Workspace;
use metadata::Metadata;

/// Walk the checklist of a release: tree, versions, changelog, packages, documentation, public API.
///
/// Nothing is published: that is done by hand, once everything here passes.
#[derive(Args)]
pub(crate) struct Release {
    /// Check, and publish nothing
    #[arg(long)]
    dry_run: bool,
    /// Write the public API as it is to docs/api/, to be committed, and check nothing
    #[arg(long, conflicts_with = "dry_run")]
    write_api: bool,
}

/// A point of the checklist, and what finds what is wrong with it.
type Point<'a> = (&'a str, fn(&Workspace, &Metadata) -> Result<()>);

const CHECKLIST: [Point<'_>; 6] = [
    ("a clean tree", clean_tree),
    ("one version", one_version),
    ("a heading in CHANGELOG.md", changelog),
    ("packages", packages::check),
    ("documentation", api::document),
    ("the public API", api::check),
];

impl Release {
    pub(crate) fn run(&self, workspace: &Workspace) -> Result<ExitCode> {
        let metadata = Metadata::read(workspace, "")?;
        if self.write_api {
            api::document(workspace, &metadata)?;
            return api::write(workspace, &metadata).map(|()| ExitCode::SUCCESS);
        }
        if !self.dry_run {
            eprintln!(
                "error: --dry-run is missing: a release is published by hand\n\n{}",
                by_hand(&metadata)
            );
            return Ok(ExitCode::from(2));
        }
        let mut failed = 0;
        for (point, check) in CHECKLIST {
            println!("== {point}");
            match check(workspace, &metadata) {
                Ok(()) => println!("== {point}: passed"),
                Err(error) => {
                    failed += 1;
                    println!("== {point}: failed: {error:#}");
                }
            }
        }
        if failed > 0 {
            bail!("{failed} of {} points of the checklist failed", CHECKLIST.len());
        }
        println!(
            "== all {} points passed; what is left is done by hand:\n\n{}",
            CHECKLIST.len(),
            by_hand(&metadata)
        );
        Ok(ExitCode::SUCCESS)
    }
}

/// The commands that publish what was checked.
fn by_hand(metadata: &Metadata) -> String {
    let names: String = metadata.published().iter().map(|package| format!(" -p {}", package.name)).collect();
    let version = metadata.version();
    format!("git tag v{version} && git push origin v{version}\ncargo publish{names}")
}

/// Refuses a checkout with changes that are not committed.
fn clean_tree(workspace: &Workspace, _: &Metadata) -> Result<()> {
    let changed = output(workspace, Command::new("git").args(["status", "--porcelain"]))?;
    match changed.lines().count() {
        0 => Ok(()),
        count => {
            bail!("{count} files are changed or not in git, such as {}", changed.lines().next().unwrap_or(""))
        }
    }
}

/// Refuses versions that differ, of packages and of what they ask of one another.
fn one_version(workspace: &Workspace, metadata: &Metadata) -> Result<()> {
    let version = metadata.version();
    let mut wrong = metadata.other_versions(version);
    // The wheel has the version of its native half.
    wrong.extend(Metadata::read(workspace, "python")?.other_versions(version));
    if wrong.is_empty() {
        println!("{version}");
        return Ok(());
    }
    bail!("{}", wrong.join("; "))
}

fn changelog(workspace: &Workspace, metadata: &Metadata) -> Result<()> {
    let path = workspace.root().join("CHANGELOG.md");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    if has_heading(&text, metadata.version()) {
        return Ok(());
    }
    bail!("{} has no line `## {}`", path.display(), metadata.version())
}

/// Whether a changelog has a section of a version, which a date may follow.
fn has_heading(changelog: &str, version: &str) -> bool {
    let headings = changelog.lines().filter_map(|line| line.strip_prefix("## "));
    headings.filter_map(|heading| heading.split_whitespace().next()).any(|first| first == version)
}

/// A command of cargo in the checkout.
fn cargo(workspace: &Workspace, arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace.root());
    command
}

/// Runs a command, whose output is the user's to see.
fn run(command: &mut Command) -> Result<()> {
    let text = text(command);
    println!("{text}");
    let status = command.status().with_context(|| format!("cannot run `{text}`"))?;
    if status.success() { Ok(()) } else { bail!("`{text}` ended with {status}") }
}

/// What a command of the checkout prints on stdout.
fn output(workspace: &Workspace, command: &mut Command) -> Result<String> {
    let text = text(command);
    let output = command.current_dir(workspace.root()).output();
    let output = output.with_context(|| format!("cannot run `{text}`"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{text}` ended with {}: {}", output.status, stderr.trim_end());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{text}` printed something else than text"))
}

/// How a command reads.
fn text(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program()).file_stem().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heading_is_that_of_the_version_alone() {
        let changelog = "# Changelog\n\n## 0.2.1 (2026-01-01)\n- 0.2.0\n\n## 0.1.0\n";
        assert!(has_heading(changelog, "0.2.1"));
        assert!(has_heading(changelog, "0.1.0"));
        assert!(!has_heading(changelog, "0.2.0"));
        assert!(!has_heading(changelog, "0.2"));
    }

    #[test]
    fn a_command_reads_as_it_is_typed() {
        assert_eq!(
            text(Command::new("/usr/bin/git").args(["status", "--porcelain"])),
            "git status --porcelain"
        );
    }
}
