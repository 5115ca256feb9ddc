//! One attention problem: validated once here, trusted by everything after.

use crate::{DType, Error, Result, TensorLayout};

/// The largest head_dim that the kernels hold.
pub const MAX_HEAD_DIM: usize = 256;

/// The longest sequence: row indices and their differences stay inside 32 bits with room for a tile.
pub const MAX_SEQLEN: usize = 1 << 30;

/// Shapes and strides of the four tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensors {
    /// Queries, [B, Sq, H, D].
    pub q: TensorLayout,
    /// Keys, [B, Sk, Hkv, D] where Hkv divides H.
    pub k: TensorLayout,
    /// Values, [B, Sk, Hkv, D].
    pub v: TensorLayout,
    /// Output, [B, Sq, H, D].
    pub o: TensorLayout,
}

/// What is computed, beside the shapes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// Query i sees key j only if j ≤ i + Sk − Sq: the mask is aligned bottom-right, as
    /// FlashAttention-2 (2.1 and later) defines it.
    pub causal: bool,
    /// Factor on Q·Kᵀ before the softmax; 1/√head_dim when absent.
    pub softmax_scale: Option<f32>,
}

/// A validated attention problem: O = softmax(softmax_scale · Q·Kᵀ + mask) · V for each batch and head.
///
/// Query head h reads key/value head h / (heads / kv_heads): multi-head, grouped-query and
/// multi-query attention are one case. `lse`, the log-sum-exp of each row of scaled scores,
/// is natural-log, fp32 and contiguous [B, H, Sq]. A row that sees no key gives 0 and −∞.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    tensors: Tensors,
    dtype: DType,
    causal: bool,
    softmax_scale: f32,
}

impl Problem {
    /// Validates shapes, strides and options.
    ///
    /// # Errors
    /// Names the tensor, the axis, its value and the limit when a shape is empty, mismatched, too
    /// large, or not contiguous in its last dimension, when kv_heads does not divide heads, when
    /// the output overlaps itself, and when `softmax_scale` is not finite.
    pub fn new(tensors: Tensors, dtype: DType, options: Options) -> Result<Self> {
        let Tensors { q, k, v, o } = &tensors;
        if !(1..=MAX_HEAD_DIM).contains(&q.head_dim) {
            return Err(Error::HeadDim { value: q.head_dim, limit: MAX_HEAD_DIM });
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
            matches(name, "head_dim", layout.head_dim, "q", q.head_dim)?;
        }
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
        let softmax_scale = options.softmax_scale.unwrap_or(1.0 / (q.head_dim as f32).sqrt());
        if !softmax_scale.is_finite() {
            return Err(Error::SoftmaxScale { value: softmax_scale });
        }
        Ok(Self { tensors, dtype, causal: options.causal, softmax_scale })
    }

    /// Shapes and strides.
    pub const fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Storage type of all four tensors.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether the causal mask applies.
    pub const fn causal(&self) -> bool {
        self.causal
    }

    /// Factor on Q·Kᵀ.
    pub const fn softmax_scale(&self) -> f32 {
        self.softmax_scale
    }

