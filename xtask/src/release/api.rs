//! The public API as rustdoc prints it: declarations, methods and implementations, a line each, committed
//! under `docs/api/`, so that what changes it shows, and a release can be compared with the last one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use fa_ptx_builder::Workspace;

use super::metadata::{Metadata, Package};
use super::{cargo, output, run};

/// Builds the documentation of each package as docs.rs does.
pub(super) fn document(workspace: &Workspace, metadata: &Metadata) -> Result<()> {
    for package in metadata.published() {
        let features = package.documented_features().join(",");
        let arguments = ["doc", "--no-deps", "-p", &package.name, "--features", &features];
        run(cargo(workspace, &arguments).env("RUSTDOCFLAGS", "-D warnings"))?;
    }
    Ok(())
}

/// Writes the API of each package, from documentation that was built.
pub(super) fn write(workspace: &Workspace, metadata: &Metadata) -> Result<()> {
    for package in metadata.published() {
        let path = workspace.root().join(committed(package));
        fs::create_dir_all(path.parent().unwrap_or(&path))
            .with_context(|| format!("cannot make {}", path.display()))?;
        let text = current(metadata, package)?;
        fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}: {} lines", path.display(), text.lines().count());
    }
    Ok(())
}

/// Refuses an API that is not the committed one, and prints in what it differs from the last release's: what
/// is gone from there needs a version that says so.
pub(super) fn check(workspace: &Workspace, metadata: &Metadata) -> Result<()> {
    for package in metadata.published() {
        let path = workspace.root().join(committed(package));
        let known = fs::read_to_string(&path).unwrap_or_default();
        if known != current(metadata, package)? {
            bail!("{} is not what there is: run `cargo xtask release --write-api`", path.display());
        }
    }
    let tags =
        output(workspace, Command::new("git").args(["tag", "--list", "v*", "--sort=-version:refname"]))?;
    let version = metadata.version();
    let Some(last) = tags.lines().map(|tag| tag.trim_start_matches('v')).find(|last| *last != version) else {
        println!("no release yet: nothing to compare");
        return Ok(());
    };
    let mut gone = 0;
    for package in metadata.published() {
        let before = released(workspace, &format!("v{last}"), &committed(package))?;
        let after = current(metadata, package)?;
        let changes = Changes::between(&before, &after);
        print!("{}", changes.text());
        gone += changes.gone.len();
    }
    if gone > 0 && !is_breaking(last, version) {
        bail!("{gone} lines of {last}'s API are gone, and {version} is a version that breaks nothing");
    }
    Ok(())
}

/// A file as a release had it; nothing where that had none, as of a package that is new since.
fn released(workspace: &Workspace, tag: &str, path: &Path) -> Result<String> {
    let path = path.display().to_string();
    if output(workspace, Command::new("git").args(["ls-tree", "--name-only", tag, &path]))?.is_empty() {
        return Ok(String::new());
    }
    output(workspace, Command::new("git").args(["show", &format!("{tag}:{path}")]))
}

/// Where a package's API is committed.
fn committed(package: &Package) -> PathBuf {
    Path::new("docs/api").join(format!("{}.txt", package.name))
}

