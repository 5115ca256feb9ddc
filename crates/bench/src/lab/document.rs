//! The document of an experiment: rows of one shape, whatever the experiment. `README.md` describes it.

use std::borrow::Cow;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use flash_attention::gemm::{GemmProblem, Matrices};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::check::Verdict;
use crate::record::{Header, PeerRecord, PlanRecord, ProblemRecord, TimesRecord};

/// Version of these documents; a field that changes its meaning or goes away raises it.
pub(crate) const SCHEMA: u32 = 2;

/// What an experiment measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Document {
    /// On what, by what.
    #[serde(flatten)]
    pub header: Header,
    /// The command line that made it.
    pub command: String,
    /// What the experiment runs and shows, in a sentence.
    pub what: Cow<'static, str>,
    /// What other documents report of other devices.
    pub reported_elsewhere: Option<Cow<'static, str>>,
    /// What `x` of the rows is, with its unit.
    pub axis: Option<Cow<'static, str>>,
    /// What ran beside the library's kernels.
    pub peer: Option<PeerRecord>,
    /// In the order of the measurement.
    pub rows: Vec<Row>,
    /// What follows from several rows.
    pub figures: Vec<Figure>,
    /// What a reader must know of the rows, a sentence each.
    pub notes: Vec<String>,
    /// Why the rows are not all there; `None` where they are.
    pub stopped: Option<String>,
    /// Whether every result is right.
    pub passed: bool,
}

/// One kernel in one case, or why it did not run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// What is the same for all that is compared, as in `S=1024`.
    pub case: String,
    /// What is compared, as in `forward_sm90` or `torch FLASH_ATTENTION`.
    pub series: String,
    /// Where the case stands on the document's axis.
    pub x: Option<f64>,
    /// Of attention.
    pub problem: Option<ProblemRecord>,
    /// Of a matrix multiplication.
    pub product: Option<ProductRecord>,
    /// Of the library's own kernels.
    pub plan: Option<PlanRecord>,
    /// `None` where only figures were found out, or nothing.
    pub measurement: Option<RunRecord>,
    /// `None` for a peer's result, which is not compared.
    pub check: Option<CheckRecord>,
    /// What else was measured, and what follows from it.
    pub figures: Vec<Figure>,
    /// Why there is no measurement.
    pub not_run: Option<String>,
}

/// C = A·B.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProductRecord {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A and rows of B.
    pub k: usize,
    /// The storage type.
    pub dtype: Cow<'static, str>,
    /// `row` or `col`, of A, B and C.
    pub layouts: [Cow<'static, str>; 3],
    /// Of A, B and C, in elements.
    pub leading_dimensions: [usize; 3],
}

/// Times of a kernel, and what they mean.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunRecord {
    /// In seconds.
    #[serde(flatten)]
    pub times: TimesRecord,
    /// Where the work is counted in operations.
    pub tflops: Option<f64>,
    /// Bytes taken beside inputs and outputs, as the backend allocated them.
    pub extra_bytes: Option<u64>,
    /// Of GPU kernels in a run.
    pub launches: Option<usize>,
}

/// How far a result is from the reference.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CheckRecord {
    rows_checked: usize,
    /// Of O or C.
    #[serde(deserialize_with = "or_nan")]
    pub max_error: f64,
    /// What that may be.
    #[serde(deserialize_with = "or_nan")]
    pub bound: f64,
    #[serde(deserialize_with = "or_nan")]
    lse_max_error: f64,
    #[serde(deserialize_with = "or_nan")]
    lse_bound: f64,
    unwritten: usize,
    /// Whether all of it is right.
    pub passed: bool,
}

/// JSON has no NaN: an error that is none was written as null.
fn or_nan<'de, D: Deserializer<'de>>(value: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or(f64::NAN))
}

/// A number with a name and a unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// As in `speedup over standard`.
    pub name: Cow<'static, str>,
    /// What it counts.
    pub unit: Unit,
    /// In that unit, without a prefix.
    pub value: f64,
}

/// Units of figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// Bytes.
    #[serde(rename = "B")]
    Bytes,
    /// Bytes in a second.
    #[serde(rename = "B/s")]
    BytesPerSecond,
    /// Operations in a second.
    #[serde(rename = "FLOP/s")]
    Flops,
    /// Operations for each byte.
    #[serde(rename = "FLOP/B")]
    Intensity,
    /// How many times something else.
    #[serde(rename = "x")]
    Times,
    /// Hundredths.
    #[serde(rename = "%")]
    Percent,
    /// A pure number.
    #[serde(rename = "1")]
    Count,
}

