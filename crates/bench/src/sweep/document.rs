//! The results of a sweep: one file per kernel, storage type, mask and problem size, and a row per tile and
//! head_dim, kept as they come.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use fa_kernels::variant::Variant;
use serde::{Deserialize, Serialize};

use super::built::{Module, Tools};
use super::shape::Shape;
use super::space::{Candidate, Point};
use crate::json;
use crate::record::{Header, MeasurementRecord, SCHEMA};
use crate::session::REVISION;

/// What a sweep measured on one device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Document {
    #[serde(flatten)]
    pub(super) header: Header,
    /// The kernel's name.
    pub kernel: String,
    /// The storage type's name.
    pub dtype: String,
    /// What built the tiles of the last run.
    pub(super) tools: Tools,
    pub(super) shape: Shape,
    /// One per tile and head_dim, those of the last run behind those that were kept.
    pub rows: Vec<Row>,
    pub(super) rejected: Vec<Rejected>,
}

/// One tile on one problem: its measurement, or why there is none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The entry's name, which it has in the list too where it stands there.
    pub entry: String,
    /// What names of the kernel's entries begin with: the kernel, where a sweep has several.
    #[serde(default)]
    pub algorithm: String,
    /// Blocks that its registers leave room for on a multiprocessor.
    pub min_blocks: u32,
    /// Its line in a list of entries.
    pub line: String,
    /// Elements of a row of the problem; 0 of a product.
    pub head_dim: usize,
    /// How the operands of a product lie, as in `row_col`.
    #[serde(default)]
    pub operands: Option<String>,
    /// Query rows of the tile, or rows of C.
    pub block_m: u32,
    /// Key rows of the tile, or columns of C.
    pub block_n: u32,
    /// HEAD_DIM, the columns of the tile.
    pub tile_head_dim: u32,
    /// Of a block.
    pub warps: u32,
    /// Of its ring in shared memory, where their number can be chosen.
    #[serde(default)]
    pub stages: Option<u32>,
    pub(super) shared_bytes: u64,
    /// Of a thread, on the newest architecture that ptxas was asked about.
    pub(super) registers: Option<u32>,
    /// The sources and the program that the row comes from.
    source_sha256: String,
    revision: String,
    ptx_sha256: Option<String>,
    pub(super) measurement: Option<MeasurementRecord>,
    /// Why it was not built, did not run, or is wrong.
    pub error: Option<String>,
}

/// A tile that was not built.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rejected {
    pub(super) entry: String,
    #[serde(default)]
    pub(super) algorithm: String,
    pub(super) min_blocks: u32,
    #[serde(default)]
    pub(super) stages: Option<u32>,
    pub(super) block_m: u32,
    pub(super) block_n: u32,
    pub(super) tile_head_dim: u32,
    pub(super) reason: String,
}

impl Row {
    /// The start of a row: what was built, and not yet what it does.
    pub(super) fn new(variant: &Variant, point: Point, tools: &Tools, module: Option<&Module>) -> Self {
        let tile = variant.tile();
        Self {
            entry: variant.name(),
            algorithm: variant.kernel.stem().to_owned(),
            min_blocks: variant.min_blocks,
            line: variant.line(),
            head_dim: point.head_dim,
            operands: point.operands.map(|operands| operands.name().to_owned()),
            block_m: tile.block_m,
            block_n: tile.block_n,
            tile_head_dim: tile.head_dim,
            warps: variant.config.warps(),
            stages: variant.config.stages(),
            shared_bytes: variant.config.shared_needed(),
            registers: module.and_then(|module| Some(module.resources.last()?.registers)),
            source_sha256: tools.source_sha256.clone(),
            revision: REVISION.to_owned(),
            ptx_sha256: module.map(|module| module.sha256.clone()),
            measurement: None,
            error: None,
        }
    }

    /// Seconds of a run, where it ran and was right.
    pub fn median_s(&self) -> Option<f64> {
        self.measurement.as_ref().map(|measurement| measurement.times.median_s)
    }

