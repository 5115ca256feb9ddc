//! Sequences of different lengths behind one another in one tensor.

use std::ops::Range;

use crate::forward::MAX_SEQLEN;
use crate::{Error, Result};

/// Where the sequences of a packed batch begin and end, for queries and for keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sequences {
    pub(crate) q: CuSeqlens,
    pub(crate) k: CuSeqlens,
    /// Which offsets a plan may rely on.
    known: Known,
}

/// Which offsets of a packed batch a plan may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// All.
    All,
    /// None: launches must do for any offsets within bounds. These are the ones that a run has.
    Given,
    /// None, and these stand for lengths that the device alone has.
    Assumed,
}

/// First row of each sequence and of what follows the last, [B + 1].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CuSeqlens {
    offsets: Vec<u32>,
    /// Rows of the longest sequence, or a bound of them.
    longest: usize,
}

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
        let (q, k) = (CuSeqlens::new("q", q, total_q)?, CuSeqlens::new("k", k, total_k)?);
        Ok(Self { q, k, known: Known::All })
    }

    /// So many sequences of at most so many rows each, whose offsets the device alone has.
    ///
    /// # Errors
    /// When there are none, and as [`Self::new`].
    pub(crate) fn on_device(
        batch: usize,
        (max_seqlen_q, max_seqlen_k): (usize, usize),
        (total_q, total_k): (usize, usize),
    ) -> Result<Self> {
        if batch == 0 || batch >= u32::MAX as usize {
            return Err(Error::CuSeqlensLen { q: batch.saturating_add(1), k: batch.saturating_add(1) });
        }
        let q = CuSeqlens::assumed("q", batch, max_seqlen_q, total_q)?;
        let k = CuSeqlens::assumed("k", batch, max_seqlen_k, total_k)?;
        Ok(Self { q, k, known: Known::Assumed })
    }

    /// The same bounds, with offsets that a run has.
    ///
    /// # Errors
    /// As [`Self::new`], when launches rely on others, and when there are more or fewer sequences, or a
    /// longer one.
    pub(crate) fn with(&self, q: &[u32], k: &[u32], totals: (usize, usize)) -> Result<Self> {
        if self.is_planned() {
            return Err(Error::CuSeqlensPlanned);
        }
        let given = Self::new(q, k, totals.0, totals.1)?;
        if given.batch() != self.batch() {
            let (value, expected) = (given.batch(), self.batch());
            return Err(Error::ShapeMismatch {
                tensor: "cu_seqlens",
                axis: "batch",
                value,
                other: "the plan",
                expected,
            });
        }
        let (q, k) = (given.q.within("q", self.q.longest)?, given.k.within("k", self.k.longest)?);
        Ok(Self { q, k, known: Known::Given })
    }

    /// Number of sequences.
    pub(crate) const fn batch(&self) -> usize {
        self.q.offsets.len() - 1
    }

    /// Rows of Q and of K of the longest sequence, or bounds of them.
    pub(crate) fn longest(&self) -> [usize; 2] {
        [self.q.longest, self.k.longest]
    }

    /// Whether launches may rely on the offsets.
    pub(crate) fn is_planned(&self) -> bool {
        self.known == Known::All
    }

    /// Whether the offsets are those of a run.
    pub(crate) fn is_given(&self) -> bool {
        self.known != Known::Assumed
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
        let longest = offsets.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0) as usize;
        Ok(Self { offsets: offsets.to_vec(), longest })
    }

    /// Sequences of which none has more rows than `max_seqlen`, for estimates: of all lengths up to there, so
    /// distributed that together they have about `total` rows where that is less than all could have.
    fn assumed(tensor: &'static str, batch: usize, max_seqlen: usize, total: usize) -> Result<Self> {
        /// One over the golden ratio, whose multiples' fractions are spread evenly however many there are.
        const EVENLY: f64 = 0.618_033_988_749_894_9;
        let longest = max_seqlen.min(total);
        if longest > MAX_SEQLEN {
            return Err(Error::SeqLen { tensor, value: longest, limit: MAX_SEQLEN });
        }
        // The mean of x^n over 0 to 1 is 1 / (n + 1).
        let most = longest as f64 * batch as f64;
        let exponent = (most / total.max(1) as f64 - 1.0).max(0.0);
        let mut end = 0_u64;
        let ends = (1..=batch).map(|index| {
            let share = (index as f64 * EVENLY).fract();
            end += (longest as f64 * share.powf(exponent)) as u64;
            // Tensors have fewer than 2^32 rows.
            u32::try_from(end.min(total as u64)).unwrap_or(u32::MAX)
        });
        Ok(Self { offsets: std::iter::once(0).chain(ends).collect(), longest })
    }

    /// The same offsets under a bound of the rows of a sequence.
    fn within(self, tensor: &'static str, max_seqlen: usize) -> Result<Self> {
        if self.longest > max_seqlen {
            return Err(Error::SeqLen { tensor, value: self.longest, limit: max_seqlen });
        }
        Ok(Self { longest: max_seqlen, ..self })
    }

    /// Rows of a sequence.
    pub(crate) fn rows(&self, batch: usize) -> Range<usize> {
        self.offsets[batch] as usize..self.offsets[batch + 1] as usize
    }

    /// One past the last sequence's last row.
    pub(crate) fn end(&self) -> usize {
        self.offsets[self.offsets.len() - 1] as usize
    }

    /// Rows of the longest sequence, or a bound of them.
    pub(crate) const fn longest(&self) -> usize {
        self.longest
    }

    /// The offsets.
    pub(crate) fn offsets(&self) -> &[u32] {
        &self.offsets
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
    fn lengths_that_are_not_known_are_assumed_to_be_as_unequal_as_their_bounds_say() {
        let lengths = |max_seqlen, total| {
            let assumed = CuSeqlens::assumed("q", 100, max_seqlen, total).unwrap();
            assumed.offsets.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>()
        };
        assert!(lengths(50, 5_000).iter().all(|&rows| rows == 50));
        assert!(lengths(50, 9_000).iter().all(|&rows| rows == 50));
        for (max_seqlen, total) in [(80, 5_000), (100, 5_000), (1_000, 5_000)] {
            let lengths = lengths(max_seqlen, total);
            let rows: u32 = lengths.iter().sum();
            assert!((rows as usize).abs_diff(total) < total / 10, "{rows} for {total}");
            assert!(lengths.iter().all(|&rows| rows as usize <= max_seqlen));
            assert!(lengths.iter().any(|&rows| rows as usize > max_seqlen * 3 / 4), "{lengths:?}");
            assert!(lengths.iter().any(|&rows| (rows as usize) < max_seqlen / 4), "{lengths:?}");
        }
        assert!(lengths(0, 0).iter().all(|&rows| rows == 0));
    }

    #[test]
    fn sequences_may_be_empty() {
        let sequences = Sequences::new(&[0, 4, 4, 10], &[0, 0, 20, 20], 10, 20).unwrap();
        assert_eq!((sequences.batch(), sequences.q.longest(), sequences.k.longest()), (3, 6, 20));
        assert_eq!((sequences.q.rows(1), sequences.k.rows(1)), (4..4, 0..20));
    }
}
