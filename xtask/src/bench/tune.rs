//! `cargo xtask bench tune`: the planner's table from the committed sweeps.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use fa_bench::sweep::{Document, Row};
use fa_kernels::entries::variants;
use fa_kernels::variant::{Kernel, Layout, Variant};
use fa_ptx_builder::Workspace;

/// Make the planner's order of tiles from results/*/sweep-*.json.
#[derive(Args)]
pub(crate) struct Tune {
    /// Write nothing; fail where the committed table is not what the committed results give.
    #[arg(long)]
    check: bool,
}

/// The table, in the sources of the library.
const TABLE: &str = "crates/host/src/plan/tuned.rs";

impl Tune {
    pub(crate) fn run(&self, workspace: &Workspace) -> Result<()> {
        let all = read(&workspace.root().join("results"))?;
        let (estimated, sweeps): (Vec<_>, Vec<_>) = all.into_iter().partition(is_estimated);
        let text = formatted(workspace, &table(&sweeps)?)?;
        let path = workspace.root().join(TABLE);
        let committed =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let files = sweeps.len();
        if !self.check {
            [&sweeps, &estimated]
                .into_iter()
                .flat_map(|sweeps| unbuilt(sweeps))
                .for_each(|line| println!("{line}"));
        }
        if committed == text {
            println!("{TABLE} is what {files} sweeps give");
        } else if self.check {
            bail!("{TABLE} is not what the {files} sweeps under results/ give; run `cargo xtask bench tune`");
        } else {
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            println!("{TABLE} written from {files} sweeps");
        }
        Ok(())
    }
}

/// A sweep's results and where they stand, as in `h200/sweep-….json`.
struct Sweep {
    name: String,
    document: Document,
}

/// What the planner looks up: one kernel in one type on one device, for a HEAD_DIM and a mask.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    device: String,
    kernel: String,
    dtype: String,
    head_dim: u32,
    causal: bool,
}

/// A tile, whatever the orders of its operands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Tile {
    /// The entry's name, but for those orders.
    name: String,
    min_blocks: u32,
    stages: Option<u32>,
}

impl Tile {
    fn new(entry: &str, operands: Option<&str>, min_blocks: u32, stages: Option<u32>) -> Self {
        let of_any_order = operands.and_then(|operands| entry.strip_suffix(operands)?.strip_suffix('_'));
        Self { name: of_any_order.unwrap_or(entry).to_owned(), min_blocks, stages }
    }

    fn of_row(row: &Row) -> Self {
        Self::new(&row.entry, row.operands.as_deref(), row.min_blocks, row.stages)
    }

    /// What the list has of it.
    fn listed(&self) -> impl Iterator<Item = Variant> {
        variants().filter(|variant| {
            let (operands, stages) = (variant.config.layout().map(Layout::name), variant.config.stages());
            Self::new(&variant.name(), operands, variant.min_blocks, stages) == *self
        })
    }
}

/// The name of a sweep with one of its head_dims, or orders of operands.
type Problem<'a> = (&'a str, usize, Option<&'a str>);

/// Tiles with their seconds, or with how much slower than the fastest they are.
type Times = Vec<(Tile, f64)>;

