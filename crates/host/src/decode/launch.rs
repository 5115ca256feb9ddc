//! From a plan and addresses to the decode kernels' parameters.

use fa_kernels::config::Sm90Config;
use fa_kernels::entries::{Algorithm, Entry, Params, Tile};
use fa_kernels::params::{
    AttentionMaps, AttentionParams, CacheParams, DecodeParams, Divisor, Mapped, Pages, PersistentParams,
};
use fa_kernels::ptx::tma;

use super::DecodeProblem;
use super::plan::{DecodeLaunchDetails, SharedSplits, box_rows, pack_rows, pack_tiles};
use crate::forward::{Addresses, PerHead};
use crate::launch::{attention_params, check_aligned, check_workspace, class_map, needed, pages, strides};
use crate::operation::Launch;
use crate::tensor_map::{Dimension, TensorMap, swizzled};
use crate::{Problem, Result, TensorLayout};

/// Addresses of a decode problem's tensors on the device that runs it (host addresses in the simulator).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeAddresses {
    /// Queries.
    pub q: u64,
    /// Keys: the first element of sequence 0 or of page 0.
    pub k: u64,
    /// Values, as keys; of latents these are the same.
    pub v: u64,
    /// Output.
    pub o: u64,
    /// Log-sum-exp, fp32 [B, H, Sq] contiguous; `None` where it is not wanted.
    pub lse: Option<u64>,
    /// First query row of each sequence and of what follows the last, u32 [B + 1]; `None` unless they are
    /// packed.
    pub cu_seqlens_q: Option<u64>,
    /// Keys of each sequence, int32 `[B]`; `None` where all have Sk.
    pub seqused_k: Option<u64>,
    /// Pages of each sequence, int32 [B, max_pages]; `None` where K and V are contiguous.
    pub page_table: Option<u64>,
    /// Factors of K in e4m3, fp32 `[Hkv]` or [B, Hkv]; `None` where the problem has one for all heads.
    pub k_descale: Option<u64>,
    /// Factors of V, as those of K.
    pub v_descale: Option<u64>,
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
    let &DecodeAddresses {
        q,
        k,
        v,
        o,
        lse,
        cu_seqlens_q,
        seqused_k,
        page_table,
        tree_mask,
        workspace,
        per_head,
        ..
    } = addresses;
    if problem.dense().is_packed() || launch.details.widened.is_some() {
        [("q", q), ("k", k), ("v", v)].into_iter().try_for_each(check_aligned)?;
    }
    if launch.entry.algorithm == Algorithm::MlaSm90 {
        check_aligned(("k", k))?;
    }
    // Keys are none of the packed ones.
    let cu_seqlens = cu_seqlens_q.map(|offsets| (offsets, 0));
    let dense = Addresses { q, k, v, o, lse, workspace, per_head, cu_seqlens, ..Addresses::default() };
    let mut descales = Default::default();
    if let Some(of) = problem.descales() {
        [("k", k), ("v", v)].into_iter().try_for_each(check_aligned)?;
        descales = [of.k.params(addresses.k_descale)?, of.v.params(addresses.v_descale)?];
    }
    let [k_descale, v_descale] = descales;
    let tree_mask = needed("tree_mask", tree_mask, problem.has_tree_mask())?;
    let page_table = needed("page_table", page_table, problem.max_pages().is_some())?;
    let seqused_k = seqused_k.unwrap_or(0);
    let attention = AttentionParams { seqused_k, ..attention_params(problem.dense(), &dense)? };
    if let Some(widened) = &launch.details.widened {
        check_workspace(workspace, widened.end())?;
        if launch.entry.algorithm == Algorithm::Widen {
            let places = (page_table, workspace);
            return Ok(Params::Widen(widened.params(problem, attention, [k, v], places)));
        }
    }
    let contiguous = dense_params(problem.dense(), (launch.entry, launch.details), workspace, &attention);
    let params = DecodeParams {
        tree_mask,
        k_strides: strides(problem.k()),
        v_strides: strides(problem.v()),
        cache: CacheParams {
            pages: pages(problem.k(), problem.max_pages(), page_table),
            k_descale,
            v_descale,
            ..contiguous.cache
        },
        ..contiguous
    };
    let place = Place { k: problem.k(), v: problem.v(), page_size: problem.page_size() };
    let (params, attention, place) = match &launch.details.widened {
        Some(widened) => {
            let ([k, v], mut cache) = (widened.addresses(workspace), params.cache);
            // A factor of all heads is the scale's; entries that change no scores read no other.
            let softmax_scale = attention.softmax_scale * std::mem::replace(&mut cache.k_descale.tensor, 1.0);
            let cache = CacheParams { pages: Pages::default(), ..cache };
            let [k_layout, v_layout] = widened.layouts();
            let place = Place { k: k_layout, v: v_layout, page_size: None };
            (DecodeParams { k, v, cache, ..params }, AttentionParams { softmax_scale, ..attention }, place)
        }
        None => (params, attention, place),
    };
    of_entry(problem.dense(), launch.entry, launch.details, (params, attention), &place, encode)
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
    let attention = attention_params(problem, addresses)?;
    let params = dense_params(problem, (entry, details), addresses.workspace, &attention);
    let place = Place { k: &tensors.k, v: &tensors.v, page_size: None };
    of_entry(problem, entry, details, (params, attention), &place, encode)
}

