//! A played trace as SVG: where the time of steps goes, pages in use, and how long tokens take.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::service::{Service, StepRecord};

/// Pixels of a panel with its labels, and of its inner part from the left, the right, the top and the bottom.
const PANEL: (i32, i32) = (760, 250);
const INNER: [i32; 4] = [74, 20, 44, 48];
/// Pixels above the panels.
const TITLE: i32 = 40;
/// Columns that the steps of a trace become.
const COLUMNS: usize = 170;

const ATTENTION: RGBColor = RGBColor(0, 114, 178);
const REST: RGBColor = RGBColor(190, 196, 204);
const GRID: RGBColor = RGBColor(220, 220, 222);
/// Of the series of the third panel, the library's first.
const SERIES: [RGBColor; 5] =
    [ATTENTION, RGBColor(213, 94, 0), RGBColor(0, 153, 111), RGBColor(201, 117, 164), RGBColor(90, 90, 96)];

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// What a plot shows.
pub(super) struct Plot<'a> {
    pub(super) title: String,
    /// The library's.
    pub(super) service: &'a Service,
    /// Pages of the pool.
    pub(super) pages: usize,
    /// Sorted times per output token of each series.
    pub(super) times: Vec<(String, Vec<f64>)>,
}

impl Plot<'_> {
    /// The plot as text.
    ///
    /// # Errors
    /// When a text cannot be drawn.
    pub(super) fn svg(&self) -> Result<String> {
        let mut text = String::new();
        let size = (PANEL.0 as u32, (TITLE + 3 * PANEL.1) as u32);
        {
            let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
            area.fill(&WHITE)?;
            label(&area, &self.title, (12, 22), 17, HPos::Left)?;
            let columns = columns(&self.service.steps);
            draw_time(&area, &columns)?;
            draw_pages(&area, &columns, self.pages)?;
            draw_times(&area, &self.times)?;
            area.present()?;
        }
        Ok(text)
    }
}

/// A stretch of the trace's time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Column {
    /// Seconds from the beginning.
    begin: f64,
    end: f64,
    /// Seconds of a step, on average.
    attention: f64,
    rest: f64,
    /// At most.
    pages: usize,
}

/// Stretches of as many steps each, in order.
fn columns(steps: &[StepRecord]) -> Vec<Column> {
    let chunk = steps.len().div_ceil(COLUMNS).max(1);
    let column = |steps: &[StepRecord]| {
        let mean = |part: fn(&StepRecord) -> f64| steps.iter().map(part).sum::<f64>() / steps.len() as f64;
        let first = steps[0];
        Column {
            begin: first.end - first.attention - first.rest,
            end: steps[steps.len() - 1].end,
            attention: mean(|step| step.attention),
            rest: mean(|step| step.rest),
            pages: steps.iter().map(|step| step.pages).max().unwrap_or(0),
        }
    };
    steps.chunks(chunk).map(column).collect()
}

/// The inner part of a panel, with the values at its right and its top.
struct Frame<'a, 'b> {
    area: &'a Area<'b>,
    top: i32,
    most: (f64, f64),
}

impl<'a, 'b> Frame<'a, 'b> {
    /// Panel number `index` with a title, axes from 0 to `most`, and what they are.
    fn draw(
        area: &'a Area<'b>,
        index: i32,
        title: &str,
        most: (f64, f64),
        [of_x, of_y]: [&str; 2],
    ) -> Result<Self> {
        let frame = Self { area, top: TITLE + PANEL.1 * index, most };
        label(area, title, (INNER[0], frame.top + 12), 15, HPos::Left)?;
        label(area, of_y, (INNER[0], frame.top + 32), 12, HPos::Left)?;
        let round = |value: f64| ((value * 1e6).round() / 1e6).to_string();
        for quarter in 0..=4 {
            let share = f64::from(quarter) / 4.0;
            let (x, y) = frame.at(most.0 * share, most.1 * share);
            let ([left, bottom], [right, _]) = (frame.corner(), frame.opposite());
            area.draw(&PathElement::new([(left, y), (right, y)], GRID))?;
            label(area, &round(most.1 * share), (left - 6, y), 12, HPos::Right)?;
            label(area, &round(most.0 * share), (x, bottom + 12), 12, HPos::Center)?;
        }
        let [left, bottom] = frame.corner();
        let [right, _] = frame.opposite();
        label(area, of_x, ((left + right) / 2, bottom + 30), 12, HPos::Center)?;
        Ok(frame)
    }

    /// Its lower left.
    const fn corner(&self) -> [i32; 2] {
        [INNER[0], self.top + PANEL.1 - INNER[3]]
    }

    /// Its upper right.
    const fn opposite(&self) -> [i32; 2] {
        [PANEL.0 - INNER[1], self.top + INNER[2]]
    }

    /// The place of a point.
    fn at(&self, x: f64, y: f64) -> (i32, i32) {
        let place = |value: f64, most: f64, from: i32, to: i32| {
            let share = if most > 0.0 { value / most } else { 0.0 };
            (f64::from(from) + share * f64::from(to - from)).round() as i32
        };
        let ([left, bottom], [right, top]) = (self.corner(), self.opposite());
        (place(x, self.most.0, left, right), place(y, self.most.1, bottom, top))
    }

    fn rectangle(&self, (left, low): (f64, f64), (right, high): (f64, f64), colour: RGBColor) -> Result<()> {
        let corners = [self.at(left, high), self.at(right, low)];
        self.area.draw(&Rectangle::new(corners, colour.filled()))?;
        Ok(())
    }

