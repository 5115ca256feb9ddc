//! The plan of a problem with functions of scores: the kernels are those that the program brings along.

use fa_kernels::entries::{Algorithm, Entry};

use super::geometry::Columns;
use super::hopper::ways;
use super::{Choice, Kernel, Request, join, plan_entry};
use crate::functions::Functions;
use crate::{Device, Error, Problem, Result};

/// Whether an entry is for the problem's type, and wide enough.
fn holds(problem: &Problem, entry: &Entry) -> bool {
    entry.dtype == problem.dtype().name() && Columns::of(problem).fit(&entry.tile)
}

/// The first entry whose tensors may start anywhere.
///
/// # Errors
/// When there is none.
pub(super) fn entry_anywhere(problem: &Problem, functions: &Functions) -> Result<&'static Entry> {
    let Functions { built, .. } = functions;
    let starts_anywhere =
        |entry: &&Entry| entry.algorithm == Algorithm::ForwardSm80Modified && holds(problem, entry);
    built.entries.iter().find(starts_anywhere).ok_or_else(|| Error::Functions {
        name: built.name,
        reason: format!(
            "forward_sm80 is not built for {} with head_dim {}",
            problem.dtype(),
            problem.widest_head_dim()
        ),
    })
}

/// Chooses among the entries that are built with the problem's functions: Hopper's tile that is estimated to
/// be done first, else the first of the others.
///
/// # Errors
/// When none is built for the storage type or head_dims, or for the kernel or tile asked for, when the same
/// bits in any batch are asked for, and as [`plan_entry`].
pub(super) fn plan_modified(
    problem: &Problem,
    device: &Device,
    request: &Request,
    functions: &Functions,
) -> Result<Choice> {
    let built = functions.built;
    let refuse = |reason: String| Err(Error::Functions { name: built.name, reason });
    if request.batch_invariant {
        return refuse("no kernel with functions gives the same bits in any batch".to_owned());
    }
    let runs = |entry: &&Entry| entry.target.runs_on(device.compute_capability);
    let fits = |entry: &&Entry| holds(problem, entry) && runs(entry);
    let fitting: Vec<&'static Entry> = built.entries.iter().filter(fits).collect();
    if fitting.is_empty() {
        let of = |entry: &Entry| format!("{} to {}", entry.dtype, entry.tile.head_dim);
        let mut all: Vec<_> = built.entries.iter().filter(runs).map(of).collect();
        all.sort();
        all.dedup();
        return refuse(format!(
            "built for no {} with head_dim {} on sm_{}; there: {}",
            problem.dtype(),
            problem.widest_head_dim(),
            device.compute_capability,
            join(all.into_iter())
        ));
    }
    let asked = |entry: &&&Entry| {
        let family = |kernel: Kernel| kernel.tiled().map(Algorithm::family);
        let is_asked = |kernel| family(kernel) == Some(entry.algorithm.family());
        request.kernel.is_none_or(is_asked) && request.takes(&entry.tile)
    };
    let mut asked_for: Vec<&'static Entry> = fitting.iter().filter(asked).copied().collect();
    let way = ways(problem, device).map(|ways| ways.of_algorithm(Algorithm::ForwardSm90Modified)).ok();
    let cycles = |entry: &Entry| match &way {
        Some(way) if entry.algorithm.is_persistent() => {
            way.schedule(problem, device, entry).cycles * functions.share(&entry.tile)
        }
        _ => f64::INFINITY,
    };
    // A stable sort: of the others the first one listed.
    asked_for.sort_by(|a, b| cycles(a).total_cmp(&cycles(b)));
    let Some((&first, others)) = asked_for.split_first() else {
        let name = |entry: &&Entry| {
            format!("{} {}x{}", entry.algorithm.family(), entry.tile.block_m, entry.tile.block_n)
        };
        let tiles = join(fitting.iter().map(name));
        return refuse(format!("no such kernel or tile is built; there are {tiles}"));
    };
    let plan = |entry| plan_entry(problem, device, entry);
    let any = |refusal| others.iter().find_map(|&entry| plan(entry).ok()).ok_or(refusal);
    let mut choice = plan(first).or_else(any)?;
    choice.reasons[0] = format!("{}: built with the functions {}", choice.kernel, built.name);
    Ok(choice)
}
