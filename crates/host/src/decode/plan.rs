//! Decode problem → entry and number of splits: a pure function, with its reasons written beside each choice.

use fa_kernels::entries::{Algorithm, Entry};
use fa_kernels::params::MAX_SPLITS;

use super::DecodeProblem;
use crate::operation::{Choice, Launch};
use crate::plan::cost::h200::{BUSY, GOOD_ENOUGH, LEAST_SPLIT_BLOCKS};
use crate::plan::{
    Key, TUNED, Tuned, built_for, check_entry, check_fits, check_target, checked_grid, fastest_first,
    tile_too_large, unsupported_dtype,
};
use crate::{BackendKind, Device, Error, Plan, Result};

/// The one kernel that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeKernel;

impl DecodeKernel {
    /// The name that messages and documents use.
    pub const fn name(self) -> &'static str {
        KERNEL
    }
}

const KERNEL: &str = "decode";

/// Bytes of shared memory that the system takes of each block (CUDA C++ Programming Guide, compute capability
/// 8.0 and later).
const RESERVED_SHARED: usize = 1024;

/// What the caller leaves open, the planner chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodeRequest {
    /// Parts that each sequence's keys are split into, 1 to 128.
    pub num_splits: Option<usize>,
    /// The entry, by its name.
    pub entry: Option<String>,
}

/// How a decode problem will be computed.
pub type DecodePlan = Plan<DecodeProblem>;

/// What the parameters of a launch need beside its entry.
#[derive(Clone, Copy, Debug)]
pub struct DecodeLaunchDetails {
    pub(crate) num_splits: usize,
}

impl Default for DecodeLaunchDetails {
    fn default() -> Self {
        Self { num_splits: 1 }
    }
}

impl DecodePlan {
    /// Parts that each sequence's keys are split into.
    pub fn num_splits(&self) -> usize {
        self.launches().first().map_or(1, |launch| launch.details.num_splits)
    }
}

/// Chooses entry and number of splits for `problem` on `device`.
///
/// # Errors
/// When there is no entry for the storage type, the device is too old or its shared memory too small,
/// the splits asked for are none or too many, or the grid would be too large.
pub(super) fn plan(
    problem: &DecodeProblem,
    device: &Device,
    request: &DecodeRequest,
) -> Result<Choice<DecodeProblem>> {
    let limit = if device.backend == BackendKind::Cpu { 1 } else { MAX_SPLITS as usize };
    if let Some(value) = request.num_splits.filter(|value| !(1..=limit).contains(value)) {
        return Err(Error::NumSplits { value, limit });
    }
    if device.backend == BackendKind::Cpu {
        let reason = "forward_cpu on each sequence: its tasks fill the cores without splits";
        return Ok(Choice::on_cpu(DecodeKernel, vec![reason.to_owned()]));
    }
    let chosen = choose_entry(problem, device, request.entry.as_deref(), TUNED)?;
    of_entry(problem, device, chosen, request.num_splits)
}

/// Plans one given entry, which need not be in the list.
///
/// # Errors
/// When it does not decode, is for another storage type or smaller head_dims, or does not run on the device.
pub(super) fn plan_entry(
    problem: &DecodeProblem,
    device: &Device,
    entry: &'static Entry,
) -> Result<Choice<DecodeProblem>> {
    if entry.algorithm != Algorithm::Decode {
        let reason = "it is no kernel for decoding".to_owned();
        return Err(Error::UnfitEntry { entry: entry.name, reason });
    }
    check_entry(entry, problem.dense())?;
    check_target(entry, device, KERNEL)?;
    check_fits(entry, problem.dense(), device)?;
    of_entry(problem, device, (entry, ASKED_FOR.to_owned()), None)
}

/// Why an entry, where the caller named it.
const ASKED_FOR: &str = "asked for,";

