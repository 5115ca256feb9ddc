//! One problem on several GPUs: speed of each and share of linear over the tokens, by heads.

use std::collections::BTreeMap;

use anyhow::Result;
use fa_bench::lab::Row;

use super::canvas::{self, Axis, Curve};
use super::figure::Figure;
use super::headline::Part;
use super::series::{Look, side};
use super::{Claim, Section};

/// The experiment whose documents these are, under whatever names.
pub(super) const EXPERIMENT: &str = "context";

/// What a panel's problems have in common. `sizes` are batch, query heads and key/value heads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    is_backward: bool,
    sizes: [usize; 3],
    head_dim: usize,
    causal: bool,
    dtype: String,
}

/// A side at one length.
struct Point<'a> {
    source: (&'a str, usize),
    series: &'a str,
    gpus: usize,
    tokens: f64,
    /// Of each GPU.
    tflops: f64,
    /// In percent; `None` for a side that is not compared with one GPU.
    of_linear: Option<f64>,
}

/// What a chart shows of a point.
type Value = fn(&Point<'_>) -> Option<f64>;

/// All documents of the experiment.
pub(super) struct Several<'a>(BTreeMap<Cell, Vec<Point<'a>>>);

impl std::fmt::Display for Cell {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { is_backward, sizes: [batch, heads, kv_heads], head_dim, causal, dtype } = self;
        if *is_backward {
            write!(formatter, "backward, ")?;
        }
        if *batch > 1 {
            write!(formatter, "B={batch} ")?;
        }
        let mask = if *causal { "causal" } else { "full" };
        write!(formatter, "{heads}/{kv_heads} heads, D={head_dim}, {mask}, {dtype}")
    }
}

impl<'a> Several<'a> {
    /// From all documents of the experiment; `None` where there are none. A side that several of them have is
    /// the first one's.
    pub(super) fn of(sections: &'a [Section]) -> Option<Self> {
        let mut cells: BTreeMap<Cell, Vec<Point<'a>>> = BTreeMap::new();
        for section in sections.iter().filter(|section| section.experiment() == EXPERIMENT) {
            for (index, row) in section.document.rows.iter().enumerate() {
                let Some((cell, point)) = point((section.name(), index), row) else { continue };
                let here = cells.entry(cell).or_default();
                let is_same = |known: &Point<'_>| {
                    (known.series, known.gpus, known.tokens) == (point.series, point.gpus, point.tokens)
                };
                if !here.iter().any(is_same) {
                    here.push(point);
                }
            }
        }
        let by = |point: &Point<'_>| (point.gpus, point.tokens as usize);
        cells.values_mut().for_each(|points| points.sort_by_key(by));
        (!cells.is_empty()).then_some(Self(cells))
    }

    /// Both charts, with a sentence.
    ///
    /// # Errors
    /// When a panel cannot be drawn.
    pub(super) fn parts(&self, device: &str) -> Result<Vec<Part>> {
        let speed = self.figure(
            ("context-speed", format!("One problem on several GPUs: speed of each, {device}")),
            "TFLOP/s a GPU",
            |point| Some(point.tflops),
        )?;
        let linear = self.figure(
            ("context-linear", format!("One problem on several GPUs: share of linear, {device}")),
            "% of linear (all GPUs' speed over one's, by their number)",
            |point| point.of_linear,
        )?;
        let parts = [("Several GPUs", self.claim(), speed), ("Several GPUs: share of linear", None, linear)];
        let part =
            |(heading, claim, figure): (_, _, Option<Figure>)| Some(Part { heading, claim, figure: figure? });
        Ok(parts.into_iter().filter_map(part).collect())
    }

    fn points(&self) -> impl Iterator<Item = &Point<'a>> {
        self.0.values().flatten()
    }

    /// The least and the most of linear that ranks reach together.
    fn claim(&self) -> Option<Claim> {
        let together = self.points().filter(|point| point.series.starts_with("together"));
        let shares: Vec<_> = together.filter_map(|point| Some((point.of_linear?, point))).collect();
        let (least, worst) = shares.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
        let (most, best) = shares.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
        let text = format!(
            "One problem on several GPUs runs at {least:.0} % ({:.0} tokens, {} GPUs) to {most:.0} % \
             ({:.0} tokens, {} GPUs) of as many times one GPU's speed.",
            worst.tokens, worst.gpus, best.tokens, best.gpus
        );
        let source = |point: &Point<'_>| (point.source.0.to_owned(), Some(point.source.1));
        Some(Claim { text, sources: vec![source(worst), source(best)] })
    }

    /// A panel for each cell; `None` where no point has the value.
    fn figure(&self, (name, title): (&str, String), label: &str, value: Value) -> Result<Option<Figure>> {
        let shown = self.points().filter_map(|point| Some((point.tokens, value(point)?)));
        let (mut tokens, values): (Vec<f64>, Vec<f64>) = shown.unzip();
        tokens.sort_by(f64::total_cmp);
        tokens.dedup();
        let x = Axis {
            label: "tokens of a sequence".into(),
            logarithmic: true,
            ticks: tokens.clone(),
            values: tokens,
        };
        let y = Axis { label: label.into(), logarithmic: false, values, ticks: Vec::new() };
        let (mut panels, mut legend): (Vec<_>, Vec<Look>) = (Vec::new(), Vec::new());
        for (cell, points) in &self.0 {
            let curves = curves(points, value);
            for curve in &curves {
                if !legend.contains(&curve.look) {
                    legend.push(curve.look.clone());
                }
            }
            if !curves.is_empty() {
                panels.push(canvas::lines(&cell.to_string(), (&x, &y), &curves, true, &[])?);
            }
        }
        let columns = panels.len().min(2);
        Ok((!panels.is_empty()).then_some(Figure { name: name.to_owned(), title, panels, columns, legend }))
    }
}

/// A row's point, where it has one: ranks that share one GPU have no speed.
fn point<'a>(source: (&'a str, usize), row: &'a Row) -> Option<(Cell, Point<'a>)> {
    let problem = row.problem.as_ref().filter(|problem| problem.is_plain())?;
    let gpus = row.figure("GPUs")? as usize;
    let cell = Cell {
        is_backward: row.case.starts_with("backward "),
        sizes: problem.sizes(),
        head_dim: problem.head_dim,
        causal: problem.causal,
        dtype: problem.dtype.to_string(),
    };
    let point = Point {
        source,
        series: &row.series,
        gpus,
        tokens: row.x?,
        tflops: row.figure("a GPU")? / 1e12,
        of_linear: row.figure("of linear"),
    };
    (gpus > 1 || row.series == "one GPU").then_some((cell, point))
}

/// A curve for each side and number of GPUs.
fn curves(points: &[Point<'_>], value: Value) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for point in points {
        let Some(value) = value(point) else { continue };
        let look = side(point.series, point.gpus);
        match curves.iter_mut().find(|curve| curve.look == look) {
            Some(curve) => curve.points.push((point.tokens, value)),
            None => curves.push(Curve { look, points: vec![(point.tokens, value)] }),
        }
    }
    curves
}
