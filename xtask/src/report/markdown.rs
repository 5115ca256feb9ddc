//! REPORT.md.

use super::figure::Figure;
use super::headline::{Headline, Part, RatioCell};
use super::{Claim, Contents, Section, device, is_on_cpu};

/// The heading of the table of ratios.
pub(super) const RATIOS: &str = "Times the speed of the best peer";

/// What a report of no GPU says first.
pub(super) const ON_CPU: &str =
    "There was no GPU: every experiment ran on the CPU, at smaller sizes, and no figure here is a GPU's.";

/// The report as Markdown, with links to plots and documents beside it.
pub(super) fn render(contents: &Contents) -> String {
    let mut text = format!("# Measurements on {}\n", device(&contents.sections));
    if is_on_cpu(&contents.sections) {
        text.push_str(&format!("\n{ON_CPU}\n"));
    }
    text.push_str(&beginning(&contents.headline));
    contents.sections.iter().for_each(|section| text.push_str(&of_section(section)));
    let not_run = contents.not_run();
    if !not_run.is_empty() {
        text.push_str("\n## Not run\n\n");
        not_run.iter().for_each(|line| text.push_str(&format!("- {line}\n")));
    }
    text.push_str("\n## How this was made\n\nMade by `cargo xtask report` from the JSON documents beside it; no number was typed.\n");
    text
}

/// Charts, ratios and sentences.
fn beginning(headline: &Headline) -> String {
    let mut text = String::new();
    headline.charts.iter().for_each(|part| text.push_str(&of_part(part)));
    if let Some(ratios) = &headline.ratios {
        let cell =
            |cell: &RatioCell| if cell.behind { format!("*{}*", cell.text) } else { cell.text.clone() };
        let lines: Vec<Vec<_>> = ratios.lines.iter().map(|cells| cells.iter().map(cell).collect()).collect();
        text.push_str(&format!("\n## {RATIOS}\n{}", table(&ratios.titles, &lines)));
    }
    headline.trap.iter().for_each(|part| text.push_str(&of_part(part)));
    if !headline.claims.is_empty() {
        text.push_str("\n## Beside speed\n\n");
        headline.claims.iter().for_each(|claim| text.push_str(&format!("- {}\n", of_claim(claim))));
    }
    text
}

fn of_part(part: &Part) -> String {
    let said = part.claim.as_ref().map_or_else(String::new, |claim| format!("\n{}\n", of_claim(claim)));
    format!("\n## {}\n{said}{}", part.heading, image(&part.figure))
}

/// The sentence, and links to all that proves it.
fn of_claim(claim: &Claim) -> String {
    let link = |(experiment, row): &(String, Option<usize>)| {
        let row = row.map(|row| format!(", `rows[{row}]`")).unwrap_or_default();
        format!("[{experiment}](#{experiment}), [JSON]({experiment}.json){row}")
    };
    match &claim.sources[..] {
        [] => claim.text.clone(),
        sources => format!("{} ({})", claim.text, sources.iter().map(link).collect::<Vec<_>>().join("; ")),
    }
}

fn image(figure: &Figure) -> String {
    format!("\n![{}](plots/{}.svg)\n", figure.title, figure.name)
}

/// A table, or nothing where it has no cells.
fn table(titles: &[String], cells: &[Vec<String>]) -> String {
    if cells.is_empty() {
        return String::new();
    }
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule: Vec<_> = titles.iter().map(|_| "---".to_owned()).collect();
    let cells: String = cells.iter().map(|cells| line(cells)).collect();
    format!("\n{}{}{cells}", line(titles), line(&rule))
}

fn of_section(section: &Section) -> String {
    let document = &section.document;
    let header = &document.header;
    let mut text = format!("\n## {}\n\n{}.\n\n", section.name(), capital(&document.what));
    text.push_str(&format!("`{}`\n\n", document.command));
    text.push_str(&format!(
        "{} ({}), driver {}, revision {}, seed {} ([JSON]({}.json))\n",
        header.device.name,
        header.backend,
        header.device.driver,
        header.revision,
        header.seed,
        section.name()
    ));
    if let Some(reason) = &document.stopped {
        text.push_str(&format!("\n**Incomplete**: {reason}\n"));
    }
    if let Some(peer) = &document.peer {
        text.push_str(&format!("\nBeside {} on {}, in turns.\n", peer.name, peer.device));
    }
    section.figures.iter().for_each(|figure| text.push_str(&image(figure)));
    let (titles, cells) = document.table();
    text.push_str(&table(&titles, &cells));
    let figures = document.figures.iter().map(|figure| format!("{}: {}", figure.name, figure.text()));
    let elsewhere = document.reported_elsewhere.iter().map(|said| format!("*Reported elsewhere*: {said}"));
    let lines: Vec<_> = figures.chain(document.notes.iter().cloned()).chain(elsewhere).collect();
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
