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

use crate::params::AttentionParams;
use crate::params::PersistentParams;

/// What a kernel that copies by tensor maps does about them, compiled in.
pub trait Alignment: Copy {
    /// Whether keys come class by class of their rows.
    const BY_RESIDUES: bool;

    /// How often a tile goes over its blocks of keys.
    fn passes(params: &AttentionParams) -> u32;

    /// Where boxes of a head of Q start, but for how far they are shifted.
    fn queries(params: &PersistentParams, head: u32) -> HeadOffset;

    /// Where boxes of a head of K start in a pass. Those of Q are shifted alike in the first one.
    fn keys(params: &PersistentParams, head: u32, pass: u32) -> HeadOffset;

    /// Where boxes of a head of V start in a pass.
    fn values(params: &PersistentParams, head: u32, pass: u32) -> HeadOffset;

    /// Column of the product with V that is O's first, behind the last pass.
    fn first_column(params: &PersistentParams, head: u32) -> u32;

    /// Row of the tile that row `row` of the warp whose rows begin with `warp_row` is, in a warpgroup of
    /// `rows` rows.
    fn row_of_tile(params: &AttentionParams, rows: u32, warp_row: u32, row: u32) -> u32;
}

/// Rows lie a multiple of 16 bytes apart, and heads start anywhere ([`HeadOffset`]).
#[derive(Clone, Copy, Debug)]
pub struct ByHeads;

impl Alignment for ByHeads {
    const BY_RESIDUES: bool = false;

    #[inline(always)]
    fn passes(_: &AttentionParams) -> u32 {
        1
    }

    #[inline(always)]
    fn queries(params: &PersistentParams, head: u32) -> HeadOffset {
        HeadOffset::of(params.attention.q_strides.head, head, 0)
    }

    #[inline(always)]
    fn keys(params: &PersistentParams, head: u32, _: u32) -> HeadOffset {
        HeadOffset::of(params.attention.k_strides.head, head, params.qk_margin)
    }

    #[inline(always)]
    fn values(params: &PersistentParams, head: u32, _: u32) -> HeadOffset {
        HeadOffset::of(params.attention.v_strides.head, head, params.v_margin)
    }

    #[inline(always)]
    fn first_column(params: &PersistentParams, head: u32) -> u32 {
        Self::values(params, head, 0).shift
    }

    #[inline(always)]
    fn row_of_tile(_: &AttentionParams, _: u32, warp_row: u32, row: u32) -> u32 {
        warp_row + row
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
    fn queries(params: &PersistentParams, head: u32) -> HeadOffset {
        HeadOffset::of(params.attention.q_strides.head, head, 0)
    }

    #[inline(always)]
    fn keys(params: &PersistentParams, head: u32, pass: u32) -> HeadOffset {
        Self::classes(&params.attention).in_turn(pass, head)
    }

    #[inline(always)]
    fn values(params: &PersistentParams, head: u32, pass: u32) -> HeadOffset {
        Self::classes(&params.attention).in_turn(pass, head)
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
