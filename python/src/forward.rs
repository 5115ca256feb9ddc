//! The forward pass.

use std::borrow::Cow;

use flash_attention::cuda::Stream;
use flash_attention::forward::{Addresses, Outputs, PerHead};
use flash_attention::{DType, Element, Plan};
use half::{bf16, f16};
use pyo3::prelude::*;

use crate::error::raised;
use crate::memory::{read, write};
use crate::place::Place;
use crate::settings::{Settings, View, dtype, optional, tensors};
use crate::threads;

/// Offsets of a packed batch in Q and in K.
pub(crate) type CuSeqlens = (Vec<u32>, Vec<u32>);

/// How many addresses [`Forward::enqueue`] takes.
pub(crate) const ADDRESSES: usize = 11;

/// A planned forward pass.
#[pyclass(frozen, module = "flash_attention_rs._native")]
pub(crate) struct Forward {
    pub(crate) device: Option<usize>,
    pub(crate) plan: Plan,
    /// How many there are.
    pub(crate) sinks: usize,
    place: Place,
}

#[pymethods]
impl Forward {
    #[new]
    fn new(
        py: Python<'_>,
        device: Option<usize>,
        dtype_name: &str,
        views: [View; 4],
        settings: Settings,
    ) -> PyResult<Self> {
        let dtype = dtype(dtype_name)?;
        py.detach(|| {
            let (sinks, request) = (settings.sinks(), settings.request());
            let problem = settings.problem(dtype, tensors(views))?;
            let place = Place::open(device)?;
            Ok(Self { device, plan: place.plan(&problem, &request)?, sinks, place })
        })
    }

    #[getter]
    fn workspace_bytes(&self) -> u64 {
        self.plan.workspace_bytes()
    }

    /// `at`: q, k, v, o, lse, workspace, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, seqused_k; 0 is
    /// none.
    fn enqueue(&self, py: Python<'_>, at: [u64; ADDRESSES], stream: usize) -> PyResult<()> {
        let cuda = self.place.cuda()?;
        let addresses = addresses(at);
        py.detach(|| {
            // SAFETY: Python's half gives the stream of live tensors of this plan's device, types, shapes and
            // strides, whose allocator frees memory in the stream's order.
            unsafe { cuda.enqueue(&self.plan, &addresses, Stream::from_raw(stream as *mut _)) }
        })
        .map_err(raised)
    }

    /// `at`: q, k, v, o and lse in host memory; 0 is no lse.
    #[pyo3(signature = (at, cu_seqlens=None, seqused_k=None))]
    fn run(
        &self,
        py: Python<'_>,
        at: [usize; 5],
        cu_seqlens: Option<CuSeqlens>,
        seqused_k: Option<Vec<i32>>,
    ) -> PyResult<()> {
        let call = || {
            let mut plan = Cow::Borrowed(&self.plan);
            if let Some((q, k)) = cu_seqlens {
                plan = Cow::Owned(plan.with_cu_seqlens(&q, &k).map_err(raised)?);
            }
            if let Some(used) = seqused_k {
                plan = Cow::Owned(plan.with_seqused_k(&used).map_err(raised)?);
            }
            match plan.problem().dtype() {
                DType::F16 => self.run_as::<f16>(&plan, at),
                DType::Bf16 => self.run_as::<bf16>(&plan, at),
                _ => self.run_as::<f32>(&plan, at),
            }
        };
        py.detach(|| threads::run(call))
    }
}

impl Forward {
    fn run_as<T: Element<Output = T>>(&self, plan: &Plan, at: [usize; 5]) -> PyResult<()> {
        let (problem, [q, k, v, o, lse]) = (plan.problem(), at);
        let tensors = problem.tensors();
        // SAFETY: Python's half gives addresses of live arrays of this plan's type, shapes and strides; it
        // has just allocated O and lse, which nothing else knows of.
        let (inputs, o, lse) = unsafe {
            let inputs = (
                read::<T>("q", q, tensors.q.span())?,
                read::<T>("k", k, tensors.k.span())?,
                read::<T>("v", v, tensors.v.span())?,
            );
            let o = write::<T>("o", o, tensors.o.span())?;
            let lse = if lse == 0 { None } else { Some(write::<f32>("lse", lse, problem.lse_len())?) };
            (inputs, o, lse)
        };
        self.place.cpu()?.run(plan, inputs, Outputs { o, lse }).map_err(raised)
    }
}

/// Addresses on a GPU in the order of [`Forward::enqueue`].
pub(crate) fn addresses(at: [u64; ADDRESSES]) -> Addresses {
    let [q, k, v, o, lse, workspace, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k, seqused_k] = at;
    Addresses {
        q,
        k,
        v,
        o,
        lse: optional(lse),
        workspace,
        per_head: PerHead { alibi_slopes: optional(alibi_slopes), sinks: optional(sinks) },
        cu_seqlens: optional(cu_seqlens_q).zip(optional(cu_seqlens_k)),
        seqused_k: optional(seqused_k),
        ..Addresses::default()
    }
}
