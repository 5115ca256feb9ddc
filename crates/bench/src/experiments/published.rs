//! The published grid of attention: B·S is the same at every sequence length, and H·D at every head_dim.

use anyhow::Result;
use flash_attention::{DType, Problem};

use crate::lab::{Case, Lab};
use crate::peer::Implementation;
use crate::problem::{Layout, Shape};

/// What the published figures stand beside.
pub(super) const RIVALS: [Implementation; 4] =
    [Implementation::Cudnn, Implementation::Flash2, Implementation::Default, Implementation::Flash4];

/// What stays the same over the grid, and what varies.
#[derive(Clone, Copy)]
pub(super) struct Attention {
    /// B·S.
    pub(super) rows: usize,
    /// H·D.
    pub(super) columns: usize,
    pub(super) head_dims: &'static [usize],
    pub(super) seqs: &'static [usize],
}

/// On a GPU.
const GPU: Attention = Attention {
    rows: 16384,
    columns: 2048,
    head_dims: &[64, 128, 256],
    seqs: &[512, 1024, 2048, 4096, 8192, 16384],
};

/// What a CPU computes in seconds.
const CPU: Attention =
    Attention { rows: 256, columns: 256, head_dims: &[64, 128, 256], seqs: &[64, 128, 256] };

/// What the simulator computes in seconds.
const SIM: Attention = Attention { rows: 64, columns: 64, head_dims: &[64], seqs: &[32, 64] };

/// The masks, and whether each is causal.
const MASKS: [(&str, bool); 2] = [("full", false), ("causal", true)];

impl Attention {
    pub(super) fn of(lab: &Lab) -> Self {
        lab.pick(GPU, CPU, SIM)
    }

    /// Every problem of the grid in [B, H, S, D], by head_dim, mask and length; where a head_dim is given,
    /// its problems alone.
    pub(super) fn cases(self, dtype: DType, head_dim: Option<usize>) -> Result<Vec<Case<Problem>>> {
        let mut cases = Vec::new();
        for head_dim in head_dim.map_or(self.head_dims.to_vec(), |head_dim| vec![head_dim]) {
            for (mask, causal) in MASKS {
                for &seq in self.seqs {
                    let (batch, heads) = (self.batch(seq), self.heads(head_dim));
                    let problem =
                        Shape { batch, heads, seq, head_dim, dtype, causal }.problem(Layout::Bhsd)?;
                    cases.push(case(head_dim, seq, mask, problem));
                }
            }
        }
        Ok(cases)
    }

    /// Sequences of this length.
    pub(super) fn batch(self, seq: usize) -> usize {
        (self.rows / seq.max(1)).max(1)
    }

    /// Heads of this head_dim.
    pub(super) fn heads(self, head_dim: usize) -> usize {
        (self.columns / head_dim.max(1)).max(1)
    }
}

/// As in `D=64 S=512 full`, at 512.
pub(super) fn case(head_dim: usize, seq: usize, mask: &str, problem: Problem) -> Case<Problem> {
    Case { name: format!("D={head_dim} S={seq} {mask}"), x: Some(seq as f64), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_has_as_many_rows_and_columns() {
        let cases = GPU.cases(DType::F16, None).unwrap();
        assert_eq!(cases.len(), 3 * 2 * 6);
        for Case { problem, .. } in &cases {
            assert_eq!(problem.batch() * problem.seqlen_q(), 16384);
            assert_eq!(problem.heads() * problem.head_dim(), 2048);
        }
        let causal = cases.iter().filter(|case| case.problem.causal());
        assert_eq!(causal.count(), 18);
        assert_eq!(GPU.cases(DType::F16, Some(96)).unwrap()[11].problem.heads(), 21);
        assert_eq!((&*cases[0].name, &*cases[35].name), ("D=64 S=512 full", "D=256 S=16384 causal"));
    }
}
