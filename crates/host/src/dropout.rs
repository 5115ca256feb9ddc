//! Dropout of attention weights, as one asks for it.

use fa_kernels::params;

use crate::{Error, Problem, Result};

/// Each weight of the softmax is dropped with a probability, and those that are kept are divided by the rest
/// of it, as in training.
///
/// Which ones, Philox4x32-7 (Salmon et al., SC 2011) decides from seed, offset, sequence, head, query and
/// key: the forward and the backward pass, on any backend, draw the same. 16 weights share a draw, a byte
/// each, and no three of them depend on each other by more than 2^−16. lse is that of all weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Of dropping a weight: 0 to below 1. What is drawn counts to 2^−28.
    pub probability: f32,
    /// Names the sequence of draws.
    pub seed: u64,
    /// Which draw of the seed: a training loop counts it up from call to call.
    pub offset: u32,
}

impl Dropout {
    /// As kernels take it: nothing where nothing is dropped.
    pub(crate) fn validated(self) -> Result<Option<params::Dropout>> {
        let Self { probability, seed, offset } = self;
        if !(0.0..1.0).contains(&probability) {
            return Err(Error::Dropout { value: probability });
        }
        // Exact: an fp32 below 1 times 2^32 is a number of at most 24 digits.
        let threshold = (f64::from(probability) * 2.0_f64.powi(32)) as u32;
        let scale = (1.0 / (1.0 - f64::from(probability))) as f32;
        Ok((threshold > 0).then_some(params::Dropout { seed, offset, threshold, scale }))
    }
}

impl Problem {
    /// What the weight of a query and a key is multiplied by: 0 where dropout drops it, 1 without dropout.
    #[inline]
    pub fn dropout_factor(&self, batch: usize, head: usize, row: usize, key: usize) -> f32 {
        self.dropout().map_or(1.0, |dropout| {
            let head = (batch * self.heads() + head) as u32;
            if dropout.keeps(head, row as u32, key as u32) { dropout.scale } else { 0.0 }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_below_one_and_thresholds_exact() {
        let validated = |probability| Dropout { probability, seed: 5, offset: 6 }.validated();
        for wrong in [-0.1, 1.0, f32::NAN] {
            let error = validated(wrong).unwrap_err().to_string();
            assert_eq!(error, format!("dropout probability is {wrong}; 0 to below 1 is needed"));
        }
        assert_eq!(validated(0.0).unwrap(), None);
        let quarter = validated(0.25).unwrap().unwrap();
        assert_eq!((quarter.threshold, quarter.scale), (1 << 30, 4.0 / 3.0));
        assert_eq!(validated(1.0 - f32::EPSILON / 2.0).unwrap().unwrap().threshold, u32::MAX - 255);
    }
}
