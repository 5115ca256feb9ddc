//! One decode problem: validated once here, trusted by everything after.

use super::cache::{CacheData, Descales, E4m3Cache};
use crate::forward::Dropout;
use crate::head_values::Heads;
use crate::{DType, Element, Error, Options, Problem, Result, TensorLayout, Tensors};

/// The most query rows of a sequence that are few: so many are read with the keys of their heads once.
pub const MAX_DECODE_SEQLEN_Q: usize = 16;

/// The most query rows of a sequence under a tree mask: bits of a word.
pub const MAX_TREE_SEQLEN_Q: usize = 64;

/// What is computed, beside the shapes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DecodeOptions {
    /// As of the forward pass, with the keys of each sequence for Sk; there is no dropout.
    pub attention: Options,
    /// Entries of each sequence in the page table; `None` where K and V are contiguous.
    pub max_pages: Option<usize>,
    /// Factors of K and V where they are in e4m3; `None` where they are in the type of Q.
    pub e4m3_cache: Option<E4m3Cache>,
    /// Whether queries are a tree of draft tokens, for speculative decoding: which of the newest Sq keys each
    /// sees, [`DecodeInputs::tree_mask`] says, and keys before those are seen by all. There is no causal mask
    /// then, no window and no ALiBi, and Sq is up to [`MAX_TREE_SEQLEN_Q`].
    pub tree_mask: bool,
    /// Whether K and V are one tensor, the latents of multi-head latent attention (MLA; arXiv:2405.04434): V
    /// is the first Dv columns of K, and [`DecodeInputs::v`] is not read. Query heads come with W_UK
    /// absorbed, and O before W_UV, so that D is up to 576 and Dv up to 512. It goes without `e4m3_cache`,
    /// `tree_mask` and packed queries.
    pub latent: bool,
}

/// A validated decode problem: attention of Sq query rows of each sequence, its newest, against its part of a
/// K/V cache. One row is a step of decoding, many are a part of a prompt.
///
/// Q is [B, Sq, H, D], O [B, Sq, H, Dv]. K is [B, Sk, Hkv, D], V [B, Sk, Hkv, Dv]; or pages,
/// [num_pages, page_size, Hkv, D or Dv] (the layout's batch and seqlen): then Sk = max_pages·page_size, and
/// key j of sequence b is row j mod page_size of page `page_table[b][j / page_size]`. Strides may be any, so
/// that pages may be [num_pages, Hkv, page_size, D] in memory. `lse` is as for [`Problem`]. K and V may be in
/// e4m3 where Q and O are in another type.
///
/// ```
/// use flash_attention::decode::{DecodeInputs, DecodeOptions, DecodeProblem, DecodeRequest};
/// use flash_attention::forward::Outputs;
/// use flash_attention::{Backend, BackendKind, DType, TensorLayout, Tensors};
///
/// let q = TensorLayout::bshd(2, 1, 8, 64); // two sequences, one query row each, 8 heads
/// let pages = TensorLayout::bshd(10, 16, 2, 64); // 10 pages of 16 keys, 2 key/value heads
/// let tensors = Tensors { q, k: pages, v: pages, o: q };
/// let options = DecodeOptions { max_pages: Some(4), ..DecodeOptions::default() };
/// let problem = DecodeProblem::new(tensors, DType::F32, options)?;
///
/// let backend = Backend::open(Some(BackendKind::Cpu))?;
/// let plan = backend.plan(&problem, &DecodeRequest::default())?;
/// let cache = vec![0.25_f32; pages.span()];
/// let inputs = DecodeInputs {
///     q: &cache[..q.span()],
///     k: (&cache).into(),
///     v: (&cache).into(),
///     seqused_k: Some(&[50, 3]),
///     page_table: Some(&[7, 1, 0, 9, /* the second sequence */ 2, -1, -1, -1]),
///     tree_mask: None,
/// };
/// let mut o = vec![0.0; q.span()];
/// backend.run(&plan, inputs, Outputs { o: &mut o, lse: None })?;
/// assert!((o[0] - 0.25).abs() < 1e-6);
/// # Ok::<(), flash_attention::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DecodeProblem {
    /// The same as if each sequence's pages were contiguous.
    dense: Problem,
    /// Layouts of K and V as they are.
    cache: [TensorLayout; 2],
    max_pages: Option<usize>,
    descales: Option<Descales>,
    tree_mask: bool,
    latent: bool,
}

