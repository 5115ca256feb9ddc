//! Tiles of attention in shared memory as tensor maps lay them down and `wgmma` reads them.
//!
//! A tile is one panel of 64 columns of 16-bit elements, or 128 of 8-bit ones, behind the other, each of
//! lines of 128 bytes, one for each row, that are swizzled as [`wgmma`](super::wgmma) says. The last panel
//! may be wider than what is left of the columns: the tensor map fills it up with zeros, and nothing
//! multiplies them.

use core::marker::PhantomData;

use crate::attention::alignment::head_offset::HeadOffset;
use crate::ptx::tma::TensorMap;
use crate::ptx::{index, shared, tma};
use crate::tile::wgmma::{Descriptor, LINE};

/// Bytes of one `wgmma` along K.
const DEPTH: u32 = 32;

/// Rows of one `wgmma` along K, of 16-bit elements.
const DEPTH_ROWS: u32 = 16;

/// Of the two 16-bit elements of a chunk's `word`-th word, a mask of those from element `first` on.
#[inline(always)]
fn elements_from(first: u32, word: u32) -> u32 {
    let cleared = first.saturating_sub(2 * word).min(2);
    (0xffff_ffff_u64 << (16 * cleared)) as u32
}

/// Sizes of a tile.
pub trait Extent: Copy {
    /// Rows.
    const ROWS: u32;
    /// Columns.
    const COLUMNS: u32;
    /// Bytes of an element.
    const ELEMENT_BYTES: u32;
}

/// `ROWS` × `COLUMNS` elements of `BYTES` bytes.
#[derive(Clone, Copy, Debug)]
pub struct Extents<const ROWS: u32, const COLUMNS: u32, const BYTES: u32 = 2>;

impl<const ROWS: u32, const COLUMNS: u32, const BYTES: u32> Extent for Extents<ROWS, COLUMNS, BYTES> {
    const ROWS: u32 = ROWS;
    const COLUMNS: u32 = COLUMNS;
    const ELEMENT_BYTES: u32 = BYTES;
}

/// A tile of a [B, S, H, D] view.
#[derive(Clone, Copy)]
pub struct Panels<X: Extent> {
    /// Byte address, aligned to 1,024.
    pub address: u32,
    extent: PhantomData<X>,
}

impl<X: Extent> Panels<X> {
    /// Elements of a line.
    pub const LINE_ELEMENTS: u32 = LINE / X::ELEMENT_BYTES;
    /// How many there are.
    pub const COUNT: u32 = X::COLUMNS.div_ceil(Self::LINE_ELEMENTS);
    /// Bytes of one.
    pub const PANEL: u32 = const {
        assert!(X::ROWS.is_multiple_of(8) && (X::COLUMNS * X::ELEMENT_BYTES).is_multiple_of(DEPTH));
        X::ROWS * LINE
    };
    /// Bytes in all.
    pub const BYTES: u32 = Self::COUNT * Self::PANEL;

    /// The tile at a byte address that is a multiple of 1,024.
    #[inline(always)]
    pub fn new(address: u32) -> Self {
        Self { address, extent: PhantomData }
    }

    /// The same memory with other sizes.
    #[inline(always)]
    pub fn cast<Y: Extent>(self) -> Panels<Y> {
        Panels::new(self.address)
    }

