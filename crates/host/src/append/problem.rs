//! One problem of appending: validated once here, trusted by everything after.

use fa_kernels::attention::append;

use crate::forward::MAX_SEQLEN;
use crate::{DType, Element, Error, Result, TensorLayout};

/// The largest head_dim of K and V.
pub const MAX_APPEND_HEAD_DIM: usize = append::MAX_COLUMNS as usize;

/// Shapes and strides of what is read and of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendTensors {
    /// New keys, [B, Sn, Hkv, D].
    pub k: TensorLayout,
    /// New values, [B, Sn, Hkv, Dv].
    pub v: TensorLayout,
    /// [B, Sk, Hkv, D], or pages [num_pages, page_size, Hkv, D] (the layout's batch and seqlen).
    pub k_cache: TensorLayout,
    /// As `k_cache`, of Dv columns.
    pub v_cache: TensorLayout,
}

/// What is done, beside the shapes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendOptions {
    /// Entries of each sequence in the page table; `None` where the cache is contiguous.
    pub max_pages: Option<usize>,
    /// The embedding of new keys, and of queries.
    pub rotary: Option<Rotary>,
}

/// A rotary position embedding: the first `dim` columns of a row are pairs, (a, b), of which pair j at
/// position p becomes (a·cos − b·sin, a·sin + b·cos) with element [p, j] of both tables, in fp32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotary {
    /// Columns that are turned, an even number up to D.
    pub dim: usize,
    /// Rows of the tables: a position each.
    pub rows: usize,
    /// Whether pair j is columns 2j and 2j + 1 (GPT-J), or j and j + `dim` / 2 (GPT-NeoX).
    pub interleaved: bool,
    /// Queries that are turned too.
    pub queries: Option<RotaryQueries>,
}

/// Queries of the tokens whose keys are appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotaryQueries {
    /// What is read, [B, Sq, H, D].
    pub q: TensorLayout,
    /// What is written. On device pointers it may be `q` itself, where the layouts are equal.
    pub q_out: TensorLayout,
    /// Whether query i is at the position of new key i, as under a causal mask or a window, or all are at
    /// that of the first, as FlashAttention has it where queries see all keys.
    pub in_order: bool,
}

/// A validated problem of appending Sn new keys and values to each sequence's part of a K/V cache, behind the
/// first `seqused_k[b]` that it has.
///
/// The cache is as that of [`DecodeProblem`](crate::decode::DecodeProblem): contiguous, or pages, where key j
/// of sequence b is row j mod page_size of page `page_table[b][j / page_size]`. Strides may be any with a
/// contiguous last dimension, so that pages may be [num_pages, Hkv, page_size, D] in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendProblem {
    tensors: AppendTensors,
    dtype: DType,
    options: AppendOptions,
}

/// Host tensors that are read.
#[derive(Clone, Copy, Debug)]
pub struct AppendInputs<'a, T> {
    /// New keys.
    pub k: &'a [T],
    /// New values.
    pub v: &'a [T],
    /// Keys that each sequence has before, `[B]`, 0 to Sk − Sn.
    pub seqused_k: &'a [i32],
    /// Pages of each sequence, [B, max_pages]; `None` where the cache is contiguous. Entries of pages that
    /// are not written to may be anything.
    pub page_table: Option<&'a [i32]>,
    /// Cosines, [rows, dim / 2], contiguous; not looked at without a rotary embedding.
    pub cos: &'a [T],
    /// Sines, as `cos`.
    pub sin: &'a [T],
    /// Queries that are turned; not looked at where there are none.
    pub q: &'a [T],
}

impl<'a, T> AppendInputs<'a, T> {
    /// New keys and values, and nothing else.
    pub const fn new(k: &'a [T], v: &'a [T]) -> Self {
        Self { k, v, seqused_k: &[], page_table: None, cos: &[], sin: &[], q: &[] }
    }
}

/// A new row: a head of a key or of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewRow {
    pub(super) batch: usize,
    pub(super) row: usize,
    pub(super) head: usize,
}

impl AppendProblem {
    /// Validates shapes, strides and options.
    ///
    /// # Errors
    /// Names the tensor, the axis, its value and the limit when a shape is empty, mismatched, too large, or
    /// not contiguous in its last dimension, when a cache or `q_out` overlaps itself, when there are more new
    /// keys than a sequence has room for, when `dim` of the embedding is odd, 0 or more than D, and when its
    /// tables end before the last position that keys and queries may have.
    pub fn new(tensors: AppendTensors, dtype: DType, options: AppendOptions) -> Result<Self> {
        dtype.check_as_result("append")?;
        let problem = Self { tensors, dtype, options };
        problem.check_shapes()?;
        problem.check_room()?;
        problem.check_rotary()?;
        Ok(problem)
    }

