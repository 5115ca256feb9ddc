//! `cargo xtask report`: one page for people from the documents of the experiments, and from nothing else.

mod canvas;
mod figure;
mod headline;
mod html;
mod markdown;
mod plots;
mod png;
mod series;
mod several;
mod speeds;
mod trap;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use fa_bench::EXPERIMENTS;
use fa_bench::lab::Document;

use figure::Figure;
use headline::{Headline, SENTENCES};
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
    /// Of the document's file beside the report, without its ending.
    name: String,
    document: Document,
    figures: Vec<Figure>,
}

/// All of the report.
struct Contents {
    headline: Headline,
    sections: Vec<Section>,
    /// Documents that could not be read, with the reason.
    left_out: Vec<String>,
}

/// A sentence that the documents prove, and the experiments and rows that prove it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Claim {
    text: String,
    sources: Vec<(String, Option<usize>)>,
}

impl Report {
    /// Writes the report, and says what is in it.
    ///
    /// # Errors
    /// When no document can be read, or nothing can be written.
    pub(crate) fn run(&self) -> Result<()> {
        let folder = &self.folder;
        let contents = read(folder)?;
        let changed = contents.write(folder)?;
        match Painter::new() {
            // Painting takes longer than all else, so that a plot that stayed keeps its PNG.
            Some(painter) => changed
                .iter()
                .try_for_each(|(path, svg)| write(&path.with_extension("png"), &painter.paint(svg)?))?,
            None => println!("this machine has no fonts: the plots are there as SVG alone"),
        }
        contents.left_out.iter().for_each(|line| println!("left out: {line}"));
        let count = contents.sections.len();
        println!("{0}/REPORT.md and {0}/report.html from {count} experiments", folder.display());
        Ok(())
    }
}

/// The documents of a folder that are experiments', which each lie in a file of the experiment's name. Of
/// several GPUs there may be some, whatever their names.
fn read(folder: &Path) -> Result<Contents> {
    if !folder.is_dir() {
        bail!("{}: no such folder; `fa-bench all` makes one", folder.display());
    }
    let (mut sections, mut unreadable, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for experiment in experiments(folder)? {
        let file = format!("{experiment}.json");
        let path = folder.join(&file);
        let known = EXPERIMENTS.contains(&&*experiment);
        if !path.exists() {
            missing.push(format!(
                "{file} is not there; `fa-bench {experiment} --json {}` makes it",
                path.display()
            ));
            continue;
        }
        match Document::read(&path) {
            Ok(document) if !known && !is_shown(&document, &experiment) => {}
            Ok(document) => {
                let figures =
                    plots::of(&document).with_context(|| format!("{}: cannot be drawn", path.display()))?;
                sections.push(Section { name: experiment, document, figures });
            }
            Err(error) if known => unreadable.push(format!("{error:#}")),
            // Other JSON, such as a trace or a sweep.
            Err(_) => {}
        }
    }
    // Where there is none of `fa-bench all`, none is missing.
    let is_of_all = |section: &Section| EXPERIMENTS.contains(&section.name());
    let all = sections.is_empty() || !unreadable.is_empty() || sections.iter().any(is_of_all);
    let missing = missing.into_iter().filter(|_| all);
    let left_out: Vec<_> = unreadable.into_iter().chain(missing).collect();
    if sections.is_empty() {
        let first = left_out.first().map_or("it is empty", String::as_str);
        bail!("{}: no document of an experiment can be read: {first}", folder.display());
    }
    let room = SENTENCES - usize::from(is_on_cpu(&sections));
    let headline = Headline::of(&sections, device(&sections), room)?;
    Ok(Contents { headline, sections, left_out })
}

/// Whether a document that is not of `fa-bench all` is shown: it has its experiment's name, or is of several
/// GPUs.
fn is_shown(document: &Document, name: &str) -> bool {
    [name, several::EXPERIMENT].contains(&&*document.header.experiment)
}

/// Names of experiments: those of `fa-bench all` in its order, then those of other files. The machine's
/// description, `doctor`, comes last.
fn experiments(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("{}: cannot be read", folder.display()))?;
    let stem = |path: PathBuf| {
        let json = path.extension().is_some_and(|extension| extension == "json");
        path.file_stem().filter(|_| json)?.to_str().map(str::to_owned)
    };
    let mut others: Vec<_> = entries.filter_map(|entry| stem(entry.ok()?.path())).collect();
    others.retain(|name| !EXPERIMENTS.contains(&&**name));
    others.sort_unstable();
    let names = EXPERIMENTS.map(str::to_owned).into_iter().chain(others);
    let (last, first): (Vec<_>, Vec<_>) = names.partition(|name| name == "doctor");
    Ok(first.into_iter().chain(last).collect())
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).with_context(|| format!("{}: cannot be written", path.display()))
}

/// The device that the first section ran on; others may differ, and say so.
fn device(sections: &[Section]) -> &str {
    sections.first().map_or("", Section::device)
}

/// Whether there was no GPU.
fn is_on_cpu(sections: &[Section]) -> bool {
    sections.iter().all(|section| section.document.header.backend != "cuda")
}

impl Contents {
    /// Writes both texts and the plots as SVG. Gives the plots, with their paths, that differ from what was
    /// there.
    fn write(&self, folder: &Path) -> Result<Vec<(PathBuf, String)>> {
        let plots = folder.join("plots");
        fs::create_dir_all(&plots).with_context(|| format!("{}: cannot be made", plots.display()))?;
        let mut changed = Vec::new();
        for figure in self.figures() {
            let (path, svg) = (plots.join(format!("{}.svg", figure.name)), figure.svg()?);
            if fs::read_to_string(&path).ok().as_ref() != Some(&svg) || !path.with_extension("png").exists() {
                write(&path, svg.as_bytes())?;
                changed.push((path, svg));
            }
        }
        write(&folder.join("REPORT.md"), markdown::render(self).as_bytes())?;
        write(&folder.join("report.html"), html::render(self)?.as_bytes())?;
        Ok(changed)
    }

    /// All figures, the beginning's first.
    fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.headline.figures().chain(self.sections.iter().flat_map(|section| &section.figures))
    }

    /// Rows that did not run and documents that are not there, with their reasons, a line each.
    fn not_run(&self) -> Vec<String> {
        let of_section = |section: &Section| {
            let refused = section.document.rows.iter().filter_map(|row| Some((row, row.not_run.as_ref()?)));
            let line = refused.map(|(row, reason)| {
                format!("{}: {} {} was not run: {reason}", section.name(), row.case, row.series)
            });
            line.collect::<Vec<_>>()
        };
        self.sections.iter().flat_map(of_section).chain(self.left_out.iter().cloned()).collect()
    }
}

impl Section {
    /// As headings and links have it: its experiment's, unless there are several documents of that.
    fn name(&self) -> &str {
        &self.name
    }

    fn experiment(&self) -> &str {
        &self.document.header.experiment
    }

    fn device(&self) -> &str {
        &self.document.header.device.name
    }
}

#[cfg(test)]
mod tests;
