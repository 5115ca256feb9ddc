//! What lanes of a warp that meet do together.

use std::panic::Location;

use super::Block;
use crate::error::Error;
use crate::operation::{Operation, Results};
use crate::site::Site;
use crate::tensor_core::mma;
use crate::threads::{LANES, WARP, lanes};

const NOTHING: [Results; LANES] = [[0; 4]; LANES];

impl Block {
    /// The running thread arrives at `operation`; the last lane of the warp completes it.
    pub(crate) fn arrive<const N: usize>(
        &mut self,
        operation: Operation,
        operands: [u32; N],
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let (index, lane) = (self.current / LANES, self.current % LANES);
        let Some(all_are_there) = self.warps[index].arrive(lane, operation, operands, location) else {
            return Err(self.divergence(operation, location.into()));
        };
        if all_are_there {
            self.complete(operation, location)?;
        }
        Ok(())
    }

    /// All lanes of the running thread's warp are there.
    fn complete(
        &mut self,
        operation: Operation,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let index = self.current / LANES;
        if let Some(results) = self.perform(operation, index, location)? {
            let lanes = &mut self.threads[index * LANES..];
            lanes.iter_mut().zip(results).for_each(|(lane, result)| lane.result = result);
            self.release(index);
        }
        Ok(())
    }

    /// What an operation gives each lane of a warp; `None` where the warp stays at its meeting, to
    /// wait for other warps or to park.
    fn perform(
        &mut self,
        operation: Operation,
        index: usize,
        location: &'static Location<'static>,
    ) -> Result<Option<[Results; LANES]>, Box<Error>> {
        let operands = &self.warps[index].operands;
        let to_each = |lane: &dyn Fn(usize) -> u32| std::array::from_fn(|index| [lane(index), 0, 0, 0]);
        Ok(Some(match operation {
            Operation::ShuffleXor => to_each(&|lane| operands[lane ^ (operands[lane][1] as usize % 32)][0]),
            Operation::Shuffle | Operation::Broadcast => {
                to_each(&|lane| operands[operands[lane][1] as usize % 32][0])
            }
            Operation::VoteAny => to_each(&|_| operands.iter().any(|operands| operands[0] != 0).into()),
            Operation::Ballot => {
                let bit = |lane: usize| u32::from(operands[lane][0] != 0) << lane;
                to_each(&|_| (0..LANES).map(bit).sum())
            }
            Operation::MmaF16 => mma::multiply_f16(operands),
            Operation::MmaBf16 => mma::multiply_bf16(operands),
            Operation::LoadMatrix { matrices, transposed } => {
                return self.load_matrices(index, matrices as usize, transposed, location);
            }
            Operation::Barrier { barrier, threads } => {
                return self.arrive_at_barrier(barrier, threads, true, location).map(|()| None);
            }
            Operation::BarrierArrive { barrier, threads } => {
                self.arrive_at_barrier(barrier, threads, false, location)?;
                NOTHING
            }
            Operation::ClusterBarrier { orders } => {
                return self.arrive_at_cluster(orders, location).map(|()| None);
            }
            Operation::StoreMatrix { transposed } => {
                self.store_matrices(index, transposed, location)?;
                NOTHING
            }
            Operation::Wgmma { .. } => self.issue_product(index, operation, location)?,
            Operation::WgmmaFence => {
                self.fence_products(index, location)?;
                NOTHING
            }
            Operation::WgmmaCommit => {
                self.commit_products(index, location)?;
                NOTHING
            }
            Operation::WgmmaWait { pending } => {
                return Ok(self.wait_for_products(index, pending, location)?.then_some(NOTHING));
            }
            Operation::SetRegisters { .. } => {
                self.set_registers(index, operation, location)?;
                NOTHING
            }
            // A thread waits for an mbarrier by itself.
            Operation::MbarrierWait { .. } | Operation::GlobalWait { .. } => NOTHING,
            Operation::WarpSync => {
                if let Some(races) = &mut self.races {
                    races.synchronize(lanes(index));
                }
                NOTHING
            }
        }))
    }

    #[cold]
    fn divergence(&self, operation: Operation, site: Site) -> Box<Error> {
        let warp = self.current / LANES;
        let meeting = self.warps[warp].meeting.as_ref();
        let (first_operation, first, arrived) =
            meeting.map_or((operation, site, 1), |m| (m.operation, m.site, m.arrived));
        Box::new(Error::Divergence {
            kernel: self.kernel.clone(),
            block: self.index,
            first_thread: warp as u32 * WARP + arrived.trailing_zeros(),
            first_operation,
            first,
            second_thread: self.current as u32,
            second_operation: operation,
            second: site,
        })
    }
}
