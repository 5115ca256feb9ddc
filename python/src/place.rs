//! Where plans run: a GPU by its ordinal, or the CPU.

use std::sync::{Mutex, OnceLock, PoisonError};

use flash_attention::cuda::Cuda;
use flash_attention::{Backend, BackendKind, Device, Error, Operation, Plan};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::raised;
use crate::threads;

/// An opened device.
pub(crate) enum Place {
    Cuda(Cuda),
    Cpu(&'static Backend),
}

impl Place {
    /// GPU `ordinal` in its primary context, which is PyTorch's too, or without one the CPU.
    pub(crate) fn open(ordinal: Option<usize>) -> PyResult<Self> {
        match ordinal {
            Some(ordinal) => cuda(ordinal).map(Self::Cuda).map_err(raised),
            None => cpu().map(Self::Cpu),
        }
    }

    pub(crate) fn device(&self) -> &Device {
        match self {
            Self::Cuda(cuda) => cuda.device(),
            Self::Cpu(backend) => backend.device(),
        }
    }

    /// A plan whose kernels are loaded.
    pub(crate) fn plan<O: Operation>(&self, problem: &O, request: &O::Request) -> PyResult<Plan<O>>
    where
        O::Request: Sync,
    {
        let plan = || Plan::new(problem, self.device(), request).map_err(raised);
        match self {
            Self::Cuda(cuda) => {
                let plan = plan()?;
                cuda.load(&plan).map_err(raised)?;
                Ok(plan)
            }
            // It asks how many threads there are.
            Self::Cpu(_) => threads::run(plan),
        }
    }

    /// The GPU, for launches.
    pub(crate) fn cuda(&self) -> PyResult<&Cuda> {
        match self {
            Self::Cuda(cuda) => Ok(cuda),
            Self::Cpu(_) => Err(PyValueError::new_err("enqueue: the plan is for the CPU, whose call is run")),
        }
    }

    /// The CPU, for runs.
    pub(crate) fn cpu(&self) -> PyResult<&'static Backend> {
        match self {
            Self::Cuda(_) => Err(PyValueError::new_err("run: the plan is for a GPU, whose call is enqueue")),
            Self::Cpu(backend) => Ok(backend),
        }
    }
}

fn cpu() -> PyResult<&'static Backend> {
    static CPU: OnceLock<Backend> = OnceLock::new();
    if let Some(backend) = CPU.get() {
        return Ok(backend);
    }
    let backend = threads::run(|| Backend::open(Some(BackendKind::Cpu)).map_err(raised))?;
    Ok(CPU.get_or_init(|| backend))
}

/// One handle for each GPU, opened at its first use.
pub(crate) fn cuda(ordinal: usize) -> Result<Cuda, Error> {
    static OPENED: Mutex<Vec<(usize, Cuda)>> = Mutex::new(Vec::new());
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, cuda)) = opened.iter().find(|(of, _)| *of == ordinal) {
        return Ok(cuda.clone());
    }
    let cuda = Cuda::new(ordinal)?;
    opened.push((ordinal, cuda.clone()));
    Ok(cuda)
}

/// One line about a device: a GPU by its ordinal, or the CPU.
///
/// Raises `RuntimeError`, which says what is missing, where it cannot be used.
#[pyfunction]
#[pyo3(signature = (device=None))]
pub(crate) fn describe(py: Python<'_>, device: Option<usize>) -> PyResult<String> {
    py.detach(|| {
        let place = Place::open(device)?;
        let device = place.device();
        Ok(match place {
            Place::Cuda(_) => format!("{}, {}", device.describe(), device.driver),
            Place::Cpu(_) => device.describe(),
        })
    })
}
