//! What attention in e4m3 is made of, in the simulator: V with its keys along rows, and P as A of its product
//! with that.
#![allow(clippy::unwrap_used)]

use std::sync::Mutex;

use fa_kernels::attention::forward_sm90::Operand as _;
use fa_kernels::attention::transpose::{KEYS, THREADS, head_blocks, row_blocks, transpose};
use fa_kernels::element::E4m3;
use fa_kernels::params::{PackParams, PackTensor, Strides};
use fa_kernels::ptx::wgmma::{self, Accumulator};
use fa_kernels::ptx::{barrier, convert, fence, index, shared};
use fa_kernels::tile::panels::{Extents, Panels};
use fa_sim::{Buffer, Launch, Report, Schedule, launch};

const SEEDS: std::ops::Range<u64> = 0..8;

/// The key at a place of V's rows: of each 16, pairs 0 4 1 5 2 6 3 7.
fn key_at(place: usize) -> usize {
    let (pair, which) = (place % 16 / 2, place % 2);
    place / 16 * 16 + 2 * (pair / 2 + 4 * (pair % 2)) + which
}

#[test]
fn v_is_transposed_wherever_its_rows_lie() {
    for (seed, [b, s, h, d], gap) in [
        (0, [1, 1, 1, 16], 0),
        (1, [2, 33, 3, 64], 0),
        (2, [1, 200, 2, 256], 16),
        (3, [3, 64, 1, 80], 48),
        (4, [2, 33, 3, 17], 0),
        (5, [1, 40, 2, 129], 2),
        (6, [1, 20, 1, 3], 1),
        (7, [1, 50, 2, 70], 0),
    ] {
        for bshd in [false, true] {
            check_transposed(seed, [b, s, h, d], gap, bshd);
        }
    }
}

fn check_transposed(seed: u64, [b, s, h, d]: [usize; 4], gap: usize, bshd: bool) {
    let row = d + gap;
    let [batch_step, row_step, head_step] =
        if bshd { [s * h * row, h * row, row] } else { [h * s * row, row, s * row] };
    let element = |index: usize| (index * 7919 % 251 + 1) as u8;
    let words = (0..(b * s * h * row).div_ceil(4))
        .map(|word| u32::from_le_bytes([0, 1, 2, 3].map(|i| element(4 * word + i))));
    let view: Vec<u32> = words.collect();
    let keys = s.next_multiple_of(KEYS as usize);
    let mut copy = vec![u128::MAX; b * h * d * keys / 16 + 1];
    let buffers = [Buffer::read("v", &view), Buffer::read_write("copy", &mut copy)];
    let blocks = head_blocks(d as u32, s as u32);
    let tensor = PackTensor {
        source: buffers[0].address,
        end: 0,
        target: buffers[1].address,
        strides: Strides { batch: batch_step as u64, row: row_step as u64, head: head_step as u64 },
        rows: s as u32,
        heads: h as u32,
        columns: d as u32,
        chunks: (keys / 16) as u32,
        group: 1,
        unit_rows: 0,
        head_blocks: blocks,
    };
    let grid = blocks * (b * h) as u32;
    let params = PackParams { tensors: [tensor; 4], ends: [grid; 4], ..PackParams::default() };
    // SAFETY: the buffers are what the parameters describe.
    unsafe { run_transpose(seed, &buffers, &params) };
    let bytes: Vec<u8> = copy.iter().flat_map(|words| words.to_le_bytes()).collect();
    let (copied, rest) = bytes.split_at(b * h * d * keys);
    for (at, &byte) in copied.iter().enumerate() {
        let (line, key) = (at / keys, key_at(at % keys));
        let (batch, head, column) = (line / d / h, line / d % h, line % d);
        let source = batch * batch_step + key * row_step + head * head_step + column;
        let expected = if key < s { element(source) } else { 0 };
        assert_eq!(byte, expected, "[{b}, {s}, {h}, {d}] {batch} {head} {column} {key}");
    }
    assert!(rest.iter().all(|&byte| byte == 0xff), "wrote behind the copy");
}

/// Launches the kernel, with as many blocks as the parameters have.
///
/// # Safety
/// The buffers are what the parameters describe.
unsafe fn run_transpose(seed: u64, buffers: &[Buffer], params: &PackParams) {
    let config = Launch {
        name: "transpose",
        grid: params.ends[3],
        block: THREADS,
        shared_bytes: 0,
        schedule: Schedule::from_seed(seed),
        buffers,
    };
    // SAFETY: the launch is as the kernel asks for; the buffers are the caller's promise.
    launch(&config, &|| unsafe { transpose(params) }).unwrap();
}

#[test]
fn rows_are_copied_wherever_they_start() {
    for (seed, [b, s, h, d], gap) in [(0, [1, 1, 1, 1], 0), (1, [2, 33, 3, 17], 0), (2, [1, 90, 2, 129], 2)] {
        check_copied(seed, [b, s, h, d], gap);
    }
}

