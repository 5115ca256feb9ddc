//! The kernel that writes new keys and values into a cache, in the simulator, beside plain loops.
//!
//! Angles are quarter turns, so that what is expected is exact in any type. All that is not named by lengths
//! and pages must keep its bits.
#![allow(clippy::unwrap_used)]

use fa_kernels::attention::append::{THREADS, append, pieces};
use fa_kernels::element::{Element, F16};
use fa_kernels::params::{AppendParams, AppendTensor, Pages, RotaryParams, Strides};
use fa_sim::{Buffer, Launch, Schedule, launch};
use half::f16;

/// A storage type, and its numbers.
trait Number: Element {
    type Bits: Copy + PartialEq + std::fmt::Debug + Send + Sync;
    const CANARY: Self::Bits;
    fn bits(value: f32) -> Self::Bits;
    fn negated(bits: Self::Bits) -> Self::Bits;
}

impl Number for F16 {
    type Bits = u16;
    const CANARY: u16 = 0x7e55;
    fn bits(value: f32) -> u16 {
        f16::from_f32(value).to_bits()
    }
    fn negated(bits: u16) -> u16 {
        bits ^ 0x8000
    }
}

impl Number for f32 {
    type Bits = u32;
    const CANARY: u32 = 0x7fc0_5555;
    fn bits(value: f32) -> u32 {
        value.to_bits()
    }
    fn negated(bits: u32) -> u32 {
        bits ^ 1 << 31
    }
}

/// A problem, and how its tensors lie.
#[derive(Clone, Copy, Debug)]
struct Case {
    new_rows: u32,
    heads: u32,
    columns: u32,
    columns_v: u32,
    /// Rows of a page.
    page_size: Option<u32>,
    /// Pages of a sequence, or rows where there are none.
    extent: u32,
    /// Whether heads lie outside of rows.
    by_heads: bool,
    rotary_dim: u32,
    interleaved: bool,
    /// Rows and heads of Q; whether they are in order; whether it is written in place.
    queries: Option<(u32, u32, bool, bool)>,
    /// Elements in front of each tensor.
    offset: usize,
}

const CASE: Case = Case {
    new_rows: 3,
    heads: 2,
    columns: 64,
    columns_v: 32,
    page_size: None,
    extent: 12,
    by_heads: false,
    rotary_dim: 32,
    interleaved: false,
    queries: Some((3, 4, true, false)),
    offset: 0,
};

impl Case {
    fn room(&self) -> u32 {
        self.extent * self.page_size.unwrap_or(1)
    }

    /// Strides of `rows` rows of so many columns, one element further apart than they need to be for an odd
    /// offset.
    fn strides(&self, rows: u32, heads: u32, columns: u32) -> Strides {
        let [rows, heads, columns] = [rows, heads, columns].map(u64::from);
        let columns = columns + self.offset as u64 % 2;
        let batch = rows * heads * columns;
        if self.by_heads {
            Strides { batch, row: columns, head: rows * columns }
        } else {
            Strides { batch, row: heads * columns, head: columns }
        }
    }
}

/// Sines and cosines of so many quarter turns.
fn quarter(turns: i64) -> (f32, f32) {
    let of = [(0.0, 1.0), (1.0, 0.0), (0.0, -1.0), (-1.0, 0.0)];
    of[turns.rem_euclid(4) as usize]
}

/// One run, and what is expected of it.
struct Run<N: Number> {
    case: Case,
    used: Vec<i32>,
    table: Vec<i32>,
    num_pages: u32,
    /// New K and V, their caches, Q and where it goes; in place where that is empty.
    tensors: [Vec<N::Bits>; 6],
}

impl<N: Number> Run<N> {
    fn new(case: Case, used: &[i32], table: &[i32], num_pages: u32) -> Self {
        let batch = used.len() as u32;
        let (outer, rows) = case.page_size.map_or((batch, case.extent), |page| (num_pages, page));
        let (q_rows, q_heads, _, in_place) = case.queries.unwrap_or((0, 1, false, true));
        let sizes = [
            (batch, case.new_rows, case.heads, case.columns),
            (batch, case.new_rows, case.heads, case.columns_v),
            (outer, rows, case.heads, case.columns),
            (outer, rows, case.heads, case.columns_v),
            (batch, q_rows, q_heads, case.columns),
            (batch, if in_place { 0 } else { q_rows }, q_heads, case.columns),
        ];
        let mut index = 0;
        let tensors = sizes.map(|(outer, rows, heads, columns)| {
            let is_read = matches!(index, 0 | 1 | 4);
            index += 1;
            let elements = outer as u64 * case.strides(rows, heads, columns).batch;
            let value = |i| if is_read { N::bits((1 + (i + index) % 1000) as f32) } else { N::CANARY };
            // Canaries behind the last.
            (0..elements as usize + case.offset).map(value).chain([N::CANARY; 9]).collect()
        });
        Self { case, used: used.to_vec(), table: table.to_vec(), num_pages, tensors }
    }

