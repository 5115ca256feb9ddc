//! Which figures an experiment's document gives.

use anyhow::Result;
use fa_bench::lab::{Document, Figure as Number, Row, Unit};
use fa_bench::sweep::QUERIES_AND_KEYS;
use fa_bench::sweep::heat_map::{self, Cell};

use super::canvas::{self, Axis, Bar, Curve};
use super::figure::Figure;
use super::series::look;

/// The figures of a document, in the order in which they are to be looked at. Speed over S and over head_dim
/// is in the report's beginning.
///
/// # Errors
/// When one cannot be drawn.
pub(super) fn of(document: &Document) -> Result<Vec<Figure>> {
    let experiment = &*document.header.experiment;
    let title = |what: &str| format!("{what}, {}", document.header.device.name);
    let milliseconds = |row: &Row| row.median().map(|seconds| 1e3 * seconds);
    let figures = match experiment {
        "flash" | "scaling" => {
            let speedup = |row: &Row| row.figure("speedup over standard");
            vec![
                lines(
                    document,
                    "speedup",
                    title("Speedup over unfused attention"),
                    ("times as fast", false),
                    speedup,
                )?,
                lines(document, "latency", title("Latency"), ("latency (ms)", true), milliseconds)?,
            ]
        }
        "memory" => {
            let extra = |row: &Row| {
                row.figure("extra memory").filter(|&bytes| bytes > 0.0).map(|bytes| bytes / 1048576.0)
            };
            let title = title(&format!("Memory beside the tensors{}", without(document)));
            vec![lines(document, "extra", title, ("extra memory (MiB)", true), extra)?]
        }
        "matmul" => {
            let speed = |row: &Row| row.measurement.as_ref()?.tflops;
            vec![lines(document, "speed", title("Matrix multiplication"), ("TFLOP/s", false), speed)?]
        }
        "roofline" => vec![roofline(document, title("Roofline"))?],
        "traffic" => {
            // Those of one head, which are on the axis.
            let bytes = |row: &Row| row.x.and(Some(row.figure("read")? + row.figure("written")?));
            let title = title("Bytes read and written, one head, simulated");
            vec![bars(document, "bytes", title, ("bytes", Unit::Bytes, Shared::Each), bytes)?]
        }
        "tiles" => {
            let title = title("Speed of each tile");
            let panel = tiles(document, &title)?;
            vec![panel.map(|panel| figure(document, "heat-map", title, vec![panel]))]
        }
        "backward" => {
            let speed =
                |row: &Row| Some(1e12 * row.measurement.as_ref().filter(|_| is_backward(row))?.tflops?);
            let title = title("Speed of the backward pass");
            vec![bars(
                document,
                "speed",
                title,
                ("FLOP/s: longer is faster", Unit::Flops, Shared::All),
                speed,
            )?]
        }
        "serve" => {
            let speed = |row: &Row| row.figure("tokens a second");
            let title = title("Output tokens a second");
            vec![bars(document, "tokens", title, ("tokens a second", Unit::Count, Shared::Each), speed)?]
        }
        "causal" | "generations" | "dtypes" | "layout" | "pitfalls" => {
            let scale = ("latency: shorter is faster", Unit::Seconds, Shared::Each);
            vec![bars(document, "latency", title("Latency"), scale, Row::median)?]
        }
        _ => Vec::new(),
    };
    Ok(figures.into_iter().flatten().collect())
}

/// Series that take no extra memory, which a logarithmic axis cannot show.
fn without(document: &Document) -> String {
    let mut series: Vec<_> = document.rows.iter().map(|row| &*row.series).collect();
    series.sort_unstable();
    series.dedup();
    let extra = |series: &str| {
        let rows = document.rows.iter().filter(move |row| row.series == series);
        rows.filter_map(|row| row.figure("extra memory")).reduce(f64::max)
    };
    series.retain(|series| extra(series) == Some(0.0));
    let labels: Vec<_> = series.into_iter().map(|series| look(series).label).collect();
    if labels.is_empty() { String::new() } else { format!(" (none: {})", labels.join(", ")) }
}

/// Which panels of bars have one scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shared {
    /// All: their values compare.
    All,
    /// Each its own: cases may be orders of magnitude apart.
    Each,
}

/// Gradients alone: times of both passes are in the table, and a grid over S is in the report's beginning.
fn is_backward(row: &Row) -> bool {
    row.x.is_none() && row.case.ends_with(" backward") && !row.case.contains("forward")
}

fn figure(document: &Document, kind: &str, title: String, panels: Vec<canvas::Panel>) -> Figure {
    let name = format!("{}-{kind}", document.header.experiment);
    Figure { name, title, columns: panels.len().min(2), panels, legend: Vec::new() }
}

