//! The bytes of shared memory.

use bytemuck::Pod;

/// Address of the first byte; not 0, so that a forgotten base address is out of bounds.
pub(crate) const BASE: u32 = 1024;

/// Most shared memory that a block can have: 227 KiB, as on compute capability 9.0.
pub(crate) const MAX_BYTES: u32 = 227 * 1024;

/// The bytes of shared memory, and which of them this block has written.
pub(crate) struct Shared {
    bytes: Vec<u8>,
    /// One bit for each byte.
    written: Vec<u64>,
    /// Which were written since the last image was taken; empty where none is.
    changed: Vec<u64>,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
}

/// Shared memory at some time.
pub(crate) struct Image {
    bytes: Vec<u8>,
    written: Vec<u64>,
    /// Bytes that were written since the image before, a bit for each.
    pub(crate) changed: Vec<u64>,
}

impl Image {
    /// The `bytes` bytes at `offset`, if all were written.
    pub(crate) fn get(&self, offset: usize, bytes: usize) -> Option<[u8; 16]> {
        let bits = Shared::bits(offset, bytes);
        let mut value = [0; 16];
        value[..bytes].copy_from_slice(&self.bytes[offset..offset + bytes]);
        (self.written[offset / 64] & bits == bits).then_some(value)
    }
}

impl Shared {
    pub(crate) fn new(bytes: u32) -> Self {
        Self {
            bytes: vec![0; bytes as usize],
            written: vec![0; bytes.div_ceil(64) as usize],
            changed: Vec::new(),
            bytes_read: 0,
            bytes_written: 0,
        }
    }

    /// Shared memory begins undefined for each block.
    pub(crate) fn begin_block(&mut self) {
        self.written.fill(0);
        self.changed.clear();
    }

    /// From now on, images may be taken.
    pub(crate) fn track_changes(&mut self) {
        self.changed = vec![0; self.written.len()];
    }

    /// All bytes as they are, and which were written since the last image.
    pub(crate) fn take_image(&mut self) -> Image {
        let changed = std::mem::replace(&mut self.changed, vec![0; self.written.len()]);
        Image { bytes: self.bytes.clone(), written: self.written.clone(), changed }
    }

    /// The bits of an aligned access of at most 16 bytes, which never cross a word of `written`.
    #[inline]
    fn bits(offset: usize, bytes: usize) -> u64 {
        ((1 << bytes) - 1) << (offset % 64)
    }

    /// How many bytes there are.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Writes `bytes` at `offset`, aligned to their number.
    pub(crate) fn set(&mut self, offset: usize, bytes: &[u8]) {
        self.mark_written(offset, bytes.len());
        self.overwrite(offset, bytes);
    }

    /// As [`Shared::set`], of bytes that are marked as written.
    #[inline]
    pub(crate) fn overwrite(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// The `bytes` bytes at `offset`, aligned to their number, are written now.
    #[inline]
    pub(crate) fn mark_written(&mut self, offset: usize, bytes: usize) {
        self.written[offset / 64] |= Self::bits(offset, bytes);
        if let Some(changed) = self.changed.get_mut(offset / 64) {
            *changed |= Self::bits(offset, bytes);
        }
    }

    /// The value at `offset`.
    #[inline]
    pub(crate) fn get<T: Pod>(&self, offset: usize) -> T {
        bytemuck::pod_read_unaligned(&self.bytes[offset..offset + size_of::<T>()])
    }

    /// As if nothing had written the bytes at `offset`.
    pub(crate) fn forget(&mut self, offset: usize, bytes: usize) {
        self.written[offset / 64] &= !Self::bits(offset, bytes);
    }

    /// Whether the `bytes` bytes at `offset`, at most 16 at a multiple of 16, have been written.
    #[inline]
    pub(crate) fn is_written(&self, offset: usize, bytes: usize) -> bool {
        let bits = Self::bits(offset, bytes);
        self.written[offset / 64] & bits == bits
    }
}
