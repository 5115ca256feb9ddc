//! Sequences that processes with a GPU each share out.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flash_attention::backward::{BackwardProblem, BackwardRequest};
use flash_attention::cuda::Stream;
use flash_attention::distributed::{
    Distributed, Partition, Run, Schedule, Shard, ShardAddresses, StageHeads, Transport, World,
};
use flash_attention::{Error, Problem, Request};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::error::raised;
use crate::place::cuda;
use crate::settings::{Settings, View, dtype, optional, tensors};
use crate::watch::{Joined, Work, watch};

pyo3::create_exception!(
    flash_attention_rs,
    PeerError,
    PyRuntimeError,
    "Another rank is gone, gave up, or computes something else: there is no result."
);

/// Names of what one of two is.
fn named<T: Copy>(what: &str, name: &str, known: [(&str, T); 2]) -> PyResult<T> {
    known.into_iter().find(|(of, _)| *of == name).map(|(_, value)| value).ok_or_else(|| {
        let names = known.map(|(of, _)| of).join(" or ");
        PyValueError::new_err(format!("{what} is {name}; {names} is needed"))
    })
}

fn seconds(what: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{what} is {seconds}; seconds from 0 on are needed")))
}

/// Of a call that all ranks make together. What a rank is refused by itself is refused before.
fn of_ranks(error: Error) -> PyErr {
    match error {
        Error::Peer { .. } | Error::Context { .. } => PeerError::new_err(error.to_string()),
        error => raised(error),
    }
}

/// A rank's part of a problem, which nothing but its arguments decides.
#[pyclass(frozen, module = "flash_attention_rs._native")]
pub(crate) struct Part {
    problem: Problem,
    request: Request,
    partition: Partition,
    shard: Shard,
}

#[pymethods]
impl Part {
    /// `views`: those of the whole Q, K, V and O; `ranks`: the rank, and how many there are.
    #[new]
    fn new(
        dtype_name: &str,
        views: [View; 4],
        settings: Settings,
        ranks: (usize, usize),
        partition: &str,
    ) -> PyResult<Self> {
        let known = [("zigzag", Partition::ZigZag), ("contiguous", Partition::Contiguous)];
        let partition = named("partition", partition, known)?;
        let request = settings.request();
        let problem = settings.problem(dtype(dtype_name)?, tensors(views))?;
        let shard = Shard::new(&problem, ranks.0, ranks.1, partition).map_err(raised)?;
        Ok(Self { problem, request, partition, shard })
    }

    /// Where runs of the rank's queries begin and end in their sequence.
    fn query_rows(&self) -> Vec<(usize, usize)> {
        bounds(self.shard.query_runs())
    }

    /// The same of its keys.
    fn key_rows(&self) -> Vec<(usize, usize)> {
        bounds(self.shard.key_runs())
    }

    /// Refuses what has no gradients.
    fn check_gradients(&self) -> PyResult<()> {
        self.gradients()?;
        Schedule::backward(&self.shard, StageHeads::of(&self.shard)).map_err(raised)?;
        Ok(())
    }
}

impl Part {
    fn gradients(&self) -> PyResult<BackwardProblem> {
        BackwardProblem::like(self.problem.clone()).map_err(raised)
    }
}

fn bounds(runs: impl Iterator<Item = Run>) -> Vec<(usize, usize)> {
    runs.filter(|run| !run.whole.is_empty()).map(|run| (run.whole.start, run.whole.end)).collect()
}

/// The ranks that a launcher started, once they have met.
#[pyclass(frozen, module = "flash_attention_rs._native")]
pub(crate) struct Ranks {
    #[pyo3(get)]
    rank: usize,
    #[pyo3(get)]
    world_size: usize,
    #[pyo3(get)]
    device: usize,
    /// nccl-ce or nccl.
    #[pyo3(get)]
    transport: &'static str,
    /// None once they have parted.
    joined: Mutex<Option<Arc<Joined>>>,
}

const TRANSPORTS: [(&str, Transport); 2] =
    [("nccl-ce", Transport::NcclCopyEngines), ("nccl", Transport::NcclKernels)];

#[pymethods]
impl Ranks {
    /// Meets the others on GPU `device`, by default that of the local rank. The process ends `exit_after`
    /// seconds after a rank is gone that its GPU waits for, if no call has raised that.
    #[new]
    #[pyo3(signature = (device=None, patience=30.0, transport=None, exit_after=None))]
    fn new(
        py: Python<'_>,
        device: Option<usize>,
        patience: f64,
        transport: Option<&str>,
        exit_after: Option<f64>,
    ) -> PyResult<Self> {
        let patience = seconds("patience", patience)?;
        let exit_after = exit_after.map(|time| seconds("exit_after", time)).transpose()?;
        let transport = transport.map(|name| named("transport", name, TRANSPORTS)).transpose()?;
        py.detach(|| {
            // Nothing here is an argument's fault.
            let failed = |error: Error| PyRuntimeError::new_err(error.to_string());
            let world = World::from_env().map_err(failed)?;
            let (rank, world_size, device) = (world.rank, world.size, device.unwrap_or(world.local_rank));
            let cuda = cuda(device).map_err(failed)?;
            let group = match transport {
                None => Distributed::new(world, &cuda, patience),
                Some(transport) => Distributed::with_transport(world, &cuda, patience, transport),
            }
            .map_err(failed)?;
            let transport = TRANSPORTS.into_iter().find(|(_, of)| *of == group.transport());
            let transport = transport.map_or("nccl", |(name, _)| name);
            let joined = Arc::new(Joined::new(group));
            if let Some(exit_after) = exit_after {
                watch(&joined, exit_after)?;
            }
            Ok(Self { rank, world_size, device, transport, joined: Mutex::new(Some(joined)) })
        })
    }

