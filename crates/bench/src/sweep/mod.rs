//! The sweep: every feasible tile of a kernel really built, verified and timed.

mod built;
mod document;
mod family;
pub mod heat_map;
mod operation;
mod problems;
mod report;
mod run;
mod shape;
mod space;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use fa_kernels::config::Limits;
use fa_kernels::variant::{Layout, Variant};
use flash_attention::{BackendKind, Element, Error};

pub use built::{Builder, Module, Tools};
pub(crate) use document::folder_name;
pub use document::{Document, Row};
pub use shape::QUERIES_AND_KEYS;

use crate::args::{BackendArgs, MeasureArgs, named};
use crate::failure::usage;
use crate::measure::{with_element, with_output_element};
use crate::output::Screen;
use crate::problem::ProblemArgs;
use crate::record::Header;
use crate::session::Session;
use built::Built;
use document::Rejected;
use family::Family;
use operation::Swept;
use problems::{Problems, ProductArgs};
use run::{Gpu, Job, Outcome};
use space::{Candidate, Space};

const ITERATIONS: usize = 50;

/// Tile sizes and other numbers of the kernel's own parameters.
const SIZES: std::ops::RangeInclusive<i64> = 1..=1 << 16;

/// Every feasible tile of a kernel, built, verified and timed, unless given otherwise on B=4 H=32 S=2048, of
/// decode on B=64 H=32 Hkv=8 with 8192 keys, of a product on M=N=K=4096; rows go to
/// `results/<device>/sweep-….json`
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The kernel whose tile is swept
    #[arg(long, value_parser = named(&Family::ALL, Family::name), required_unless_present = "built")]
    kernel: Option<Family>,
    /// BLOCK_M, query rows of a tile, or rows of C [default: by the kernel, as 64,128]
    #[arg(long, value_name = "ROWS,…", value_delimiter = ',', value_parser = sizes())]
    block_m: Vec<u32>,
    /// BLOCK_N, key rows of a tile, or columns of C [default: by the kernel, as 32,64,128]
    #[arg(long, value_name = "ROWS,…", value_delimiter = ',', value_parser = sizes())]
    block_n: Vec<u32>,
    /// Warps of a block, where they can be chosen [default: by the kernel, as 4,8]
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', value_parser = sizes())]
    warps: Vec<u32>,
    /// Stages of a ring in shared memory, of decode and gemm_sm90 [default: 2,3,4,5; gemm_sm90: 3,4,5,6]
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', value_parser = sizes())]
    stages: Vec<u32>,
    /// Blocks per multiprocessor that the registers are to leave room for, where that can be chosen [default:
    /// 1,2]
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', value_parser = sizes())]
    min_blocks: Vec<u32>,
    /// Elements of a row of Q, K, V and O: head_dim [default: 64,128,129; decode and backward: 64,128]
    #[arg(long, alias = "head-dim", value_name = "COLUMNS,…", value_delimiter = ',')]
    dim: Vec<usize>,
    /// Orders of A and B, of gemm_sm90 [default: row_row]
    #[arg(
        long,
        value_name = "ORDERS,…",
        value_delimiter = ',',
        value_parser = named(&Layout::ALL, Layout::name)
    )]
    operands: Vec<Layout>,
    #[command(flatten)]
    product: ProductArgs,
    #[command(flatten)]
    problem: ProblemArgs,
    #[command(flatten)]
    measure: MeasureArgs,
    /// Which GPU, as the driver counts them
    #[arg(long, value_name = "ORDINAL")]
    device: Option<usize>,
    /// Names the random inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// List what is feasible and what is not, and why; needs no GPU and no toolchain
    #[arg(long, conflicts_with_all = ["build_only", "built"])]
    dry_run: bool,
    /// Build into a folder that --built takes on a machine with a GPU
    #[arg(
        long,
        value_name = "FOLDER",
        num_args = 0..=1,
        default_missing_value = "target/sweep/out",
        conflicts_with = "built"
    )]
    build_only: Option<PathBuf>,
    /// Run what --build-only built; needs no toolchain
    #[arg(
        long,
        value_name = "FOLDER",
        conflicts_with_all = ["kernel", "block_m", "block_n", "warps", "stages", "min_blocks", "dim", "operands"]
    )]
    built: Option<PathBuf>,
    /// With --dry-run or --build-only: the architecture whose limits count, as in 90 for sm_90
    #[arg(long, value_name = "SM", default_value_t = 90)]
    arch: u32,
    /// Measure every tile anew, whatever the results have
    #[arg(long)]
    fresh: bool,
    /// The folder of all results [default: results/ of the checkout, else of the working directory]
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
    /// Go on behind a tile that took the device down
    #[arg(long, hide = true)]
    continued: bool,
}

