//! The launches of few queries: which kernel, which entry.

use fa_kernels::config::DecodeSm90Config;
use fa_kernels::entries::{Algorithm, Entry, Tile};

use super::splits::{Shape, splits};
use super::{ASKED_FOR, DecodeKernel, DecodeLaunchDetails, DecodeProblem, DecodeRequest, unfit};
use crate::decode::launch::partial_bytes;
use crate::operation::{Choice, Launch, Operation};
use crate::plan::{
    Key, TUNED, Tuned, built_for, check_fits, check_target, checked_grid, fastest_first, tile_too_large,
    unmapped, unmapped_in_e4m3, unsupported_dtype,
};
use crate::{DType, Device, Error, Problem, Result, TensorLayout};

/// What is done to a cache in e4m3.
const WIDENED: &str =
    "K and V in e4m3: their elements become fp16 on their way to tensor cores, and Q's do once";

/// A problem with its keys as they lie in memory.
pub(crate) struct Cache<'a> {
    pub(super) problem: &'a Problem,
    k: &'a TensorLayout,
    v: &'a TensorLayout,
    /// Rows of a page; `None` where keys are contiguous.
    page_size: Option<usize>,
    /// Whether K and V are in e4m3, and Q is not.
    pub(super) e4m3: bool,
}

impl<'a> Cache<'a> {
    pub(super) fn of(problem: &'a DecodeProblem) -> Self {
        let page_size = problem.max_pages().map(|_| problem.k().seqlen);
        let e4m3 = problem.descales().is_some();
        Self { problem: problem.dense(), k: problem.k(), v: problem.v(), page_size, e4m3 }
    }

    /// Of the forward pass.
    pub(crate) fn contiguous(problem: &'a Problem) -> Self {
        let tensors = problem.tensors();
        Self { problem, k: &tensors.k, v: &tensors.v, page_size: None, e4m3: false }
    }

    /// Why no tensor maps describe it, if so.
    fn unmapped(&self) -> Option<String> {
        let unmapped =
            |(name, layout)| if self.e4m3 { unmapped_in_e4m3(name, layout) } else { unmapped(name, layout) };
        let page_size = self.page_size.filter(|size| !size.is_multiple_of(8));
        page_size
            .map(|size| format!("pages have {size} rows, and copies take multiples of 8"))
            .or_else(|| [("k", self.k), ("v", self.v)].into_iter().find_map(unmapped))
    }

    /// The kernel's entries for it in its problem's type.
    ///
    /// # Errors
    /// When the kernel takes no such cache.
    fn built(&self, kernel: DecodeKernel) -> Result<Built> {
        let algorithm = kernel.algorithm(self.e4m3).ok_or_else(|| {
            let reason = "it takes no cache in e4m3; decode_sm90 does".to_owned();
            Error::UnfitKernel { kernel: kernel.name(), reason }
        })?;
        Ok(Built { kernel, algorithm, dtype: self.problem.dtype() })
    }
}

/// The entries of a kernel for a type of cache and of Q.
struct Built {
    kernel: DecodeKernel,
    algorithm: Algorithm,
    dtype: DType,
}

impl Built {
    fn entries(&self) -> impl Iterator<Item = &'static Entry> + use<> {
        built_for(self.algorithm, self.dtype)
    }

    /// That there is none.
    fn missing(&self) -> Error {
        unsupported_dtype(self.kernel.name(), self.algorithm, self.dtype)
    }
}

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
        let dissuasion = dissuasion(cache, device);
        let kernel = match (asked_kernel, &dissuasion) {
            (Some(kernel), _) => kernel,
            (None, None) => DecodeKernel::DecodeSm90,
            (None, Some(why)) if cache.e4m3 => {
                let reason = format!("it takes no cache in e4m3; not decode_sm90: {why}");
                return Err(Error::UnfitKernel { kernel: DecodeKernel::Decode.name(), reason });
            }
            (None, Some(_)) => DecodeKernel::Decode,
        };
        let chosen = choose_entry(cache, device, kernel, asked, TUNED)?;
        let mut few = Self::of_entry(cache, device, kernel, chosen, request)?;
        if let (None, DecodeKernel::Decode, Some(why)) = (asked_kernel, kernel, dissuasion) {
            few.launches.reasons.push(format!("not decode_sm90: {why}"));
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
        if kernel == DecodeKernel::Decode {
            return Ok(Self {
                launches: launches(cache.problem, device, kernel, chosen, request)?,
                unaligned: None,
            });
        }
        if let Some(reason) = cache.unmapped() {
            return Err(unfit(chosen.0, reason));
        }
        if cache.e4m3 {
            let mut launches = launches(cache.problem, device, kernel, chosen, request)?;
            launches.reasons.push(WIDENED.to_owned());
            return Ok(Self { launches, unaligned: None });
        }
        let fallback = DecodeRequest { entry: None, kernel: None, ..request.clone() };
        let other = choose_entry(cache, device, DecodeKernel::Decode, None, TUNED)?;
        Ok(Self {
            launches: launches(cache.problem, device, kernel, chosen, request)?,
            unaligned: Some(launches(cache.problem, device, DecodeKernel::Decode, other, &fallback)?),
        })
    }

    /// As a planner's choice of an operation whose launches have these `details`.
    pub(crate) fn into_choice<O: Operation<Algorithm = Algorithm, Tile = Tile>>(
        self,
        kernel: O::Kernel,
        details: impl Fn(DecodeLaunchDetails) -> O::Details,
    ) -> Choice<O> {
        let Self { launches, unaligned } = self;
        let of = |launches: &Launches| {
            let launch =
                |&(entry, grid)| Launch { details: details(launches.details), ..Launch::new(entry, grid) };
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

/// Why `decode_sm90` cannot be taken, if so.
fn dissuasion(cache: &Cache<'_>, device: &Device) -> Option<String> {
    let built = match cache.built(DecodeKernel::DecodeSm90) {
        Ok(built) => built,
        Err(error) => return Some(error.to_string()),
    };
    let head_dim = cache.problem.widest_head_dim();
    let Some(entry) = built.entries().find(|entry| entry.tile.head_dim as usize >= head_dim) else {
        return Some(format!("it has no {} entry", cache.problem.dtype()));
    };
    let runs = check_target(entry, device, DecodeKernel::DecodeSm90.name());
    let fits = runs.and_then(|()| check_fits(entry, cache.problem, device));
    fits.err().map(|error| error.to_string()).or_else(|| cache.unmapped())
}

/// The launches of an entry.
fn launches(
    problem: &Problem,
    device: &Device,
    kernel: DecodeKernel,
    (entry, order): (&'static Entry, String),
    request: &DecodeRequest,
) -> Result<Launches> {
    let shape = Shape::new(kernel, problem, device, entry);
    let (details, why) = splits(&shape, problem, request);
    let num_splits = details.num_splits as u128;
    let items = checked_grid(shape.tiles as u128 * num_splits)?;
    let grid = match kernel {
        DecodeKernel::Decode => items,
        // A device has fewer slots than a grid has blocks.
        DecodeKernel::DecodeSm90 => items.min(shape.slots as u32),
    };
    let mut launches = vec![(entry, grid)];
    let mut workspace_bytes = 0;
    if num_splits > 1 {
        let rows = problem.lse_len() as u128;
        let combine = built_for(Algorithm::DecodeCombine, problem.dtype())
            .next()
            .ok_or_else(|| unsupported_dtype(kernel.name(), Algorithm::DecodeCombine, problem.dtype()))?;
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
    };
    let reasons = vec![
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
            .filter(|entry| asked.is_none_or(|name| name == entry.name))
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
