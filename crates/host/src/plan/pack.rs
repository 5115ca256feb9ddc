//! Which of Q, K and V are copied to where `forward_sm90` can read them, and what that costs.

use fa_kernels::attention::{pack, transpose};
use fa_kernels::entries::{Algorithm, Entry, entries};

use super::beside::Beside;
use super::candidates::{checked_grid, join, unsupported_dtype};
use super::cost::h200::{BYTES_PER_CYCLE, LAUNCH_CYCLES};
use super::geometry::{CHUNK, Columns, SECTOR, columns, is_shifted, unmapped_in_e4m3, unreadable};
use super::{Kernel, Launch, LaunchDetails, geometry};
use crate::{DType, Device, Problem, Result, TensorLayout, Tensors};

/// Where each copy begins in the workspace is a multiple of so many bytes.
const ALIGNMENT: u64 = 256;

/// A tensor's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedCopy {
    /// Where it begins in the workspace, in bytes.
    pub(crate) offset: u64,
    /// Its rows, which lie in the order [B, H, S, D].
    pub(crate) layout: TensorLayout,
}

/// Copies of some of a few tensors, which are read in their place; those of `forward_sm90` are Q, K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed<const N: usize = 3> {
    pub(crate) copies: [Option<PackedCopy>; N],
    /// Groups of heads that are copied together: of the tensor with the fewest, its heads in all sequences.
    pub(crate) groups: u32,
    /// Bytes of workspace.
    pub(crate) bytes: u64,
}

impl<const N: usize> Default for Packed<N> {
    fn default() -> Self {
        Self { copies: [None; N], groups: 1, bytes: 0 }
    }
}

impl<const N: usize> Packed<N> {
    /// Copies of the tensors that are said to be copied, one behind the other.
    pub(crate) fn copying(tensors: [(&TensorLayout, bool); N]) -> Self {
        // Problems bound heads and sequences so that blocks of a grid count them.
        let groups = tensors.iter().map(|(tensor, _)| tensor.batch * tensor.heads).min().unwrap_or(1) as u32;
        let mut packed = Self { groups: groups.max(1), ..Self::default() };
        for (copy, (tensor, is_copied)) in packed.copies.iter_mut().zip(tensors) {
            if is_copied {
                let layout = packed_layout(tensor);
                *copy = Some(PackedCopy { offset: packed.bytes, layout });
                packed.bytes = packed.bytes.saturating_add(aligned_bytes(copy_bytes(&layout)));
            }
        }
        packed
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.copies.iter().all(Option::is_none)
    }

    /// Blocks of a launch that copies so many groups: one for each multiprocessor, if all have units.
    ///
    /// # Errors
    /// When there are more units than are counted.
    pub(crate) fn blocks(&self, groups: u32, device: &Device) -> Result<u32> {
        let units = checked_grid(u128::from(self.group_units()) * u128::from(groups))?;
        Ok(units.min(device.multiprocessors).max(1))
    }

    /// Units of a group.
    pub(crate) fn group_units(&self) -> u64 {
        let units = self.copies.iter().flatten().map(|PackedCopy { layout, .. }| {
            u64::from(head_units(layout)) * u64::from(self.group_heads(layout))
        });
        units.sum()
    }

    /// Heads of a tensor in a group.
    pub(crate) fn group_heads(&self, layout: &TensorLayout) -> u32 {
        (layout.batch * layout.heads) as u32 / self.groups
    }

    /// Bytes that are read and written.
    pub(super) fn moved_bytes(&self) -> f64 {
        let moved = self.copies.iter().flatten().map(|PackedCopy { layout, .. }| {
            let written = copy_bytes(layout) as f64;
            written * (1.0 + layout.head_dim as f64 / layout.stride_seq as f64)
        });
        moved.sum()
    }

    /// About how many cycles a launch takes that makes them all.
    pub(crate) fn copy_cycles(&self, device: &Device) -> f64 {
        copy_cycles(self.moved_bytes(), device)
    }

    /// Why these copies of the tensors of these names are made, which takes so many cycles.
    pub(crate) fn copy_cause(&self, names: [&str; N], why: &str, cycles: f64) -> Cause {
        let copied = self.copies.iter().zip(names).filter(|(copy, _)| copy.is_some());
        let names = join(copied.map(|(_, name)| name));
        let why = format!("before it, {names} copied to rows of whole 32-byte sectors, since {why}");
        Cause { why, bytes: self.bytes, cycles }
    }
}

