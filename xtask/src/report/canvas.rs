//! Axes, scales and marks of the report's panels, as SVG.

mod scale;

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::series::{Look, Mark};
pub(super) use scale::number;
use scale::{Scale, apart};

/// Text and axes. The HTML report gives this colour the page's own.
pub(super) const INK: RGBColor = RGBColor(1, 2, 3);
/// Lines that help the eye.
const GRID: RGBColor = RGBColor(200, 200, 201);

/// Pixels of a panel. A phone shows one across, a desk two or three, and text is legible at both scales.
pub(super) const WIDTH: i32 = 480;
/// The place of a panel's inner part, the line of its title, and the inner part's height.
const LEFT: i32 = 54;
const RIGHT: i32 = WIDTH - 16;
const TOP: i32 = 56;
const TITLE: i32 = 26;
const INNER: i32 = 174;

/// Sizes of text, of which plotters takes 1/1.24 in pixels.
const SMALL: i32 = 16;
const LARGE: i32 = 18;

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// One SVG with its own axes.
pub(super) struct Panel {
    pub(super) width: i32,
    pub(super) height: i32,
    pub(super) svg: String,
}

/// An axis, and the values that all panels with it have in common.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    /// With its unit.
    pub(super) label: String,
    pub(super) logarithmic: bool,
    /// Values that must fit on it.
    pub(super) values: Vec<f64>,
    /// Where its labels stand; round values where there are none.
    pub(super) ticks: Vec<f64>,
}

/// The points of a series in a panel.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    pub(super) look: Look,
    pub(super) points: Vec<(f64, f64)>,
}

/// A bar of a panel of bars.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    pub(super) look: Look,
    pub(super) value: f64,
    /// The value for people.
    pub(super) text: String,
}

/// A panel of series over an axis, with lines between their points where `joined` says so.
///
/// # Errors
/// When nothing can be drawn.
pub(super) fn lines(
    title: &str,
    (x_axis, y_axis): (&Axis, &Axis),
    curves: &[Curve],
    joined: bool,
    guide: &[(f64, f64)],
) -> Result<Panel> {
    let x = Scale::over(&x_axis.values, (LEFT, RIGHT), x_axis.logarithmic, false);
    // A panel without a title is lower by its line.
    let top = if title.is_empty() { TOP - TITLE } else { TOP };
    let bottom = top + INNER;
    let y = Scale::over(&y_axis.values, (bottom, top), y_axis.logarithmic, true);
    panel(bottom + 50, |area| {
        write(area, title, (4, 6), (LARGE, true), (HPos::Left, VPos::Top))?;
        axes(area, (x_axis, &x), (y_axis, &y), (top, bottom))?;
        let place = |&(left, top): &(f64, f64)| (x.at(left), y.at(top));
        if !guide.is_empty() {
            line(area, guide.iter().map(place).collect(), INK, 2)?;
        }
        // The library's own lie on top.
        let (own, others): (Vec<_>, Vec<_>) = curves.iter().partition(|curve| curve.look.own);
        for Curve { look, points } in others.into_iter().chain(own) {
            let places: Vec<_> = points.iter().map(place).collect();
            // Marks and a wide stroke would hide the steps of a line of many points.
            let many = places.len() > 40;
            if joined {
                line(area, places.clone(), look.colour, if many { 2 } else { stroke(look) })?;
            }
            if !many || !joined {
                places.iter().try_for_each(|&place| mark(area, look, place))?;
            }
        }
        Ok(())
    })
}

/// A panel of bars, one below the other, as long as their share of `most`.
///
/// # Errors
/// When nothing can be drawn.
pub(super) fn bars(title: &str, label: &str, bars: &[Bar], most: f64) -> Result<Panel> {
    const BAR: i32 = 24;
    const NAMES: i32 = 208;
    const FIRST: i32 = 34;
    let bottom = FIRST + BAR * bars.len() as i32;
    panel(bottom + 34, |area| {
        write(area, title, (4, 6), (LARGE, true), (HPos::Left, VPos::Top))?;
        for (index, Bar { look, value, text }) in bars.iter().enumerate() {
            let y = FIRST + BAR * index as i32;
            let room = f64::from(WIDTH - NAMES - 112);
            let end = NAMES + ((room * value / most.max(f64::MIN_POSITIVE)) as i32).max(1);
            area.draw(&Rectangle::new([(NAMES, y + 3), (end, y + BAR - 3)], look.colour.filled()))?;
            let size = (SMALL, look.own);
            let middle = y + BAR / 2;
            write(area, &shortened(&look.label), (NAMES - 8, middle), size, (HPos::Right, VPos::Center))?;
            write(area, text, (end + 6, middle), size, (HPos::Left, VPos::Center))?;
        }
        line(area, vec![(NAMES, FIRST), (NAMES, bottom), (WIDTH - 16, bottom)], INK, 1)?;
        write(area, label, (WIDTH - 16, bottom + 8), (SMALL, false), (HPos::Right, VPos::Top))
    })
}

