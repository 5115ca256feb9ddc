//! Decode problems: their caches, lengths and pages.

use flash_attention::decode::{CacheData, DecodeInputs, DecodeOptions, DecodeProblem, E4m3Cache};
use flash_attention::{DType, Element, Options, Result, TensorLayout, Tensors};
use float8::F8E4M3;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

use crate::inputs::normal;
use crate::problem::{self, Layout};

/// A decode problem in the order B, S, H, D, as data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) seq_q: usize,
    pub(crate) seq_k: usize,
    /// Rows of a page; with pages, Sk is rounded up to whole ones.
    pub(crate) page_size: Option<usize>,
    /// Elements that rows of K and V begin with a multiple of; 1 where they lie one behind the other.
    pub(crate) row_multiple: usize,
    /// Whether queries are a tree, of branches drawn by chance.
    pub(crate) tree_mask: bool,
    /// Whether V is the first columns of K.
    pub(crate) latent: bool,
    pub(crate) dtype: DType,
    pub(crate) causal: bool,
    pub(crate) softmax_scale: Option<f32>,
}

impl Shape {
    /// The problem, with as many pages as the sequences have room for.
    pub(crate) fn problem(&self) -> Result<DecodeProblem> {
        self.problem_with(self.head_dim, Options::default(), None)
    }

    /// [`Self::problem`] with a head_dim of V, with `options`, of which the shape has mask and scale, and
    /// with K and V in e4m3 where that has factors.
    pub(crate) fn problem_with(
        &self,
        head_dim_v: usize,
        options: Options,
        e4m3_cache: Option<E4m3Cache>,
    ) -> Result<DecodeProblem> {
        let of_queries = |columns| TensorLayout::bshd(self.batch, self.seq_q, self.heads, columns);
        let stride = self.head_dim.next_multiple_of(self.row_multiple);
        let q = TensorLayout { head_dim: self.head_dim, ..of_queries(stride) };
        // A page size of 0 stays one, and is refused as an empty axis.
        let max_pages = self.page_size.map(|size| self.seq_k.div_ceil(size.max(1)));
        let (outer, rows) = match (self.page_size, max_pages) {
            (Some(size), Some(pages)) => (self.batch.saturating_mul(pages), size),
            _ => (self.batch, self.seq_k),
        };
        let of_keys = |columns: usize| {
            let stride = columns.next_multiple_of(self.row_multiple);
            TensorLayout { head_dim: columns, ..TensorLayout::bshd(outer, rows, self.kv_heads, stride) }
        };
        let k = of_keys(self.head_dim);
        let v = if self.latent { TensorLayout { head_dim: head_dim_v, ..k } } else { of_keys(head_dim_v) };
        let tensors = Tensors { q, k, v, o: of_queries(head_dim_v) };
        let attention = Options { causal: self.causal, softmax_scale: self.softmax_scale, ..options };
        let Self { tree_mask, latent, .. } = *self;
        let options = DecodeOptions { attention, max_pages, e4m3_cache, tree_mask, latent };
        DecodeProblem::new(tensors, self.dtype, options)
    }
}

/// K or V.
enum Rows<T> {
    Same(Vec<T>),
    E4m3(Vec<F8E4M3>),
}

impl<T: Element> Rows<T> {
    fn random(problem: &DecodeProblem, layout: &TensorLayout, seed: u64, tensor: u64) -> Self {
        if problem.cache_dtype() == DType::E4m3 {
            Self::E4m3(normal(seed, tensor, layout.span()))
        } else {
            Self::Same(normal(seed, tensor, layout.span()))
        }
    }

    fn data(&self) -> CacheData<'_, T> {
        match self {
            Self::Same(data) => CacheData::Same(data),
            Self::E4m3(data) => CacheData::E4m3(data),
        }
    }

    /// Fills the elements that are not `used` with NaN.
    fn poison(&mut self, used: &[bool]) {
        fn fill<T: Element>(data: &mut [T], used: &[bool]) {
            let unused = data.iter_mut().zip(used).filter(|(_, used)| !**used);
            unused.for_each(|(value, _)| *value = T::from_f32(f32::NAN));
        }
        match self {
            Self::Same(data) => fill(data, used),
            Self::E4m3(data) => fill(data, used),
        }
    }
}

/// Inputs of a decode problem.
pub(crate) struct Cache<T> {
    q: Vec<T>,
    k: Rows<T>,
    /// None of latents.
    v: Option<Rows<T>>,
    seqused_k: Option<Vec<i32>>,
    page_table: Option<Vec<i32>>,
    tree_mask: Option<Vec<u64>>,
}