/// The entry that copies rows.
pub(crate) fn pack_entry(kernel: &'static str) -> Result<&'static Entry> {
    let missing = || unsupported_dtype(kernel, Algorithm::Pack, DType::F16);
    entries().find(|entry| entry.algorithm == Algorithm::Pack).ok_or_else(missing)
}

/// As [`pack_entry`], for `forward_sm90`.
pub(super) fn copy_entry() -> Result<&'static Entry> {
    pack_entry(Kernel::ForwardSm90.name())
}

impl Packed {
    /// Copies of what cannot be read where it is.
    pub(super) fn of(problem: &Problem) -> Self {
        if problem.dtype() == DType::E4m3 {
            return Self::of_e4m3(problem);
        }
        let tensors = inputs(problem);
        let mut copied = tensors.map(|(name, tensor)| unreadable(name, tensor).is_some());
        let [(_, q), (_, k), (_, v)] = tensors;
        if apart(problem, copied).is_some() {
            copied[0] |= is_shifted(q);
            copied[1] |= is_shifted(k);
        }
        Self::copying([(q, copied[0]), (k, copied[1]), (v, copied[2])])
    }

    /// The copy of V, transposed, and behind it those of Q and K that no tensor map describes.
    fn of_e4m3(problem: &Problem) -> Self {
        let mut packed = transposed(problem);
        let [q, k, _] = inputs(problem);
        for (index, (name, tensor)) in [q, k].into_iter().enumerate() {
            if unmapped_in_e4m3(name, tensor).is_some() {
                let layout = packed_layout(tensor);
                packed.copies[index] = Some(PackedCopy { offset: packed.bytes, layout });
                let bytes = (layout.batch as u64).saturating_mul(layout.stride_batch as u64);
                packed.bytes = packed.bytes.saturating_add(aligned_bytes(bytes));
            }
        }
        packed
    }

