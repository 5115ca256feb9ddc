//! A block's part in its cluster.

use std::panic::Location;

use super::Block;
use crate::error::{AccessKind, Error};
use crate::threads::LANES;

impl Block {
    /// The running thread's warp arrives at the cluster's barrier; the last warp of the last block completes
    /// it.
    pub(super) fn arrive_at_cluster(
        &mut self,
        orders: bool,
        location: &'static Location<'static>,
    ) -> Result<(), Box<Error>> {
        let warps = self.threads.len() / LANES;
        let Some(member) = &mut self.cluster else {
            let reason = "the launch has no clusters".to_owned();
            return Err(self.cluster_error(location, reason));
        };
        member.warps += 1;
        member.orders &= orders;
        if member.warps < warps {
            return Ok(());
        }
        member.waits = true;
        let image = self.shared.take_image();
        if let Err((rank, byte)) = member.board.arrive(member.rank, image, member.orders) {
            let reason = format!(
                "byte {byte} of shared memory of block {rank} of the cluster is written and read by others with no \
                 barrier between"
            );
            return Err(self.cluster_error(location, reason));
        }
        self.leave_cluster_barrier();
        Ok(())
    }

    /// Lets the threads go on if all blocks have come to the barrier at which this one waits.
    pub(crate) fn leave_cluster_barrier(&mut self) {
        let warps = self.threads.len() / LANES;
        let Some(member) = self.cluster.as_mut().filter(|member| member.waits) else { return };
        if member.board.phase() == member.phase {
            return;
        }
        (member.waits, member.warps, member.phase) = (false, 0, member.phase + 1);
        let orders = std::mem::replace(&mut member.orders, true);
        if let Some(races) = self.races.as_mut().filter(|_| orders) {
            races.synchronize(0..warps * LANES);
        }
        (0..warps).for_each(|warp| self.release(warp));
    }

    /// Whether all threads wait for other blocks of the cluster.
    pub(crate) fn waits_for_cluster(&self) -> bool {
        self.failure.is_none() && self.cluster.as_ref().is_some_and(|member| member.waits)
    }

    /// Waits for other blocks no longer: none of them can go on.
    pub(crate) fn give_up_cluster(&mut self) {
        if let Some(member) = &mut self.cluster {
            member.waits = false;
        }
    }

    /// What the running thread reads of another block.
    pub(crate) fn read_of_cluster(
        &mut self,
        rank: u32,
        address: u32,
        bytes: usize,
        location: &'static Location<'static>,
    ) -> Result<[u8; 16], Box<Error>> {
        // All blocks of a launch have as much shared memory.
        let offset = self.locate(address, bytes, AccessKind::Read, location)?;
        self.shared.bytes_read += bytes as u64;
        let read = match &self.cluster {
            Some(member) => member.board.read(rank, offset, bytes),
            None => Err("the launch has no clusters".to_owned()),
        };
        read.map_err(|reason| self.cluster_error(location, reason))
    }

    /// What is wrong with the end of this block, if anything.
    pub(crate) fn end_in_cluster(&self) -> Option<Error> {
        let member = self.cluster.as_ref()?;
        let byte = member.board.end(member.rank).err()?;
        Some(Error::Cluster {
            kernel: self.kernel.clone(),
            block: self.index,
            site: None,
            reason: format!("it ends where others may still read byte {byte} of its shared memory"),
        })
    }

    #[cold]
    fn cluster_error(&self, location: &'static Location<'static>, reason: String) -> Box<Error> {
        let (kernel, block) = (self.kernel.clone(), self.index);
        Box::new(Error::Cluster { kernel, block, site: Some(location.into()), reason })
    }
}