    /// Runs the kernel on the tensors.
    fn launch(&mut self, seed: u64) {
        let Self { case, used, table, num_pages, .. } = &*self;
        let (case, num_pages, batch) = (*case, *num_pages, used.len() as u32);
        let half = (case.rotary_dim / 2) as i64;
        let rows = case.room() as i64;
        let angles = |part: fn((f32, f32)) -> f32| -> Vec<N::Bits> {
            let of_row = |row| (0..half).map(move |pair| N::bits(part(quarter(row + pair))));
            (0..rows).flat_map(of_row).collect()
        };
        let (cos, sin) = (angles(|(_, cos)| cos), angles(|(sin, _)| sin));
        let (used, table) = (used.clone(), table.clone());
        let [k, v, k_cache, v_cache, q, q_out] = &mut self.tensors;
        let in_place = case.queries.is_none_or(|(_, _, _, in_place)| in_place);
        let buffers = [
            Buffer::read("k", k),
            Buffer::read("v", v),
            Buffer::read_write("k_cache", k_cache),
            Buffer::read_write("v_cache", v_cache),
            if in_place { Buffer::read_write("q", q) } else { Buffer::read("q", q) },
            Buffer::read_write("q_out", q_out),
            Buffer::read("seqused_k", &used),
            Buffer::read("page_table", &table),
            Buffer::read("cos", &cos),
            Buffer::read("sin", &sin),
        ];
        let first = |index: usize| buffers[index].address + N::BYTES * case.offset as u64;
        let cache_rows = case.page_size.unwrap_or(case.extent);
        let tensor = |[source, target]: [usize; 2], (rows, target_rows, heads, columns), rotary_dim| {
            let pieces = pieces(columns, rotary_dim, case.interleaved, N::BYTES as u32);
            AppendTensor {
                source: first(source),
                target: first(target),
                source_strides: case.strides(rows, heads, columns),
                target_strides: case.strides(target_rows, heads, columns),
                rows,
                heads,
                columns,
                pieces,
                sequence_blocks: (rows * heads).div_ceil(THREADS / pieces),
            }
        };
        let k = tensor([0, 2], (case.new_rows, cache_rows, case.heads, case.columns), case.rotary_dim);
        let v = tensor([1, 3], (case.new_rows, cache_rows, case.heads, case.columns_v), 0);
        let (q_rows, q_heads, in_order, _) = case.queries.unwrap_or((0, 1, false, true));
        let q_target = if in_place { 4 } else { 5 };
        let q = tensor([4, q_target], (q_rows, q_rows, q_heads, case.columns), case.rotary_dim);
        let mut end = 0;
        let ends = [k, v, q].map(|tensor| {
            end += batch * tensor.sequence_blocks;
            end
        });
        let params = AppendParams {
            k,
            v,
            q,
            ends,
            seqused_k: buffers[6].address,
            pages: case.page_size.map_or_else(Pages::default, |page_size| Pages {
                table: buffers[7].address,
                page_size,
                max_pages: case.extent,
            }),
            num_pages,
            seqlen_k: case.room(),
            rotary: RotaryParams {
                cos: buffers[8].address,
                sin: buffers[9].address,
                rows: rows as u32,
                dim: case.rotary_dim,
                interleaved: case.interleaved.into(),
                queries_in_order: in_order.into(),
            },
        };
        let config = Launch {
            name: "append",
            grid: ends[2],
            block: THREADS,
            shared_bytes: 0,
            schedule: Schedule::from_seed(seed),
            buffers: &buffers,
        };
        // SAFETY: the parameters describe the launch's buffers.
        launch(&config, &|| unsafe { append::<N>(&params) }).unwrap();
    }

    /// What the tensors are afterwards.
    fn expected(&self) -> [Vec<N::Bits>; 6] {
        let case = self.case;
        let mut tensors = self.tensors.clone();
        let cache_rows = case.page_size.unwrap_or(case.extent);
        let at = |strides: Strides, batch: u32, row: u32, head: u32| {
            let offset = batch as u64 * strides.batch + row as u64 * strides.row + head as u64 * strides.head;
            offset as usize + case.offset
        };
        for (batch, &used) in self.used.iter().enumerate() {
            for (row, head) in rows_and_heads(case.new_rows, case.heads) {
                let position = i64::from(used) + i64::from(row);
                let Some((outer, inner)) = self.place(batch, position) else { continue };
                for (tensor, columns) in [(0, case.columns), (1, case.columns_v)] {
                    let strides = case.strides(case.new_rows, case.heads, columns);
                    let from = &self.tensors[tensor][at(strides, batch as u32, row, head)..];
                    let mut values = from[..columns as usize].to_vec();
                    if tensor == 0 {
                        turn::<N>(&case, &mut values, position);
                    }
                    let strides = case.strides(cache_rows, case.heads, columns);
                    tensors[tensor + 2][at(strides, outer, inner, head)..][..columns as usize]
                        .copy_from_slice(&values);
                }
            }
            let Some((rows, heads, in_order, in_place)) = case.queries else { continue };
            let strides = case.strides(rows, heads, case.columns);
            for (row, head) in rows_and_heads(rows, heads) {
                let first = at(strides, batch as u32, row, head);
                let mut values = self.tensors[4][first..][..case.columns as usize].to_vec();
                let position = i64::from(used) + if in_order { i64::from(row) } else { 0 };
                turn::<N>(&case, &mut values, position.clamp(0, i64::from(case.room()) - 1));
                let target = if in_place { 4 } else { 5 };
                tensors[target][first..][..case.columns as usize].copy_from_slice(&values);
            }
        }
        tensors
    }