/// As the third of the tensors, none of which is another's.
fn check_copied(seed: u64, [b, s, h, d]: [usize; 4], gap: usize) {
    let row = d + gap;
    let bytes = |index: usize| (index * 7919 % 251 + 1) as u8;
    let view: Vec<u32> = (0..(b * s * h * row).div_ceil(4))
        .map(|word| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes(4 * word + i))))
        .collect();
    let chunks = d.div_ceil(16);
    let mut copy = vec![u128::MAX; b * h * s * chunks + 1];
    let buffers = [Buffer::read("k", &view), Buffer::read_write("copy", &mut copy)];
    let blocks = row_blocks(s as u32, chunks as u32);
    let tensor = PackTensor {
        source: buffers[0].address,
        target: buffers[1].address,
        strides: Strides { batch: (s * h * row) as u64, row: (h * row) as u64, head: row as u64 },
        rows: s as u32,
        heads: h as u32,
        columns: d as u32,
        chunks: chunks as u32,
        head_blocks: blocks,
        ..PackTensor::default()
    };
    let grid = blocks * (b * h) as u32;
    let none = PackTensor::default();
    let params =
        PackParams { tensors: [none, none, tensor, none], ends: [0, 0, grid, grid], ..PackParams::default() };
    // SAFETY: the buffers are what the parameters describe.
    unsafe { run_transpose(seed, &buffers, &params) };
    let copied: Vec<u8> = copy.iter().flat_map(|words| words.to_le_bytes()).collect();
    for (at, &byte) in copied.iter().enumerate() {
        let (line, column) = (at / (16 * chunks), at % (16 * chunks));
        let (batch, head, of_head) = (line / s / h, line / s % h, line % s);
        let source = batch * s * h * row + of_head * h * row + head * row + column;
        let expected = match line < b * h * s {
            true if column < d => bytes(source),
            true => 0,
            false => 0xff, // Behind the copy.
        };
        assert_eq!(byte, expected, "[{b}, {s}, {h}, {d}] {batch} {head} {of_head} {column}");
    }
}

const WARPGROUP: u32 = 128;
/// Keys and columns of V.
const N: u32 = 64;
const D: u32 = 32;

/// Small numbers that e4m3 holds.
fn p_at(row: usize, key: usize) -> f32 {
    ((row * 5 + key * 3) % 7) as f32 * 0.25
}

fn v_at(key: usize, column: usize) -> f32 {
    ((key * 11 + column * 2) % 9) as f32 - 4.0
}

/// Where element `index` of this thread's accumulator is.
fn place(index: usize) -> (usize, usize) {
    let (warp, lane) = (index::thread() as usize / 32, index::thread() as usize % 32);
    (16 * warp + lane / 4 + 8 * (index / 2 % 2), 8 * (index / 4) + lane % 4 * 2 + index % 2)
}

/// O = P·V with V's keys in rows in the order of `order`; `meanwhile` happens while the product is under way.
/// Hands each thread's elements to `see` with what they should be.
fn multiply(
    seed: u64,
    order: fn(usize) -> usize,
    meanwhile: fn(Panels<Extents<D, N, 1>>),
    see: impl Fn(f32, f32) + Sync,
) -> Result<Report, fa_sim::Error> {
    let kernel = || {
        let v = Panels::<Extents<D, N, 1>>::new(shared::base());
        let mut word = index::thread();
        while word < D * N / 4 {
            let (column, first) = (4 * word / N, 4 * word % N);
            let keys = [0, 1, 2, 3].map(|i| v_at(order((first + i) as usize), column as usize));
            // SAFETY: one word for each; a barrier follows.
            unsafe {
                shared::store_b32(v.at(column, first / 16) + first % 16, convert::pack_e4m3x4(keys));
            }
            word += WARPGROUP;
        }
        let p: [f32; N as usize / 2] = std::array::from_fn(|index| {
            let (row, key) = place(index);
            p_at(row, key)
        });
        let a: [u32; N as usize / 8] = std::array::from_fn(|index| E4m3::pack_p(index, |score| p[score]));
        let mut o = [0.0; D as usize / 2];
        // SAFETY: the operand is written and fenced before the barrier; the whole warpgroup runs this alike.
        unsafe {
            fence::proxy_async();
            barrier::sync(0, WARPGROUP);
            wgmma::fence();
            for step in 0..N as usize / 32 {
                let b = v.descriptor().behind(Panels::<Extents<D, N, 1>>::columns(step as u32)).bits();
                let a = [a[4 * step], a[4 * step + 1], a[4 * step + 2], a[4 * step + 3]];
                o.multiply_rs::<E4m3, false>(a, b, true);
            }
            wgmma::commit_group();
            meanwhile(v);
            o.wait_group::<0>();
        }
        for (index, &value) in o.iter().enumerate() {
            let (row, column) = place(index);
            see(value, (0..N as usize).map(|key| p_at(row, key) * v_at(key, column)).sum());
        }
    };
    let config = Launch {
        name: "P times V",
        grid: 1,
        block: WARPGROUP,
        shared_bytes: Panels::<Extents<D, N, 1>>::BYTES,
        schedule: Schedule::from_seed(seed),
        buffers: &[],
    };
    launch(&config, &kernel)
}

#[test]
fn p_packs_into_a_of_its_product_with_v() {
    for seed in SEEDS {
        multiply(seed, key_at, |_| (), |found, exact| assert_eq!(found, exact)).unwrap();
    }
}

#[test]
fn v_in_another_order_gives_another_product() {
    let wrong = Mutex::new(0);
    multiply(0, |place| place, |_| (), |found, exact| *wrong.lock().unwrap() += usize::from(found != exact))
        .unwrap();
    assert!(wrong.into_inner().unwrap() > 64 * D as usize / 2);
}

#[test]
fn writing_v_while_its_product_is_under_way_is_an_error() {
    for seed in SEEDS {
        // SAFETY: none; the simulator says so.
        let overwrite = |v: Panels<Extents<D, N, 1>>| unsafe {
            shared::store_b32(v.at(index::thread() % D, index::thread() / D), 0);
        };
        let error = multiply(seed, key_at, overwrite, |_, _| ()).expect_err("V is in use").to_string();
        // Which of the two it is depends on the order of the threads.
        let reasons = ["no wgmma::wait_group of that warpgroup comes before", "with no barrier between"];
        assert!(error.contains("wgmma") && reasons.iter().any(|reason| error.contains(reason)), "{error}");
    }
}
