//! The kernel that packs rows, in the simulator, which reports any read outside of a tensor.
#![allow(clippy::unwrap_used)]

use fa_kernels::attention::pack::{SHARED_BYTES, THREADS, pack, unit_rows};
use fa_kernels::params::{CopiesBeside, PackParams, PackTensor, Strides};
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

/// The parameters of a launch that packs all of up to four views, which lie in the first of the buffers, to
/// the next ones, and how many groups of heads they have.
fn params(views: &[View], buffers: &[Buffer]) -> (PackParams, u32) {
    let groups = views.iter().map(|view| view.shape[0] * view.shape[2]).min().unwrap() as u32;
    let (mut params, mut units) = (PackParams::default(), 0);
    for (index, view) in views.iter().enumerate() {
        let [b, s, h, d] = view.shape;
        let [batch, row, head] = view.strides.map(|stride| stride as u64);
        let chunks = view.chunks() as u32;
        let (head_blocks, group) = ((s as u32).div_ceil(unit_rows(chunks)), (b * h) as u32 / groups);
        let source = buffers[index].address;
        assert_eq!(source as usize % 16, 2 * view.shift);
        params.tensors[index] = PackTensor {
            source,
            end: source + 2 * view.span() as u64,
            target: buffers[views.len() + index].address,
            strides: Strides { batch, row, head },
            rows: s as u32,
            heads: h as u32,
            group,
            columns: d as u32,
            chunks,
            unit_rows: unit_rows(chunks),
            head_blocks,
        };
        units += head_blocks * group;
        params.ends[index..].fill(units);
    }
    (PackParams { end: units * groups, ..params }, groups)
}

/// Packs up to four views under one schedule in launches of so many blocks each, and compares: in one, or in
/// two, of which the first clears counters and copies the first group, and the second counts what it copies.
fn check_in(views: &[View], seed: u64, grids: &[u32]) {
    let memories: Vec<_> = views.iter().map(View::memory).collect();
    // Whole words of 16 bytes, so that copies are aligned; one more each, to see that it is left alone.
    let mut copies: Vec<Vec<u128>> =
        views.iter().map(|view| vec![u128::MAX; view.copy_len() / 8 + 1]).collect();
    let mut buffers: Vec<_> =
        memories.iter().map(|(memory, first)| Buffer::read("source", &memory[*first..])).collect();
    buffers.extend(copies.iter_mut().map(|copy| Buffer::read_write("copy", copy)));
    let (params, groups) = params(views, &buffers);
    let counter_count = CopiesBeside::counter_count(groups.into()) as u32;
    let mut counted = vec![u32::MAX; counter_count as usize + 1];
    buffers.push(Buffer::read_write("counters", &mut counted));
    let (counters, first) = (buffers[2 * views.len()].address, params.ends[3]);
    let launches = match grids.len() {
        1 => vec![params],
        _ => vec![
            PackParams { end: first, counters, cleared: counter_count, ..params },
            PackParams { first, counters, ..params },
        ],
    };
    let (mut written, mut read) = (0, 0);
    for (params, &grid) in launches.iter().zip(grids) {
        let schedule = Schedule::from_seed(seed);
        let config = Launch {
            name: "pack",
            grid,
            block: THREADS,
            shared_bytes: SHARED_BYTES,
            schedule,
            buffers: &buffers,
        };
        // SAFETY: the parameters describe the launch's buffers.
        let report =
            launch(&config, &|| unsafe { pack(params) }).unwrap_or_else(|error| panic!("{views:?}: {error}"));
        written += report.global_bytes_written;
        read += report.global_bytes_read;
    }
    if launches.len() > 1 {
        let mut expected = vec![params.ends[3]; counter_count as usize];
        expected[..2].fill(0);
        expected.push(u32::MAX);
        assert_eq!(counted, expected, "{views:?}");
        let added = params.end - first;
        written -= 4 * u64::from(counter_count + added);
        read -= 4 * u64::from(added);
    }
    // Each chunk is written once, of those aligned in memory at most two are read.
    let copied = views.iter().map(|view| 2 * view.copy_len() as u64).sum::<u64>();
    assert_eq!(written, copied, "{views:?}");
    assert!(read <= 2 * written, "{views:?}: {read} bytes read");
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

/// As [`check_in`], in one launch whose blocks have a unit for each worker, or in which workers have several.
fn check(views: &[View], seed: u64) {
    let units: u32 = views
        .iter()
        .map(|view| (view.shape[1] as u32).div_ceil(unit_rows(view.chunks() as u32)))
        .sum::<u32>()
        * views[0].shape[0] as u32;
    check_in(views, seed, &[if seed.is_multiple_of(2) { units } else { 2 }]);
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

#[test]
fn what_is_copied_beside_is_counted_by_groups() {
    for seed in SEEDS {
        let shift = seed as usize;
        let views = [
            // Two heads of Q share one of K and V.
            View::bhsd([2, 70, 4, 129], 0, shift),
            View::bhsd([2, 131, 2, 129], 0, 7 - shift),
            View::bhsd([2, 131, 2, 65], 1, 3),
        ];
        check_in(&views, seed, &[3, 1 + seed as u32 % 3]);
    }
}
