//! report.html: one file, with its plots inside and nothing from the network.

use anyhow::Result;
use fa_bench::lab::Document;

use super::canvas;
use super::figure::Figure;
use super::headline::{Headline, Part, RatioCell, Ratios};
use super::markdown::{ON_CPU, RATIOS, capital};
use super::{Claim, Contents, Section, device, is_on_cpu};

/// The page's own colours, light and dark, and a layout that a phone and a desk both show.
const STYLE: &str = include_str!("style.css");

/// The report as HTML.
///
/// # Errors
/// When a legend cannot be drawn.
pub(super) fn render(contents: &Contents) -> Result<String> {
    let title = format!("Measurements on {}", escaped(device(&contents.sections)));
    let mut body = format!("<header><h1>{title}</h1>\n");
    if is_on_cpu(&contents.sections) {
        body.push_str(&format!("<p class=\"warning\">{}</p>\n", escaped(ON_CPU)));
    }
    body.push_str(&format!(
        "</header>\n<main>\n<div id=\"beginning\">\n{}</div>\n",
        beginning(&contents.headline)?
    ));
    body.push_str("<nav><h2>Experiments</h2>\n<ul>\n");
    for section in &contents.sections {
        body.push_str(&format!("<li><a href=\"#{0}\">{0}</a></li>\n", section.name()));
    }
    body.push_str("</ul></nav>\n");
    for section in &contents.sections {
        body.push_str(&of_section(section)?);
    }
    let not_run = contents.not_run();
    if !not_run.is_empty() {
        body.push_str("<section id=\"not-run\"><h2>Not run</h2>\n");
        body.push_str(&list(not_run.iter().map(|line| escaped(line))));
        body.push_str("</section>\n");
    }
    body.push_str("<footer><p>Made by <code>cargo xtask report</code> from the JSON documents beside it; no number was typed.</p></footer>\n");
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}</main>\n</body>\n</html>\n"
    ))
}

/// Charts, then ratios beside the trap, then what is left to say.
fn beginning(headline: &Headline) -> Result<String> {
    let mut text = String::new();
    for part in &headline.charts {
        text.push_str(&of_part(part)?);
    }
    text.push_str("<div class=\"split\">\n");
    if let Some(ratios) = &headline.ratios {
        text.push_str(&format!("<section><h2>{RATIOS}</h2>\n{}</section>\n", of_ratios(ratios)));
    }
    if let Some(part) = &headline.trap {
        text.push_str(&of_part(part)?);
    }
    text.push_str("</div>\n");
    if !headline.claims.is_empty() {
        let claims: String = headline.claims.iter().map(|claim| format!("{} ", of_claim(claim))).collect();
        text.push_str(&format!("<section><h2>Beside speed</h2>\n{claims}</section>\n"));
    }
    Ok(text)
}

fn of_part(part: &Part) -> Result<String> {
    let said = part.claim.as_ref().map(of_claim).unwrap_or_default();
    Ok(format!("<section><h2>{}</h2>\n{said}\n{}</section>\n", part.heading, of_figure(&part.figure)?))
}

/// The sentence, and links to all that proves it.
fn of_claim(claim: &Claim) -> String {
    let link = |(experiment, row): &(String, Option<usize>)| {
        let anchor = row.map_or(experiment.clone(), |row| format!("{experiment}-{row}"));
        format!("<a href=\"#{anchor}\">{experiment}</a>")
    };
    let links: Vec<_> = claim.sources.iter().map(link).collect();
    let links = if links.is_empty() { String::new() } else { format!(" ({})", links.join(", ")) };
    format!("<p class=\"claim\">{}{links}</p>", escaped(&claim.text))
}

fn of_ratios(ratios: &Ratios) -> String {
    let titles: String = ratios.titles.iter().map(|title| format!("<th>{}</th>", escaped(title))).collect();
    let cell = |cell: &RatioCell| {
        let class = if cell.behind { " class=\"behind\"" } else { "" };
        let peer =
            cell.peer.as_ref().map_or_else(String::new, |peer| format!(" title=\"{}\"", escaped(peer)));
        format!("<td{class}{peer}>{}</td>", escaped(&cell.text))
    };
    let line = |cells: &Vec<RatioCell>| format!("<tr>{}</tr>\n", cells.iter().map(cell).collect::<String>());
    let lines: String = ratios.lines.iter().map(line).collect();
    format!(
        "<div class=\"table\"><table class=\"ratios\">\n<thead><tr>{titles}</tr></thead>\n<tbody>\n{lines}</tbody></table></div>\n"
    )
}

/// A figure whose panels stand in as many columns as there is room for.
fn of_figure(figure: &Figure) -> Result<String> {
    let title = escaped(&figure.title);
    let mut legend = String::new();
    for look in &figure.legend {
        let (own, label) = (if look.own { " class=\"own\"" } else { "" }, escaped(&look.label));
        legend.push_str(&format!("<li{own}>{}{label}</li>\n", themed(&canvas::swatch(look)?)));
    }
    if !legend.is_empty() {
        legend = format!("<ul class=\"legend\">\n{legend}</ul>\n");
    }
    let panels: String = figure.panels.iter().map(|panel| themed(&panel.svg)).collect();
    let class = if figure.is_wide() { "panels wide" } else { "panels" };
    Ok(format!(
        "<figure role=\"img\" aria-label=\"{title}\">\n<figcaption>{title}</figcaption>\n{legend}<div class=\"{class}\" \
         style=\"--columns: {}\">\n{panels}</div></figure>\n",
        figure.columns
    ))
}

fn of_section(section: &Section) -> Result<String> {
    let document = &section.document;
    let header = &document.header;
    let name = section.name();
    let mut text =
        format!("<section id=\"{name}\"><h2>{name}</h2>\n<p>{}.</p>\n", escaped(&capital(&document.what)));
    text.push_str(&format!("<p class=\"source\"><code>{}</code><br>\n", escaped(&document.command)));
    text.push_str(&format!(
        "{} ({}), driver {}, revision {}, seed {}, <a href=\"{}.json\">JSON</a></p>\n",
        escaped(&header.device.name),
        header.backend,
        escaped(&header.device.driver),
        escaped(&header.revision),
        header.seed,
        section.name()
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
    let (alone, several): (Vec<_>, Vec<_>) =
        section.figures.iter().partition(|figure| figure.panels.len() == 1 && !figure.is_wide());
    let mut split = String::new();
    for figure in &alone {
        split.push_str(&of_figure(figure)?);
    }
    let mut rows = table(name, document);
    // A figure alone has the table beside it, where there is room.
    if alone.len() == 1 {
        split.push_str(&std::mem::take(&mut rows));
    }
    if !split.is_empty() {
        text.push_str(&format!("<div class=\"split\">\n{split}</div>\n"));
    }
    for figure in several {
        text.push_str(&of_figure(figure)?);
    }
    text.push_str(&rows);
    let figures = document.figures.iter();
    let figures =
        figures.map(|figure| format!("{}: <b>{}</b>", escaped(&figure.name), escaped(&figure.text())));
    let notes = document.notes.iter().map(|note| escaped(note));
    let elsewhere = document.reported_elsewhere.iter();
    let elsewhere = elsewhere.map(|said| format!("<i>Reported elsewhere</i>: {}", escaped(said)));
    text.push_str(&list(figures.chain(notes).chain(elsewhere)));
    text.push_str("</section>\n");
    Ok(text)
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
