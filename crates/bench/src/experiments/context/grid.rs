//! Which problems are measured.

use anyhow::Result;
use flash_attention::{Options, Problem, Tensors};

use super::Args;
use crate::problem::Layout;

/// Tokens of the published problems.
const SEQS: [usize; 4] = [32_768, 131_072, 262_144, 1_048_576];

/// Query heads and key/value heads of the published problems.
const HEADS: [(usize, usize); 2] = [(32, 8), (16, 16)];

/// The most tokens of the published problems that PyTorch computes too: more take it minutes.
const PEER_SEQ: usize = 262_144;

impl Args {
    /// The problems asked for, or the published ones.
    ///
    /// # Errors
    /// As [`Problem::new`].
    pub(super) fn problems(&self) -> Result<Vec<Problem>> {
        let asked = [(self.heads, self.kv_heads.unwrap_or(self.heads))];
        let (heads, seqs) =
            if self.grid.is_some() { (&HEADS[..], &SEQS[..]) } else { (&asked[..], &self.seq[..]) };
        let all = heads.iter().flat_map(|heads| seqs.iter().map(move |&seq| (*heads, seq)));
        all.map(|(heads, seq)| self.problem(heads, seq)).collect()
    }

    /// Whether PyTorch computes a problem too.
    pub(super) fn is_for_peer(&self, problem: &Problem) -> bool {
        self.grid.is_none() || problem.seqlen_q() <= PEER_SEQ
    }

    fn problem(&self, (heads, kv_heads): (usize, usize), seq: usize) -> Result<Problem> {
        let of = |heads| Layout::Bshd.tensor(self.batch, seq, heads, self.dim);
        let (q, k) = (of(heads), of(kv_heads));
        let options = Options { causal: !self.full, window: (self.window_left, None), ..Options::default() };
        Ok(Problem::new(Tensors { q, k, v: k, o: q }, self.dtype, options)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, Command, FromArgMatches as _};
    use flash_attention::DType;

    fn parsed(line: &str) -> Result<Args, clap::Error> {
        let words = ["context"].into_iter().chain(line.split_whitespace());
        let command = Args::augment_args(Command::new("context"));
        command.try_get_matches_from(words).and_then(|matches| Args::from_arg_matches(&matches))
    }

    fn sizes(problem: &Problem) -> [usize; 3] {
        [problem.heads(), problem.kv_heads(), problem.seqlen_q()]
    }

    #[test]
    fn the_published_grid_is_the_table_of_the_document() {
        let args = parsed("--grid published --peer torch --gpus 4 --check 3 --budget 1").unwrap();
        let problems = args.problems().unwrap();
        let expected = [
            [32, 8, 32_768],
            [32, 8, 131_072],
            [32, 8, 262_144],
            [32, 8, 1_048_576],
            [16, 16, 32_768],
            [16, 16, 131_072],
            [16, 16, 262_144],
            [16, 16, 1_048_576],
        ];
        assert_eq!(problems.iter().map(sizes).collect::<Vec<_>>(), expected);
        for problem in &problems {
            assert!(problem.causal() && problem.window() == (None, Some(0)));
            assert_eq!((problem.head_dim(), problem.dtype(), problem.batch()), (128, DType::Bf16, 1));
            assert_eq!(args.is_for_peer(problem), problem.seqlen_q() < 1_048_576);
        }
    }

    #[test]
    fn a_problem_beside_the_grid_is_refused() {
        for other in
            ["--seq 8", "--heads 4", "--kv-heads 4", "--batch 2", "--dim 64", "--dtype f16", "--full"]
        {
            let error = parsed(&format!("--grid published {other}")).unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::ArgumentConflict, "{other}");
        }
        let args = parsed("--seq 64,2000000 --heads 6 --kv-heads 2 --full").unwrap();
        let problems = args.problems().unwrap();
        assert_eq!(problems.iter().map(sizes).collect::<Vec<_>>(), [[6, 2, 64], [6, 2, 2_000_000]]);
        assert!(problems.iter().all(|problem| !problem.causal() && args.is_for_peer(problem)));
        assert_eq!(sizes(&parsed("--seq 64 --heads 6").unwrap().problems().unwrap()[0]), [6, 6, 64]);
    }
}
