//! One attention problem: validated once here, trusted by everything after.

use std::ops::Range;
use std::sync::Arc;

use fa_kernels::params;

use crate::forward::Dropout;
use crate::functions::Functions;
use crate::head_values::Heads;
use crate::options::{Options, PerHead, Scores};
use crate::used_keys::UsedKeys;
use crate::varlen::Sequences;
use crate::{DType, Error, Result, TensorLayout};

/// The largest head_dim that the kernels hold.
pub const MAX_HEAD_DIM: usize = 256;

/// The largest head_dims of Q and K, and of V, whose keys are latents
/// ([`DecodeOptions::latent`](crate::decode::DecodeOptions::latent)).
pub const MAX_LATENT_HEAD_DIMS: [usize; 2] = [576, 512];

/// The longest sequence: row indices and their differences stay inside 32 bits with room for a tile.
pub const MAX_SEQLEN: usize = 1 << 30;

/// Shapes and strides of the four tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensors {
    /// Queries, [B, Sq, H, D].
    pub q: TensorLayout,
    /// Keys, [B, Sk, Hkv, D] where Hkv divides H.
    pub k: TensorLayout,
    /// Values, [B, Sk, Hkv, Dv]; Dv may differ from D.
    pub v: TensorLayout,
    /// Output, [B, Sq, H, Dv].
    pub o: TensorLayout,
}

/// A validated attention problem: O = softmax(softmax_scale · Q·Kᵀ + mask) · V for each batch and head, the
/// scaled scores changed before the mask where [`Options`] says so.
///
/// Query head h reads key/value head h / (heads / kv_heads): multi-head, grouped-query and multi-query
/// attention are one case. `lse`, the log-sum-exp of each row of scaled scores, is natural-log, fp32 and
/// contiguous [B, H, Sq] ([H, total_q] for [`Problem::varlen`]). A row that sees no key gives 0 and −∞.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    tensors: Tensors,
    dtype: DType,
    window: (Option<usize>, Option<usize>),
    scores: Scores,
    dropout: Option<params::Dropout>,
    functions: Option<Arc<Functions>>,
    /// Where the sequences lie, if not each at an index of its own.
    sequences: Option<Arc<Sequences>>,
    /// How many of its keys each sequence uses, if not all.
    used_keys: Option<UsedKeys>,
    /// Elements of `lse` from one sequence to the next and from one head to the next, if it is not
    /// contiguous.
    lse_strides: Option<[usize; 2]>,
}

impl Problem {
    /// Validates shapes, strides and options.
    ///
    /// # Errors
    /// Names the tensor, the axis, its value and the limit when a shape is empty, mismatched, too large, or
    /// not contiguous in its last dimension, when kv_heads does not divide heads, when the output overlaps
    /// itself, when `softmax_scale` is no number up to 2⁶⁴, when `softcap` is neither 0 nor positive and at
    /// most [`MAX_SOFTCAP`](crate::forward::MAX_SOFTCAP), or `softmax_scale` divided by it is no normal
    /// number, when `alibi_slopes` or `sinks` are not `[H]` or `[B, H]` finite numbers, when the probability
    /// of dropout is not 0 to below 1, when factors of `descale` are not positive and up to 2⁶⁴, or of
    /// tensors that are not in e4m3, and when `functions` are beside a softcap, ALiBi or dropout, read too
    /// many tensors, or are of tensors in e4m3.
    pub fn new(tensors: Tensors, dtype: DType, options: Options) -> Result<Self> {
        Self::validated(tensors, dtype, options, None, [MAX_HEAD_DIM; 2])
    }