/// Reads every sweep of every device, in the order of the names.
fn read(results: &Path) -> Result<Vec<Sweep>> {
    let mut sweeps = Vec::new();
    for folder in children(results) {
        for path in children(&folder) {
            let file = name(&path);
            if file.starts_with("sweep-") && file.ends_with(".json") {
                let document = Document::read(&path)?;
                sweeps.push(Sweep { name: format!("{}/{file}", name(&folder)), document });
            }
        }
    }
    Ok(sweeps)
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Of each key every tile that was measured with how much slower than the fastest it is: the geometric mean
/// over the problems that the sweeps have for the key. The fastest come first.
fn slowdowns(sweeps: &[Sweep]) -> BTreeMap<Key, Times> {
    let mut problems: BTreeMap<Key, BTreeMap<Problem<'_>, Times>> = BTreeMap::new();
    for Sweep { name, document } in sweeps {
        for row in &document.rows {
            let Some(seconds) = row.median_s() else { continue };
            let key = Key {
                device: document.device().to_owned(),
                kernel: row.algorithm.clone(),
                dtype: document.dtype.clone(),
                head_dim: row.tile_head_dim,
                causal: document.causal(),
            };
            let of_key = problems.entry(key).or_default();
            let problem = (&**name, row.head_dim, row.operands.as_deref());
            of_key.entry(problem).or_default().push((Tile::of_row(row), seconds));
        }
    }
    let ranked = problems.into_iter().map(|(key, problems)| (key, rank(problems.into_values())));
    ranked.collect()
}

fn rank(problems: impl Iterator<Item = Times>) -> Times {
    let mut logarithms: BTreeMap<Tile, Vec<f64>> = BTreeMap::new();
    for rows in problems {
        let best = rows.iter().map(|(_, seconds)| *seconds).fold(f64::INFINITY, f64::min);
        for (tile, seconds) in rows {
            logarithms.entry(tile).or_default().push((seconds / best).ln());
        }
    }
    let mean = |values: Vec<f64>| (values.iter().sum::<f64>() / values.len() as f64).exp();
    let mut ranked: Vec<_> = logarithms.into_iter().map(|(tile, values)| (tile, mean(values))).collect();
    ranked.sort_by(|a, b| a.1.total_cmp(&b.1));
    ranked
}

/// Whether the planner chooses among a sweep's tiles by an estimate for the problem at hand, and not by an
/// order: those whose blocks stay on their multiprocessors.
fn is_estimated(sweep: &Sweep) -> bool {
    let is_persistent = |variant: Variant| matches!(variant.kernel, Kernel::Attention(algorithm) if algorithm.is_persistent());
    sweep.document.rows.iter().any(|row| Tile::of_row(row).listed().any(is_persistent))
}

/// The source of the table, not formatted yet.
fn table(sweeps: &[Sweep]) -> Result<String> {
    let mut text = "//! Generated by `cargo xtask bench tune`; do not edit.\n//!\n".to_owned();
    let mut rows = String::new();
    let mut algorithms = BTreeSet::new();
    for (key, ranked) in slowdowns(sweeps) {
        let of_device = sweeps.iter().filter(|sweep| sweep.document.device() == key.device);
        let measured: BTreeSet<&str> = of_device
            .flat_map(|sweep| &sweep.document.rows)
            .filter(|row| row.median_s().is_some())
            .map(|row| &*row.entry)
            .collect();
        let built = ranked.iter().flat_map(|(tile, _)| tile.listed());
        let built: Vec<_> = built.filter(|variant| measured.contains(&*variant.name())).collect();
        let Some(first) = built.first() else { continue };
        let (algorithm, kernel) = match first.kernel {
            Kernel::Attention(it) => ("Algorithm", format!("Attention(Algorithm::{it:?})")),
            Kernel::Gemm(it) => ("GemmAlgorithm", format!("Gemm(GemmAlgorithm::{it:?})")),
        };
        algorithms.insert(algorithm);
        let Key { device, dtype, head_dim, causal, .. } = key;
        let names: Vec<_> = built.iter().map(Variant::name).collect();
        write!(
            rows,
            "Tuned {{ device: {device:?}, kernel: Kernel::{kernel}, dtype: {dtype:?}, head_dim: {head_dim}, \
             causal: {causal}, entries: &{names:?} }},"
        )?;
    }
    if sweeps.is_empty() {
        text.push_str("//! No sweep is committed under results/: the planner goes by the list of entries.\n");
    } else {
        let devices: BTreeSet<_> = sweeps.iter().map(|sweep| sweep.document.device()).collect();
        let devices: Vec<_> = devices.into_iter().collect();
        writeln!(
            text,
            "//! The order of the built tiles on {}, from these under results/:",
            devices.join(", ")
        )?;
        for Sweep { name, .. } in sweeps {
            writeln!(text, "//! * {name}")?;
        }
    }
    let algorithms: Vec<_> = algorithms.into_iter().collect();
    let import = match &algorithms[..] {
        [] => String::new(),
        used => {
            format!("use fa_kernels::entries::{{{}}};\nuse fa_kernels::variant::Kernel;\n\n", used.join(", "))
        }
    };
    write!(text, "\n{import}use super::order::Tuned;\n\npub(crate) const TUNED: &[Tuned] = &[{rows}];\n")?;
    Ok(text)
}

/// Where a tile that is not in the list beat those that are: a line to try there.
fn unbuilt(sweeps: &[Sweep]) -> Vec<String> {
    let line = |tile: &Tile| {
        let rows = sweeps.iter().flat_map(|sweep| &sweep.document.rows);
        let mut of_tile = rows.filter(|row| Tile::of_row(row) == *tile);
        of_tile.next().map_or_else(|| tile.name.clone(), |row| row.line.clone())
    };
    let of_key = |(key, ranked): (Key, Times)| {
        let (fastest, _) = ranked.first()?;
        let best_built = ranked.iter().find(|(tile, _)| tile.listed().next().is_some());
        let gain = match best_built {
            Some((tile, _)) if tile == fastest => return None,
            Some((tile, slowdown)) => format!("{slowdown:.2} times as fast as {}", tile.name),
            None => "none of this HEAD_DIM is in the list".to_owned(),
        };
        let mask = if key.causal { "causal" } else { "full" };
        Some(format!("{}, {}, {mask}: not in the list: `{}` ({gain})", key.device, key.dtype, line(fastest)))
    };
    slowdowns(sweeps).into_iter().filter_map(of_key).collect()
}

/// As `cargo fmt` leaves it.
fn formatted(workspace: &Workspace, text: &str) -> Result<String> {
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path"])
        .arg(workspace.root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run rustfmt")?;
    // Dropped at the end of the statement, which closes the pipe.
    child.stdin.take().context("rustfmt has no input")?.write_all(text.as_bytes())?;
    let output = child.wait_with_output().context("rustfmt")?;
    if !output.status.success() {
        bail!("rustfmt refuses the table: {}", output.status);
    }
    String::from_utf8(output.stdout).context("rustfmt printed something else than text")
}

#[cfg(test)]
#[path = "tune_tests.rs"]
mod tests;
