//! Which of Q, K and V are copied to where tensor maps can describe them, and when that pays.

use fa_kernels::attention::pack::block_rows;
use fa_kernels::entries::Algorithm;

use super::hopper::{self, CHUNK, SECTOR};
use super::tile::built_for_head_dim;
use super::{Kernel, Launch, LaunchDetails, checked_grid, entries, join, transpose, unsupported_dtype};
use crate::{DType, Device, Problem, Result, TensorLayout, Tensors};

/// Where each copy begins in the workspace is a multiple of so many bytes.
pub(super) const ALIGNMENT: u64 = 256;

/// Bytes that a multiprocessor of an H200 copies in a cycle: 3.6 TB/s at 1.7 GHz, read and written.
const BYTES_PER_CYCLE: f64 = 16.0;

/// Cycles that one more launch takes.
const LAUNCH_CYCLES: f64 = 4_000.0;

/// A tensor's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedCopy {
    /// Where it begins in the workspace, in bytes.
    pub(crate) offset: u64,
    /// Its rows, which lie in the order [B, H, S, D].
    pub(crate) layout: TensorLayout,
}

/// The copies of Q, K and V that `forward_sm90` reads in their place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) copies: [Option<PackedCopy>; 3],
    /// Bytes of workspace.
    pub(crate) bytes: u64,
}

impl Packed {
    /// The copies that entries of `algorithm` read.
    pub(super) fn for_entries(problem: &Problem, algorithm: Algorithm) -> Self {
        if algorithm == Algorithm::ForwardSm90RowClasses { Self::default() } else { Self::of(problem) }
    }

    /// Copies of what cannot be read where it is.
    pub(super) fn of(problem: &Problem) -> Self {
        if problem.dtype() == DType::E4m3 {
            return transpose::copy(problem);
        }
        let tensors = inputs(problem);
        let mut copied = tensors.map(|(name, tensor)| hopper::unreadable(name, tensor).is_some());
        let [(_, q), (_, k), _] = tensors;
        if apart(problem, copied).is_some() {
            copied[0] |= hopper::is_shifted(q);
            copied[1] |= hopper::is_shifted(k);
        }
        let mut packed = Self::default();
        for ((copy, (_, tensor)), is_copied) in packed.copies.iter_mut().zip(tensors).zip(copied) {
            if is_copied {
                let layout = packed_layout(tensor);
                *copy = Some(PackedCopy { offset: packed.bytes, layout });
                let bytes = copy_bytes(&layout).div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT);
                packed.bytes = packed.bytes.saturating_add(bytes);
            }
        }
        packed
    }

    /// What is read for Q, K and V: they themselves, or their copies.
    pub(crate) fn reads(&self, problem: &Problem) -> [TensorLayout; 3] {
        let Tensors { q, k, v, .. } = problem.tensors();
        let read = |index: usize, tensor: &TensorLayout| {
            self.copies[index].map_or(*tensor, |PackedCopy { layout, .. }| layout)
        };
        [read(0, q), read(1, k), read(2, v)]
    }

    /// Columns that a tile must hold.
    pub(super) fn columns(&self, problem: &Problem) -> usize {
        if problem.dtype() == DType::E4m3 {
            return problem.widest_head_dim();
        }
        self.reads(problem).iter().map(hopper::columns).max().unwrap_or(0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.copies.iter().all(Option::is_none)
    }

    /// The launch that makes the copies.
    pub(super) fn launch(self, problem: &Problem) -> Result<Launch> {
        if problem.dtype() == DType::E4m3 {
            return transpose::launch(self, problem);
        }
        let entry = entries().find(|entry| entry.algorithm == Algorithm::Pack);
        let missing = || unsupported_dtype(Kernel::ForwardSm90.name(), Algorithm::Pack, DType::F16);
        let entry = entry.ok_or_else(missing)?;
        let blocks = self.copies.iter().flatten().map(|copy| {
            u128::from(head_blocks(&copy.layout)) * (copy.layout.batch * copy.layout.heads) as u128
        });
        let details = LaunchDetails { packed: self, ..LaunchDetails::default() };
        Ok(Launch { details, ..Launch::new(entry, checked_grid(blocks.sum())?) })
    }

    /// About how many cycles that launch takes.
    fn cycles(&self, problem: &Problem, device: &Device) -> f64 {
        let moved = self.copies.iter().zip(inputs(problem)).filter_map(|(copy, (_, tensor))| {
            copy.map(|copy| {
                let written = copy_bytes(&copy.layout) as f64;
                written * (1.0 + tensor.head_dim as f64 / copy.layout.stride_seq as f64)
            })
        });
        copy_cycles(moved.sum(), device)
    }

    /// Why these copies are made, and what they cost beside `attention` cycles.
    pub(super) fn reason(&self, problem: &Problem, device: &Device, attention: f64) -> String {
        if problem.dtype() == DType::E4m3 {
            return transpose::reason(*self, problem, device, attention);
        }
        let copied = || self.copies.iter().zip(inputs(problem)).filter(|(copy, _)| copy.is_some());
        let names = join(copied().map(|(_, (name, _))| name));
        let why = copied().find_map(|(_, (name, tensor))| hopper::unreadable(name, tensor));
        let why = why.or_else(|| apart(problem, [false; 3])).unwrap_or_default();
        let cycles = self.cycles(problem, device);
        let (bytes, share) = (self.bytes, 100.0 * cycles / (cycles + attention));
        format!(
            "before it, {names} copied to rows of whole 32-byte sectors, since {why}: {bytes} bytes of workspace, \
             about {share:.0} % of the time"
        )
    }
}