    /// As [`Self::new`], with head_dims of latents.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn of_latents(tensors: Tensors, dtype: DType, options: Options) -> Result<Self> {
        Self::validated(tensors, dtype, options, None, MAX_LATENT_HEAD_DIMS)
    }

    /// A batch of sequences of different lengths, packed: Q and O are [1, total_q, H, D], K and V
    /// [1, total_k, Hkv, D], and sequence b has the rows from `cu_seqlens[b]` to before `cu_seqlens[b + 1]`
    /// of each. `lse` is [H, total_q], as that of FlashAttention's varlen functions.
    ///
    /// A sequence may have no queries, or no keys. Rows of O and `lse` past the last sequence are left alone.
    ///
    /// # Errors
    /// As [`Self::new`], and when Q has a batch axis, or offsets do not start at 0, decrease, or pass the
    /// total.
    pub fn varlen(
        tensors: Tensors,
        dtype: DType,
        options: Options,
        cu_seqlens_q: &[u32],
        cu_seqlens_k: &[u32],
    ) -> Result<Self> {
        if tensors.q.batch != 1 {
            return Err(Error::PackedBatch { batch: tensors.q.batch });
        }
        let (total_q, total_k) = (tensors.q.seqlen, tensors.k.seqlen);
        let sequences = Sequences::new(cu_seqlens_q, cu_seqlens_k, total_q, total_k)?;
        Self::validated(tensors, dtype, options, Some(Arc::new(sequences)), [MAX_HEAD_DIM; 2])
    }

    /// As [`Self::varlen`], for offsets that the device alone has: `batch` sequences, of at most
    /// `max_seqlen_q` and `max_seqlen_k` rows each. Plans do for any offsets within these bounds, so that a
    /// CUDA graph can be replayed with others; [`Plan::with_cu_seqlens`](crate::Plan::with_cu_seqlens) gives
    /// them to a run on host tensors.
    ///
    /// # Errors
    /// As [`Self::varlen`].
    pub fn varlen_on_device(
        tensors: Tensors,
        dtype: DType,
        options: Options,
        batch: usize,
        (max_seqlen_q, max_seqlen_k): (usize, usize),
    ) -> Result<Self> {
        if tensors.q.batch != 1 {
            return Err(Error::PackedBatch { batch: tensors.q.batch });
        }
        let totals = (tensors.q.seqlen, tensors.k.seqlen);
        let sequences = Sequences::on_device(batch, (max_seqlen_q, max_seqlen_k), totals)?;
        Self::validated(tensors, dtype, options, Some(Arc::new(sequences)), [MAX_HEAD_DIM; 2])
    }

    /// The same problem, of whose lengths the host has bounds alone: a packed batch as one of
    /// [`Self::varlen_on_device`], of sequences of at most so many rows each, and used keys as those of
    /// [`Self::with_seqused_k_on_device`].
    ///
    /// # Errors
    /// As [`Self::varlen_on_device`].
    pub fn on_device(&self, max_seqlens: (usize, usize)) -> Result<Self> {
        let used_keys = self.used_keys.as_ref().map(|_| UsedKeys::ON_DEVICE);
        let Some(sequences) = &self.sequences else { return Ok(Self { used_keys, ..self.clone() }) };
        let totals = (self.tensors.q.seqlen, self.tensors.k.seqlen);
        let sequences = Sequences::on_device(sequences.batch(), max_seqlens, totals)?;
        Ok(Self { sequences: Some(Arc::new(sequences)), used_keys, ..self.clone() })
    }

    /// The same problem, where sequence b has the first `seqused_k[b]` of its keys alone, int32 `[B]` as
    /// FlashAttention-3's: masks and the distances of ALiBi are aligned to the last of these. What lies in K
    /// and V behind them does not matter, be it NaN; they have no gradient, and their rows of dK and dV are
    /// left alone.
    ///
    /// Plans do for any numbers, so that a CUDA graph can be replayed with others.
    ///
    /// # Errors
    /// When there is not one for each sequence, or one is negative or more than the sequence has keys.
    pub fn with_seqused_k(&self, seqused_k: &[i32]) -> Result<Self> {
        let used_keys = UsedKeys::new(seqused_k, self.batch(), |batch| self.key_room(batch))?;
        Ok(Self { used_keys: Some(used_keys), ..self.clone() })
    }

    /// As [`Self::with_seqused_k`], for numbers that the device alone has. There, more keys than a sequence
    /// has count as all, and fewer than none as none. [`Plan::with_seqused_k`](crate::Plan::with_seqused_k)
    /// gives them to a run on host tensors.
    #[must_use]
    pub fn with_seqused_k_on_device(&self) -> Self {
        Self { used_keys: Some(UsedKeys::ON_DEVICE), ..self.clone() }
    }

    /// As [`Self::with_seqused_k`], for a run of a plan.
    ///
    /// # Errors
    /// When its sequences use all keys, and as [`Self::with_seqused_k`].
    pub(crate) fn with_seqused_k_of_run(&self, seqused_k: &[i32]) -> Result<Self> {
        if !self.has_seqused_k() {
            return Err(Error::SeqUsedPlanned);
        }
        self.with_seqused_k(seqused_k)
    }

    /// The same problem with offsets that a run has.
    ///
    /// # Errors
    /// When it is not of [`Self::varlen_on_device`], and as [`Self::varlen`] and for offsets beyond bounds.
    pub(crate) fn with_cu_seqlens(&self, q: &[u32], k: &[u32]) -> Result<Self> {
        let Some(sequences) = &self.sequences else {
            return Err(Error::CuSeqlensPlanned);
        };
        let sequences = sequences.with(q, k, (self.tensors.q.seqlen, self.tensors.k.seqlen))?;
        let problem = Self { sequences: Some(Arc::new(sequences)), ..self.clone() };
        match self.seqused_k() {
            Some(used) => problem.with_seqused_k(used),
            None => Ok(problem),
        }
    }

    /// The same problem, whose `lse` is a view: its rows are contiguous, its heads `stride_head` elements
    /// apart and its sequences `stride_batch`, as of some heads, or some rows, of a larger one.
    ///
    /// The forward pass takes such a view. Few queries then are a kernel's for many.
    ///
    /// # Errors
    /// When the batch is packed, elements overlap, or reach beyond the address space.
    pub fn with_lse_strides(&self, stride_batch: usize, stride_head: usize) -> Result<Self> {
        if self.is_packed() {
            return Err(Error::PackedLse);
        }
        let strided = Self { lse_strides: Some([stride_batch, stride_head]), ..self.clone() };
        let layout = strided.lse_layout();
        layout.check("lse")?;
        layout.check_disjoint("lse")?;
        Ok(strided)
    }

    /// The same problem, whose `lse` is contiguous.
    pub(crate) fn without_lse_strides(self) -> Self {
        Self { lse_strides: None, ..self }
    }

    fn validated(
        tensors: Tensors,
        dtype: DType,
        options: Options,
        sequences: Option<Arc<Sequences>>,
        limits: [usize; 2],
    ) -> Result<Self> {
        let Tensors { q, k, v, o } = &tensors;
        for (tensor, value, limit) in [("", q.head_dim, limits[0]), ("v: ", v.head_dim, limits[1])] {
            if !(1..=limit).contains(&value) {
                return Err(Error::HeadDim { tensor, value, limit });
            }
        }
        for (layout, name) in [(q, "q"), (k, "k"), (v, "v"), (o, "o")] {
            layout.check(name)?;
        }
        let matches = |tensor, axis, value, other, expected| {
            if value == expected {
                Ok(())
            } else {
                Err(Error::ShapeMismatch { tensor, axis, value, other, expected })
            }
        };
        for (layout, name) in [(k, "k"), (v, "v"), (o, "o")] {
            matches(name, "batch", layout.batch, "q", q.batch)?;
        }
        matches("k", "head_dim", k.head_dim, "q", q.head_dim)?;
        matches("o", "head_dim", o.head_dim, "v", v.head_dim)?;
        matches("v", "seqlen", v.seqlen, "k", k.seqlen)?;
        matches("v", "heads", v.heads, "k", k.heads)?;
        matches("o", "seqlen", o.seqlen, "q", q.seqlen)?;
        matches("o", "heads", o.heads, "q", q.heads)?;
        if q.heads % k.heads != 0 {
            return Err(Error::KvHeads { heads: q.heads, kv_heads: k.heads });
        }
        for (layout, tensor) in [(q, "q"), (k, "k")] {
            if layout.seqlen > MAX_SEQLEN {
                return Err(Error::SeqLen { tensor, value: layout.seqlen, limit: MAX_SEQLEN });
            }
        }
        o.check_disjoint("o")?;
        let batch = sequences.as_ref().map_or(q.batch, |sequences| sequences.batch());
        let scores = Scores::new(&options, dtype, q.head_dim, (Heads { batch, heads: q.heads }, k.heads))?;
        let (left, right) = options.window;
        let window = (left, if options.causal { Some(0) } else { right });
        let dropout = options.dropout.map_or(Ok(None), Dropout::validated)?;
        let rows = sequences.as_ref().map_or([q.seqlen, k.seqlen], |sequences| sequences.longest());
        let heads = ([batch, q.heads], rows);
        let functions = Functions::validated(&options, (dtype, scores.softmax_scale), heads)?;
        let (used_keys, lse_strides) = (None, None);
        Ok(Self { tensors, dtype, window, scores, dropout, functions, sequences, used_keys, lse_strides })
    }

    /// The same attention of some heads of one sequence, over tensors of their own.
    ///
    /// # Errors
    /// As [`Self::new`], for the tensors.
    pub(crate) fn part(&self, tensors: Tensors, batch: usize, heads: Range<usize>) -> Result<Self> {
        self.part_in_window(tensors, batch, heads, self.window)
    }

    /// As [`Self::part`], of a window of its own.
    ///
    /// # Errors
    /// As [`Self::new`], for the tensors.
    pub(crate) fn part_in_window(
        &self,
        tensors: Tensors,
        batch: usize,
        heads: Range<usize>,
        window: (Option<usize>, Option<usize>),
    ) -> Result<Self> {
        let options = Options { window, ..self.scores.options(batch, &heads) };
        Self::validated(tensors, self.dtype, options, None, [self.head_dim(), self.head_dim_v()])
    }

    /// The same attention of some sequences of a packed batch, over tensors of their own.
    ///
    /// # Errors
    /// As [`Self::varlen`].
    pub(crate) fn some_sequences(
        &self,
        tensors: Tensors,
        sequences: &[usize],
        (cu_seqlens_q, cu_seqlens_k): (&[u32], &[u32]),
    ) -> Result<Self> {
        let of = |&sequence: &usize| self.scores.options(sequence, &(0..self.heads()));
        let each: Vec<_> = sequences.iter().map(of).collect();
        let list = |of: fn(&Options) -> &Option<Vec<f32>>| {
            each.iter()
                .map(|options| of(options).as_deref())
                .collect::<Option<Vec<_>>>()
                .map(|all| all.concat())
        };
        let options = Options {
            window: self.window,
            softmax_scale: Some(self.softmax_scale()),
            softcap: self.softcap(),
            alibi_slopes: list(|options| &options.alibi_slopes),
            sinks: list(|options| &options.sinks),
            ..Options::default()
        };
        Self::varlen(tensors, self.dtype, options, cu_seqlens_q, cu_seqlens_k)
    }

    /// The same attention with K and V multiplied by a factor each.
    pub(crate) fn with_cache_descale(mut self, [k, v]: [f32; 2]) -> Self {
        self.scores.softmax_scale *= k;
        self.scores.v_descale *= v;
        self
    }

    /// The same attention whose queries see all keys.
    pub(crate) fn without_window(&self) -> Self {
        Self { window: (None, None), ..self.clone() }
    }

    /// The same attention of so many sequences with `seqlen` rows and keys each, contiguous: to be planned,
    /// not run.
    pub(crate) fn standing_for(&self, batch: usize, seqlen: usize) -> Self {
        let of = |layout: TensorLayout| TensorLayout::bshd(batch, seqlen, layout.heads, layout.head_dim);
        let Tensors { q, k, v, o } = self.tensors;
        let tensors = Tensors { q: of(q), k: of(k), v: of(v), o: of(o) };
        Self { tensors, sequences: None, used_keys: None, lse_strides: None, ..self.clone() }
    }

    /// Shapes and strides.
    pub const fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Storage type of Q, K and V; that of O is its [`DType::output`].
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// The window (left, right) that keys must lie in; the causal mask is a right side of 0.
    pub const fn window(&self) -> (Option<usize>, Option<usize>) {
        self.window
    }

    /// Whether no query sees a key that comes after it.
    pub const fn causal(&self) -> bool {
        matches!(self.window.1, Some(0))
    }

    /// Factor on Q·Kᵀ as it is stored: the scale asked for, times the factors of Q and K, but for those of
    /// heads.
    pub const fn softmax_scale(&self) -> f32 {
        self.scores.softmax_scale
    }

    /// Factor on V as it is stored, but for those of heads: 1 unless [`Options::descale`] says otherwise.
    pub const fn v_descale(&self) -> f32 {
        self.scores.v_descale
    }

    /// Bound of softcap · tanh(s / softcap) on scaled scores s; 0 for none.
    pub const fn softcap(&self) -> f32 {
        self.scores.softcap
    }

    /// What changes scores.
    pub(crate) const fn scores(&self) -> &Scores {
        &self.scores
    }

    /// Whether anything but a factor and the mask lies between Q·Kᵀ and the softmax.
    pub const fn changes_scores(&self) -> bool {
        self.scores.changes_scores() || self.functions.is_some()
    }

    /// Functions of its scores.
    pub fn functions(&self) -> Option<&Functions> {
        self.functions.as_deref()
    }

    /// Which weights are dropped, as kernels take it; nothing where none are.
    pub const fn dropout(&self) -> Option<&params::Dropout> {
        self.dropout.as_ref()
    }

    /// Slopes of ALiBi, `[H]` or `[B, H]`; none of them where the device alone has the values.
    pub fn alibi_slopes(&self) -> Option<&[f32]> {
        self.per_head().alibi_slopes
    }

    /// The lists that the problem has with a value for each head; none where the device alone has the values.
    pub fn per_head(&self) -> PerHead<&[f32]> {
        self.scores.per_head()
    }

    /// Slope of a head; 0 without ALiBi.
    #[inline]
    pub fn alibi_slope(&self, batch: usize, head: usize) -> f32 {
        self.scores.alibi_slope(batch, head)
    }

    /// Number of sequences, B.
    pub fn batch(&self) -> usize {
        self.sequences.as_ref().map_or(self.tensors.q.batch, |sequences| sequences.batch())
    }

    /// First row of each sequence and of what follows the last, [B + 1], of queries and of keys, in a packed
    /// batch whose offsets the host has.
    pub fn cu_seqlens(&self) -> Option<(&[u32], &[u32])> {
        let sequences = self.sequences.as_ref().filter(|sequences| sequences.is_given())?;
        Some((sequences.q.offsets(), sequences.k.offsets()))
    }

    /// Whether sequences of different lengths lie behind one another.
    pub const fn is_packed(&self) -> bool {
        self.sequences.is_some()
    }

    /// Whether rows of Q and O may be no sequence's: those behind the last one of a packed batch.
    pub(crate) fn leaves_queries(&self) -> bool {
        self.sequences.as_ref().is_some_and(|of| of.q.end() < self.tensors.q.seqlen)
    }

    /// The same of K and V; also those behind the keys that a sequence uses.
    pub(crate) fn leaves_keys(&self) -> bool {
        let is_longer = |of: &Arc<Sequences>| of.k.end() < self.tensors.k.seqlen;
        self.has_seqused_k() || self.sequences.as_ref().is_some_and(is_longer)
    }

    /// Keys that each sequence uses, `[B]`, of [`Self::with_seqused_k`].
    pub fn seqused_k(&self) -> Option<&[i32]> {
        self.used_keys.as_ref().and_then(UsedKeys::values)
    }

    /// Whether sequences may use fewer keys than they have.
    pub const fn has_seqused_k(&self) -> bool {
        self.used_keys.is_some()
    }

    /// Whether K and V may have rows behind the keys of a sequence, which a tensor map does not clip.
    pub(crate) const fn has_rows_behind_keys(&self) -> bool {
        self.is_packed() || self.has_seqused_k()
    }

    /// Whether launches may not rely on the sequences' offsets.
    pub(crate) fn has_bounds_alone(&self) -> bool {
        self.sequences.as_ref().is_some_and(|sequences| !sequences.is_planned())
    }

    /// Rows of Q and O along their sequence axis that are a sequence's; about as many where the device alone
    /// has the offsets.
    #[inline]
    pub fn query_rows(&self, batch: usize) -> Range<usize> {
        self.sequences.as_ref().map_or(0..self.tensors.q.seqlen, |sequences| sequences.q.rows(batch))
    }

    /// Rows of K and V along their sequence axis that are a sequence's and that it uses; about as many where
    /// the device alone has the offsets, and all of them where it has the numbers of used keys.
    #[inline]
    pub fn key_rows(&self, batch: usize) -> Range<usize> {
        let rows = self.all_key_rows(batch);
        match &self.used_keys {
            Some(used) => rows.start..rows.start + used.of(batch, rows.len()),
            None => rows,
        }
    }

    /// As [`Self::key_rows`], with those that it does not use.
    #[inline]
    fn all_key_rows(&self, batch: usize) -> Range<usize> {
        self.sequences.as_ref().map_or(0..self.tensors.k.seqlen, |sequences| sequences.k.rows(batch))
    }

    /// The most keys that a sequence may use.
    fn key_room(&self, batch: usize) -> usize {
        let is_bounded = self.sequences.as_ref().is_some_and(|sequences| !sequences.is_given());
        if is_bounded { self.seqlen_k() } else { self.all_key_rows(batch).len() }
    }

    /// Index in Q or O, whose layout is given, of the first element of a sequence's row.
    #[inline]
    pub fn query_index(&self, layout: &TensorLayout, batch: usize, row: usize, head: usize) -> usize {
        layout.row(self.batch_index(batch), self.query_rows(batch).start + row, head)
    }

    /// Index in K or V, whose layout is given, of the first element of a sequence's row.
    #[inline]
    pub fn key_index(&self, layout: &TensorLayout, batch: usize, key: usize, kv_head: usize) -> usize {
        layout.row(self.batch_index(batch), self.key_rows(batch).start + key, kv_head)
    }

    /// Index of a sequence along the tensors' batch axis.
    fn batch_index(&self, batch: usize) -> usize {
        if self.sequences.is_some() { 0 } else { batch }
    }

    /// Number of query heads, H.
    pub const fn heads(&self) -> usize {
        self.tensors.q.heads
    }

    /// Number of key/value heads, Hkv.
    pub const fn kv_heads(&self) -> usize {
        self.tensors.k.heads
    }

    /// Query heads that share one key/value head.
    pub const fn group(&self) -> usize {
        self.heads() / self.kv_heads()
    }

    /// Query rows of the longest sequence, Sq, or their bound; 1 where all are empty.
    pub fn seqlen_q(&self) -> usize {
        self.sequences.as_ref().map_or(self.tensors.q.seqlen, |sequences| sequences.q.longest().max(1))
    }

    /// Key rows of the longest sequence, Sk, or their bound, used or not; 1 where all are empty.
    pub fn seqlen_k(&self) -> usize {
        self.sequences.as_ref().map_or(self.tensors.k.seqlen, |sequences| sequences.k.longest().max(1))
    }

    /// Elements of a row of Q and K, D.
    pub const fn head_dim(&self) -> usize {
        self.tensors.q.head_dim
    }

    /// Elements of a row of V and O, Dv.
    pub const fn head_dim_v(&self) -> usize {
        self.tensors.v.head_dim
    }

    /// Query rows of a sequence that share a key/value head.
    pub(crate) fn packed_rows(&self) -> usize {
        self.seqlen_q() * self.group()
    }

    /// The larger of D and Dv.
    pub fn widest_head_dim(&self) -> usize {
        self.head_dim().max(self.head_dim_v())
    }

    /// Rows of all heads, B·H·Sq, or H·total_q of a packed batch.
    pub(crate) const fn all_rows(&self) -> usize {
        let q = &self.tensors.q;
        q.batch * q.heads * q.seqlen
    }

    /// Elements of `lse` up to its last, B·H·Sq, or H·total_q of a packed batch, where it is contiguous.
    pub const fn lse_len(&self) -> usize {
        self.lse_layout().span()
    }

    /// How `lse` lies, with its rows as columns: [B, H, 1, Sq].
    pub(crate) const fn lse_layout(&self) -> TensorLayout {
        let q = &self.tensors.q;
        let [batch, head] = self.lse_strides();
        TensorLayout::strided([q.batch, 1, q.heads, q.seqlen], [batch, q.seqlen, head, 1])
    }

    /// Elements of `lse` from one sequence to the next, and from one head to the next.
    pub(crate) const fn lse_strides(&self) -> [usize; 2] {
        match self.lse_strides {
            Some(strides) => strides,
            None => [self.tensors.q.heads * self.tensors.q.seqlen, self.tensors.q.seqlen],
        }
    }

    /// Whether `lse` has strides that were asked for.
    pub(crate) const fn has_lse_strides(&self) -> bool {
        self.lse_strides.is_some()
    }

    /// Index of a row's entry in `lse`.
    #[inline]
    pub fn lse_index(&self, batch: usize, head: usize, row: usize) -> usize {
        let [stride_batch, stride_head] = self.lse_strides();
        let first = self.batch_index(batch) * stride_batch + head * stride_head;
        first + self.query_rows(batch).start + row
    }

    /// Checks that the host has all that a run takes, and that buffers of these lengths (in elements) hold
    /// what the views reach.
    pub(crate) fn check_buffers<T: crate::Element>(
        &self,
        q: usize,
        k: usize,
        v: usize,
        o: usize,
        lse: Option<usize>,
    ) -> Result<()> {
        self.scores.check_on_host()?;
        if self.is_packed() && self.cu_seqlens().is_none() {
            return Err(Error::CuSeqlensOnDevice);
        }
        if self.has_seqused_k() && self.seqused_k().is_none() {
            return Err(Error::SeqUsedOnDevice);
        }
        if T::DTYPE != self.dtype {
            return Err(Error::DTypeMismatch { given: T::DTYPE, expected: self.dtype });
        }
        let Tensors { q: lq, k: lk, v: lv, o: lo } = &self.tensors;
        let lse_pair = lse.map(|len| ("lse", len, self.lse_len()));
        let tensors = [("q", q, lq.span()), ("k", k, lk.span()), ("v", v, lv.span()), ("o", o, lo.span())];
        for (tensor, len, needed) in tensors.into_iter().chain(lse_pair) {
            if len < needed {
                return Err(Error::BufferTooSmall { tensor, len, needed });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "problem_tests.rs"]
mod tests;
