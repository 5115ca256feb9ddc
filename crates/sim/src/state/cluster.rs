//! What the blocks of a cluster know of each other's shared memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::shared::Image;

/// What all blocks of a cluster share.
pub(crate) struct Board(u32, Mutex<State>);

struct State {
    /// Barriers that all blocks have come through.
    phase: u32,
    /// Blocks that have arrived at the next.
    arrived: u32,
    members: Vec<Known>,
}

/// What is known of a block.
#[derive(Default)]
struct Known {
    /// Its shared memory when it came through the last barrier, if that ordered, and when it arrived at the
    /// next, and whether that does.
    image: Option<Image>,
    next: Option<(Image, bool)>,
    /// Bytes that others have read since the last barrier that ordered this, a bit for each.
    read: Vec<u64>,
    /// Whether they have read some since the last barrier.
    is_read: bool,
    has_ended: bool,
}

impl Known {
    /// The first byte that others have read since the last barrier and that is among `bits`.
    fn first_read_among(&self, bits: impl Fn(usize) -> u64) -> Option<usize> {
        let words = self.read.iter().enumerate().map(|(index, read)| (index, read & bits(index)));
        let mut found = words.filter(|&(_, both)| both != 0);
        found.next().map(|(index, both)| 64 * index + both.trailing_zeros() as usize)
    }
}

/// A block's part in a cluster.
pub(crate) struct Member {
    pub(crate) board: Arc<Board>,
    pub(crate) rank: u32,
    /// Barriers that it has come through.
    pub(crate) phase: u32,
    /// Warps that have arrived at the next.
    pub(crate) warps: usize,
    /// Whether all of them order what they did before it against what they do behind it.
    pub(crate) orders: bool,
    /// Whether all have.
    pub(crate) waits: bool,
}

impl Member {
    pub(crate) fn new(board: Arc<Board>, rank: u32) -> Self {
        Self { board, rank, phase: 0, warps: 0, orders: true, waits: false }
    }
}

impl Board {
    pub(crate) fn new(size: u32) -> Self {
        let members = (0..size).map(|_| Known::default()).collect();
        Self(size, Mutex::new(State { phase: 0, arrived: 0, members }))
    }

    pub(crate) fn size(&self) -> u32 {
        self.0
    }

    pub(crate) fn phase(&self) -> u32 {
        self.state().phase
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All threads of a block have arrived, with its shared memory as it is, which others see if it `orders`.
    ///
    /// # Errors
    /// A block, and a byte of it that was written where others may have read it.
    pub(crate) fn arrive(&self, rank: u32, image: Image, orders: bool) -> Result<(), (usize, usize)> {
        let mut state = self.state();
        state.members[rank as usize].next = Some((image, orders));
        state.arrived += 1;
        if state.arrived < self.size() {
            return Ok(());
        }
        (state.arrived, state.phase) = (0, state.phase + 1);
        for (rank, member) in state.members.iter_mut().enumerate() {
            let Some((image, orders)) = member.next.take() else { continue };
            if let Some(byte) = member.first_read_among(|index| image.changed[index]) {
                return Err((rank, byte));
            }
            member.is_read = false;
            if orders {
                member.read = vec![0; image.changed.len()];
            }
            member.image = Some(image).filter(|_| orders);
        }
        Ok(())
    }

    /// What a block reads of another.
    ///
    /// # Errors
    /// Why it may not.
    pub(crate) fn read(&self, rank: u32, offset: usize, bytes: usize) -> Result<[u8; 16], String> {
        let mut state = self.state();
        let Some(member) = state.members.get_mut(rank as usize) else {
            return Err(format!("rank is {rank}, and the cluster has {} blocks", self.size()));
        };
        if member.has_ended {
            return Err(format!("block {rank} of the cluster has ended"));
        }
        let Some(image) = &member.image else {
            return Err(format!("block {rank} of the cluster has come through no barrier that orders"));
        };
        let Some(value) = image.get(offset, bytes) else {
            return Err(format!("{bytes} bytes at {offset} of block {rank} of the cluster were not written"));
        };
        member.is_read = true;
        member.read[offset / 64] |= ((1 << bytes) - 1) << (offset % 64);
        Ok(value)
    }

    /// A block has ended.
    ///
    /// # Errors
    /// A byte of it that others have read since the last barrier.
    pub(crate) fn end(&self, rank: u32) -> Result<(), usize> {
        let mut state = self.state();
        let member = &mut state.members[rank as usize];
        member.has_ended = true;
        member.first_read_among(|_| u64::MAX).filter(|_| member.is_read).map_or(Ok(()), Err)
    }
}
