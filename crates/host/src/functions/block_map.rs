//! Maps of what blocks of queries see of blocks of keys, made on the host.

use std::ops::Range;
use std::sync::Arc;

use fa_kernels::config::Sm90Config;
use fa_kernels::functions::{self, Position, Queries, Visible};
use fa_kernels::mask::KeyRange;
use fa_kernels::params::{FunctionData, MAX_FUNCTION_VALUES};

use super::Functions;
use crate::{Error, Result};

/// Which blocks of keys each block of queries sees: FlexAttention's `BlockMask`, for a
/// [`MaskMod::block`](functions::MaskMod::block) that reads it from a tensor.
///
/// Its axes are \[batch, heads, blocks of queries, blocks of keys\]; a batch, or heads, of 1 stands for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockMap {
    shape: [usize; 4],
    block: [usize; 2],
    words: Arc<[u32]>,
}

/// Steps that are looked at to tell how many are computed.
const MOST_STEPS: usize = 1 << 20;

/// The most queries, or keys, of a block.
const LARGEST: usize = 1 << 16;

impl BlockMap {
    /// A map of blocks of \[queries, keys\], of which `visible` tells what is seen of each
    /// \[batch, head, block of queries, block of keys\].
    ///
    /// # Errors
    /// When a block is no power of two from [`functions::BlockMap::SMALLEST`] to 2^16, an axis is empty, or
    /// the map is too long for a tensor that functions read.
    pub fn new(
        shape: [usize; 4],
        block: [usize; 2],
        mut visible: impl FnMut([usize; 4]) -> Visible,
    ) -> Result<Self> {
        let refuse = |reason: String| Err(Error::BlockMap { reason });
        let smallest = functions::BlockMap::SMALLEST as usize;
        for (len, axis) in block.into_iter().zip(["queries", "keys"]) {
            if !len.is_power_of_two() || !(smallest..=LARGEST).contains(&len) {
                return refuse(format!(
                    "blocks of {len} {axis}; a power of two from {smallest} to {LARGEST} is needed"
                ));
            }
        }
        let (len, of_row) = functions::BlockMap::words(shape.map(|axis| axis as u64));
        let (Some(len), false) = (u32::try_from(len).ok(), shape.contains(&0)) else {
            return refuse(format!("of {shape:?} blocks; each axis has some, and all at most 2^36 together"));
        };
        let mut words = vec![0; len as usize];
        let header = functions::BlockMap::header(block.map(usize::ilog2), shape.map(|axis| axis as u32));
        words[..header.len()].copy_from_slice(&header);
        let [batch, heads, rows, columns] = shape;
        for row in 0..batch * heads * rows {
            for column in 0..columns {
                let (word, shift) = functions::BlockMap::place(of_row, row as u64, column as u64);
                let at = [row / rows / heads, row / rows % heads, row % rows, column];
                words[word as usize] |= functions::BlockMap::cell(visible(at)) << shift;
            }
        }
        Ok(Self { shape, block, words: words.into() })
    }

    /// The map of a mask function, which is asked about each query and key: for `[batch, heads]` of them,
    /// where 1 stands for all that are alike, and `[seqlen_q, seqlen_k]`.
    ///
    /// # Errors
    /// As [`Self::new`], and when the device alone has a tensor that the function reads.
    pub fn of_mask(
        functions: &Functions,
        [batch, heads]: [usize; 2],
        rows: [usize; 2],
        block: [usize; 2],
    ) -> Result<Self> {
        let on_host = functions.on_host()?;
        // Without any row there still is a block, of which nothing is seen.
        let blocks = |axis: usize| rows[axis].div_ceil(block[axis].max(1)).max(1);
        let range = |index: usize, axis: usize| {
            let first = index * block[axis];
            first as u32..rows[axis].min(first + block[axis]) as u32
        };
        Self::new([batch, heads, blocks(0), blocks(1)], block, |[batch, head, row, column]| {
            let sees = |query: u32, key: u32| {
                on_host.sees(Position { batch: batch as u32, head: head as u32, query, key })
            };
            visible(range(row, 0), range(column, 1), sees)
        })
    }

