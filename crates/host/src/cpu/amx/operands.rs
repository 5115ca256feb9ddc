//! Q, K and V as bf16 in whole tiles.

use half::bf16;

use super::kernels::TileKernels;
use super::product::{Operand, STEP, TILE_BYTES, TILE_ROW_BYTES, TILE_ROWS};
use crate::cpu::pack::{Columns, Source};
use crate::{DType, Problem, TensorLayout};

/// Sizes that the tiles of a problem have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// bf16 numbers whose sum an element is: 1, or 2 for fp16. Those have 11 bits of significand for 8, and
    /// what the nearest bf16 leaves of them is at most four bits, within bf16's range.
    pub(super) parts: usize,
    /// head_dim of Q and K, rounded up to whole steps.
    pub(super) head_dim: usize,
    /// That of V and O, rounded up to whole blocks.
    pub(super) head_dim_v: usize,
}

impl Layout {
    pub(super) fn new(problem: &Problem) -> Self {
        Self {
            parts: if problem.dtype() == DType::F16 { 2 } else { 1 },
            head_dim: problem.head_dim().next_multiple_of(STEP),
            head_dim_v: problem.head_dim_v().next_multiple_of(STEP),
        }
    }

    /// Which parts of K and Q are multiplied: all, as the log-sum-exp shows each bit of a score.
    pub(super) const fn parts_of_scores(&self) -> &'static [(usize, usize)] {
        if self.parts == 1 { &[(0, 0)] } else { &[(1, 1), (0, 1), (1, 0), (0, 0)] }
    }

    /// Which parts of V and P are multiplied: all but both lower ones, whose product is at most 2⁻¹⁶ of the
    /// whole, a 32nd of what rounding O to fp16 costs.
    pub(super) const fn parts_of_values(&self) -> &'static [(usize, usize)] {
        if self.parts == 1 { &[(0, 0)] } else { &[(0, 1), (1, 0), (0, 0)] }
    }

    /// Bytes of K for one step of keys of one head.
    const fn k_step(&self) -> usize {
        self.parts * self.head_dim * STEP * 2
    }

    /// Bytes of V likewise.
    const fn v_step(&self) -> usize {
        self.parts * self.head_dim_v * STEP * 2
    }

    /// fp32 elements that K and V of all heads take.
    pub(super) fn elements(&self, problem: &Problem) -> u128 {
        let steps: u128 = (0..problem.batch()).map(|batch| steps(problem, batch) as u128).sum();
        steps * problem.kv_heads() as u128 * (self.k_step() + self.v_step()) as u128 / 4
    }

    /// Qᵀ in tiles, one panel of which `data` holds.
    pub(super) fn queries(&self, data: *const f32) -> Operand {
        let part = self.head_dim / STEP * TILE_BYTES;
        Operand { data: data.cast(), row: TILE_ROW_BYTES, tile: self.parts * part, step: TILE_BYTES, part }
    }
}

/// Steps of keys that a sequence has.
fn steps(problem: &Problem, batch: usize) -> usize {
    problem.key_rows(batch).len().div_ceil(STEP)
}

/// The keys of all heads in parts that threads pack at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunks {
    kv_heads: usize,
    heads: usize,
    per_head: usize,
}

/// Keys of one head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    batch: usize,
    kv_head: usize,
    /// The first of the keys, at most [`Chunks::KEYS`].
    first: usize,
}

impl Chunks {
    const KEYS: usize = 4 * STEP;

    pub(super) fn new(problem: &Problem) -> Self {
        Self {
            kv_heads: problem.kv_heads(),
            heads: problem.batch() * problem.kv_heads(),
            per_head: problem.seqlen_k().div_ceil(Self::KEYS),
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.heads * self.per_head
    }

    pub(super) const fn get(&self, index: usize) -> Chunk {
        let head = index / self.per_head;
        let first = index % self.per_head * Self::KEYS;
        Chunk { batch: head / self.kv_heads, kv_head: head % self.kv_heads, first }
    }
}

/// K and V of all heads in tiles. Each head has K of all steps of keys, [2 tiles of keys][parts][head_dim in
/// steps], then V of all, [parts][head_dim_v in tiles]. Rows of a tile of V are columns of V.
pub(super) struct Keys<'a> {
    problem: &'a Problem,
    layout: Layout,
    data: *mut u8,
    /// Steps of keys of one head before those of each sequence.
    before: Vec<usize>,
}