/// About how many cycles a launch takes that reads and writes so many bytes.
pub(super) fn copy_cycles(bytes: f64, device: &Device) -> f64 {
    LAUNCH_CYCLES + bytes / (f64::from(device.multiprocessors.max(1)) * BYTES_PER_CYCLE)
}

/// Why `forward_sm90` with copies would be no faster than `forward_sm80` without, or would not fit, if so.
///
/// Attention over rows that start anywhere takes `forward_sm80` 2.5 to 3 times as long as it takes
/// `forward_sm90` over aligned ones (H200, head_dim 129); twice is counted on. So the copies pay where they
/// take no longer than the attention that follows: where there are enough queries for each key, and keys for
/// each query.
pub(super) fn dissuasion(problem: &Problem, device: &Device, algorithm: Algorithm) -> Option<String> {
    let packed = Packed::of(problem);
    if packed.is_empty() {
        return None;
    }
    let Tensors { q, k, v, o } = problem.tensors();
    let spans = [q, k, v, o].into_iter().map(|tensor| 2 * tensor.span() as u128);
    let tensors: u128 = spans.sum();
    if tensors + u128::from(packed.bytes) > device.memory.into() {
        return Some(format!(
            "{} bytes of copies for tensor maps do not fit beside the tensors' {tensors}",
            packed.bytes
        ));
    }
    let attention = attention_cycles(problem, device, algorithm);
    let copies = packed.cycles(problem, device);
    (copies > attention).then(|| {
        format!(
            "copying rows for tensor maps would take about {:.1} times as long as its attention",
            copies / attention.max(1.0)
        )
    })
}

/// As [`attention_cycles`], with the copies before it.
pub(super) fn cycles(problem: &Problem, device: &Device, algorithm: Algorithm) -> f64 {
    Packed::of(problem).cycles(problem, device) + attention_cycles(problem, device, algorithm)
}

/// About how many cycles the quickest tile of `algorithm` takes, over rows that are aligned.
pub(super) fn attention_cycles(problem: &Problem, device: &Device, algorithm: Algorithm) -> f64 {
    let tiles = built_for_head_dim(problem, algorithm).into_iter();
    let cycles = tiles.map(|entry| hopper::schedule(problem, &entry.tile, device.multiprocessors).cycles);
    cycles.min_by(f64::total_cmp).unwrap_or(0.0)
}

/// Why the columns of Q and K do not meet, where some of the tensors are copied.
fn apart(problem: &Problem, copied: [bool; 3]) -> Option<String> {
    let Tensors { q, k, .. } = problem.tensors();
    let read =
        |is_copied: bool, tensor: &TensorLayout| if is_copied { packed_layout(tensor) } else { *tensor };
    hopper::apart(&read(copied[0], q), &read(copied[1], k))
}

/// Q, K and V by name.
fn inputs(problem: &Problem) -> [(&'static str, &TensorLayout); 3] {
    let Tensors { q, k, v, .. } = problem.tensors();
    [("q", q), ("k", k), ("v", v)]
}

/// The same axes, contiguous as [B, H, S, D] with D rounded up to whole sectors. The columns behind head_dim
/// are zeros, and not part of the view.
fn packed_layout(tensor: &TensorLayout) -> TensorLayout {
    let row = tensor.head_dim.next_multiple_of(SECTOR);
    let TensorLayout { batch, seqlen, heads, head_dim, .. } = *tensor;
    let stride_head = seqlen.saturating_mul(row);
    TensorLayout::strided(
        [batch, seqlen, heads, head_dim],
        [heads.saturating_mul(stride_head), row, stride_head, 1],
    )
}

/// Bytes of a copy.
fn copy_bytes(layout: &TensorLayout) -> u64 {
    (2 * layout.batch as u64).saturating_mul(layout.stride_batch as u64)
}

/// 16 bytes of each row of a copy.
pub(crate) fn chunks(layout: &TensorLayout) -> u32 {
    (layout.stride_seq / CHUNK) as u32
}

/// Blocks of the launch for each head of a copy.
pub(crate) fn head_blocks(layout: &TensorLayout) -> u32 {
    // `Problem::new` bounds sequences by MAX_SEQLEN.
    (layout.seqlen as u32).div_ceil(block_rows(chunks(layout)))
}
