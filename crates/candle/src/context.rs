//! Attention of sequences whose rows several devices share out.

mod shards;

use std::ops::Range;
#[cfg(feature = "cuda")]
use std::sync::Arc;

use candle_core::{Device, Result, Tensor, bail};
use flash_attention::distributed::{Partition, Run, Shard};
use flash_attention::{DType, Element, Options, Problem, TensorLayout, Tensors};

use crate::FlashAttn;
#[cfg(feature = "cuda")]
use crate::cuda::Ranks;
use crate::op::{self, Attention, by_dtype};
use crate::problem::error;

/// Who has which rows.
const PARTITION: Partition = Partition::ZigZag;

/// Attention of one problem over several devices, each of which has some rows of every sequence (context
/// parallelism), with gradients.
///
/// Rank r is the r-th device. Sequences are cut into 2N chunks for N ranks, of which rank r has the chunks r
/// and 2N − 1 − r, so that under a causal mask all ranks have as much to do. Whatever looks at one row alone,
/// as projections and norms do, runs on each rank's rows as they are.
///
/// ```
/// use candle_core::{Device, Result, Tensor, Var};
/// use candle_flash_attention::{ContextParallel, FlashAttn};
///
/// let causal = FlashAttn {
///     softmax_scale: 1.0 / 8.0,
///     alibi_slopes: None,
///     window_size_left: None,
///     window_size_right: Some(0),
///     softcap: None,
/// };
/// // On GPUs: Device::new_cuda_with_stream(0)? and Device::new_cuda_with_stream(1)?.
/// let devices = [Device::Cpu, Device::Cpu];
/// let parallel = ContextParallel::new(&devices, causal, 100, 100)?; // seqlen_q, seqlen_k
/// let random = || Var::randn(0.0_f32, 1.0, (1, 100, 4, 64), &devices[0]);
/// let (q, k, v) = (random()?, random()?, random()?);
/// let (queries, keys) = (parallel.shard_queries(&q)?, parallel.shard_keys(&k)?);
/// let o = parallel.attention(&queries, &keys, &parallel.shard_keys(&v)?)?;
/// let losses = o.iter().map(|o| o.sqr()?.sum_all()).collect::<Result<Vec<_>>>()?;
/// let gradients = parallel.sum(&losses)?.backward()?;
/// assert_eq!(gradients.get(&q).map(Tensor::dims), Some([1, 100, 4, 64].as_slice()));
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// On GPUs O and its gradients have the bits of one GPU, if each head_dim is a multiple of 8. Under a left
/// window and with ALiBi they are those of one GPU with `batch_invariant`. Copy engines gather keys and
/// values while those that came before are attended to. All work waits for what is on the devices' streams,
/// and what comes next on them for it; the host waits for nothing.
///
/// [`Self::shard_queries`], [`Self::shard_keys`], [`Self::gather_queries`], [`Self::replicate`] and
/// [`Self::sum`] take tensors and their gradients from GPU to GPU. [`Tensor::to_device`] of candle-core 0.11
/// may free what it reads before the other GPU's stream has read it, unless the device is synchronized.
///
/// Plans, and memory for gathered tensors, are kept for the last shape and type of each pass: one value
/// serves all layers of a model. On the CPU attention is that of the whole, to try a program without GPUs.
pub struct ContextParallel {
    attention: FlashAttn,
    /// ALiBi's slopes, on the host.
    slopes: Option<Vec<f32>>,
    devices: Vec<Device>,
    /// Rows of Q and of K in all.
    lens: [usize; 2],
    queries: Vec<Vec<Range<usize>>>,
    keys: Vec<Vec<Range<usize>>>,
    #[cfg(feature = "cuda")]
    ranks: Option<Arc<Ranks>>,
}

