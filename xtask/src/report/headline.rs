//! The report's beginning: a chart of each pass and of several GPUs, ratios to the best peer, the trap, at
//! most six sentences.

use anyhow::Result;
use fa_bench::lab::{Document, Row};

use super::canvas;
use super::figure::Figure;
use super::series::STANDARD;
use super::several::Several;
use super::speeds::{Pass, Speeds, mean};
use super::trap::Trap;
use super::{Claim, Section};

/// The most sentences of the first screen.
pub(super) const SENTENCES: usize = 6;

/// A chart with its sentence.
pub(super) struct Part {
    pub(super) heading: &'static str,
    pub(super) claim: Option<Claim>,
    pub(super) figure: Figure,
}

/// A table of ratios: its titles, and a line for each pass, head_dim and mask.
pub(super) struct Ratios {
    pub(super) titles: Vec<String>,
    pub(super) lines: Vec<Vec<RatioCell>>,
}

/// A cell of the table.
#[derive(Clone, Debug, Default)]
pub(super) struct RatioCell {
    pub(super) text: String,
    /// Which peer, where the cell is one ratio.
    pub(super) peer: Option<String>,
    /// Whether the peer is faster.
    pub(super) behind: bool,
}

/// All of the beginning.
pub(super) struct Headline {
    /// Of each pass, then of several GPUs.
    pub(super) charts: Vec<Part>,
    pub(super) ratios: Option<Ratios>,
    pub(super) trap: Option<Part>,
    /// Sentences without a chart here.
    pub(super) claims: Vec<Claim>,
}

impl Headline {
    /// From all documents; `room` is how many sentences there may be.
    ///
    /// # Errors
    /// When a chart cannot be drawn.
    pub(super) fn of(sections: &[Section], device: &str, room: usize) -> Result<Self> {
        let passes =
            [Pass::Forward, Pass::Backward].into_iter().filter_map(|pass| Speeds::of(sections, pass));
        let speeds: Vec<_> = passes.collect();
        let part = |speeds: &Speeds<'_>| {
            let heading = match speeds.pass {
                Pass::Forward => "Forward",
                Pass::Backward => "Backward",
            };
            Ok(Part { heading, claim: Some(speeds.claim()), figure: speeds.figure(device)? })
        };
        let mut charts: Vec<_> = speeds.iter().map(part).collect::<Result<_>>()?;
        if let Some(several) = Several::of(sections) {
            charts.extend(several.parts(device)?);
        }
        let trap = Trap::of(sections).map(|trap| {
            let heading = "The trap: head_dims that are not aligned";
            Ok::<_, anyhow::Error>(Part { heading, claim: trap.claim(), figure: trap.figure(device)? })
        });
        let trap = trap.transpose()?;
        let said = charts.iter().chain(&trap).filter(|part| part.claim.is_some()).count();
        let claims = [checks(sections), memory(sections), products(sections)].into_iter().flatten();
        let claims = claims.take(room.saturating_sub(said)).collect();
        Ok(Self { charts, ratios: table(&speeds), trap, claims })
    }

    /// Its charts, in the order in which a page shows them.
    pub(super) fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.charts.iter().chain(&self.trap).map(|part| &part.figure)
    }
}

