//! Hardware counters, as Nsight Compute reads them from a process of its own that launches one kernel.

use std::fs;
use std::io;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// Bytes that a run moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Counters {
    pub(super) dram_read: f64,
    pub(super) dram_written: f64,
    /// Between the multiprocessors and the L2 cache, in both directions.
    pub(super) l2: f64,
}

/// Nsight Compute's names of them, in their order.
const METRICS: [&str; 3] = ["dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum"];

/// What a driver answers that lets only administrators read counters.
const NO_PERMISSION: &str = "ERR_NVGPUCTRPERM";

/// A line of its table: a metric of a launch.
#[derive(Deserialize)]
struct Line {
    #[serde(rename = "Metric Name")]
    name: String,
    #[serde(rename = "Metric Unit")]
    unit: String,
    #[serde(rename = "Metric Value")]
    value: String,
}

/// Counts what `fa-bench` with these arguments moves in the first launch of each of `entries`; or why that
/// cannot be known.
///
/// # Errors
/// When there is no place for a file.
pub(super) fn count(
    program: &str,
    entries: &[&str],
    arguments: &[String],
) -> Result<Result<Counters, String>> {
    // In a file of its own: stdout is the profiled program's too.
    let log = tempfile::NamedTempFile::new().context("the profiler's log")?;
    let metrics = METRICS.join(",");
    let ran = Command::new(program)
        .args(["--csv", "--page", "details", "--print-units", "base", "--metrics", &metrics])
        .args(["--kernel-name", &format!("regex:^({})$", entries.join("|"))])
        .args(["--launch-count", &entries.len().to_string(), "--force-overwrite", "--log-file"])
        .arg(log.path())
        .arg(std::env::current_exe().context("this program's own path")?)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output();
    let output = match ran {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Err(format!("{program} (Nsight Compute) is not installed, or not on the PATH")));
        }
        Err(error) => return Ok(Err(format!("{program} cannot be run: {error}"))),
    };
    let said = fs::read_to_string(log.path()).context("the profiler's log")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if said.contains(NO_PERMISSION) || stderr.contains(NO_PERMISSION) {
        return Ok(Err(format!("the driver lets only administrators read counters ({NO_PERMISSION})")));
    }
    if !output.status.success() {
        let mut lines = said.lines().chain(stderr.lines()).map(str::trim);
        let reason = lines.find(|line| line.contains("==ERROR==") || line.starts_with("error: "));
        let reason = reason.map_or_else(|| output.status.to_string(), str::to_owned);
        return Ok(Err(format!("{program} failed: {reason}")));
    }
    Ok(parse(&said, entries.len()).map_err(|reason| format!("{program} {reason}")))
}

/// The sums over `launches` launches in what the profiler said: its messages, and behind them a table.
fn parse(said: &str, launches: usize) -> Result<Counters, String> {
    let table = said.find("\"ID\",").ok_or("profiled no kernel")?;
    let mut sums = [0.0; METRICS.len()];
    let mut found = [0; METRICS.len()];
    for line in csv::Reader::from_reader(&said.as_bytes()[table..]).deserialize() {
        let Line { name, unit, value } = line.map_err(|error| format!("gives no table: {error}"))?;
        let Some(index) = METRICS.iter().position(|metric| *metric == name) else { continue };
        // With thousands separated by commas.
        let number = value.replace(',', "").parse::<f64>();
        let number = number.ok().filter(|number| number.is_finite() && *number >= 0.0);
        let (Some(number), "byte") = (number, &*unit) else {
            return Err(format!("gives {name} as {value:?} {unit:?}, which is no number of bytes"));
        };
        sums[index] += number;
        found[index] += 1;
    }
    for (name, found) in METRICS.into_iter().zip(found) {
        if found != launches {
            return Err(format!("gives {name} {found} times for {launches} launches"));
        }
    }
    let [dram_read, dram_written, l2] = sums;
    Ok(Counters { dram_read, dram_written, l2 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "==PROF== Connected to process 7\n\
                        \"ID\",\"Kernel Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n";

    fn lines(launches: &[[&str; 3]]) -> String {
        let line = |(id, values): (usize, &[&str; 3])| {
            let of =
                |(name, value): (&str, &str)| format!("\"{id}\",\"a, b\",\"{name}\",\"byte\",\"{value}\"\n");
            METRICS.into_iter().zip(*values).map(of).collect::<String>()
        };
        HEAD.to_owned() + &launches.iter().enumerate().map(line).collect::<String>()
    }

    #[test]
    fn launches_are_summed() {
        let said = lines(&[["1,234,567", "10", "2000.5"], ["3", "4", "5"]]);
        let sums = Counters { dram_read: 1_234_570.0, dram_written: 14.0, l2: 2005.5 };
        assert_eq!(parse(&said, 2), Ok(sums));
    }

    #[test]
    fn what_is_not_all_there_is_refused() {
        let one = lines(&[["1", "2", "3"]]);
        assert_eq!(parse(&one, 2).unwrap_err(), "gives dram__bytes_read.sum 1 times for 2 launches");
        assert_eq!(parse("==WARNING== No kernels were profiled.\n", 1).unwrap_err(), "profiled no kernel");
        for (value, unit) in [("n/a", "byte"), ("-1", "byte"), ("1", "Kbyte"), ("nan", "byte")] {
            let said = format!("{HEAD}\"0\",\"k\",\"lts__t_bytes.sum\",\"{unit}\",\"{value}\"\n");
            let error = parse(&said, 1).unwrap_err();
            assert!(error.ends_with("which is no number of bytes"), "{error}");
        }
        let error = parse(&format!("{HEAD}\"0\",\"k\"\n"), 1).unwrap_err();
        assert!(error.starts_with("gives no table: "), "{error}");
    }
}
