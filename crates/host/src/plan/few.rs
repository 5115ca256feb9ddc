//! Few queries of the forward pass, by the kernels that decode: they split keys over blocks, and read K and V
//! once for all query heads that share them.

use super::{Choice, Kernel, LaunchDetails, Request};
use crate::decode::{Cache, DecodeRequest, FewQueries, MAX_DECODE_SEQLEN_Q, splits_forward};
use crate::{DType, Device, Error, Problem, Result};

/// Keys from which on splits pay for the launch that merges them: of 64 heads with 2,048 keys and 8 queries
/// they take 29 µs in place of 25, of 8 groups of four with 8,192 keys and 16 queries 52 in place of 76.
const MANY_KEYS: usize = 4096;

/// Rows of the smallest tile of Hopper's forward kernel.
const FORWARD_ROWS: usize = 128;

/// Why decode does not take a problem, if so.
fn refusal(problem: &Problem) -> Option<String> {
    problem.is_packed().then(|| "it takes no packed sequences".to_owned())
}

/// Why decode is certain to be done before the forward kernels, where it is: the tiles of queries would leave
/// half of the multiprocessors without work, for long.
pub(super) fn is_sooner(problem: &Problem, device: &Device) -> Option<String> {
    let (heads, keys) = (problem.batch() * problem.heads(), problem.seqlen_k());
    let takes = cfg!(feature = "decode")
        && matches!(problem.dtype(), DType::F16 | DType::Bf16)
        && problem.dropout().is_none()
        && refusal(problem).is_none()
        && (problem.seqlen_q() <= MAX_DECODE_SEQLEN_Q || splits_forward(problem, device));
    let tiles = heads * problem.seqlen_q().div_ceil(FORWARD_ROWS);
    let multiprocessors = device.multiprocessors as usize;
    (takes && keys >= MANY_KEYS && 2 * tiles <= multiprocessors).then(|| {
        format!(
            "decode: splits {keys} keys over blocks, where {heads} heads are {tiles} tiles for {multiprocessors} \
             multiprocessors"
        )
    })
}

/// Plans few queries.
///
/// # Errors
/// When there are packed sequences; when a tile is asked for; and as the planner of decode.
pub(super) fn plan_few(problem: &Problem, device: &Device, request: &Request, why: String) -> Result<Choice> {
    let unfit = |reason| Error::UnfitKernel { kernel: Kernel::Decode.name(), reason };
    if let Some(reason) = refusal(problem) {
        return Err(unfit(reason));
    }
    if request.block_m.or(request.block_n).is_some() {
        return Err(unfit("its tile follows from the rows that share a key/value head".to_owned()));
    }
    let request = DecodeRequest {
        batch_invariant: request.batch_invariant.then_some(true),
        ..DecodeRequest::default()
    };
    let mut few = FewQueries::choose(&Cache::contiguous(problem), device, &request)?
        .into_choice(Kernel::Decode, |splits| LaunchDetails { splits, ..LaunchDetails::default() });
    few.reasons.insert(0, why);
    Ok(few)
}
