//! Sequences of different lengths behind one another in one tensor.

use std::ops::Range;

use crate::forward::MAX_SEQLEN;
use crate::{Error, Result};

/// Where the sequences of a packed batch begin and end, for queries and for keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sequences {
    pub(crate) q: CuSeqlens,
    pub(crate) k: CuSeqlens,
}

/// First row of each sequence and of what follows the last, [B + 1].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CuSeqlens(Vec<u32>);

impl Sequences {
    /// Validates offsets into `total_q` rows of Q and O and `total_k` rows of K and V.
    ///
    /// # Errors
    /// When there are not as many of one as of the other, or none; when one does not start at 0, decreases,
    /// or passes its total.
    pub(crate) fn new(q: &[u32], k: &[u32], total_q: usize, total_k: usize) -> Result<Self> {
        if q.len() != k.len() || q.len() < 2 {
            return Err(Error::CuSeqlensLen { q: q.len(), k: k.len() });
        }
        Ok(Self { q: CuSeqlens::new("q", q, total_q)?, k: CuSeqlens::new("k", k, total_k)? })
    }

    /// Number of sequences.
    pub(crate) const fn batch(&self) -> usize {
        self.q.0.len() - 1
    }
}

impl CuSeqlens {
    fn new(tensor: &'static str, offsets: &[u32], total: usize) -> Result<Self> {
        let refused = |index: usize, limit: String| {
            Err(Error::CuSeqlens { tensor, index, value: offsets[index], limit })
        };
        if offsets[0] != 0 {
            return refused(0, "the first must be 0".to_owned());
        }
        if let Some(index) = (1..offsets.len()).find(|&index| offsets[index] < offsets[index - 1]) {
            return refused(
                index,
                format!("the one before is {}, and none may decrease", offsets[index - 1]),
            );
        }
        let last = offsets.len() - 1;
        if offsets[last] as usize > total {
            return refused(last, format!("{tensor} has {total} rows"));
        }
        if let Some(index) =
            (1..offsets.len()).find(|&index| (offsets[index] - offsets[index - 1]) as usize > MAX_SEQLEN)
        {
            return refused(index, format!("a sequence has at most {MAX_SEQLEN} rows"));
        }
        Ok(Self(offsets.to_vec()))
    }

    /// Rows of a sequence.
    pub(crate) fn rows(&self, batch: usize) -> Range<usize> {
        self.0[batch] as usize..self.0[batch + 1] as usize
    }

    /// Rows of the longest sequence.
    pub(crate) fn longest(&self) -> usize {
        self.0.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0) as usize
    }

    /// The offsets.
    pub(crate) fn offsets(&self) -> &[u32] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_names_argument_value_and_limit() {
        let message = |q: &[u32], k: &[u32]| Sequences::new(q, k, 10, 20).unwrap_err().to_string();
        let lengths = "; both need one more than there are sequences, at least 2";
        assert_eq!(
            message(&[0, 4], &[0, 4, 5]),
            format!("cu_seqlens_q has 2 offsets and cu_seqlens_k 3{lengths}")
        );
        assert_eq!(message(&[0], &[0]), format!("cu_seqlens_q has 1 offsets and cu_seqlens_k 1{lengths}"));
        assert_eq!(message(&[1, 4], &[0, 4]), "cu_seqlens_q: offset 0 is 1; the first must be 0");
        assert_eq!(
            message(&[0, 4, 5], &[0, 6, 5]),
            "cu_seqlens_k: offset 2 is 5; the one before is 6, and none may decrease"
        );
        assert_eq!(message(&[0, 11], &[0, 4]), "cu_seqlens_q: offset 1 is 11; q has 10 rows");
    }

    #[test]
    fn sequences_may_be_empty() {
        let sequences = Sequences::new(&[0, 4, 4, 10], &[0, 0, 20, 20], 10, 20).unwrap();
        assert_eq!((sequences.batch(), sequences.q.longest(), sequences.k.longest()), (3, 6, 20));
        assert_eq!((sequences.q.rows(1), sequences.k.rows(1)), (4..4, 0..20));
    }
}