/// A package's API, from the pages that rustdoc wrote.
fn current(metadata: &Metadata, package: &Package) -> Result<String> {
    let folder = metadata.target_directory.join("doc").join(package.name.replace('-', "_"));
    let read = |page: &str| {
        let path = folder.join(page);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let mut lines = BTreeSet::new();
    for (page, path) in items(&read("all.html")?) {
        lines.extend(declarations(&read(page)?).into_iter().map(|line| format!("{path}: {line}\n")));
    }
    Ok(lines.into_iter().collect())
}

/// The pages of all items, with their paths.
fn items(all: &str) -> Vec<(&str, &str)> {
    let anchors = all.split("<li><a href=\"").skip(1).filter_map(|rest| rest.split_once("\">"));
    let items = anchors.filter(|(page, _)| page.ends_with(".html"));
    items.filter_map(|(page, rest)| Some((page, rest.split_once("</a>")?.0))).collect()
}

/// What an item's page declares, a line each, but for what every type has.
fn declarations(page: &str) -> Vec<String> {
    let ends = ["implementors", "synthetic-implementations", "blanket-implementations"];
    let own = ends.iter().fold(page, |page, id| before(page, &format!("<h2 id=\"{id}\"")));
    let traits = ["foreign-impls", "trait-implementations"];
    let methods = traits.iter().fold(own, |page, id| before(page, &format!("<h2 id=\"{id}\"")));
    let traits = between(&own[methods.len()..], "<h3 class=\"code-header\">", "</h3>");
    let item = between(own, "<pre class=\"rust item-decl\"><code>", "</code></pre>");
    let mut lines = item.first().map_or_else(Vec::new, |html| within(&plain(html)));
    lines.extend(of_blocks(methods));
    lines.extend(traits.into_iter().map(|html| one_line(&plain(html))));
    // The compiler's own trait of types that can be matched.
    lines.retain(|line| !line.contains("StructuralPartialEq"));
    lines.into_iter().map(without_value).collect()
}

/// The lines of an item's declaration, those of a variant's fields behind the variant's own.
fn within(declaration: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut variant = String::new();
    for (index, line) in declaration.lines().map(one_line).enumerate() {
        match line.as_str() {
            "}," => variant.clear(),
            "" | "}" | ")" => {}
            _ if index > 0 && variant.is_empty() && line.ends_with('{') => variant = line + " ",
            _ => lines.push(format!("{variant}{line}")),
        }
    }
    lines
}

/// The methods of a page, each behind the block of implementation that it is in.
fn of_blocks(html: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut block = String::new();
    let headers = html.split(" class=\"code-header\">");
    for (start, header) in headers.clone().zip(headers.skip(1)) {
        let text = one_line(&plain(before(header, "</h")));
        match start.ends_with("<h3") {
            true => block = text + ": ",
            false => lines.push(format!("{block}{text}")),
        }
    }
    lines
}

/// A constant's declaration without its value, which may change.
fn without_value(line: String) -> String {
    let is_constant = line.starts_with("pub const ") && !line.starts_with("pub const fn ");
    match line.split_once(" = ").filter(|_| is_constant) {
        Some((declaration, _)) => declaration.to_owned(),
        None => line,
    }
}

/// What stands before a mark; everything where there is none.
fn before<'a>(text: &'a str, mark: &str) -> &'a str {
    text.split_once(mark).map_or(text, |(before, _)| before)
}

/// Each part of a text from a mark to the next end.
fn between<'a>(text: &'a str, mark: &str, end: &str) -> Vec<&'a str> {
    text.split(mark).skip(1).map(|rest| before(rest, end)).collect()
}

/// The text of a piece of a page, without what folds it.
fn plain(html: &str) -> String {
    let unfolded: String = match html.split_once("<summary") {
        Some((first, rest)) => first.to_owned() + rest.split_once("</summary>").map_or("", |(_, rest)| rest),
        None => html.to_owned(),
    };
    let text: String = unfolded
        .split('<')
        .enumerate()
        .map(|(index, part)| match index {
            0 => part,
            _ => part.split_once('>').map_or("", |(_, text)| text),
        })
        .collect();
    let entities =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&nbsp;", " "), ("&amp;", "&")];
    entities.into_iter().fold(text, |text, (entity, character)| text.replace(entity, character))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// In what an API differs from an earlier one.
#[derive(Debug, PartialEq, Eq)]
struct Changes<'a> {
    gone: Vec<&'a str>,
    new: Vec<&'a str>,
}

impl<'a> Changes<'a> {
    fn between(before: &'a str, after: &'a str) -> Self {
        let [earlier, later] = [before, after].map(|text| text.lines().collect::<BTreeSet<_>>());
        Self {
            gone: earlier.difference(&later).copied().collect(),
            new: later.difference(&earlier).copied().collect(),
        }
    }

    fn text(&self) -> String {
        let gone = self.gone.iter().map(|line| format!("- {line}\n"));
        gone.chain(self.new.iter().map(|line| format!("+ {line}\n"))).collect()
    }
}

