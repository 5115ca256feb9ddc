//! A map that says of each block of queries and keys whether it is seen: FlexAttention's `BlockMask`.

use super::{Queries, Visible};
use crate::mask::KeyRange;
use crate::params::FunctionData;

/// A map in one of the tensors that functions read, as `flash_attention::functions::BlockMap` makes it.
///
/// Its words are log2 of a block's queries and of its keys, then the sequences, heads, rows and columns that
/// it has, one of which stands for all sequences or heads; then the cells, \[batch, head, row, column\], two
/// bits each from the lowest on, each row from a word of its own. The lower bit says that some query of the
/// block sees some key of it, the upper one that all see all.
#[derive(Clone, Copy, Debug)]
pub struct BlockMap {
    tensor: usize,
}

/// Words before the cells.
const HEADER: u32 = 6;

/// Cells of a word.
const CELLS: u32 = 16;

/// The upper bits of all cells of a word.
const ALL: u32 = 0xaaaa_aaaa;

impl BlockMap {
    /// The fewest queries, or keys, of a block.
    pub const SMALLEST: u32 = 32;

    /// Words of a map of such a shape, and of one of its rows.
    pub const fn words([batch, heads, rows, columns]: [u64; 4]) -> (u64, u64) {
        let of_row = columns.div_ceil(CELLS as u64);
        let of_rows = batch.saturating_mul(heads).saturating_mul(rows).saturating_mul(of_row);
        (of_rows.saturating_add(HEADER as u64), of_row)
    }

    /// The words before the cells, of blocks of 2^queries queries and 2^keys keys.
    pub const fn header([queries, keys]: [u32; 2], [batch, heads, rows, columns]: [u32; 4]) -> [u32; 6] {
        [queries, keys, batch, heads, rows, columns]
    }

    /// In which word a cell is, where a row has so many, and by how many bits it is shifted there.
    pub const fn place(of_row: u64, row: u64, column: u64) -> (u64, u32) {
        (HEADER as u64 + row * of_row + column / CELLS as u64, 2 * (column % CELLS as u64) as u32)
    }

    /// The bits of a cell.
    pub const fn cell(visible: Visible) -> u32 {
        match visible {
            Visible::Nothing => 0,
            Visible::Part => 1,
            Visible::All => 3,
        }
    }

    /// The map in a tensor of this number, which is a constant.
    #[inline(always)]
    pub const fn in_tensor(tensor: usize) -> Self {
        Self { tensor }
    }

    /// What [`MaskMod::block`](super::MaskMod::block) says: of cells that these queries and keys are in.
    /// Of keys behind the map's last block there are none.
    #[inline(always)]
    pub fn block(self, data: &FunctionData, queries: Queries, keys: KeyRange) -> Visible {
        let word = |index: u32| data.u32(self.tensor, index);
        let (by_queries, by_keys) = (word(0) & 31, word(1) & 31);
        let [batch, heads, rows, columns] = [word(2), word(3), word(4), word(5)];
        if columns == 0 || keys.first >> by_keys >= columns {
            return Visible::Nothing;
        }
        let (first, last) = (keys.first >> by_keys, ((keys.end - 1) >> by_keys).min(columns - 1));
        let of_row = columns.div_ceil(CELLS);
        let one_of = |index: u32, all: u32| if all == 1 { 0 } else { index };
        let mut row = (one_of(queries.batch, batch) * heads + one_of(queries.head, heads)) * rows;
        let end = row + (queries.last >> by_queries);
        row += queries.first >> by_queries;
        let (mut some, mut all) = (0, ALL);
        while row <= end {
            let mut column = first;
            while column <= last {
                let place = column % CELLS;
                let kept = (last - column + 1).min(CELLS - place);
                let cells = word(HEADER + row * of_row + column / CELLS) >> (2 * place);
                // Cells that are not asked about count as seen whole, and as not seen.
                let others = if kept == CELLS { 0 } else { !0 << (2 * kept) };
                (some, all) = (some | cells & !others, all & (cells | others));
                column += kept;
            }
            row += 1;
        }
        match (some, all) {
            (0, _) => Visible::Nothing,
            (_, ALL) => Visible::All,
            _ => Visible::Part,
        }
    }
}