/// Host tensors of a decode problem.
#[derive(Clone, Copy, Debug)]
pub struct DecodeInputs<'a, T> {
    /// Queries.
    pub q: &'a [T],
    /// Keys.
    pub k: CacheData<'a, T>,
    /// Values.
    pub v: CacheData<'a, T>,
    /// Keys of each sequence, `[B]`, 0 to Sk; `None` where all have Sk. What lies behind them is not read, or
    /// read and not used: it may be NaN.
    pub seqused_k: Option<&'a [i32]>,
    /// Pages of each sequence, [B, max_pages]; `None` where K and V are contiguous. Entries behind
    /// those that hold a sequence's keys may be anything.
    pub page_table: Option<&'a [i32]>,
    /// Which of the newest Sq keys each query sees, [B, Sq]: bit j of a row is the j-th of these, and others
    /// are not looked at; `None` where queries are no tree.
    pub tree_mask: Option<&'a [u64]>,
}

impl<'a, T> DecodeInputs<'a, T> {
    /// Contiguous keys and values, all of them used.
    pub fn new(q: &'a [T], k: impl Into<CacheData<'a, T>>, v: impl Into<CacheData<'a, T>>) -> Self {
        let (k, v) = (k.into(), v.into());
        Self { q, k, v, seqused_k: None, page_table: None, tree_mask: None }
    }
}

impl DecodeProblem {
    /// Validates shapes, strides and options.
    ///
    /// # Errors
    /// As [`Problem::new`], and when pages of V are others than those of K, weights are to be dropped, or
    /// factors of a cache in e4m3 are not positive and up to 2⁶⁴, or not one for each key/value head, or each
    /// sequence and key/value head, and when a tree has more than [`MAX_TREE_SEQLEN_Q`] query rows, another
    /// mask, or ALiBi, and when V of latents is not a part of K.
    pub fn new(tensors: Tensors, dtype: DType, options: DecodeOptions) -> Result<Self> {
        let (batch, latent) = (tensors.q.batch, options.latent);
        Self::validated(tensors, dtype, options, batch, |tensors, dtype, attention| {
            if latent {
                return Problem::of_latents(tensors, dtype, attention);
            }
            Problem::new(tensors, dtype, attention)
        })
    }

    /// Sequences of different numbers of query rows, packed: Q and O are [1, total_q, H, D or Dv], sequence
    /// b has the rows from `cu_seqlens_q[b]` to before `cu_seqlens_q[b + 1]`, and `lse` is [H, total_q]. K
    /// and V are as of [`Self::new`].
    ///
    /// # Errors
    /// As [`Self::new`], and for offsets as [`Problem::varlen`].
    pub fn varlen(
        tensors: Tensors,
        dtype: DType,
        options: DecodeOptions,
        cu_seqlens_q: &[u32],
    ) -> Result<Self> {
        let batch = cu_seqlens_q.len().saturating_sub(1);
        Self::validated(tensors, dtype, options, batch, |tensors, dtype, attention| {
            let (tensors, room) = packed_cache(tensors)?;
            let cu_seqlens_k = cu_seqlens_of_room(cu_seqlens_q.len(), room);
            Problem::varlen(tensors, dtype, attention, cu_seqlens_q, &cu_seqlens_k)
        })
    }

