//! Which plots an experiment's document gives.

use std::collections::BTreeMap;

use anyhow::Result;
use fa_bench::lab::{Document, Row, Unit};
use fa_bench::sweep::heat_map::{self, Cell, Panel};

use super::canvas::{Axis, Canvas, bars};

/// A plot, by the name of its file without the ending.
pub(super) struct Plot {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) svg: String,
}

/// A curve for each series.
type Curves = Vec<(String, Vec<(f64, f64)>)>;

/// The plots of a document, in the order in which they are to be looked at.
///
/// # Errors
/// When one cannot be drawn.
pub(super) fn of(document: &Document) -> Result<Vec<Plot>> {
    let experiment = &*document.header.experiment;
    let mut plots = Vec::new();
    let mut add = |kind: &str, title: &str, svg: Option<String>| {
        let device = &document.header.device.name;
        if let Some(svg) = svg {
            plots.push(Plot {
                name: format!("{experiment}-{kind}"),
                title: format!("{title}, {device}"),
                svg,
            });
        }
    };
    let title = |what: &str| format!("{what}, {}", document.header.device.name);
    match experiment {
        "flash" | "scaling" => {
            let speedup = curves(document, |row| row.figure("speedup over standard"));
            add(
                "speedup",
                "Speedup over unfused attention",
                lines(
                    document,
                    &title("Speedup over unfused attention"),
                    ("times as fast", false),
                    &speedup,
                )?,
            );
            let latency = curves(document, |row| row.median().map(|seconds| 1e3 * seconds));
            add("latency", "Latency", lines(document, &title("Latency"), ("latency (ms)", true), &latency)?);
        }
        "memory" => {
            let extra = curves(document, |row| {
                row.figure("extra memory").filter(|&bytes| bytes > 0.0).map(|bytes| bytes / 1048576.0)
            });
            add(
                "extra",
                "Memory beside the tensors",
                lines(document, &title("Memory beside the tensors"), ("extra memory (MiB)", true), &extra)?,
            );
        }
        "matmul" => {
            let speed = curves(document, |row| row.measurement.as_ref()?.tflops);
            add(
                "speed",
                "Matrix multiplication",
                lines(document, &title("Matrix multiplication"), ("TFLOP/s", false), &speed)?,
            );
        }
        "alignment" => {
            let stairs = curves(document, |row| row.median().map(|seconds| 1e3 * seconds));
            add(
                "staircase",
                "Latency over head_dim",
                lines(document, &title("Latency over head_dim"), ("latency (ms)", false), &stairs)?,
            );
        }
        "roofline" => add("roof", "Roofline", roofline(document, &title("Roofline"))?),
        "traffic" => {
            // Those of one head, which are on the axis.
            let bytes = |row: &Row| row.x.and(Some(row.figure("read")? + row.figure("written")?));
            let rows = bar_rows(document, bytes, Unit::Bytes);
            add(
                "bytes",
                "Bytes through device memory",
                bar_plot(&title("Bytes read and written, one head, simulated"), "bytes", &rows)?,
            );
        }
        "tiles" => add("heat-map", "Speed of each tile", tiles(document, &title("Speed of each tile"))?),
        "backward" => {
            // Gradients alone: of both passes the table tells, and times are four orders of magnitude apart.
            let speed = |row: &Row| {
                let gradients = row.case.ends_with(" backward") && !row.case.contains("forward");
                let tflops = row.measurement.as_ref().filter(|_| gradients)?.tflops?;
                Some(1e12 * tflops)
            };
            let rows = bar_rows(document, speed, Unit::Flops);
            add(
                "speed",
                "Speed of the backward pass",
                bar_plot(&title("Speed of the backward pass"), "FLOP/s", &rows)?,
            );
        }
        "causal" | "generations" | "dtypes" | "layout" | "pitfalls" => {
            let rows = bar_rows(document, Row::median, Unit::Seconds);
            add("latency", "Latency", bar_plot(&title("Latency"), "latency: shorter is faster", &rows)?);
        }
        _ => {}
    }
    Ok(plots)
}

/// The points of each series that are on the document's axis, in the order of x.
fn curves(document: &Document, value: impl Fn(&Row) -> Option<f64>) -> Curves {
    let mut order: Vec<&str> = Vec::new();
    let mut curves: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for row in &document.rows {
        if let (Some(x), Some(y)) = (row.x, value(row)) {
            if !order.contains(&&*row.series) {
                order.push(&row.series);
            }
            curves.entry(&row.series).or_default().push((x, y));
        }
    }
    let curve = |name: &str| {
        let mut points = curves[name].clone();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (name.to_owned(), points)
    };
    order.into_iter().map(curve).collect()
}

