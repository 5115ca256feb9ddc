//! A warp's lanes, where they wait for each other.

use std::panic::Location;
use std::ptr;

use crate::operation::{Operands, Operation};
use crate::site::Site;
use crate::threads::LANES;

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
    pub(crate) operands: [Operands; LANES],
}

impl Warp {
    /// A lane arrives at `operation`; whether all are there, `None` where others wait for something else.
    #[inline]
    pub(crate) fn arrive<const N: usize>(
        &mut self,
        lane: usize,
        operation: Operation,
        operands: [u32; N],
        location: &'static Location<'static>,
    ) -> Option<bool> {
        self.operands[lane][..N].copy_from_slice(&operands);
        let meeting = self.meeting.get_or_insert_with(|| Meeting {
            operation,
            site: location.into(),
            location,
            arrived: 0,
        });
        let same_place = ptr::eq(meeting.location, location) || meeting.site == location.into();
        if meeting.operation != operation || !same_place {
            return None;
        }
        meeting.arrived |= 1 << lane;
        Some(meeting.arrived == u32::MAX)
    }
}
