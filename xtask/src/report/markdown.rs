//! REPORT.md.

use std::fmt::Write as _;

use super::{Contents, Section};

/// The report as Markdown, with links to plots and documents beside it.
pub(super) fn render(contents: &Contents) -> String {
    let mut text = format!("# Measurements on {}\n\n", contents.device());
    text.push_str("Made by `cargo xtask report` from the JSON documents beside it; no number was typed.\n");
    if contents.is_on_cpu() {
        text.push_str("\nThere was no GPU: every experiment ran on the CPU, at smaller sizes. No figure here is a GPU's.\n");
    }
    text.push_str("\n## In short\n\n");
    for claim in contents.claims() {
        let row = claim.row.map(|row| format!(", `rows[{row}]`")).unwrap_or_default();
        // Writing to a String does not fail.
        let _ = writeln!(text, "- {} ([{1}](#{1}), [JSON]({1}.json){row})", claim.text, claim.experiment);
    }
    contents.sections.iter().for_each(|section| text.push_str(&of_section(section)));
    if !contents.left_out.is_empty() {
        text.push_str("\n## Left out\n\n");
        contents.left_out.iter().for_each(|line| text.push_str(&format!("- {line}\n")));
    }
    text
}

fn of_section(section: &Section) -> String {
    let document = &section.document;
    let header = &document.header;
    let mut text = format!("\n## {}\n\n{}.\n\n", section.name(), capital(&document.what));
    text.push_str(&format!("`{}`\n\n", document.command));
    text.push_str(&format!(
        "{} ({}), driver {}, revision {}, seed {} ([JSON]({}))\n",
        header.device.name, header.backend, header.device.driver, header.revision, header.seed, section.file
    ));
    if let Some(reason) = &document.stopped {
        text.push_str(&format!("\n**Incomplete**: {reason}\n"));
    }
    if let Some(peer) = &document.peer {
        text.push_str(&format!("\nBeside {} on {}, in turns.\n", peer.name, peer.device));
    }
    for plot in &section.plots {
        text.push_str(&format!("\n![{}](plots/{}.svg)\n", plot.title, plot.name));
    }
    let (titles, cells) = document.table();
    if !cells.is_empty() {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule: Vec<_> = titles.iter().map(|_| "---".to_owned()).collect();
        text.push_str(&format!("\n{}{}", line(&titles), line(&rule)));
        cells.iter().for_each(|cells| text.push_str(&line(cells)));
    }
    let refused = document.rows.iter().filter_map(|row| Some((row, row.not_run.as_ref()?)));
    let refused = refused.map(|(row, reason)| format!("{} {} was not run: {reason}", row.case, row.series));
    let figures = document.figures.iter().map(|figure| format!("{}: {}", figure.name, figure.text()));
    let elsewhere = document.reported_elsewhere.iter().map(|said| format!("*Reported elsewhere*: {said}"));
    let lines: Vec<_> =
        figures.chain(refused).chain(document.notes.iter().cloned()).chain(elsewhere).collect();
    if !lines.is_empty() {
        text.push('\n');
        lines.iter().for_each(|line| text.push_str(&format!("- {line}\n")));
    }
    text
}

/// A sentence's first letter.
pub(super) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().collect::<String>() + letters.as_str())
}
