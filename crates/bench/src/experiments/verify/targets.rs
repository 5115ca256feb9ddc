//! What is verified: every built entry, each through the request that makes the planner choose it.

use std::ops::RangeInclusive;

use fa_kernels::entries::{Algorithm, Entry, entries};
use flash_attention::forward::MAX_HEAD_DIM;
use flash_attention::{Backend, BackendKind, DType, Device, Kernel, Plan, Problem, Request};

use super::cases::{HeadDims, Takes};

/// Entries that run together, or a kernel of the CPU with one tile.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// A name for each line of the report: the entries', or one that is made up in their manner.
    pub(crate) names: Vec<String>,
    pub(crate) dtype: DType,
    pub(crate) request: Request,
    /// The head_dims for which the planner comes to these entries.
    pub(super) head_dims: HeadDims,
    entries: Vec<&'static Entry>,
}

impl Target {
    /// The plan of `problem` that launches these entries. Rows are read by classes where the planner
    /// estimates that to be quicker than copying them; here they are wherever they can be.
    pub(crate) fn plan(&self, problem: &Problem, backend: &Backend) -> flash_attention::Result<Plan> {
        match self.entries[..] {
            [entry] if entry.algorithm == Algorithm::ForwardSm90Residues => {
                Plan::of_entry(problem, backend.device(), entry)
            }
            _ => backend.plan(problem, &self.request),
        }
    }

    /// The first of this target's entries that a plan does not launch.
    pub(crate) fn missing_from(&self, plan: &Plan) -> Option<&'static str> {
        let launched = |entry: &&Entry| plan.launches().iter().any(|step| std::ptr::eq(step.entry, *entry));
        self.entries.iter().find(|entry| !launched(entry)).map(|entry| entry.name)
    }

    /// Why `device` cannot run the entries, if it cannot.
    pub(crate) fn refused_by(&self, device: &Device) -> Option<String> {
        self.entries.iter().find_map(|entry| refusal(entry, device))
    }
}

impl Takes for Target {
    fn family(&self) -> String {
        let bytes = self.dtype.bytes();
        match self.entries[..] {
            [] => format!("{:?} of {bytes} bytes", self.request.kernel),
            [entry, ..] => format!("{:?} of {bytes} bytes", entry.algorithm),
        }
    }

    fn tile(&self) -> String {
        self.names[0].replace(self.dtype.name(), "")
    }

