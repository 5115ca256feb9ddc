//! The kernel that widens a cache in e4m3, in the simulator, which reports any access outside of a tensor.
#![allow(clippy::unwrap_used)]

use fa_kernels::attention::widen::{CHUNK, THREADS, block_rows, widen};
use fa_kernels::element::{Bf16, F16};
use fa_kernels::mask::UNLIMITED;
use fa_kernels::params::{AttentionParams, Pages, Strides, WidenParams, WidenTensor};
use fa_sim::{Buffer, Launch, Schedule, launch};
use half::{bf16, f16};

/// What the copies are filled with before.
const POISON: u16 = 0xffff;

/// A cache, and what the device knows of its sequences.
#[derive(Clone, Debug)]
struct Case {
    /// B, Sk, Hkv, D, Dv.
    shape: [usize; 5],
    /// Columns between rows; rows begin at multiples of 8.
    gap: usize,
    /// Whether a head's rows lie one behind the other.
    by_heads: bool,
    /// Rows of a page, whose numbers are the caller's.
    pages: Option<(usize, Vec<i32>)>,
    used: Option<Vec<i32>>,
    /// First query of each sequence; one query each where there are none.
    cu_seqlens_q: Option<Vec<u32>>,
    window_left: u32,
    block_n: u32,
    head_blocks: u32,
    seed: u64,
}

impl Case {
    fn new(shape: [usize; 5], seed: u64) -> Self {
        Self {
            shape,
            gap: 0,
            by_heads: false,
            pages: None,
            used: None,
            cu_seqlens_q: None,
            window_left: UNLIMITED,
            block_n: 32,
            head_blocks: 2,
            seed,
        }
    }

    /// Sequences, or pages that there are, and their rows.
    fn outer(&self) -> [usize; 2] {
        let [b, sk, ..] = self.shape;
        self.pages.as_ref().map_or([b, sk], |(size, _)| [2 * b * sk.div_ceil(*size), *size])
    }

    /// Strides of the view of rows of so many columns, and how far it reaches.
    fn strides(&self, columns: usize) -> (Strides, usize) {
        let ([outer, rows], [_, _, h, ..]) = (self.outer(), self.shape);
        let row = (columns + self.gap).next_multiple_of(CHUNK as usize);
        let [of_row, of_head] = if self.by_heads { [row, rows * row] } else { [h * row, row] };
        let span = (outer - 1) * rows * h * row + (rows - 1) * of_row + (h - 1) * of_head + columns;
        let [batch, of_row, head] = [rows * h * row, of_row, of_head].map(|stride| stride as u64);
        (Strides { batch, row: of_row, head }, span)
    }

    /// Keys of a sequence that are widened.
    fn keys(&self, sequence: usize) -> std::ops::Range<usize> {
        let sk = self.shape[1];
        let used = self.used.as_ref().map_or(sk, |used| usize::try_from(used[sequence]).unwrap_or(0).min(sk));
        let queries = self.cu_seqlens_q.as_ref().map_or(1, |of| of[sequence + 1] - of[sequence]);
        let hidden = queries.saturating_add(self.window_left) as usize;
        let seen = used.saturating_sub(hidden);
        let first = seen - seen % self.block_n as usize;
        if queries == 0 { 0..0 } else { first..used }
    }

    /// Where a key's row begins; `None` in a page that is none.
    fn row(&self, strides: &Strides, [sequence, key, head]: [usize; 3]) -> Option<usize> {
        let (mut batch, mut row) = (sequence, key);
        if let Some((size, table)) = &self.pages {
            batch = usize::try_from(table[sequence * self.shape[1].div_ceil(*size) + key / size]).ok()?;
            row = key % size;
        }
        let offset = strides.offset(batch as u32, row as u32, head as u32) as usize;
        (batch < self.outer()[0]).then_some(offset)
    }

    /// Widens under one schedule, and compares.
    fn check(&self) {
        // SAFETY: the parameters describe the launch's buffers.
        self.check_type(|params| unsafe { widen::<F16>(params) }, |x| f16::from_f32(x).to_bits());
        // SAFETY: as above.
        self.check_type(|params| unsafe { widen::<Bf16>(params) }, |x| bf16::from_f32(x).to_bits());
    }

