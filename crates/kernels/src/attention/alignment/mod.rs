//! Rows and heads that start at no multiple of 16 bytes, where tensor maps want them.

pub mod head_offset;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod panel_move;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod residues;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod row_store;

use head_offset::HeadOffset;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
use residues::Residues;

use crate::params::{AttentionParams, PersistentParams, Strides};

/// What a kernel that copies by tensor maps does about them, compiled in; nothing by default.
pub trait Alignment: Copy {
    /// Whether keys come class by class of their rows.
    const BY_RESIDUES: bool = false;

    /// Whether keys lie in a cache, and rows are those of packed heads.
    const IN_CACHE: bool = false;

    /// How often a tile goes over its blocks of keys.
    #[inline(always)]
    fn passes(_: &AttentionParams) -> u32 {
        1
    }

    /// Where boxes of a head of a tensor with these strides start, but for how far they are shifted.
    #[inline(always)]
    fn head(_: &Strides, head: u32) -> HeadOffset {
        HeadOffset { class: 0, head, shift: 0 }
    }

    /// Where boxes of a head of K or V start in a pass, up to `margin` columns before it. Those of Q are
    /// shifted as K's in the first one.
    #[inline(always)]
    fn in_pass(strides: &Strides, head: u32, _margin: u32, _pass: u32) -> HeadOffset {
        Self::head(strides, head)
    }

    /// Column of the product with V that is O's first, behind the last pass.
    #[inline(always)]
    fn first_column(_: &PersistentParams, _head: u32) -> u32 {
        0
    }

    /// Row of the tile that row `row` of the warp whose rows begin with `warp_row` is, in a warpgroup of
    /// `rows` rows.
    #[inline(always)]
    fn row_of_tile(_: &AttentionParams, _rows: u32, warp_row: u32, row: u32) -> u32 {
        warp_row + row
    }
}

/// Rows and heads all start at multiples of 16 bytes: nothing is to be done.
#[derive(Clone, Copy, Debug)]
pub struct Aligned;

impl Alignment for Aligned {}

/// Rows lie a multiple of 16 bytes apart, and heads start anywhere ([`HeadOffset`]).
#[derive(Clone, Copy, Debug)]
pub struct ByHeads;

impl Alignment for ByHeads {
    #[inline(always)]
    fn head(strides: &Strides, head: u32) -> HeadOffset {
        HeadOffset::of(strides.head, head, 0)
    }

    #[inline(always)]
    fn in_pass(strides: &Strides, head: u32, margin: u32, _: u32) -> HeadOffset {
        HeadOffset::of(strides.head, head, margin)
    }

    #[inline(always)]
    fn first_column(params: &PersistentParams, head: u32) -> u32 {
        Self::in_pass(&params.attention.v_strides, head, params.v_margin, 0).shift
    }
}

/// Rows of Q, K and V lie no multiple of 16 bytes apart, all equally far from one ([`Residues`]).
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
#[derive(Clone, Copy, Debug)]
pub struct ByRows;

#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
impl ByRows {
    /// The classes, which are those of Q, K and V alike.
    #[inline(always)]
    pub fn classes(params: &AttentionParams) -> Residues {
        Residues::of(params.k_strides.row)
    }
}

#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
impl Alignment for ByRows {
    const BY_RESIDUES: bool = true;

    #[inline(always)]
    fn passes(params: &AttentionParams) -> u32 {
        Self::classes(params).count()
    }

    #[inline(always)]
    fn head(strides: &Strides, head: u32) -> HeadOffset {
        HeadOffset::of(strides.head, head, 0)
    }

    #[inline(always)]
    fn in_pass(strides: &Strides, head: u32, _: u32, pass: u32) -> HeadOffset {
        Residues::of(strides.row).in_turn(pass, head)
    }

    #[inline(always)]
    fn first_column(params: &PersistentParams, _: u32) -> u32 {
        Self::classes(&params.attention).last_shift()
    }

    #[inline(always)]
    fn row_of_tile(params: &AttentionParams, rows: u32, warp_row: u32, row: u32) -> u32 {
        let (classes, first) = (Self::classes(params), warp_row % rows);
        let (class, index) = classes.at_place(rows, first + row);
        warp_row - first + classes.row(class, index)
    }
}
