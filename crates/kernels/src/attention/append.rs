//! New keys and values into a K/V cache, behind those that each sequence has, and rotary embeddings.
//!
//! The cache is contiguous or paged, as that of [`decode`](super::decode). A thread has 16 bytes of one head
//! of one row, and where pairs of columns lie apart, 16 bytes of either part: so Q can be rotated in place.
//! Where they begin at no multiple of 16 bytes, it takes them element by element. Rotations are in fp32.
//!
//! Lengths and pages are the caller's promise. Rows for which they name no place in the cache are dropped.

use core::hint::assert_unchecked;

use crate::element::Element;
use crate::params::{AppendParams, AppendTensor, RotaryParams};
use crate::ptx::{global, index, math};

/// Threads of a block.
pub const THREADS: u32 = 256;

/// Blocks that the registers leave room for on a multiprocessor.
pub const MIN_BLOCKS: u32 = 4;

/// The most columns of a head: in any type its pieces are no more than the threads.
pub const MAX_COLUMNS: u32 = 768;

/// Bytes of a load.
const CHUNK: u32 = 16;

/// The most elements of a load, of the smallest type that there is.
const MAX_ELEMENTS: usize = 8;

/// Threads of a head of `columns` columns, of which the first `rotary_dim` are turned in pairs.
#[inline]
pub const fn pieces(columns: u32, rotary_dim: u32, interleaved: bool, element_bytes: u32) -> u32 {
    let elements = CHUNK / element_bytes;
    pair_columns(rotary_dim, interleaved).div_ceil(elements)
        + columns.saturating_sub(rotary_dim).div_ceil(elements)
}

/// Columns that the pieces of pairs go through: all of them, or the first of each pair.
#[inline]
const fn pair_columns(rotary_dim: u32, interleaved: bool) -> u32 {
    if interleaved { rotary_dim } else { rotary_dim / 2 }
}

/// Writes new K and V to the cache, those of K rotated, and rotates Q.
///
/// Launch: the last of `params.ends` blocks of [`THREADS`] threads, without shared memory.
///
/// # Safety
/// `params` describes valid device memory; what is written overlaps nothing else, but that Q may be its own
/// target. Lengths and pages may be anything.
#[inline(always)]
pub unsafe fn append<E: Element>(params: &AppendParams) {
    let block = index::block();
    let [k_end, v_end, _] = params.ends;
    // SAFETY: each block is of one tensor, whose memory is valid.
    unsafe {
        if block < k_end {
            append_rows::<E>(params, &params.k, block, params.rotary.dim);
        } else if block < v_end {
            append_rows::<E>(params, &params.v, block - k_end, 0);
        } else {
            rotate_queries::<E>(params, block - v_end);
        }
    }
}

/// Writes the rows of a block to their cache.
///
/// # Safety
/// As [`append`].
#[inline(always)]
unsafe fn append_rows<E: Element>(params: &AppendParams, tensor: &AppendTensor, block: u32, rotary_dim: u32) {
    // SAFETY: a tensor with a block has no empty axis.
    let place = unsafe { Place::of_thread(tensor, block) };
    if !place.exists {
        return;
    }
    // SAFETY: the length of a sequence that exists is readable.
    let position = unsafe { place.position(params) };
    if position < 0 || position >= params.seqlen_k as i64 {
        return;
    }
    let position = position as u32;
    let (mut sequence, mut row) = (place.batch, position);
    if params.pages.table != 0 {
        // SAFETY: the position is one that the sequence's entries reach.
        (sequence, row) =
            unsafe { params.pages.locate(params.pages.of_sequence(place.batch), position, true) };
        // As unsigned numbers, negative ones are too large as well.
        if sequence >= params.num_pages {
            return;
        }
    }
    let target = tensor.target + E::BYTES * tensor.target_strides.offset(sequence, row, place.head);
    let head = Head { source: place.source::<E>(tensor), target, columns: tensor.columns };
    // SAFETY: the row is inside of the cache, and no other thread has this piece.
    unsafe { head.write::<E>(place.piece, &Rotation::at::<E>(&params.rotary, rotary_dim, position as i64)) };
}

/// Rotates the queries of a block.
///
/// # Safety
/// As [`append`].
#[inline(always)]
unsafe fn rotate_queries<E: Element>(params: &AppendParams, block: u32) {
    let tensor = &params.q;
    // SAFETY: a tensor with a block has no empty axis.
    let place = unsafe { Place::of_thread(tensor, block) };
    if !place.exists {
        return;
    }
    let at = Place { row: if params.rotary.queries_in_order == 1 { place.row } else { 0 }, ..place };
    let target = tensor.target + E::BYTES * tensor.target_strides.offset(place.batch, place.row, place.head);
    let head = Head { source: place.source::<E>(tensor), target, columns: tensor.columns };
    // SAFETY: the length of a sequence that exists is readable; the head is inside of the target, and no
    // other thread has this piece.
    unsafe {
        let rotation = Rotation::at::<E>(&params.rotary, params.rotary.dim, at.position(params));
        head.write::<E>(place.piece, &rotation);
    }
}