// SAFETY: threads write disjoint chunks, and read only after all are written.
unsafe impl Sync for Keys<'_> {}

impl<'a> Keys<'a> {
    /// `data` has room for [`Layout::elements`].
    pub(super) fn new(problem: &'a Problem, layout: Layout, data: *mut u8) -> Self {
        let mut total = 0;
        let before = (0..problem.batch()).map(|batch| {
            let before = total;
            total += steps(problem, batch);
            before
        });
        Self { problem, layout, data, before: before.collect() }
    }

    pub(super) const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Addresses of K and of V of a step of keys.
    fn at(&self, batch: usize, kv_head: usize, step: usize) -> [*mut u8; 2] {
        let (k_step, v_step) = (self.layout.k_step(), self.layout.v_step());
        let steps = steps(self.problem, batch);
        let head = self.before[batch] * self.problem.kv_heads() + kv_head * steps;
        let k = self.data.wrapping_add(head * (k_step + v_step));
        [k.wrapping_add(step * k_step), k.wrapping_add(steps * k_step + step * v_step)]
    }

    /// K and Vᵀ of a sequence's head from a step of keys on, as left operands.
    pub(super) fn operands(&self, batch: usize, kv_head: usize, step: usize) -> [Operand; 2] {
        let [k, v] = self.at(batch, kv_head, step);
        let of_k = self.layout.head_dim / STEP * TILE_BYTES;
        let of_v = self.layout.head_dim_v / TILE_ROWS * TILE_BYTES;
        let (row, parts) = (TILE_ROW_BYTES, self.layout.parts);
        [
            Operand { data: k, row, tile: parts * of_k, step: TILE_BYTES, part: of_k },
            Operand { data: v, row, tile: TILE_BYTES, step: self.layout.v_step(), part: of_v },
        ]
    }

    /// Writes the tiles of a chunk.
    ///
    /// # Safety
    /// The CPU has the instruction sets; `memory` has room for [`Layout::row_elements`]; nobody else writes
    /// the chunk's tiles or reads them.
    pub(super) unsafe fn pack(
        &self,
        chunk: Chunk,
        [k, v]: [Source; 2],
        kernels: &TileKernels,
        memory: *mut f32,
    ) {
        let Chunk { batch, kv_head, first } = chunk;
        let (problem, tensors) = (self.problem, self.problem.tensors());
        let keys = problem.key_rows(batch).len();
        let rows = self.layout.rows(memory);
        for key in (first..keys.min(first + Chunks::KEYS)).step_by(STEP) {
            let row = |layout: &TensorLayout, index: usize| {
                let key = Some(key + index).filter(|key| *key < keys)?;
                Some(problem.key_index(layout, batch, key, kv_head))
            };
            let [k_tiles, v_tiles] = self.at(batch, kv_head, key / STEP);
            // SAFETY: the step is one of the head's, whose tiles nobody else uses; the scratch memory has
            // room.
            unsafe {
                rows.pack_k(k, |index| row(&tensors.k, index), tensors.k.head_dim, k_tiles);
                rows.pack_v(v, |index| row(&tensors.v, index), tensors.v.head_dim, kernels, v_tiles);
            }
        }
    }
}

/// Rows on their way between tensors and tiles, in scratch memory.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    layout: Layout,
    /// 16 rows of as many words as a row has numbers, padding and parts included.
    words: *mut u32,
    /// Two rows of bf16: [parts][columns, padded].
    halves: *mut u16,
    /// A row of fp32.
    wide: *mut f32,
}