    fn check_type(&self, kernel: impl Fn(&WidenParams) + Sync, rounded: impl Fn(f32) -> u16) {
        let [b, sk, h, d, dv] = self.shape;
        let views = [d, dv].map(|columns| (columns, self.strides(columns)));
        // Any bits but NaN's, whose sign is not kept.
        let element = |at: usize| (at * 7919 % 127 + at % 2 * 128) as u8;
        let memories = views.map(|(_, (_, span))| Bytes::new((0..span).map(element)));
        let chunks = views.map(|(columns, _)| columns.div_ceil(CHUNK as usize));
        let lens = chunks.map(|chunks| b * h * sk * chunks);
        // One more each, to see that it is left alone.
        let mut copies = lens.map(|len| vec![u128::MAX; len + 1]);
        let [k_copy, v_copy] = &mut copies;
        let list = |values: Option<&Vec<i32>>| values.cloned().unwrap_or_default();
        let (used, table) = (list(self.used.as_ref()), list(self.pages.as_ref().map(|(_, table)| table)));
        let offsets = self.cu_seqlens_q.clone().unwrap_or_default();
        let buffers = [
            Buffer::read("k", memories[0].as_slice()),
            Buffer::read("v", memories[1].as_slice()),
            Buffer::read_write("copy of k", k_copy),
            Buffer::read_write("copy of v", v_copy),
            Buffer::read("seqused_k", &used),
            Buffer::read("page_table", &table),
            Buffer::read("cu_seqlens_q", &offsets),
        ];
        let at = |index: usize| buffers[index].address;
        let there = |is_there: bool, index: usize| if is_there { at(index) } else { 0 };
        let tensor = |index: usize| WidenTensor {
            source: at(index),
            end: at(index) + views[index].1.1 as u64,
            target: at(2 + index),
            strides: views[index].1.0,
            chunks: chunks[index] as u32,
        };
        let pages = self.pages.as_ref().map_or_else(Pages::default, |(size, _)| Pages {
            table: at(5),
            page_size: *size as u32,
            max_pages: sk.div_ceil(*size) as u32,
        });
        let params = WidenParams {
            attention: AttentionParams {
                seqused_k: there(self.used.is_some(), 4),
                cu_seqlens_q: there(self.cu_seqlens_q.is_some(), 6),
                seqlen_q: 1,
                seqlen_k: sk as u32,
                window_left: self.window_left,
                window_span: self.window_left,
                ..AttentionParams::default()
            },
            k: tensor(0),
            v: tensor(1),
            pages,
            num_pages: self.outer()[0] as u32,
            heads: h as u32,
            block_n: self.block_n,
            head_blocks: self.head_blocks,
        };
        let config = Launch {
            name: "widen",
            grid: 2 * self.head_blocks * (b * h) as u32,
            block: THREADS,
            shared_bytes: 0,
            schedule: Schedule::from_seed(self.seed),
            buffers: &buffers,
        };
        // SAFETY: the parameters describe the launch's buffers.
        let report = launch(&config, &|| kernel(&params)).unwrap_or_else(|error| panic!("{self:?}: {error}"));
        let keys: usize = (0..b).map(|sequence| self.keys(sequence).len()).sum();
        assert_eq!(report.global_bytes_written, (16 * keys * h * (chunks[0] + chunks[1])) as u64, "{self:?}");
        for (index, (columns, (strides, _))) in views.into_iter().enumerate() {
            let found = |at: usize| (copies[index][at / 8] >> (16 * (at % 8))) as u16;
            assert_eq!(copies[index][lens[index]], u128::MAX, "{self:?}: wrote behind the copy");
            for at in 0..lens[index] / chunks[index] {
                let (sequence, head, key) = (at / sk / h, at / sk % h, at % sk);
                let is_there = self.keys(sequence).contains(&key);
                let first = if is_there { self.row(&strides, [sequence, key, head]) } else { None };
                for column in 0..columns {
                    let expected = match first {
                        Some(first) => rounded(value(element(first + column))),
                        None if is_there => 0,
                        None => POISON,
                    };
                    let found = found(8 * chunks[index] * at + column);
                    assert_eq!(found, expected, "{self:?}: {sequence} {head} {key} {column}");
                }
            }
        }
    }
}