    /// Begins to load the rows from `row` on of a head of a sequence.
    ///
    /// # Safety
    /// As [`tma::load_4d`]: `maps` is where the tensor maps of the view's classes of heads lie, with
    /// dimensions {shift + D, S, H, B} and swizzled boxes {128 bytes, rows, 1, 1}.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn load(self, maps: u64, barrier: u32, row: u32, head: HeadOffset, batch: u32) {
        // SAFETY: the maps are the view's, and no thread accesses the tile before the barrier's phase ends.
        unsafe { self.load_from(maps, barrier, (0, row), head, batch) }
    }

    /// As [`Self::load`], from a column on too, which is a multiple of 16 bytes.
    ///
    /// # Safety
    /// As [`Self::load`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn load_from(
        self,
        maps: u64,
        barrier: u32,
        (first_column, row): (u32, u32),
        head: HeadOffset,
        batch: u32,
    ) {
        let map = maps + TensorMap::BYTES * head.class as u64;
        let mut panel = 0;
        while panel < Self::COUNT {
            let column = (first_column + panel * Self::LINE_ELEMENTS).wrapping_sub(head.outside());
            let at = [column as i32, row as i32, head.head as i32, batch as i32];
            // SAFETY: the map is the head's, and no thread uses the panel before the barrier's phase ends.
            unsafe { tma::load_4d(self.panel(panel), map, barrier, at) };
            panel += 1;
        }
    }

    /// As [`Self::load`] of a map of all heads, with a policy of [`tma::l2_policy`].
    ///
    /// # Safety
    /// As [`Self::load`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn load_with(self, (map, policy): (u64, u64), barrier: u32, row: u32, head: u32, batch: u32) {
        let mut panel = 0;
        while panel < Self::COUNT {
            let at = [panel * Self::LINE_ELEMENTS, row, head, batch].map(|index| index as i32);
            // SAFETY: the map is the tensor's, and no thread uses the panel before the barrier's phase ends.
            unsafe { tma::load_4d_with(self.panel(panel), map, barrier, at, policy) };
            panel += 1;
        }
    }

    /// The panels of the tile, from row `row`, a multiple of eight, on: what [`Self::at`] and stores start
    /// from.
    #[inline(always)]
    pub fn from_row(self, row: u32) -> Self {
        Self::new(self.address + Self::row(row))
    }

    /// Address of a panel.
    #[inline(always)]
    pub fn panel(self, index: u32) -> u32 {
        self.address + index * Self::PANEL
    }

    /// Begins to store the rows of a box, which lie at `address`, to those from `row` of the view on: columns
    /// of one panel.
    ///
    /// # Safety
    /// As [`tma::store_4d`], with the map of a view whose heads are of one class, as [`Self::load`] says,
    /// whose box may have fewer rows.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn store_panel(address: u32, map: u64, panel: u32, [row, head, batch]: [u32; 3]) {
        let at = [(panel * Self::LINE_ELEMENTS) as i32, row as i32, head as i32, batch as i32];
        // SAFETY: the map is the view's, the box is written and fenced, and no other thread uses its target.
        unsafe { tma::store_4d(map, address, at) };
    }

    /// The tile so many behind this one.
    #[inline(always)]
    pub fn stage(self, stage: u32) -> Self {
        Self::new(self.address + stage * Self::BYTES)
    }

    /// Clears the rows from `row` on, with one warp.
    ///
    /// # Safety
    /// All 32 lanes call this together; nobody else accesses the rows.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn clear_from_row(self, row: u32) {
        let mut panel = 0;
        while panel < Self::COUNT {
            // SAFETY: all lanes are here, and nobody else accesses the rows.
            unsafe { self.clear_panel_from_row(panel, row) };
            panel += 1;
        }
    }

    /// [`Self::clear_from_row`] of one panel.
    ///
    /// # Safety
    /// As [`Self::clear_from_row`], of the panel's rows.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn clear_panel_from_row(self, panel: u32, row: u32) {
        let mut byte = row * LINE + 16 * (index::reread_thread() % 32);
        while byte < Self::PANEL {
            // SAFETY: the bytes are the panel's, in rows that no other thread accesses.
            unsafe { shared::store4(self.panel(panel) + byte, [0; 4]) };
            byte += 512;
        }
    }

    /// Address of the eight columns from 8·`chunk` on in row `row`.
    #[inline(always)]
    pub fn at(self, row: u32, chunk: u32) -> u32 {
        let (panel, chunk) = (chunk / 8, chunk % 8);
        super::wgmma::chunk(self.panel(panel), row, chunk)
    }

    /// The tile as an operand.
    #[inline(always)]
    pub fn descriptor(self) -> Descriptor {
        Descriptor::of_boxes(self.address, Self::PANEL)
    }

    /// Bytes to row `row`, a multiple of eight.
    #[inline(always)]
    pub fn row(row: u32) -> u32 {
        row * LINE
    }

    /// Bytes to the `step`-th 32 bytes of columns: K of a product with the tile's rows as rows of A or
    /// columns of B.
    #[inline(always)]
    pub fn columns(step: u32) -> u32 {
        let steps = LINE / DEPTH;
        step / steps * Self::PANEL + step % steps * DEPTH
    }

    /// Clears the columns of 16-bit elements before `first`, with one warp, but those before a multiple of
    /// eight.
    ///
    /// # Safety
    /// As [`Self::clear_from_row`], of all rows, which were written: the rest of a chunk is read and kept.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn clear_before_column(self, first: u32) {
        let mut row = index::reread_thread() % 32;
        while row < X::ROWS {
            let at = self.at(row, first / 8);
            let keep = |word: u32| elements_from(first % 8, word);
            // SAFETY: the chunk is the row's, which no other thread accesses.
            unsafe {
                let [a, b, c, d] = shared::load4(at).map(f32::to_bits);
                shared::store4(at, [a & keep(0), b & keep(1), c & keep(2), d & keep(3)]);
            }
            row += 32;
        }
    }

    /// Bytes to the `step`-th sixteen rows of 16-bit elements: K of a product with the tile's columns as
    /// columns of B.
    #[inline(always)]
    pub fn rows(step: u32) -> u32 {
        step * DEPTH_ROWS * LINE
    }
}
