//! From a problem and addresses to the backward kernels' parameters.

use fa_kernels::config::BackwardSm90Config;
use fa_kernels::entries::{Algorithm, Entry, Params, Tile};
use fa_kernels::params::{BackwardParams, Mapped, StoredDs, Strides, Tickets};
use fa_kernels::ptx::tma;

use super::packed::{self, Copies};
use super::pairs::{self, Pair};
use super::plan::owns_keys;
use super::stored::{self, Blocks};
use super::way::DqWay;
use super::{BackwardKernel, BackwardPart, BackwardProblem, GradientLayouts};
use crate::forward::Addresses;
use crate::launch::{attention_params, class_map, pack_params, strides};
use crate::plan::{CopyStage, cached_heads, cached_kv_heads};
use crate::tensor_map::TensorMap;
use crate::{Error, Problem, Result, TensorLayout};

/// Addresses of a backward problem's tensors on the device that runs it (host addresses in the simulator).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackwardAddresses {
    /// Those of the forward pass, whose O and lse are read; the workspace is that of the backward plan,
    /// aligned to 16 bytes.
    pub forward: Addresses,
    /// Gradient of the output.
    pub dout: u64,
    /// Gradient of the queries.
    pub dq: u64,
    /// Gradient of the keys.
    pub dk: u64,
    /// Gradient of the values.
    pub dv: u64,
    /// Gradient of the log-sum-exp, where there is one.
    pub dlse: Option<u64>,
    /// Gradient of the sinks, where it is wanted.
    pub dsinks: Option<u64>,
    /// delta, in the order of lse: what a [`BackwardPart`](super::BackwardPart) writes or reads.
    pub delta: Option<u64>,
}

impl BackwardAddresses {
    /// Whether what tensor maps describe starts at multiples of 16 bytes, as they want it: what is not
    /// copied.
    pub(super) fn are_mapped(&self, copies: &Copies) -> bool {
        let Addresses { q, k, v, .. } = self.forward;
        let mut read = [q, k, v, self.dout].into_iter().zip(copies.copies);
        read.all(|(address, copy)| copy.is_some() || address.is_multiple_of(16))
    }
}

/// What the parameters of a launch need beside its entry.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaunchDetails {
    /// Which tensors it copies, or reads copies of.
    pub(super) copies: Copies,
    /// How dQ comes about, in Hopper's kernel.
    pub(super) dq_way: DqWay,
    /// The blocks that compute its tiles.
    pub(super) blocks: Blocks,
    /// Which heads it is for, where dS passes from one launch to the next.
    pub(super) pair: Option<Pair>,
}

impl LaunchDetails {
    /// Where counters, tiles, and dS or sums begin in the workspace.
    fn counters_at(&self, forward: &Problem, workspace: u64) -> u64 {
        workspace + stored::behind_delta(forward) + self.copies.bytes
    }
}

/// The parameters that an entry takes; its tensor maps, where it has some, in the form that `encode` gives
/// them.
///
/// # Errors
/// When lse, or another address that the problem needs, was left out, and where `encode` fails.
pub(crate) fn params(
    problem: &BackwardProblem,
    (entry, details): (&Entry, LaunchDetails),
    addresses: &BackwardAddresses,
    encode: impl Fn(&TensorMap) -> Result<tma::TensorMap>,
) -> Result<Params> {
    let LaunchDetails { copies, dq_way, blocks, pair } = &details;
    if entry.algorithm == Algorithm::Pack {
        let (sources, target) = (packed::sources(problem, addresses), packed::target(problem, addresses));
        return Ok(Params::Pack(pack_params(sources, (copies, CopyStage::All), target)));
    }
    let forward = problem.forward();
    let mut params = plain_params(problem, addresses)?;
    let counters = details.counters_at(forward, addresses.forward.workspace);
    (params.tickets, params.ds) = dq_way.params(forward, *blocks, counters);
    if let Some(pair) = *pair {
        params.ds = pairs::layout(forward, addresses.forward.workspace, pair);
        params.heads_per_swizzle = heads_per_swizzle(problem, entry);
    }
    if entry.algorithm.family() != BackwardKernel::BackwardSm90.name() {
        return Ok(Params::Backward(params));
    }
    let config = config(entry);
    let params = BackwardParams {
        heads_per_swizzle: heads_per_swizzle(problem, entry),
        // A map clips at the end of its tensor, and not at that of a sequence.
        fix_up: if forward.has_rows_behind_keys() { config.fix_up_distance() } else { 0 },
        ..params
    };
    let [q, k, v, dout] = packed::reads(problem, copies, addresses);
    let map =
        |(address, layout): (u64, TensorLayout), rows| encode(&class_map((address, 2), &layout, rows, 0));
    let (owned, step) = (config.box_rows(), config.step);
    let (queries, keys) = if config.owns_keys { (step, owned) } else { (owned, step) };
    let ds = match dq_way.view(forward) {
        Some((view, rows)) => map((params.ds.address, view), rows)?,
        None => tma::TensorMap::default(),
    };
    let maps = [map(q, queries)?, map(k, keys)?, map(v, keys)?, map(dout, queries)?, ds];
    Ok(Params::MappedBackward(Mapped { maps, params }))
}

