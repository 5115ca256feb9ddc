//! The backward pass.

use std::borrow::Cow;

use flash_attention::backward::{
    BackwardAddresses, BackwardInputs, BackwardOutputs, BackwardPlan, BackwardProblem, BackwardRequest,
    GradientLayouts,
};
use flash_attention::cuda::Stream;
use flash_attention::{DType, Element};
use half::{bf16, f16};
use pyo3::prelude::*;

use crate::error::raised;
use crate::forward::{ADDRESSES, CuSeqlens, Forward, addresses};
use crate::memory::{read, write};
use crate::place::Place;
use crate::settings::{View, layout, optional};
use crate::threads;

/// A planned backward pass.
#[pyclass(frozen, module = "flash_attention_rs._native")]
pub(crate) struct Backward {
    plan: BackwardPlan,
    /// How many there are.
    sinks: usize,
    place: Place,
}

#[pymethods]
impl Backward {
    /// `views`: those of dO, dQ, dK and dV; `workspace_limit`: bytes, the library's own where `None`.
    #[new]
    #[pyo3(signature = (forward, views, workspace_limit=None))]
    fn new(
        py: Python<'_>,
        forward: &Forward,
        views: [View; 4],
        workspace_limit: Option<u64>,
    ) -> PyResult<Self> {
        py.detach(|| {
            let [dout, dq, dk, dv] = views.map(layout);
            let layouts = GradientLayouts { dout, dq, dk, dv };
            let problem = BackwardProblem::new(forward.plan.problem().clone(), layouts).map_err(raised)?;
            let place = Place::open(forward.device)?;
            let request = BackwardRequest { workspace_limit, ..BackwardRequest::default() };
            let plan = place.plan(&problem, &request)?;
            Ok(Self { plan, sinks: forward.sinks, place })
        })
    }

    #[getter]
    fn workspace_bytes(&self) -> u64 {
        self.plan.workspace_bytes()
    }

    /// `at`: as the forward pass's; `gradients`: dout, dq, dk, dv, dlse, dsinks; 0 is none.
    fn enqueue(
        &self,
        py: Python<'_>,
        at: [u64; ADDRESSES],
        gradients: [u64; 6],
        stream: usize,
    ) -> PyResult<()> {
        let cuda = self.place.cuda()?;
        let [dout, dq, dk, dv, dlse, dsinks] = gradients;
        let (dlse, dsinks) = (optional(dlse), optional(dsinks));
        let addresses =
            BackwardAddresses { forward: addresses(at), dout, dq, dk, dv, dlse, dsinks, delta: None };
        py.detach(|| {
            // SAFETY: as in `Forward::enqueue`.
            unsafe { cuda.enqueue(&self.plan, &addresses, Stream::from_raw(stream as *mut _)) }
        })
        .map_err(raised)
    }

    /// `at`: q, k, v, o, lse in host memory; `gradients`: dout, dq, dk, dv, dlse, dsinks; 0 is none of the
    /// last two.
    #[pyo3(signature = (at, gradients, cu_seqlens=None, seqused_k=None))]
    fn run(
        &self,
        py: Python<'_>,
        at: [usize; 5],
        gradients: [usize; 6],
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
            match plan.problem().forward().dtype() {
                DType::F16 => self.run_as::<f16>(&plan, at, gradients),
                DType::Bf16 => self.run_as::<bf16>(&plan, at, gradients),
                _ => self.run_as::<f32>(&plan, at, gradients),
            }
        };
        py.detach(|| threads::run(call))
    }
}

impl Backward {
    fn run_as<T: Element>(&self, plan: &BackwardPlan, at: [usize; 5], gradients: [usize; 6]) -> PyResult<()> {
        let (problem, layouts) = (plan.problem().forward(), plan.problem().layouts());
        let (tensors, lse_len) = (problem.tensors(), problem.lse_len());
        let ([q, k, v, o, lse], [dout, dq, dk, dv, dlse, dsinks]) = (at, gradients);
        // SAFETY: as in `Forward::run_as`; what Python's half has just allocated are dQ, dK, dV and
        // the gradient of sinks, as long as these.
        let (inputs, outputs) = unsafe {
            let inputs = BackwardInputs {
                q: read::<T>("q", q, tensors.q.span())?,
                k: read::<T>("k", k, tensors.k.span())?,
                v: read::<T>("v", v, tensors.v.span())?,
                o: read::<T>("o", o, tensors.o.span())?,
                lse: read::<f32>("lse", lse, lse_len)?,
                dout: read::<T>("dout", dout, layouts.dout.span())?,
                dlse: if dlse == 0 { None } else { Some(read::<f32>("dlse", dlse, lse_len)?) },
                delta: None,
            };
            let outputs = BackwardOutputs {
                dq: write::<T>("dq", dq, layouts.dq.span())?,
                dk: write::<T>("dk", dk, layouts.dk.span())?,
                dv: write::<T>("dv", dv, layouts.dv.span())?,
                dsinks: if dsinks == 0 { None } else { Some(write::<f32>("dsinks", dsinks, self.sinks)?) },
                delta: None,
            };
            (inputs, outputs)
        };
        self.place.cpu()?.run(plan, inputs, outputs).map_err(raised)
    }
}