/// Where K and V lie.
struct Place<'a> {
    k: &'a TensorLayout,
    v: &'a TensorLayout,
    page_size: Option<usize>,
}

/// What an entry takes: parameters alone, or with maps.
fn of_entry(
    problem: &Problem,
    entry: &Entry,
    details: DecodeLaunchDetails,
    (params, attention): (DecodeParams, AttentionParams),
    place: &Place<'_>,
    encode: impl Fn(&TensorMap) -> Result<tma::TensorMap>,
) -> Result<Params> {
    let element_bytes = match entry.algorithm {
        algorithm if algorithm.reads_e4m3() => 1,
        Algorithm::MlaSm90 => 2,
        algorithm if algorithm.is_decode_sm90() || algorithm.is_cached_forward() => 2,
        _ => return Ok(Params::Decode(params)),
    };
    // Measured on an H200: 8 to 10 % less time without promotion, where keys are read once.
    let map = |address, layout| {
        let rows = box_rows(entry.tile.block_n, place.page_size);
        let map = class_map((address, element_bytes), layout, rows, 0);
        encode(&TensorMap { promotes: false, ..map })
    };
    let (k, v) = (map(params.k, place.k)?, map(params.v, place.v)?);
    if !entry.algorithm.is_cached_forward() {
        return Ok(Params::MappedDecode(Mapped { maps: [k, v], params }));
    }
    let q = encode(&pack_map(params.q, &problem.tensors().q, details.head_bits))?;
    let maps = AttentionMaps { q: [q; 8], k: [k; 8], v: [v; 8], o: tma::TensorMap::default() };
    let params = cached_params(problem, entry, details, &params, attention);
    Ok(Params::Persistent(Mapped { maps, params }))
}

/// The parameters of `forward_sm90` over a cache, beside those that all entries have.
fn cached_params(
    problem: &Problem,
    entry: &Entry,
    details: DecodeLaunchDetails,
    params: &DecodeParams,
    attention: AttentionParams,
) -> PersistentParams {
    let DecodeLaunchDetails { num_splits, head_bits, order, .. } = details;
    let Tile { block_m, block_n, head_dim, head_dim_v } = entry.tile;
    let whole_tiles = pack_rows(problem.seqlen_q(), problem).div_ceil(block_m as usize);
    let config = Sm90Config { block_m, block_n, head_dim, head_dim_v, element_bytes: 2 };
    let landed = config.fix_up_distance();
    // The planner bounds the grid, so these casts keep their values.
    PersistentParams {
        attention: AttentionParams {
            heads: attention.heads >> head_bits,
            group: attention.group >> head_bits,
            seqused_k: params.seqused_k,
            ..attention
        },
        tiles: (pack_tiles(problem, block_m) * num_splits) as u32,
        whole_tiles: whole_tiles as u32,
        heads_per_swizzle: order.heads_per_swizzle,
        snake_order: order.snake_order.into(),
        sequences: if problem.is_packed() { problem.batch() as u32 } else { 0 },
        sequence_step: 1,
        // Behind the keys that count there may be anything.
        v_fix_up: if params.seqused_k == 0 { 0 } else { landed },
        cache: CacheParams { head_bits, ..params.cache },
        ..PersistentParams::default()
    }
}

/// The map of Q whose boxes are rows of a pack of heads: heads come before rows.
fn pack_map(address: u64, q: &TensorLayout, head_bits: u32) -> TensorMap {
    let axis = |length, stride, boxed| {
        // The axis of a single index takes no steps, but its stride is looked at.
        Dimension { length, stride: if length == 1 { 8 } else { stride }, boxed }
    };
    let columns = Dimension { length: q.head_dim, stride: 1, boxed: Sm90Config::BOX_BYTES / 2 };
    swizzled(
        (address, 2),
        [
            columns,
            axis(q.heads, q.stride_head, 1 << head_bits),
            axis(q.seqlen, q.stride_seq, Sm90Config::WARPGROUP_ROWS >> head_bits),
            axis(q.batch, q.stride_batch, 1),
        ],
    )
}

/// Bytes of O and of the log-sum-exps of so many splits.
pub(crate) fn partial_bytes(problem: &Problem, num_splits: usize) -> [u128; 2] {
    let rows = (4 * num_splits) as u128 * problem.lse_len() as u128;
    [rows * problem.head_dim_v().next_multiple_of(4) as u128, rows]
}

/// Bytes of an H100's or H200's L2.
const HOPPERS_L2: u128 = 50 << 20;