    /// As a function's tensor holds it: what `fa_kernels::functions::BlockMap` documents.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// What the steps cost of tiles of `block_m` queries and `block_n` keys of which something is seen, as a
    /// share of all: where a warpgroup asks the mask function about each score, twice as much. Of many heads
    /// the first are looked at.
    pub(crate) fn share(&self, block_m: u32, block_n: u32) -> f64 {
        let [batch, heads, rows, columns] = self.shape;
        let [queries, keys] = [rows * self.block[0], columns * self.block[1]].map(|len| len as u32);
        let tensor = (self.words.as_ptr().expose_provenance() as u64, self.words.len() as u32);
        // SAFETY: the words are as long as this.
        let data = unsafe { FunctionData::new([tensor, (0, 0), (0, 0), (0, 0)], [0; MAX_FUNCTION_VALUES]) };
        let visible = |head: usize, (first, rows): (u32, u32), key: u32| {
            let (batch, head) = ((head / heads) as u32, (head % heads) as u32);
            let last = first.saturating_add(rows - 1).min(queries - 1);
            let block = KeyRange { first: key, end: key.saturating_add(block_n) };
            functions::BlockMap::in_tensor(0).block(&data, Queries { batch, head, first, last }, block)
        };
        let groups = block_m / Sm90Config::WARPGROUP_ROWS;
        let cost = |head: usize, query: u32, key: u32| {
            if visible(head, (query, block_m), key) == Visible::Nothing {
                return 0;
            }
            let group = |group: &u32| {
                let first = query + group * Sm90Config::WARPGROUP_ROWS;
                first < queries && visible(head, (first, Sm90Config::WARPGROUP_ROWS), key) == Visible::Part
            };
            groups + (0..groups).filter(group).count() as u32
        };
        let of_head = queries.div_ceil(block_m) as usize * keys.div_ceil(block_n) as usize;
        let looked_at = (batch * heads).min(MOST_STEPS.div_ceil(of_head));
        let tiles = (0..looked_at)
            .flat_map(|head| (0..queries).step_by(block_m as usize).map(move |query| (head, query)));
        let costs = tiles.map(|(head, query)| {
            let costs = (0..keys).step_by(block_n as usize).map(|key| cost(head, query, key));
            costs.map(u64::from).sum::<u64>()
        });
        costs.sum::<u64>() as f64 / (groups as usize * of_head * looked_at) as f64
    }

    /// Why this is no map of so many sequences of so many heads, queries and keys.
    pub(super) fn misfit(
        &self,
        [batch, heads]: [usize; 2],
        [seqlen_q, seqlen_k]: [usize; 2],
    ) -> Option<String> {
        let (shape, [queries, keys]) = (self.shape, self.block);
        let rows = [seqlen_q.div_ceil(queries).max(1), seqlen_k.div_ceil(keys).max(1)];
        let is_one_of = |axis: usize, all: usize| shape[axis] == 1 || shape[axis] == all;
        let fits = is_one_of(0, batch) && is_one_of(1, heads) && shape[2..] == rows;
        (!fits).then(|| {
            format!(
                "a map of {shape:?} blocks of {queries} queries and {keys} keys; {batch} sequences of {heads} heads, \
                 {seqlen_q} queries and {seqlen_k} keys have {:?}, or 1 for the first two",
                [batch, heads, rows[0], rows[1]]
            )
        })
    }
}

/// What some queries see of some keys.
fn visible(queries: Range<u32>, keys: Range<u32>, sees: impl Fn(u32, u32) -> bool) -> Visible {
    let (mut some, mut all) = (false, true);
    for query in queries {
        for key in keys.clone() {
            let seen = sees(query, key);
            (some, all) = (some || seen, all && seen);
        }
        if some && !all {
            return Visible::Part;
        }
    }
    match (some, all) {
        (false, _) => Visible::Nothing,
        (true, true) => Visible::All,
        (true, false) => Visible::Part,
    }
}
