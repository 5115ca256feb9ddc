//! From a plan and addresses to the kernel's parameters.

use fa_kernels::entries::Params;
use fa_kernels::params::{AppendParams, AppendTensor, RotaryParams};

use super::plan::{pieces, sequence_blocks};
use super::{AppendProblem, RotaryQueries};
use crate::launch::{needed, pages, strides};
use crate::{Result, TensorLayout};

/// Addresses of a problem's tensors on the device that runs it (host addresses in the simulator), each of the
/// first element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendAddresses {
    /// New keys.
    pub k: u64,
    /// New values.
    pub v: u64,
    /// The cache of keys: the first element of sequence 0 or of page 0.
    pub k_cache: u64,
    /// As `k_cache`, of values.
    pub v_cache: u64,
    /// Keys that each sequence has before, int32 `[B]`. A new key that would lie outside of the cache is not
    /// written.
    pub seqused_k: u64,
    /// Pages of each sequence, int32 [B, max_pages]; `None` where the cache is contiguous. A new key whose
    /// page there is not is not written.
    pub page_table: Option<u64>,
    /// Cosines and sines; `None` without a rotary embedding.
    pub cos_sin: Option<(u64, u64)>,
    /// Queries, and where those that are turned go, which may be the same; `None` where there are none.
    pub q: Option<(u64, u64)>,
}

/// The parameters of the launch.
///
/// # Errors
/// When an address that the problem needs was left out.
pub(super) fn params(problem: &AppendProblem, addresses: &AppendAddresses) -> Result<Params> {
    let (tensors, rotary, max_pages) =
        (problem.tensors(), problem.options().rotary, problem.options().max_pages);
    let page_table = needed("page_table", addresses.page_table, max_pages.is_some())?;
    let cos = needed("rotary_cos", addresses.cos_sin.map(|(cos, _)| cos), rotary.is_some())?;
    let sin = needed("rotary_sin", addresses.cos_sin.map(|(_, sin)| sin), rotary.is_some())?;
    let q = needed("q", addresses.q.map(|(q, _)| q), problem.queries().is_some())?;
    let q_out = needed("q_out", addresses.q.map(|(_, q_out)| q_out), problem.queries().is_some())?;
    let rotary_dim = problem.rotary_dim();
    let tensor = |[source, target]: [(u64, &TensorLayout); 2], rotary_dim| {
        let pieces = pieces(problem, source.1, rotary_dim);
        // The problem bounds heads of a sequence, and the plan blocks, so these casts keep their values.
        AppendTensor {
            source: source.0,
            target: target.0,
            source_strides: strides(source.1),
            target_strides: strides(target.1),
            rows: source.1.seqlen as u32,
            heads: source.1.heads as u32,
            columns: source.1.head_dim as u32,
            pieces,
            sequence_blocks: sequence_blocks(source.1, pieces) as u32,
        }
    };
    let k = tensor([(addresses.k, &tensors.k), (addresses.k_cache, &tensors.k_cache)], rotary_dim);
    let v = tensor([(addresses.v, &tensors.v), (addresses.v_cache, &tensors.v_cache)], 0);
    let of_queries = |queries: &RotaryQueries| tensor([(q, &queries.q), (q_out, &queries.q_out)], rotary_dim);
    let q = problem.queries().map(of_queries).unwrap_or_default();
    let mut end = 0;
    let ends = [k, v, q].map(|tensor| {
        end += tensors.k.batch as u32 * tensor.sequence_blocks;
        end
    });
    Ok(Params::Append(AppendParams {
        k,
        v,
        q,
        ends,
        seqused_k: addresses.seqused_k,
        pages: pages(&tensors.k_cache, max_pages, page_table),
        // No entry of a table reaches more.
        num_pages: tensors.k_cache.batch.min(1 << 31) as u32,
        seqlen_k: problem.seqlen_k() as u32,
        rotary: RotaryParams {
            cos,
            sin,
            // Positions are 32-bit numbers.
            rows: rotary.map_or(1, |rotary| rotary.rows.min(u32::MAX as usize) as u32),
            dim: rotary_dim as u32,
            interleaved: rotary.is_some_and(|rotary| rotary.interleaved).into(),
            queries_in_order: problem.queries().is_some_and(|queries| queries.in_order).into(),
        },
    }))
}