/// A plot of lines over the document's axis; `None` where there is nothing to show.
fn lines(
    document: &Document,
    title: &str,
    (label, logarithmic): (&str, bool),
    curves: &Curves,
) -> Result<Option<String>> {
    let points: Vec<_> = curves.iter().flat_map(|(_, points)| points).copied().collect();
    let mut xs: Vec<_> = points.iter().map(|point| point.0).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    if xs.is_empty() {
        return Ok(None);
    }
    // Lengths double from one to the next; head_dims do not.
    let doubling = xs.len() > 1 && xs[xs.len() - 1] / xs[0] >= 2.0 * xs.len() as f64 / 2.0 && xs.len() < 20;
    let x = Axis { label: document.axis.as_deref().unwrap_or_default(), logarithmic: doubling };
    let ticks = if doubling { &xs[..] } else { &[] };
    let mut svg = String::new();
    let mut canvas = Canvas::new(&mut svg, title, (x, Axis { label, logarithmic }), &points, ticks)?;
    for (index, (name, points)) in curves.iter().enumerate() {
        canvas.series(index, name, points, true)?;
    }
    drop(canvas);
    Ok(Some(svg))
}

/// Kernels by intensity under the measured roof.
fn roofline(document: &Document, title: &str) -> Result<Option<String>> {
    let figure =
        |name: &str| document.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value);
    let (Some(bandwidth), Some(peak)) = (figure("the roof over bytes"), figure("the roof over operations"))
    else {
        return Ok(None);
    };
    // As is read best: a GPU's in TFLOP/s, a CPU's in GFLOP/s.
    let (unit, label) = if peak >= 1e12 { (1e12, "TFLOP/s") } else { (1e9, "GFLOP/s") };
    let (bandwidth, peak) = (bandwidth / unit, peak / unit);
    let placed = curves(document, |row| Some(1e12 / unit * row.measurement.as_ref()?.tflops?));
    let mut points: Vec<_> = placed.iter().flat_map(|(_, points)| points).copied().collect();
    points.push((peak / bandwidth, peak));
    let axes = (
        Axis { label: document.axis.as_deref().unwrap_or_default(), logarithmic: true },
        Axis { label, logarithmic: true },
    );
    let mut svg = String::new();
    let mut canvas = Canvas::new(&mut svg, title, axes, &points, &[])?;
    let (first, last) = canvas.x_range();
    let ridge = peak / bandwidth;
    canvas.guide(&[
        (first, (first * bandwidth).min(peak)),
        (ridge.clamp(first, last), peak),
        (last, peak),
    ])?;
    for (index, (name, points)) in placed.iter().enumerate() {
        canvas.series(index, name, points, false)?;
    }
    drop(canvas);
    Ok(Some(svg))
}

/// A bar for each row that has the value: its name, its series, and the value for people.
fn bar_rows(
    document: &Document,
    value: impl Fn(&Row) -> Option<f64>,
    unit: Unit,
) -> Vec<(String, usize, f64, String)> {
    let mut series: Vec<&str> = Vec::new();
    let mut bars = Vec::new();
    for row in &document.rows {
        let Some(value) = value(row) else { continue };
        if !series.contains(&&*row.series) {
            series.push(&row.series);
        }
        let index = series.iter().position(|name| *name == row.series).unwrap_or(0);
        let shown = fa_bench::lab::Figure { name: "".into(), unit, value }.text();
        bars.push((format!("{} {}", row.case, row.series), index, value, shown));
    }
    bars
}

fn bar_plot(title: &str, label: &str, rows: &[(String, usize, f64, String)]) -> Result<Option<String>> {
    if rows.is_empty() {
        return Ok(None);
    }
    let mut svg = String::new();
    bars(&mut svg, title, label, rows)?;
    Ok(Some(svg))
}

/// A panel for each kernel, with the best of each BLOCK_M and BLOCK_N, or why there is none.
fn tiles(document: &Document, title: &str) -> Result<Option<String>> {
    let mut panels: Vec<Panel> = Vec::new();
    for row in &document.rows {
        let Some(plan) = &row.plan else { continue };
        let Some([m, n]) = plan.tile.as_deref() else { continue };
        let place = (*m as u32, *n as u32);
        let cell = match &row.measurement {
            Some(run) => Cell::Measured {
                tflops: run.tflops.unwrap_or_default(),
                seconds: run.times.median_s,
                with: row.figure("registers").map_or_else(String::new, |count| format!("{count} registers")),
            },
            None => Cell::Without(row.not_run.clone().unwrap_or_default()),
        };
        let known = panels.iter().position(|panel| panel.title == plan.kernel);
        let index = known.unwrap_or_else(|| {
            panels.push(Panel { title: plan.kernel.to_string(), cells: Vec::new() });
            panels.len() - 1
        });
        let cells = &mut panels[index].cells;
        let speed = |cell: &Cell| match cell {
            Cell::Measured { tflops, .. } => *tflops,
            Cell::Without(_) => 0.0,
        };
        match cells.iter_mut().find(|(other, _)| *other == place) {
            Some((_, before)) if speed(before) < speed(&cell) => *before = cell,
            Some(_) => {}
            None => cells.push((place, cell)),
        }
    }
    if panels.is_empty() { Ok(None) } else { heat_map::svg(title, &panels).map(Some) }
}
