//! Ranks in processes of their own, started by the one that was asked.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use flash_attention::Problem;
use serde::{Deserialize, Serialize};

/// How long ranks may go on once one of them has failed, of which they hear within seconds.
const GRACE: Duration = Duration::from_secs(15);

/// Runs this program's command line once for each rank, of which the first speaks; false if one fails, of
/// which it has told.
pub(super) fn ranks(count: usize) -> Result<bool> {
    let program = std::env::current_exe().context("this program")?;
    let command = || {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1));
        command
    };
    finish(start(count, "FA_PORT", command, Stdio::inherit)?)
}

/// Waits for all ranks; those that go on long after another has failed are ended. Whether all succeed.
fn finish(mut ranks: Vec<Child>) -> Result<bool> {
    let mut failed: Option<Instant> = None;
    while !ranks.is_empty() {
        let mut left = Vec::new();
        for mut rank in ranks {
            match rank.try_wait().context("a rank")? {
                None => left.push(rank),
                Some(status) if !status.success() => failed = failed.or(Some(Instant::now())),
                Some(_) => {}
            }
        }
        if failed.is_some_and(|since| since.elapsed() > GRACE) {
            // One that has just ended by itself is no failure.
            left.iter_mut().for_each(|rank| drop(rank.kill()));
        }
        ranks = left;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(failed.is_none())
}

/// Starts a process for each rank, which meet at a port that is free now.
fn start(
    count: usize,
    port_name: &str,
    command: impl Fn() -> Command,
    first_stdout: impl Fn() -> Stdio,
) -> Result<Vec<Child>> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr())?.port();
    let of_rank = |rank: usize| {
        let mut command = command();
        command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
        command.env("WORLD_SIZE", count.to_string()).env("MASTER_ADDR", "127.0.0.1");
        command.env(port_name, port.to_string());
        command.stdout(if rank == 0 { first_stdout() } else { Stdio::null() });
        command.spawn().with_context(|| format!("rank {rank}"))
    };
    (0..count).map(of_rank).collect()
}

/// A problem of PyTorch's.
#[derive(Serialize)]
struct TorchProblem {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    seq: usize,
    dim: usize,
    dtype: &'static str,
    causal: bool,
}

/// How long one of PyTorch's backends takes for a problem, or why it does not.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct TorchTime {
    /// Which of the problems.
    pub(super) problem: usize,
    pub(super) backend: String,
    /// Of PyTorch.
    pub(super) version: String,
    pub(super) seconds: Option<f64>,
    pub(super) error: Option<String>,
}

impl TorchProblem {
    fn new(problem: &Problem) -> Self {
        Self {
            batch: problem.batch(),
            heads: problem.heads(),
            kv_heads: problem.kv_heads(),
            seq: problem.seqlen_q(),
            dim: problem.head_dim(),
            dtype: problem.dtype().name(),
            causal: problem.causal(),
        }
    }
}

/// Runs PyTorch's `context_parallel` on as many GPUs.
pub(super) fn torch<'a>(
    python: &str,
    count: usize,
    problems: impl Iterator<Item = &'a Problem>,
) -> Result<Vec<TorchTime>> {
    let problems: Vec<_> = problems.map(TorchProblem::new).collect();
    let problems = serde_json::to_string(&problems)?;
    let command = || {
        let mut command = Command::new(python);
        command.args(["-W", "ignore", "-c", include_str!("torch.py"), &problems]).stderr(Stdio::inherit());
        command
    };
    let mut children = start(count, "MASTER_PORT", command, Stdio::piped)?.into_iter();
    let first = children.next().context("there are no ranks")?;
    let output = first.wait_with_output().with_context(|| format!("PyTorch in {python}"))?;
    for mut child in children {
        child.wait()?;
    }
    anyhow::ensure!(
        output.status.success(),
        "PyTorch's context_parallel in {python} ended with {}",
        output.status
    );
    let lines = String::from_utf8_lossy(&output.stdout);
    lines.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}
