//! The launches of few queries: which kernel, which entry.

use fa_kernels::config::DecodeSm90Config;
use fa_kernels::entries::{Algorithm, Entry, Tile};

use super::splits::{Shape, head_bits, packs, shared_bytes, splits, twin};
use super::{ASKED_FOR, Cache, DecodeKernel, DecodeLaunchDetails, DecodeRequest, unfit};
use crate::decode::launch::partial_bytes;
use crate::decode::widened::Widened;
use crate::operation::{Choice, Launch, Operation};
use crate::plan::{
    Key, TUNED, TileOrder, Tuned, built_for, cached_heads, check_fits, check_target, checked_grid,
    fastest_first, tile_too_large, unmapped, unsupported_dtype,
};
use crate::{Device, Error, Problem, Result};

/// What is done to a cache in e4m3.
const WIDENED: &str =
    "K and V in e4m3: their elements become fp16 on their way to tensor cores, and Q's do once";

/// Key rows of a box of K or V that `decode_sm90` copies.
pub(crate) fn box_rows(block_n: u32, page_size: Option<usize>) -> u32 {
    // A page has fewer rows than 2^32.
    DecodeSm90Config::box_rows(block_n, page_size.unwrap_or(0) as u32)
}

/// One way to compute few queries.
pub(crate) struct Launches {
    pub(super) kernel: DecodeKernel,
    /// Entries and their blocks.
    launches: Vec<(&'static Entry, u32)>,
    details: DecodeLaunchDetails,
    tile: (usize, usize),
    workspace_bytes: u64,
    reasons: Vec<String>,
}

impl Launches {
    /// Puts the launch in front that widens K and V.
    ///
    /// # Errors
    /// When there is none for the problem's type, a grid would be too large, or tensor maps do not reach as
    /// far as the copies.
    fn widen(&mut self, problem: &Problem, device: &Device) -> Result<()> {
        let (kernel, dtype) = (self.kernel.name(), problem.dtype());
        let missing = || unsupported_dtype(kernel, Algorithm::Widen, dtype);
        let entry = built_for(Algorithm::Widen, dtype).next().ok_or_else(missing)?;
        let widened = Widened::new(problem, device, self.tile.1 as u32, self.workspace_bytes);
        self.launches.insert(0, (entry, checked_grid(widened.blocks())?));
        for (name, layout) in ["k", "v"].into_iter().zip(widened.layouts()) {
            if let Some(reason) = unmapped(name, layout) {
                return Err(Error::UnfitKernel { kernel, reason: format!("widened to {dtype}, {reason}") });
            }
        }
        self.details.widened = Some(widened);
        let bytes = widened.end() - self.workspace_bytes;
        self.workspace_bytes = widened.end();
        self.reasons.push(format!(
            "K and V in e4m3: a launch before widens the keys in use to {dtype}, in {bytes} bytes of the workspace"
        ));
        Ok(())
    }
}

/// Who takes a cache where nothing is asked for.
struct Suited {
    kernel: DecodeKernel,
    /// Why it cannot, if so.
    dissuasion: Option<String>,
    /// Why another does not that would be quicker.
    passed_over: Option<String>,
}

impl Suited {
    fn to(cache: &Cache<'_>, device: &Device) -> Self {
        let kernel = cache.suited();
        let why = match (kernel, dissuasion(cache, device, kernel)) {
            // Of 8 bits no older kernel stands in, but that of fewer rows, in several tiles.
            (DecodeKernel::ForwardSm90, Some(why))
                if cache.stored.is_e4m3() && !cache.problem.is_packed() =>
            {
                why
            }
            (_, dissuasion) => return Self { kernel, dissuasion, passed_over: None },
        };
        let other = DecodeKernel::DecodeSm90;
        let passed_over = Some(format!("not {}: {why}", kernel.name()));
        Self { kernel: other, dissuasion: dissuasion(cache, device, other), passed_over }
    }
}

/// How few queries are computed.
pub(crate) struct FewQueries {
    pub(super) launches: Launches,
    /// Where K or V turn out to start at no multiple of 16 bytes, and the others need that.
    unaligned: Option<Launches>,
}

impl FewQueries {
    /// Chooses kernel, entry and splits.
    ///
    /// # Errors
    /// As [`plan`](super::plan), but for the number of splits.
    pub(crate) fn choose(cache: &Cache<'_>, device: &Device, request: &DecodeRequest) -> Result<Self> {
        let asked = request.entry.as_deref();
        let named = |kernel: &DecodeKernel| {
            let built = cache.built(*kernel);
            built.is_ok_and(|built| built.entries().any(|entry| Some(entry.name) == asked))
        };
        let asked_kernel = request.kernel.or_else(|| DecodeKernel::ALL.into_iter().find(named));
        let Suited { kernel: suited, dissuasion, passed_over } = Suited::to(cache, device);
        let kernel = match (asked_kernel, &dissuasion) {
            (Some(kernel), _) => kernel,
            (None, None) => suited,
            (None, Some(why)) if !cache.stored.is_taken_by_decode() && !cache.problem.is_packed() => {
                let stored = cache.stored.name(cache.problem.dtype());
                let reason = format!("it takes no cache {stored}; not {}: {why}", suited.name());
                return Err(Error::UnfitKernel { kernel: DecodeKernel::Decode.name(), reason });
            }
            (None, Some(why)) if cache.problem.is_packed() => {
                let reason = format!("{why}; no other kernel takes packed queries");
                return Err(Error::UnfitKernel { kernel: suited.name(), reason });
            }
            (None, Some(_)) => DecodeKernel::Decode,
        };
        let chosen = choose_entry(cache, device, kernel, asked, TUNED)?;
        let mut few = Self::of_entry(cache, device, kernel, chosen, request)?;
        few.launches.reasons.extend(passed_over.filter(|_| asked_kernel.is_none()));
        if let (None, DecodeKernel::Decode, Some(why)) = (asked_kernel, kernel, dissuasion) {
            few.launches.reasons.push(format!("not {}: {why}", suited.name()));
        }
        Ok(few)
    }