    /// Whether it was built, and then did not run or was wrong.
    pub(super) const fn is_faulty(&self) -> bool {
        self.ptx_sha256.is_some() && self.error.is_some()
    }

    /// Whether both are of the same tile on the same problem; an entry's name has the orders of operands.
    fn same_place(&self, other: &Self) -> bool {
        (&self.entry, self.min_blocks, self.stages, self.head_dim)
            == (&other.entry, other.min_blocks, other.stages, other.head_dim)
    }

    /// The kernel and the problem: what rows must share for one to be the faster.
    pub(super) fn contest(&self) -> (&str, usize, Option<&str>) {
        (&self.algorithm, self.head_dim, self.operands.as_deref())
    }

    /// The kernel where it is not the sweep's, and what tells the problem from others.
    pub(super) fn contest_name(&self, kernel: &str) -> String {
        let problem = match &self.operands {
            Some(operands) => format!("operands {operands}"),
            None => format!("head_dim {}", self.head_dim),
        };
        if self.algorithm == kernel { problem } else { format!("{}, {problem}", self.algorithm) }
    }

    /// What tells the tile from others of its rows and columns; one with stages has its warps by those.
    pub(super) fn with(&self) -> String {
        match self.stages {
            Some(stages) => format!("{stages} stages, {} blocks", self.min_blocks),
            None => format!("{} warps, {} blocks", self.warps, self.min_blocks),
        }
    }
}

impl Rejected {
    pub(super) fn of(candidate: &Candidate) -> Option<Self> {
        let variant = &candidate.variant;
        let tile = variant.tile();
        Some(Self {
            entry: variant.name(),
            algorithm: variant.kernel.stem().to_owned(),
            min_blocks: variant.min_blocks,
            stages: variant.config.stages(),
            block_m: tile.block_m,
            block_n: tile.block_n,
            tile_head_dim: tile.head_dim,
            reason: candidate.verdict.err()?.to_string(),
        })
    }
}

impl Document {
    /// Reads results.
    ///
    /// # Errors
    /// When the file is not a sweep's.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        let mut document: Self =
            serde_json::from_str(&text).with_context(|| format!("{} is not a sweep's", path.display()))?;
        if document.header.schema != SCHEMA {
            let found = document.header.schema;
            bail!("{} has schema {found}, and this program reads {SCHEMA}", path.display());
        }
        // Rows from before there were sweeps of several kernels.
        let of_rows = document.rows.iter_mut().map(|row| &mut row.algorithm);
        let of_rejected = document.rejected.iter_mut().map(|row| &mut row.algorithm);
        let unnamed = of_rows.chain(of_rejected).filter(|algorithm| algorithm.is_empty());
        unnamed.for_each(|algorithm| algorithm.clone_from(&document.kernel));
        Ok(document)
    }

    /// The name that the driver gives the device.
    pub fn device(&self) -> &str {
        &self.header.device.name
    }

    /// Whether it was the causal mask.
    pub const fn causal(&self) -> bool {
        self.shape.causal()
    }

    /// Where it stands under the folder of all results.
    pub(super) fn path(&self, results: &Path) -> PathBuf {
        let name = format!("sweep-{}-{}-{}.json", self.kernel, self.dtype, self.shape.slug());
        results.join(folder_name(self.device())).join(name)
    }

    pub(super) fn write(&self, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("{}: cannot be made", folder.display()))?;
        }
        json::write(path, self)
    }

    /// Takes over the rows of an earlier run, and says why if they cannot be compared with this one's.
    pub(super) fn keep(&mut self, earlier: Self) -> Option<&'static str> {
        if earlier.header.device != self.header.device {
            return Some("another device or driver");
        }
        if earlier.shape != self.shape {
            return Some("another problem");
        }
        self.rows = earlier.rows;
        None
    }

    /// Whether a row like `row` is there, of the same PTX, that ran and was right; with `failed`, also one
    /// that was not.
    pub(super) fn has(&self, row: &Row, failed: bool) -> bool {
        self.rows.iter().any(|kept| {
            kept.same_place(row)
                && kept.ptx_sha256 == row.ptx_sha256
                && (kept.measurement.is_some() || failed && kept.error.is_some())
        })
    }

    /// Puts a finished row in place of an older one.
    pub(super) fn put(&mut self, row: Row) {
        self.rows.retain(|kept| !kept.same_place(&row));
        self.rows.push(row);
    }
}

