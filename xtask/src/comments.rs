//! The width of comments, which rustfmt leaves as they are.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// Columns of a line of comment at most, as `max_width` in rustfmt.toml has it for code.
const COLUMNS: usize = 110;

/// Refuses comments of the workspace's Rust sources that are wider than [`COLUMNS`], and prints a line for
/// each.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut wide = Vec::new();
    for folder in ["crates", "xtask"] {
        visit(&root.join(folder), &mut |path, text| {
            let shown = path.strip_prefix(root).unwrap_or(path).display();
            wide.extend(
                too_wide(text)
                    .map(|(line, columns)| format!("{shown}:{line}: a comment of {columns} columns")),
            );
        })?;
    }
    wide.iter().for_each(|line| println!("{line}"));
    if wide.is_empty() { Ok(()) } else { bail!("{} comments are wider than {COLUMNS} columns", wide.len()) }
}

/// Line numbers and widths of comments that are too wide.
fn too_wide(text: &str) -> impl Iterator<Item = (usize, usize)> {
    let lines = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//"));
    lines.map(|(index, line)| (index + 1, line.chars().count())).filter(|&(_, columns)| columns > COLUMNS)
}

/// Calls `file` with every Rust source below a folder.
fn visit(folder: &Path, file: &mut impl FnMut(&Path, &str)) -> Result<()> {
    let shown = || format!("cannot read {}", folder.display());
    for entry in fs::read_dir(folder).with_context(shown)? {
        let path = entry.with_context(shown)?.path();
        if path.is_dir() {
            visit(&path, file)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            file(&path, &text);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_count_and_code_does_not() {
        let comment = |columns: usize| format!("    // {}", "ü".repeat(columns - 7));
        let text = [comment(110), comment(111), format!("let a = \"{}\";", "a".repeat(200))].join("\n");
        assert_eq!(too_wide(&text).collect::<Vec<_>>(), [(2, 111)]);
    }
}
