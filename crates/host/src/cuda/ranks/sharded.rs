//! What ranks compute together.

use crate::backward::BackwardProblem;
use crate::distributed::{Partition, Requests, Schedule, Shard, StageHeads, request_of_one};
use crate::{Device, Operation, Plan, Problem, Result};

/// A problem that ranks compute together: a forward pass ([`Problem`]), or the gradients of one
/// ([`BackwardProblem`]), whose dO lies as O and whose gradients lie as what they are of.
///
/// A backward pass has the bits of one device with `workspace_limit` 0 of a
/// [`BackwardRequest`](crate::backward::BackwardRequest), whose blocks compute scores twice and store no dS.
pub trait Sharded: Operation + sealed::Planner {}

impl<O: sealed::Planner> Sharded for O {}

/// A rank's part of a problem, planned.
pub struct Planned {
    pub(super) shard: Shard,
    pub(super) schedule: Schedule,
    pub(super) requests: Requests,
}

pub(super) mod sealed {
    use super::{Device, Operation, Partition, Planned, Problem, Result};

    /// How a rank's part is planned.
    pub trait Planner: Operation {
        /// The pass's name.
        const PASS: &'static str;

        /// The forward pass, or that whose gradients they are.
        fn whole(&self) -> &Problem;

        /// The part of a rank of so many, in the tiles of one device.
        ///
        /// # Errors
        /// As [`Shard::new`](crate::distributed::Shard::new) and [`Plan::new`](crate::Plan::new).
        fn planned(
            &self,
            device: &Device,
            ranks: (usize, usize, Partition),
            request: &Self::Request,
        ) -> Result<Planned>;
    }
}

impl sealed::Planner for Problem {
    const PASS: &'static str = "forward";

    fn whole(&self) -> &Problem {
        self
    }

    fn planned(
        &self,
        device: &Device,
        (rank, world, partition): (usize, usize, Partition),
        request: &Self::Request,
    ) -> Result<Planned> {
        let shard = Shard::new(self, rank, world, partition)?;
        let schedule = Schedule::forward(&shard, StageHeads::of(&shard))?;
        let whole = Plan::new(self, device, &request_of_one(self, request))?;
        Ok(Planned { shard, schedule, requests: Requests::of_forward(&whole) })
    }
}

impl sealed::Planner for BackwardProblem {
    const PASS: &'static str = "backward";

    fn whole(&self) -> &Problem {
        self.forward()
    }

    fn planned(
        &self,
        device: &Device,
        (rank, world, partition): (usize, usize, Partition),
        request: &Self::Request,
    ) -> Result<Planned> {
        let shard = Shard::new(self.forward(), rank, world, partition)?;
        let schedule = Schedule::backward(&shard, StageHeads::of(&shard))?;
        let request = Self::Request { workspace_limit: Some(0), unit_rows: None, ..request.clone() };
        let whole = Plan::new(self, device, &request)?;
        Ok(Planned { shard, schedule, requests: Requests::of_backward(&whole) })
    }
}