/// What a thread has: a piece of a head of a row.
#[derive(Clone, Copy)]
struct Place {
    exists: bool,
    batch: u32,
    row: u32,
    head: u32,
    piece: u32,
}

impl Place {
    /// That of this thread in a tensor's block `block`.
    ///
    /// # Safety
    /// No axis of the tensor is empty.
    #[inline(always)]
    unsafe fn of_thread(tensor: &AppendTensor, block: u32) -> Self {
        let &AppendTensor { rows, heads, pieces, sequence_blocks, .. } = tensor;
        // SAFETY: the caller's tensor has blocks, heads and pieces.
        unsafe { assert_unchecked(sequence_blocks > 0 && heads > 0 && pieces > 0 && pieces <= THREADS) };
        let (of_block, piece) = (index::thread() / pieces, index::thread() % pieces);
        let heads_per_block = THREADS / pieces;
        let first = (block % sequence_blocks) as u64 * heads_per_block as u64;
        let index = first + of_block as u64;
        // The planner bounds heads of a sequence, so that this keeps its value.
        let exists = of_block < heads_per_block && index < rows as u64 * heads as u64;
        let index = index as u32;
        Self { exists, batch: block / sequence_blocks, row: index / heads, head: index % heads, piece }
    }

    /// Where the row's head begins.
    #[inline(always)]
    fn source<E: Element>(&self, tensor: &AppendTensor) -> u64 {
        tensor.source + E::BYTES * tensor.source_strides.offset(self.batch, self.row, self.head)
    }

    /// The row's position in its sequence, which is one of its cache if the length is right.
    ///
    /// # Safety
    /// The lengths of all sequences are readable.
    #[inline(always)]
    unsafe fn position(&self, params: &AppendParams) -> i64 {
        // SAFETY: the sequence is one of those.
        let used = unsafe { global::load_b32_if(true, params.seqused_k + 4 * self.batch as u64) };
        used as i32 as i64 + self.row as i64
    }
}

/// The angles of a position.
struct Rotation {
    /// Columns that are turned.
    dim: u32,
    interleaved: bool,
    /// First cosine of the position.
    cos: u64,
    sin: u64,
}

impl Rotation {
    #[inline(always)]
    fn at<E: Element>(rotary: &RotaryParams, dim: u32, position: i64) -> Self {
        let row = position.clamp(0, rotary.rows.saturating_sub(1) as i64) as u64;
        let offset = E::BYTES * row * (dim / 2) as u64;
        let interleaved = rotary.interleaved == 1;
        Self { dim, interleaved, cos: rotary.cos + offset, sin: rotary.sin + offset }
    }
}

/// A head of a row: where it is read and written.
struct Head {
    source: u64,
    target: u64,
    columns: u32,
}

impl Head {
    /// Writes one piece: pairs of columns that are turned, or columns behind those as they are.
    ///
    /// # Safety
    /// The columns are readable and writable, and no other thread accesses those of the piece; the angles of
    /// all pairs are readable.
    #[inline(always)]
    unsafe fn write<E: Element>(&self, piece: u32, rotation: &Rotation) {
        let elements = CHUNK / E::BYTES as u32;
        let pairs = pair_columns(rotation.dim, rotation.interleaved);
        let of_pairs = pairs.div_ceil(elements);
        // SAFETY: the columns of the piece exist, as do the angles of its pairs.
        unsafe {
            if piece >= of_pairs {
                let first = rotation.dim + (piece - of_pairs) * elements;
                self.copy::<E>(first, self.columns.saturating_sub(first).min(elements));
                return;
            }
            let first = piece * elements;
            let count = (pairs - first).min(elements);
            if rotation.interleaved {
                self.turn_neighbours::<E>(first, count, rotation);
            } else {
                self.turn_halves::<E>(first, count, rotation);
            }
        }
    }

    /// Byte addresses of a column, where it is read and written.
    #[inline(always)]
    fn column<E: Element>(&self, column: u32) -> (u64, u64) {
        let offset = E::BYTES * column as u64;
        (self.source + offset, self.target + offset)
    }

    /// Copies `count` columns bit by bit.
    ///
    /// # Safety
    /// As [`Self::write`].
    #[inline(always)]
    unsafe fn copy<E: Element>(&self, first: u32, count: u32) {
        let (from, to) = self.column::<E>(first);
        // SAFETY: the columns exist; 16 bytes are taken at multiples of 16 alone.
        unsafe {
            if is_chunk::<E>(count, from | to) {
                global::store4(to, global::load4_if(true, from));
                return;
            }
            let mut i = 0;
            while i < count as u64 {
                E::copy_bits(from + E::BYTES * i, to + E::BYTES * i);
                i += 1;
            }
        }
    }