/// Bytes of the keys and values that sequences have room for; with strides of 0 more than memory has.
fn key_bytes(problem: &Problem, entry: &Entry) -> u128 {
    let element = if entry.algorithm.reads_e4m3() { 1 } else { problem.dtype().bytes() };
    let columns = problem.head_dim() + problem.head_dim_v();
    let keys = problem.batch() as u128 * problem.seqlen_k() as u128;
    keys * (problem.kv_heads() * columns * element) as u128
}

/// The parameters of a problem with contiguous keys.
fn dense_params(
    problem: &Problem,
    (entry, details): (&Entry, DecodeLaunchDetails),
    workspace: u64,
    attention: &AttentionParams,
) -> DecodeParams {
    let DecodeLaunchDetails { num_splits, split_keys, short_split_bits, enough_sequences, shared, .. } =
        details;
    let SharedSplits { before, all } = shared.unwrap_or(SharedSplits { before: 0, all: num_splits });
    let ([o_before, lse_before], [all_o, _]) = (partial_bytes(problem, before), partial_bytes(problem, all));
    let AttentionParams { seqlen_q, heads, group, .. } = *attention;
    // The planner bounds splits, so these casts keep their values.
    DecodeParams {
        q: attention.q,
        k: attention.k,
        v: attention.v,
        o: attention.o,
        lse: attention.lse,
        seqused_k: attention.seqused_k,
        q_strides: attention.q_strides,
        k_strides: attention.k_strides,
        v_strides: attention.v_strides,
        o_strides: attention.o_strides,
        cache: CacheParams {
            partial_o: workspace + o_before as u64,
            partial_lse: workspace + (all_o + lse_before) as u64,
            rows: problem.lse_len() as u64,
            num_splits: Divisor::new(num_splits as u32),
            split_keys: split_keys as u32,
            head_dim_v: attention.head_dim_v,
            ..CacheParams::default()
        },
        batch: problem.batch() as u32,
        seqlen_q: Divisor::new(seqlen_q),
        seqlen_k: attention.seqlen_k,
        heads: Divisor::new(heads),
        kv_heads: Divisor::new(heads / group),
        group: Divisor::new(group),
        tiles: Divisor::new(problem.packed_rows().div_ceil(entry.tile.block_m as usize) as u32),
        head_dim: attention.head_dim,
        window_left: attention.window_left,
        window_span: attention.window_span,
        softmax_scale: attention.softmax_scale,
        softcap: attention.softcap,
        short_split_bits,
        enough_sequences,
        exceeds_l2: u32::from(key_bytes(problem, entry) > HOPPERS_L2),
        per_head: attention.per_head,
        tree_mask: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{DecodeKernel, DecodeOptions, DecodeRequest};
    use crate::sim::Sim;
    use crate::{DType, Plan, Tensors};

    #[test]
    fn what_a_problem_needs_and_nobody_gave_is_named() {
        let q = TensorLayout::bshd(2, 4, 8, 64);
        let pages = TensorLayout::bshd(10, 16, 2, 64);
        let options = DecodeOptions { max_pages: Some(4), tree_mask: true, ..DecodeOptions::default() };
        let tensors = Tensors { q, k: pages, v: pages, o: q };
        let problem = DecodeProblem::new(tensors, DType::Bf16, options).unwrap();
        for kernel in [DecodeKernel::Decode, DecodeKernel::DecodeSm90] {
            let request = DecodeRequest { kernel: Some(kernel), ..DecodeRequest::default() };
            let plan = Plan::new(&problem, Sim::new(0).device(), &request).unwrap();
            let refused = |page_table, tree_mask| {
                let addresses = DecodeAddresses { page_table, tree_mask, ..DecodeAddresses::default() };
                let encode = |_: &TensorMap| Ok(tma::TensorMap::default());
                params(&problem, &plan.launches()[0], &addresses, encode).err().map(|error| error.to_string())
            };
            assert!(refused(None, Some(256)).unwrap().contains("page_table"));
            assert!(refused(Some(256), None).unwrap().contains("tree_mask"));
            assert_eq!(refused(Some(256), Some(256)), None);
        }
    }

    #[test]
    fn keys_are_told_to_make_room_in_l2_where_they_exceed_it() {
        let exceeds = |keys| {
            let (q, k) = (TensorLayout::bshd(1, 1, 8, 128), TensorLayout::bshd(1, keys, 8, 128));
            let tensors = Tensors { q, k, v: k, o: q };
            let problem = DecodeProblem::new(tensors, DType::F16, DecodeOptions::default()).unwrap();
            let request =
                DecodeRequest { kernel: Some(DecodeKernel::DecodeSm90), ..DecodeRequest::default() };
            let plan = Plan::new(&problem, Sim::new(0).device(), &request).unwrap();
            let (entry, details) = (plan.launches()[0].entry, plan.launches()[0].details);
            let attention = attention_params(problem.dense(), &Addresses::default()).unwrap();
            dense_params(problem.dense(), (entry, details), 0, &attention).exceeds_l2
        };
        // A key and its value have 4 KiB.
        assert_eq!([12_800, 12_801].map(exceeds), [0, 1]);
    }
}
