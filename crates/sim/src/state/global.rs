//! Global memory: the buffers of a launch, and accesses to host memory.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use crate::buffer::Buffer;
use crate::error::AccessKind;
use crate::site::Site;

/// The buffers of a launch, and the bytes that went in and out of them.
pub(crate) struct Global {
    buffers: Vec<Buffer>,
    /// The buffer of the last access: the next one is likely there too.
    last: usize,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
}

/// A thread that waits for what another block adds to a word.
pub(crate) struct GlobalWait {
    pub(crate) thread: usize,
    /// What the word must be at least.
    pub(crate) value: u32,
    pub(crate) site: Site,
}

/// Threads that wait for words of global memory.
#[derive(Default)]
pub(crate) struct GlobalWaits {
    pub(crate) waiting: Vec<GlobalWait>,
    /// Since when no thread of the block can run but these.
    pub(crate) since: Option<Instant>,
    /// How often a thread was picked to run when all of these have looked again, and nothing else happened.
    pub(crate) picks: u64,
}

impl Global {
    pub(crate) fn new(buffers: &[Buffer]) -> Self {
        Self { buffers: buffers.to_vec(), last: 0, bytes_read: 0, bytes_written: 0 }
    }

    /// Whether one buffer covers the access and permits it.
    #[inline]
    pub(crate) fn permits(&mut self, address: u64, bytes: u64, kind: AccessKind) -> bool {
        let fits = |buffer: &Buffer| {
            buffer.permits(kind)
                && buffer.covers(address, bytes)
                && (kind == AccessKind::Read || buffer.first_unreached(address, bytes).is_none())
        };
        if self.buffers.get(self.last).is_some_and(fits) {
            return true;
        }
        let found = self.buffers.iter().position(fits);
        self.last = found.unwrap_or(self.last);
        found.is_some()
    }

    /// Whether the byte is in a buffer that may be written.
    #[inline]
    pub(crate) fn is_writable(&self, address: u64) -> bool {
        let is_there = |buffer: &Buffer| buffer.covers(address, 1);
        let permits = |buffer: &Buffer| buffer.permits(AccessKind::Write);
        match self.buffers.get(self.last).filter(|buffer| is_there(buffer)) {
            Some(buffer) => permits(buffer),
            None => self.buffers.iter().any(|buffer| is_there(buffer) && permits(buffer)),
        }
    }

    /// The name of the buffer of a byte, and which byte of it that is.
    pub(crate) fn place(&self, address: u64) -> (String, u64) {
        let buffer = self.buffers.iter().find(|buffer| buffer.covers(address, 1));
        buffer.map_or((String::new(), address), |buffer| (buffer.name.clone(), address - buffer.address))
    }

    /// Where an address that is not permitted lies.
    pub(crate) fn nearest(&self, address: u64, bytes: u64) -> String {
        let distance = |buffer: &&Buffer| {
            let end = buffer.address.saturating_add(buffer.bytes);
            buffer.address.saturating_sub(address).max(address.saturating_sub(end))
        };
        let Some(buffer) = self.buffers.iter().min_by_key(distance) else {
            return String::from("the launch has no buffers");
        };
        let Buffer { name, bytes: size, .. } = buffer;
        if buffer.covers(address, bytes) {
            return match buffer.first_unreached(address, bytes) {
                Some(byte) => format!("with byte {byte} of buffer `{name}`, which no view reaches"),
                None => format!("which is in buffer `{name}`, read-only"),
            };
        }
        match address.checked_sub(buffer.address) {
            Some(offset) => format!("{offset} bytes from the start of buffer `{name}` of {size} bytes"),
            None => format!("{} bytes before buffer `{name}` of {size} bytes", buffer.address - address),
        }
    }
}

/// Reads any number of bytes, as the accesses that their alignment allows.
///
/// # Safety
/// `address` is valid for reads of `bytes.len()` bytes, and a multiple of the next power of two or of 16.
pub(crate) unsafe fn read_bytes(mut address: u64, mut bytes: &mut [u8]) {
    while !bytes.is_empty() {
        let (part, rest) = bytes.split_at_mut(1 << bytes.len().min(16).ilog2());
        // SAFETY: the bytes are readable. Parts descend in size, so each is aligned to its own.
        unsafe { read(address, part) };
        address += part.len() as u64;
        bytes = rest;
    }
}

/// Writes any number of bytes, as the accesses that their alignment allows.
///
/// # Safety
/// `address` is valid for writes of `bytes.len()` bytes, and aligned as for [`read_bytes`].
pub(crate) unsafe fn write_bytes(mut address: u64, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let (part, rest) = bytes.split_at(1 << bytes.len().min(16).ilog2());
        // SAFETY: as in `read_bytes`.
        unsafe { write(address, part) };
        address += part.len() as u64;
        bytes = rest;
    }
}

/// Reads 1, 2, 4, 8 or 16 bytes.
///
/// # Safety
/// `address` is valid for reads of `value.len()` bytes, and a multiple of that.
#[inline]
pub(crate) unsafe fn read(address: u64, value: &mut [u8]) {
    let p = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // Relaxed atomics, because blocks run on several cores: a kernel whose blocks race gives
    // an unspecified value, as on the device, and nothing worse.
    // SAFETY: the bytes are readable, at a multiple of their number.
    unsafe {
        match value.len() {
            1 => value[0] = AtomicU8::from_ptr(p).load(Relaxed),
            2 => value.copy_from_slice(&AtomicU16::from_ptr(p.cast()).load(Relaxed).to_ne_bytes()),
            4 => value.copy_from_slice(&AtomicU32::from_ptr(p.cast()).load(Relaxed).to_ne_bytes()),
            _ => {
                for (index, part) in value.chunks_exact_mut(8).enumerate() {
                    let word = AtomicU64::from_ptr(p.cast::<u64>().add(index));
                    part.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
                }
            }
        }
    }
}

/// Writes 1, 2, 4, 8 or 16 bytes.
///
/// # Safety
/// `address` is valid for writes of `value.len()` bytes, and a multiple of that.
#[inline]
pub(crate) unsafe fn write(address: u64, value: &[u8]) {
    let p = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: the bytes are writable, at a multiple of their number; relaxed atomics as in `read`.
    unsafe {
        match value.len() {
            1 => AtomicU8::from_ptr(p).store(value[0], Relaxed),
            2 => AtomicU16::from_ptr(p.cast()).store(bytemuck::pod_read_unaligned(value), Relaxed),
            4 => AtomicU32::from_ptr(p.cast()).store(bytemuck::pod_read_unaligned(value), Relaxed),
            _ => {
                for (index, part) in value.chunks_exact(8).enumerate() {
                    let word = AtomicU64::from_ptr(p.cast::<u64>().add(index));
                    word.store(bytemuck::pod_read_unaligned(part), Relaxed);
                }
            }
        }
    }
}