    /// Turns pairs whose second column is half of the rotated ones behind the first: `count` of them from
    /// column `first` on.
    ///
    /// # Safety
    /// As [`Self::write`].
    #[inline(always)]
    unsafe fn turn_halves<E: Element>(&self, first: u32, count: u32, rotation: &Rotation) {
        let (from, to) = self.column::<E>(first);
        let half = E::BYTES * (rotation.dim / 2) as u64;
        let angle = E::BYTES * first as u64;
        let (cos, sin) = (rotation.cos + angle, rotation.sin + angle);
        // SAFETY: both columns of each pair exist, and its angle; 16 bytes come at multiples of 16 alone.
        unsafe {
            if is_chunk::<E>(count, from | to | half) {
                let elements = CHUNK as usize / E::BYTES as usize;
                let (a, b) = (global::load4_if(true, from), global::load4_if(true, from + half));
                let (cos, sin) = (angles::<E>(cos, elements), angles::<E>(sin, elements));
                let mut turned = [[0.0; MAX_ELEMENTS]; 2];
                let mut i = 0;
                while i < elements {
                    let pair = turn([E::unpack(&a, i), E::unpack(&b, i)], cos[i], sin[i]);
                    (turned[0][i], turned[1][i]) = (pair[0], pair[1]);
                    i += 1;
                }
                global::store4(to, E::pack_chunk(&turned[0]));
                global::store4(to + half, E::pack_chunk(&turned[1]));
                return;
            }
            let mut i = 0;
            while i < count as u64 {
                let offset = E::BYTES * i;
                let pair = [E::load(from + offset), E::load(from + half + offset)];
                let [a, b] = turn(pair, E::load(cos + offset), E::load(sin + offset));
                E::store(to + offset, a);
                E::store(to + half + offset, b);
                i += 1;
            }
        }
    }

    /// Turns pairs of neighbours: `count` columns from `first` on, both even.
    ///
    /// # Safety
    /// As [`Self::write`].
    #[inline(always)]
    unsafe fn turn_neighbours<E: Element>(&self, first: u32, count: u32, rotation: &Rotation) {
        let (from, to) = self.column::<E>(first);
        let angle = E::BYTES * (first / 2) as u64;
        let (cos, sin) = (rotation.cos + angle, rotation.sin + angle);
        // SAFETY: both columns of each pair exist, and its angle; 16 bytes come at multiples of 16 alone.
        unsafe {
            if is_chunk::<E>(count, from | to) {
                let pairs = CHUNK as usize / E::BYTES as usize / 2;
                let chunk = global::load4_if(true, from);
                let (cos, sin) = (angles::<E>(cos, pairs), angles::<E>(sin, pairs));
                let mut turned = [0.0; MAX_ELEMENTS];
                let mut i = 0;
                while i < pairs {
                    let pair = [E::unpack(&chunk, 2 * i), E::unpack(&chunk, 2 * i + 1)];
                    let pair = turn(pair, cos[i], sin[i]);
                    (turned[2 * i], turned[2 * i + 1]) = (pair[0], pair[1]);
                    i += 1;
                }
                global::store4(to, E::pack_chunk(&turned));
                return;
            }
            let mut i = 0;
            while i < (count / 2) as u64 {
                let (offset, angle) = (2 * E::BYTES * i, E::BYTES * i);
                let pair = [E::load(from + offset), E::load(from + offset + E::BYTES)];
                let [a, b] = turn(pair, E::load(cos + angle), E::load(sin + angle));
                E::store(to + offset, a);
                E::store(to + offset + E::BYTES, b);
                i += 1;
            }
        }
    }
}

/// Whether so many elements are 16 bytes, and addresses with these bits multiples of 16.
#[inline(always)]
fn is_chunk<E: Element>(count: u32, addresses: u64) -> bool {
    count == CHUNK / E::BYTES as u32 && addresses.is_multiple_of(CHUNK as u64)
}

/// The first `count` cosines or sines at an address, in fp32.
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn angles<E: Element>(address: u64, count: usize) -> [f32; MAX_ELEMENTS] {
    let mut angles = [0.0; MAX_ELEMENTS];
    // SAFETY: the elements are readable; 16 bytes are taken at multiples of 16 alone.
    unsafe {
        if is_chunk::<E>(count as u32, address) {
            let chunk = global::load4_if(true, address);
            let mut i = 0;
            while i < count {
                angles[i] = E::unpack(&chunk, i);
                i += 1;
            }
        } else {
            let mut i = 0;
            while i < count {
                angles[i] = E::load(address + E::BYTES * i as u64);
                i += 1;
            }
        }
    }
    angles
}

/// A pair, turned by an angle.
#[inline(always)]
fn turn([a, b]: [f32; 2], cos: f32, sin: f32) -> [f32; 2] {
    [math::fma(a, cos, -(b * sin)), math::fma(a, sin, b * cos)]
}
