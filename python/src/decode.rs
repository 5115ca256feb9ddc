//! Few queries against a K/V cache.

use flash_attention::cuda::Stream;
use flash_attention::decode::{
    CacheData, DecodeAddresses, DecodeInputs, DecodeOptions, DecodePlan, DecodeProblem, DecodeRequest,
    E4m3Cache,
};
use flash_attention::forward::{Factor, Outputs, PerHead};
use flash_attention::{DType, Element};
use float8::F8E4M3;
use half::{bf16, f16};
use pyo3::prelude::*;

use crate::error::raised;
use crate::memory::{read, write};
use crate::place::Place;
use crate::settings::{Settings, View, dtype, optional, tensors};
use crate::threads;

/// Factors of K or V in e4m3.
#[derive(FromPyObject)]
enum Factors {
    /// How many the device has.
    OnDevice(usize),
    /// One of all heads.
    Tensor(f32),
    /// `[Hkv]` or `[B, Hkv]`.
    Heads(Vec<f32>),
}

impl From<Factors> for Factor {
    fn from(factors: Factors) -> Self {
        match factors {
            Factors::OnDevice(len) => Self::OnDevice(len),
            Factors::Tensor(value) => Self::Tensor(value),
            Factors::Heads(values) => Self::Heads(values),
        }
    }
}

/// A planned decode step.
#[pyclass(frozen, module = "flash_attention_rs._native")]
pub(crate) struct Decode {
    plan: DecodePlan,
    place: Place,
}

#[pymethods]
impl Decode {
    #[new]
    #[pyo3(signature = (
        device, dtype_name, views, settings, max_pages=None, num_splits=None, descales=None, packed=None,
        latent=false
    ))]
    #[allow(clippy::too_many_arguments, reason = "the arguments of a Python class")]
    fn new(
        py: Python<'_>,
        device: Option<usize>,
        dtype_name: &str,
        views: [View; 4],
        settings: Settings,
        max_pages: Option<usize>,
        num_splits: Option<usize>,
        descales: Option<(Factors, Factors)>,
        packed: Option<(usize, usize)>,
        latent: bool,
    ) -> PyResult<Self> {
        let dtype = dtype(dtype_name)?;
        let e4m3_cache = descales.map(|(k, v)| E4m3Cache { k_descale: k.into(), v_descale: v.into() });
        py.detach(|| {
            let batch_invariant =
                (num_splits.is_none() && settings.request().batch_invariant).then_some(true);
            let options = DecodeOptions {
                attention: settings.options(),
                max_pages,
                e4m3_cache,
                latent,
                ..DecodeOptions::default()
            };
            let problem = match packed {
                None => DecodeProblem::new(tensors(views), dtype, options),
                Some((batch, max_seqlen_q)) => {
                    DecodeProblem::varlen_on_device(tensors(views), dtype, options, batch, max_seqlen_q)
                }
            };
            let problem = problem.map_err(raised)?;
            let place = Place::open(device)?;
            let request = DecodeRequest { num_splits, batch_invariant, ..DecodeRequest::default() };
            Ok(Self { plan: place.plan(&problem, &request)?, place })
        })
    }

    #[getter]
    fn workspace_bytes(&self) -> u64 {
        self.plan.workspace_bytes()
    }

    /// `at`: q, k, v, o, lse, workspace, seqused_k, page_table, alibi_slopes, sinks, k_descale, v_descale,
    /// cu_seqlens_q; 0 is none.
    fn enqueue(&self, py: Python<'_>, at: [u64; 13], stream: usize) -> PyResult<()> {
        let cuda = self.place.cuda()?;
        let [q, k, v, o, lse, workspace, seqused_k, page_table, lists @ ..] = at;
        let [alibi_slopes, sinks, k_descale, v_descale, cu_seqlens_q] = lists;
        let addresses = DecodeAddresses {
            q,
            k,
            v,
            o,
            lse: optional(lse),
            cu_seqlens_q: optional(cu_seqlens_q),
            seqused_k: optional(seqused_k),
            page_table: optional(page_table),
            k_descale: optional(k_descale),
            v_descale: optional(v_descale),
            tree_mask: None,
            workspace,
            per_head: PerHead { alibi_slopes: optional(alibi_slopes), sinks: optional(sinks) },
        };
        py.detach(|| {
            // SAFETY: as in `Forward::enqueue`; the page table is the caller's, who has promised that it
            // names pages of the cache.
            unsafe { cuda.enqueue(&self.plan, &addresses, Stream::from_raw(stream as *mut _)) }
        })
        .map_err(raised)
    }

    /// `at`: q, k, v, o, lse, seqused_k, page_table in host memory; 0 is none of the last three.
    fn run(&self, py: Python<'_>, at: [usize; 7]) -> PyResult<()> {
        let call = || match self.plan.problem().dense().dtype() {
            DType::F16 => self.run_as::<f16>(at),
            DType::Bf16 => self.run_as::<bf16>(at),
            _ => self.run_as::<f32>(at),
        };
        py.detach(|| threads::run(call))
    }
}

impl Decode {
    fn run_as<T: Element<Output = T>>(&self, at: [usize; 7]) -> PyResult<()> {
        let (problem, [q, k, v, o, lse, seqused_k, page_table]) = (self.plan.problem(), at);
        let dense = problem.dense();
        let batch = dense.batch();
        let entries = batch * problem.max_pages().unwrap_or(0);
        // SAFETY: as in `Forward::run_as`; the lists are contiguous int32 arrays of these lengths.
        let (inputs, outputs) = unsafe {
            let list = |tensor, address, len| match address {
                0 => Ok(None),
                _ => read::<i32>(tensor, address, len).map(Some),
            };
            let cache = |tensor, address, len| match problem.cache_dtype() {
                DType::E4m3 => read::<F8E4M3>(tensor, address, len).map(CacheData::E4m3),
                _ => read::<T>(tensor, address, len).map(CacheData::Same),
            };
            let inputs = DecodeInputs {
                q: read::<T>("q", q, dense.tensors().q.span())?,
                k: cache("k", k, problem.k().span())?,
                v: cache("v", v, problem.v().span())?,
                seqused_k: list("seqused_k", seqused_k, batch)?,
                page_table: list("page_table", page_table, entries)?,
                tree_mask: None,
            };
            let lse = if lse == 0 { None } else { Some(write::<f32>("lse", lse, dense.lse_len())?) };
            (inputs, Outputs { o: write::<T>("o", o, dense.tensors().o.span())?, lse })
        };
        self.place.cpu()?.run(&self.plan, inputs, outputs).map_err(raised)
    }
}