    /// As [`Self::varlen`], for offsets that the device alone has: `batch` sequences of at most
    /// `max_seqlen_q` rows each.
    ///
    /// # Errors
    /// As [`Self::varlen`].
    pub fn varlen_on_device(
        tensors: Tensors,
        dtype: DType,
        options: DecodeOptions,
        batch: usize,
        max_seqlen_q: usize,
    ) -> Result<Self> {
        Self::validated(tensors, dtype, options, batch, |tensors, dtype, attention| {
            let (tensors, room) = packed_cache(tensors)?;
            Problem::varlen_on_device(tensors, dtype, attention, batch, (max_seqlen_q, room))
        })
    }

    /// Validates the cache, and all else by `validate`, which gets K and V as if they were contiguous.
    fn validated(
        tensors: Tensors,
        dtype: DType,
        options: DecodeOptions,
        batch: usize,
        validate: impl FnOnce(Tensors, DType, Options) -> Result<Problem>,
    ) -> Result<Self> {
        dtype.check_as_result("decode")?;
        let Tensors { k, v, .. } = tensors;
        let mut dense = tensors;
        k.check("k")?;
        v.check("v")?;
        if options.latent {
            check_latents(&tensors, &options)?;
        }
        if let Some(max_pages) = options.max_pages {
            if max_pages == 0 {
                return Err(Error::EmptyAxis { tensor: "page_table", axis: "max_pages" });
            }
            for (axis, value, expected) in
                [("num_pages", v.batch, k.batch), ("page_size", v.seqlen, k.seqlen)]
            {
                if value != expected {
                    return Err(Error::ShapeMismatch { tensor: "v", axis, value, other: "k", expected });
                }
            }
            let contiguous = |pages: TensorLayout| {
                let room = pages.seqlen.saturating_mul(max_pages);
                TensorLayout::bshd(batch, room, pages.heads, pages.head_dim)
            };
            (dense.k, dense.v) = (contiguous(k), contiguous(v));
        }
        let DecodeOptions { attention, max_pages, e4m3_cache, tree_mask, latent } = options;
        if let Some(Dropout { probability: value, .. }) = attention.dropout {
            return Err(Error::DecodeDropout { value });
        }
        for (tensor, layout) in [("k", dense.k), ("v", dense.v)] {
            if layout.batch != batch {
                let (axis, value, other) = ("batch", layout.batch, "q");
                return Err(Error::ShapeMismatch { tensor, axis, value, other, expected: batch });
            }
        }
        let dense = validate(dense, dtype, attention)?;
        let heads = Heads { batch: dense.batch(), heads: dense.kv_heads() };
        let descales = e4m3_cache.map(|cache| Descales::new(&cache, heads)).transpose()?;
        if tree_mask {
            check_tree(&dense)?;
        }
        if latent && dense.is_packed() {
            return Err(Error::LatentBeside { name: "cu_seqlens_q" });
        }
        Ok(Self { dense, cache: [k, v], max_pages, descales, tree_mask, latent })
    }

    /// The same problem with offsets that a run has.
    ///
    /// # Errors
    /// When it is not of [`Self::varlen_on_device`], and as [`Self::varlen`] and for offsets beyond bounds.
    pub(super) fn with_cu_seqlens_q(&self, cu_seqlens_q: &[u32]) -> Result<Self> {
        let cu_seqlens_k = cu_seqlens_of_room(cu_seqlens_q.len(), self.dense.seqlen_k());
        Ok(Self { dense: self.dense.with_cu_seqlens(cu_seqlens_q, &cu_seqlens_k)?, ..self.clone() })
    }

    /// The same problem whose queries see all keys.
    pub(crate) fn without_window(&self) -> Self {
        Self { dense: self.dense.without_window(), ..self.clone() }
    }

    /// The same problem with each sequence's keys contiguous and all of them used: shapes, type, mask and
    /// scale, Q and O. Its K and V have the strides of this problem only where that is not paged.
    pub const fn dense(&self) -> &Problem {
        &self.dense
    }

    /// Layout of K: [B, Sk, Hkv, D] or [num_pages, page_size, Hkv, D].
    pub const fn k(&self) -> &TensorLayout {
        &self.cache[0]
    }