impl Layout {
    /// fp32 elements of scratch memory for [`Rows`].
    pub(super) fn row_elements(&self) -> usize {
        let padded = self.head_dim.max(self.head_dim_v);
        (TILE_ROWS + 1) * self.parts * padded + padded
    }

    /// [`Rows`] in `memory`, which has room for [`Self::row_elements`].
    pub(super) fn rows(&self, memory: *mut f32) -> Rows {
        let row = self.parts * self.head_dim.max(self.head_dim_v);
        let halves = memory.wrapping_add(TILE_ROWS * row);
        Rows { layout: *self, words: memory.cast(), halves: halves.cast(), wide: halves.wrapping_add(row) }
    }
}

impl Rows {
    /// Writes the tiles whose rows are 32 rows of K, each of which begins where `at` says; others are 0.
    ///
    /// # Safety
    /// `to` is writable for a step of K, and the scratch memory is nobody else's.
    unsafe fn pack_k(self, k: Source, at: impl Fn(usize) -> Option<usize>, columns: usize, to: *mut u8) {
        let Layout { parts, head_dim, .. } = self.layout;
        for index in 0..STEP {
            // SAFETY: a step of K is two tiles of 16 rows for each part and 32 columns.
            unsafe {
                self.split(k, at(index), (columns, head_dim), self.halves);
                let row = to.add(index / TILE_ROWS * parts * (head_dim / STEP) * TILE_BYTES);
                let row = row.add(index % TILE_ROWS * TILE_ROW_BYTES);
                for tile in 0..parts * head_dim / STEP {
                    let from = self.halves.add(tile * STEP).cast::<u8>();
                    row.add(tile * TILE_BYTES).copy_from_nonoverlapping(from, TILE_ROW_BYTES);
                }
            }
        }
    }

    /// Writes the tiles whose rows are columns of 32 rows of V: the pairs that two rows make are transposed.
    ///
    /// # Safety
    /// `to` is writable for a step of V, the scratch memory is nobody else's, and the CPU has the instruction
    /// sets.
    unsafe fn pack_v(
        self,
        v: Source,
        at: impl Fn(usize) -> Option<usize>,
        columns: usize,
        kernels: &TileKernels,
        to: *mut u8,
    ) {
        let Layout { parts, head_dim_v, .. } = self.layout;
        let row = parts * head_dim_v;
        // SAFETY: the scratch memory has 16 rows of words and two rows of numbers; a step of V is a tile for
        // each part and 16 columns.
        unsafe {
            for pair in 0..TILE_ROWS {
                let (lower, upper) = (self.halves, self.halves.add(row));
                self.split(v, at(2 * pair), (columns, head_dim_v), lower);
                self.split(v, at(2 * pair + 1), (columns, head_dim_v), upper);
                for column in 0..row {
                    let word = u32::from(*lower.add(column)) | u32::from(*upper.add(column)) << 16;
                    self.words.add(pair * row + column).write(word);
                }
            }
            self.transpose(row, kernels, to);
        }
    }

    /// Writes Qᵀ of 16 columns in tiles, whose rows are pairs along head_dim; columns past the last are 0.
    ///
    /// # Safety
    /// `to` is writable for [parts][head_dim in steps] tiles, the scratch memory is nobody else's, and the
    /// CPU has the instruction sets.
    pub(super) unsafe fn pack_queries(
        self,
        problem: &Problem,
        q: Source,
        columns: Columns,
        kernels: &TileKernels,
        to: *mut u8,
    ) {
        let Layout { parts, head_dim, .. } = self.layout;
        let row = parts * head_dim / 2;
        // SAFETY: the scratch memory has 16 rows of more words than those.
        unsafe {
            for index in 0..TILE_ROWS {
                let column = Some(columns.first + index).filter(|column| *column < columns.end);
                let at = column.map(|column| {
                    let (head, seq) = columns.query(problem, column);
                    problem.query_index(&problem.tensors().q, columns.batch, seq, head)
                });
                let to = self.words.add(index * row).cast();
                self.split(q, at, (problem.head_dim(), head_dim), to);
            }
            self.transpose(row, kernels, to);
        }
    }