    fn check_shapes(&self) -> Result<()> {
        let AppendTensors { k, v, k_cache, v_cache } = self.tensors;
        for (tensor, layout) in [("k", k), ("v", v), ("k_cache", k_cache), ("v_cache", v_cache)] {
            layout.check(tensor)?;
        }
        for (tensor, value) in [("", k.head_dim), ("v: ", v.head_dim)] {
            if value > MAX_APPEND_HEAD_DIM {
                return Err(Error::HeadDim { tensor, value, limit: MAX_APPEND_HEAD_DIM });
            }
        }
        let equal = |tensor, axis, value, other, expected| {
            if value == expected {
                return Ok(());
            }
            Err(Error::ShapeMismatch { tensor, axis, value, other, expected })
        };
        let (outer, rows) = match self.options.max_pages {
            Some(_) => ("num_pages", "page_size"),
            None => ("batch", "seqlen"),
        };
        equal("v", "batch", v.batch, "k", k.batch)?;
        equal("v", "seqlen", v.seqlen, "k", k.seqlen)?;
        equal("v", "heads", v.heads, "k", k.heads)?;
        equal("k_cache", "heads", k_cache.heads, "k", k.heads)?;
        equal("k_cache", "head_dim", k_cache.head_dim, "k", k.head_dim)?;
        equal("v_cache", "heads", v_cache.heads, "v", v.heads)?;
        equal("v_cache", "head_dim", v_cache.head_dim, "v", v.head_dim)?;
        equal("v_cache", outer, v_cache.batch, "k_cache", k_cache.batch)?;
        equal("v_cache", rows, v_cache.seqlen, "k_cache", k_cache.seqlen)?;
        if self.options.max_pages.is_none() {
            equal("k_cache", "batch", k_cache.batch, "k", k.batch)?;
        }
        check_rows("k", &k)?;
        k_cache.check_disjoint("k_cache")?;
        v_cache.check_disjoint("v_cache")
    }

    fn check_room(&self) -> Result<()> {
        if self.options.max_pages == Some(0) {
            return Err(Error::EmptyAxis { tensor: "page_table", axis: "max_pages" });
        }
        let over = |tensor, value, limit| {
            if value > limit { Err(Error::SeqLen { tensor, value, limit }) } else { Ok(()) }
        };
        over("k_cache", self.seqlen_k(), MAX_SEQLEN)?;
        over("k", self.tensors.k.seqlen, self.seqlen_k())
    }

    fn check_rotary(&self) -> Result<()> {
        let Some(Rotary { dim, rows, queries, .. }) = self.options.rotary else { return Ok(()) };
        let k = &self.tensors.k;
        if dim == 0 || !dim.is_multiple_of(2) || dim > k.head_dim {
            return Err(Error::RotaryDim { value: dim, limit: k.head_dim });
        }
        let mut ahead = 0;
        if let Some(RotaryQueries { q, q_out, in_order }) = queries {
            q.check("q")?;
            q_out.check("q_out")?;
            for (axis, value, expected) in [("batch", q.batch, k.batch), ("head_dim", q.head_dim, k.head_dim)]
            {
                if value != expected {
                    return Err(Error::ShapeMismatch { tensor: "q", axis, value, other: "k", expected });
                }
            }
            let of_out = [q_out.batch, q_out.seqlen, q_out.heads, q_out.head_dim];
            let of_q = [q.batch, q.seqlen, q.heads, q.head_dim];
            let mut axes =
                ["batch", "seqlen", "heads", "head_dim"].into_iter().zip(of_out.into_iter().zip(of_q));
            if let Some((axis, (value, expected))) = axes.find(|(_, (value, expected))| value != expected) {
                return Err(Error::ShapeMismatch { tensor: "q_out", axis, value, other: "q", expected });
            }
            check_rows("q", &q)?;
            q_out.check_disjoint("q_out")?;
            ahead = if in_order { q.seqlen.saturating_sub(k.seqlen) } else { 0 };
        }
        let needed = self.seqlen_k().saturating_add(ahead);
        if rows < needed {
            return Err(Error::RotaryRows { value: rows, needed });
        }
        self.table().map_or(Ok(()), |table| table.check("rotary_cos"))
    }

    /// Layouts of new K and V and of their caches.
    pub const fn tensors(&self) -> &AppendTensors {
        &self.tensors
    }

    /// Storage type of all tensors.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// What is done.
    pub const fn options(&self) -> &AppendOptions {
        &self.options
    }