    /// Number of sequences, B.
    pub const fn batch(&self) -> usize {
        self.tensors.q.batch
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

    /// Query rows of each sequence, Sq.
    pub const fn seqlen_q(&self) -> usize {
        self.tensors.q.seqlen
    }

    /// Key rows of each sequence, Sk.
    pub const fn seqlen_k(&self) -> usize {
        self.tensors.k.seqlen
    }

    /// Elements of a row, D.
    pub const fn head_dim(&self) -> usize {
        self.tensors.q.head_dim
    }

    /// Number of elements of `lse`, B·H·Sq.
    pub const fn lse_len(&self) -> usize {
        self.batch() * self.heads() * self.seqlen_q()
    }

    /// Index of a row's entry in `lse`.
    #[inline]
    pub const fn lse_index(&self, batch: usize, head: usize, row: usize) -> usize {
        (batch * self.heads() + head) * self.seqlen_q() + row
    }

    /// Keys that query `row` sees: always the first so many.
    #[inline]
    pub const fn visible_keys(&self, row: usize) -> usize {
        if !self.causal {
            return self.seqlen_k();
        }
        let visible = (row + 1 + self.seqlen_k()).saturating_sub(self.seqlen_q());
        if visible < self.seqlen_k() { visible } else { self.seqlen_k() }
    }

    /// Multiplications and additions of the two matrix products, by FlashAttention's convention:
    /// 4·B·H·Sq·Sk·D, and with a causal mask only the visible pairs count.
    pub fn flops(&self) -> f64 {
        let pairs = if self.causal {
            let (sq, sk) = (self.seqlen_q() as f64, self.seqlen_k() as f64);
            // Rows see sk − sq + 1 … sk keys; those below one see none.
            let first = (sk - sq + 1.0).max(1.0);
            (first + sk) * (sk - first + 1.0) / 2.0
        } else {
            self.seqlen_q() as f64 * self.seqlen_k() as f64
        };
        4.0 * (self.batch() * self.heads() * self.head_dim()) as f64 * pairs
    }

    /// Checks that buffers of these lengths (in elements) hold what the views reach.
    pub(crate) fn check_buffers<T: crate::Element>(
        &self,
        q: usize,
        k: usize,
        v: usize,
        o: usize,
        lse: Option<usize>,
    ) -> Result<()> {
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
mod tests {
    use super::*;

    fn tensors(sq: usize, sk: usize, h: usize, hk: usize, d: usize) -> Tensors {
        let kv = TensorLayout::bshd(2, sk, hk, d);
        let q = TensorLayout::bshd(2, sq, h, d);
        Tensors { q, k: kv, v: kv, o: q }
    }

    fn message(tensors: Tensors) -> String {
        Problem::new(tensors, DType::F16, Options::default()).unwrap_err().to_string()
    }

    #[test]
    fn each_refusal_names_argument_value_and_limit() {
        assert_eq!(message(tensors(8, 8, 4, 4, 0)), "head_dim is 0; kernels take 1 to 256");
        assert_eq!(message(tensors(8, 8, 4, 4, 257)), "head_dim is 257; kernels take 1 to 256");
        assert_eq!(message(tensors(0, 8, 4, 4, 8)), "q: axis seqlen has length 0; at least 1 is needed");
        assert_eq!(message(tensors(8, 8, 4, 3, 8)), "kv_heads is 3, which does not divide heads = 4");
        let mut t = tensors(8, 8, 4, 4, 8);
        t.v.seqlen = 7;
        assert_eq!(message(t), "v: seqlen is 7, but k has 8");
        let mut t = tensors(8, 8, 4, 4, 8);
        t.k.stride_dim = 2;
        assert_eq!(message(t), "k: stride of head_dim is 2; rows must be contiguous (stride 1)");
    }

    #[test]
    fn causal_is_aligned_bottom_right() {
        let problem = |sq, sk| {
            Problem::new(tensors(sq, sk, 4, 4, 8), DType::F32, Options { causal: true, softmax_scale: None })
                .unwrap()
        };
        let seen = |sq, sk| (0..sq).map(|row| problem(sq, sk).visible_keys(row)).collect::<Vec<_>>();
        assert_eq!(seen(3, 3), [1, 2, 3]);
        assert_eq!(seen(2, 4), [3, 4]);
        assert_eq!(seen(4, 2), [0, 0, 1, 2]);
    }

    #[test]
    fn flops_count_visible_pairs() {
        for (sq, sk) in [(3, 3), (2, 4), (4, 2), (7, 1)] {
            let options = Options { causal: true, softmax_scale: None };
            let problem = Problem::new(tensors(sq, sk, 4, 2, 8), DType::F32, options).unwrap();
            let pairs: usize = (0..sq).map(|row| problem.visible_keys(row)).sum();
            assert_eq!(problem.flops(), (4 * 2 * 4 * 8 * pairs) as f64);
        }
    }
}
