//! Heat maps of tiles: panels of BLOCK_M by BLOCK_N, coloured by TFLOP/s. A sweep has a panel for each
//! kernel and problem, and in it the best of what else each tile has to choose.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::document::{Document, Rejected, Row};
use crate::table::{seconds, significant};

/// Pixels of a cell.
const CELL: (i32, i32) = (132, 76);
/// Pixels left of and above a panel's cells: labels and title.
const LABELS: (i32, i32) = (96, 44);
/// Pixels below a panel's cells, for the labels of its axis.
const FOOT: i32 = 56;
/// Pixels above the panels, for the title of all.
const TITLE: i32 = 56;
/// The least pixels that the title of all needs.
const TITLE_WIDTH: i32 = 720;
/// Pixels of the colour scale with its labels.
const SCALE: i32 = 130;
/// Characters of a reason that fit a line of a cell, and lines.
const WRAP: (usize, usize) = (23, 4);

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// What a cell shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A tile that ran.
    Measured {
        /// Its speed, which is its colour.
        tflops: f64,
        /// Its latency.
        seconds: f64,
        /// What else tells it from others, such as its warps.
        with: String,
    },
    /// Why there is no time.
    Without(String),
}

/// What has the same axes, such as one head_dim.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Above its cells.
    pub title: String,
    /// By (BLOCK_M, BLOCK_N).
    pub cells: Vec<((u32, u32), Cell)>,
}

/// Draws a document's rows as SVG.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn write(document: &Document, path: &Path) -> Result<()> {
    let title = format!("{} {}, {}, {}", document.kernel, document.dtype, document.device(), document.shape);
    let text = svg(&title, document.shape.axes(), &panels(document))
        .with_context(|| format!("{}: cannot be drawn", path.display()))?;
    fs::write(path, text).with_context(|| format!("{}: cannot be written", path.display()))
}

/// Draws panels of tiles beside one another, with one scale of colours, and what BLOCK_M and BLOCK_N are.
///
/// # Errors
/// When the text of an axis cannot be drawn.
pub fn svg(title: &str, axes: [&str; 2], panels: &[Panel]) -> Result<String> {
    let mut text = String::new();
    draw(title, axes, panels, &mut text)?;
    Ok(text)
}

fn draw(title: &str, axes: [&str; 2], panels: &[Panel], text: &mut String) -> Result<()> {
    let places = || panels.iter().flat_map(|panel| &panel.cells).map(|(place, _)| *place);
    let ms: Vec<_> = places().map(|place| place.0).collect::<BTreeSet<_>>().into_iter().collect();
    let ns: Vec<_> = places().map(|place| place.1).collect::<BTreeSet<_>>().into_iter().collect();
    let best = panels.iter().flat_map(|panel| &panel.cells).filter_map(|(_, cell)| cell.tflops());
    let most = best.fold(0.0, f64::max);
    let panel_width = LABELS.0 + CELL.0 * ns.len() as i32;
    let height = TITLE + LABELS.1 + CELL.1 * ms.len() as i32 + FOOT;
    let width = (panel_width * panels.len() as i32 + SCALE).max(TITLE_WIDTH);
    let size = (width as u32, height as u32);
    let area = SVGBackend::with_string(text, size).into_drawing_area();
    area.fill(&WHITE)?;
    label(&area, title, (12, 14), 18, (HPos::Left, VPos::Top), &BLACK)?;
    for (index, panel) in panels.iter().enumerate() {
        let corner = (panel_width * index as i32 + LABELS.0, TITLE + LABELS.1);
        draw_panel(&area, panel, corner, axes, (&ms, &ns), most)?;
    }
    let left = panel_width * panels.len() as i32 + 24;
    draw_scale(&area, (left, TITLE + LABELS.1), CELL.1 * ms.len() as i32, most)?;
    area.present()?;
    Ok(())
}

/// The panels by kernel and problem.
fn panels(document: &Document) -> Vec<Panel> {
    let rows = &document.rows;
    let places = rows.iter().map(|row| (row.block_m, row.block_n));
    let rejected = document.rejected.iter().map(|row| (row.block_m, row.block_n));
    let places: BTreeSet<_> = places.chain(rejected).collect();
    let mut firsts: Vec<&Row> = Vec::new();
    for row in rows {
        if !firsts.iter().any(|first| first.contest() == row.contest()) {
            firsts.push(row);
        }
    }
    firsts.sort_by(|a, b| a.contest().cmp(&b.contest()));
    let panels = firsts.into_iter().map(|first| {
        let of_place = |&place: &(u32, u32)| Some((place, cell(document, first, place)?));
        let cells = places.iter().filter_map(of_place).collect();
        let contest = first.contest_name(&document.kernel);
        let title = match first.tile_head_dim {
            0 => contest,
            head_dim => format!("{contest} (HEAD_DIM {head_dim})"),
        };
        Panel { title, cells }
    });
    panels.collect()
}