    /// Layout of V, as that of K.
    pub const fn v(&self) -> &TensorLayout {
        &self.cache[1]
    }

    /// Entries of each sequence in the page table, where K and V are pages.
    pub const fn max_pages(&self) -> Option<usize> {
        self.max_pages
    }

    /// Rows of a page; `None` where K and V are contiguous.
    pub(crate) fn page_size(&self) -> Option<usize> {
        self.max_pages.map(|_| self.k().seqlen)
    }

    /// Storage type of K and V: e4m3, or that of Q and O.
    pub const fn cache_dtype(&self) -> DType {
        if self.descales.is_some() { DType::E4m3 } else { self.dense.dtype() }
    }

    /// Factors of K and V where they are in e4m3.
    pub(super) const fn descales(&self) -> Option<&Descales> {
        self.descales.as_ref()
    }

    /// Whether queries are a tree of draft tokens.
    pub const fn has_tree_mask(&self) -> bool {
        self.tree_mask
    }

    /// Whether V is a part of K.
    pub const fn is_latent(&self) -> bool {
        self.latent
    }

    /// V: a tensor of its own, or K.
    pub(super) const fn values<'a, T>(&self, inputs: &DecodeInputs<'a, T>) -> CacheData<'a, T>
    where
        T: Copy,
    {
        if self.latent { inputs.k } else { inputs.v }
    }

    /// The keys that a query sees, in order.
    pub(super) fn visible_keys<T>(
        &self,
        inputs: &DecodeInputs<'_, T>,
        batch: usize,
        row: usize,
    ) -> Vec<usize> {
        let (used, rows) = (self.used(inputs, batch), self.dense.seqlen_q());
        let Some(mask) = inputs.tree_mask else { return (0..used).collect() };
        let bits = mask[batch * rows + row];
        // Key j is number j + Sq - used of the newest ones.
        let is_seen = |&key: &usize| key + rows < used || bits >> (key + rows - used) & 1 == 1;
        (0..used).filter(is_seen).collect()
    }

    /// Packed rows: query rows of a sequence that share a key/value head.
    pub fn packed_rows(&self) -> usize {
        self.dense.packed_rows()
    }

    /// Keys of a sequence.
    pub fn used<T>(&self, inputs: &DecodeInputs<'_, T>, batch: usize) -> usize {
        inputs.seqused_k.map_or(self.dense.seqlen_k(), |used| used[batch] as usize)
    }

    /// Bytes of K and V that the sequences use: what any kernel must read at least.
    pub fn cache_bytes<T>(&self, inputs: &DecodeInputs<'_, T>) -> u64 {
        let keys: usize = (0..self.dense.batch()).map(|batch| self.used(inputs, batch)).sum();
        let of_values = if self.latent { 0 } else { self.dense.head_dim_v() };
        let columns = self.dense.head_dim() + of_values;
        (keys * self.dense.kv_heads() * columns * self.cache_dtype().bytes()) as u64
    }

    /// Element index of the first column of a key in `cache`, which is the layout of K or of V.
    ///
    /// # Panics
    /// When the page table is shorter than the sequence.
    pub fn row<T>(
        &self,
        cache: &TensorLayout,
        inputs: &DecodeInputs<'_, T>,
        batch: usize,
        key: usize,
        kv_head: usize,
    ) -> usize {
        match (self.max_pages, inputs.page_table) {
            (Some(max_pages), Some(table)) => {
                let page = table[batch * max_pages + key / cache.seqlen] as usize;
                cache.row(page, key % cache.seqlen, kv_head)
            }
            _ => cache.row(batch, key, kv_head),
        }
    }

    /// Checks lists whose lengths were checked: the keys that are used and the pages that hold them.
    pub(super) fn check_lists<T: Element>(&self, inputs: &DecodeInputs<'_, T>) -> Result<()> {
        let (dense, batch) = (&self.dense, self.dense.batch());
        if inputs.tree_mask.is_some() != self.tree_mask {
            return Err(Error::TreeMaskPresence { has_tree: self.tree_mask });
        }
        if inputs.page_table.is_some() != self.max_pages.is_some() {
            return Err(Error::PageTablePresence { paged: self.max_pages.is_some() });
        }
        for (batch, &value) in inputs.seqused_k.unwrap_or_default().iter().enumerate().take(batch) {
            let limit = dense.seqlen_k();
            if usize::try_from(value).is_ok_and(|value| value <= limit) {
                continue;
            }
            return Err(Error::SeqUsed { batch, value, limit });
        }
        self.check_pages(inputs)
    }

    /// Checks the page table's entries that hold keys.
    fn check_pages<T>(&self, inputs: &DecodeInputs<'_, T>) -> Result<()> {
        let (Some(max_pages), Some(table)) = (self.max_pages, inputs.page_table) else { return Ok(()) };
        let [k, _] = self.cache;
        for (batch, row) in table.chunks_exact(max_pages).enumerate().take(self.dense.batch()) {
            let pages = self.used(inputs, batch).div_ceil(k.seqlen);
            for (index, &value) in row.iter().enumerate().take(pages) {
                if !usize::try_from(value).is_ok_and(|page| page < k.batch) {
                    return Err(Error::PageIndex { batch, index, value, pages: k.batch });
                }
            }
        }
        Ok(())
    }
}

