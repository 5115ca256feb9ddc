//! A merge of parts: validated once here.

use super::MAX_PARTS;
use crate::problem::MAX_SEQLEN;
use crate::{DType, Error, Result, TensorLayout};

/// How the results of attention over a part of the keys lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartLayout {
    /// O, [B, Sq, H, D].
    pub o: TensorLayout,
    /// Log-sum-exp of each row, [B, Sq, H, 1].
    pub lse: TensorLayout,
}

impl PartLayout {
    /// Of a call that had B sequences: its lse is contiguous, [B, H, Sq].
    pub const fn new(o: TensorLayout) -> Self {
        Self { o, lse: TensorLayout::bhsd(o.batch, o.seqlen, o.heads, 1) }
    }

    /// Of a call that had the B·Sq rows as those of one sequence: its lse is contiguous, [1, H, B·Sq]. `o` is
    /// the same tensor with the axes of the merge, [B, Sq, H, D].
    pub const fn folded(o: TensorLayout) -> Self {
        let rows = o.batch.saturating_mul(o.seqlen);
        let lse = TensorLayout::strided([o.batch, o.seqlen, o.heads, 1], [o.seqlen, 1, rows, 1]);
        Self { o, lse }
    }
}

/// Results of attention over a part of the keys, in host memory.
#[derive(Clone, Copy, Debug)]
pub struct MergePart<'a, T> {
    /// O, normalised; not read where `lse` is −∞, which says that the part has no key.
    pub o: &'a [T],
    /// Log-sum-exp of each row.
    pub lse: &'a [f32],
}

/// A validated merge: O and lse of attention over all keys, from those over 1 to [`MAX_PARTS`] disjoint parts
/// of them.
///
/// All O are [B, Sq, H, D] in f32, f16 or bf16, of one type; the result's lse is fp32 [B, H, Sq], contiguous.
/// Parts are added in their order, so that the same parts give the same bits. A sink counts once: it is one
/// part's.
///
/// Three sequences that share a prefix of 40 keys, and have up to 8 of their own:
///
/// ```
/// use flash_attention::decode::{DecodeInputs, DecodeOptions, DecodeProblem, DecodeRequest};
/// use flash_attention::forward::Outputs;
/// use flash_attention::merge::{MergePart, MergeProblem, PartLayout};
/// use flash_attention::{Backend, BackendKind, DType, Options, Problem, Request, TensorLayout, Tensors};
///
/// let backend = Backend::open(Some(BackendKind::Cpu))?;
/// let (batch, heads, kv_heads, d) = (3, 4, 2, 16);
/// let values = |len: usize| (0..len).map(|i| (i as f32).sin()).collect::<Vec<_>>();
/// let q = TensorLayout::bshd(batch, 1, heads, d);
/// let queries = values(q.span());
///
/// // The prefix: all queries are rows of one sequence, and read its keys once.
/// let rows = TensorLayout::bshd(1, batch, heads, d);
/// let keys = TensorLayout::bshd(1, 40, kv_heads, d);
/// let tensors = Tensors { q: rows, k: keys, v: keys, o: rows };
/// let prefix = Problem::new(tensors, DType::F32, Options::default())?;
/// let plan = backend.plan(&prefix, &Request::default())?;
/// let (k, v) = (values(keys.span()), values(keys.span()));
/// let mut of_prefix = (vec![0.0; q.span()], vec![0.0; batch * heads]);
/// backend.run(&plan, (&queries, &k, &v), Outputs { o: &mut of_prefix.0, lse: Some(&mut of_prefix.1) })?;
///
/// // What follows it: each sequence has keys of its own, here 8, 1 and none.
/// let keys = TensorLayout::bshd(batch, 8, kv_heads, d);
/// let tensors = Tensors { q, k: keys, v: keys, o: q };
/// let suffix = DecodeProblem::new(tensors, DType::F32, DecodeOptions::default())?;
/// let plan = backend.plan(&suffix, &DecodeRequest::default())?;
/// let (k, v) = (values(keys.span()), values(keys.span()));
/// let inputs = DecodeInputs { seqused_k: Some(&[8, 1, 0]), ..DecodeInputs::new(&queries, &k, &v) };
/// let mut of_suffix = (vec![0.0; q.span()], vec![0.0; batch * heads]);
/// backend.run(&plan, inputs, Outputs { o: &mut of_suffix.0, lse: Some(&mut of_suffix.1) })?;
///
/// // Both: the first call's lse is [1, H, B·Sq], the second's [B, H, Sq].
/// let merge = MergeProblem::new(&[PartLayout::folded(q), PartLayout::new(q)], q, DType::F32)?;
/// let parts = [&of_prefix, &of_suffix].map(|(o, lse)| MergePart { o, lse });
/// let (mut o, mut lse) = (vec![0.0; q.span()], vec![0.0; batch * heads]);
/// backend.run(&backend.plan(&merge, &())?, &parts, Outputs { o: &mut o, lse: Some(&mut lse) })?;
/// // The last sequence has no key behind the prefix.
/// let last = q.row(2, 0, 0)..;
/// assert!(o[last.clone()].iter().zip(&of_prefix.0[last]).all(|(whole, part)| (whole - part).abs() < 1e-6));
/// # Ok::<(), flash_attention::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct MergeProblem {
    parts: Vec<PartLayout>,
    o: TensorLayout,
    dtype: DType,
}

