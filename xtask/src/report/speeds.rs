//! TFLOP/s of a pass over the sequence length, by head_dim and mask, and their ratios to the best peer.

use std::collections::BTreeMap;

use anyhow::Result;
use fa_bench::lab::Row;

use super::canvas::{self, Axis, Bar, Curve, Panel};
use super::figure::Figure;
use super::series::{Look, STANDARD, look};
use super::{Claim, Section, device};

/// Which half of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    Backward,
}

/// One kernel at one length.
#[derive(Clone, Debug)]
pub(super) struct Point<'a> {
    experiment: &'a str,
    row: usize,
    seq: usize,
    series: &'a str,
    /// Whether the library's, and not a peer's.
    own: bool,
    tflops: f64,
}

/// Columns first, so that causal cells follow all full ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cell {
    causal: bool,
    head_dim: usize,
}

/// A pass by head_dim and mask.
pub(super) struct Speeds<'a> {
    pub(super) pass: Pass,
    cells: BTreeMap<Cell, Vec<Point<'a>>>,
}

/// The library's fastest beside the fastest peer.
#[derive(Clone, Debug)]
pub(super) struct Ratio<'a> {
    pub(super) seq: usize,
    /// How many times the peer's speed.
    pub(super) value: f64,
    pub(super) peer: String,
    own: &'a str,
    experiment: &'a str,
    row: usize,
}

/// A line of the table of ratios.
pub(super) struct Line<'a> {
    pub(super) cell: Cell,
    pub(super) ratios: Vec<Ratio<'a>>,
}

impl Pass {
    /// The experiment that measures it on a grid, and how sentences and headings call it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        }
    }

    /// The pass that a row measures; `None` for both at once.
    fn of(experiment: &str, row: &Row) -> Option<Self> {
        let says = |pass: Self| row.case.split_whitespace().any(|word| word == pass.name());
        match (says(Self::Forward), says(Self::Backward)) {
            (true, true) => None,
            (true, false) => Some(Self::Forward),
            (false, true) => Some(Self::Backward),
            (false, false) if experiment == Self::Backward.name() => Some(Self::Backward),
            (false, false) => Some(Self::Forward),
        }
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "D={} {}", self.head_dim, self.mask())
    }
}

impl Cell {
    const fn mask(self) -> &'static str {
        if self.causal { "causal" } else { "full" }
    }
}

/// A document's plain attention of one pass in one storage type.
fn points(section: &Section, pass: Pass) -> BTreeMap<Cell, Vec<Point<'_>>> {
    let mut cells: BTreeMap<Cell, Vec<Point<'_>>> = BTreeMap::new();
    let mut dtype = None;
    for (index, row) in section.document.rows.iter().enumerate() {
        let (Some(problem), Some(run)) = (&row.problem, &row.measurement) else { continue };
        let Some(tflops) = run.tflops.filter(|_| problem.is_plain()) else { continue };
        // A document over another axis, such as head_dim, has no place in a chart over S.
        let on_axis = row.x.is_none_or(|x| x == problem.seq as f64);
        let of_type = *dtype.get_or_insert(&problem.dtype) == &problem.dtype;
        if !on_axis || !of_type || Pass::of(section.name(), row) != Some(pass) || row.series == STANDARD {
            continue;
        }
        let here = cells.entry(Cell { causal: problem.causal, head_dim: problem.head_dim }).or_default();
        if !here.iter().any(|point| point.seq == problem.seq && point.series == row.series) {
            here.push(Point {
                experiment: section.name(),
                row: index,
                seq: problem.seq,
                series: &row.series,
                own: row.plan.is_some(),
                tflops,
            });
        }
    }
    cells
}