    fn block(&self) -> (usize, usize) {
        let blocks = self.entries.iter().map(|entry| block(entry));
        blocks.max().or(self.request.block_m.zip(self.request.block_n)).unwrap_or((64, 64))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn head_dims(&self) -> HeadDims {
        self.head_dims.clone()
    }

    fn takes(&self, problem: &Problem) -> bool {
        let kernel = self.request.kernel;
        let drops = problem.dropout().is_some();
        if drops && kernel.is_some_and(|kernel| !kernel.drops_weights()) {
            return false;
        }
        // `forward_sm90` in e4m3; the CPU, which has no entries, takes all.
        if self.dtype == DType::E4m3 && !self.entries.is_empty() && drops {
            return false;
        }
        // Narrower Q and K have tiles of one width.
        let is_in_bucket = self.head_dims.range.contains(&problem.head_dim());
        if self.entries.iter().any(|entry| has_two_widths(entry)) && !is_in_bucket {
            return false;
        }
        self.entries.iter().all(|entry| match entry.algorithm {
            Algorithm::ForwardSimt => !drops,
            Algorithm::ForwardSimtDropout | Algorithm::ForwardSm80Dropout | Algorithm::ForwardSm90Dropout => {
                drops
            }
            Algorithm::ForwardSm80 | Algorithm::ForwardSm90 | Algorithm::Transpose => {
                !drops && !problem.changes_scores()
            }
            Algorithm::ForwardSm80ScoreMod | Algorithm::ForwardSm90ScoreMod => {
                !drops && problem.changes_scores()
            }
            Algorithm::Pack => {
                Kernel::ForwardSm90.needs_copies(problem) && !Kernel::ForwardSm90.takes_residues(problem)
            }
            Algorithm::ForwardSm90Residues => Kernel::ForwardSm90.takes_residues(problem),
            _ => true,
        })
    }
}

/// Rows and keys of an entry's block; a whole block of 64 where it has none of a dimension.
pub(crate) fn block(entry: &Entry) -> (usize, usize) {
    let extent = |extent: u32| if extent == 0 { 64 } else { extent as usize };
    (extent(entry.tile.block_m), extent(entry.tile.block_n))
}

/// Why `device` cannot run `entry`, if it cannot.
pub(crate) fn refusal<A, T>(entry: &Entry<A, T>, device: &Device) -> Option<String> {
    if !entry.target.runs_on(device.compute_capability) {
        return Some(format!("needs {}, the device is sm_{}", entry.target, device.compute_capability));
    }
    (entry.shared_bytes as usize > device.shared_per_block).then(|| {
        let (needed, available) = (entry.shared_bytes, device.shared_per_block);
        format!("needs {needed} bytes of shared memory, a block of the device has {available}")
    })
}

/// Everything that a backend runs, or what of it belongs to `kernel`.
pub(crate) fn targets(backend: BackendKind, kernel: Option<Kernel>) -> Vec<Target> {
    let targets = match backend {
        BackendKind::Cuda | BackendKind::Sim => DType::ALL.into_iter().flat_map(of_entries).collect(),
        BackendKind::Cpu => DType::ALL.into_iter().flat_map(of_cpu).collect::<Vec<_>>(),
    };
    targets
        .into_iter()
        .filter(|target| kernel.is_none_or(|kernel| target.request.kernel == Some(kernel)))
        .collect()
}

/// The entries of a storage type.
fn of_entries(dtype: DType) -> Vec<Target> {
    // What looks at no value runs with those of one type that do.
    let names_type = move |entry: &Entry| {
        entry.dtype == dtype.name()
            || (entry.algorithm == Algorithm::Pack && dtype == DType::F16)
            || (entry.algorithm == Algorithm::Transpose && dtype == DType::E4m3)
    };
    let of_dtype = || entries().filter(move |entry| names_type(entry));
    let target = |entry: &'static Entry| match entry.algorithm {
        Algorithm::StandardScores => {
            let entries: Vec<_> = of_dtype().filter(|other| other.algorithm.family() == "standard").collect();
            let request = Request { kernel: Some(Kernel::Standard), ..Request::default() };
            let head_dims = HeadDims::all(1..=MAX_HEAD_DIM, 1);
            Some(Target { names: names(&entries), dtype, request, head_dims, entries })
        }
        // They run with the scores.
        Algorithm::StandardSoftmax | Algorithm::StandardValues => None,
        // Their problems are others: `decode.rs`, `append.rs`, `merge.rs` and `backward.rs` have them.
        Algorithm::Decode
        | Algorithm::DecodeSm90
        | Algorithm::DecodeSm90E4m3
        | Algorithm::DecodeSm90AddsUp
        | Algorithm::DecodeSm90E4m3AddsUp
        | Algorithm::MlaSm90
        | Algorithm::ForwardSm90Cached
        | Algorithm::ForwardSm90CachedScoreMod
        | Algorithm::DecodeCombine
        | Algorithm::DecodeCombineSm90
        | Algorithm::Widen
        | Algorithm::Append
        | Algorithm::Merge => None,
        // Programs bring them along.
        Algorithm::ForwardSm80Modified | Algorithm::ForwardSm90Modified => None,
        // It runs with large batches whose lengths are on the device: `large.rs` has one.
        Algorithm::TileSchedule => None,
        Algorithm::BackwardDelta
        | Algorithm::BackwardSinks
        | Algorithm::BackwardKeys
        | Algorithm::BackwardQueries
        | Algorithm::BackwardKeysDropout
        | Algorithm::BackwardQueriesDropout
        | Algorithm::BackwardKeysSm80
        | Algorithm::BackwardQueriesSm80
        | Algorithm::BackwardKeysDsSm80
        | Algorithm::BackwardDqSm80
        | Algorithm::BackwardKeysSm80ScoreMod
        | Algorithm::BackwardQueriesSm80ScoreMod
        | Algorithm::BackwardKeysSm90
        | Algorithm::BackwardKeysDsSm90
        | Algorithm::BackwardKeysDqSm90
        | Algorithm::BackwardKeysDqSm90ScoreMod
        | Algorithm::BackwardKeysDsSm90ScoreMod
        | Algorithm::BackwardQueriesSm90 => None,
        Algorithm::Pack | Algorithm::Transpose => Some(Target {
            names: names(&[entry]),
            dtype,
            request: Request { kernel: Some(Kernel::ForwardSm90), ..Request::default() },
            head_dims: HeadDims::all(1..=MAX_HEAD_DIM, 1),
            entries: vec![entry],
        }),
        Algorithm::ForwardSm90 | Algorithm::ForwardSm90ScoreMod | Algorithm::ForwardSm90Dropout => {
            Some(fused(Kernel::ForwardSm90, dtype, entry))
        }
        Algorithm::ForwardSm90Residues => Some(of_residues(dtype, entry)),
        Algorithm::ForwardSimt | Algorithm::ForwardSimtDropout => {
            Some(fused(Kernel::ForwardSimt, dtype, entry))
        }
        Algorithm::ForwardSm80 | Algorithm::ForwardSm80ScoreMod | Algorithm::ForwardSm80Dropout => {
            Some(fused(Kernel::ForwardSm80, dtype, entry))
        }
    };
    of_dtype().filter_map(target).collect()
}

