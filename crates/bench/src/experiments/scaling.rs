//! How cost grows with the sequence length, fused and unfused, and fused alone beyond where scores fit.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::args::{LabArgs, at_least_one};
use crate::lab::{self, Case, ITERATIONS, Lab, Recipe, Row, Shared, Unit};
use crate::problem::{Layout, Shape, ShapeArgs};

const RECIPE: Recipe = Recipe {
    name: "scaling",
    what: "causal attention over a growing sequence, fused and unfused, and the fused kernel alone beyond that",
    reported_elsewhere: Some(
        "at B=4 H=32 D=64, S = 512 to 8192: 2.73, 3.71, 5.48, 7.05, 8.58 times as fast as unfused",
    ),
    axis: Some("sequence length (rows)"),
    iterations: ITERATIONS,
    scaled: true,
};

/// Arguments of `scaling`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    shape: ShapeArgs,
    /// Sequence lengths of both [default: 512 to 8192; cpu: 128 to 1024; sim: 32, 64]
    #[arg(long, value_name = "ROWS,…", value_delimiter = ',', value_parser = at_least_one)]
    seq: Vec<usize>,
    /// Sequence lengths of the fused kernel alone [default: 16384 to 131072; cpu: 2048, 4096; sim: 128]
    #[arg(long, value_name = "ROWS,…", value_delimiter = ',', value_parser = at_least_one)]
    long_seq: Vec<usize>,
    #[command(flatten)]
    lab: LabArgs,
}

/// Runs the experiment; false if a result is wrong.
pub(crate) fn run(args: &Args, shared: &mut Shared) -> Result<bool> {
    lab::run(&RECIPE, &args.lab, shared, |lab| {
        let sizes = lab.pick((4, 32, 64), (1, 4, 64), (1, 1, 64));
        let case = |seq| {
            let shape = Shape { causal: true, ..args.shape.shape(sizes, seq) };
            Ok::<_, anyhow::Error>(Case::at("S", seq, shape.problem(Layout::Bhsd)?))
        };
        for seq in lab.list(&args.seq, &[512, 1024, 2048, 4096, 8192], &[128, 256, 512, 1024], &[32, 64]) {
            let case = case(seq)?;
            let contenders = lab.flash_and_standard(&case.problem);
            lab.contest(&case, Layout::Bhsd, contenders)?;
        }
        // Its slower backends would take minutes.
        lab.dismiss_peer();
        for seq in lab.list(&args.long_seq, &[16384, 32768, 65536, 131_072], &[2048, 4096], &[128]) {
            let case = case(seq)?;
            let fused = lab.contender(&case.problem, None);
            lab.contest(&case, Layout::Bhsd, vec![fused])?;
        }
        fit(lab);
        Ok(())
    })
}

/// The exponent of each series' cost curve.
fn fit(lab: &mut Lab) {
    let mut curves: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for row in lab.rows() {
        if let (Some(x), Some(y)) = (row.x, Row::median(row)) {
            curves.entry(row.series.clone()).or_default().push((x, y));
        }
    }
    for (series, points) in curves {
        if let Some(exponent) = exponent(&points) {
            lab.figure(format!("{series}: time grows as S to the power"), Unit::Count, exponent);
        }
    }
}

/// The slope of log y over log x by least squares; `None` for fewer than two different x.
fn exponent(points: &[(f64, f64)]) -> Option<f64> {
    let logarithms: Vec<_> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let count = logarithms.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| logarithms.iter().map(of).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
    let variance: f64 = logarithms.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let covariance: f64 = logarithms.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    (variance > 0.0).then(|| covariance / variance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponent_of_a_power_is_found() {
        let points: Vec<_> = [512.0, 1024.0, 4096.0].map(|x: f64| (x, 3e-9 * x.powf(1.75))).into();
        assert!((exponent(&points).unwrap() - 1.75).abs() < 1e-12);
        assert_eq!(exponent(&points[..1]), None);
        assert_eq!(exponent(&[]), None);
    }
}