fn lengths(points: &[Point<'_>]) -> Vec<usize> {
    let mut lengths: Vec<_> = points.iter().map(|point| point.seq).collect();
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

impl<'a> Speeds<'a> {
    /// From the experiment of that name where it has several lengths, else for each head_dim and mask from
    /// the document with most lengths.
    pub(super) fn of(sections: &'a [Section], pass: Pass) -> Option<Self> {
        // A document of another device, such as the CPU's, does not compare.
        let here = || sections.iter().filter(|section| section.device() == device(sections));
        let named = here().find(|section| section.name() == pass.name());
        let named = named.map(|section| points(section, pass)).filter(|cells| spans(cells));
        let cells = named.unwrap_or_else(|| {
            let mut cells: BTreeMap<Cell, Vec<Point<'_>>> = BTreeMap::new();
            let has_peer = |points: &[Point<'_>]| points.iter().any(|point| !point.own);
            for (cell, found) in here().flat_map(|section| points(section, pass)) {
                let known = cells.entry(cell).or_default();
                let of = |points: &[Point<'_>]| (has_peer(points), lengths(points).len());
                if of(&found) > of(known) {
                    *known = found;
                }
            }
            // Where there is a chart over S, a single length is no part of it.
            let spanned = spans(&cells);
            cells.retain(|_, points| {
                points.iter().any(|point| point.own) && (!spanned || lengths(points).len() > 1)
            });
            cells
        });
        (!cells.is_empty()).then_some(Self { pass, cells })
    }

    /// Ratios to the best peer, where one ran.
    pub(super) fn ratios(&self) -> Vec<Line<'a>> {
        let of_cell = |(&cell, points): (&Cell, &Vec<Point<'a>>)| {
            let best = |seq: usize, own: bool| {
                let here = points.iter().filter(move |point| point.seq == seq && point.own == own);
                here.max_by(|a, b| a.tflops.total_cmp(&b.tflops))
            };
            let ratio = |seq: usize| {
                let (own, peer) = (best(seq, true)?, best(seq, false)?);
                Some(Ratio {
                    seq,
                    value: own.tflops / peer.tflops,
                    peer: look(peer.series).label,
                    own: own.series,
                    experiment: own.experiment,
                    row: own.row,
                })
            };
            Line { cell, ratios: lengths(points).into_iter().filter_map(ratio).collect() }
        };
        self.cells.iter().map(of_cell).filter(|line| !line.ratios.is_empty()).collect()
    }

    /// One sentence of all ratios.
    pub(super) fn claim(&self) -> Claim {
        let lines = self.ratios();
        let pass = self.pass.name();
        let all = || lines.iter().flat_map(|line| line.ratios.iter().map(|ratio| (line.cell, ratio)));
        let Some((cell, least)) = all().min_by(|a, b| a.1.value.total_cmp(&b.1.value)) else {
            let points =
                self.cells.iter().flat_map(|(cell, points)| points.iter().map(move |one| (cell, one)));
            let own = points.filter(|(_, point)| point.own);
            let best = own.max_by(|a, b| a.1.tflops.total_cmp(&b.1.tflops));
            return best.map_or_else(Claim::default, |(cell, best)| Claim {
                text: format!(
                    "The {pass} pass reaches {:.3} TFLOP/s ({cell} S={}), and no peer ran beside it.",
                    best.tflops, best.seq
                ),
                sources: vec![(best.experiment.to_owned(), Some(best.row))],
            });
        };
        let values: Vec<_> = all().map(|(_, ratio)| ratio.value).collect();
        let mut sources = vec![(least.experiment.to_owned(), Some(least.row))];
        // Each other document once.
        for (_, ratio) in all() {
            if !sources.iter().any(|(known, _)| known == ratio.experiment) {
                sources.push((ratio.experiment.to_owned(), None));
            }
        }
        let mut own: Vec<_> = all().map(|(_, ratio)| ratio.own).collect();
        own.sort_unstable();
        own.dedup();
        let text = format!(
            "The {pass} pass ({}) runs at {:.2} times the speed of the best peer in the geometric mean of {} \
             problems, and at {:.2} times in the worst of them ({cell} S={}).",
            own.join(", "),
            mean(&values),
            values.len(),
            least.value,
            least.seq
        );
        Claim { text, sources }
    }

    /// Small multiples by head_dim and mask, over S; bars where there is one length alone.
    ///
    /// # Errors
    /// When a panel cannot be drawn.
    pub(super) fn figure(&self, device: &str) -> Result<Figure> {
        let spanned = spans(&self.cells);
        let all = || self.cells.values().flatten();
        let most = all().map(|point| point.tflops).fold(0.0, f64::max);
        // People read a GPU's speed in TFLOP/s, a CPU's in GFLOP/s.
        let (factor, unit) = if most >= 1.0 { (1.0, "TFLOP/s") } else { (1e3, "GFLOP/s") };
        let seqs: Vec<_> =
            lengths(&all().cloned().collect::<Vec<_>>()).iter().map(|&seq| seq as f64).collect();
        let x = Axis {
            label: "S, sequence length (rows)".into(),
            logarithmic: true,
            values: seqs.clone(),
            ticks: seqs,
        };
        let y =
            Axis { label: unit.into(), logarithmic: false, values: vec![factor * most], ticks: Vec::new() };
        let panel = |(cell, points): (&Cell, &Vec<Point<'_>>)| -> Result<Panel> {
            if spanned {
                let curves: Vec<_> = curves(points, factor);
                return canvas::lines(&cell.to_string(), (&x, &y), &curves, true, &[]);
            }
            let bar = |point: &Point<'_>| Bar {
                look: emphasised(point),
                value: point.tflops,
                text: format!("{:.0}", factor * point.tflops),
            };
            let bars: Vec<_> = points.iter().map(bar).collect();
            let title = format!("{cell}, S={}", points.first().map_or(0, |point| point.seq));
            canvas::bars(&title, unit, &bars, most)
        };
        let mut legend: Vec<Look> = Vec::new();
        for one in all().map(emphasised).filter(|_| spanned) {
            if !legend.contains(&one) {
                legend.push(one);
            }
        }
        let mut head_dims: Vec<_> = self.cells.keys().map(|cell| cell.head_dim).collect();
        head_dims.sort_unstable();
        head_dims.dedup();
        Ok(Figure {
            name: format!("headline-{}", self.pass.name()),
            title: format!("Speed of the {} pass, {device}", self.pass.name()),
            panels: self.cells.iter().map(panel).collect::<Result<_>>()?,
            // Masks stand beside one another where there is one head_dim.
            columns: if head_dims.len() > 1 { head_dims.len() } else { self.cells.len() },
            legend,
        })
    }
}

/// Whether some head_dim and mask has more than one length.
fn spans(cells: &BTreeMap<Cell, Vec<Point<'_>>>) -> bool {
    cells.values().any(|points| lengths(points).len() > 1)
}

/// How a point's series looks, where whatever the planner chose is the library's.
fn emphasised(point: &Point<'_>) -> Look {
    Look { own: point.own, ..look(point.series) }
}

fn curves(points: &[Point<'_>], factor: f64) -> Vec<Curve> {
    let mut curves: BTreeMap<&str, Curve> = BTreeMap::new();
    for point in points {
        let curve = Curve { look: emphasised(point), points: Vec::new() };
        let curve = curves.entry(point.series).or_insert(curve);
        curve.points.push((point.seq as f64, factor * point.tflops));
    }
    curves.values_mut().for_each(|curve| curve.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    curves.into_values().collect()
}

/// The geometric mean; NaN of nothing.
pub(super) fn mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}
