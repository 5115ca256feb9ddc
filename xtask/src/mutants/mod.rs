//! `cargo xtask mutants`: who would catch a defect.

mod judge;
mod report;
mod table;
mod tree;
mod weave;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use fa_ptx_builder::Workspace;

use judge::{Finding, Judge, Stage};
use report::{Caught, Record, Records};
use table::{Defect, Family};
use tree::Built;

/// Put defects into kernels and planner, one at a time, and say who catches each.
///
/// All of them are woven into one copy of the sources under target/mutants, each behind a switch that the
/// environment sets, so that it is built once. Fails where a defect is caught by nobody.
#[derive(Args)]
pub(crate) struct Mutants {
    /// Only defects with this name; the others' results are those of their last run
    #[arg(long, value_name = "NAME", value_parser = name_of_defect)]
    only: Vec<String>,
    /// List the defects
    #[arg(long)]
    list: bool,
    /// Where the table goes; the records that it is made from stand beside it, as JSON
    #[arg(long, value_name = "FILE", default_value = "results/mutants.md")]
    output: PathBuf,
}

impl Mutants {
    /// Whether all defects were caught.
    pub(crate) fn run(&self, workspace: &Workspace) -> Result<ExitCode> {
        let chosen =
            |defect: &Defect| self.only.is_empty() || self.only.iter().any(|name| name == defect.name);
        if self.list {
            for (family, _, defect) in table::numbered().filter(|(.., it)| chosen(it)) {
                println!("{:22} {}: {}", defect.name, family.file, defect.what);
            }
            return Ok(ExitCode::SUCCESS);
        }
        let output = workspace.root().join(&self.output);
        let records_file = output.with_extension("json");
        let mut records = Records::read(&records_file)?;
        println!("building the sources with {} defects woven in", table::numbered().count());
        let start = Instant::now();
        let mut court = Court::new(tree::build(workspace.root())?)?;
        println!("built and passed without a defect in {:.0} s", start.elapsed().as_secs_f64());
        // Those that the likeliest do not catch wait, so that the table fills quickly.
        let mut left: Vec<_> = table::numbered().filter(|(.., it)| chosen(it)).collect();
        for likely in [true, false] {
            let mut survivors = Vec::new();
            for (family, number, defect) in left {
                let start = Instant::now();
                let caught = court.try_defect(number, family, likely)?;
                let (seconds, verdict) = (start.elapsed().as_secs_f64(), report::verdict(caught.as_ref()));
                println!("{:22} {verdict} ({seconds:.0} s)", defect.name);
                if caught.is_none() {
                    survivors.push((family, number, defect));
                }
                // What the likeliest do not catch, others may.
                if caught.is_some() || !likely {
                    records.insert(defect.name, Record { caught });
                    records.write(&records_file)?;
                    report::write(&output, &records)?;
                }
            }
            left = survivors;
        }
        println!("{}", output.display());
        if !left.is_empty() {
            println!("{} defects were caught by nobody", left.len());
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn name_of_defect(name: &str) -> Result<String, String> {
    let is_one = table::numbered().any(|(.., defect)| defect.name == name);
    if is_one { Ok(name.to_owned()) } else { Err("there is no such defect; --list has them".to_owned()) }
}

/// Judges, in the order in which they are asked.
struct Court {
    built: Built,
    tests: Vec<Judge>,
    /// How long each takes where there is no defect.
    usual: BTreeMap<String, Duration>,
}

/// Tests that take no longer are asked before `verify`.
const AT_ONCE: Duration = Duration::from_secs(5);

impl Court {
    /// With the tests that were built, of which the quickest come first.
    ///
    /// # Errors
    /// When one of them fails without a defect.
    fn new(built: Built) -> Result<Self> {
        let tests = built.tests.iter().map(Judge::of_tests).collect();
        let mut court = Self { built, tests, usual: BTreeMap::new() };
        for test in court.tests.clone() {
            court.usual(&test)?;
        }
        court.tests.sort_by_key(|test| court.usual[&test.name]);
        Ok(court)
    }

    /// How long a judge takes, and passes, where there is no defect.
    fn usual(&mut self, judge: &Judge) -> Result<Duration> {
        if let Some(usual) = self.usual.get(&judge.name) {
            return Ok(*usual);
        }
        let start = Instant::now();
        let finding = judge.run(0, Duration::from_secs(600))?;
        if finding != Finding::Passed {
            bail!("{}: without a defect it should pass: {finding:?}", judge.name);
        }
        let usual = start.elapsed();
        println!("  {:.1} s: {}", usual.as_secs_f64(), judge.name);
        self.usual.insert(judge.name.clone(), usual);
        Ok(usual)
    }

    /// Who is the first to catch a defect of this family, of those that are likely to, or of the others.
    fn try_defect(&mut self, number: usize, family: &Family, likely: bool) -> Result<Option<Caught>> {
        for judge in self.judges(family, likely) {
            let usual = self.usual(&judge)?;
            let (what, why) = match judge.run(number, usual).with_context(|| judge.name.clone())? {
                Finding::Passed => continue,
                Finding::Failed { what, why } => (what, why),
                Finding::TimedOut(seconds) => (String::new(), format!("no end after {seconds} s")),
            };
            return Ok(Some(Caught { stage: judge.stage, judge: judge.name, what, why }));
        }
        Ok(None)
    }

    /// Who is likely to catch a defect of a family, in this order: tests that take no time, `verify` of a few
    /// entries, tests that are about it; and who else could: the other tests, `verify` of all entries, and
    /// random problems.
    fn judges(&self, family: &Family, likely: bool) -> Vec<Judge> {
        let (at_once, later): (Vec<_>, Vec<_>) =
            self.tests.iter().cloned().partition(|test| self.usual[&test.name] <= AT_ONCE);
        let is_about = |test: &Judge| family.tests.iter().any(|name| test.name.ends_with(name));
        let (about, others): (Vec<_>, Vec<_>) = later.into_iter().partition(is_about);
        let verify = |stage| [Judge::of_entries(&self.built, stage, family.entries)];
        let fuzz = [Judge::of_operation(&self.built, family.operation())];
        if likely {
            at_once.into_iter().chain(verify(Stage::Quick)).chain(about).collect()
        } else {
            others.into_iter().chain(verify(Stage::Ci)).chain(fuzz).collect()
        }
    }
}
