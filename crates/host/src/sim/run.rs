//! How the simulator runs a plan: the tensors as its buffers, then launch after launch.

use fa_kernels::entries::Params;
use fa_sim::{Buffer, Neighbours, Schedule};

use super::{Sim, Traffic};
use crate::operation::{Data, Launch, Tensor};
use crate::tensor_map::TensorMap;
use crate::{Element, Error, Operation, Plan, Result};

/// [`Sim::run`] of a call that was checked.
pub(super) fn run<O: Operation, T: Element>(
    sim: &Sim,
    plan: &Plan<O>,
    inputs: O::Inputs<'_, T>,
    outputs: &mut O::Outputs<'_, T>,
) -> Result<Traffic> {
    let words = plan.workspace_bytes().div_ceil(16) as usize;
    let mut workspace: Vec<u128> = sim.device.allocate("the workspace", words)?;
    // NaN in every type, so that what is read before it is written shows.
    workspace.fill(u128::MAX);
    run_some(sim, plan, |launches| launches, (inputs, outputs), &mut workspace)
}

/// Runs those launches of a plan that `some` leaves of them, in a workspace of the caller's.
pub(super) fn run_some<O: Operation, T: Element, W>(
    sim: &Sim,
    plan: &Plan<O>,
    some: impl Fn(&[Launch<O>]) -> &[Launch<O>],
    (inputs, outputs): (O::Inputs<'_, T>, &mut O::Outputs<'_, T>),
    workspace: &mut [W],
) -> Result<Traffic> {
    let mut buffers = Vec::new();
    let addresses = O::tensors(plan, inputs, outputs, &mut |tensor| {
        let Tensor { name, layout, element_bytes, data } = tensor;
        let buffer = match data {
            Data::Input(data) => Buffer::read(name, data),
            Data::Output(data) | Data::Updated(data) => {
                Buffer::read_write(name, data).reaching(layout.byte_rows(element_bytes))
            }
            Data::Workspace => Buffer::read_write("workspace", &mut *workspace),
        };
        let address = buffer.address;
        buffers.push(buffer);
        Ok(address)
    })?;
    let mut traffic = Traffic::default();
    let launches = some(plan.launches_at(&addresses));
    let mut neighbours = None;
    for (index, launch) in launches.iter().enumerate() {
        if !launch.beside {
            let has_some = launches.get(index + 1).is_some_and(|next| next.beside);
            neighbours = has_some.then(Neighbours::default);
        }
        let encode = |map: &TensorMap| {
            let unfit = |reason| Error::UnfitEntry { entry: launch.entry.name, reason };
            map.encode().map_err(unfit)
        };
        let params = O::params(plan, launch, &addresses, encode)?;
        run_launch((sim.seed, neighbours.as_ref()), launch, &params, &buffers, &mut traffic)?;
    }
    Ok(traffic)
}

/// Runs one launch, whose parameters describe `buffers`, beside its neighbours if it has some; adds to
/// `traffic`.
fn run_launch<O: Operation>(
    (seed, neighbours): (u64, Option<&Neighbours>),
    launch: &Launch<O>,
    params: &Params,
    buffers: &[Buffer],
    traffic: &mut Traffic,
) -> Result<()> {
    let &Launch { entry, grid, cluster, shared_bytes, .. } = launch;
    let run = entry.run.ok_or_else(|| Error::UnfitEntry {
        entry: entry.name,
        reason: "it exists as PTX alone, and the simulator runs native code".to_owned(),
    })?;
    let launch = fa_sim::Launch {
        name: entry.name,
        grid,
        block: entry.threads,
        shared_bytes,
        schedule: Schedule::from_seed(seed),
        buffers,
    };
    // SAFETY: the launch has the entry's threads and shared memory, the parameters describe live buffers
    // whose sizes were checked, and the simulator refuses any access outside of them.
    let kernel = || unsafe { run.call(params) };
    let report = match neighbours {
        Some(neighbours) => neighbours.launch(&launch, cluster, &kernel),
        None => fa_sim::launch_clusters(&launch, cluster, &kernel),
    }
    .map_err(|error| Error::Simulator { reason: error.to_string() })?;
    traffic.bytes_read += report.global_bytes_read;
    traffic.bytes_written += report.global_bytes_written;
    traffic.barrier_sites.push(report.barrier_sites);
    Ok(())
}
