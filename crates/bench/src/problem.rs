//! From arguments to a validated problem.

use clap::Args;
use flash_attention::forward::Dropout;
use flash_attention::{DType, Options, Problem, TensorLayout, Tensors};

use crate::args::named;

/// Order of the axes in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// batch, seqlen, heads, head_dim.
    Bshd,
    /// batch, heads, seqlen, head_dim.
    Bhsd,
}

impl Layout {
    pub(crate) const ALL: [Self; 2] = [Self::Bshd, Self::Bhsd];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bshd => "bshd",
            Self::Bhsd => "bhsd",
        }
    }

    /// A contiguous tensor in this order.
    pub(crate) const fn tensor(
        self,
        batch: usize,
        seqlen: usize,
        heads: usize,
        head_dim: usize,
    ) -> TensorLayout {
        match self {
            Self::Bshd => TensorLayout::bshd(batch, seqlen, heads, head_dim),
            Self::Bhsd => TensorLayout::bhsd(batch, seqlen, heads, head_dim),
        }
    }
}

/// What an experiment runs on when the command line does not say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) seq: usize,
}

/// The problem; what an experiment gives no value for has the default that its help says.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProblemArgs {
    /// Number of sequences
    #[arg(long)]
    pub(crate) batch: Option<usize>,
    /// Query heads
    #[arg(long)]
    pub(crate) heads: Option<usize>,
    /// Key/value heads; they divide the query heads [default: as --heads]
    #[arg(long)]
    pub(crate) kv_heads: Option<usize>,
    /// Query rows of each sequence
    #[arg(long)]
    pub(crate) seq: Option<usize>,
    /// Key rows of each sequence [default: as --seq]
    #[arg(long)]
    pub(crate) kv_seq: Option<usize>,
    /// First query row of each sequence and of what follows the last, of a packed batch, as in 0,100,128
    #[arg(long, value_name = "ROWS", value_delimiter = ',', conflicts_with_all = ["batch", "seq", "kv_seq"])]
    pub(crate) cu_seqlens_q: Vec<u32>,
    /// The same of key rows [default: as --cu-seqlens-q]
    #[arg(long, value_name = "ROWS", value_delimiter = ',', requires = "cu_seqlens_q")]
    pub(crate) cu_seqlens_k: Vec<u32>,
    /// Elements of a row of V and O, 1 to 256 [default: as those of Q and K]
    #[arg(long)]
    pub(crate) dim_v: Option<usize>,
    /// Storage type of Q, K, V and O (e4m3: O in bf16)
    #[arg(long, default_value = "f16", value_parser = named(&DType::ALL, DType::name))]
    pub(crate) dtype: DType,
    /// Order of the axes in memory: batch, seqlen, heads, head_dim
    #[arg(long, default_value = "bshd", value_parser = named(&Layout::ALL, Layout::name))]
    pub(crate) layout: Layout,
    /// Query i sees key j only if j <= i + kv_seq - seq
    #[arg(long)]
    pub(crate) causal: bool,
    /// Query i sees key j only if j >= i + kv_seq - seq - KEYS [default: no limit]
    #[arg(long, value_name = "KEYS", allow_negative_numbers = true, value_parser = window)]
    pub(crate) window_left: Option<usize>,
    /// Query i sees key j only if j <= i + kv_seq - seq + KEYS; --causal makes it 0 [default: no limit]
    #[arg(long, value_name = "KEYS", allow_negative_numbers = true, value_parser = window)]
    pub(crate) window_right: Option<usize>,
    /// Factor on Q·Kᵀ before the softmax [default: 1/sqrt(head_dim)]
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) softmax_scale: Option<f32>,
    /// Bend scaled scores s to SOFTCAP * tanh(s / SOFTCAP) before the mask; 0 is off
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) softcap: f32,
    /// Add ALiBi's bias, with the slopes of its paper: 2^(-8 h / heads) for head h = 1, 2, …
    #[arg(long)]
    pub(crate) alibi: bool,
    /// Probability that a weight of the softmax is dropped, 0 to below 1
    #[arg(long, value_name = "PROBABILITY")]
    pub(crate) dropout: Option<f32>,
}

