//! Operations at which the 32 lanes of a warp meet (PTX ISA, `shfl.sync`, `vote.sync`, `bar.warp.sync`),
//! and the meeting itself, for the operations of other files too.
//!
//! All 32 lanes take part, and all at the same operation and source location; anything else is
//! [`Error::Divergence`], or a deadlock where lanes have finished.
//!
//! Only [`sync`] orders the lanes' accesses to memory: the PTX ISA gives that guarantee for
//! `bar.warp.sync`, while `shfl.sync` and `vote.sync` wait for the lanes without ordering memory.

use std::panic::Location;

use crate::block::Block;
use crate::context;
use crate::error::Error;
use crate::mma;
use crate::operation::Operation;
use crate::site::Site;
use crate::threads::{WARP, lanes};

/// What a lane brings to a meeting: as many as an `mma` takes, which is the most.
pub(crate) type Operands = [u32; 10];

/// What a lane takes away.
pub(crate) type Results = [u32; 4];

const NOTHING: [Results; WARP as usize] = [[0; 4]; WARP as usize];

/// Lanes of one warp that wait for each other.
pub(crate) struct Meeting {
    pub(crate) operation: Operation,
    pub(crate) site: Site,
    /// The same place by address, to compare the common case fast.
    location: &'static Location<'static>,
    /// One bit for each lane that has arrived.
    pub(crate) arrived: u32,
}

/// A warp's lanes and what they bring to the place where they meet.
#[derive(Default)]
pub(crate) struct Warp {
    pub(crate) meeting: Option<Meeting>,
    /// By lane.
    pub(crate) operands: [Operands; WARP as usize],
}

/// The `bits` of the lane whose index differs from this one's by `lane_mask` (`shfl.sync.bfly.b32`);
/// of `lane_mask` the low 5 bits count.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn shuffle_xor(bits: u32, lane_mask: u32) -> u32 {
    meet(Operation::ShuffleXor, [bits, lane_mask], Location::caller())[0]
}

/// The `bits` of lane `lane`, which each lane chooses for itself (`shfl.sync.idx.b32`); of `lane` the low 5
/// bits count.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn shuffle(bits: u32, lane: u32) -> u32 {
    meet(Operation::Shuffle, [bits, lane], Location::caller())[0]
}

/// As [`shuffle`], of the same lane.
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn broadcast(value: u32, lane: u32) -> u32 {
    meet(Operation::Broadcast, [value, lane], Location::caller())[0]
}

/// Whether any lane's `predicate` holds (`vote.sync.any`).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn vote_any(predicate: bool) -> bool {
    meet(Operation::VoteAny, [predicate.into()], Location::caller())[0] != 0
}

/// Whether all lanes' `predicate` holds (`vote.sync.all`).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn vote_all(predicate: bool) -> bool {
    meet(Operation::VoteAll, [predicate.into()], Location::caller())[0] != 0
}

/// Waits for all lanes and orders their shared-memory accesses (`bar.warp.sync`).
///
/// # Panics
/// Outside a kernel.
#[track_caller]
pub fn sync() {
    meet(Operation::WarpSync, [], Location::caller());
}

/// Waits until the operation has taken place and returns what it gives this lane.
pub(crate) fn meet<const N: usize>(
    operation: Operation,
    operands: [u32; N],
    location: &'static Location<'static>,
) -> Results {
    let current = context::current();
    context::unwrap_or_fail(current.with(|block| block.arrive(operation, operands, location)));
    current.suspend();
    current.with(|block| block.threads[block.current].result)
}

impl Block {
    /// The running thread arrives at `operation`; the last lane of the warp completes it.
    fn arrive<const N: usize>(
        &mut self,
        operation: Operation,
        operands: [u32; N],
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let lane = self.current % WARP as usize;
        let warp = &mut self.warps[self.current / WARP as usize];
        warp.operands[lane][..N].copy_from_slice(&operands);
        let meeting = warp.meeting.get_or_insert_with(|| Meeting {
            operation,
            site: location.into(),
            location,
            arrived: 0,
        });
        let same_place = std::ptr::eq(meeting.location, location) || meeting.site == location.into();
        if meeting.operation != operation || !same_place {
            return Err(self.divergence(operation, location.into()));
        }
        meeting.arrived |= 1 << lane;
        if meeting.arrived == u32::MAX {
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
        let index = self.current / WARP as usize;
        if let Some(results) = self.perform(operation, index, location)? {
            let lanes = &mut self.threads[index * WARP as usize..];
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
    ) -> Result<Option<[Results; WARP as usize]>, Box<Error>> {
        let operands = &self.warps[index].operands;
        let to_each = |lane: &dyn Fn(usize) -> u32| std::array::from_fn(|index| [lane(index), 0, 0, 0]);
        Ok(Some(match operation {
            Operation::ShuffleXor => to_each(&|lane| operands[lane ^ (operands[lane][1] as usize % 32)][0]),
            Operation::Shuffle | Operation::Broadcast => {
                to_each(&|lane| operands[operands[lane][1] as usize % 32][0])
            }
            Operation::VoteAny => to_each(&|_| operands.iter().any(|operands| operands[0] != 0).into()),
            Operation::VoteAll => to_each(&|_| operands.iter().all(|operands| operands[0] != 0).into()),
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
            Operation::MbarrierWait { .. } => NOTHING,
            Operation::WarpSync => {
                if let Some(races) = &mut self.races {
                    races.synchronize(lanes(index));
                }
                NOTHING
            }
        }))
    }

    /// Lets the waiting lanes of a warp go on.
    pub(crate) fn release(&mut self, warp: usize) {
        self.warps[warp].meeting = None;
        for thread in lanes(warp) {
            self.runnable.insert(thread);
        }
    }

    #[cold]
    fn divergence(&self, operation: Operation, site: Site) -> Box<Error> {
        let warp = self.current / WARP as usize;
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
