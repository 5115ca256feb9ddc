//! `cargo xtask report`: one page for people from the documents of the experiments, and from nothing else.

mod canvas;
mod html;
mod markdown;
mod plots;
mod png;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use fa_bench::EXPERIMENTS;
use fa_bench::lab::{Document, Row};

use plots::Plot;
use png::Painter;

/// Make REPORT.md, report.html and plots/ from a folder of experiments' documents, as `fa-bench all` writes
/// it.
#[derive(Args)]
pub(crate) struct Report {
    /// The folder, as in results/h200
    folder: PathBuf,
}

/// An experiment in the report.
struct Section {
    /// The document's file beside the report.
    file: String,
    document: Document,
    plots: Vec<Plot>,
}

/// All of the report.
struct Contents {
    sections: Vec<Section>,
    /// Documents that could not be read, with the reason.
    left_out: Vec<String>,
}

impl Report {
    /// Writes the report, and says what is in it.
    ///
    /// # Errors
    /// When no document can be read, or nothing can be written.
    pub(crate) fn run(&self) -> Result<()> {
        let folder = &self.folder;
        let contents = read(folder)?;
        let plots = folder.join("plots");
        fs::create_dir_all(&plots).with_context(|| format!("{}: cannot be made", plots.display()))?;
        let painter = Painter::new();
        for plot in contents.sections.iter().flat_map(|section| &section.plots) {
            write(&plots.join(format!("{}.svg", plot.name)), plot.svg.as_bytes())?;
            if let Some(painter) = &painter {
                write(&plots.join(format!("{}.png", plot.name)), &painter.paint(&plot.svg)?)?;
            }
        }
        if painter.is_none() {
            println!("this machine has no fonts: the plots are there as SVG alone");
        }
        let (markdown, html) = (folder.join("REPORT.md"), folder.join("report.html"));
        write(&markdown, markdown::render(&contents).as_bytes())?;
        write(&html, html::render(&contents).as_bytes())?;
        contents.left_out.iter().for_each(|line| println!("left out: {line}"));
        let count = contents.sections.len();
        println!("{} and {} from {count} experiments", markdown.display(), html.display());
        Ok(())
    }
}

/// The documents of a folder that are experiments', in the order of `fa-bench all`.
fn read(folder: &Path) -> Result<Contents> {
    if !folder.is_dir() {
        bail!("{}: no such folder; `fa-bench all` makes one", folder.display());
    }
    let mut contents = Contents { sections: Vec::new(), left_out: Vec::new() };
    for experiment in EXPERIMENTS {
        let file = format!("{experiment}.json");
        let path = folder.join(&file);
        if !path.exists() {
            contents.left_out.push(format!(
                "{file} is not there; `fa-bench {experiment} --json {}` makes it",
                path.display()
            ));
            continue;
        }
        match Document::read(&path) {
            Ok(document) => {
                let plots =
                    plots::of(&document).with_context(|| format!("{}: cannot be drawn", path.display()))?;
                contents.sections.push(Section { file, document, plots });
            }
            Err(error) => contents.left_out.push(format!("{error:#}")),
        }
    }
    match &contents.left_out[..] {
        all if contents.sections.is_empty() => {
            let first = all.first().map_or("it is empty", String::as_str);
            bail!("{}: no document of an experiment can be read: {first}", folder.display());
        }
        _ => Ok(contents),
    }
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).with_context(|| format!("{}: cannot be written", path.display()))
}

/// A sentence that the documents prove, and the row that proves it.
struct Claim {
    text: String,
    experiment: String,
    row: Option<usize>,
}

impl Contents {
    /// What a hasty reader should know, each from one row or figure.
    fn claims(&self) -> Vec<Claim> {
        self.sections.iter().flat_map(Section::claims).collect()
    }

    /// What the first section ran on; others may differ, and say so.
    fn device(&self) -> &str {
        self.sections.first().map_or("", |section| &section.document.header.device.name)
    }

    /// Whether there was no GPU.
    fn is_on_cpu(&self) -> bool {
        self.sections.iter().any(|section| section.document.header.backend != "cuda")
    }
}

impl Section {
    fn name(&self) -> &str {
        &self.document.header.experiment
    }

    fn claims(&self) -> Vec<Claim> {
        let rows = &self.document.rows;
        let claim =
            |text: String, row: Option<usize>| Claim { text, experiment: self.name().to_owned(), row };
        let largest = |name: &str| {
            let valued =
                rows.iter().enumerate().filter_map(|(index, row)| Some((index, row, row.figure(name)?)));
            let ours = valued.filter(|(_, row, _)| !row.series.starts_with("torch"));
            ours.max_by(|a, b| a.2.total_cmp(&b.2))
        };
        let mut claims = Vec::new();
        match self.name() {
            "flash" | "scaling" => {
                if let Some((index, row, speedup)) = largest("speedup over standard") {
                    let Row { case, series, .. } = row;
                    claims.push(claim(
                        format!("{series} is {speedup:.2} times as fast as unfused attention at {case}"),
                        Some(index),
                    ));
                }
            }
            "memory" => {
                if let Some((index, row, saved)) = largest("saved") {
                    let Row { case, series, .. } = row;
                    claims.push(claim(
                        format!(
                            "{series} takes {saved:.1} % less extra memory than unfused attention at {case}"
                        ),
                        Some(index),
                    ));
                }
            }
            _ => {}
        }
        let figures = self
            .document
            .figures
            .iter()
            .map(|figure| claim(format!("{}: {}", figure.name, figure.text()), None));
        claims.extend(
            figures.filter(|_| matches!(self.name(), "scaling" | "alignment" | "roofline" | "tiles")),
        );
        // Where the planner's choice comes first in each case.
        let comparable = ["flash", "scaling", "matmul", "decode", "causal", "dtypes"].contains(&self.name());
        claims.extend(self.against_peer().filter(|_| comparable).map(|text| claim(text, None)));
        claims
    }

    /// The geometric mean of how much longer each series of the peer takes.
    fn against_peer(&self) -> Option<String> {
        let name = &self.document.peer.as_ref()?.name;
        let mut best: Option<(String, f64, f64, usize)> = None;
        let mut series: Vec<&str> = self.document.rows.iter().map(|row| &*row.series).collect();
        series.retain(|series| series.starts_with("torch"));
        series.sort_unstable();
        series.dedup();
        for one in series {
            let rows = self.document.rows.iter().filter(|row| row.series == one);
            let ratio = |row: &Row| {
                let figures = &row.figures;
                figures
                    .iter()
                    .find(|figure| figure.name.starts_with("its time over"))
                    .map(|figure| figure.value)
            };
            let ratios: Vec<_> = rows.filter_map(ratio).collect();
            if ratios.is_empty() {
                continue;
            }
            let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
            let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
            // The strongest of the peer's is what counts.
            if best.as_ref().is_none_or(|(_, before, ..)| mean < *before) {
                best = Some((one.to_owned(), mean, least, ratios.len()));
            }
        }
        let (series, mean, least, count) = best?;
        Some(format!(
            "the fastest of {name}, {series}, takes {mean:.2} times as long in the geometric mean of {count} cases, and \
             {least:.2} times at least"
        ))
    }
}

#[cfg(test)]
mod tests;