fn window(text: &str) -> Result<usize, String> {
    text.parse().map_err(|error| format!("{error}; a side of the window is 0 or more keys, or left out"))
}

impl ProblemArgs {
    /// Names of the arguments that say something, but for the storage type.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        // All fields, so that a new one is not forgotten here.
        let Self {
            batch,
            heads,
            kv_heads,
            seq,
            kv_seq,
            cu_seqlens_q,
            cu_seqlens_k,
            dim_v,
            dtype: _,
            layout,
            causal,
            window_left,
            window_right,
            softmax_scale,
            softcap,
            alibi,
            dropout,
        } = self;
        let all = [
            ("batch", batch.is_some()),
            ("heads", heads.is_some()),
            ("kv-heads", kv_heads.is_some()),
            ("seq", seq.is_some()),
            ("kv-seq", kv_seq.is_some()),
            ("cu-seqlens-q", !cu_seqlens_q.is_empty()),
            ("cu-seqlens-k", !cu_seqlens_k.is_empty()),
            ("dim-v", dim_v.is_some()),
            ("layout", *layout != Layout::Bshd),
            ("causal", *causal),
            ("window-left", window_left.is_some()),
            ("window-right", window_right.is_some()),
            ("softmax-scale", softmax_scale.is_some()),
            ("softcap", *softcap != 0.0),
            ("alibi", *alibi),
            ("dropout", dropout.is_some()),
        ];
        all.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name).collect()
    }

    /// The problem that the arguments describe.
    pub(crate) fn problem(&self, head_dim: usize, defaults: Defaults) -> flash_attention::Result<Problem> {
        let packed = !self.cu_seqlens_q.is_empty();
        let batch = if packed { 1 } else { self.batch.unwrap_or(defaults.batch) };
        let heads = self.heads.unwrap_or(defaults.heads);
        let cu_seqlens_k = if self.cu_seqlens_k.is_empty() { &self.cu_seqlens_q } else { &self.cu_seqlens_k };
        // A packed tensor ends with its last sequence.
        let total = |offsets: &[u32]| offsets.last().map(|&last| last as usize);
        let seq = total(&self.cu_seqlens_q).or(self.seq).unwrap_or(defaults.seq);
        let kv_seq = total(cu_seqlens_k).or(self.kv_seq).unwrap_or(seq);
        let q = self.layout.tensor(batch, seq, heads, head_dim);
        let kv_heads = self.kv_heads.unwrap_or(heads);
        let k = self.layout.tensor(batch, kv_seq, kv_heads, head_dim);
        let head_dim_v = self.dim_v.unwrap_or(head_dim);
        let v = self.layout.tensor(batch, kv_seq, kv_heads, head_dim_v);
        let o = self.layout.tensor(batch, seq, heads, head_dim_v);
        let options = Options {
            causal: self.causal,
            softmax_scale: self.softmax_scale,
            window: (self.window_left, self.window_right),
            softcap: self.softcap,
            alibi_slopes: self.alibi.then(|| alibi_slopes(heads)),
            dropout: self.dropout.map(|probability| Dropout { probability, seed: 0, offset: 0 }),
            ..Options::default()
        };
        let tensors = Tensors { q, k, v, o };
        if packed {
            return Problem::varlen(tensors, self.dtype, options, &self.cu_seqlens_q, cu_seqlens_k);
        }
        Problem::new(tensors, self.dtype, options)
    }
}

/// Sizes of a problem with as many heads of K and V as of Q, and as many keys as queries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) seq: usize,
    pub(crate) head_dim: usize,
    pub(crate) dtype: DType,
    pub(crate) causal: bool,
}