    /// Where a position of a sequence is in the cache, if it is one.
    fn place(&self, batch: usize, position: i64) -> Option<(u32, u32)> {
        let position = u32::try_from(position).ok().filter(|&position| position < self.case.room())?;
        let Some(page_size) = self.case.page_size else { return Some((batch as u32, position)) };
        let page = self.table[batch * self.case.extent as usize + (position / page_size) as usize];
        let page = u32::try_from(page).ok().filter(|&page| page < self.num_pages)?;
        Some((page, position % page_size))
    }

    fn check(case: Case, used: &[i32], table: &[i32], num_pages: u32) {
        let before = Self::new(case, used, table, num_pages);
        let expected = before.expected();
        for seed in 0..2 {
            let mut run = Self {
                used: before.used.clone(),
                table: before.table.clone(),
                tensors: before.tensors.clone(),
                ..before
            };
            run.launch(seed);
            for (tensor, (found, expected)) in run.tensors.iter().zip(&expected).enumerate() {
                let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
                assert_eq!(wrong, None, "tensor {tensor} of {case:?}, used {used:?}, table {table:?}");
            }
        }
    }
}

fn rows_and_heads(rows: u32, heads: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..rows).flat_map(move |row| (0..heads).map(move |head| (row, head)))
}

/// Turns the pairs of a head at a position.
fn turn<N: Number>(case: &Case, values: &mut [N::Bits], position: i64) {
    let half = case.rotary_dim as usize / 2;
    for pair in 0..half {
        let (first, second) = if case.interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
        let (a, b) = (values[first], values[second]);
        (values[first], values[second]) = match (position + pair as i64).rem_euclid(4) {
            0 => (a, b),
            1 => (N::negated(b), a),
            2 => (N::negated(a), N::negated(b)),
            _ => (b, N::negated(a)),
        };
    }
}

const CASES: [Case; 9] = [
    CASE,
    Case { interleaved: true, rotary_dim: 64, ..CASE },
    Case { rotary_dim: 0, queries: None, by_heads: true, ..CASE },
    // Rows at no multiple of 16 bytes, and parts of 16 bytes at the ends of what is turned.
    Case { offset: 1, columns: 21, columns_v: 33, rotary_dim: 14, ..CASE },
    Case { offset: 3, columns: 20, rotary_dim: 20, interleaved: true, ..CASE },
    // Aligned rows with ends.
    Case { columns: 72, columns_v: 8, rotary_dim: 20, ..CASE },
    // Queries at one position, in place; heads outside of rows.
    Case { queries: Some((5, 3, false, true)), by_heads: true, ..CASE },
    Case { interleaved: true, queries: Some((2, 1, true, true)), offset: 8, ..CASE },
    // Heads that fill more than a block.
    Case { new_rows: 9, heads: 5, columns: 256, columns_v: 128, extent: 30, ..CASE },
];

#[test]
fn rows_go_behind_those_that_are_used() {
    for case in CASES {
        Run::<F16>::check(case, &[0, 7, 3], &[], 0);
        Run::<f32>::check(case, &[2, 9], &[], 0);
    }
}

#[test]
fn rows_go_where_the_pages_are() {
    for (index, case) in CASES.into_iter().enumerate() {
        let page_size = [1, 2, 5, 16][index % 4];
        let extent = 12_u32.div_ceil(page_size).max(2);
        let case = Case { page_size: Some(page_size), extent, new_rows: 3, ..case };
        // In reverse, with a page in front that no sequence has.
        let table: Vec<i32> = (1..=2 * extent as i32).rev().collect();
        Run::<F16>::check(case, &[page_size as i32 - 1, 2], &table, 2 * extent + 1);
        Run::<f32>::check(case, &[1, 0], &table, 2 * extent + 1);
    }
}

/// Lengths and pages on the device are the caller's promise, but what breaks it writes nothing elsewhere.
#[test]
fn lengths_and_pages_that_are_none_write_only_what_there_is_room_for() {
    let wrong = [-1, -2, i32::MIN, i32::MAX, i32::MAX - 1, 11, 12, 13, 1 << 20];
    for case in [CASE, CASES[3], CASES[7]] {
        Run::<F16>::check(case, &wrong, &[], 0);
        let case = Case { page_size: Some(4), extent: 3, ..case };
        let table: Vec<i32> = (0..3 * wrong.len() as i32).collect();
        Run::<F16>::check(case, &wrong, &table, 3 * wrong.len() as u32);
        let pages = [-1, i32::MIN, 6, i32::MAX, 1, 2, 0, 5, 1 << 30];
        Run::<F16>::check(case, &[0, 2, 3], &pages, 6);
    }
}
