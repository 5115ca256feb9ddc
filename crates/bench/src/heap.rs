//! Counts what the program takes from its heap, so that memory is measured and not computed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static TAKEN: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator with a count of the bytes taken, for `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting;

// SAFETY: every call goes to the system's allocator as it came; the counts change no pointer.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the layout's size is not 0.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the layout's size is not 0.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size);
        TAKEN.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the system's allocator gave `pointer` for this layout, and the new size is a valid one.
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        TAKEN.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the system's allocator gave `pointer` for this layout, and it is not used any more.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn count(bytes: usize) {
    let taken = TAKEN.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(taken, Relaxed);
}

/// The most bytes that the heap held beyond what it held at the start while `work` ran, and what `work` gave.
/// 0 where [`Counting`] is not the program's allocator.
pub(crate) fn peak_of<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = TAKEN.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = work();
    ((PEAK.load(Relaxed).saturating_sub(before)) as u64, result)
}