    /// What this rank computes with the others, with the memory that it needs. All call it together.
    fn plan(&self, py: Python<'_>, part: &Part, has_gradients: bool) -> PyResult<RankPlan> {
        let joined = self.joined()?;
        py.detach(|| {
            let (group, partition) = (joined.group(), part.partition);
            let work = if has_gradients {
                let request = BackwardRequest { workspace_limit: Some(0), ..BackwardRequest::default() };
                let problem = part.gradients()?;
                group.plan(&problem, partition, &request).map(Work::Backward)
            } else {
                group.plan(&part.problem, partition, &part.request).map(Work::Forward)
            };
            let work = work.map_err(|error| of_ranks(joined.told(error)))?;
            Ok(RankPlan { held: Mutex::new(Some((Arc::new(work), Arc::clone(&joined)))) })
        })
    }

    /// Raises where a rank is gone; waits for nothing.
    fn check(&self) -> PyResult<()> {
        let joined = self.joined()?;
        joined.group().check().map_err(|error| of_ranks(joined.told(error)))
    }

    /// Waits until all ranks have come here.
    fn barrier(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let (joined, timeout) = (self.joined()?, seconds("timeout", timeout)?);
        py.detach(|| joined.group().barrier(timeout)).map_err(|error| of_ranks(joined.told(error)))
    }

    /// Tells the others that this rank computes no more, and why.
    fn give_up(&self, reason: &str) -> PyResult<()> {
        self.joined()?.group().give_up(reason);
        Ok(())
    }

    /// The process is about to end: work that waits for a rank that is gone does not hold it up for long.
    fn leave(&self) -> PyResult<()> {
        Ok(self.joined()?.leave()?)
    }

    /// Parts from the others. Plans of these are closed before.
    fn close(&self, py: Python<'_>) {
        let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(joined));
    }
}

impl Ranks {
    fn joined(&self) -> PyResult<Arc<Joined>> {
        let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        joined.clone().ok_or_else(|| PyRuntimeError::new_err("the ranks have parted: close() was called"))
    }
}

/// How many addresses [`RankPlan::enqueue`] takes.
const ADDRESSES: usize = 9;

/// What a rank computes with the others.
#[pyclass(frozen, module = "flash_attention_rs._native")]
pub(crate) struct RankPlan {
    /// None once it is closed, so that the others can be parted from.
    held: Mutex<Option<(Arc<Work>, Arc<Joined>)>>,
}

#[pymethods]
impl RankPlan {
    /// Bytes on the GPU beside the tensors.
    #[getter]
    fn memory_bytes(&self) -> PyResult<usize> {
        Ok(self.held()?.0.memory_bytes())
    }

    /// How ranks reach one another, and what they do together.
    #[getter]
    fn reasons(&self) -> PyResult<Vec<String>> {
        Ok(self.held()?.0.reasons().to_vec())
    }

    /// `at`: q, k, v, o, lse, dout, dq, dk, dv; 0 is none. All ranks call it together.
    fn enqueue(&self, py: Python<'_>, at: [u64; ADDRESSES], stream: usize) -> PyResult<()> {
        let (work, joined) = self.held()?;
        let [q, k, v, o, lse, dout, dq, dk, dv] = at;
        let addresses = ShardAddresses { q, k, v, o, lse: optional(lse), dout, dq, dk, dv };
        py.detach(|| {
            joined.begins(&work);
            // SAFETY: Python's half gives contiguous live tensors of this rank's GPU with the part's rows,
            // type and heads, whose allocator frees memory in the stream's order. It lets the stream wait
            // for that of the call before.
            unsafe { work.run(&addresses, Stream::from_raw(stream as *mut _)) }
        })
        .map_err(|error| of_ranks(joined.told(error)))
    }

    /// Waits for the last call's work. Where that takes longer, all ranks give up.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let ((work, joined), timeout) = (self.held()?, seconds("timeout", timeout)?);
        py.detach(|| work.wait(timeout)).map_err(|error| of_ranks(joined.told(error)))
    }

    /// Gives its memory back, once its work is over.
    fn close(&self, py: Python<'_>) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(held));
    }
}

impl RankPlan {
    fn held(&self) -> PyResult<(Arc<Work>, Arc<Joined>)> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.clone().ok_or_else(|| PyRuntimeError::new_err("the plan is closed"))
    }
}
