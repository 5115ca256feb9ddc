//! Which of Q, K, V and dO are copied to where tensor maps describe them, before Hopper's launches.
//!
//! Copies stand in the workspace behind delta, in front of dS. Gradients are stored where they belong, at any
//! addresses, and delta reads O and dO where they are.

use super::launch::{BackwardAddresses, LaunchDetails};
use super::stored;
use super::{BackwardKernel, BackwardProblem};
use crate::operation::Launch;
use crate::plan::{Packed, PackedCopy, pack_entry, unmapped};
use crate::{Device, Problem, Result, TensorLayout, Tensors};

/// The copies of Q, K, V and dO that are read in their place.
pub(super) type Copies = Packed<4>;

/// What tensor maps describe, in the order of [`Copies`].
const NAMES: [&str; 4] = ["q", "k", "v", "dout"];

fn tensors(problem: &BackwardProblem) -> [&TensorLayout; 4] {
    let Tensors { q, k, v, .. } = problem.forward().tensors();
    [q, k, v, &problem.layouts().dout]
}

/// Copies of what no tensor map describes, where addresses are multiples of 16 bytes.
pub(super) fn of(problem: &BackwardProblem) -> Copies {
    let is_unmapped = |name, tensor| unmapped(name, tensor).is_some();
    let [q, k, v, dout] = tensors(problem);
    Copies::copying([
        (q, is_unmapped("q", q)),
        (k, is_unmapped("k", k)),
        (v, is_unmapped("v", v)),
        (dout, is_unmapped("dout", dout)),
    ])
}

/// Copies of all, which may start at any addresses then.
pub(super) fn of_all(problem: &BackwardProblem) -> Copies {
    Copies::copying(tensors(problem).map(|tensor| (tensor, true)))
}

/// Bytes of a workspace that holds copies, and behind them what dS or sums of dQ take.
pub(super) fn workspace_bytes(forward: &Problem, copies: &Copies, behind: u64) -> u64 {
    if copies.is_empty() && behind == 0 {
        return stored::delta_bytes(forward);
    }
    stored::behind_delta(forward).saturating_add(copies.bytes).saturating_add(behind)
}

/// Why there is no room for the copies that are needed, if so.
pub(super) fn refusal(problem: &BackwardProblem, device: &Device) -> Option<String> {
    let (layouts, o) = (problem.layouts(), &problem.forward().tensors().o);
    let others = [o, &layouts.dq, &layouts.dk, &layouts.dv];
    let spans = tensors(problem).into_iter().chain(others).map(|tensor| 2 * tensor.span() as u128);
    let (tensors, copies): (u128, _) = (spans.sum(), of(problem).bytes);
    (copies > 0 && tensors + u128::from(copies) > device.memory.into())
        .then(|| format!("{copies} bytes of copies for tensor maps do not fit beside the tensors' {tensors}"))
}

/// The launch that makes the copies.
pub(super) fn launch(copies: Copies, device: &Device) -> Result<Launch<BackwardProblem>> {
    let entry = pack_entry(BackwardKernel::BackwardSm90.name())?;
    let details = LaunchDetails { copies, ..LaunchDetails::default() };
    Ok(Launch { details, ..Launch::new(entry, copies.blocks(copies.groups, device)?) })
}

/// Why copies are made, and what they cost beside launches of so many cycles.
pub(super) fn reason(problem: &BackwardProblem, device: &Device, copies: &Copies, cycles: f64) -> String {
    let why = NAMES.into_iter().zip(tensors(problem)).find_map(|(name, tensor)| unmapped(name, tensor));
    copies.copy_cause(NAMES, &why.unwrap_or_default(), copies.copy_cycles(device)).reason(cycles)
}

/// Where each of the tensors lies, and how.
pub(super) fn sources<'p>(
    problem: &'p BackwardProblem,
    addresses: &BackwardAddresses,
) -> [(u64, &'p TensorLayout); 4] {
    let ([q, k, v, dout], of) = (tensors(problem), &addresses.forward);
    [(of.q, q), (of.k, k), (of.v, v), (addresses.dout, dout)]
}

/// Where the copies begin in the workspace.
pub(super) fn target(problem: &BackwardProblem, addresses: &BackwardAddresses) -> u64 {
    addresses.forward.workspace + stored::behind_delta(problem.forward())
}

/// Where that lies which is read for each of the tensors, itself or its copy, and how.
pub(super) fn reads(
    problem: &BackwardProblem,
    copies: &Copies,
    addresses: &BackwardAddresses,
) -> [(u64, TensorLayout); 4] {
    let target = target(problem, addresses);
    let mut reads = sources(problem, addresses).map(|(address, layout)| (address, *layout));
    for (read, copy) in reads.iter_mut().zip(copies.copies) {
        if let Some(PackedCopy { offset, layout }) = copy {
            *read = (target + offset, layout);
        }
    }
    reads
}
