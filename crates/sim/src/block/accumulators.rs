//! Accumulators between the registers of a thread and its warpgroup.

use std::panic::Location;

use super::Block;
use crate::error::Error;
use crate::state::accumulators::{Accumulators, NONE};
use crate::tensor_core::wgmma::{WARP_ROWS, accumulator_place};
use crate::threads::{LANES, WARPGROUP, WARPGROUP_WARPS};

impl Block {
    /// The warpgroup of the running thread.
    pub(super) fn warpgroup_index(&self, location: &'static Location<'static>) -> Result<usize, Box<Error>> {
        let index = self.current / WARPGROUP as usize;
        if index < self.warpgroups.len() {
            return Ok(index);
        }
        let reason = format!("threads {} on are no whole warpgroup", index * WARPGROUP as usize);
        Err(self.wgmma_error(location, reason))
    }

    /// The tag of an accumulator, or, if it is not under way and `accumulate`, a copy of it.
    pub(crate) fn stage_accumulator(
        &mut self,
        accumulator: &[f32],
        accumulate: bool,
        location: &'static Location<'static>,
    ) -> Result<u32, Box<Error>> {
        let n = 2 * accumulator.len();
        if !(8..=256).contains(&n) || !n.is_multiple_of(8) {
            let reason = format!("n is {n}, not a multiple of 8 from 8 to 256");
            return Err(self.wgmma_error(location, reason));
        }
        let tag = self.tag_of(accumulator, location)?;
        if tag == NONE && accumulate {
            let (warp, lane) = (self.current / LANES, self.current % LANES);
            let index = self.warpgroup_index(location)?;
            let staged = &mut self.warpgroups[index].warps[warp % WARPGROUP_WARPS].staged;
            staged.resize(WARP_ROWS * n, 0.0);
            for (element, &value) in accumulator.iter().enumerate() {
                let (row, column) = accumulator_place(lane, element);
                staged[row * n + column] = value;
            }
        }
        Ok(tag)
    }

    /// The tag that all elements of an accumulator hold; [`NONE`] where it is not under way.
    fn tag_of(&self, accumulator: &[f32], location: &'static Location<'static>) -> Result<u32, Box<Error>> {
        if let Some(tag) = Accumulators::tag_of(accumulator) {
            return Ok(tag);
        }
        let index = self.warpgroup_index(location)?;
        let Some(product) = self.warpgroups[index].accumulators.touched(accumulator) else {
            return Ok(NONE);
        };
        let reason = format!(
            "its accumulator has been used before the wgmma::wait_group that names it and covers the product \
             at {product}"
        );
        Err(self.wgmma_error(location, reason))
    }

    /// Gives the running thread the sums of its accumulator, if it is under way and they are complete.
    pub(crate) fn take_sums(
        &mut self,
        accumulator: &mut [f32],
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let tag = self.tag_of(accumulator, location)?;
        if tag == NONE {
            return Ok(());
        }
        let index = self.warpgroup_index(location)?;
        let (warp, lane) = (self.current / LANES % WARPGROUP_WARPS, self.current % LANES);
        let warpgroup = &mut self.warpgroups[index];
        let complete = warpgroup.warps[warp].complete;
        let taken = warpgroup.accumulators.take(tag, warp, lane, complete, accumulator);
        taken.map_err(|reason| self.wgmma_error(location, reason.into()))
    }

    #[cold]
    pub(super) fn wgmma_error(&self, location: &'static Location<'static>, reason: String) -> Box<Error> {
        Box::new(Error::Wgmma {
            kernel: self.kernel.clone(),
            block: self.index,
            thread: self.current as u32,
            site: location.into(),
            reason,
        })
    }
}