/// A device's name as that of a folder: `NVIDIA H200` is `h200`.
pub(crate) fn folder_name(device: &str) -> String {
    let words = device.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_ascii_lowercase);
    let kept: Vec<_> =
        words.filter(|word| !word.is_empty() && !["nvidia", "geforce"].contains(&&**word)).collect();
    if kept.is_empty() { "device".to_owned() } else { kept.join("-") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::fixture;
    use flash_attention::DType;
    use flash_attention::gemm::{GemmProblem, Matrices, MatrixLayout};

    #[test]
    fn files_are_named_after_device_kernel_and_problem() {
        let document = fixture::document();
        let path = document.path(Path::new("results"));
        assert_eq!(path, Path::new("results/test-gpu/sweep-forward_simt-f32-causal-b1-h2-s16.json"));
        let matrices = [(4096, 512), (512, 8192), (4096, 8192)]
            .map(|(rows, columns)| MatrixLayout::row_major(rows, columns));
        let [a, b, c] = matrices;
        let product = GemmProblem::new(Matrices { a, b, c }, DType::F16).unwrap();
        let document = Document { shape: Shape::of_product(&product), ..document };
        let path = document.path(Path::new("results"));
        assert!(path.ends_with("sweep-forward_simt-f32-m4096-n8192-k512.json"), "{}", path.display());
        assert_eq!(
            ["NVIDIA H200", "NVIDIA GeForce RTX 4090", "NVIDIA A100-SXM4-80GB", "NVIDIA"].map(folder_name),
            ["h200", "rtx-4090", "a100-sxm4-80gb", "device"]
        );
    }

    #[test]
    fn rows_of_another_device_or_problem_are_not_kept() {
        let earlier = fixture::document();
        let mut document = fixture::document();
        document.header.device.name = "another".to_owned();
        assert_eq!(document.keep(earlier.clone()), Some("another device or driver"));
        let mut document = fixture::document();
        let Shape::Attention { seq, .. } = &mut document.shape else { panic!("the fixture is attention") };
        *seq += 1;
        assert_eq!(document.keep(earlier.clone()), Some("another problem"));
        assert_eq!(fixture::document().keep(earlier), None);
    }

    #[test]
    fn a_document_survives_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut document = fixture::document();
        document.put(fixture::row(fixture::FASTEST, Some(1.5e-3)));
        document.put(fixture::row(fixture::BROKEN, None));
        let path = document.path(folder.path());
        document.write(&path).unwrap();
        let read = Document::read(&path).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), serde_json::to_string(&document).unwrap());
        assert_eq!(read.rows.iter().map(Row::median_s).collect::<Vec<_>>(), [Some(1.5e-3), None]);
        // A row without the fields that rows of other kernels have is one of the sweep's kernel.
        let text = fs::read_to_string(&path).unwrap();
        let old: Vec<_> = text
            .lines()
            .filter(|line| ["algorithm", "operands", "stages"].iter().all(|name| !line.contains(name)))
            .collect();
        assert!(old.len() < text.lines().count());
        fs::write(&path, old.join("\n")).unwrap();
        let read = Document::read(&path).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), serde_json::to_string(&document).unwrap());
        fs::write(&path, "{}").unwrap();
        assert!(Document::read(&path).unwrap_err().to_string().ends_with(".json is not a sweep's"));
    }
}
