//! Copies that some multiprocessors make while the others already compute attention of what has been copied.

use fa_kernels::entries::Tile;
use fa_kernels::params::CopiesBeside;

use super::candidates::has_two_widths;
use super::cost::h200::{BYTES_PER_CYCLE, BYTES_PER_CYCLE_BESIDE, LAUNCH_CYCLES, LEAST_CYCLES_BESIDE};
use super::pack::{CopyStage, Packed, copy_entry};
use super::schedule::Schedule;
use super::{Choice, Launch, LaunchDetails};
use crate::{DType, Device, Problem, Result};

/// Copies that are made beside the launch that reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beside {
    /// Groups of heads that are copied before.
    pub(crate) first: u32,
    /// Blocks that copy the others, a multiprocessor each.
    pub(crate) blocks: u32,
    /// Where counters begin in the workspace, in bytes.
    pub(crate) counters: u64,
}

impl Beside {
    /// How copies are made beside tiles that are taken like this; `None` where they are made before.
    ///
    /// The first tiles wait for the first groups of heads, which all multiprocessors copy. So at least as
    /// many groups are left, and they are worth the launch that they take.
    pub(super) fn of(
        problem: &Problem,
        (tile, schedule): (&Tile, &Schedule),
        packed: &Packed,
        device: &Device,
    ) -> Option<Self> {
        if problem.is_packed() || problem.dtype() == DType::E4m3 || packed.is_empty() || has_two_widths(tile)
        {
            return None;
        }
        let groups = packed.groups;
        let of_swizzle = schedule.order.heads_per_swizzle.div_ceil(problem.group() as u32);
        let first = schedule.blocks.div_ceil((schedule.tiles / groups).max(1)).max(of_swizzle);
        let left = f64::from(groups.saturating_sub(first)) / f64::from(groups);
        let is_worth = left * packed.copy_cycles(device) > LEAST_CYCLES_BESIDE;
        let blocks = device.multiprocessors / 4;
        let var = |name: &str, default: u32| std::env::var(name).map_or(default, |v| v.parse().unwrap());
        let (blocks, first) = (var("FA_BESIDE", blocks), var("FA_FIRST", first).min(groups));
        (2 * first <= groups && is_worth && blocks > 0).then(|| Self {
            first,
            blocks,
            counters: packed.bytes,
        })
    }

    /// About how many cycles the copies take of those of the attention, on all multiprocessors.
    pub(super) fn cycles(self, packed: &Packed, device: &Device) -> f64 {
        let share = f64::from(self.first) / f64::from(packed.groups);
        let (before, multiprocessors) =
            (packed.copy_cycles(device), f64::from(device.multiprocessors.max(1)));
        let bytes = (before - LAUNCH_CYCLES) * multiprocessors * BYTES_PER_CYCLE;
        let beside = bytes / (BYTES_PER_CYCLE_BESIDE * multiprocessors);
        2.0 * LAUNCH_CYCLES + share * (before - LAUNCH_CYCLES) + (1.0 - share) * beside
    }

    /// Bytes of the counters.
    const fn counter_bytes(packed: &Packed) -> u64 {
        4 * CopiesBeside::counter_count(packed.groups as u64)
    }

    /// Puts the launches that copy in front of the one that reads, whose blocks take the next tile whenever
    /// they are done with one.
    pub(super) fn put_before(
        self,
        choice: &mut Choice,
        schedule: &Schedule,
        packed: Packed,
        device: &Device,
    ) -> Result<()> {
        let (stage, entry) = (CopyStage::Beside(self), copy_entry()?);
        for launch in &mut choice.launches {
            (launch.details.stage, launch.beside, launch.grid) = (stage, true, schedule.blocks);
        }
        let details = LaunchDetails { packed, stage, ..LaunchDetails::default() };
        choice.launches.insert(0, Launch { details, ..Launch::new(entry, self.blocks) });
        let details = LaunchDetails { stage: CopyStage::First(self), ..details };
        let blocks = packed.blocks(self.first, device)?;
        choice.launches.insert(0, Launch { details, ..Launch::new(entry, blocks) });
        choice.workspace_bytes += Self::counter_bytes(&packed);
        Ok(())
    }
}