    /// Blocks of `attention::transpose` in the first tensor, in the first two, and in all.
    pub(crate) fn blocks_in_e4m3(&self, problem: &Problem) -> [u64; 3] {
        let v = &problem.tensors().v;
        let of_v = transpose::head_blocks(v.head_dim as u32, positions(problem) as u32);
        let mut ends = [heads(v) * u64::from(of_v); 3];
        for (index, copy) in self.copies[..2].iter().enumerate() {
            let blocks = copy.map_or(0, |PackedCopy { layout, .. }| {
                heads(&layout)
                    * u64::from(transpose::row_blocks(layout.seqlen as u32, chunks_in_e4m3(&layout)))
            });
            ends[1 + index] = ends[index].saturating_add(blocks);
        }
        ends
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
    pub(super) fn columns(&self, problem: &Problem) -> Columns {
        if problem.dtype() == DType::E4m3 {
            return Columns::of(problem);
        }
        let [q, k, v] = self.reads(problem).map(|layout| columns(&layout));
        Columns { qk: q.max(k), v }
    }

    /// The launch that makes the copies.
    pub(super) fn launch(self, problem: &Problem, device: &Device) -> Result<Launch> {
        let (entry, blocks) = if problem.dtype() == DType::E4m3 {
            let missing = || unsupported_dtype(Kernel::ForwardSm90.name(), Algorithm::Transpose, DType::E4m3);
            let entry = entries().find(|entry| entry.algorithm == Algorithm::Transpose);
            let [_, _, blocks] = self.blocks_in_e4m3(problem);
            (entry.ok_or_else(missing)?, checked_grid(blocks.into())?)
        } else {
            (copy_entry()?, self.blocks(self.groups, device)?)
        };
        let details = LaunchDetails { packed: self, ..LaunchDetails::default() };
        Ok(Launch { details, ..Launch::new(entry, blocks) })
    }

    /// About how many cycles the launch takes that makes them.
    pub(super) fn cycles(&self, problem: &Problem, device: &Device) -> f64 {
        if problem.dtype() == DType::E4m3 {
            let tensors = inputs(problem).into_iter().zip(self.copies).filter(|(_, copy)| copy.is_some());
            let read: usize = tensors.map(|((_, tensor), _)| tensor.elements()).sum();
            return copy_cycles(read as f64 + self.bytes as f64, device);
        }
        self.copy_cycles(device)
    }

    /// Why copies are made of a problem in e4m3.
    fn why_in_e4m3(&self, problem: &Problem) -> String {
        let v = "before it, v transposed, since tensor cores take 8-bit operands along their rows alone";
        let [q, k, _] = inputs(problem);
        let why = [q, k].map(|(name, tensor)| (name, unmapped_in_e4m3(name, tensor)));
        let copied = join(why.iter().filter(|(_, why)| why.is_some()).map(|(name, _)| *name));
        match why.into_iter().find_map(|(_, why)| why) {
            None => v.to_owned(),
            Some(why) => format!("{v}, and {copied} copied to rows of whole 16 bytes, since {why}"),
        }
    }

    /// Why these copies are made, which takes so many cycles.
    pub(super) fn cause(&self, problem: &Problem, cycles: f64) -> Cause {
        if problem.dtype() == DType::E4m3 {
            return Cause { why: self.why_in_e4m3(problem), bytes: self.bytes, cycles };
        }
        let tensors = inputs(problem);
        let copied = self.copies.iter().zip(tensors).filter(|(copy, _)| copy.is_some());
        let why = copied.into_iter().find_map(|(_, (name, tensor))| unreadable(name, tensor));
        let why = why.or_else(|| apart(problem, [false; 3])).unwrap_or_default();
        self.copy_cause(tensors.map(|(name, _)| name), &why, cycles)
    }
}

/// Why copies are made, and what they cost.
pub(crate) struct Cause {
    why: String,
    bytes: u64,
    cycles: f64,
}

impl Cause {
    /// In words, beside `attention` cycles.
    pub(crate) fn reason(&self, attention: f64) -> String {
        let Self { why, bytes, cycles } = self;
        let share = 100.0 * cycles / (cycles + attention);
        format!("{why}: {bytes} bytes of workspace, about {share:.0} % of the time")
    }
}

/// About how many cycles a launch takes that reads and writes so many bytes.
fn copy_cycles(bytes: f64, device: &Device) -> f64 {
    LAUNCH_CYCLES + bytes / (f64::from(device.multiprocessors.max(1)) * BYTES_PER_CYCLE)
}

/// Positions of a row of V's copy: all keys in whole products, and those between packed sequences.
fn positions(problem: &Problem) -> usize {
    let keys = problem.tensors().v.seqlen;
    let sequences = if problem.is_packed() { problem.batch() } else { 0 };
    let positions = transpose::first_position(keys as u32, sequences as u32) as usize;
    positions.next_multiple_of(transpose::KEYS as usize)
}

/// The copy of V, [B, H, D, S] with as many positions as [`positions`] says, contiguous.
fn transposed(problem: &Problem) -> Packed {
    let TensorLayout { batch, heads, head_dim, .. } = problem.tensors().v;
    let row = positions(problem);
    let stride_head = head_dim.saturating_mul(row);
    let stride_batch = heads.saturating_mul(stride_head);
    let layout = TensorLayout::strided([batch, head_dim, heads, row], [stride_batch, row, stride_head, 1]);
    let bytes = aligned_bytes((batch as u64).saturating_mul(stride_batch as u64));
    Packed { copies: [None, None, Some(PackedCopy { offset: 0, layout })], bytes, ..Packed::default() }
}

/// Why the columns of Q and K do not meet, where some of the tensors are copied.
fn apart(problem: &Problem, copied: [bool; 3]) -> Option<String> {
    let Tensors { q, k, .. } = problem.tensors();
    let read =
        |is_copied: bool, tensor: &TensorLayout| if is_copied { packed_layout(tensor) } else { *tensor };
    geometry::apart(&read(copied[0], q), &read(copied[1], k))
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

/// So many bytes, and those up to where the next copy may begin.
const fn aligned_bytes(bytes: u64) -> u64 {
    bytes.div_ceil(ALIGNMENT).saturating_mul(ALIGNMENT)
}

/// Heads of all sequences.
const fn heads(layout: &TensorLayout) -> u64 {
    (layout.batch * layout.heads) as u64
}

/// 16 bytes of each row of a copy in e4m3.
pub(crate) const fn chunks_in_e4m3(layout: &TensorLayout) -> u32 {
    (layout.stride_seq / 16) as u32
}

/// Bytes of a copy.
fn copy_bytes(layout: &TensorLayout) -> u64 {
    (2 * layout.batch as u64).saturating_mul(layout.stride_batch as u64)
}

/// 16 bytes of each row of a copy.
pub(crate) fn chunks(layout: &TensorLayout) -> u32 {
    (layout.stride_seq / CHUNK) as u32
}

/// Units of each head of a copy.
pub(crate) fn head_units(layout: &TensorLayout) -> u32 {
    // `Problem::new` bounds sequences by MAX_SEQLEN.
    (layout.seqlen as u32).div_ceil(pack::unit_rows(chunks(layout)))
}

/// Which of the copies a launch makes, or waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CopyStage {
    /// All that there are, before what reads them.
    #[default]
    All,
    /// Those of the first groups of heads, before the launch that copies the others.
    First(Beside),
    /// The others, beside the launch that reads them.
    Beside(Beside),
}