/// The launches of an entry, which comes with why it is that one.
fn of_entry(
    problem: &DecodeProblem,
    device: &Device,
    (entry, order): (&'static Entry, String),
    num_splits: Option<usize>,
) -> Result<Choice<DecodeProblem>> {
    let dense = problem.dense();
    let shape = Shape::new(problem, device, entry);
    let (num_splits, why) = match num_splits {
        Some(num_splits) => (num_splits, format!("{num_splits} splits: asked for")),
        None => shape.choose_splits(),
    };
    let (block_m, block_n) = (entry.tile.block_m as usize, entry.tile.block_n as usize);
    let launch = |entry, blocks| {
        let details = DecodeLaunchDetails { num_splits };
        Ok::<_, Error>(Launch { details, ..Launch::new(entry, checked_grid(blocks)?) })
    };
    let mut launches = vec![launch(entry, shape.tiles as u128 * num_splits as u128)?];
    let mut workspace_bytes = 0;
    if num_splits > 1 {
        let rows = dense.lse_len() as u128;
        let combine = built_for(Algorithm::DecodeCombine, dense.dtype())
            .next()
            .ok_or_else(|| unsupported_dtype(KERNEL, Algorithm::DecodeCombine, dense.dtype()))?;
        launches.push(launch(combine, rows)?);
        // The grid bounds the rows, so this fits.
        workspace_bytes = (4 * rows * num_splits as u128 * (dense.head_dim() as u128 + 1)) as u64;
    }
    let reasons = vec![
        format!(
            "decode on tensor cores: the {} query heads of a key/value head times Sq {} are the rows of one tile, \
             so that K and V are read once",
            dense.group(),
            dense.seqlen_q()
        ),
        format!("HEAD_DIM {}: holds head_dim {}", entry.tile.head_dim, dense.head_dim()),
        format!(
            "BLOCK_M {block_m}: {} for {} packed rows; BLOCK_N {block_n}: 16 keys for each of {} warps; {order} with \
             {} bytes of shared memory, {} blocks per multiprocessor",
            match &*order {
                ASKED_FOR => ASKED_FOR,
                _ if block_m >= problem.packed_rows() => "the smallest",
                _ => "the largest",
            },
            problem.packed_rows(),
            entry.threads / 32,
            entry.shared_bytes,
            shape.blocks_per_multiprocessor
        ),
        why,
    ];
    Ok(Choice {
        kernel: DecodeKernel,
        tile: Some((block_m, block_n)),
        launches,
        unaligned: Vec::new(),
        workspace_bytes,
        reasons,
    })
}

/// The entry asked for, or of the smallest HEAD_DIM that fits and the BLOCK_M that wastes the fewest rows the
/// first by `table`, and why.
fn choose_entry(
    problem: &DecodeProblem,
    device: &Device,
    asked: Option<&str>,
    table: &[Tuned],
) -> Result<(&'static Entry, String)> {
    let (dtype, head_dim) = (problem.dense().dtype(), problem.dense().head_dim());
    let built = || {
        built_for(Algorithm::Decode, dtype)
            .filter(|entry| entry.tile.head_dim as usize >= head_dim)
            .filter(|entry| asked.is_none_or(|name| name == entry.name))
    };
    let columns = built().map(|entry| entry.tile.head_dim).min().ok_or_else(|| match asked {
        Some(name) => Error::NoSuchEntry { name: name.to_owned(), dtype, head_dim },
        None => unsupported_dtype(KERNEL, Algorithm::Decode, dtype),
    })?;
    let candidates: Vec<_> = built().filter(|entry| entry.tile.head_dim == columns).collect();
    candidates.iter().try_for_each(|entry| check_target(entry, device, KERNEL))?;
    let fits = |entry: &&'static Entry| check_fits(entry, problem.dense(), device).is_ok();
    let mut fitting: Vec<_> = candidates.iter().copied().filter(fits).collect();
    let rows = problem.packed_rows();
    let sufficient = fitting.iter().map(|entry| entry.tile.block_m).filter(|&m| m as usize >= rows).min();
    let block_m = sufficient.or_else(|| fitting.iter().map(|entry| entry.tile.block_m).max());
    fitting.retain(|entry| Some(entry.tile.block_m) == block_m);
    let Some(&first) = fitting.first() else {
        let smallest = candidates.iter().min_by_key(|entry| entry.shared_bytes).unwrap_or(&candidates[0]);
        return Err(tile_too_large(problem.dense(), device, &smallest.tile, smallest.shared_bytes.into()));
    };
    let order = match asked {
        Some(_) => ASKED_FOR.to_owned(),
        None => fastest_first(&mut fitting, &Key::of(first, false, &device.name), table),
    };
    Ok((fitting[0], order))
}

/// What the number of splits depends on.
struct Shape {
    /// Blocks of an unsplit launch.
    tiles: usize,
    /// Steps over the keys of a sequence.
    key_blocks: usize,
    blocks_per_multiprocessor: usize,
    multiprocessors: usize,
    /// Blocks that run at a time.
    slots: usize,
}

impl Shape {
    fn new(problem: &DecodeProblem, device: &Device, entry: &Entry) -> Self {
        let dense = problem.dense();
        let row_tiles = problem.packed_rows().div_ceil(entry.tile.block_m as usize);
        let of_shared = device.shared_per_multiprocessor / (entry.shared_bytes as usize + RESERVED_SHARED);
        let blocks_per_multiprocessor = of_shared.clamp(1, entry.min_blocks as usize);
        Self {
            tiles: dense.batch() * dense.kv_heads() * row_tiles,
            key_blocks: dense.seqlen_k().div_ceil(entry.tile.block_n as usize),
            blocks_per_multiprocessor,
            multiprocessors: (device.multiprocessors as usize).max(1),
            slots: blocks_per_multiprocessor * (device.multiprocessors as usize).max(1),
        }
    }

    /// Share of the slots' time that is work: the waves of blocks each last as long as the longest split.
    fn efficiency(&self, num_splits: usize) -> f64 {
        let waves = (self.tiles * num_splits).div_ceil(self.slots);
        let longest = self.key_blocks.div_ceil(num_splits);
        (self.tiles * self.key_blocks) as f64 / (self.slots * waves * longest) as f64
    }

    /// One split where that keeps the multiprocessors busy, else the smallest number of splits that is nearly
    /// as efficient as the best, and why.
    fn choose_splits(&self) -> (usize, String) {
        if self.tiles as f64 >= BUSY * self.multiprocessors as f64 {
            let why = format!(
                "1 split: {} blocks keep {} multiprocessors reading, and leave nothing to merge",
                self.tiles, self.multiprocessors
            );
            return (1, why);
        }
        let most = (self.key_blocks / LEAST_SPLIT_BLOCKS).clamp(1, MAX_SPLITS as usize);
        let best = (1..=most).map(|splits| self.efficiency(splits)).fold(0.0, f64::max);
        let chosen = (1..=most).find(|&splits| self.efficiency(splits) >= GOOD_ENOUGH * best).unwrap_or(1);
        let why = format!(
            "{chosen} split{}: {} blocks in {} wave{} of {} keep the multiprocessors busy {:.0} % of the time, and no \
             number up to {most} (at least {LEAST_SPLIT_BLOCKS} key blocks each) more than {:.0} %",
            if chosen == 1 { "" } else { "s" },
            self.tiles * chosen,
            (self.tiles * chosen).div_ceil(self.slots),
            if self.tiles * chosen <= self.slots { "" } else { "s" },
            self.slots,
            100.0 * self.efficiency(chosen),
            100.0 * best
        );
        (chosen, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::DecodeOptions;
    use crate::sim::Sim;
    use crate::{DType, TensorLayout, Tensors};
    use fa_kernels::entries::entries;
    use fa_kernels::variant::Kernel;

    fn problem(
        batch: usize,
        heads: [usize; 2],
        sq: usize,
        sk: usize,
        head_dim: usize,
        dtype: DType,
    ) -> DecodeProblem {
        let q = TensorLayout::bshd(batch, sq, heads[0], head_dim);
        let k = TensorLayout::bshd(batch, sk, heads[1], head_dim);
        DecodeProblem::new(Tensors { q, k, v: k, o: q }, dtype, DecodeOptions::default()).unwrap()
    }

    fn plan(problem: &DecodeProblem) -> DecodePlan {
        Plan::new(problem, Sim::new(0).device(), &DecodeRequest::default()).unwrap()
    }

    #[test]
    fn splits_fill_the_multiprocessors_and_no_more() {
        let splits = |batch, sk| plan(&problem(batch, [32, 8], 1, sk, 128, DType::F16)).num_splits();
        // 8, 64, 128 and 512 tiles for 264 slots on 132 multiprocessors.
        assert_eq!(splits(1, 131_072), 33);
        assert_eq!(splits(8, 8192), 4);
        assert_eq!(splits(16, 8192), 1);
        assert_eq!(splits(64, 4096), 1);
        // No split has fewer than four key blocks.
        assert_eq!(splits(1, 64), 1);
        assert!(splits(1, 1024) <= 4);
    }

    #[test]
    fn one_split_needs_neither_workspace_nor_a_second_launch() {
        let one = plan(&problem(64, [32, 8], 1, 4096, 128, DType::Bf16));
        assert_eq!((one.launches().len(), one.workspace_bytes()), (1, 0));
        let four = plan(&problem(8, [32, 8], 1, 8192, 128, DType::Bf16));
        assert_eq!((four.launches().len(), four.workspace_bytes()), (2, 4 * 4 * 8 * 32 * 129));
        assert_eq!(four.launches()[1].grid, 8 * 32);
    }

    #[test]
    fn the_tile_holds_the_packed_rows_where_one_is_large_enough() {
        let tile = |heads, sq, head_dim| {
            plan(&problem(1, heads, sq, 100, head_dim, DType::F16)).launches()[0].entry.name
        };
        assert_eq!(tile([8, 1], 1, 128), "decode_f16_m16_d128_w4_s3");
        assert_eq!(tile([8, 1], 4, 128), "decode_f16_m32_d128_w4_s3");
        assert_eq!(tile([8, 1], 16, 128), "decode_f16_m32_d128_w4_s3");
        assert_eq!(tile([4, 1], 16, 33), "decode_f16_m64_d64_w4_s5");
        assert_eq!(tile([8, 1], 16, 130), "decode_f16_m16_d192_w4_s2");
    }

    #[test]
    fn tiles_of_as_many_rows_are_tried_as_they_were_measured() {
        const DEVICE: &str = "NVIDIA Test";
        const TABLE: &[Tuned] = &[Tuned {
            device: DEVICE,
            kernel: Kernel::Attention(Algorithm::Decode),
            dtype: "f16",
            head_dim: 128,
            causal: false,
            // The fastest holds more rows than are needed.
            entries: &["decode_f16_m32_d128_w4_s3", "decode_f16_m16_d128_w4_s2", "decode_f16_m16_d128_w4_s3"],
        }];
        let device = Device { name: DEVICE.to_owned(), ..Sim::new(0).device().clone() };
        let chosen = |table, group| {
            let problem = problem(1, [group, 1], 1, 100, 128, DType::F16);
            let (entry, why) = choose_entry(&problem, &device, None, table).unwrap();
            (entry.name, why)
        };
        let measured = "the fastest tile measured on NVIDIA Test".to_owned();
        assert_eq!(chosen(TABLE, 8), ("decode_f16_m16_d128_w4_s2", measured.clone()));
        assert_eq!(chosen(TABLE, 24), ("decode_f16_m32_d128_w4_s3", measured));
        let listed = "the first tile listed, the fastest where the list was made,".to_owned();
        assert_eq!(chosen(&[], 8), ("decode_f16_m16_d128_w4_s3", listed));
    }

    #[test]
    fn one_entry_is_planned_if_it_takes_the_problem() {
        let of = |name: &str| entries().find(|entry| entry.name == name).unwrap();
        let planned = |name, head_dim| {
            let problem = problem(1, [8, 1], 1, 100, head_dim, DType::F16);
            Plan::of_entry(&problem, Sim::new(0).device(), of(name))
        };
        let plan = planned("decode_f16_m32_d128_w4_s3", 64).unwrap();
        assert_eq!(
            (plan.tile(), plan.launches()[0].entry.name),
            (Some((32, 64)), "decode_f16_m32_d128_w4_s3")
        );
        assert!(plan.reasons()[2].contains("asked for, with "), "{:?}", plan.reasons());
        for (name, reason) in [
            ("decode_f16_m32_d64_w4_s5", "its HEAD_DIM is 64, the problem's head_dim 65"),
            ("decode_bf16_m16_d128_w4_s3", "it is for bf16, the problem is f16"),
            ("decode_combine_f16", "it is no kernel for decoding"),
        ] {
            let message = planned(name, 65).unwrap_err().to_string();
            assert_eq!(message, format!("entry {name} cannot be run: {reason}"));
        }
    }

    #[test]
    fn every_head_dim_has_an_entry_on_the_smallest_device() {
        let device = crate::Device {
            shared_per_block: 99 << 10,
            compute_capability: 86,
            ..Sim::new(0).device().clone()
        };
        for head_dim in 1..=crate::forward::MAX_HEAD_DIM {
            let problem = problem(1, [8, 1], 1, 1000, head_dim, DType::Bf16);
            let plan = Plan::new(&problem, &device, &DecodeRequest::default()).unwrap();
            assert!(plan.launches()[0].entry.shared_bytes <= 99 << 10);
        }
    }

    #[test]
    fn what_cannot_run_is_refused_in_one_line() {
        let refused = |dtype, device: &Device, request: &DecodeRequest| {
            Plan::new(&problem(1, [8, 1], 1, 100, 64, dtype), device, request).unwrap_err().to_string()
        };
        let sim = Sim::new(0).device().clone();
        let splits = |num_splits| DecodeRequest { num_splits: Some(num_splits), ..DecodeRequest::default() };
        let none = DecodeRequest::default();
        assert_eq!(refused(DType::F32, &sim, &none), "kernel decode has no f32 entry; it has f16, bf16");
        assert_eq!(refused(DType::F16, &sim, &splits(0)), "num_splits is 0; 1 to 128 are possible here");
        let entry = DecodeRequest { entry: Some("decode_f16".to_owned()), ..DecodeRequest::default() };
        assert_eq!(
            refused(DType::F16, &sim, &entry),
            "entry decode_f16 is not built, or not for f16 at head_dim 64"
        );
        assert_eq!(refused(DType::F16, &sim, &splits(129)), "num_splits is 129; 1 to 128 are possible here");
        let old = Device { compute_capability: 75, ..sim.clone() };
        assert_eq!(refused(DType::F16, &old, &none), "kernel decode needs sm_80; simulated GPU is sm_75");
        let small = Device { shared_per_block: 48 << 10, ..sim };
        assert!(
            refused(DType::F16, &small, &none).contains("bytes of shared memory; simulated GPU has 49152")
        );
    }
}
