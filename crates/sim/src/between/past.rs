//! What a block knows of time.

/// What a block knows of the others, and its own epoch.
#[derive(Default)]
pub(crate) struct Past {
    block: u32,
    /// From 1.
    epoch: u32,
    /// By block: its last epoch that is ordered before what this one does now. None behind the last is.
    known: Vec<u32>,
}

impl Past {
    /// `block` begins, ordered after none.
    pub(crate) fn begin(&mut self, block: u32) {
        (self.block, self.epoch) = (block, 1);
        self.known.clear();
    }

    pub(crate) fn block(&self) -> u32 {
        self.block
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether it has released anything.
    pub(crate) fn has_ended_epochs(&self) -> bool {
        self.epoch > 1
    }

    /// Whether what `block` did in `epoch` is ordered before what this one does now.
    #[inline]
    pub(super) fn follows(&self, block: u32, epoch: u32) -> bool {
        block == self.block || self.known.get(block as usize).is_some_and(|&known| epoch <= known)
    }

    /// `block` is ordered before this one up to `epoch`.
    pub(super) fn learn(&mut self, block: u32, epoch: u32) {
        raise(&mut self.known, block, epoch);
    }

    /// Ends the epoch: calls `tell` for each block with the last of its epochs that is ordered before what
    /// follows in who learns of it.
    pub(super) fn end_epoch(&mut self, mut tell: impl FnMut(u32, u32)) {
        for (block, &epoch) in self.known.iter().enumerate() {
            if epoch > 0 && block != self.block as usize {
                tell(block as u32, epoch);
            }
        }
        tell(self.block, self.epoch);
        self.epoch += 1;
    }
}

/// Raises the epoch of `block`; says whether it was lower.
pub(super) fn raise(epochs: &mut Vec<u32>, block: u32, epoch: u32) -> bool {
    let block = block as usize;
    if epochs.len() <= block {
        epochs.resize(block + 1, 0);
    }
    let is_news = epochs[block] < epoch;
    if is_news {
        epochs[block] = epoch;
    }
    is_news
}
