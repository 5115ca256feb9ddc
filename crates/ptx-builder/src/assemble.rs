//! Running ptxas over each entry, for its verdict and its figures.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use fa_kernels::shipped::Resources;

use crate::parallel;
use crate::process;
use crate::toolchain::Ptxas;

/// The architecture whose figures every entry that runs on it has, beside those of its own target.
const MEASURED: u32 = 90;

/// What ptxas reports of one entry on one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembled {
    /// The figures that the manifest keeps.
    pub resources: Resources,
    /// Hardware barriers that it uses.
    pub barriers: u32,
    /// Every line that ptxas printed.
    pub messages: Vec<String>,
    /// The machine code, where the architecture is the only one that the entry runs on.
    pub cubin: Option<Vec<u8>>,
}

impl Assembled {
    /// Reads the output of `ptxas -v` for a module of one entry.
    ///
    /// # Errors
    /// When a figure is absent.
    pub fn parse(arch: &str, report: &str) -> Result<Self> {
        let figure = |unit: &str| {
            figure(report, unit).with_context(|| format!("ptxas reports no `{unit}` for {arch}"))
        };
        Ok(Self {
            resources: Resources {
                arch: arch.to_owned(),
                registers: figure("registers")?,
                spill_stores: figure("bytes spill stores")?,
                spill_loads: figure("bytes spill loads")?,
                stack: figure("bytes stack frame")?,
                // These two are printed only where they are not 0.
                static_shared: self::figure(report, "bytes smem").unwrap_or(0),
            },
            barriers: self::figure(report, "barriers").unwrap_or(0),
            messages: report.lines().map(str::to_owned).collect(),
            cubin: None,
        })
    }
}

/// The number before `unit` in a report, as in `0 bytes spill stores`.
fn figure(report: &str, unit: &str) -> Option<u32> {
    report.lines().find_map(|line| {
        let before = &line[..line.find(unit)?];
        before.split_whitespace().next_back()?.parse().ok()
    })
}

/// Whether a target runs on one architecture alone: there is a letter behind its number.
fn is_alone(target: &str) -> bool {
    target.ends_with(|c: char| c.is_ascii_lowercase())
}

/// The architectures to assemble an entry for: its target, and `MEASURED` where that runs its PTX.
pub fn architectures(target: &str) -> Vec<String> {
    let number =
        target.strip_prefix("sm_").filter(|_| !is_alone(target)).and_then(|number| number.parse().ok());
    let measured = number.filter(|&number: &u32| number < MEASURED).map(|_| format!("sm_{MEASURED}"));
    [target.to_owned()].into_iter().chain(measured).collect()
}

/// One module to assemble.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The entry's name, for messages and file names.
    pub name: &'a str,
    /// The module's text.
    pub text: &'a str,
    /// The architecture, as in `sm_90`.
    pub arch: String,
}

/// Assembles each job, on all cores; results are in the order of the jobs. Files go to `folder`.
///
/// # Errors
/// When ptxas rejects an entry: the line names it.
pub fn all(ptxas: &Ptxas, jobs: &[Job<'_>], folder: &Path) -> Result<Vec<Assembled>> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    parallel::map(jobs, |job| one(ptxas, job, folder))?.into_iter().collect()
}

fn one(ptxas: &Ptxas, job: &Job<'_>, folder: &Path) -> Result<Assembled> {
    let stem = format!("{}.{}", job.name, job.arch);
    let input = folder.join(format!("{stem}.ptx"));
    fs::write(&input, job.text).with_context(|| format!("cannot write {}", input.display()))?;
    let cubin = input.with_extension("cubin");
    let mut command = Command::new(&ptxas.path);
    command.arg("-v").arg(format!("-arch={}", job.arch)).arg(&input).arg("-o").arg(&cubin);
    let output = process::output(&mut command).with_context(|| format!("{} for {}", job.name, job.arch))?;
    let report = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let assembled = Assembled::parse(&job.arch, &report).with_context(|| job.name.to_owned())?;
    let read = || fs::read(&cubin).with_context(|| format!("cannot read {}", cubin.display()));
    Ok(Assembled { cubin: is_alone(&job.arch).then(read).transpose()?, ..assembled })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// ptxas 13.0 on an entry with an array in local memory and static shared memory.
    const REPORT: &str = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_75'
ptxas info    : Function properties for k
    64 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 106 registers, used 1 barriers, 64 bytes cumulative stack size, 16 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 2.587 ms
";

    #[test]
    fn a_report_gives_every_figure() {
        let assembled = Assembled::parse("sm_75", REPORT).unwrap();
        let expected = Resources {
            arch: "sm_75".to_owned(),
            registers: 106,
            spill_stores: 4,
            spill_loads: 12,
            stack: 64,
            static_shared: 16,
        };
        assert_eq!(assembled.resources, expected);
        assert_eq!(assembled.barriers, 1);
    }

    #[test]
    fn a_report_without_its_figures_is_refused() {
        let error = Assembled::parse("sm_75", &REPORT.replace("106 registers", "")).unwrap_err();
        assert_eq!(error.to_string(), "ptxas reports no `registers` for sm_75");
    }

    #[test]
    fn architectures_are_those_that_run_the_target() {
        assert_eq!(architectures("sm_75"), ["sm_75", "sm_90"]);
        assert_eq!(architectures("sm_90"), ["sm_90"]);
        assert_eq!(architectures("sm_90a"), ["sm_90a"]);
        assert_eq!(architectures("sm_120"), ["sm_120"]);
    }
}
