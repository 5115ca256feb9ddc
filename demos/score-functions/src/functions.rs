//! Document and sparse masks, and biases: what FlexAttention's users write most.
//!
//! This file is compiled twice: as a module of this crate, and into the kernels.

use fa_kernels::functions::{BlockMap, MaskMod, Position, Queries, Score, ScoreMod, Visible};
use fa_kernels::mask::KeyRange;
use fa_kernels::params::FunctionData;

/// A query sees the keys of its own document. Tensor 0, int32 `[B, S]`, has the document of each row, in
/// rising order, and value 0 is S. Tensors 2 and 3, u32 `[B, S]`, have the first row of each row's document,
/// and what follows its last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Documents;

impl MaskMod for Documents {
    #[inline(always)]
    fn sees(data: &FunctionData, at: Position) -> bool {
        let first = at.batch * data.value(0);
        data.i32(0, first + at.query) == data.i32(0, first + at.key)
    }

    #[inline(always)]
    fn bounds(data: &FunctionData, queries: Queries) -> KeyRange {
        let first = queries.batch * data.value(0);
        KeyRange { first: data.u32(2, first + queries.first), end: data.u32(3, first + queries.last) }
    }
}

/// Keys of a stretch.
const STRETCH: u32 = 64;

/// A query sees the keys of stretches near its own, and beside them each so-manieth stretch (Child et al.
/// 2019, arXiv:1904.10509). Value 0 says which, value 1 how many stretches apart are near; 0 is none. Tensor
/// 0 has the map of blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strided;

impl MaskMod for Strided {
    #[inline(always)]
    fn sees(data: &FunctionData, at: Position) -> bool {
        let (own, other) = (at.query / STRETCH, at.key / STRETCH);
        // A tensor and values that are not there are zeros.
        own.abs_diff(other) < data.value(1) || other % data.value(0).max(1) == 0
    }

    const KNOWS_BLOCKS: bool = true;

    #[inline(always)]
    fn block(data: &FunctionData, queries: Queries, keys: KeyRange) -> Visible {
        BlockMap::in_tensor(0).block(data, queries, keys)
    }
}

/// Adds a learned number for each head and each distance up to a reach, which those further away share.
/// Tensor 1, fp32 `[H, 2 reach + 1]`, has them from the key that lies furthest to the right on, and value 1
/// is the reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RelativeBias;

impl ScoreMod for RelativeBias {
    #[inline(always)]
    fn score(data: &FunctionData, score: Score, at: Position) -> f32 {
        let reach = data.value(1) as i32;
        // `clamp` panics where its limits are crossed, and a kernel may not.
        let distance = (at.query as i32 - at.key as i32).max(-reach).min(reach) + reach;
        let of_head = at.head as i32 * (2 * reach + 1);
        score + data.f32(1, (of_head + distance) as u32)
    }
}

/// Adds value 2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shift;

impl ScoreMod for Shift {
    #[inline(always)]
    fn score(data: &FunctionData, score: Score, _: Position) -> f32 {
        score + data.f32_value(2)
    }
}
