//! One decode problem: validated once here, trusted by everything after.

use super::cache::{CacheData, Descales, E4m3Cache};
use crate::forward::Dropout;
use crate::options::Heads;
use crate::{DType, Element, Error, Options, Problem, Result, TensorLayout, Tensors};

/// The most query rows of a sequence: more are better served by the forward kernels.
pub const MAX_DECODE_SEQLEN_Q: usize = 16;

/// What is computed, beside the shapes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DecodeOptions {
    /// As of the forward pass, with the keys of each sequence for Sk; there is no dropout.
    pub attention: Options,
    /// Entries of each sequence in the page table; `None` where K and V are contiguous.
    pub max_pages: Option<usize>,
    /// Factors of K and V where they are in e4m3; `None` where they are in the type of Q.
    pub e4m3_cache: Option<E4m3Cache>,
}

/// A validated decode problem: attention of Sq ≤ 16 query rows of each sequence against its part of a K/V
/// cache.
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
}

impl DecodeProblem {
    /// Validates shapes, strides and options.
    ///
    /// # Errors
    /// As [`Problem::new`], and when a sequence has more than [`MAX_DECODE_SEQLEN_Q`] query rows, pages of V
    /// are others than those of K, weights are to be dropped, or factors of a cache in e4m3 are not positive
    /// and up to 2⁶⁴, or not one for each key/value head, or each sequence and key/value head.
    pub fn new(tensors: Tensors, dtype: DType, options: DecodeOptions) -> Result<Self> {
        dtype.check_as_result("decode")?;
        let Tensors { q, k, v, .. } = tensors;
        let mut dense = tensors;
        if let Some(max_pages) = options.max_pages {
            k.check("k")?;
            v.check("v")?;
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
                TensorLayout::bshd(
                    q.batch,
                    pages.seqlen.saturating_mul(max_pages),
                    pages.heads,
                    pages.head_dim,
                )
            };
            (dense.k, dense.v) = (contiguous(k), contiguous(v));
        }
        let DecodeOptions { attention, max_pages, e4m3_cache } = options;
        if let Some(Dropout { probability: value, .. }) = attention.dropout {
            return Err(Error::DecodeDropout { value });
        }
        let dense = Problem::new(dense, dtype, attention)?;
        if q.seqlen > MAX_DECODE_SEQLEN_Q {
            return Err(Error::SeqLen { tensor: "q", value: q.seqlen, limit: MAX_DECODE_SEQLEN_Q });
        }
        let heads = Heads { batch: dense.batch(), heads: dense.kv_heads() };
        let descales = e4m3_cache.map(|cache| Descales::new(&cache, heads)).transpose()?;
        Ok(Self { dense, cache: [k, v], max_pages, descales })
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

    /// Storage type of K and V: e4m3, or that of Q and O.
    pub const fn cache_dtype(&self) -> DType {
        if self.descales.is_some() { DType::E4m3 } else { self.dense.dtype() }
    }

