//! The attention of a model's layers: what a step asks of the kernels, over which tensors.

use flash_attention::decode::{DecodeInputs, DecodeOptions, DecodePlan, DecodeProblem, DecodeRequest};
use flash_attention::{Backend, DType, Element, Options, Result, TensorLayout, Tensors};

use super::scheduler::{Chunk, Step};
use crate::check::{Expected, Verdict};
use crate::inputs::normal;
use crate::measure::CHECKED_ROWS;

/// A model's attention, and the pool that holds its keys and values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) dtype: DType,
    pub(super) page_size: usize,
    pub(super) pages: usize,
}

/// What a step has at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Query rows of all sequences.
    pub(super) rows: usize,
    pub(super) sequences: usize,
    /// Keys of a sequence.
    pub(super) keys: usize,
}

/// Tensors of one layer in host memory: Q of a step's rows, [rows, H, D], and the pool's K and V, [pages,
/// page_size, Hkv, D].
pub(super) struct LayerTensors<T> {
    pub(super) q: Vec<T>,
    pub(super) k: Vec<T>,
    pub(super) v: Vec<T>,
}

/// One call of a kernel in each layer, over pages, with its lists.
pub(super) struct Call {
    pub(super) plan: Box<DecodePlan>,
    pub(super) seqused_k: Vec<i32>,
    pub(super) page_table: Vec<i32>,
}

impl Call {
    /// Query rows of all sequences.
    pub(super) fn rows(&self) -> usize {
        let problem = self.plan.problem().dense();
        problem.batch() * problem.seqlen_q()
    }
}

impl Model {
    /// Bytes of K and V of a page in one layer.
    pub(super) const fn page_bytes(&self) -> usize {
        2 * self.page_size * self.kv_heads * self.head_dim * self.dtype.bytes()
    }

    /// Bytes of one layer's K and V, and of Q and O of so many rows.
    pub(super) const fn layer_bytes(&self, rows: usize) -> u128 {
        let row = self.row() as u128 * self.dtype.bytes() as u128;
        self.pages as u128 * self.page_bytes() as u128 + 2 * rows as u128 * row
    }

    /// Elements of a row of all query heads.
    pub(super) const fn row(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Refuses a model that no kernel takes, or a pool that no address reaches.
    pub(super) fn check(&self, backend: &Backend) -> Result<()> {
        let pages = vec![0];
        self.over_pages(backend, &[Chunk { request: 0, cached: 0, tokens: 1, pages, emits: true }]).map(drop)
    }

    /// Operations of a sequence's prefill and decoding in all layers, as if nothing was computed twice.
    pub(super) fn flops(&self, keys: usize) -> f64 {
        2.0 * (self.layers * self.row()) as f64 * (keys as f64).powi(2)
    }

    /// The calls of a step: one for all sequences that decode, and one for each that fills its cache.
    pub(super) fn calls(&self, backend: &Backend, step: &Step) -> Result<Vec<Call>> {
        let (decoding, filling) = step.chunks.split_at(step.decoding());
        let decode = (!decoding.is_empty()).then(|| self.over_pages(backend, decoding));
        let fill = |chunk| self.over_pages(backend, std::slice::from_ref(chunk));
        decode.into_iter().chain(filling.iter().map(fill)).collect()
    }

    /// The newest rows of sequences that have as many each.
    fn over_pages(&self, backend: &Backend, chunks: &[Chunk]) -> Result<Call> {
        let rows = chunks.first().map_or(1, |chunk| chunk.tokens);
        let max_pages = chunks.iter().map(|chunk| chunk.pages.len()).max().unwrap_or(1);
        let q = TensorLayout::bshd(chunks.len(), rows, self.heads, self.head_dim);
        let k = TensorLayout::bshd(self.pages, self.page_size, self.kv_heads, self.head_dim);
        let options =
            DecodeOptions { attention: causal(), max_pages: Some(max_pages), ..DecodeOptions::default() };
        let problem = DecodeProblem::new(Tensors { q, k, v: k, o: q }, self.dtype, options)?;
        let seqused_k = chunks.iter().map(|chunk| chunk.keys() as i32).collect();
        let table = |chunk: &Chunk| {
            let mut row: Vec<_> = chunk.pages.iter().map(|&page| page as i32).collect();
            // Entries behind those in use are not read.
            row.resize(max_pages, -1);
            row
        };
        let page_table = chunks.iter().flat_map(table).collect();
        let plan = Box::new(backend.plan(&problem, &DecodeRequest::default())?);
        Ok(Call { plan, seqused_k, page_table })
    }
}

/// Each row sees the keys up to its own.
fn causal() -> Options {
    Options { causal: true, ..Options::default() }
}

impl<T: Element> LayerTensors<T> {
    /// Elements drawn from N(0, 1), with Q of so many rows.
    pub(super) fn random(model: &Model, rows: usize, seed: u64) -> Self {
        let pool = model.pages * model.page_size * model.kv_heads * model.head_dim;
        Self { q: normal(seed, 0, rows * model.row()), k: normal(seed, 1, pool), v: normal(seed, 2, pool) }
    }

    /// Those of a call whose rows begin behind so many elements of Q.
    pub(super) fn of_call<'a>(&'a self, call: &'a Call, first: usize) -> DecodeInputs<'a, T> {
        let Call { seqused_k, page_table, .. } = call;
        let Self { q, k, v } = self;
        let of = DecodeInputs::new(&q[first..], k, v);
        DecodeInputs { seqused_k: Some(seqused_k), page_table: Some(page_table), ..of }
    }

    /// Judges O and lse of a call whose rows begin behind so many elements of Q.
    pub(super) fn judge(&self, call: &Call, first: usize, (o, lse): &Outputs<T>, seed: u64) -> Verdict {
        let (problem, inputs) = (call.plan.problem(), self.of_call(call, first));
        let expected = Expected::of_decode(problem, &inputs, CHECKED_ROWS, seed);
        expected.judge(problem.dense(), call.plan.score_roundoff(), o, lse)
    }
}

/// O and lse of a call.
pub(super) type Outputs<T> = (Vec<<T as Element>::Output>, Vec<f32>);