/// The points of each series that are on the document's axis, in the order of x.
fn curves(document: &Document, value: impl Fn(&Row) -> Option<f64>) -> Vec<Curve> {
    let mut curves: Vec<(&str, Curve)> = Vec::new();
    for row in &document.rows {
        let (Some(x), Some(y)) = (row.x, value(row)) else { continue };
        match curves.iter_mut().find(|(series, _)| *series == row.series) {
            Some((_, curve)) => curve.points.push((x, y)),
            None => curves.push((&row.series, Curve { look: look(&row.series), points: vec![(x, y)] })),
        }
    }
    curves.iter_mut().for_each(|(_, curve)| curve.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    curves.into_iter().map(|(_, curve)| curve).collect()
}

/// Series over the document's axis; `None` where there is nothing to show.
fn lines(
    document: &Document,
    kind: &str,
    title: String,
    (label, logarithmic): (&str, bool),
    value: impl Fn(&Row) -> Option<f64>,
) -> Result<Option<Figure>> {
    let curves = curves(document, value);
    let (mut xs, ys): (Vec<f64>, Vec<f64>) = curves.iter().flat_map(|curve| &curve.points).copied().unzip();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let (Some(first), Some(last)) = (xs.first(), xs.last()) else { return Ok(None) };
    // Lengths double from one to the next.
    let doubling = xs.len() > 1 && last / first >= xs.len() as f64;
    let x = Axis {
        label: document.axis.as_deref().unwrap_or_default().to_owned(),
        logarithmic: doubling,
        ticks: if doubling { xs.clone() } else { Vec::new() },
        values: xs,
    };
    let y = Axis { label: label.to_owned(), logarithmic, values: ys, ticks: Vec::new() };
    let panel = canvas::lines("", (&x, &y), &curves, true, &[])?;
    let legend = curves.into_iter().map(|curve| curve.look).collect();
    Ok(Some(Figure { legend, ..figure(document, kind, title, vec![panel]) }))
}

/// Kernels by intensity under the measured roof.
fn roofline(document: &Document, title: String) -> Result<Option<Figure>> {
    let figure_of =
        |name: &str| document.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value);
    let (Some(bandwidth), Some(peak)) =
        (figure_of("the roof over bytes"), figure_of("the roof over operations"))
    else {
        return Ok(None);
    };
    // People read a GPU's speed in TFLOP/s, a CPU's in GFLOP/s.
    let (unit, label) = if peak >= 1e12 { (1e12, "TFLOP/s") } else { (1e9, "GFLOP/s") };
    let (bandwidth, peak) = (bandwidth / unit, peak / unit);
    let curves = curves(document, |row| Some(1e12 / unit * row.measurement.as_ref()?.tflops?));
    let ridge = peak / bandwidth;
    let points = curves.iter().flat_map(|curve| &curve.points).copied();
    let (xs, ys): (Vec<f64>, Vec<f64>) = points.chain([(ridge, peak)]).unzip();
    let first = xs.iter().copied().fold(f64::INFINITY, f64::min);
    let last = xs.iter().copied().fold(0.0, f64::max);
    let roof = [(first, (first * bandwidth).min(peak)), (ridge, peak), (last, peak)];
    let axis =
        |label: &str, values| Axis { label: label.into(), logarithmic: true, values, ticks: Vec::new() };
    let (x, y) = (axis(document.axis.as_deref().unwrap_or_default(), xs), axis(label, ys));
    let panel = canvas::lines("", (&x, &y), &curves, false, &roof)?;
    let legend = curves.into_iter().map(|curve| curve.look).collect();
    Ok(Some(Figure { legend, ..figure(document, "roof", title, vec![panel]) }))
}

/// A panel of bars for each case; `None` where no row has the value.
fn bars(
    document: &Document,
    kind: &str,
    title: String,
    (label, unit, shared): (&str, Unit, Shared),
    value: impl Fn(&Row) -> Option<f64>,
) -> Result<Option<Figure>> {
    let mut cases: Vec<(&str, Vec<Bar>)> = Vec::new();
    for row in &document.rows {
        let Some(value) = value(row) else { continue };
        let text = Number { name: "".into(), unit, value }.text();
        let bar = Bar { look: look(&row.series), value, text };
        match cases.iter_mut().find(|(case, _)| *case == row.case) {
            Some((_, bars)) => bars.push(bar),
            None => cases.push((&row.case, vec![bar])),
        }
    }
    let most = |bars: &[Bar]| bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let greatest = cases.iter().map(|(_, bars)| most(bars)).fold(0.0, f64::max);
    let panel = |(case, bars): &(&str, Vec<Bar>)| {
        let scale = if shared == Shared::All { greatest } else { most(bars) };
        canvas::bars(case, label, bars, scale)
    };
    let panels: Vec<_> = cases.iter().map(panel).collect::<Result<_>>()?;
    Ok((!panels.is_empty()).then(|| figure(document, kind, title, panels)))
}

/// A panel for each kernel, with the best of each BLOCK_M and BLOCK_N, or why there is none.
fn tiles(document: &Document, title: &str) -> Result<Option<canvas::Panel>> {
    let mut panels: Vec<heat_map::Panel> = Vec::new();
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
            panels.push(heat_map::Panel { title: plan.kernel.to_string(), cells: Vec::new() });
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
    if panels.is_empty() {
        return Ok(None);
    }
    let svg = heat_map::svg(title, QUERIES_AND_KEYS, &panels)?;
    let side = |name: &str| svg.split(&format!(" {name}=\"")).nth(1)?.split('"').next()?.parse().ok();
    let (Some(width), Some(height)) = (side("width"), side("height")) else { return Ok(None) };
    Ok(Some(canvas::Panel { width, height, svg }))
}
