//! From a plan and addresses to the decode kernels' parameters.

use fa_kernels::entries::{Algorithm, Entry, Params};
use fa_kernels::params::{DecodeParams, Mapped};
use fa_kernels::ptx::tma;

use super::DecodeProblem;
use super::plan::{DecodeLaunchDetails, box_rows};
use crate::forward::{Addresses, PerHead};
use crate::launch::{attention_params, class_map, strides};
use crate::operation::Launch;
use crate::tensor_map::TensorMap;
use crate::{Error, Problem, Result, TensorLayout};

/// Addresses of a decode problem's tensors on the device that runs it (host addresses in the simulator).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeAddresses {
    /// Queries.
    pub q: u64,
    /// Keys: the first element of sequence 0 or of page 0.
    pub k: u64,
    /// Values, as keys.
    pub v: u64,
    /// Output.
    pub o: u64,
    /// Log-sum-exp, fp32 [B, H, Sq] contiguous; `None` where it is not wanted.
    pub lse: Option<u64>,
    /// Keys of each sequence, int32 `[B]`; `None` where all have Sk.
    pub seqused_k: Option<u64>,
    /// Pages of each sequence, int32 [B, max_pages]; `None` where K and V are contiguous.
    pub page_table: Option<u64>,
    /// Which of the newest Sq keys each query sees, u64 [B, Sq]; `None` where queries are no tree.
    pub tree_mask: Option<u64>,
    /// [`Plan::workspace_bytes`](crate::Plan::workspace_bytes) of memory, aligned to 16 bytes; unused where
    /// that is 0.
    pub workspace: u64,
    /// What each head has.
    pub per_head: PerHead<u64>,
}

/// The parameters that a launch takes; its tensor maps, where it has some, in the form that `encode` gives
/// them.
///
/// # Errors
/// When an address that the problem needs was left out, and where `encode` fails.
pub(crate) fn params(
    problem: &DecodeProblem,
    launch: &Launch<DecodeProblem>,
    addresses: &DecodeAddresses,
    encode: impl Fn(&TensorMap) -> Result<tma::TensorMap>,
) -> Result<Params> {
    let &DecodeAddresses { q, k, v, o, lse, seqused_k, page_table, tree_mask, workspace, per_head } =
        addresses;
    let tree_mask = match tree_mask {
        _ if !problem.has_tree_mask() => 0,
        Some(address) => address,
        None => return Err(Error::MissingAddress { tensor: "tree_mask" }),
    };
    let dense = Addresses { q, k, v, o, lse, workspace, per_head, cu_seqlens: None, seqused_k: None };
    // `DecodeProblem::new` bounds pages, so these casts keep their values.
    let params = DecodeParams {
        seqused_k: seqused_k.unwrap_or(0),
        page_table: page_table.unwrap_or(0),
        tree_mask,
        k_strides: strides(problem.k()),
        v_strides: strides(problem.v()),
        page_size: problem.k().seqlen as u32,
        max_pages: problem.max_pages().unwrap_or(0) as u32,
        ..dense_params(problem.dense(), launch.details, &dense)?
    };
    let page_size = problem.max_pages().map(|_| problem.k().seqlen);
    with_maps(launch.entry, params, [problem.k(), problem.v()], page_size, encode)
}

/// [`params`] of a problem of the forward pass, whose keys are contiguous.
///
/// # Errors
/// As [`params`].
pub(crate) fn dense_launch_params(
    problem: &Problem,
    entry: &Entry,
    details: DecodeLaunchDetails,
    addresses: &Addresses,
    encode: impl Fn(&TensorMap) -> Result<tma::TensorMap>,
) -> Result<Params> {
    let tensors = problem.tensors();
    let params = dense_params(problem, details, addresses)?;
    with_maps(entry, params, [&tensors.k, &tensors.v], None, encode)
}

/// Parameters with the maps of K and V, where the entry takes them.
fn with_maps(
    entry: &Entry,
    params: DecodeParams,
    [k, v]: [&TensorLayout; 2],
    page_size: Option<usize>,
    encode: impl Fn(&TensorMap) -> Result<tma::TensorMap>,
) -> Result<Params> {
    if entry.algorithm != Algorithm::DecodeSm90 {
        return Ok(Params::Decode(params));
    }
    let map = |address, layout| {
        let map = class_map((address, 2), layout, box_rows(entry.tile.block_n, page_size), 0);
        // Measured on an H200: 8 % more bytes a second.
        encode(&TensorMap { promotes: false, ..map })
    };
    let maps = [map(params.k, k)?, map(params.v, v)?];
    Ok(Params::MappedDecode(Mapped { maps, params }))
}

/// Bytes of O and of the log-sum-exps of so many splits.
pub(super) fn partial_bytes(problem: &Problem, num_splits: usize) -> [u128; 2] {
    let rows = (4 * num_splits) as u128 * problem.lse_len() as u128;
    [rows * problem.head_dim_v().next_multiple_of(4) as u128, rows]
}

/// The parameters of a problem with contiguous keys.
fn dense_params(
    problem: &Problem,
    DecodeLaunchDetails { num_splits, split_keys }: DecodeLaunchDetails,
    addresses: &Addresses,
) -> Result<DecodeParams> {
    let attention = attention_params(problem, addresses)?;
    let rows = problem.lse_len() as u64;
    let [partial_o, _] = partial_bytes(problem, num_splits);
    // The planner bounds splits, so these casts keep their values.
    Ok(DecodeParams {
        q: attention.q,
        k: attention.k,
        v: attention.v,
        o: attention.o,
        lse: attention.lse,
        seqused_k: attention.seqused_k,
        page_table: 0,
        partial_o: addresses.workspace,
        partial_lse: addresses.workspace + partial_o as u64,
        q_strides: attention.q_strides,
        k_strides: attention.k_strides,
        v_strides: attention.v_strides,
        o_strides: attention.o_strides,
        rows,
        page_size: 1,
        max_pages: 0,
        seqlen_q: attention.seqlen_q,
        seqlen_k: attention.seqlen_k,
        heads: attention.heads,
        group: attention.group,
        head_dim: attention.head_dim,
        head_dim_v: attention.head_dim_v,
        window_left: attention.window_left,
        window_span: attention.window_span,
        num_splits: num_splits as u32,
        split_keys: split_keys as u32,
        softmax_scale: attention.softmax_scale,
        softcap: attention.softcap,
        per_head: attention.per_head,
        tree_mask: 0,
    })
}