impl<T: Element> Cache<T> {
    /// Elements drawn from N(0, 1), and pages in an order drawn by chance.
    pub(crate) fn random(problem: &DecodeProblem, seqused_k: Option<Vec<i32>>, seed: u64) -> Self {
        Self {
            q: normal(seed, 0, problem.dense().tensors().q.span()),
            k: Rows::random(problem, problem.k(), seed, 1),
            v: (!problem.is_latent()).then(|| Rows::random(problem, problem.v(), seed, 2)),
            seqused_k,
            page_table: problem.max_pages().map(|_| shuffled(problem.k().batch, seed)),
            tree_mask: problem.has_tree_mask().then(|| {
                let rows = problem.dense().batch() * problem.dense().seqlen_q();
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                (0..rows).map(|_| rng.next_u64()).collect()
            }),
        }
    }

    /// The tensors, as the library takes them.
    pub(crate) fn inputs(&self) -> DecodeInputs<'_, T> {
        DecodeInputs {
            q: &self.q,
            k: self.k.data(),
            v: self.v.as_ref().unwrap_or(&self.k).data(),
            seqused_k: self.seqused_k.as_deref(),
            page_table: self.page_table.as_deref(),
            tree_mask: self.tree_mask.as_deref(),
        }
    }

    /// Fills what no sequence uses with NaN, so that a kernel that lets it through shows.
    pub(crate) fn poison_unused(&mut self, problem: &DecodeProblem) {
        for value in [false, true] {
            let layout = if value { *problem.v() } else { *problem.k() };
            let inputs = self.inputs();
            let mut used = vec![false; layout.span()];
            for batch in 0..problem.dense().batch() {
                for key in 0..problem.used(&inputs, batch) {
                    for head in 0..layout.heads {
                        let first = problem.row(&layout, &inputs, batch, key, head);
                        used[first..first + layout.head_dim].fill(true);
                    }
                }
            }
            match (value, &mut self.v) {
                (false, _) => self.k.poison(&used),
                (true, Some(v)) => v.poison(&used),
                (true, None) => {}
            }
        }
    }
}

/// The numbers below `count` in an order that the seed names (Fisher and Yates).
pub(crate) fn shuffled(count: usize, seed: u64) -> Vec<i32> {
    let mut numbers: Vec<i32> = (0..count as i32).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for last in (1..numbers.len()).rev() {
        numbers.swap(last, (rng.next_u64() % (last as u64 + 1)) as usize);
    }
    numbers
}

/// The problem in one line.
pub(crate) fn describe(problem: &DecodeProblem) -> String {
    let cache =
        problem.max_pages().map_or("contiguous".to_owned(), |_| format!("pages of {}", problem.k().seqlen));
    let dtype = problem.cache_dtype();
    let of_type = if dtype == problem.dense().dtype() { String::new() } else { format!(" in {dtype}") };
    let latent = if problem.is_latent() { " of latents" } else { "" };
    format!("{} {cache}{of_type}{latent}", problem::describe(problem.dense(), Layout::Bshd))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_shuffled_and_each_stands_once() {
        let mut numbers = shuffled(100, 3);
        assert_ne!(numbers, shuffled(100, 4));
        assert!(numbers.iter().enumerate().any(|(index, &page)| index as i32 != page));
        numbers.sort_unstable();
        assert!(numbers.iter().enumerate().all(|(index, &page)| index as i32 == page));
    }

    #[test]
    fn what_no_sequence_uses_is_nan() {
        let shape = Shape {
            batch: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 3,
            seq_q: 1,
            seq_k: 10,
            page_size: Some(4),
            row_multiple: 1,
            tree_mask: false,
            latent: false,
            dtype: DType::F32,
            causal: false,
            softmax_scale: None,
        };
        let problem = shape.problem().unwrap();
        assert_eq!(problem.dense().seqlen_k(), 12);
        let mut cache = Cache::<f32>::random(&problem, Some(vec![5, 0]), 1);
        cache.poison_unused(&problem);
        let numbers = |rows: &Rows<f32>| match rows {
            Rows::Same(data) => data.iter().filter(|value| !value.is_nan()).count(),
            Rows::E4m3(data) => data.iter().filter(|value| !value.is_nan()).count(),
        };
        assert_eq!((numbers(&cache.k), cache.v.as_ref().map(numbers)), (5 * 6, Some(5 * 6)));
        let e4m3 = Some(E4m3Cache::default());
        let problem = shape.problem_with(shape.head_dim, Options::default(), e4m3).unwrap();
        let mut cache = Cache::<f32>::random(&problem, Some(vec![5, 0]), 1);
        cache.poison_unused(&problem);
        assert!(matches!(cache.k, Rows::E4m3(_)));
        assert_eq!((numbers(&cache.k), cache.v.as_ref().map(numbers)), (5 * 6, Some(5 * 6)));
    }
}