fn sizes() -> clap::builder::RangedI64ValueParser<u32> {
    clap::builder::RangedI64ValueParser::new().range(SIZES)
}

/// Runs the sweep, and gives false if a tile that was built does not run or is wrong: one that spills or
/// does not compile is a result like others. `results` is where results go if the arguments do not say.
///
/// # Errors
/// When the arguments are at fault, nothing can be built, there is no GPU, or the results cannot be written.
pub fn run(args: &Args, builder: &dyn Builder, results: &Path) -> Result<bool> {
    let screen = Screen::stdout();
    if let Some(folder) = &args.built {
        let built = Built::load(folder)?;
        let dtype = built.space.dtype;
        if dtype != args.problem.dtype {
            return Err(usage(format!("--dtype {}: the folder was built for {dtype}", args.problem.dtype)));
        }
        return execute(args, &screen, built.space.clone(), |_| Ok(built), results);
    }
    let space = args.space()?;
    if args.dry_run || args.build_only.is_some() {
        let candidates = space.candidates(&Limits::of(args.arch));
        check_target(&candidates, args.arch, "--arch")?;
        Problems::new(&args.problem, &args.product, &space)?;
        report::candidates(&screen, &candidates)?;
        report::summary(&screen, &candidates, &format!("sm_{}", args.arch))?;
        let Some(folder) = &args.build_only else { return Ok(true) };
        let built = build(builder, &screen, space, &candidates)?;
        built.save(folder)?;
        report::built(&screen, &built, folder)?;
        return Ok(true);
    }
    let build = |candidates: &[Candidate]| build(builder, &screen, space.clone(), candidates);
    execute(args, &screen, space.clone(), build, results)
}

impl Args {
    fn space(&self) -> Result<Space> {
        Space::new(Space {
            kernel: self.kernel.ok_or_else(|| usage("--kernel is missing"))?,
            dtype: self.problem.dtype,
            block_m: self.block_m.clone(),
            block_n: self.block_n.clone(),
            warps: self.warps.clone(),
            stages: self.stages.clone(),
            min_blocks: self.min_blocks.clone(),
            head_dims: self.dim.clone(),
            operands: self.operands.clone(),
        })
    }
}

/// Refuses a kernel that an architecture lacks, before anything is built.
fn check_target(candidates: &[Candidate], found: u32, device: &str) -> flash_attention::Result<()> {
    let lacking = candidates.iter().find(|candidate| !candidate.variant.kernel.target().runs_on(found));
    lacking.map_or(Ok(()), |Candidate { variant, .. }| {
        let (kernel, needed) = (variant.kernel.family(), variant.kernel.target());
        Err(Error::KernelNeedsDevice { kernel, needed, device: device.to_owned(), found })
    })
}

fn build(builder: &dyn Builder, screen: &Screen, space: Space, candidates: &[Candidate]) -> Result<Built> {
    let feasible = candidates.iter().filter(|candidate| candidate.verdict.is_ok());
    let variants: Vec<Variant> = feasible.map(|candidate| candidate.variant).collect();
    let progress = screen.progress(variants.len(), "building");
    Built::build(builder, space, &variants, &|| progress.step())
}

/// Builds where that is to be done, and runs on the GPU.
fn execute(
    args: &Args,
    screen: &Screen,
    space: Space,
    build: impl FnOnce(&[Candidate]) -> Result<Built>,
    results: &Path,
) -> Result<bool> {
    let problems = Problems::new(&args.problem, &args.product, &space)?;
    let session = Session::open(&BackendArgs { backend: Some(BackendKind::Cuda), device: args.device })?;
    problems.check_memory(&session)?;
    let candidates = space.candidates(&session.device().limits());
    check_target(&candidates, session.device().compute_capability, &session.device().name)?;
    session.header(screen)?;
    report::summary(screen, &candidates, &session.device().name)?;
    let built = build(&candidates)?;
    let Tools { compiler, ptxas, source_sha256 } = &built.tools;
    screen.line(format!("tiles built by {compiler} and ptxas {ptxas} from sources {source_sha256}"))?;
    let sweep = Sweep { args, screen, session: &session, space: &space, candidates, problems, built };
    let (outcome, document, path) = sweep.measure(args.results.as_deref().unwrap_or(results))?;
    if outcome == Outcome::DeviceLost {
        return go_on();
    }
    let plot = path.with_extension("svg");
    heat_map::write(&document, &plot)?;
    report::results(screen, &document)?;
    screen.line(format!("results in {} and {}", path.display(), plot.display()))?;
    Ok(!sweep.wanted(&document).any(Row::is_faulty))
}