    /// Writes 16 rows of words as tiles, each of which is transposed.
    ///
    /// # Safety
    /// The words are written; `to` is writable for as many; the CPU has the instruction sets.
    unsafe fn transpose(self, row: usize, kernels: &TileKernels, to: *mut u8) {
        for tile in 0..row / TILE_ROWS {
            // SAFETY: the tile is one of the rows', and of those at `to`.
            unsafe {
                let (from, to) = (self.words.add(tile * TILE_ROWS), to.add(tile * TILE_BYTES));
                (kernels.transpose)(from, row, to.cast(), TILE_ROWS);
            }
        }
    }

    /// Reads the rows of O of 16 queries, which are columns of Oᵀ [head_dim_v, width] from `from` on.
    ///
    /// # Safety
    /// `from` is readable for 16 elements of each row, the scratch memory is nobody else's, and the CPU has
    /// the instruction sets.
    pub(super) unsafe fn unpack_results(self, from: *const f32, width: usize, kernels: &TileKernels) {
        let row = self.layout.head_dim_v;
        for tile in 0..row / TILE_ROWS {
            // SAFETY: head_dim_v is whole tiles, and the scratch memory has 16 rows of as many words.
            unsafe {
                let from = from.add(tile * TILE_ROWS * width).cast();
                (kernels.transpose)(from, width, self.words.add(tile * TILE_ROWS), row);
            }
        }
    }

    /// One of the rows that [`Self::unpack_results`] has read, without its padding.
    ///
    /// # Safety
    /// The row is one of 16, and the scratch memory is nobody else's while the slice lives.
    pub(super) unsafe fn unpacked<'row>(self, index: usize, columns: usize) -> &'row mut [f32] {
        // SAFETY: the 16 rows are written, and have at least so many columns.
        unsafe {
            std::slice::from_raw_parts_mut(self.words.add(index * self.layout.head_dim_v).cast(), columns)
        }
    }

    /// Writes a row of `columns` elements, or of zeros, as [parts][padded] bf16 numbers.
    ///
    /// # Safety
    /// `to` is writable for that, and the row of fp32 is nobody else's.
    unsafe fn split(
        self,
        source: Source,
        at: Option<usize>,
        (columns, padded): (usize, usize),
        to: *mut u16,
    ) {
        let row = self.layout.parts * padded;
        // SAFETY: the caller vouches for the parts, which are written before there is a slice of them.
        let to = unsafe {
            to.write_bytes(0, row);
            std::slice::from_raw_parts_mut(to, row)
        };
        let Some(at) = at else { return };
        if let Source::Bf16(data) = source {
            for (to, from) in to.iter_mut().zip(&data[at..at + columns]) {
                *to = from.to_bits();
            }
            return;
        }
        // SAFETY: the row of fp32 has room for any row, and is nobody else's.
        let wide = unsafe {
            self.wide.write_bytes(0, columns);
            std::slice::from_raw_parts_mut(self.wide, columns)
        };
        source.widen(at, wide);
        let (upper, lower) = to.split_at_mut(padded);
        for ((upper, lower), value) in upper.iter_mut().zip(lower).zip(&*wide) {
            let nearest = bf16::from_f32(*value);
            *upper = nearest.to_bits();
            *lower = bf16::from_f32(value - nearest.to_f32()).to_bits();
        }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    #[test]
    fn two_bf16_numbers_hold_each_finite_fp16() {
        for value in (0..=u16::MAX).map(f16::from_bits).filter(|value| value.is_finite()) {
            let value = value.to_f32();
            let upper = bf16::from_f32(value).to_f32();
            let lower = bf16::from_f32(value - upper).to_f32();
            assert!(upper + lower == value && (lower == 0.0 || lower.is_normal()), "{value:e}");
        }
    }
}