    /// The launches of an entry, which comes with why it is that one.
    ///
    /// # Errors
    /// When it needs tensor maps that there are not, and where a grid would be too large.
    pub(super) fn of_entry(
        cache: &Cache<'_>,
        device: &Device,
        kernel: DecodeKernel,
        chosen: (&'static Entry, String),
        request: &DecodeRequest,
    ) -> Result<Self> {
        if cache.tree && kernel == DecodeKernel::ForwardSm90 {
            return Err(unfit(chosen.0, "it takes no tree mask".to_owned()));
        }
        if cache.problem.is_packed() && kernel != DecodeKernel::ForwardSm90 {
            return Err(unfit(chosen.0, "it takes no packed queries".to_owned()));
        }
        if kernel == DecodeKernel::Decode {
            return Ok(Self {
                launches: launches(cache.problem, device, kernel, chosen, request)?,
                unaligned: None,
            });
        }
        if let Some(reason) = cache.unmapped(kernel).or_else(|| cache.unscored(kernel)) {
            return Err(unfit(chosen.0, reason));
        }
        let mut launches_of_it = launches(cache.problem, device, kernel, chosen, request)?;
        match kernel {
            _ if !cache.stored.is_e4m3() => {}
            DecodeKernel::ForwardSm90 => launches_of_it.widen(cache.problem, device)?,
            _ => launches_of_it.reasons.push(WIDENED.to_owned()),
        }
        let fallback = match kernel {
            _ if cache.problem.is_packed() => None,
            DecodeKernel::ForwardSm90 if cache.stored.is_e4m3() => {
                let other = DecodeKernel::DecodeSm90;
                dissuasion(cache, device, other).is_none().then_some(other)
            }
            _ => cache.stored.is_taken_by_decode().then_some(DecodeKernel::Decode),
        };
        let request = DecodeRequest { entry: None, kernel: None, ..request.clone() };
        let unaligned = |kernel| {
            let chosen = choose_entry(cache, device, kernel, None, TUNED)?;
            launches(cache.problem, device, kernel, chosen, &request)
        };
        Ok(Self { launches: launches_of_it, unaligned: fallback.map(unaligned).transpose()? })
    }

    /// As a planner's choice of an operation whose launches have these `details`.
    pub(crate) fn into_choice<O: Operation<Algorithm = Algorithm, Tile = Tile>>(
        self,
        kernel: O::Kernel,
        details: impl Fn(DecodeLaunchDetails) -> O::Details,
    ) -> Choice<O> {
        let Self { launches, unaligned } = self;
        let of = |launches: &Launches| {
            let launch = |&(entry, grid): &(&'static Entry, u32)| {
                let DecodeLaunchDetails { cluster, .. } = launches.details;
                let shared_bytes = shared_bytes(entry, &launches.details);
                let details = details(launches.details);
                Launch { cluster, shared_bytes, details, ..Launch::new(entry, grid) }
            };
            launches.launches.iter().map(launch).collect()
        };
        let most = unaligned.as_ref().map_or(0, |unaligned| unaligned.workspace_bytes);
        Choice {
            kernel,
            tile: Some(launches.tile),
            launches: of(&launches),
            unaligned: unaligned.as_ref().map(of).unwrap_or_default(),
            workspace_bytes: launches.workspace_bytes.max(most),
            reasons: launches.reasons,
        }
    }
}

/// Whether the forward pass's kernel takes the problem's keys split.
pub(crate) fn splits_forward(problem: &Problem, device: &Device) -> bool {
    dissuasion(&Cache::contiguous(problem), device, DecodeKernel::ForwardSm90).is_none()
}

/// Why a kernel of Hopper cannot be taken, if so.
fn dissuasion(cache: &Cache<'_>, device: &Device, kernel: DecodeKernel) -> Option<String> {
    let built = match cache.built(kernel) {
        Ok(built) => built,
        Err(error) => return Some(error.to_string()),
    };
    let head_dim = cache.problem.widest_head_dim();
    let Some(entry) = built.entries().find(|entry| entry.tile.head_dim as usize >= head_dim) else {
        return Some(format!("it has no {} entry", cache.problem.dtype()));
    };
    let runs = check_target(entry, device, kernel.name());
    let fits = runs.and_then(|()| check_fits(entry, cache.problem, device));
    let unfit = fits.err().map(|error| error.to_string());
    unfit.or_else(|| cache.unmapped(kernel)).or_else(|| cache.unscored(kernel))
}

/// In which order packs of heads take tiles: those that share keys together, and where a mask hides keys on
/// the right, as many as L2 holds the keys of, the longest tiles first.
fn order_of_packs(problem: &Problem) -> TileOrder {
    let bits = head_bits(problem);
    let together = if problem.causal() { cached_heads(problem) } else { problem.group() };
    // The grid bounds heads.
    let heads_per_swizzle = (together >> bits).clamp(1, problem.batch() * packs(problem)) as u32;
    TileOrder { heads_per_swizzle, snake_order: problem.causal(), ..TileOrder::default() }
}

/// The launches of an entry.
fn launches(
    problem: &Problem,
    device: &Device,
    kernel: DecodeKernel,
    (entry, order): (&'static Entry, String),
    request: &DecodeRequest,
) -> Result<Launches> {
    let shape_of = |entry| Shape::new(kernel, problem, device, entry, order == ASKED_FOR);
    let (mut details, why) = splits(&shape_of(entry), problem, request);
    let has_several = details.enough_sequences > 0.0 || details.splits_of_a_block > 1;
    let entry = if has_several { twin(entry).unwrap_or(entry) } else { entry };
    let shape = shape_of(entry);
    if kernel == DecodeKernel::ForwardSm90 {
        (details.head_bits, details.order) = (head_bits(problem), order_of_packs(problem));
    }
    let num_splits = details.num_splits as u128;
    let items = checked_grid(shape.tiles as u128 * num_splits)?;
    let grid = match kernel {
        DecodeKernel::Decode => items,
        // No more than items.
        DecodeKernel::DecodeSm90 if details.cluster > 1 => shape.tiles as u32 * details.cluster,
        // A device has fewer slots than a grid has blocks.
        DecodeKernel::DecodeSm90 | DecodeKernel::MlaSm90 => shape.blocks(items, &details),
        // All packed sequences may have no queries.
        DecodeKernel::ForwardSm90 => items.clamp(1, shape.slots as u32),
    };
    let mut launches = vec![(entry, grid)];
    let mut workspace_bytes = 0;
    if num_splits > 1 && details.cluster == 1 {
        let rows = problem.lse_len() as u128;
        let algorithm = match kernel {
            DecodeKernel::Decode => Algorithm::DecodeCombine,
            DecodeKernel::DecodeSm90 | DecodeKernel::ForwardSm90 | DecodeKernel::MlaSm90 => {
                Algorithm::DecodeCombineSm90
            }
        };
        let combine = built_for(algorithm, problem.dtype())
            .next()
            .ok_or_else(|| unsupported_dtype(kernel.name(), algorithm, problem.dtype()))?;
        launches.push((combine, checked_grid(rows.div_ceil(combine.tile.block_m.into()))?));
        checked_grid(rows)?;
        // The grid bounds the rows, so this fits.
        let [o, lse] = partial_bytes(problem, details.num_splits);
        workspace_bytes = (o + lse) as u64;
    }
    let (block_m, block_n) = (entry.tile.block_m as usize, entry.tile.block_n as usize);
    let rows = problem.packed_rows();
    let steps = match kernel {
        DecodeKernel::Decode => format!("16 keys for each of {} warps", entry.threads / 32),
        DecodeKernel::DecodeSm90 => "a long run of memory".to_owned(),
        DecodeKernel::MlaSm90 => {
            "two blocks fill shared memory, each read for its keys and its values".to_owned()
        }
        DecodeKernel::ForwardSm90 => "of which whole ones make up pages".to_owned(),
    };
    let mut reasons = vec![
        format!(
            "{} on tensor cores: the {} query heads of a key/value head times Sq {} are the rows of one tile, so that K \
             and V are read once",
            kernel.name(),
            problem.group(),
            problem.seqlen_q()
        ),
        format!("HEAD_DIM {}: holds head_dim {}", entry.tile.head_dim, problem.widest_head_dim()),
        format!(
            "BLOCK_M {block_m}: {} for {rows} packed rows; BLOCK_N {block_n}: {steps}; {order} with {} bytes of shared \
             memory, {} blocks per multiprocessor",
            match &*order {
                ASKED_FOR => ASKED_FOR,
                _ if block_m >= rows => "the smallest",
                _ => "the largest",
            },
            entry.shared_bytes,
            shape.blocks_per_multiprocessor
        ),
        why,
    ];
    if details.cluster > 1 {
        reasons.push(format!(
            "clusters of {} blocks merge the splits of a tile in shared memory",
            details.cluster
        ));
    }
    Ok(Launches { kernel, launches, details, tile: (block_m, block_n), workspace_bytes, reasons })
}

/// The entry asked for, or of the smallest HEAD_DIM that fits and the BLOCK_M that wastes the fewest rows the
/// first by `table`, and why.
pub(super) fn choose_entry(
    cache: &Cache<'_>,
    device: &Device,
    kernel: DecodeKernel,
    asked: Option<&str>,
    table: &[Tuned],
) -> Result<(&'static Entry, String)> {
    let problem = cache.problem;
    let (dtype, head_dim) = (problem.dtype(), problem.widest_head_dim());
    let of_kernel = cache.built(kernel)?;
    let built = || {
        of_kernel
            .entries()
            .filter(|entry| entry.tile.head_dim as usize >= head_dim)
            // Who has several splits of a tile is a question that comes later.
            .filter(|entry| asked.map_or(!entry.algorithm.adds_up(), |name| name == entry.name))
    };
    let columns = built().map(|entry| entry.tile.head_dim).min().ok_or_else(|| match asked {
        Some(name) => Error::NoSuchEntry { name: name.to_owned(), dtype, head_dim },
        None => of_kernel.missing(),
    })?;
    let candidates: Vec<_> = built().filter(|entry| entry.tile.head_dim == columns).collect();
    candidates.iter().try_for_each(|entry| check_target(entry, device, kernel.name()))?;
    let fits = |entry: &&'static Entry| check_fits(entry, problem, device).is_ok();
    let mut fitting: Vec<_> = candidates.iter().copied().filter(fits).collect();
    let rows = problem.packed_rows();
    let sufficient = fitting.iter().map(|entry| entry.tile.block_m).filter(|&m| m as usize >= rows).min();
    let block_m = sufficient.or_else(|| fitting.iter().map(|entry| entry.tile.block_m).max());
    fitting.retain(|entry| Some(entry.tile.block_m) == block_m);
    let Some(&first) = fitting.first() else {
        let smallest = candidates.iter().min_by_key(|entry| entry.shared_bytes).unwrap_or(&candidates[0]);
        return Err(tile_too_large(problem, device, &smallest.tile, smallest.shared_bytes.into()));
    };
    let order = match asked {
        Some(_) => ASKED_FOR.to_owned(),
        None => fastest_first(&mut fitting, &Key::of(first, false, &device.name), table),
    };
    Ok((fitting[0], order))
}