    /// Key rows that a sequence has room for.
    pub fn seqlen_k(&self) -> usize {
        let rows = self.tensors.k_cache.seqlen;
        self.options.max_pages.map_or(rows, |pages| rows.saturating_mul(pages))
    }

    /// Queries that are turned.
    pub fn queries(&self) -> Option<&RotaryQueries> {
        self.options.rotary.as_ref()?.queries.as_ref()
    }

    /// Columns of K and Q that are turned; 0 without an embedding.
    pub(super) fn rotary_dim(&self) -> usize {
        self.options.rotary.map_or(0, |rotary| rotary.dim)
    }

    /// Cosines, or sines.
    pub(super) fn table(&self) -> Option<TensorLayout> {
        self.options.rotary.map(|rotary| TensorLayout::bshd(1, rotary.rows, 1, rotary.dim / 2))
    }

    /// The heads of new rows, in order.
    pub(super) fn new_rows(&self) -> impl Iterator<Item = NewRow> + use<> {
        rows_of(&self.tensors.k)
    }

    /// Position of a new row in its sequence.
    pub(super) fn position<T>(&self, inputs: &AppendInputs<'_, T>, at: NewRow) -> usize {
        inputs.seqused_k[at.batch] as usize + at.row
    }

    /// Position of a query.
    pub(super) fn query_position<T>(&self, inputs: &AppendInputs<'_, T>, at: NewRow) -> usize {
        let in_order = self.queries().is_some_and(|queries| queries.in_order);
        inputs.seqused_k[at.batch] as usize + if in_order { at.row } else { 0 }
    }

    /// Element index of a new row in `cache`, which is the layout of one of the two.
    pub(super) fn place<T>(&self, cache: &TensorLayout, inputs: &AppendInputs<'_, T>, at: NewRow) -> usize {
        let position = self.position(inputs, at);
        match (self.options.max_pages, inputs.page_table) {
            (Some(max_pages), Some(table)) => {
                let page = table[at.batch * max_pages + position / cache.seqlen] as usize;
                cache.row(page, position % cache.seqlen, at.head)
            }
            _ => cache.row(at.batch, position, at.head),
        }
    }

    /// Checks lists whose lengths were checked: that new keys have room, and the pages that they go to.
    pub(super) fn check_lists<T: Element>(&self, inputs: &AppendInputs<'_, T>) -> Result<()> {
        let (new, paged) = (self.tensors.k.seqlen, self.options.max_pages.is_some());
        if inputs.page_table.is_some() != paged {
            return Err(Error::PageTablePresence { paged });
        }
        let limit = self.seqlen_k() - new;
        for (batch, &value) in inputs.seqused_k.iter().enumerate().take(self.tensors.k.batch) {
            if !usize::try_from(value).is_ok_and(|value| value <= limit) {
                return Err(Error::SeqUsedBefore { batch, value, limit, new });
            }
        }
        self.check_pages(inputs)
    }

    /// Checks the page table's entries that new keys go to.
    fn check_pages<T>(&self, inputs: &AppendInputs<'_, T>) -> Result<()> {
        let (Some(max_pages), Some(table)) = (self.options.max_pages, inputs.page_table) else {
            return Ok(());
        };
        let AppendTensors { k, k_cache: TensorLayout { batch: pages, seqlen: page_size, .. }, .. } =
            self.tensors;
        for (batch, row) in table.chunks_exact(max_pages).enumerate().take(k.batch) {
            let used = inputs.seqused_k[batch] as usize;
            let written = used / page_size..(used + k.seqlen).div_ceil(page_size);
            for (index, &value) in row.iter().enumerate().take(written.end).skip(written.start) {
                if !usize::try_from(value).is_ok_and(|page| page < pages) {
                    return Err(Error::PageIndex { batch, index, value, pages });
                }
            }
        }
        Ok(())
    }
}

/// The heads of all rows, in order.
pub(super) fn rows_of(layout: &TensorLayout) -> impl Iterator<Item = NewRow> + use<> {
    let TensorLayout { batch, seqlen, heads, .. } = *layout;
    (0..batch).flat_map(move |batch| {
        (0..seqlen).flat_map(move |row| (0..heads).map(move |head| NewRow { batch, row, head }))
    })
}

/// Refuses more heads of a sequence's rows than a block's index reaches.
fn check_rows(tensor: &'static str, layout: &TensorLayout) -> Result<()> {
    let (value, limit) = (layout.seqlen.saturating_mul(layout.heads), u32::MAX as usize);
    if value > limit {
        return Err(Error::Extent { tensor, what: "seqlen · heads", value, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
