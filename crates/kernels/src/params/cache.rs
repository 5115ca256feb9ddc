//! Where the keys of a K/V cache lie, and which part of them a block takes.

/// How K and V are read, and where results go that are merged with others; of contiguous keys in one part by
/// default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheParams {
    /// As [`DecodeParams::page_table`](super::DecodeParams::page_table).
    pub page_table: u64,
    /// As [`DecodeParams::partial_o`](super::DecodeParams::partial_o).
    pub partial_o: u64,
    /// As [`DecodeParams::partial_lse`](super::DecodeParams::partial_lse).
    pub partial_lse: u64,
    /// Rows of O of all heads.
    pub rows: u64,
    /// Rows of a page, at least 1.
    pub page_size: u32,
    /// Entries of a sequence in the page table.
    pub max_pages: u32,
    /// As [`DecodeParams::num_splits`](super::DecodeParams::num_splits).
    pub num_splits: u32,
    /// As [`DecodeParams::split_keys`](super::DecodeParams::split_keys).
    pub split_keys: u32,
    /// Columns of V and O.
    pub head_dim_v: u32,
    /// log2 of the query heads that are rows of one tile, 0 to 3: row r of a tile is query r >> `head_bits`
    /// of head r mod 2^`head_bits` of those.
    pub head_bits: u32,
}
