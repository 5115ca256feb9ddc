//! Ranks in processes of their own, started by the one that was asked.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

/// Runs this program's command line once for each rank, of which the first speaks; false if one finds a wrong
/// result.
pub(super) fn ranks(count: usize) -> Result<bool> {
    let program = std::env::current_exe().context("this program")?;
    // Free now, and a moment later.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr())?.port();
    let start = |rank: usize| {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1));
        let count = count.to_string();
        for (name, value) in
            [("RANK", rank.to_string()), ("WORLD_SIZE", count), ("FA_PORT", port.to_string())]
        {
            command.env(name, value);
        }
        command.env("LOCAL_RANK", rank.to_string()).env("MASTER_ADDR", "127.0.0.1");
        if rank > 0 {
            command.stdout(Stdio::null());
        }
        command.spawn().with_context(|| format!("rank {rank}"))
    };
    let ranks = (0..count).map(start).collect::<Result<Vec<_>>>()?;
    let mut passed = true;
    for (rank, mut child) in ranks.into_iter().enumerate() {
        passed &= child.wait().with_context(|| format!("rank {rank}"))?.success();
    }
    Ok(passed)
}