/// The best that a tile did in the contest of `first`, else why there is nothing; `None` where it was not
/// tried.
fn cell(document: &Document, first: &Row, place: (u32, u32)) -> Option<Cell> {
    let here = |row: &&Row| row.contest() == first.contest() && (row.block_m, row.block_n) == place;
    let rows = || document.rows.iter().filter(here);
    let measured = rows().filter_map(|row| Some((row, row.measurement.as_ref()?)));
    let best = measured.min_by(|a, b| a.1.times.median_s.total_cmp(&b.1.times.median_s));
    if let Some((row, measured)) = best {
        let (tflops, seconds) = (measured.tflops, measured.times.median_s);
        return Some(Cell::Measured { tflops, seconds, with: row.with() });
    }
    let failed = rows().find_map(|row| row.error.clone());
    let rejected = || {
        let here = |row: &&Rejected| {
            row.algorithm == first.algorithm
                && row.tile_head_dim == first.tile_head_dim
                && (row.block_m, row.block_n) == place
        };
        document.rejected.iter().find(here).map(|row| row.reason.clone())
    };
    failed.or_else(rejected).map(Cell::Without)
}

impl Cell {
    const fn tflops(&self) -> Option<f64> {
        match self {
            Self::Measured { tflops, .. } => Some(*tflops),
            Self::Without(_) => None,
        }
    }
}

fn draw_panel(
    area: &Area<'_>,
    panel: &Panel,
    (left, top): (i32, i32),
    [of_m, of_n]: [&str; 2],
    (ms, ns): (&[u32], &[u32]),
    most: f64,
) -> Result<()> {
    let middle = (HPos::Center, VPos::Center);
    let (width, height) = (CELL.0 * ns.len() as i32, CELL.1 * ms.len() as i32);
    label(area, &panel.title, (left + width / 2, top - 22), 16, middle, &BLACK)?;
    for ((block_m, block_n), cell) in &panel.cells {
        let place =
            |values: &[u32], value: &u32| values.iter().position(|one| one == value).unwrap_or(0) as i32;
        let (x, y) = (left + CELL.0 * place(ns, block_n), top + CELL.1 * place(ms, block_m));
        draw_cell(area, cell, (x, y), most)?;
    }
    for (index, block_n) in ns.iter().enumerate() {
        let x = left + CELL.0 * index as i32 + CELL.0 / 2;
        label(area, &block_n.to_string(), (x, top + height + 14), 14, middle, &BLACK)?;
    }
    label(area, of_n, (left + width / 2, top + height + 36), 14, middle, &BLACK)?;
    for (index, block_m) in ms.iter().enumerate() {
        let y = top + CELL.1 * index as i32 + CELL.1 / 2;
        label(area, &block_m.to_string(), (left - 8, y), 14, (HPos::Right, VPos::Center), &BLACK)?;
    }
    let style = ("sans-serif", 14).into_font().transform(FontTransform::Rotate270);
    let style = style.color(&BLACK).pos(Pos::new(HPos::Center, VPos::Center));
    area.draw_text(of_m, &style, (left - 58, top + height / 2))?;
    Ok(())
}

fn draw_cell(area: &Area<'_>, cell: &Cell, (x, y): (i32, i32), most: f64) -> Result<()> {
    let corners = [(x + 1, y + 1), (x + CELL.0 - 1, y + CELL.1 - 1)];
    let lines: Vec<String> = match cell {
        Cell::Measured { tflops, seconds: time, with } => {
            vec![format!("{} TFLOP/s", significant(*tflops)), seconds(*time), with.clone()]
        }
        Cell::Without(reason) => wrapped(reason),
    };
    let (fill, ink, font) = match cell.tflops() {
        Some(tflops) => {
            let fill = colour(tflops, most);
            (fill, if luminance(fill) < 0.5 { WHITE } else { BLACK }, 14)
        }
        None => (RGBColor(240, 240, 240), RGBColor(70, 70, 70), 10),
    };
    area.draw(&Rectangle::new(corners, fill.filled()))?;
    let step = font + 5;
    let first = y + CELL.1 / 2 - step * (lines.len() as i32 - 1) / 2;
    for (index, line) in lines.iter().enumerate() {
        let at = (x + CELL.0 / 2, first + step * index as i32);
        label(area, line, at, font, (HPos::Center, VPos::Center), &ink)?;
    }
    Ok(())
}