/// One run over all tiles.
struct Sweep<'a> {
    args: &'a Args,
    screen: &'a Screen,
    session: &'a Session,
    space: &'a Space,
    candidates: Vec<Candidate>,
    problems: Problems,
    built: Built,
}

impl Sweep<'_> {
    /// Measures what the results do not have yet.
    fn measure(&self, results: &Path) -> Result<(Outcome, Document, PathBuf)> {
        let mut document = self.document();
        let path = document.path(results);
        if !self.args.fresh || self.args.continued {
            self.keep_earlier(&mut document, &path)?;
        }
        let jobs = run::jobs(&self.candidates, &self.space.points());
        let (dtype, run) = (self.space.dtype, (self, &mut document, &*path, &*jobs));
        let outcome = match &self.problems {
            Problems::Forward(problems) => with_element!(dtype, run_jobs(run, problems)),
            Problems::Decode(problems) => with_element!(dtype, run_jobs(run, problems)),
            Problems::Backward(problems) => with_output_element!(dtype, run_jobs(run, problems)),
            Problems::Product(problems) => with_element!(dtype, run_jobs(run, problems)),
        }?;
        Ok((outcome, document, path))
    }

    fn document(&self) -> Document {
        let mut header = Header::new("sweep", self.session, self.args.seed);
        header.ptx_compiler = Some(self.built.tools.compiler.clone().into());
        Document {
            header,
            kernel: self.space.kernel.name().to_owned(),
            dtype: self.space.dtype.name().to_owned(),
            tools: self.built.tools.clone(),
            shape: self.problems.shape(&self.args.problem),
            rows: Vec::new(),
            rejected: self.candidates.iter().filter_map(Rejected::of).collect(),
        }
    }

    /// Takes over the rows of the results, and says what became of them.
    fn keep_earlier(&self, document: &mut Document, path: &Path) -> Result<()> {
        if !path.exists() {
            return Ok(());
        }
        let earlier = Document::read(path).context("--fresh starts anew")?;
        let line = match document.keep(earlier) {
            None => format!("{} rows are there; those of the same PTX are kept", document.rows.len()),
            Some(why) => format!("{} is of {why}: every tile is measured anew", path.display()),
        };
        Ok(self.screen.line(line)?)
    }

    /// The rows that this sweep asked for.
    fn wanted<'a>(&'a self, document: &'a Document) -> impl Iterator<Item = &'a Row> {
        document.rows.iter().filter(|row| {
            self.candidates.iter().any(|candidate| {
                candidate.variant.name() == row.entry
                    && candidate.points.iter().any(|point| point.head_dim == row.head_dim)
            })
        })
    }
}

fn run_jobs<T: Element>(
    (sweep, document, path, jobs): (&Sweep<'_>, &mut Document, &Path, &[Job<'_>]),
    problems: &[impl Swept<T>],
) -> Result<Outcome> {
    let Sweep { args, screen, session, built, .. } = sweep;
    let effort = session.effort(&args.measure, ITERATIONS);
    let mut gpu = Gpu { session, effort, seed: args.seed, screen, problems, subject: None };
    let progress = screen.progress(jobs.len(), "tiles");
    run::run(document, path, jobs, built, args.continued, &mut gpu, &progress)
}

/// Runs the rest in a new process: a fault leaves no usable device in the one that saw it.
fn go_on() -> Result<bool> {
    let program = env::current_exe().context("this program's own path")?;
    let mut arguments: Vec<_> = env::args_os().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--continued") {
        arguments.push("--continued".into());
    }
    let mut command = Command::new(&program);
    command.args(arguments);
    // In place of this process, so that the driver takes back all that it held.
    #[cfg(unix)]
    let status = Err(std::os::unix::process::CommandExt::exec(&mut command));
    #[cfg(not(unix))]
    let status = command.status().map(|status| status.success());
    status.with_context(|| format!("cannot run {}", program.display()))
}

#[cfg(test)]
mod fixture;