    /// Names of colours in a line at the upper right, the last one first.
    fn legend(&self, names: &[(&str, RGBColor)]) -> Result<()> {
        let [mut right, _] = self.opposite();
        for (name, colour) in names.iter().rev() {
            let y = self.top + 12;
            label(self.area, name, (right, y), 12, HPos::Right)?;
            let left = right - 11 * name.chars().count() as i32 / 2 - 14;
            self.area.draw(&Rectangle::new([(left, y - 4), (left + 8, y + 4)], colour.filled()))?;
            right = left - 14;
        }
        Ok(())
    }
}

fn draw_time(area: &Area<'_>, columns: &[Column]) -> Result<()> {
    let end = columns.last().map_or(0.0, |column| column.end);
    let step = |column: &Column| column.attention + column.rest;
    let most = columns.iter().map(step).fold(0.0, f64::max);
    let axes = ["seconds of the trace", "ms a step, on average"];
    let frame = Frame::draw(area, 0, "Time of a step", (above(end), above(1e3 * most)), axes)?;
    frame.legend(&[("attention, measured", ATTENTION), ("the rest, modelled", REST)])?;
    for column in columns {
        let (attention, all) = (1e3 * column.attention, 1e3 * step(column));
        frame.rectangle((column.begin, 0.0), (column.end, attention), ATTENTION)?;
        frame.rectangle((column.begin, attention), (column.end, all), REST)?;
    }
    Ok(())
}

fn draw_pages(area: &Area<'_>, columns: &[Column], pages: usize) -> Result<()> {
    let end = columns.last().map_or(0.0, |column| column.end);
    let axes = ["seconds of the trace", "pages, of those that there are"];
    let frame = Frame::draw(area, 1, "Pages in use", (above(end), pages as f64), axes)?;
    for column in columns {
        frame.rectangle((column.begin, 0.0), (column.end, column.pages as f64), ATTENTION)?;
    }
    Ok(())
}

/// For each series, the share of requests whose tokens take at most so long.
fn draw_times(area: &Area<'_>, times: &[(String, Vec<f64>)]) -> Result<()> {
    let most = times.iter().filter_map(|(_, sorted)| sorted.last()).copied().fold(0.0, f64::max);
    let axes = ["ms for an output token", "% of requests, at most so long"];
    let frame = Frame::draw(area, 2, "Time per output token", (above(1e3 * most), 100.0), axes)?;
    let colours = || SERIES.into_iter().cycle();
    let names: Vec<_> = times.iter().map(|(name, _)| name.as_str()).zip(colours()).collect();
    frame.legend(&names)?;
    for ((_, sorted), colour) in times.iter().zip(colours()) {
        let share = |index: usize| 100.0 * (index + 1) as f64 / sorted.len() as f64;
        let points = sorted.iter().enumerate().map(|(index, time)| frame.at(1e3 * time, share(index)));
        let points: Vec<_> = points.collect();
        area.draw(&PathElement::new(points, colour.stroke_width(2)))?;
    }
    Ok(())
}

/// The least value that is as large and whose quarters are short numbers.
fn above(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let round = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 5.0, 6.0, 8.0].map(|factor| factor * power);
    round.into_iter().find(|&round| round >= value).unwrap_or(10.0 * power)
}

fn label(area: &Area<'_>, text: &str, at: (i32, i32), size: i32, horizontal: HPos) -> Result<()> {
    let style = ("sans-serif", size).into_font().color(&BLACK).pos(Pos::new(horizontal, VPos::Center));
    area.draw_text(text, &style, at)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::service::tests::{Counting, LIMITS, REST as MODEL, request};
    use super::*;

    fn played() -> Service {
        let requests = (0..40).map(|index| request(f64::from(index), 5, 9)).collect();
        let mut service = Service::new(requests, LIMITS, MODEL);
        let mut player = Counting::default();
        while service.step(&mut player).unwrap() {}
        service
    }

    #[test]
    fn axes_end_at_round_values() {
        let of = |value: f64| (above(value) * 1e6).round() / 1e6;
        assert_eq!([of(7.58), of(0.00211), of(60.0), of(91.0)], [8.0, 0.0024, 60.0, 100.0]);
    }

    #[test]
    fn columns_cover_all_steps_and_keep_their_time() {
        let service = played();
        for count in [1, COLUMNS, COLUMNS + 1] {
            let steps: Vec<_> = service.steps.iter().cycle().take(count).copied().collect();
            let columns = columns(&steps);
            assert!(columns.len() <= COLUMNS);
            assert_eq!(
                columns.iter().map(|column| column.pages).max(),
                steps.iter().map(|step| step.pages).max()
            );
        }
        let all = columns(&service.steps);
        let mean: f64 = service.steps.iter().map(|step| step.attention).sum::<f64>();
        assert!(all.len() > 1 && (all.iter().map(|one| one.attention).sum::<f64>() - mean).abs() < 1e-6);
        assert_eq!(all[0].begin, 0.0);
    }

    #[test]
    fn the_svg_has_its_panels_units_and_series() {
        let service = played();
        let times = vec![("ours".to_owned(), vec![1.0, 2.0]), ("theirs".to_owned(), Vec::new())];
        let plot = Plot { title: "a trace".to_owned(), service: &service, pages: 16, times };
        let text = plot.svg().unwrap();
        let said = [
            "a trace",
            "Time of a step",
            "the rest, modelled",
            "Pages in use",
            "Time per output token",
            "seconds of the trace",
            "ours",
            "theirs",
        ];
        for said in said {
            assert!(text.contains(said), "{said}");
        }
        assert!(text.matches("<rect").count() > 2 * service.steps.len());
        assert!(text.contains("<polyline"));
    }
}
