//! Functions of scores that a kernel is compiled with: FlexAttention's `score_mod` and `mask_mod` (Dong et
//! al. 2024, arXiv:2412.05496) as traits.
//!
//! A function is plain Rust, the same on the GPU, in the simulator, on the CPU and in the reference. What it
//! reads beside the score is [`FunctionData`].

mod block_map;

use core::ops::Add;

use crate::mask::KeyRange;
use crate::params::FunctionData;
#[cfg(target_arch = "nvptx64")]
use crate::ptx::math;
use crate::scheduler::WorkTile;
pub use block_map::BlockMap;

/// What takes the place of softmax_scale·q·k: FlexAttention's `score_mod`.
pub trait ScoreMod: Copy + 'static {
    /// Whether it changes anything.
    const CHANGES: bool = true;

    /// The score of a query and a key, in natural units, before the mask: a finite number, for keys are
    /// hidden by a [`MaskMod`], whose tiles know rows that see none.
    ///
    /// It is called for rows and keys beside the problem's too, where its result does not count.
    fn score(data: &FunctionData, score: Score, at: Position) -> f32;
}

/// Which keys a query sees, of those that the window shows it: FlexAttention's `mask_mod`.
pub trait MaskMod: Copy + 'static {
    /// Whether it hides anything.
    const MASKS: bool = true;

    /// Whether the query sees the key.
    fn sees(data: &FunctionData, at: Position) -> bool;

    /// Keys outside of which none of these queries sees any: those are not computed, so what [`Self::sees`]
    /// would say of them does not count on a GPU. All keys, unless a function knows better.
    #[inline(always)]
    fn bounds(data: &FunctionData, queries: Queries) -> KeyRange {
        let (_, _) = (data, queries);
        KeyRange { first: 0, end: u32::MAX }
    }

    /// Whether [`Self::block`] is asked, before each block of keys.
    const KNOWS_BLOCKS: bool = false;

    /// What these queries see of these keys, of which the last may lie behind the sequence: blocks of which
    /// they see nothing are not computed, and [`Self::sees`] is not asked about blocks that they see whole. A
    /// [`BlockMap`] tells it.
    #[inline(always)]
    fn block(data: &FunctionData, queries: Queries, keys: KeyRange) -> Visible {
        let (_, _, _) = (data, queries, keys);
        Visible::Part
    }
}

/// What neighbouring queries see of neighbouring keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visible {
    /// None of them sees any.
    Nothing,
    /// Some see some, or it is not known.
    Part,
    /// All see all.
    All,
}

/// Neighbouring queries of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queries {
    /// The sequence.
    pub batch: u32,
    /// The query head.
    pub head: u32,
    /// The first query, counted in its sequence.
    pub first: u32,
    /// The last query.
    pub last: u32,
}

impl Queries {
    /// Up to `rows` queries from `first` on, which is one of the sequence's.
    #[inline(always)]
    pub fn of_tile(work: &WorkTile, first: u32, rows: u32) -> Self {
        Self { batch: work.batch, head: work.head, first, last: (first + rows).min(work.queries.len) - 1 }
    }
}

/// The keys of `seen` that lie within the bounds of a mask function.
#[inline(always)]
pub fn within<M: MaskMod>(data: &FunctionData, queries: Queries, seen: KeyRange) -> KeyRange {
    let KeyRange { first, end } = M::bounds(data, queries);
    KeyRange { first: seen.first.max(first), end: seen.end.min(end) }
}

/// No function.
#[derive(Clone, Copy, Debug)]
pub struct Unchanged;

impl ScoreMod for Unchanged {
    const CHANGES: bool = false;

    #[inline(always)]
    fn score(_: &FunctionData, score: Score, _: Position) -> f32 {
        score.value()
    }
}

impl MaskMod for Unchanged {
    const MASKS: bool = false;

    #[inline(always)]
    fn sees(_: &FunctionData, _: Position) -> bool {
        true
    }
}

/// Which query and key a score is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The sequence.
    pub batch: u32,
    /// The query head.
    pub head: u32,
    /// The query, counted in its sequence.
    pub query: u32,
    /// The key, counted in its sequence.
    pub key: u32,
}

/// A score that is not scaled yet, so that a number is added to it in the instruction that scales it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    product: f32,
    scale: f32,
}

impl Score {
    /// scale·product.
    #[inline(always)]
    pub const fn new(product: f32, scale: f32) -> Self {
        Self { product, scale }
    }

    /// softmax_scale·q·k.
    #[inline(always)]
    pub fn value(self) -> f32 {
        self.product * self.scale
    }
}

impl Add<f32> for Score {
    type Output = f32;

    #[inline(always)]
    fn add(self, bias: f32) -> f32 {
        cfg_select! {
            target_arch = "nvptx64" => { math::fma(self.product, self.scale, bias) }
            _ => { self.value() + bias }
        }
    }
}
