//! What a sweep says to people.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::built::Built;
use super::document::{Document, Row};
use super::space::{Candidate, Point};
use crate::output::Screen;
use crate::table::{seconds, significant, table};

/// Lists the candidates: what will be built, and what will not and why.
pub(super) fn candidates(screen: &Screen, candidates: &[Candidate]) -> io::Result<()> {
    let rows = candidates.iter().map(|candidate| {
        let (variant, config) = (&candidate.variant, &candidate.variant.config);
        let tile = variant.tile();
        vec![
            variant.kernel.stem().to_owned(),
            format!("{}x{}", tile.block_m, tile.block_n),
            config.warps().to_string(),
            stages(config.stages()),
            variant.min_blocks.to_string(),
            tile.head_dim.to_string(),
            candidate.points.iter().map(Point::to_string).collect::<Vec<_>>().join(","),
            config.shared_needed().to_string(),
            match &candidate.verdict {
                Ok(()) => "feasible".to_owned(),
                Err(reason) => format!("rejected: {reason}"),
            },
        ]
    });
    let titles =
        ["kernel", "tile", "warps", "stages", "blocks", "HEAD_DIM", "problems", "shared bytes", "verdict"];
    screen.line(table(&titles, rows.collect()))
}

/// Says how many there are.
pub(super) fn summary(screen: &Screen, candidates: &[Candidate], device: &str) -> io::Result<()> {
    let feasible = candidates.iter().filter(|candidate| candidate.verdict.is_ok()).count();
    let rejected = candidates.len() - feasible;
    screen.line(format!("{feasible} tiles are feasible on {device}, {rejected} are not"))
}

/// Says what was built where, and what was not.
pub(super) fn built(screen: &Screen, built: &Built, folder: &Path) -> io::Result<()> {
    let mut failed = 0;
    for (id, result) in &built.variants {
        if let Err(reason) = result {
            screen.line(format!("{id}: {reason}"))?;
            failed += 1;
        }
    }
    let count = built.variants.len() - failed;
    screen.line(format!(
        "{count} variants built into {}, {failed} not, by {} and ptxas {}",
        folder.display(),
        built.tools.compiler,
        built.tools.ptxas
    ))
}

/// The table, the tile that is the fastest for each kernel and problem, and what unaligned head_dims cost.
pub(super) fn results(screen: &Screen, document: &Document) -> io::Result<()> {
    let mut rows: Vec<&Row> = document.rows.iter().collect();
    let latency = |row: &Row| row.median_s().unwrap_or(f64::INFINITY);
    rows.sort_by(|a, b| a.contest().cmp(&b.contest()).then(latency(a).total_cmp(&latency(b))));
    let references = references(&rows);
    let titles = [
        "kernel",
        "problem",
        "tile",
        "warps",
        "stages",
        "blocks",
        "registers",
        "shared bytes",
        "latency",
        "p20-p80",
        "TFLOP/s",
        "vs aligned",
        "check",
    ];
    screen.line("")?;
    screen.line(format!("{} {} {}", document.kernel, document.dtype, document.shape))?;
    let cells = rows.iter().map(|row| cells(row, &rows, &references));
    screen.line(table(&titles, cells.collect()))?;
    let firsts = rows.iter().enumerate().filter(|(index, row)| {
        let is_first = index.checked_sub(1).is_none_or(|before| rows[before].contest() != row.contest());
        is_first && row.median_s().is_some()
    });
    let firsts: Vec<&Row> = firsts.map(|(_, row)| *row).collect();
    for row in &firsts {
        let name = row.contest_name(&document.kernel);
        screen.line(format!("{name}: the fastest is {}", of_row(row)))?;
        let is_reference = |other: &&&Row| {
            other.algorithm == row.algorithm && references.get(&row.head_dim) == Some(&other.head_dim)
        };
        if let Some(aligned) = firsts.iter().find(is_reference) {
            screen.line(format!(
                "{name} against {}, which is aligned: {:.2} times the latency, each with its fastest tile",
                aligned.head_dim,
                latency(row) / latency(aligned)
            ))?;
        }
    }
    Ok(())
}