/// Bytes from a multiple of 16 on, and no byte behind the last, where the simulator would report a read.
struct Bytes {
    memory: Vec<u8>,
    first: usize,
}

impl Bytes {
    fn new(bytes: impl ExactSizeIterator<Item = u8>) -> Self {
        let mut memory: Vec<u8> = Vec::with_capacity(bytes.len() + 16);
        let first = memory.as_ptr().addr().next_multiple_of(16) - memory.as_ptr().addr();
        memory.resize(first, 0);
        memory.extend(bytes);
        Self { memory, first }
    }

    fn as_slice(&self) -> &[u8] {
        &self.memory[self.first..]
    }
}

/// A number of e4m3: bias 7, three bits of mantissa, and 2^-9 the smallest.
fn value(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let magnitude = match exponent {
        0 => mantissa * 2.0_f32.powi(-9),
        _ => (8.0 + mantissa) * 2.0_f32.powi(exponent - 10),
    };
    if bits & 0x80 == 0 { magnitude } else { -magnitude }
}

#[test]
fn every_row_arrives_wherever_it_lies() {
    for (seed, d) in [64, 128, 192, 256, 80, 33, 1, 8, 9, 100, 255].into_iter().enumerate() {
        for (by_heads, gap) in [(false, 0), (true, 0), (false, 24)] {
            let shape = [2, 75, 3, d, d];
            Case { by_heads, gap, ..Case::new(shape, seed as u64) }.check();
        }
    }
    // Rows of V are wider, and blocks of both have other rows.
    Case::new([1, 130, 1, 24, 200], 3).check();
}

#[test]
fn pages_are_followed_and_those_that_are_none_are_zeros() {
    for (seed, size) in [1, 5, 8, 16, 64, 100].into_iter().enumerate() {
        let (b, max_pages) = (2, 60_usize.div_ceil(size).max(3));
        let sk = size * max_pages;
        let mut table: Vec<i32> = (0..(b * max_pages) as i32).rev().map(|page| 2 * page).collect();
        // The second sequence uses some keys, and its last pages are not looked up.
        let used = vec![sk as i32, (sk / 2) as i32];
        table[max_pages + (sk / 2).div_ceil(size)..].fill(i32::MAX);
        let right = Case {
            pages: Some((size, table.clone())),
            used: Some(used),
            ..Case::new([b, sk, 2, 72, 72], seed as u64)
        };
        right.check();
        for (wrong, page) in [-1, i32::MIN, i32::MAX, right.outer()[0] as i32].into_iter().enumerate() {
            table[wrong % max_pages] = page;
        }
        Case { pages: Some((size, table)), ..right }.check();
    }
}

#[test]
fn lengths_beyond_the_room_are_the_room_and_negative_ones_none() {
    for used in [[i32::MIN, i32::MAX], [-1, 76], [0, 1 << 30], [74, 1]] {
        let used = Some(used.to_vec());
        Case { used: used.clone(), ..Case::new([2, 75, 2, 64, 64], 1) }.check();
        let pages = Some((25, vec![5, 1, 0, 2, 9, 4]));
        Case { used, pages, ..Case::new([2, 75, 2, 40, 40], 2) }.check();
    }
}

#[test]
fn what_no_query_sees_stays_as_it_was() {
    // Sequences of five queries, none and one.
    let cu_seqlens_q = Some(vec![0, 5, 5, 6]);
    for window_left in [0, 3, 40, 1000, UNLIMITED] {
        let used = Some(vec![60, 75, 9]);
        let case =
            Case { cu_seqlens_q: cu_seqlens_q.clone(), window_left, ..Case::new([3, 75, 1, 64, 64], 4) };
        case.check();
        Case { used: used.clone(), ..case.clone() }.check();
        Case { used, block_n: 1, ..case }.check();
    }
}

#[test]
fn blocks_go_on_where_there_are_more_keys_than_they_take_at_a_time() {
    let rows = block_rows(32);
    for head_blocks in [1, 3] {
        let sk = 3 * rows as usize + 5;
        Case { head_blocks, ..Case::new([1, sk, 1, 256, 250], 5) }.check();
    }
}
