//! The trap of alignment: TFLOP/s over head_dim, the library's kernel beside its peers' on the same axes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use fa_bench::lab::Row;

use super::canvas::{self, Axis, Curve};
use super::figure::Figure;
use super::series::look;
use super::{Claim, Section};

/// The head_dims that the sentence compares, where both were measured.
const PAIR: [usize; 2] = [128, 129];

/// The staircase of a document over head_dim.
pub(super) struct Trap<'a> {
    section: &'a Section,
    curves: BTreeMap<&'a str, Stairs>,
}

/// A series by head_dim.
#[derive(Clone, Debug, Default)]
struct Stairs {
    own: bool,
    tflops: BTreeMap<usize, f64>,
    sizes: BTreeSet<[usize; 3]>,
}

impl<'a> Trap<'a> {
    /// From the first document whose axis is head_dim.
    pub(super) fn of(sections: &'a [Section]) -> Option<Self> {
        sections.iter().find_map(|section| {
            let axis = section.document.axis.as_deref().unwrap_or_default();
            let curves = axis.starts_with("head_dim").then(|| curves(&section.document.rows))?;
            curves.values().any(|stairs| stairs.tflops.len() > 1).then_some(Self { section, curves })
        })
    }

    /// The pair's shares of speed, in one sentence; `None` where one of the two is missing.
    pub(super) fn claim(&self) -> Option<Claim> {
        let [even, odd] = PAIR;
        let share = |stairs: &Stairs| Some(stairs.tflops.get(&odd)? / stairs.tflops.get(&even)?);
        let (series, own) = self
            .curves
            .iter()
            .filter(|(_, stairs)| stairs.own)
            .find_map(|(series, stairs)| Some((*series, share(stairs)?)))?;
        let best = |head_dim: usize| {
            let peers = self.curves.values().filter(|stairs| !stairs.own);
            peers.filter_map(|stairs| stairs.tflops.get(&head_dim).copied()).reduce(f64::max)
        };
        let default = || {
            let stairs = self.curves.get(self.default()?)?;
            Some(("PyTorch's default", share(stairs)?))
        };
        let fastest = || Some(("the best of its peers", best(odd)? / best(even)?));
        let beside = default().or_else(fastest);
        let beside = beside.map_or_else(String::new, |(name, share)| {
            format!(", while {name} falls to {:.0} %", 100.0 * share)
        });
        Some(Claim {
            text: format!(
                "From head_dim {even} to {odd}, where rows no longer start at multiples of 16 bytes, {series} keeps \
                 {:.0} % of its TFLOP/s{beside}.",
                100.0 * own
            ),
            sources: vec![(self.section.name().to_owned(), None)],
        })
    }

    /// One panel of all series: the peer's default alone where it was measured, else each of the peer's.
    ///
    /// # Errors
    /// When it cannot be drawn.
    pub(super) fn figure(&self, device: &str) -> Result<Figure> {
        let default = self.default();
        let shown = |series: &str, stairs: &Stairs| stairs.own || default.is_none_or(|name| name == series);
        let shown: Vec<_> = self.curves.iter().filter(|(series, stairs)| shown(series, stairs)).collect();
        let curve = |(series, stairs): &(&&str, &Stairs)| Curve {
            look: look(series),
            points: stairs.tflops.iter().map(|(&head_dim, &tflops)| (head_dim as f64, tflops)).collect(),
        };
        let curves: Vec<_> = shown.iter().map(curve).collect();
        let (xs, ys) = curves.iter().flat_map(|curve| &curve.points).copied().unzip();
        let axis =
            |label: &str, values| Axis { label: label.into(), logarithmic: false, values, ticks: Vec::new() };
        let (x, y) = (axis("head_dim (elements)", xs), axis("TFLOP/s", ys));
        Ok(Figure {
            name: "alignment-staircase".to_owned(),
            title: format!("Speed over head_dim, {device}"),
            panels: vec![canvas::lines(&sizes(&shown), (&x, &y), &curves, true, &[])?],
            columns: 1,
            legend: curves.into_iter().map(|curve| curve.look).collect(),
        })
    }

    /// The series with which PyTorch chooses for itself.
    fn default(&self) -> Option<&'a str> {
        let default = |series: &&&str| series.to_lowercase().contains("default");
        self.curves.keys().find(default).copied()
    }
}

/// Which batches and heads the series have, where they are not all the same.
fn sizes(shown: &[(&&str, &Stairs)]) -> String {
    let of = |own: bool| {
        let stairs = shown.iter().filter(|(_, stairs)| stairs.own == own);
        let sizes: BTreeSet<_> = stairs.flat_map(|(_, stairs)| stairs.sizes.iter().copied()).collect();
        let text = sizes.iter().map(|[batch, heads, _]| format!("B={batch} H={heads}"));
        text.collect::<Vec<_>>().join(" and ")
    };
    match (of(true), of(false)) {
        (own, peers) if peers.is_empty() || own == peers => own,
        (own, peers) => format!("{own} (peers: {peers})"),
    }
}

/// Each series by head_dim: its rows on the axis, or all of its rows where it has none there.
fn curves(rows: &[Row]) -> BTreeMap<&str, Stairs> {
    let mut curves: BTreeMap<&str, Stairs> = BTreeMap::new();
    let measured = |row: &Row| row.measurement.as_ref()?.tflops;
    for row in rows {
        let (Some(problem), Some(tflops)) = (&row.problem, measured(row)) else { continue };
        let on_axis =
            |other: &Row| other.series == row.series && other.x.is_some() && measured(other).is_some();
        if row.x.is_none() && rows.iter().any(on_axis) {
            continue;
        }
        let stairs = curves.entry(&row.series).or_default();
        stairs.own |= row.plan.is_some();
        stairs.tflops.insert(problem.head_dim, tflops);
        stairs.sizes.insert(problem.sizes());
    }
    curves
}