    /// Factors of K and V where they are in e4m3.
    pub(super) const fn descales(&self) -> Option<&Descales> {
        self.descales.as_ref()
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
        let columns = self.dense.head_dim() + self.dense.head_dim_v();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;
    use crate::decode::DecodeRequest;
    use crate::forward::Outputs;

    fn tensors(sq: usize, k: TensorLayout) -> Tensors {
        let q = TensorLayout::bshd(2, sq, 4, 8);
        Tensors { q, k, v: k, o: q }
    }

    fn paged(max_pages: usize) -> Result<DecodeProblem> {
        let options = DecodeOptions { max_pages: Some(max_pages), ..DecodeOptions::default() };
        DecodeProblem::new(tensors(1, TensorLayout::bshd(5, 16, 2, 8)), DType::F32, options)
    }

    fn check(problem: &DecodeProblem, seqused_k: Option<&[i32]>, page_table: Option<&[i32]>) -> Result<()> {
        let (q, kv) = (vec![0.0_f32; 64], vec![0.0; 5 * 16 * 16]);
        let (k, v) = ((&kv).into(), (&kv).into());
        let inputs = DecodeInputs { q: &q, k, v, seqused_k, page_table };
        let (mut o, mut lse) = ([0.0; 64], [0.0; 8]);
        let mut outputs = Outputs { o: &mut o, lse: Some(&mut lse) };
        let plan = Plan::new(problem, &crate::cpu::backend::device(), &DecodeRequest::default())?;
        plan.check(plan.device(), inputs, &mut outputs)
    }

    fn message(seqused_k: Option<&[i32]>, page_table: Option<&[i32]>) -> String {
        check(&paged(3).unwrap(), seqused_k, page_table).unwrap_err().to_string()
    }

    #[test]
    fn pages_make_up_the_sequence() {
        let problem = paged(3).unwrap();
        assert_eq!((problem.dense().seqlen_k(), problem.dense().batch()), (48, 2));
        assert_eq!(problem.packed_rows(), 2);
    }

    #[test]
    fn each_refusal_names_argument_value_and_limit() {
        let long = tensors(17, TensorLayout::bshd(2, 40, 2, 8));
        let error = DecodeProblem::new(long, DType::F16, DecodeOptions::default()).unwrap_err().to_string();
        assert_eq!(error, "q: seqlen is 17; the limit is 16");
        let error = paged(0).unwrap_err().to_string();
        assert_eq!(error, "page_table: axis max_pages has length 0; at least 1 is needed");
        let pages = tensors(1, TensorLayout::bshd(5, 16, 2, 8));
        let short = Tensors { v: TensorLayout::bshd(5, 8, 2, 8), ..pages };
        let options = DecodeOptions { max_pages: Some(3), ..DecodeOptions::default() };
        let error = DecodeProblem::new(short, DType::F16, options).unwrap_err().to_string();
        assert_eq!(error, "v: page_size is 8, but k has 16");
        let options = |attention| DecodeOptions { attention, ..DecodeOptions::default() };
        let refused = |attention| {
            let tensors = tensors(1, TensorLayout::bshd(2, 40, 2, 8));
            DecodeProblem::new(tensors, DType::F16, options(attention)).unwrap_err().to_string()
        };
        let error = refused(Options { softcap: -1.0, ..Options::default() });
        assert!(error.starts_with("softcap is -1"), "{error}");
        let dropout = Some(Dropout { probability: 0.5, seed: 1, offset: 0 });
        let error = refused(Options { dropout, ..Options::default() });
        assert_eq!(error, "dropout probability is 0.5; decode drops no weights");
        let error = paged(usize::MAX).unwrap_err().to_string();
        assert!(error.contains("exceeds the address space"), "{error}");
        let table = [0, 1, 2, 3, 4, 5];
        assert_eq!(message(None, None), "page_table is missing: K and V are pages");
        assert_eq!(
            message(None, Some(&table[..5])),
            "page_table: buffer has 5 elements; its shape and strides reach 6"
        );
        assert_eq!(message(None, Some(&table)), "page_table[1][2] is 5; there are 5 pages");
        assert_eq!(
            message(Some(&[48, 49]), Some(&table)),
            "seqused_k[1] is 49; a sequence has room for 48 keys"
        );
        assert_eq!(
            message(Some(&[-1, 0]), Some(&table)),
            "seqused_k[0] is -1; a sequence has room for 48 keys"
        );
        assert_eq!(
            message(Some(&[48, 33]), Some(&[0, 1, -1, 0, 0, 0])),
            "page_table[0][2] is -1; there are 5 pages"
        );
    }

    #[test]
    fn entries_behind_the_keys_may_be_anything() {
        let problem = paged(3).unwrap();
        let (q, kv) = (vec![0.0_f32; 64], vec![0.0; 5 * 16 * 16]);
        let inputs = DecodeInputs {
            q: &q,
            k: (&kv).into(),
            v: (&kv).into(),
            seqused_k: Some(&[32, 0]),
            page_table: Some(&[4, 0, -7, 99, 99, 99]),
        };
        check(&problem, inputs.seqused_k, inputs.page_table).unwrap();
        assert_eq!(problem.cache_bytes(&inputs), 2 * 32 * 2 * 8 * 4);
    }
}
