//! Plans whose results do not depend on what else is in a batch.
//!
//! The bits of a row of O follow from its sequence and from the tile: where tiles and blocks of keys begin.
//! So the tile is the one that a batch gets which is always the same, and no tile is a short one.

use super::tile::plan_whole_tiles;
use super::{Choice, Request, plan};
use crate::{BackendKind, Device, Problem, Result};

/// Sequences of the batch that tiles are chosen for, and rows of each.
const STAND_IN: (usize, usize) = (8, 4096);

/// Plans `problem` with the kernel and the tile of a batch that is always the same.
///
/// # Errors
/// As [`plan`].
pub(super) fn plan_alike(problem: &Problem, device: &Device, request: &Request) -> Result<Choice> {
    let request = Request { batch_invariant: false, ..*request };
    let (batch, seqlen) = STAND_IN;
    let chosen = plan(&problem.standing_for(batch, seqlen), device, &request)?;
    let tiled = chosen.launches.last().filter(|_| chosen.kernel.tiled().is_some());
    let mut choice = match tiled {
        Some(launch) => plan_whole_tiles(problem, device, launch.entry)?,
        None => {
            let tile = chosen.tile.filter(|_| device.backend == BackendKind::Cpu);
            let (block_m, block_n) = tile.unzip();
            plan(problem, device, &Request { kernel: Some(chosen.kernel), block_m, block_n, ..request })?
        }
    };
    let tile = chosen.tile.map_or("tiles".to_owned(), |(m, n)| format!("{m}x{n}"));
    choice.reasons = vec![format!(
        "{}, {tile}: what {batch} sequences of {seqlen} rows get, so that a sequence has the same bits in any batch",
        chosen.kernel
    )];
    Ok(choice)
}