/// An entry that is a kernel of its own.
fn fused(kernel: Kernel, dtype: DType, entry: &'static Entry) -> Target {
    let (block_m, block_n) = (entry.tile.block_m as usize, entry.tile.block_n as usize);
    // Rows of others do not start where tensor maps want them, and are copied: see the targets of copies.
    let step = if kernel == Kernel::ForwardSm90 { 16 / dtype.bytes() } else { 1 };
    Target {
        names: names(&[entry]),
        dtype,
        request: Request {
            kernel: Some(kernel),
            block_m: Some(block_m),
            block_n: Some(block_n),
            ..Request::default()
        },
        head_dims: HeadDims { range: bucket(entry), most_v: entry.tile.head_dim_v as usize, step },
        entries: vec![entry],
    }
}

/// An entry for rows that lie no multiple of 16 bytes apart: up to seven of its columns lie before a row's
/// first.
fn of_residues(dtype: DType, entry: &'static Entry) -> Target {
    let columns = bucket(entry);
    let head_dims = columns.start().saturating_sub(7).max(1)..=columns.end() - 7;
    Target { head_dims: HeadDims::all(head_dims, 1), ..fused(Kernel::ForwardSm90, dtype, entry) }
}

/// Whether V and O have another width than Q and K.
const fn has_two_widths(entry: &Entry) -> bool {
    entry.tile.head_dim_v != entry.tile.head_dim
}

/// The head_dims of Q and K for which `entry` has the least sufficient number of columns.
pub(crate) fn bucket(entry: &Entry) -> RangeInclusive<usize> {
    let columns = entry.tile.head_dim;
    let like = entries().filter(|other| other.algorithm == entry.algorithm && other.dtype == entry.dtype);
    let widths = like.filter(|other| !has_two_widths(other)).map(|other| other.tile.head_dim);
    // Of two widths, those where one for all tensors would be no less to multiply.
    let products = columns + entry.tile.head_dim_v;
    let below = widths.filter(|&other| 2 * other < products).max().unwrap_or(0);
    below as usize + 1..=columns as usize
}

/// The CPU's kernels for a storage type: with the planner's tile, and with one that divides nothing.
fn of_cpu(dtype: DType) -> Vec<Target> {
    let target = |kernel: Kernel, tile: Option<(usize, usize)>| {
        let suffix = tile.map_or(String::new(), |(block_m, block_n)| format!("_m{block_m}_n{block_n}"));
        Target {
            names: vec![format!("{kernel}_{dtype}{suffix}")],
            dtype,
            request: Request {
                kernel: Some(kernel),
                block_m: tile.map(|tile| tile.0),
                block_n: tile.map(|tile| tile.1),
                ..Request::default()
            },
            head_dims: HeadDims::all(1..=MAX_HEAD_DIM, 1),
            entries: Vec::new(),
        }
    };
    vec![
        target(Kernel::Standard, None),
        target(Kernel::ForwardCpu, None),
        target(Kernel::ForwardCpu, Some((17, 23))),
    ]
}

fn names(entries: &[&Entry]) -> Vec<String> {
    entries.iter().map(|entry| entry.name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{append, backward, decode, large, merge};
    use super::*;

    #[test]
    fn every_entry_has_a_target() {
        let mut named: Vec<_> =
            targets(BackendKind::Sim, None).into_iter().flat_map(|target| target.names).collect();
        named.extend(decode::targets(BackendKind::Sim, false).iter().map(|entry| entry.name.to_owned()));
        named.extend(append::targets(BackendKind::Sim, false).into_iter().map(|target| target.name));
        named.extend(merge::targets(BackendKind::Sim, false).iter().map(|entry| entry.name.to_owned()));
        named.extend(backward::targets(BackendKind::Sim).into_iter().map(|target| target.name));
        named.extend(large::ENTRIES.map(str::to_owned));
        let mut built: Vec<_> = entries().map(|entry| entry.name.to_owned()).collect();
        named.sort();
        built.sort();
        assert_eq!(named, built);
    }

    #[test]
    fn buckets_of_a_storage_type_cover_all_head_dims() {
        let simt = targets(BackendKind::Sim, Some(Kernel::ForwardSimt));
        for head_dim in 1..=MAX_HEAD_DIM {
            assert!(simt.iter().any(|target| target.head_dims.range.contains(&head_dim)), "{head_dim}");
        }
    }
}