impl MergeProblem {
    /// Validates shapes and strides.
    ///
    /// # Errors
    /// When there are no parts or more than [`MAX_PARTS`], one has another shape than O, an axis is empty or
    /// too long, the last dimension is not contiguous, elements of O overlap, or the type is none of results.
    pub fn new(parts: &[PartLayout], o: TensorLayout, dtype: DType) -> Result<Self> {
        dtype.check_as_result("merge")?;
        if !(1..=MAX_PARTS).contains(&parts.len()) {
            return Err(Error::MergeParts { value: parts.len(), limit: MAX_PARTS });
        }
        o.check("o")?;
        o.check_disjoint("o")?;
        if o.seqlen > MAX_SEQLEN {
            return Err(Error::SeqLen { tensor: "o", value: o.seqlen, limit: MAX_SEQLEN });
        }
        for part in parts {
            part.o.check("a part's o")?;
            part.lse.check("a part's lse")?;
            check_shape("a part's o", &part.o, &o)?;
            check_shape("a part's lse", &part.lse, &TensorLayout { head_dim: 1, ..o })?;
        }
        Ok(Self { parts: parts.to_vec(), o, dtype })
    }

    /// The parts.
    pub fn parts(&self) -> &[PartLayout] {
        &self.parts
    }

    /// O, [B, Sq, H, D].
    pub const fn o(&self) -> &TensorLayout {
        &self.o
    }

    /// Storage type of all O.
    pub const fn storage(&self) -> DType {
        self.dtype
    }

    /// Elements of lse, B·H·Sq.
    pub const fn lse_len(&self) -> usize {
        self.o.batch * self.o.heads * self.o.seqlen
    }
}

fn check_shape(tensor: &'static str, found: &TensorLayout, o: &TensorLayout) -> Result<()> {
    let axes = [
        ("batch", found.batch, o.batch),
        ("seqlen", found.seqlen, o.seqlen),
        ("heads", found.heads, o.heads),
        ("head_dim", found.head_dim, o.head_dim),
    ];
    match axes.into_iter().find(|(_, value, expected)| value != expected) {
        Some((axis, value, expected)) => {
            Err(Error::ShapeMismatch { tensor, axis, value, other: "o", expected })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_names_argument_value_and_limit() {
        let o = TensorLayout::bshd(2, 1, 4, 8);
        let refused = |parts: &[PartLayout], o: TensorLayout, dtype| {
            MergeProblem::new(parts, o, dtype).unwrap_err().to_string()
        };
        let part = PartLayout::new(o);
        assert_eq!(refused(&[], o, DType::F16), "0 parts are to be merged; 1 to 8 is possible");
        assert_eq!(refused(&[part; 9], o, DType::F16), "9 parts are to be merged; 1 to 8 is possible");
        let wide = PartLayout::new(TensorLayout::bshd(2, 1, 4, 16));
        assert_eq!(refused(&[part, wide], o, DType::F32), "a part's o: head_dim is 16, but o has 8");
        let short = PartLayout { lse: TensorLayout::bhsd(2, 1, 3, 1), ..part };
        assert_eq!(refused(&[short], o, DType::F32), "a part's lse: heads is 3, but o has 4");
        let overlapping = TensorLayout::strided([2, 1, 4, 8], [0, 0, 8, 1]);
        assert!(refused(&[part], overlapping, DType::F32).starts_with("o: stride 0 of axis batch overlaps"));
        assert!(refused(&[part], o, DType::E4m3).contains("e4m3"));
        let long = TensorLayout::bshd(1, MAX_SEQLEN + 1, 1, 1);
        assert!(refused(&[PartLayout::new(long)], long, DType::F32).starts_with("o: seqlen is "));
    }

    #[test]
    fn a_folded_part_is_the_lse_of_one_sequence() {
        // [1, H, B·Sq] of B = 3, Sq = 2: row 1 of sequence 2 in head 3 is row 5 of that head.
        let part = PartLayout::folded(TensorLayout::bshd(3, 2, 4, 8));
        assert_eq!(part.lse.row(2, 1, 3), 3 * 6 + 5);
        assert_eq!(PartLayout::new(part.o).lse.row(2, 1, 3), 2 * 8 + 3 * 2 + 1);
    }
}
