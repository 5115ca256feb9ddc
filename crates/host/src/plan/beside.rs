//! Copies that some multiprocessors make while the others already compute attention of what has been copied.

use fa_kernels::entries::Tile;
use fa_kernels::params::CopiesBeside;

use super::candidates::has_two_widths;
use super::cost::h200::{BYTES_PER_CYCLE_BESIDE, COPYING_AHEAD, LAUNCH_CYCLES, LEAST_CYCLES_BESIDE};
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
        let is_possible = !problem.is_packed() && problem.dtype() != DType::E4m3 && !has_two_widths(tile);
        if !is_possible || packed.is_empty() {
            return None;
        }
        let groups = packed.groups;
        let of_swizzle = schedule.order.heads_per_swizzle.div_ceil(problem.group() as u32);
        let first = schedule.blocks.div_ceil((schedule.tiles / groups).max(1)).max(of_swizzle);
        let left = f64::from(groups.saturating_sub(first)) / f64::from(groups);
        let is_worth = left * packed.copy_cycles(device) > LEAST_CYCLES_BESIDE;
        // They are done before the attention is.
        let needed =
            COPYING_AHEAD * packed.moved_bytes() / (BYTES_PER_CYCLE_BESIDE * schedule.cycles.max(1.0));
        let blocks = (needed.ceil() as u32).clamp(device.multiprocessors / 4, device.multiprocessors / 2);
        let beside = Self { first, blocks, counters: packed.bytes };
        let is_quicker = || beside.cycles(packed, schedule.cycles, device) < packed.copy_cycles(device);
        (2 * first <= groups && is_worth && blocks > 0 && is_quicker()).then_some(beside)
    }

    /// About how many cycles more the attention takes that they are beside, which takes so many without.
    pub(super) fn cycles(self, packed: &Packed, attention: f64, device: &Device) -> f64 {
        let share = f64::from(self.first) / f64::from(packed.groups);
        let cycles = (1.0 - share) * packed.moved_bytes() / BYTES_PER_CYCLE_BESIDE;
        let of_all = cycles / f64::from(device.multiprocessors.max(1));
        let behind = cycles / f64::from(self.blocks) - attention;
        LAUNCH_CYCLES + share * packed.copy_cycles(device) + of_all.max(behind)
    }

    /// How they are made, in words.
    pub(super) fn reason(self, packed: &Packed) -> String {
        let Self { first, blocks, .. } = self;
        format!(
            "{first} of {} groups of heads are copied before; {blocks} multiprocessors copy the others while the rest \
             begin with what has been",
            packed.groups
        )
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
