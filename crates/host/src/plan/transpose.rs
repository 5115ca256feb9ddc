//! What `forward_sm90` takes in e4m3, and the copy of V that it reads.

use fa_kernels::attention::transpose::{KEYS, head_blocks};
use fa_kernels::entries::Algorithm;

use super::hopper::is_mappable;
use super::pack::{ALIGNMENT, PackedCopy, copy_cycles};
use super::{Kernel, Launch, LaunchDetails, Packed, checked_grid, entries, unsupported_dtype};
use crate::{DType, Device, Problem, Result, TensorLayout, Tensors};

/// Elements of 16 bytes, which rows and heads start at multiples of.
const CHUNK: usize = 16;

/// Why a problem in e4m3 cannot be computed, if so.
pub(super) fn unfit(problem: &Problem) -> Option<String> {
    if problem.dtype() != DType::E4m3 {
        return None;
    }
    if problem.changes_scores() {
        return Some("in e4m3 it has neither softcap nor ALiBi".to_owned());
    }
    if problem.softmax_scale() <= 0.0 {
        return Some(format!(
            "softmax_scale is {}; in e4m3 it takes a positive one",
            problem.softmax_scale()
        ));
    }
    if problem.cu_seqlens().is_some() {
        return Some("in e4m3 it takes no packed sequences".to_owned());
    }
    let Tensors { q, k, v, .. } = problem.tensors();
    [("q", q), ("k", k), ("v", v)].into_iter().find_map(|(name, layout)| unaligned(name, layout))
}

/// What of a tensor does not lie at multiples of 16 bytes.
fn unaligned(name: &str, layout: &TensorLayout) -> Option<String> {
    let TensorLayout { batch, seqlen, heads, head_dim, stride_batch, stride_seq, stride_head, .. } = *layout;
    if !head_dim.is_multiple_of(CHUNK) {
        return Some(format!("{name}'s head_dim is {head_dim}, and in e4m3 it takes multiples of {CHUNK}"));
    }
    let axes =
        [("batch", batch, stride_batch), ("seqlen", seqlen, stride_seq), ("heads", heads, stride_head)];
    axes.into_iter().find_map(|(axis, length, stride)| {
        (!is_mappable((length, stride), 1)).then(|| {
            format!(
                "{name}'s {axis} stride is {stride} elements, and in e4m3 it takes positive multiples of {CHUNK} \
                 below 2^40"
            )
        })
    })
}

/// The copy of V, [B, H, D, S] with S in whole products, contiguous.
pub(super) fn copy(problem: &Problem) -> Packed {
    let TensorLayout { batch, seqlen, heads, head_dim, .. } = problem.tensors().v;
    let row = seqlen.next_multiple_of(KEYS as usize);
    let stride_head = head_dim.saturating_mul(row);
    let stride_batch = heads.saturating_mul(stride_head);
    let layout = TensorLayout::strided([batch, head_dim, heads, row], [stride_batch, row, stride_head, 1]);
    let bytes = (batch as u64).saturating_mul(stride_batch as u64);
    let bytes = bytes.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT);
    Packed { copies: [None, None, Some(PackedCopy { offset: 0, layout })], bytes }
}

/// The launch that makes it.
pub(super) fn launch(packed: Packed, problem: &Problem) -> Result<Launch> {
    let v = &problem.tensors().v;
    let entry = entries().find(|entry| entry.algorithm == Algorithm::Transpose);
    let missing = || unsupported_dtype(Kernel::ForwardSm90.name(), Algorithm::Transpose, DType::E4m3);
    let entry = entry.ok_or_else(missing)?;
    let blocks = u128::from(head_blocks(v.head_dim as u32, v.seqlen as u32)) * (v.batch * v.heads) as u128;
    let details = LaunchDetails { packed, ..LaunchDetails::default() };
    Ok(Launch { details, ..Launch::new(entry, checked_grid(blocks)?) })
}

/// Why it is made, and what it costs beside `attention` cycles.
pub(super) fn reason(packed: Packed, problem: &Problem, device: &Device, attention: f64) -> String {
    let v = &problem.tensors().v;
    let read = (v.batch * v.heads * v.seqlen * v.head_dim) as f64;
    let cycles = copy_cycles(read + packed.bytes as f64, device);
    let share = 100.0 * cycles / (cycles + attention);
    format!(
        "before it, v transposed, since tensor cores take 8-bit operands along their rows alone: {} bytes of \
         workspace, about {share:.0} % of the time",
        packed.bytes
    )
}
