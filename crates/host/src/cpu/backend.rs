//! The CPU as a backend: its device and its plans.

use super::Config;
use super::isa::Isa;
use super::memory::available_bytes;
use super::tiles::{self, Machine};
use crate::plan::Choice;
use crate::{BackendKind, Device, Kernel, Problem, Request, Result};

/// This machine's CPU.
pub(crate) fn device() -> Device {
    Device {
        backend: BackendKind::Cpu,
        name: from_proc("cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        driver: Isa::widest(None).to_string(),
        compute_capability: 0,
        multiprocessors: rayon::current_num_threads() as u32,
        shared_per_block: 0,
        shared_per_multiprocessor: 0,
        memory: available_bytes().try_into().unwrap_or(u64::MAX),
        memory_bandwidth: 0,
    }
}

/// Chooses the tile of [`Kernel::ForwardCpu`]; the unfused baseline has none.
pub(crate) fn plan_on_cpu(problem: &Problem, kernel: Kernel, request: &Request) -> Result<Choice> {
    let isa = Isa::serving(problem, None);
    if kernel == Kernel::Standard {
        let reason = "standard was asked for: the unfused baseline, with the scores in memory".to_owned();
        return Ok(Choice {
            workspace_bytes: (4 * problem.all_rows() as u64).saturating_mul(problem.seqlen_k() as u64),
            ..Choice::on_cpu(kernel, vec![reason])
        });
    }
    let machine = if isa == Isa::Amx { Machine::with_tiles() } else { Machine::here(isa.kernels().panel) };
    let tile = tiles::choose(problem, machine, config(request.block_m, request.block_n))?;
    let mut reasons = vec![match request.kernel {
        Some(_) => "forward_cpu was asked for".to_owned(),
        None => "forward_cpu: fused, on all cores".to_owned(),
    }];
    reasons.push(format!("{isa}: the widest instructions of this CPU for the problem"));
    reasons.push(tile.to_string());
    Ok(Choice { tile: Some((tile.block_m, tile.block_n)), ..Choice::on_cpu(kernel, reasons) })
}

pub(crate) const fn config(block_m: Option<usize>, block_n: Option<usize>) -> Config {
    Config { block_m, block_n, isa: None }
}

/// The value of the first line `key: value` of a file of Linux's /proc.
fn from_proc(file: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{file}")).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
