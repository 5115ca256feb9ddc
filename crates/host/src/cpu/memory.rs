//! Memory beside the tensors: asked for, never assumed, and counted.

use std::mem::MaybeUninit;

use crate::{Error, Result};

/// One cache line, the unit of allocation: vector loads then never straddle two.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "only its size and alignment count")] [f32; 16]);

/// Uninitialised fp32 memory on cache-line boundaries.
pub(super) struct Buffer {
    lines: Vec<MaybeUninit<Line>>,
}

impl Buffer {
    /// Allocates room for `elements` fp32 values; pages are not touched.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming `what` when it would not fit into free memory.
    pub(super) fn new(what: &'static str, elements: u128) -> Result<Self> {
        let needed = elements.div_ceil(16) * size_of::<Line>() as u128;
        // Asking takes as long as a small problem, which never needs to ask.
        let available = if needed < 1 << 24 { u128::MAX } else { available_bytes() };
        let refused = || Error::OutOfMemory { what, needed, available, device: "the host".to_owned() };
        // Systems that overcommit grant what they do not have, and kill later.
        if needed > available {
            return Err(refused());
        }
        let count = usize::try_from(elements.div_ceil(16)).map_err(|_| refused())?;
        let mut lines = Vec::new();
        lines.try_reserve_exact(count).map_err(|_| refused())?;
        // SAFETY: the capacity was just reserved, and `MaybeUninit` elements need no initialisation.
        unsafe { lines.set_len(count) };
        Ok(Self { lines })
    }

    /// Address of the first element; writes through it are the buffer's only initialisation.
    pub(super) fn as_mut_ptr(&mut self) -> *mut f32 {
        self.lines.as_mut_ptr().cast()
    }

    /// Size in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.lines.as_slice())
    }
}

/// Bytes that this process can still use: what the system has free, or its control group allows;
/// unlimited where neither can be read.
pub(super) fn available_bytes() -> u128 {
    let field = |path: &str, name: &str| -> Option<u128> {
        let text = std::fs::read_to_string(path).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
    };
    let system = field("/proc/meminfo", "MemAvailable:").map(|kib| kib * 1024);
    // What the group's page cache holds is given back on demand, so only anonymous memory counts as used.
    let group = field("/sys/fs/cgroup/memory.max", "")
        .zip(field("/sys/fs/cgroup/memory.stat", "anon "))
        .map(|(limit, used)| limit.saturating_sub(used));
    system.into_iter().chain(group).min().unwrap_or(u128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_count_their_bytes() {
        let mut buffer = Buffer::new("scratch", 17).unwrap();
        assert_eq!(buffer.as_mut_ptr() as usize % 64, 0);
        assert_eq!(buffer.bytes(), 128);
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        for elements in [1 << 60, u128::from(u64::MAX)] {
            let Err(Error::OutOfMemory { what, needed, available, .. }) = Buffer::new("scores", elements)
            else {
                panic!("{elements} elements were granted");
            };
            assert_eq!(what, "scores");
            assert!(needed >= elements * 4 && available > 0);
        }
    }
}
