//! The global memory of a launch.

use std::ops::Range;
use std::sync::Arc;

use crate::error::AccessKind;

/// A range of global memory, which is host memory here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Name for messages.
    pub name: String,
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// What the kernel may do with it.
    pub access: BufferAccess,
    /// The bytes that may be written, where not all of them may: in ascending order, apart from one another.
    reached: Option<Arc<[Range<u64>]>>,
}

impl Buffer {
    /// The memory of `values`, for reading.
    pub fn read<T>(name: impl Into<String>, values: &[T]) -> Self {
        Self {
            name: name.into(),
            address: values.as_ptr().expose_provenance() as u64,
            bytes: size_of_val(values) as u64,
            access: BufferAccess::Read,
            reached: None,
        }
    }

    /// The memory of `values`, for reading and writing.
    pub fn read_write<T>(name: impl Into<String>, values: &mut [T]) -> Self {
        Self {
            name: name.into(),
            address: values.as_mut_ptr().expose_provenance() as u64,
            bytes: size_of_val(values) as u64,
            access: BufferAccess::ReadWrite,
            reached: None,
        }
    }

    /// Of its bytes only those in `ranges` may be written, counted from its first: what a view of it reaches.
    ///
    /// # Panics
    /// When a range ends past the buffer.
    pub fn reaching(self, ranges: impl IntoIterator<Item = Range<usize>>) -> Self {
        let mut ranges: Vec<_> =
            ranges.into_iter().map(|range| range.start as u64..range.end as u64).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, range| {
            let joins = next.start <= range.end;
            if joins {
                range.end = range.end.max(next.end);
            }
            joins
        });
        let end = ranges.last().map_or(0, |range| range.end);
        assert!(end <= self.bytes, "bytes to {end} of `{}`, which has {}", self.name, self.bytes);
        Self { reached: Some(ranges.into()), ..self }
    }

    /// Whether it may be accessed so.
    #[inline]
    pub(crate) fn permits(&self, kind: AccessKind) -> bool {
        kind == AccessKind::Read || self.access == BufferAccess::ReadWrite
    }

    /// Whether all of the bytes are in it.
    #[inline]
    pub(crate) fn covers(&self, address: u64, bytes: u64) -> bool {
        address
            .checked_sub(self.address)
            .is_some_and(|offset| offset.checked_add(bytes).is_some_and(|end| end <= self.bytes))
    }

    /// The first of some bytes of it that may not be written.
    pub(crate) fn first_unreached(&self, address: u64, bytes: u64) -> Option<u64> {
        let reached = self.reached.as_ref()?;
        let first = address - self.address;
        let range = reached.get(reached.partition_point(|range| range.end <= first));
        match range.filter(|range| range.start <= first) {
            // Ranges that touch are one.
            Some(range) => (range.end < first + bytes).then_some(range.end),
            None => Some(first),
        }
    }
}

/// What a kernel may do with a [`Buffer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferAccess {
    /// Load from it.
    Read,
    /// Load from it and store to it.
    ReadWrite,
}