impl Shape {
    /// The problem in a layout.
    pub(crate) fn problem(&self, layout: Layout) -> flash_attention::Result<Problem> {
        let tensor = layout.tensor(self.batch, self.seq, self.heads, self.head_dim);
        let options = Options { causal: self.causal, ..Options::default() };
        Problem::new(Tensors { q: tensor, k: tensor, v: tensor, o: tensor }, self.dtype, options)
    }
}

/// The problem of an experiment that varies one of its sizes.
#[derive(Clone, Debug, Args)]
pub(crate) struct ShapeArgs {
    /// Number of sequences
    #[arg(long)]
    pub(crate) batch: Option<usize>,
    /// Heads of Q, K and V
    #[arg(long)]
    pub(crate) heads: Option<usize>,
    /// Elements of a row of Q, K, V and O: head_dim, 1 to 256
    #[arg(long, alias = "head-dim")]
    pub(crate) dim: Option<usize>,
    /// Storage type of Q, K, V and O (e4m3: O in bf16)
    #[arg(long, default_value = "f16", value_parser = named(&DType::ALL, DType::name))]
    pub(crate) dtype: DType,
}

impl ShapeArgs {
    /// The shape asked for, with these sizes where nothing else is: batch, heads, head_dim.
    pub(crate) fn shape(&self, (batch, heads, head_dim): (usize, usize, usize), seq: usize) -> Shape {
        Shape {
            batch: self.batch.unwrap_or(batch),
            heads: self.heads.unwrap_or(heads),
            seq,
            head_dim: self.dim.unwrap_or(head_dim),
            dtype: self.dtype,
            causal: false,
        }
    }
}

/// A geometric sequence that ends in 2^-8 (Press et al. 2022, section 3).
pub(crate) fn alibi_slopes(heads: usize) -> Vec<f32> {
    (1..=heads).map(|head| (-8.0 * head as f32 / heads as f32).exp2()).collect()
}

/// Sinks below, among and above the scores of keys drawn from N(0, 1).
pub(crate) fn sinks(heads: usize) -> Vec<f32> {
    (0..heads).map(|head| [1.5, -3.0, 6.0, 0.0][head % 4]).collect()
}

/// What hides keys, in two words.
fn mask(problem: &Problem) -> String {
    let side = |size: Option<usize>| size.map_or("any".to_owned(), |size| size.to_string());
    match problem.window() {
        (None, None) => "full mask".to_owned(),
        (None, Some(0)) => "causal mask".to_owned(),
        (left, right) => format!("window {},{}", side(left), side(right)),
    }
}

/// The problem in one line.
pub(crate) fn describe(problem: &Problem, layout: Layout) -> String {
    let mut text = format!(
        "B={} H={} Hkv={} Sq={} Sk={} D={} {} {} {} softmax_scale={}",
        problem.batch(),
        problem.heads(),
        problem.kv_heads(),
        problem.seqlen_q(),
        problem.seqlen_k(),
        problem.head_dim(),
        problem.dtype(),
        layout.name(),
        mask(problem),
        problem.softmax_scale(),
    );
    if problem.head_dim_v() != problem.head_dim() {
        text += &format!(" Dv={}", problem.head_dim_v());
    }
    if problem.cu_seqlens().is_some() {
        let tensors = problem.tensors();
        text += &format!(" packed total_q={} total_k={}", tensors.q.seqlen, tensors.k.seqlen);
    }
    if problem.has_seqused_k() {
        text += " seqused_k";
    }
    if problem.softcap() != 0.0 {
        text += &format!(" softcap={}", problem.softcap());
    }
    let _ = problem.per_head().try_map(|name, _| {
        text += " ";
        text += name.trim_end_matches("_slopes");
        Ok::<_, std::convert::Infallible>(())
    });
    if problem.dropout().is_some() {
        text += &format!(" dropout={:.3}", dropout(problem));
    }
    text
}

/// Probability that a weight is dropped; 0 without dropout.
pub(crate) fn dropout(problem: &Problem) -> f32 {
    problem.dropout().map_or(0.0, |dropout| 1.0 - 1.0 / dropout.scale)
}
