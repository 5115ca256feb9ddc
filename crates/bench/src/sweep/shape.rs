//! The problems of a sweep in its document.

use flash_attention::Problem;
use flash_attention::gemm::GemmProblem;
use serde::{Deserialize, Serialize};

use crate::problem::Layout;

/// What BLOCK_M and BLOCK_N of attention are.
pub const QUERIES_AND_KEYS: [&str; 2] = ["BLOCK_M (query rows)", "BLOCK_N (key rows)"];

/// Those of a product.
const ROWS_AND_COLUMNS: [&str; 2] = ["BLOCK_M (rows of C)", "BLOCK_N (columns of C)"];

/// What the problems of a sweep have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Shape {
    /// Attention, but for head_dim and storage type.
    Attention {
        batch: usize,
        heads: usize,
        kv_heads: usize,
        seq: usize,
        kv_seq: usize,
        layout: String,
        causal: bool,
        /// None: 1/sqrt(head_dim).
        softmax_scale: Option<f32>,
    },
    /// A product, but for the orders of its operands.
    Product { m: usize, n: usize, k: usize },
}

impl Shape {
    pub(crate) fn new(problem: &Problem, layout: Layout, softmax_scale: Option<f32>) -> Self {
        Self::Attention {
            batch: problem.batch(),
            heads: problem.heads(),
            kv_heads: problem.kv_heads(),
            seq: problem.seqlen_q(),
            kv_seq: problem.seqlen_k(),
            layout: layout.name().to_owned(),
            causal: problem.causal(),
            softmax_scale,
        }
    }

    pub(crate) fn of_product(problem: &GemmProblem) -> Self {
        Self::Product { m: problem.m(), n: problem.n(), k: problem.k() }
    }

    pub(crate) const fn causal(&self) -> bool {
        matches!(self, Self::Attention { causal: true, .. })
    }

    /// What a tile's rows and columns are.
    pub(crate) const fn axes(&self) -> [&'static str; 2] {
        match self {
            Self::Attention { .. } => QUERIES_AND_KEYS,
            Self::Product { .. } => ROWS_AND_COLUMNS,
        }
    }

    /// What tells this shape's file from those of others.
    pub(crate) fn slug(&self) -> String {
        let Self::Attention { batch, heads, kv_heads, seq, kv_seq, layout, causal, .. } = self else {
            return self.to_string().to_ascii_lowercase().replace('=', "").replace(' ', "-");
        };
        let mask = if *causal { "causal" } else { "full" };
        let mut slug = format!("{mask}-b{batch}-h{heads}-s{seq}");
        for (name, value, usual) in [("hkv", kv_heads, heads), ("sk", kv_seq, seq)] {
            if value != usual {
                slug.push_str(&format!("-{name}{value}"));
            }
        }
        if layout != Layout::Bshd.name() {
            slug.push('-');
            slug.push_str(layout);
        }
        slug
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Attention { batch, heads, kv_heads, seq, kv_seq, layout, causal, .. } => {
                let mask = if *causal { "causal" } else { "full" };
                write!(f, "B={batch} H={heads} Hkv={kv_heads} Sq={seq} Sk={kv_seq} {layout} {mask} mask")
            }
            Self::Product { m, n, k } => write!(f, "M={m} N={n} K={k}"),
        }
    }
}
