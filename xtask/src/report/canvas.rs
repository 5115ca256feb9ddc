//! Axes, scales and marks of the report's plots, as SVG.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Text and axes. The HTML report gives this colour the page's own.
pub(super) const INK: RGBColor = RGBColor(1, 2, 3);
/// Lines that help the eye.
const GRID: RGBColor = RGBColor(200, 200, 201);

/// Series colours that colour-blind readers tell apart (Okabe and Ito 2008), from dark to light in grey.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// The place of a plot's inner part, and of what is around it, in pixels.
pub(super) const SIZE: (i32, i32) = (860, 440);
const LEFT: i32 = 84;
const RIGHT: i32 = 610;
const TOP: i32 = 52;
const BOTTOM: i32 = 376;

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// What an axis shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis<'a> {
    /// With its unit.
    pub(super) label: &'a str,
    pub(super) logarithmic: bool,
}

/// From values to pixels.
#[derive(Clone, Debug)]
struct Scale {
    from: f64,
    to: f64,
    pixels: (i32, i32),
    logarithmic: bool,
}

impl Scale {
    /// A scale that all of `values` fit on; a linear one begins at 0 where `zero` says so.
    fn over(values: &[f64], pixels: (i32, i32), logarithmic: bool, zero: bool) -> Self {
        let (least, most) =
            values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), &value| {
                (least.min(value), most.max(value))
            });
        let (from, to) = match logarithmic {
            true => (least / 1.25, most * 1.25),
            false => {
                let gap = 0.05 * (most - least).max(most.abs() * 1e-3);
                (if zero { 0.0 } else { least - gap }, most + gap)
            }
        };
        Self { from, to, pixels, logarithmic }
    }

    fn at(&self, value: f64) -> i32 {
        let fraction = match self.logarithmic {
            true => (value / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        let (first, last) = (f64::from(self.pixels.0), f64::from(self.pixels.1));
        (first + fraction.clamp(-0.5, 1.5) * (last - first)).round() as i32
    }

    /// Round values on the scale.
    fn ticks(&self) -> Vec<f64> {
        let within = |value: &f64| (self.from..=self.to).contains(value);
        if self.logarithmic {
            let decades = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
            let wide = self.to / self.from > 1e3;
            let steps: &[f64] = if wide { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let of = |decade: i32| steps.iter().map(move |step| step * 10_f64.powi(decade));
            return decades.flat_map(of).filter(within).collect();
        }
        let raw = (self.to - self.from) / 6.0;
        let decade = 10_f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
        let step = step.into_iter().find(|&step| step >= raw).unwrap_or(10.0 * decade);
        let first = (self.from / step).ceil() as i64;
        (first..first + 20).map(|index| index as f64 * step).filter(within).collect()
    }
}

/// A plot under way.
pub(super) struct Canvas<'a> {
    area: Area<'a>,
    x: Scale,
    y: Scale,
    legend: i32,
}

impl<'a> Canvas<'a> {
    /// Draws title and axes over the range of `points`. `ticks` are those of x, where they are given.
    pub(super) fn new(
        text: &'a mut String,
        title: &str,
        (x_axis, y_axis): (Axis<'_>, Axis<'_>),
        points: &[(f64, f64)],
        ticks: &[f64],
    ) -> Result<Self> {
        let area = SVGBackend::with_string(text, (SIZE.0 as u32, SIZE.1 as u32)).into_drawing_area();
        area.fill(&WHITE)?;
        let (xs, ys): (Vec<_>, Vec<_>) = points.iter().copied().unzip();
        let x = Scale::over(&xs, (LEFT, RIGHT), x_axis.logarithmic, false);
        let y = Scale::over(&ys, (BOTTOM, TOP), y_axis.logarithmic, true);
        let canvas = Self { area, x, y, legend: TOP + 8 };
        canvas.write(title, (12, 14), 17, (HPos::Left, VPos::Top))?;
        let x_ticks = if ticks.is_empty() { canvas.x.ticks() } else { apart(&canvas.x, ticks) };
        for value in x_ticks {
            let at = canvas.x.at(value);
            canvas.line(&[(at, TOP), (at, BOTTOM)], GRID, 1)?;
            canvas.write(&number(value), (at, BOTTOM + 8), 12, (HPos::Center, VPos::Top))?;
        }
        for value in canvas.y.ticks() {
            let at = canvas.y.at(value);
            canvas.line(&[(LEFT, at), (RIGHT, at)], GRID, 1)?;
            canvas.write(&number(value), (LEFT - 8, at), 12, (HPos::Right, VPos::Center))?;
        }
        canvas.line(&[(LEFT, TOP), (LEFT, BOTTOM), (RIGHT, BOTTOM)], INK, 1)?;
        canvas.write(x_axis.label, ((LEFT + RIGHT) / 2, BOTTOM + 32), 13, (HPos::Center, VPos::Top))?;
        let style = ("sans-serif", 13).into_font().transform(FontTransform::Rotate270).color(&INK);
        let style = style.pos(Pos::new(HPos::Center, VPos::Center));
        canvas.area.draw_text(y_axis.label, &style, (18, (TOP + BOTTOM) / 2))?;
        Ok(canvas)
    }

    /// A series with its line, marks, and line in the legend.
    pub(super) fn series(
        &mut self,
        index: usize,
        name: &str,
        points: &[(f64, f64)],
        joined: bool,
    ) -> Result<()> {
        let places: Vec<_> = points.iter().map(|&(x, y)| (self.x.at(x), self.y.at(y))).collect();
        let colour = COLOURS[index % COLOURS.len()];
        if joined {
            self.line(&places, colour, 2)?;
        }
        // Many points are a line of their own, which marks would hide.
        if places.len() <= 40 || !joined {
            places.iter().try_for_each(|&place| self.mark(index, place))?;
        }
        let place = (RIGHT + 24, self.legend);
        self.line(&[(place.0 - 10, place.1), (place.0 + 10, place.1)], colour, 2)?;
        self.mark(index, place)?;
        self.write(name, (place.0 + 18, place.1), 12, (HPos::Left, VPos::Center))?;
        self.legend += 22;
        Ok(())
    }

    /// A line that is no series, such as a roof.
    pub(super) fn guide(&self, points: &[(f64, f64)]) -> Result<()> {
        let places: Vec<_> = points.iter().map(|&(x, y)| (self.x.at(x), self.y.at(y))).collect();
        self.line(&places, INK, 2)
    }

    /// The ends of the x axis.
    pub(super) const fn x_range(&self) -> (f64, f64) {
        (self.x.from, self.x.to)
    }

    fn line(&self, places: &[(i32, i32)], colour: RGBColor, width: u32) -> Result<()> {
        Ok(self.area.draw(&PathElement::new(places.to_vec(), colour.stroke_width(width)))?)
    }

    /// Each series has a shape of its own, so that grey tells them apart.
    fn mark(&self, index: usize, (x, y): (i32, i32)) -> Result<()> {
        let colour = COLOURS[index % COLOURS.len()];
        let corners: &[(i32, i32)] = match index % 5 {
            0 => return Ok(self.area.draw(&Circle::new((x, y), 5, colour.filled()))?),
            1 => &[(-5, -5), (5, -5), (5, 5), (-5, 5)],
            2 => &[(0, -6), (6, 5), (-6, 5)],
            3 => &[(0, -7), (7, 0), (0, 7), (-7, 0)],
            _ => &[(0, 6), (6, -5), (-6, -5)],
        };
        let corners: Vec<_> = corners.iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
        Ok(self.area.draw(&Polygon::new(corners, colour.filled()))?)
    }

    fn write(
        &self,
        text: &str,
        at: (i32, i32),
        size: i32,
        (horizontal, vertical): (HPos, VPos),
    ) -> Result<()> {
        write(&self.area, text, at, size, (horizontal, vertical))
    }
}

/// Bars with their names at the left and their values at the end, one below the other.
///
/// # Errors
/// When nothing can be drawn.
pub(super) fn bars(
    text: &mut String,
    title: &str,
    label: &str,
    rows: &[(String, usize, f64, String)],
) -> Result<()> {
    const BAR: i32 = 22;
    const NAMES: i32 = 300;
    let height = TOP + BAR * rows.len() as i32 + 44;
    let area = SVGBackend::with_string(text, (SIZE.0 as u32, height as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    write(&area, title, (12, 14), 17, (HPos::Left, VPos::Top))?;
    let most = rows.iter().map(|(_, _, value, _)| *value).fold(0.0, f64::max);
    for (index, (name, series, value, shown)) in rows.iter().enumerate() {
        let y = TOP + BAR * index as i32;
        let length = (f64::from(SIZE.0 - NAMES - 110) * value / most.max(f64::MIN_POSITIVE)) as i32;
        let fill = COLOURS[series % COLOURS.len()].filled();
        area.draw(&Rectangle::new([(NAMES, y + 2), (NAMES + length.max(1), y + BAR - 3)], fill))?;
        write(&area, name, (NAMES - 8, y + BAR / 2), 12, (HPos::Right, VPos::Center))?;
        write(&area, shown, (NAMES + length + 8, y + BAR / 2), 12, (HPos::Left, VPos::Center))?;
    }
    write(&area, label, (NAMES, height - 14), 13, (HPos::Left, VPos::Bottom))
}

fn write(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    size: i32,
    (horizontal, vertical): (HPos, VPos),
) -> Result<()> {
    let style = ("sans-serif", size).into_font().color(&INK).pos(Pos::new(horizontal, vertical));
    Ok(area.draw_text(text, &style, at)?)
}

/// Of the values those whose labels do not run into one another.
fn apart(scale: &Scale, values: &[f64]) -> Vec<f64> {
    let mut kept: Vec<f64> = Vec::new();
    for &value in values {
        if kept.last().is_none_or(|&last| scale.at(value) - scale.at(last) >= 48) {
            kept.push(value);
        }
    }
    kept
}

/// A tick's value, as short as it can be.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        v if !(1e-3..1e7).contains(&v) => format!("{value:.0e}"),
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_go_from_end_to_end_and_have_round_ticks() {
        let scale = Scale { from: 0.0, to: 60.0, pixels: (100, 0), logarithmic: false };
        assert_eq!([scale.at(0.0), scale.at(30.0), scale.at(60.0)], [100, 50, 0]);
        assert_eq!(scale.ticks(), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
        let scale = Scale { from: 1.0, to: 100.0, pixels: (0, 100), logarithmic: true };
        assert_eq!([scale.at(1.0), scale.at(10.0), scale.at(100.0)], [0, 50, 100]);
        assert_eq!(scale.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    }

    #[test]
    fn ticks_keep_their_distance() {
        let scale = Scale { from: 1.0, to: 101.0, pixels: (0, 100), logarithmic: false };
        assert_eq!(apart(&scale, &[1.0, 2.0, 60.0, 70.0]), [1.0, 60.0]);
        assert_eq!([number(0.0), number(4096.0), number(0.25), number(2e-6)], ["0", "4096", "0.25", "2e-6"]);
    }

    #[test]
    fn grey_tells_neighbours_apart_by_their_shape() {
        let mut shapes = Vec::new();
        for index in 0..5 {
            let mut text = String::new();
            let axis = Axis { label: "", logarithmic: false };
            let mut canvas =
                Canvas::new(&mut text, "", (axis, axis), &[(0.0, 0.0), (1.0, 1.0)], &[]).unwrap();
            canvas.series(index, "", &[(0.5, 0.5)], false).unwrap();
            drop(canvas);
            let marks = text.lines().filter(|line| line.contains("<circle") || line.contains("<polygon"));
            shapes.push(marks.map(|line| line.matches(',').count()).collect::<Vec<_>>());
        }
        assert!(shapes.iter().all(|marks| marks.len() == 2), "the point and its legend: {shapes:?}");
    }
}