impl Row {
    /// A row that says why there is no measurement.
    pub(crate) fn refused(case: &str, series: &str, reason: impl Into<String>) -> Self {
        let not_run = Some(reason.into());
        Self { case: case.to_owned(), series: series.to_owned(), not_run, ..Self::default() }
    }

    /// Seconds of a run, where there was one.
    pub fn median(&self) -> Option<f64> {
        self.measurement.as_ref().map(|run| run.times.median_s)
    }

    /// FLOP/s, where the work is counted in operations.
    pub(crate) fn flops(&self) -> Option<f64> {
        Some(1e12 * self.measurement.as_ref()?.tflops?)
    }

    /// The value of a figure, if the row has it.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }

    /// Adds a figure; what is no number, such as a share of nothing, is none.
    pub(crate) fn put(&mut self, name: impl Into<Cow<'static, str>>, unit: Unit, value: f64) {
        let figure = Figure { name: name.into(), unit, value };
        self.figures.extend(Some(figure).filter(|figure| figure.value.is_finite()));
    }

    fn passed(&self) -> bool {
        self.check.is_none_or(|check| check.passed)
    }
}

impl ProductRecord {
    pub(crate) fn new(problem: &GemmProblem) -> Self {
        let Matrices { a, b, c } = problem.matrices();
        Self {
            m: problem.m(),
            n: problem.n(),
            k: problem.k(),
            dtype: problem.dtype().name().into(),
            layouts: [a, b, c].map(|layout| layout.order.name().into()),
            leading_dimensions: [a, b, c].map(|layout| layout.leading_dimension),
        }
    }
}

impl RunRecord {
    /// Times of something that is no kernel.
    pub(crate) const fn of_times(times: TimesRecord) -> Self {
        Self { times, tflops: None, extra_bytes: None, launches: None }
    }
}

impl CheckRecord {
    pub(crate) fn new(verdict: &Verdict) -> Self {
        Self {
            rows_checked: verdict.rows,
            max_error: verdict.output.max_error,
            bound: verdict.output.bound,
            lse_max_error: verdict.lse.max_error,
            lse_bound: verdict.lse.bound,
            unwritten: verdict.unwritten,
            passed: verdict.passed(),
        }
    }

    /// Of a result that must have all bits of another, of so many rows.
    pub(crate) const fn of_bits(rows_checked: usize, same: bool) -> Self {
        let max_error = if same { 0.0 } else { f64::NAN };
        Self {
            rows_checked,
            max_error,
            bound: 0.0,
            lse_max_error: max_error,
            lse_bound: 0.0,
            unwritten: 0,
            passed: same,
        }
    }
}

impl Document {
    /// Reads a document of any experiment whose rows have this shape.
    ///
    /// # Errors
    /// One line that names the file, where it cannot be read, is no JSON, is of another schema, or of another
    /// shape.
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("{shown}: cannot be read"))?;
        let value: Value = serde_json::from_str(&text).with_context(|| format!("{shown} is not JSON"))?;
        match value.get("schema").and_then(Value::as_u64) {
            Some(found) if found == u64::from(SCHEMA) => {}
            Some(found) => {
                bail!("{shown} has schema {found}, and this program reads {SCHEMA}; measure it again")
            }
            None => bail!("{shown} is no document of fa-bench: it has no schema"),
        }
        serde_json::from_value(value).with_context(|| format!("{shown} is not an experiment's document"))
    }

    /// Whether every row that has a check passed it.
    pub(crate) fn rows_passed(&self) -> bool {
        self.rows.iter().all(Row::passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_survives_the_document() {
        let check = CheckRecord {
            rows_checked: 1,
            max_error: f64::NAN,
            bound: 1e-3,
            lse_max_error: f64::INFINITY,
            lse_bound: 1e-3,
            unwritten: 1,
            passed: false,
        };
        let read: CheckRecord = serde_json::from_str(&serde_json::to_string(&check).unwrap()).unwrap();
        assert!(read.max_error.is_nan() && read.lse_max_error.is_nan() && read.bound == 1e-3 && !read.passed);
        let mut row = Row::default();
        row.put("a share", Unit::Percent, f64::NAN);
        row.put("a time", Unit::Seconds, 1.0);
        assert_eq!((row.figures.len(), row.figure("a time")), (1, Some(1.0)));
    }
}
