//! The kernel that packs rows, in the simulator, which reports any read outside of a tensor.
#![allow(clippy::unwrap_used)]

use fa_kernels::attention::pack::{THREADS, block_rows, pack};
use fa_kernels::params::{PackParams, PackTensor, Strides};
use fa_sim::{Buffer, Launch, Schedule, launch};

const SEEDS: std::ops::Range<u64> = 0..8;

/// What the copy is filled with before.
const POISON: u16 = 0xffff;

/// A view that is copied: [B, S, H, D], strides, and elements between a multiple of 16 bytes and its first.
#[derive(Clone, Copy, Debug)]
struct View {
    shape: [usize; 4],
    strides: [usize; 3],
    shift: usize,
}

impl View {
    /// Contiguous [B, H, S, D] with so many elements behind each row, and heads as many more apart.
    fn bhsd(shape: [usize; 4], gap: usize, shift: usize) -> Self {
        let [_, s, h, d] = shape;
        let head = s * (d + gap) + gap;
        Self { shape, strides: [h * head, d + gap, head], shift }
    }

    fn bshd(shape: [usize; 4], shift: usize) -> Self {
        let [_, s, h, d] = shape;
        Self { shape, strides: [s * h * d, h * d, d], shift }
    }

    /// Elements from the first to behind the last.
    fn span(&self) -> usize {
        let [b, s, h, d] = self.shape;
        let [batch, row, head] = self.strides;
        (b - 1) * batch + (s - 1) * row + (h - 1) * head + d
    }

    fn chunks(&self) -> usize {
        self.shape[3].next_multiple_of(16) / 8
    }

    fn copy_len(&self) -> usize {
        let [b, s, h, _] = self.shape;
        b * s * h * 8 * self.chunks()
    }

    /// The element at an index of the view's memory: none is [`POISON`] or 0.
    fn element(index: usize) -> u16 {
        (index * 7919 % 65_521 + 1) as u16
    }

    fn expected(&self) -> Vec<u16> {
        let [b, s, h, d] = self.shape;
        let [batch, row, head] = self.strides;
        let mut copy = Vec::new();
        for index in 0..b * h * s {
            let (sequence_head, position) = (index / s, index % s);
            let first = sequence_head / h * batch + sequence_head % h * head + position * row;
            let columns = 0..8 * self.chunks();
            copy.extend(columns.map(|column| if column < d { Self::element(first + column) } else { 0 }));
        }
        copy
    }

    /// Memory whose elements from the index on are the view's, which ends where the memory does.
    fn memory(&self) -> (Vec<u16>, usize) {
        let mut memory: Vec<u16> = Vec::with_capacity(self.span() + 16);
        let to_boundary = (memory.as_ptr().addr() / 2).next_multiple_of(8) - memory.as_ptr().addr() / 2;
        let first = to_boundary + self.shift;
        memory.resize(first, POISON);
        memory.extend((0..self.span()).map(Self::element));
        (memory, first)
    }
}

/// Packs up to four views in one launch under one schedule, and compares.
fn check(views: &[View], seed: u64) {
    let memories: Vec<_> = views.iter().map(View::memory).collect();
    // Whole words of 16 bytes, so that copies are aligned; one more each, to see that it is left alone.
    let mut copies: Vec<Vec<u128>> =
        views.iter().map(|view| vec![u128::MAX; view.copy_len() / 8 + 1]).collect();
    let mut buffers: Vec<_> =
        memories.iter().map(|(memory, first)| Buffer::read("source", &memory[*first..])).collect();
    buffers.extend(copies.iter_mut().map(|copy| Buffer::read_write("copy", copy)));
    let mut params = PackParams::default();
    for (index, view) in views.iter().enumerate() {
        let [b, s, h, d] = view.shape;
        let [batch, row, head] = view.strides.map(|stride| stride as u64);
        let chunks = view.chunks() as u32;
        let head_blocks = (s as u32).div_ceil(block_rows(chunks));
        let source = buffers[index].address;
        assert_eq!(source as usize % 16, 2 * view.shift);
        params.tensors[index] = PackTensor {
            source,
            end: source + 2 * view.span() as u64,
            target: buffers[views.len() + index].address,
            strides: Strides { batch, row, head },
            rows: s as u32,
            heads: h as u32,
            columns: d as u32,
            chunks,
            head_blocks,
        };
        let before = params.ends[index];
        params.ends[index..].fill(before + head_blocks * (b * h) as u32);
    }
    let config = Launch {
        name: "pack",
        grid: params.ends[3],
        block: THREADS,
        shared_bytes: 0,
        schedule: Schedule::from_seed(seed),
        buffers: &buffers,
    };
    // SAFETY: the parameters describe the launch's buffers.
    let report =
        launch(&config, &|| unsafe { pack(&params) }).unwrap_or_else(|error| panic!("{views:?}: {error}"));
    // Each chunk is written once, of those aligned in memory at most two are read.
    let written = views.iter().map(|view| 2 * view.copy_len() as u64).sum::<u64>();
    assert_eq!(report.global_bytes_written, written, "{views:?}");
    assert!(report.global_bytes_read <= 2 * written, "{views:?}: {} bytes read", report.global_bytes_read);
    for (view, copy) in views.iter().zip(&copies) {
        let found: Vec<u16> = copy
            .iter()
            .flat_map(|word| [0, 1, 2, 3, 4, 5, 6, 7].map(|i| (word >> (16 * i)) as u16))
            .collect();
        let (found, behind) = found.split_at(view.copy_len());
        assert!(behind.iter().all(|&element| element == POISON), "{view:?}: wrote behind the copy");
        let wrong = found.iter().zip(view.expected()).position(|(&found, expected)| found != expected);
        assert_eq!(wrong, None, "{view:?}: {:?}", wrong.map(|at| (found[at], view.expected()[at])));
    }
}

#[test]
fn every_row_arrives_with_zeros_behind_it() {
    for seed in SEEDS {
        let shift = seed as usize;
        for d in
            [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 40, 63, 65, 100, 127, 129, 136, 144, 161, 193, 250, 255, 256]
        {
            check(&[View::bhsd([1, 61, 2, d], 0, shift)], seed);
        }
    }
}

#[test]
fn a_launch_packs_four_tensors_of_any_strides() {
    for seed in SEEDS {
        let shift = seed as usize;
        check(
            &[
                View::bshd([2, 70, 3, 129], shift),
                View::bhsd([2, 131, 1, 129], 3, 7 - shift),
                // All heads and sequences the same rows.
                View { shape: [2, 131, 2, 65], strides: [0, 65, 0], shift: 3 },
                View::bshd([2, 70, 3, 40], shift),
            ],
            seed,
        );
        check(&[View::bhsd([1, 1, 1, 1], 0, shift), View::bshd([3, 1, 2, 5], shift)], seed);
    }
}

#[test]
fn a_tensor_that_is_aligned_is_copied_too() {
    for seed in SEEDS {
        check(&[View::bhsd([1, 57, 2, 136], 0, 0), View::bshd([1, 20, 2, 152], 0)], seed);
    }
}
