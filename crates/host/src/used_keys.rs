//! How many of its keys each sequence uses.

use std::sync::Arc;

use crate::{Error, Result};

/// Keys that count, the first ones of each sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UsedKeys {
    /// `None` where the device alone has them.
    values: Option<Arc<[i32]>>,
}

impl UsedKeys {
    /// Those that the device alone has.
    pub(crate) const ON_DEVICE: Self = Self { values: None };

    /// Validates a number for each of `batch` sequences, the first of which has room for `room(0)` keys.
    ///
    /// # Errors
    /// When there are more or fewer, or a number is negative or above its sequence's room.
    pub(crate) fn new(values: &[i32], batch: usize, room: impl Fn(usize) -> usize) -> Result<Self> {
        if values.len() != batch {
            let (value, expected) = (values.len(), batch);
            return Err(Error::ShapeMismatch {
                tensor: "seqused_k",
                axis: "batch",
                value,
                other: "the problem",
                expected,
            });
        }
        for (batch, &value) in values.iter().enumerate() {
            let limit = room(batch);
            if !usize::try_from(value).is_ok_and(|value| value <= limit) {
                return Err(Error::SeqUsed { batch, value, limit });
            }
        }
        Ok(Self { values: Some(Arc::from(values)) })
    }

    /// The numbers, where the host has them.
    pub(crate) fn values(&self) -> Option<&[i32]> {
        self.values.as_deref()
    }

    /// Keys that a sequence uses of `room`; all where the device alone has the number.
    #[inline]
    pub(crate) fn of(&self, batch: usize, room: usize) -> usize {
        self.values.as_ref().map_or(room, |values| room.min(values[batch] as usize))
    }
}
