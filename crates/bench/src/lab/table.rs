//! The table of an experiment, from its document alone.

use super::document::{CheckRecord, Document, Figure, Row, RunRecord, Unit};
use super::summary;
use crate::output::Screen;
use crate::table;

/// Columns with their cells.
type OfRun = (&'static str, fn(&RunRecord) -> Option<String>);
type OfCheck = (&'static str, fn(CheckRecord) -> String);

/// Prints rows, what did not run, figures and notes.
pub(super) fn print(screen: &Screen, document: &Document) -> std::io::Result<()> {
    let (titles, cells) = document.table();
    if !cells.is_empty() {
        let titles: Vec<_> = titles.iter().map(String::as_str).collect();
        screen.line("")?;
        screen.line(table::table(&titles, cells))?;
    }
    for row in &document.rows {
        if let Some(reason) = &row.not_run {
            screen.line(format!("{} {} was not run: {reason}", row.case, row.series))?;
        }
    }
    let headline = summary::table_of(document);
    let in_headline = |figure: &Figure| headline.iter().any(|(_, figures)| figures.contains(figure));
    for figure in document.figures.iter().filter(|figure| !in_headline(figure)) {
        screen.line(format!("{}: {}", figure.name, figure.text()))?;
    }
    document.notes.iter().try_for_each(|note| screen.line(format!("note: {note}")))?;
    document
        .reported_elsewhere
        .iter()
        .try_for_each(|text| screen.line(format!("reported elsewhere: {text}")))?;
    headline.iter().try_for_each(|(table, _)| screen.line(format!("\n{table}")))
}

impl Document {
    /// Titles, and the cells of the rows that ran or have figures. Columns that no row fills are left out.
    pub fn table(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let rows: Vec<_> = self.rows.iter().filter(|row| row.not_run.is_none()).collect();
        let mut columns: Vec<(String, Vec<String>)> = Vec::new();
        let mut column = |title: &str, cell: &dyn Fn(&Row) -> Option<String>| {
            let cells: Vec<_> = rows.iter().map(|row| cell(row)).collect();
            if cells.iter().any(Option::is_some) {
                let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
                columns.push((title.to_owned(), cells.collect()));
            }
        };
        column("case", &|row| Some(row.case.clone()));
        column("kernel", &|row| Some(row.series.clone()));
        column("tile", &|row| {
            let sizes: Vec<_> = row.plan.as_ref()?.tile.as_ref()?.iter().map(usize::to_string).collect();
            Some(sizes.join("x"))
        });
        let measured: [OfRun; 5] = [
            ("latency", |run| Some(table::seconds(run.times.median_s))),
            ("p20-p80", |run| {
                Some(format!("{} - {}", table::seconds(run.times.p20_s), table::seconds(run.times.p80_s)))
            }),
            ("runs", |run| Some(run.times.times_s.len().to_string())),
            ("TFLOP/s", |run| run.tflops.map(table::significant)),
            ("launches", |run| run.launches.filter(|&count| count > 0).map(|count| count.to_string())),
        ];
        for (title, cell) in measured {
            column(title, &|row| row.measurement.as_ref().and_then(cell));
        }
        for name in figure_names(&rows) {
            let find = |row: &Row| row.figures.iter().find(|figure| figure.name == name).map(Figure::text);
            column(&name, &find);
        }
        let checked: [OfCheck; 3] = [
            ("max error", |check| format!("{:.2e}", check.max_error)),
            ("bound", |check| format!("{:.2e}", check.bound)),
            ("check", |check| if check.passed { "pass" } else { "FAIL" }.to_owned()),
        ];
        for (title, cell) in checked {
            column(title, &|row| row.check.map(cell));
        }
        let titles = columns.iter().map(|(title, _)| title.clone()).collect();
        let cells = (0..rows.len()).map(|row| columns.iter().map(|(_, cells)| cells[row].clone()).collect());
        (titles, cells.collect())
    }
}

/// Names of the rows' figures, in the order of their first appearance.
fn figure_names(rows: &[&Row]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for figure in rows.iter().flat_map(|row| &row.figures) {
        if !names.iter().any(|name| *name == figure.name) {
            names.push(figure.name.to_string());
        }
    }
    names
}

/// A rate in 10^12 or 10^9 of its unit.
fn rate(value: f64, unit: &str) -> String {
    let (factor, prefix) = if value >= 1e12 { (1e12, "T") } else { (1e9, "G") };
    format!("{} {prefix}{unit}", table::significant(value / factor))
}

impl Figure {
    /// The value with its unit, for people.
    pub fn text(&self) -> String {
        let value = self.value;
        match self.unit {
            Unit::Seconds => table::seconds(value),
            Unit::Bytes => table::bytes(value as u64),
            Unit::BytesPerSecond => rate(value, "B/s"),
            Unit::Flops => rate(value, "FLOP/s"),
            Unit::Intensity => format!("{} FLOP/B", table::significant(value)),
            Unit::Times => format!("{value:.2}x"),
            Unit::Percent => format!("{value:.1} %"),
            Unit::Count if value.fract() == 0.0 && value.abs() < 1e15 => format!("{value:.0}"),
            Unit::Count => table::significant(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_unit() {
        let text = |unit, value| Figure { name: "".into(), unit, value }.text();
        assert_eq!(text(Unit::Times, 2.731), "2.73x");
        assert_eq!(text(Unit::Percent, 94.66), "94.7 %");
        assert_eq!([text(Unit::Flops, 6.5e14), text(Unit::Flops, 3.5e10)], ["650 TFLOP/s", "35.0 GFLOP/s"]);
        assert_eq!([text(Unit::Count, 18.0), text(Unit::Count, 1.803)], ["18", "1.80"]);
        assert_eq!([text(Unit::Bytes, 2048.0), text(Unit::Seconds, 2e-3)], ["2.00 KiB", "2.00 ms"]);
    }
}