fn cells(row: &Row, rows: &[&Row], references: &BTreeMap<usize, usize>) -> Vec<String> {
    let registers = row.registers.map_or("-".to_owned(), |registers| registers.to_string());
    let mut cells = vec![
        row.algorithm.clone(),
        row.operands.clone().unwrap_or_else(|| row.head_dim.to_string()),
        format!("{}x{}", row.block_m, row.block_n),
        row.warps.to_string(),
        stages(row.stages),
        row.min_blocks.to_string(),
        registers,
        row.shared_bytes.to_string(),
    ];
    match &row.measurement {
        Some(measured) => cells.extend([
            seconds(measured.times.median_s),
            format!("{} - {}", seconds(measured.times.p20_s), seconds(measured.times.p80_s)),
            significant(measured.tflops),
            ratio(row, rows, references).map_or("-".to_owned(), |ratio| format!("{ratio:.2}x")),
            "pass".to_owned(),
        ]),
        None => {
            cells.extend(["-"; 4].map(str::to_owned));
            cells.push(row.error.clone().unwrap_or_default());
        }
    }
    cells
}

/// Of each head_dim whose rows do not start on 16 bytes in 16-bit types, the largest smaller one whose rows
/// do.
fn references(rows: &[&Row]) -> BTreeMap<usize, usize> {
    let aligned = |head_dim: usize| head_dim.is_multiple_of(8);
    let reference = |row: &&Row| {
        let smaller = rows.iter().map(|other| other.head_dim).filter(|&d| d < row.head_dim && aligned(d));
        Some((row.head_dim, smaller.max()?))
    };
    rows.iter().filter(|row| !aligned(row.head_dim)).filter_map(reference).collect()
}

/// How many times as long as the same tile takes with an aligned head_dim.
fn ratio(row: &Row, rows: &[&Row], references: &BTreeMap<usize, usize>) -> Option<f64> {
    let place = |row: &Row| (row.block_m, row.block_n, row.warps, row.stages, row.min_blocks);
    let aligned = references.get(&row.head_dim)?;
    let is_same = |other: &&&Row| {
        other.algorithm == row.algorithm && other.head_dim == *aligned && place(other) == place(row)
    };
    let same = rows.iter().find(is_same)?;
    Some(row.median_s()? / same.median_s()?)
}

fn of_row(row: &Row) -> String {
    let time = row.median_s().map_or("-".to_owned(), seconds);
    format!("{}x{}, {}: {time}", row.block_m, row.block_n, row.with())
}

fn stages(stages: Option<u32>) -> String {
    stages.map_or("-".to_owned(), |stages| stages.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture::{BROKEN, FASTEST, WRONG, row_of};

    #[test]
    fn unaligned_rows_are_set_beside_the_same_tile_on_aligned_ones() {
        let rows = [
            row_of(FASTEST, 56, Some(1e-3)),
            row_of(WRONG, 56, Some(4e-3)),
            row_of(FASTEST, 60, Some(3e-3)),
            row_of(WRONG, 60, Some(5e-3)),
            row_of(BROKEN, 60, None),
        ];
        let rows: Vec<&Row> = rows.iter().collect();
        let references = references(&rows);
        assert_eq!(references, [(60, 56)].into());
        let ratios: Vec<_> = rows.iter().map(|row| ratio(row, &rows, &references)).collect();
        assert_eq!(ratios, [None, None, Some(3.0), Some(1.25), None]);
        let text = cells(rows[2], &rows, &references).join(" ");
        assert_eq!(
            text,
            "forward_simt 60 32x32 4 - 2 100 22016 3.00 ms 3.00 ms - 3.00 ms 2.18e-5 3.00x pass"
        );
        let text = cells(rows[4], &rows, &references).join(" ");
        assert!(text.ends_with("- - - - not built: the gates refuse it: spill"), "{text}");
    }
}
