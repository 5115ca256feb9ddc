//! The width of comments, which rustfmt leaves as they are.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// Columns of a line of comment at most, as `max_width` in rustfmt.toml has it for code.
const COLUMNS: usize = 110;

/// Refuses comments of the workspaces' Rust sources and manifests that are wider than [`COLUMNS`], and prints
/// a line for each.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut wide = Vec::new();
    for place in ["Cargo.toml", "crates", "demos", "xtask", "python/Cargo.toml", "python/src"] {
        visit(&root.join(place), &mut |path, mark, text| {
            let shown = path.strip_prefix(root).unwrap_or(path).display();
            wide.extend(
                too_wide(mark, text)
                    .map(|(line, columns)| format!("{shown}:{line}: a comment of {columns} columns")),
            );
        })?;
    }
    wide.iter().for_each(|line| println!("{line}"));
    if wide.is_empty() { Ok(()) } else { bail!("{} comments are wider than {COLUMNS} columns", wide.len()) }
}

/// Line numbers and widths of comments that are too wide, whose lines begin with `mark`.
fn too_wide(mark: &str, text: &str) -> impl Iterator<Item = (usize, usize)> {
    let lines = text.lines().enumerate().filter(move |(_, line)| line.trim_start().starts_with(mark));
    lines.map(|(index, line)| (index + 1, line.chars().count())).filter(|&(_, columns)| columns > COLUMNS)
}

/// Calls `file` with every Rust source and manifest of a place, and what begins a comment there.
fn visit(place: &Path, file: &mut impl FnMut(&Path, &str, &str)) -> Result<()> {
    let shown = || format!("cannot read {}", place.display());
    if place.is_dir() {
        for entry in fs::read_dir(place).with_context(shown)? {
            let entry = entry.with_context(shown)?;
            // What cargo built is not ours.
            if entry.file_name() != "target" {
                visit(&entry.path(), file)?;
            }
        }
        return Ok(());
    }
    let mark = match place.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => "//",
        Some("toml") => "#",
        _ => return Ok(()),
    };
    file(place, mark, &fs::read_to_string(place).with_context(shown)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_count_and_code_does_not() {
        let comment = |columns: usize| format!("    // {}", "ü".repeat(columns - 7));
        let text = [comment(110), comment(111), format!("let a = \"{}\";", "a".repeat(200))].join("\n");
        assert_eq!(too_wide("//", &text).collect::<Vec<_>>(), [(2, 111)]);
        let manifest = format!("# {}\nname = \"{}\"", "ü".repeat(109), "a".repeat(200));
        assert_eq!(too_wide("#", &manifest).collect::<Vec<_>>(), [(1, 111)]);
    }
}
