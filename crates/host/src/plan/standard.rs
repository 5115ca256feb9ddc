//! The launches of the unfused baseline.

use fa_kernels::attention::standard;
use fa_kernels::entries::Algorithm;

use super::candidates::{built_for, grid, unsupported_dtype};
use super::{Choice, Kernel, Launch, Request};
use crate::{Error, Problem, Result};

/// Plans three launches, with the scores in device memory between them.
pub(super) fn plan_unfused(problem: &Problem, request: &Request) -> Result<Choice> {
    if let Some(block) = request.block_m.or(request.block_n) {
        return Err(Error::NoSuchTile {
            kernel: Kernel::Standard.name(),
            block_m: request.block_m.map_or("any".to_owned(), |block| block.to_string()),
            block_n: request.block_n.map_or("any".to_owned(), |block| block.to_string()),
            head_dim: problem.widest_head_dim(),
            available: format!("its tiles are fixed, so leave out the block size ({block})"),
        });
    }
    let entry = |algorithm| {
        built_for(algorithm, problem.dtype())
            .next()
            .ok_or_else(|| unsupported_dtype(Kernel::Standard.name(), algorithm, problem.dtype()))
    };
    let tiles_m = problem.seqlen_q().div_ceil(standard::BLOCK_M as usize);
    let tiles_n = problem.seqlen_k().div_ceil(standard::BLOCK_N as usize);
    let tiles_d = problem.head_dim_v().div_ceil(standard::BLOCK_N as usize);
    let tiles_softmax = problem.seqlen_q().div_ceil(standard::SOFTMAX_ROWS as usize);
    let scores = problem.all_rows() as u128 * problem.seqlen_k() as u128 * problem.dtype().bytes() as u128;
    let workspace_bytes = u64::try_from(scores).map_err(|_| Error::OutOfMemory {
        what: "the score matrix",
        needed: scores,
        available: u64::MAX.into(),
        device: "a 64-bit address space".to_owned(),
    })?;
    Ok(Choice {
        kernel: Kernel::Standard,
        tile: None,
        launches: vec![
            Launch::new(entry(Algorithm::StandardScores)?, grid(problem, &[tiles_m, tiles_n])?),
            Launch::new(entry(Algorithm::StandardSoftmax)?, grid(problem, &[tiles_softmax])?),
            Launch::new(entry(Algorithm::StandardValues)?, grid(problem, &[tiles_m, tiles_d])?),
        ],
        unaligned: Vec::new(),
        workspace_bytes,
        reasons: vec![
            "standard was asked for: the unfused baseline, with the scores in device memory".to_owned(),
        ],
    })
}