/// The title above a figure's panels.
///
/// # Errors
/// When it cannot be drawn.
pub(super) fn title(width: i32, height: i32, text: &str) -> Result<String> {
    let drawn =
        drawn(width, height, |area| write(area, text, (8, 8), (LARGE + 3, true), (HPos::Left, VPos::Top)))?;
    Ok(drawn.svg)
}

/// The line and mark of a series.
///
/// # Errors
/// When it cannot be drawn.
pub(super) fn swatch(look: &Look) -> Result<String> {
    let drawn = drawn(32, 16, |area| {
        line(area, vec![(2, 8), (30, 8)], look.colour, stroke(look))?;
        mark(area, look, (16, 8))
    })?;
    Ok(drawn.svg)
}

/// A series in the legend of an SVG, and the pixels that it takes across.
///
/// # Errors
/// When it cannot be drawn.
pub(super) fn legend_item(look: &Look) -> Result<(String, i32)> {
    // Without fonts at hand, the widest that a sans-serif of this size makes of such names.
    let letter = if look.own { 10 } else { 8 };
    let width = 60 + letter * look.label.chars().count() as i32;
    let drawn = drawn(width, 24, |area| {
        line(area, vec![(10, 12), (38, 12)], look.colour, stroke(look))?;
        mark(area, look, (24, 12))?;
        write(area, &look.label, (46, 12), (SMALL, look.own), (HPos::Left, VPos::Center))
    })?;
    Ok((drawn.svg, width))
}

fn panel(height: i32, draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<Panel> {
    drawn(WIDTH, height, |area| {
        area.fill(&WHITE)?;
        draw(area)
    })
}

fn drawn(width: i32, height: i32, draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<Panel> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (width as u32, height as u32)).into_drawing_area();
    draw(&area)?;
    area.present()?;
    drop(area);
    Ok(Panel { width, height, svg })
}

/// The grid, and both axes with their titles at their ends.
fn axes(
    area: &Area<'_>,
    (x_axis, x): (&Axis, &Scale),
    (y_axis, y): (&Axis, &Scale),
    (top, bottom): (i32, i32),
) -> Result<()> {
    write(area, &y_axis.label, (4, top - 24), (SMALL, false), (HPos::Left, VPos::Top))?;
    write(area, &x_axis.label, (RIGHT, bottom + 28), (SMALL, false), (HPos::Right, VPos::Top))?;
    let ticks = |axis: &Axis, scale: &Scale| match &axis.ticks[..] {
        [] => scale.ticks(),
        ticks => ticks.to_vec(),
    };
    for value in apart(x, &ticks(x_axis, x), 52) {
        let at = x.at(value);
        line(area, vec![(at, top), (at, bottom)], GRID, 1)?;
        write(area, &number(value), (at, bottom + 7), (SMALL, false), (HPos::Center, VPos::Top))?;
    }
    for value in apart(y, &ticks(y_axis, y), 18) {
        let at = y.at(value);
        line(area, vec![(LEFT, at), (RIGHT, at)], GRID, 1)?;
        write(area, &number(value), (LEFT - 7, at), (SMALL, false), (HPos::Right, VPos::Center))?;
    }
    line(area, vec![(LEFT, top), (LEFT, bottom), (RIGHT, bottom)], INK, 1)
}

const fn stroke(look: &Look) -> u32 {
    if look.own { 4 } else { 2 }
}

fn line(area: &Area<'_>, places: Vec<(i32, i32)>, colour: RGBColor, width: u32) -> Result<()> {
    Ok(area.draw(&PathElement::new(places, colour.stroke_width(width)))?)
}

fn mark(area: &Area<'_>, look: &Look, (x, y): (i32, i32)) -> Result<()> {
    let corners: &[(i32, i32)] = match look.mark {
        Mark::Circle => return Ok(area.draw(&Circle::new((x, y), 5, look.colour.filled()))?),
        Mark::Square => &[(-4, -4), (4, -4), (4, 4), (-4, 4)],
        Mark::Up => &[(0, -6), (5, 4), (-5, 4)],
        Mark::Diamond => &[(0, -6), (6, 0), (0, 6), (-6, 0)],
        Mark::Down => &[(0, 6), (5, -4), (-5, -4)],
    };
    let corners: Vec<_> = corners.iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
    Ok(area.draw(&Polygon::new(corners, look.colour.filled()))?)
}

fn write(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    (size, bold): (i32, bool),
    (horizontal, vertical): (HPos, VPos),
) -> Result<()> {
    let font = ("sans-serif", size).into_font();
    let font = if bold { font.style(FontStyle::Bold) } else { font };
    let style = font.color(&INK).pos(Pos::new(horizontal, vertical));
    Ok(area.draw_text(text, &style, at)?)
}

/// A name that fits the column beside the bars.
fn shortened(name: &str) -> String {
    const MOST: usize = 28;
    match name.chars().count() {
        count if count <= MOST => name.to_owned(),
        _ => name.chars().take(MOST - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests;