/// Ratios of all passes, with a column for each length.
fn table(speeds: &[Speeds<'_>]) -> Option<Ratios> {
    let lines: Vec<_> =
        speeds.iter().flat_map(|one| one.ratios().into_iter().map(|line| (one.pass, line))).collect();
    let mut seqs: Vec<_> = lines.iter().flat_map(|(_, line)| &line.ratios).map(|ratio| ratio.seq).collect();
    seqs.sort_unstable();
    seqs.dedup();
    let mut titles = vec!["problem".to_owned()];
    titles.extend(seqs.iter().map(|&seq| format!("S={}", canvas::number(seq as f64))));
    titles.extend(["mean", "best peer"].map(str::to_owned));
    let number = |value: f64| RatioCell { text: format!("{value:.2}"), peer: None, behind: value < 0.995 };
    let text = |text: String| RatioCell { text, ..RatioCell::default() };
    let lines = lines.into_iter().map(|(pass, line)| {
        let mut cells = vec![text(format!("{} {}", pass.name(), line.cell))];
        cells.extend(seqs.iter().map(|&seq| {
            let ratio = line.ratios.iter().find(|ratio| ratio.seq == seq);
            ratio.map_or_else(
                || text("-".to_owned()),
                |ratio| RatioCell { peer: Some(ratio.peer.clone()), ..number(ratio.value) },
            )
        }));
        cells.push(number(mean(&line.ratios.iter().map(|ratio| ratio.value).collect::<Vec<_>>())));
        let mut peers: Vec<_> = line.ratios.iter().map(|ratio| &*ratio.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        cells.push(text(peers.join(", ")));
        cells
    });
    let lines: Vec<_> = lines.collect();
    (!lines.is_empty()).then_some(Ratios { titles, lines })
}

/// Whether results are right, over all documents.
fn checks(sections: &[Section]) -> Option<Claim> {
    let checks = |document: &Document| document.rows.iter().filter_map(|row| row.check).collect::<Vec<_>>();
    let all: Vec<_> = sections.iter().flat_map(|section| checks(&section.document)).collect();
    let wrong = all.iter().filter(|check| !check.passed).count();
    let failed =
        sections.iter().filter(|section| checks(&section.document).iter().any(|check| !check.passed));
    let text = match (all.len(), wrong) {
        (0, _) => return None,
        (count, 0) => format!("All {count} checked results are within their error bounds."),
        (count, wrong) => format!("Of {count} checked results, {wrong} are outside of their error bounds."),
    };
    Some(Claim { text, sources: failed.map(|section| (section.name().to_owned(), None)).collect() })
}

/// Memory beside the tensors at the greatest length where both kernels ran.
fn memory(sections: &[Section]) -> Option<Claim> {
    let section = sections.iter().find(|section| section.name() == "memory")?;
    let rows = || section.document.rows.iter().enumerate();
    let extra = |row: &Row| row.figures.iter().find(|figure| figure.name == "extra memory").cloned();
    let unfused = rows().filter(|(_, row)| row.series == STANDARD && extra(row).is_some());
    let (_, unfused) = unfused.max_by(|a, b| a.1.x.unwrap_or(0.0).total_cmp(&b.1.x.unwrap_or(0.0)))?;
    let own = |row: &Row| row.case == unfused.case && row.plan.is_some() && row.series != STANDARD;
    let (index, row) = rows().find(|(_, row)| own(row) && extra(row).is_some())?;
    let text = format!(
        "At {} {} takes {} beside its tensors, and unfused attention {}.",
        row.case,
        row.series,
        extra(row)?.text(),
        extra(unfused)?.text()
    );
    Some(Claim { text, sources: vec![(section.name().to_owned(), Some(index))] })
}

/// Matrix products beside the peer's, by the library's fastest kernel of each.
fn products(sections: &[Section]) -> Option<Claim> {
    let section = sections.iter().find(|section| section.name() == "matmul")?;
    let rows = || section.document.rows.iter().filter(|row| row.product.is_some());
    let speed = |row: &Row| row.measurement.as_ref()?.tflops;
    let peers = rows().filter(|row| row.series.starts_with("torch"));
    let ratio = |peer: &Row| {
        let own = rows().filter(|row| row.case == peer.case && row.plan.is_some());
        Some(own.filter_map(speed).reduce(f64::max)? / speed(peer)?)
    };
    let ratios: Vec<_> = peers.filter_map(ratio).collect();
    let text = format!(
        "Matrix multiplication runs at {:.2} times cuBLAS's speed in the geometric mean of {} products.",
        mean(&ratios),
        ratios.len()
    );
    (!ratios.is_empty()).then(|| Claim { text, sources: vec![(section.name().to_owned(), None)] })
}