/// Whether a version may break what was there in an earlier one: by its first number, or before 1.0 by its
/// second.
fn is_breaking(before: &str, after: &str) -> bool {
    let leading = |version: &str| -> Vec<String> {
        let numbers = version.split('.').map(str::to_owned).collect::<Vec<_>>();
        let is_early = numbers.first().is_some_and(|first| first == "0");
        numbers.into_iter().take(if is_early { 2 } else { 1 }).collect()
    };
    leading(before) != leading(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "<ul class=\"block\"><li><a href=\"#structs\" title=\"Structs\">Structs</a></li></ul>\
        <ul class=\"all-items\"><li><a href=\"struct.Plan.html\">Plan</a></li>\
        <li><a href=\"gemm/enum.Order.html\">gemm::Order</a></li></ul>";

    const PAGE: &str = "<pre class=\"rust item-decl\"><code>pub enum <a href=\"x\">Order</a> {\n    <details>\
        <summary class=\"hideme\"><span>Show 2 variants</span></summary>    Row,\n\
        Column(<a>Vec</a>&lt;u8&gt;),\n    Both {\n        row: u8,\n    },\n    Odd {\n        row: u8,\n    },\n\
        </details>}</code></pre><div class=\"docblock\"><pre class=\"rust\"><code>let x</code></pre></div>\
        <h2 id=\"implementations\">Implementations</h2>\
        <section><h3 class=\"code-header\">impl Order</h3></section>\
        <h4 class=\"code-header\">pub const fn <a>name</a>(\n    &amp;self,\n) -&gt; &amp;'static str</h4>\
        <h2 id=\"foreign-impls\">Foreign</h2><h3 class=\"code-header\">impl Order for u8</h3>\
        <h4 class=\"code-header\">fn row(&amp;self)</h4>\
        <h2 id=\"trait-implementations\">Traits</h2><h3 class=\"code-header\">impl Clone for Order</h3>\
        <h4 class=\"code-header\">fn clone(&amp;self) -&gt; Order</h4>\
        <h2 id=\"synthetic-implementations\">Auto</h2><h3 class=\"code-header\">impl Send for Order</h3>";

    #[test]
    fn items_are_found_with_their_pages() {
        assert_eq!(items(ALL), [("struct.Plan.html", "Plan"), ("gemm/enum.Order.html", "gemm::Order")]);
    }

    #[test]
    fn a_page_declares_variants_methods_and_traits() {
        let expected = [
            "pub enum Order {",
            "Row,",
            "Column(Vec<u8>),",
            "Both { row: u8,",
            "Odd { row: u8,",
            "impl Order: pub const fn name( &self, ) -> &'static str",
            "impl Order for u8",
            "impl Clone for Order",
        ];
        assert_eq!(declarations(PAGE), expected);
    }

    #[test]
    fn values_of_constants_are_no_part_of_the_api() {
        let line = |text: &str| without_value(text.to_owned());
        assert_eq!(line("pub const LIMIT: usize = 3;"), "pub const LIMIT: usize");
        for kept in
            ["pub const fn of<const N: usize = 1>()", "First = 1,", "pub type Plan<O = Problem> = A<O>"]
        {
            assert_eq!(line(kept), kept);
        }
    }

    #[test]
    fn changes_are_what_is_gone_and_what_is_new() {
        let changes = Changes::between("a: 1\nb: 1\n", "a: 1\nb: 2\nc: 1\n");
        assert_eq!(changes, Changes { gone: vec!["b: 1"], new: vec!["b: 2", "c: 1"] });
        assert_eq!(changes.text(), "- b: 1\n+ b: 2\n+ c: 1\n");
    }

    #[test]
    fn the_second_number_breaks_before_1_0_and_the_first_later() {
        assert!(is_breaking("0.2.0", "0.3.0") && !is_breaking("0.2.0", "0.2.1"));
        assert!(is_breaking("1.4.0", "2.0.0") && !is_breaking("1.4.0", "1.5.0"));
        assert!(is_breaking("0.9.0", "1.0.0"));
    }
}
