//! report.html: one file, with its plots inside and nothing from the network.

use fa_bench::lab::Document;

use super::markdown::capital;
use super::{Contents, Section};

/// The page's own colours, light and dark, and a layout that a phone and a desk both show.
const STYLE: &str = include_str!("style.css");

/// The report as HTML.
pub(super) fn render(contents: &Contents) -> String {
    let title = format!("Measurements on {}", escaped(contents.device()));
    let mut body = format!("<header><h1>{title}</h1>\n");
    body.push_str("<p>Made by <code>cargo xtask report</code> from the JSON documents beside it; no number was typed.</p>\n");
    if contents.is_on_cpu() {
        body.push_str(
            "<p class=\"warning\">There was no GPU: every experiment ran on the CPU, at smaller sizes. No figure here is a \
             GPU’s.</p>\n",
        );
    }
    body.push_str("<nav><ul>\n");
    for section in &contents.sections {
        body.push_str(&format!("<li><a href=\"#{0}\">{0}</a></li>\n", section.name()));
    }
    body.push_str("</ul></nav></header>\n<main>\n<section><h2>In short</h2>\n<ul>\n");
    for claim in contents.claims() {
        let anchor = claim.row.map_or(claim.experiment.clone(), |row| format!("{}-{row}", claim.experiment));
        let text = escaped(&claim.text);
        body.push_str(&format!("<li>{text} (<a href=\"#{anchor}\">{}</a>)</li>\n", claim.experiment));
    }
    body.push_str("</ul></section>\n");
    contents.sections.iter().for_each(|section| body.push_str(&of_section(section)));
    if !contents.left_out.is_empty() {
        body.push_str("<section><h2>Left out</h2>\n");
        body.push_str(&list(contents.left_out.iter().map(|line| escaped(line))));
        body.push_str("</section>\n");
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}</main>\n</body>\n</html>\n"
    )
}

fn of_section(section: &Section) -> String {
    let document = &section.document;
    let header = &document.header;
    let name = section.name();
    let mut text =
        format!("<section id=\"{name}\"><h2>{name}</h2>\n<p>{}.</p>\n", escaped(&capital(&document.what)));
    text.push_str(&format!("<p class=\"source\"><code>{}</code><br>\n", escaped(&document.command)));
    text.push_str(&format!(
        "{} ({}), driver {}, revision {}, seed {}, <a href=\"{}\">JSON</a></p>\n",
        escaped(&header.device.name),
        header.backend,
        escaped(&header.device.driver),
        escaped(&header.revision),
        header.seed,
        section.file
    ));
    if let Some(reason) = &document.stopped {
        text.push_str(&format!("<p class=\"warning\">Incomplete: {}</p>\n", escaped(reason)));
    }
    if let Some(peer) = &document.peer {
        text.push_str(&format!(
            "<p>Beside {} on {}, in turns.</p>\n",
            escaped(&peer.name),
            escaped(&peer.device)
        ));
    }
    for plot in &section.plots {
        let title = escaped(&plot.title);
        text.push_str(&format!(
            "<figure role=\"img\" aria-label=\"{title}\">\n{}</figure>\n",
            themed(&plot.svg)
        ));
    }
    text.push_str(&table(name, document));
    let refused = document.rows.iter().filter_map(|row| {
        let reason = row.not_run.as_ref()?;
        Some(escaped(&format!("{} {} was not run: {reason}", row.case, row.series)))
    });
    let figures = document.figures.iter();
    let figures =
        figures.map(|figure| format!("{}: <b>{}</b>", escaped(&figure.name), escaped(&figure.text())));
    let notes = document.notes.iter().map(|note| escaped(note));
    let elsewhere = document.reported_elsewhere.iter();
    let elsewhere = elsewhere.map(|said| format!("<i>Reported elsewhere</i>: {}", escaped(said)));
    text.push_str(&list(figures.chain(refused).chain(notes).chain(elsewhere)));
    text.push_str("</section>\n");
    text
}

/// The rows, each with an anchor of its number in the document.
fn table(name: &str, document: &Document) -> String {
    let (titles, cells) = document.table();
    if cells.is_empty() {
        return String::new();
    }
    let mut text = "<div class=\"table\"><table>\n<thead><tr>".to_owned();
    titles.iter().for_each(|title| text.push_str(&format!("<th>{}</th>", escaped(title))));
    text.push_str("</tr></thead>\n<tbody>\n");
    // The table leaves out what did not run; the numbers are the document's.
    let ran = document.rows.iter().enumerate().filter(|(_, row)| row.not_run.is_none());
    for ((index, _), cells) in ran.zip(&cells) {
        text.push_str(&format!("<tr id=\"{name}-{index}\" title=\"rows[{index}] of {name}.json\">"));
        cells.iter().for_each(|cell| text.push_str(&format!("<td>{}</td>", escaped(cell))));
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody></table></div>\n");
    text
}

fn list(lines: impl Iterator<Item = String>) -> String {
    let items: String = lines.map(|line| format!("<li>{line}</li>\n")).collect();
    if items.is_empty() { items } else { format!("<ul>\n{items}</ul>\n") }
}

/// A plot whose ink and paper are the page's, and which grows and shrinks with it.
fn themed(svg: &str) -> String {
    // One without the ink, such as a heat map, whose text is light or dark by what is under it, keeps its own
    // paper.
    if !svg.contains("\"#010203\"") {
        return svg.to_owned();
    }
    let svg = svg.replace("\"#010203\"", "\"currentColor\"").replace("\"#FFFFFF\"", "\"none\"");
    svg.replace("\"#C8C8C9\"", "\"var(--grid)\"")
}

/// Text as HTML shows it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