/// The colours from 0 to the fastest, with their TFLOP/s.
fn draw_scale(area: &Area<'_>, (left, top): (i32, i32), height: i32, most: f64) -> Result<()> {
    for step in 0..height {
        let y = top + height - step;
        let fill = colour(f64::from(step), f64::from(height)).filled();
        area.draw(&Rectangle::new([(left, y - 1), (left + 18, y)], fill))?;
    }
    let at = |fraction: f64| top + height - (f64::from(height) * fraction) as i32;
    for fraction in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let text = significant(most * fraction);
        label(area, &text, (left + 24, at(fraction)), 13, (HPos::Left, VPos::Center), &BLACK)?;
    }
    label(area, "TFLOP/s", (left, top - 22), 14, (HPos::Left, VPos::Center), &BLACK)
}

fn label(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    size: i32,
    (horizontal, vertical): (HPos, VPos),
    ink: &RGBColor,
) -> Result<()> {
    let style = ("sans-serif", size).into_font().color(ink).pos(Pos::new(horizontal, vertical));
    area.draw_text(text, &style, at)?;
    Ok(())
}

/// Viridis, whose lightness rises all the way: it reads in grey too.
fn colour(value: f64, most: f64) -> RGBColor {
    let fraction = if most > 0.0 { (value / most).clamp(0.0, 1.0) } else { 0.0 };
    ViridisRGB.get_color(fraction)
}

/// Relative luminance (ITU-R BT.709 weights, without the transfer curve): how light a colour prints.
fn luminance(colour: RGBColor) -> f64 {
    (0.2126 * f64::from(colour.0) + 0.7152 * f64::from(colour.1) + 0.0722 * f64::from(colour.2)) / 255.0
}

/// A text in lines that fit a cell; what is beyond them is cut off.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= WRAP.0 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    if lines.len() > WRAP.1 {
        lines.truncate(WRAP.1);
        if let Some(last) = lines.last_mut() {
            last.push_str(" …");
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture::{self, BROKEN, FASTEST, WRONG};

    fn document() -> Document {
        let mut document = fixture::document();
        document.put(fixture::row(FASTEST, Some(1.5e-3)));
        document.put(fixture::row(WRONG, Some(3e-3)));
        document.put(fixture::row(BROKEN, None));
        document
    }

    #[test]
    fn each_tile_has_a_cell_with_its_best_or_with_the_reason() {
        let panels = panels(&document());
        assert_eq!(panels.len(), 1);
        let places: Vec<_> = panels[0].cells.iter().map(|(place, _)| *place).collect();
        assert_eq!(places, [(32, 32), (60, 32), (64, 32), (128, 32)]);
        let texts: Vec<_> = panels[0].cells.iter().map(|(_, cell)| cell.clone()).collect();
        assert!(matches!(&texts[0], Cell::Measured { seconds, .. } if *seconds == 1.5e-3));
        assert_eq!(texts[1], Cell::Without("BLOCK_M is 60; a positive multiple of 8 is needed".to_owned()));
        assert_eq!(texts[3], Cell::Without("not built: the gates refuse it: spill".to_owned()));
    }

    #[test]
    fn the_svg_has_units_and_figures() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map.svg");
        write(&document(), &path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let said = [
            "BLOCK_M (query rows)",
            "BLOCK_N (key rows)",
            "TFLOP/s",
            "1.50 ms",
            "2 blocks",
            "head_dim 64 (HEAD_DIM 64)",
        ];
        for said in said {
            assert!(text.contains(said), "{said}");
        }
    }

    #[test]
    fn lighter_is_faster_in_grey_too() {
        let grey: Vec<_> = (0..=10).map(|tenth| luminance(colour(f64::from(tenth), 10.0))).collect();
        assert!(grey.windows(2).all(|pair| pair[0] < pair[1]), "{grey:?}");
    }

    #[test]
    fn reasons_are_cut_to_a_cell() {
        assert_eq!(wrapped("232960 bytes of shared memory"), ["232960 bytes of shared", "memory"]);
        assert_eq!(wrapped(&"word ".repeat(40)).len(), WRAP.1);
    }
}
