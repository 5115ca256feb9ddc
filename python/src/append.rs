//! New keys and values into a K/V cache.

use flash_attention::append::{
    AppendAddresses, AppendOptions, AppendPlan, AppendProblem, AppendTensors, Rotary, RotaryQueries,
};
use flash_attention::cuda::Stream;
use pyo3::prelude::*;

use crate::error::raised;
use crate::place::Place;
use crate::settings::{View, dtype, layout, optional};

/// A planned launch that appends.
#[pyclass(frozen, module = "flash_attention_rs._native")]
pub(crate) struct Append {
    plan: AppendPlan,
    place: Place,
}

#[pymethods]
impl Append {
    /// `views`: k, v, `k_cache`, `v_cache`; `rotary`: columns, rows, and whether pairs are neighbours;
    /// `queries`: q, `q_out`, and whether they are in order.
    #[new]
    #[pyo3(signature = (device, dtype_name, views, max_pages=None, rotary=None, queries=None))]
    fn new(
        py: Python<'_>,
        device: usize,
        dtype_name: &str,
        views: [View; 4],
        max_pages: Option<usize>,
        rotary: Option<(usize, usize, bool)>,
        queries: Option<(View, View, bool)>,
    ) -> PyResult<Self> {
        let dtype = dtype(dtype_name)?;
        let [k, v, k_cache, v_cache] = views.map(layout);
        let queries = queries.map(|(q, q_out, in_order)| RotaryQueries {
            q: layout(q),
            q_out: layout(q_out),
            in_order,
        });
        let rotary = rotary.map(|(dim, rows, interleaved)| Rotary { dim, rows, interleaved, queries });
        py.detach(|| {
            let tensors = AppendTensors { k, v, k_cache, v_cache };
            let options = AppendOptions { max_pages, rotary };
            let problem = AppendProblem::new(tensors, dtype, options).map_err(raised)?;
            let place = Place::open(Some(device))?;
            Ok(Self { plan: place.plan(&problem, &())?, place })
        })
    }

    /// `at`: k, v, `k_cache`, `v_cache`, `seqused_k`, `page_table`, `rotary_cos`, `rotary_sin`, q, `q_out`;
    /// 0 is none of those behind the lengths.
    fn enqueue(&self, py: Python<'_>, at: [u64; 10], stream: usize) -> PyResult<()> {
        let cuda = self.place.cuda()?;
        let [k, v, k_cache, v_cache, seqused_k, page_table, cos, sin, q, q_out] = at;
        let addresses = AppendAddresses {
            k,
            v,
            k_cache,
            v_cache,
            seqused_k,
            page_table: optional(page_table),
            cos_sin: optional(cos).zip(optional(sin)),
            q: optional(q).zip(optional(q_out)),
        };
        py.detach(|| {
            // SAFETY: as in `Forward::enqueue`; Python's half allocates `q_out`.
            unsafe { cuda.enqueue(&self.plan, &addresses, Stream::from_raw(stream as *mut _)) }
        })
        .map_err(raised)
    }
}
