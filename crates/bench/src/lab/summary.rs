//! The headline of a document: the first kernel of each case beside each series of the peer, by head_dim.

use std::collections::BTreeMap;

use super::document::{Document, Figure, Row, Unit};
use crate::table;

/// The library's kernels at one head_dim, over all cases.
struct Headline {
    head_dim: usize,
    /// The slowest and the fastest case, FLOP/s.
    flops: [f64; 2],
    /// By series of the peer, in the order of their first rows.
    rivals: Vec<Rival>,
}

/// How many times as fast as a series of the peer.
struct Rival {
    series: String,
    /// The geometric mean of the cases that both ran.
    mean: f64,
    least: f64,
}

/// The headlines of rows that have problems, by head_dim.
fn headlines(rows: &[Row]) -> Vec<Headline> {
    let mut by_head_dim: BTreeMap<usize, Vec<&Row>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.measurement.is_some()) {
        if let Some(problem) = &row.problem {
            by_head_dim.entry(problem.head_dim).or_default().push(row);
        }
    }
    by_head_dim.into_iter().filter_map(|(head_dim, rows)| Headline::new(head_dim, &rows)).collect()
}

impl Headline {
    /// `None` where there is none of the library's kernels.
    fn new(head_dim: usize, rows: &[&Row]) -> Option<Self> {
        let mut leaders: BTreeMap<&str, &Row> = BTreeMap::new();
        let mut ratios: Vec<(&str, Vec<f64>)> = Vec::new();
        for &row in rows {
            if row.plan.is_some() {
                leaders.entry(&row.case).or_insert(row);
                continue;
            }
            let leader = leaders.get(&*row.case).and_then(|leader| leader.median());
            let Some(ratio) = row.median().zip(leader).map(|(theirs, ours)| theirs / ours) else { continue };
            match ratios.iter_mut().find(|(series, _)| *series == row.series) {
                Some((_, ratios)) => ratios.push(ratio),
                None => ratios.push((&row.series, vec![ratio])),
            }
        }
        let flops: Vec<f64> = leaders.values().filter_map(|row| row.flops()).collect();
        let least = flops.iter().copied().reduce(f64::min)?;
        let most = flops.into_iter().reduce(f64::max)?;
        let rivals = ratios.into_iter().map(|(series, ratios)| Rival::new(series, &ratios)).collect();
        Some(Self { head_dim, flops: [least, most], rivals })
    }

    fn figures(&self) -> Vec<Figure> {
        let figure = |what: &str, unit, value| {
            let name = format!("D={}: {what}", self.head_dim).into();
            Figure { name, unit, value }
        };
        let [least, most] = self.flops;
        let mut figures =
            vec![figure("slowest case", Unit::Flops, least), figure("fastest case", Unit::Flops, most)];
        for Rival { series, mean, least } in &self.rivals {
            let name = |what| format!("speed over {series}'s, {what}");
            figures.push(figure(&name("geometric mean"), Unit::Times, *mean));
            figures.push(figure(&name("least"), Unit::Times, *least));
        }
        figures
    }
}

impl Rival {
    fn new(series: &str, ratios: &[f64]) -> Self {
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        Self { series: series.to_owned(), mean, least }
    }
}

/// The figures of the headlines of rows.
pub(super) fn figures(rows: &[Row]) -> Vec<Figure> {
    headlines(rows).iter().flat_map(Headline::figures).collect()
}

/// The headline as a table with its figures, where the document has it.
pub(super) fn table_of(document: &Document) -> Option<(String, Vec<Figure>)> {
    let headlines = headlines(&document.rows);
    let figures: Vec<_> = headlines.iter().flat_map(Headline::figures).collect();
    if figures.is_empty() || !figures.iter().all(|figure| document.figures.contains(figure)) {
        return None;
    }
    let mut series: Vec<&str> = Vec::new();
    for rival in headlines.iter().flat_map(|headline| &headline.rivals) {
        if !series.contains(&&*rival.series) {
            series.push(&rival.series);
        }
    }
    let titles: Vec<_> = series.iter().map(|series| format!("times {series}'s speed")).collect();
    let titles: Vec<_> =
        ["head_dim", "TFLOP/s"].into_iter().chain(titles.iter().map(String::as_str)).collect();
    let cells = headlines.iter().map(|headline| {
        let [least, most] = headline.flops.map(|flops| table::significant(flops / 1e12));
        let against = series.iter().map(|series| {
            let rival = headline.rivals.iter().find(|rival| rival.series == *series);
            rival.map_or("-".to_owned(), |rival| format!("{:.2} ({:.2})", rival.mean, rival.least))
        });
        let first = [format!("D={}", headline.head_dim), format!("{least} to {most}")];
        first.into_iter().chain(against).collect()
    });
    let table = table::table(&titles, cells.collect());
    Some((format!("mean (least) over the cases of each head_dim\n{table}"), figures))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::RunRecord;
    use crate::problem::{Layout, Shape};
    use crate::record::{PlanRecord, ProblemRecord, TimesRecord};
    use crate::timer::Times;
    use flash_attention::{Backend, BackendKind, DType, Request};

    fn row(case: &str, head_dim: usize, series: &str, seconds: f64) -> Row {
        let shape = Shape { batch: 1, heads: 1, seq: 8, head_dim, dtype: DType::F32, causal: false };
        let problem = shape.problem(Layout::Bhsd).unwrap();
        let plan =
            Backend::open(Some(BackendKind::Cpu)).unwrap().plan(&problem, &Request::default()).unwrap();
        let times = TimesRecord::new(&Times { warmup_runs: 0, seconds: vec![seconds] });
        Row {
            case: case.to_owned(),
            series: series.to_owned(),
            problem: Some(ProblemRecord::new(&problem, Layout::Bhsd)),
            plan: (!series.starts_with("torch")).then(|| PlanRecord::new(&plan)),
            measurement: Some(RunRecord { tflops: Some(1e-3 / seconds), ..RunRecord::of_times(times) }),
            ..Row::default()
        }
    }

    #[test]
    fn means_and_least_ratios_stand_by_head_dim() {
        let rows = [
            row("S=1", 64, "forward_cpu", 1.0),
            row("S=1", 64, "standard", 9.0),
            row("S=1", 64, "torch MATH", 4.0),
            row("S=2", 64, "forward_cpu", 2.0),
            row("S=2", 64, "torch MATH", 2.0),
            row("S=2", 128, "forward_cpu", 3.0),
            Row::refused("S=2", "torch MATH", "no room"),
        ];
        let headlines = headlines(&rows);
        assert_eq!(headlines.iter().map(|one| one.head_dim).collect::<Vec<_>>(), [64, 128]);
        assert_eq!(headlines[0].flops, [5e8, 1e9]);
        let [Rival { series, mean, least }] = &headlines[0].rivals[..] else { panic!("one rival") };
        assert_eq!((&**series, *least), ("torch MATH", 1.0));
        assert!((mean - 2.0).abs() < 1e-12);
        assert!(headlines[1].rivals.is_empty());
        let names: Vec<_> = headlines[0].figures().into_iter().map(|figure| figure.name).collect();
        assert_eq!(names[2], "D=64: speed over torch MATH's, geometric mean");
    }
}