/// Refuses a tree of too many queries, or with another mask or ALiBi.
fn check_tree(dense: &Problem) -> Result<()> {
    let (value, limit) = (dense.seqlen_q(), MAX_TREE_SEQLEN_Q);
    if value > limit {
        return Err(Error::SeqLen { tensor: "q", value, limit });
    }
    let others = [
        ("causal", dense.causal()),
        ("window", dense.window() != (None, None)),
        ("alibi_slopes", dense.per_head().alibi_slopes.is_some()),
        ("cu_seqlens_q", dense.is_packed()),
    ];
    match others.into_iter().find(|&(_, is_there)| is_there) {
        Some((name, _)) => Err(Error::TreeMaskBeside { name }),
        None => Ok(()),
    }
}

/// Refuses latents whose values are no part of them, or beside what they do not go with.
fn check_latents(tensors: &Tensors, options: &DecodeOptions) -> Result<()> {
    let Tensors { k, v, .. } = *tensors;
    if v.head_dim > k.head_dim || v != (TensorLayout { head_dim: v.head_dim, ..k }) {
        return Err(Error::LatentValues { head_dim_v: v.head_dim });
    }
    let others = [("e4m3_cache", options.e4m3_cache.is_some()), ("tree_mask", options.tree_mask)];
    match others.into_iter().find(|&(_, is_there)| is_there) {
        Some((name, _)) => Err(Error::LatentBeside { name }),
        None => Ok(()),
    }
}

/// Where so many sequences, and what follows the last, begin that have so much room each.
fn cu_seqlens_of_room(offsets: usize, room: usize) -> Vec<u32> {
    // `packed_cache` bounds the last, which is the largest.
    (0..offsets).map(|index| (index * room) as u32).collect()
}

/// K and V as if all sequences' room lay behind one another, and that room.
fn packed_cache(tensors: Tensors) -> Result<(Tensors, usize)> {
    let Tensors { k, v, .. } = tensors;
    let (limit, value) = (u32::MAX as usize, k.batch.saturating_mul(k.seqlen));
    if value > limit {
        return Err(Error::SeqLen { tensor: "k", value, limit });
    }
    let packed =
        |cache: TensorLayout| TensorLayout::bshd(1, cache.batch * cache.seqlen, cache.heads, cache.head_dim);
    if v.seqlen != k.seqlen {
        let (axis, value, expected) = ("seqlen", v.seqlen, k.seqlen);
        return Err(Error::ShapeMismatch { tensor: "v", axis, value, other: "k", expected });
    }
    Ok((Tensors { k: packed(k), v: packed(v), ..tensors }, k.seqlen))
}

#[cfg(test)]
mod tests;