impl ContextParallel {
    /// Deals out the rows of sequences of `seqlen_q` queries and `seqlen_k` keys to these devices.
    ///
    /// CUDA devices are of [`Device::new_cuda_with_stream`]. The stream of [`Device::new_cuda`] is the
    /// default one of whichever GPU is current, where candle would then free another GPU's memory. Two
    /// devices may be of one GPU, where their ranks take turns.
    ///
    /// # Errors
    /// With fewer than two devices, devices of different kinds or without a stream of their own, more queries
    /// than keys, fewer than two rows for each rank, or ALiBi without a causal mask; when a left window or
    /// ALiBi, under which chunks begin at multiples of 384 rows, leaves a rank without queries.
    pub fn new(devices: &[Device], attention: FlashAttn, seqlen_q: usize, seqlen_k: usize) -> Result<Self> {
        let world = devices.len();
        if world < 2 {
            bail!("flash-attn: devices are {world}; at least 2 are needed, flash_attn is attention on one");
        }
        for (rank, device) in devices.iter().enumerate() {
            match (device, &devices[0]) {
                (Device::Cpu, Device::Cpu) | (Device::Cuda(_), Device::Cuda(_)) => {}
                (Device::Cpu | Device::Cuda(_), Device::Cpu | Device::Cuda(_)) => bail!(
                    "flash-attn: devices[{rank}] is {:?}, but devices[0] {:?}",
                    device.location(),
                    devices[0].location()
                ),
                _ => bail!(
                    "flash-attn: devices[{rank}] is {:?}; the CPU and CUDA are supported",
                    device.location()
                ),
            }
        }
        let slopes = match &attention.alibi_slopes {
            Some(slopes) => {
                // One for each head of Q, whose number a call says.
                attention.settings().alibi_slopes(slopes.elem_count())?;
                Some(slopes.to_vec1::<f32>()?)
            }
            None => None,
        };
        let mut this = Self {
            attention,
            slopes,
            devices: devices.to_vec(),
            lens: [seqlen_q, seqlen_k],
            queries: Vec::new(),
            keys: Vec::new(),
            #[cfg(feature = "cuda")]
            ranks: None,
        };
        // Which rows a rank has depends on no other sizes.
        let heads = this.slopes.as_ref().map_or(1, Vec::len);
        let problem = this.problem(DType::F32, Sizes { batch: 1, heads, kv_heads: 1, dims: [1, 1] })?;
        for rank in 0..world {
            let shard = Shard::new(&problem, rank, world, PARTITION).map_err(error)?;
            let queries = rows(shard.query_runs());
            if queries.is_empty() {
                bail!(
                    "flash-attn: seqlen_q is {seqlen_q}, which leaves rank {rank} of {world} without rows: \
                     under a left window and with ALiBi chunks begin at multiples of 384"
                );
            }
            this.queries.push(queries);
            this.keys.push(rows(shard.key_runs()));
        }
        #[cfg(feature = "cuda")]
        {
            this.ranks = Ranks::new(devices)?.map(Arc::new);
        }
        Ok(this)
    }

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.devices.len()
    }

    /// The device of each rank.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Rows of the whole Q and O that each rank has, in the order in which it has them.
    pub fn query_rows(&self) -> &[Vec<Range<usize>>] {
        &self.queries
    }

    /// The same of K and V. These are [`Self::query_rows`] where there are as many queries as keys, and
    /// neither a left window nor ALiBi.
    pub fn key_rows(&self) -> &[Vec<Range<usize>>] {
        &self.keys
    }

    /// Attention of all ranks' queries over all ranks' keys: [`flash_attn`](crate::flash_attn) of the whole.
    ///
    /// * `q` - each rank's queries, `[batch, rows, heads, head_dim]` on its device, rows as
    ///   [`Self::query_rows`] has them.
    /// * `k`, `v` - each rank's keys and values, `[batch, rows, kv_heads, head_dim]`, rows as
    ///   [`Self::key_rows`] has them.
    ///
    /// Returns each rank's `[batch, rows, heads, head_dim]`, contiguous, on its device, in the type of `q`.
    /// On GPUs tensors that are not contiguous are copied.
    ///
    /// A backward pass through any of them computes the gradients of all ranks at once, with dO 0 of those
    /// that the loss does not depend on. One thread at a time goes back through what a call returned; after
    /// an error there, call this again. Gradients under a left window and with ALiBi are refused on GPUs.
    ///
    /// # Errors
    /// When there is not one tensor of each rank, one has another shape, type or device than the others ask
    /// for, and as [`flash_attn`](crate::flash_attn). The message names argument, value and limit.
    pub fn attention(&self, q: &[Tensor], k: &[Tensor], v: &[Tensor]) -> Result<Vec<Tensor>> {
        #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "ranks are on GPUs"))]
        let problem = self.checked(q, k, v)?;
        #[cfg(feature = "cuda")]
        if let Some(ranks) = &self.ranks {
            return ranks.attention(problem, [q, k, v]);
        }
        let whole = |name, tensors, rows| self.gather((name, tensors), rows, &Device::Cpu);
        let (q, k, v) =
            (whole("q", q, &self.queries)?, whole("k", k, &self.keys)?, whole("v", v, &self.keys)?);
        self.shard_queries(&op::apply(&q, &k, &v, self.attention.clone())?)
    }

    /// The whole problem.
    fn problem(&self, dtype: DType, sizes: Sizes) -> Result<Problem> {
        let Sizes { batch, heads, kv_heads, dims: [d, dv] } = sizes;
        let [sq, sk] = self.lens;
        let tensors = Tensors {
            q: TensorLayout::bshd(batch, sq, heads, d),
            k: TensorLayout::bshd(batch, sk, kv_heads, d),
            v: TensorLayout::bshd(batch, sk, kv_heads, dv),
            o: TensorLayout::bshd(batch, sq, heads, dv),
        };
        let options = Options { alibi_slopes: self.slopes.clone(), ..self.attention.settings().options(sk) };
        Problem::new(tensors, dtype, options).map_err(error)
    }

    /// The whole problem of these tensors, once they fit one another.
    fn checked(&self, q: &[Tensor], k: &[Tensor], v: &[Tensor]) -> Result<Problem> {
        for (name, tensors) in [("q", q), ("k", k), ("v", v)] {
            self.check_count(name, tensors)?;
        }
        let dims = |name: &str, tensor: &Tensor| match *tensor.dims() {
            [batch, _, heads, dim] => Ok((batch, heads, dim)),
            _ => bail!(
                "flash-attn: {name}[0] has shape {:?}; four axes, [batch, rows, heads, head_dim], are needed",
                tensor.dims()
            ),
        };
        let ((batch, heads, d), (_, kv_heads, _), (_, _, dv)) =
            (dims("q", &q[0])?, dims("k", &k[0])?, dims("v", &v[0])?);
        crate::problem::check_head_dim("q", d)?;
        crate::problem::check_head_dim("v", dv)?;
        let dtype = by_dtype!(q[0].dtype(), T => T::DTYPE);
        let expected = [
            ("q", q, &self.queries, [heads, d]),
            ("k", k, &self.keys, [kv_heads, d]),
            ("v", v, &self.keys, [kv_heads, dv]),
        ];
        for (name, tensors, rows, [heads, dim]) in expected {
            for (rank, (tensor, rows)) in tensors.iter().zip(rows).enumerate() {
                let shape = [batch, rows.iter().map(Range::len).sum(), heads, dim];
                if tensor.dims() != shape {
                    let found = tensor.dims();
                    bail!("flash-attn: {name}[{rank}] has shape {found:?}; {shape:?} is needed");
                }
                if tensor.dtype() != q[0].dtype() {
                    bail!(
                        "flash-attn: {name}[{rank}] is {:?}, but q[0] is {:?}",
                        tensor.dtype(),
                        q[0].dtype()
                    );
                }
                let (found, own) = (tensor.device().location(), self.devices[rank].location());
                if found != own {
                    bail!("flash-attn: {name}[{rank}] is on {found:?}; {own:?} is needed, the rank's device");
                }
            }
        }
        self.attention.settings().alibi_slopes(heads)?;
        self.problem(dtype, Sizes { batch, heads, kv_heads, dims: [d, dv] })
    }

    fn check_count(&self, name: &str, tensors: &[Tensor]) -> Result<()> {
        if tensors.len() == self.world() {
            return Ok(());
        }
        bail!(
            "flash-attn: {name} are {} tensors; {} are needed, one of each rank",
            tensors.len(),
            self.world()
        )
    }
}

/// Sizes that ranks' tensors have beside their rows.
struct Sizes {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    /// head_dim of Q and K, and of V.
    dims: [usize; 2],
}

/// Rows of runs; neighbours are one run.
fn rows(runs: impl Iterator<Item = Run>) -> Vec<Range<usize>> {
    let mut rows: Vec<Range<usize>> = Vec::new();
    for run in runs.map(|run| run.whole).filter(|run| !run.is_empty()) {
        match rows.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => rows.push(run),
        }
    }
    rows
}