/// The tile of an entry of `backward_sm90`.
fn config(entry: &Entry) -> BackwardSm90Config {
    let Tile { block_m, block_n, head_dim, .. } = entry.tile;
    let owns_keys = owns_keys(entry.algorithm);
    let (stores_ds, sums_dq) = (entry.algorithm.stores_ds(), entry.algorithm.sums_dq());
    let step = if owns_keys { block_m } else { block_n };
    BackwardSm90Config { owns_keys, stores_ds, sums_dq, step, head_dim }
}

/// Heads whose tiles are computed at about the same time. Under a causal mask the longest tiles of them go
/// first, so that a grid does not end with a long one; as many as L2 holds the other rows of.
fn heads_per_swizzle(problem: &BackwardProblem, entry: &Entry) -> u32 {
    let forward = problem.forward();
    if !forward.causal() || forward.window().0.is_some() {
        return 1;
    }
    let heads = forward.batch() * forward.heads();
    let (cached, heads) = if owns_keys(entry.algorithm) {
        (cached_kv_heads(forward), heads / forward.group())
    } else {
        (cached_heads(forward), heads)
    };
    // The plan checked that all heads' tiles are below 2^31, and so are heads.
    cached.min(heads) as u32
}

/// The parameters that every entry takes.
fn plain_params(problem: &BackwardProblem, addresses: &BackwardAddresses) -> Result<BackwardParams> {
    let forward = problem.forward();
    let part = problem.computes();
    if addresses.forward.lse.is_none() && part != BackwardPart::Delta {
        return Err(Error::MissingAddress { tensor: "lse" });
    }
    let delta = match addresses.delta {
        None if part != BackwardPart::All => return Err(Error::MissingAddress { tensor: "delta" }),
        Some(delta) if part != BackwardPart::All => delta,
        _ => addresses.forward.workspace,
    };
    let sinks = if addresses.dsinks.is_some() { problem.sinks()? } else { 0 };
    let sequences_of_sink = if sinks > forward.heads() { 1 } else { forward.batch() as u32 };
    let GradientLayouts { dout, dq, dk, dv } = problem.layouts();
    // A packed batch has no steps from one sequence to the next.
    let is_packed = forward.is_packed();
    let strides = |layout: &TensorLayout| {
        let strides = strides(layout);
        Strides { batch: if is_packed { 0 } else { strides.batch }, ..strides }
    };
    Ok(BackwardParams {
        attention: attention_params(forward, &addresses.forward)?,
        dout: addresses.dout,
        dq: addresses.dq,
        dk: addresses.dk,
        dv: addresses.dv,
        delta,
        dout_strides: strides(dout),
        dq_strides: strides(dq),
        dk_strides: strides(dk),
        dv_strides: strides(dv),
        heads_per_swizzle: 1,
        fix_up: 0,
        ds: StoredDs::default(),
        dlse: addresses.dlse.unwrap_or(0),
        dsinks: addresses.dsinks.unwrap_or(0),
        sequences_of_sink,
        tickets: Tickets::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backward::BackwardRequest;
    use crate::sim::Sim;
    use crate::{DType, Options, Plan, Problem, Tensors};

    /// Heads of a swizzle of the launch that owns keys, and of that which owns queries.
    fn swizzles(seqlen: usize, causal: bool) -> Vec<u32> {
        let q = TensorLayout::bshd(3, seqlen, 8, 64);
        let kv = TensorLayout::bshd(3, seqlen, 2, 64);
        let options = Options { causal, ..Options::default() };
        let problem = Problem::new(Tensors { q, k: kv, v: kv, o: q }, DType::F16, options).unwrap();
        let problem = BackwardProblem::like(problem).unwrap();
        let request = BackwardRequest { workspace_limit: Some(0), ..BackwardRequest::default() };
        let plan = Plan::new(&problem, Sim::new(0).device(), &request).unwrap();
        plan.launches()[1..].iter().map(|launch| heads_per_swizzle(&problem, launch.entry)).collect()
    }

    #[test]
    fn under_a_causal_mask_heads_that_l2_holds_go_together() {
        // 256 bytes of a row of both others: 4 heads of Q and dO, or 1 of K and V for 4 of queries.
        assert_eq!(swizzles(8192, true), [4, 24]);
        assert_eq!(swizzles(65536, true), [1, 8]);
        assert_eq!(swizzles(8, true), [6, 24]);
        assert_eq!(swizzles(8192, false), [1, 1]);
    }
}
