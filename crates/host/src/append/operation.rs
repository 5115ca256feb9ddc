//! Appending as an [`Operation`].

use fa_kernels::entries::{Algorithm, Entry, Params, Tile};
use fa_kernels::ptx::tma;

use super::launch::params;
use super::plan::{plan, plan_entry};
use super::{AppendAddresses, AppendInputs, AppendKernel, AppendPlan, AppendProblem};
use crate::operation::{Choice, Launch, Operation, Tensor, sealed};
use crate::tensor_map::TensorMap;
use crate::{DType, Device, Element, Result};

/// Host tensors that are written: rows of the caches that nothing is appended to keep their values.
#[derive(Debug)]
pub struct AppendOutputs<'a, T> {
    /// The cache of keys.
    pub k_cache: &'a mut [T],
    /// The cache of values.
    pub v_cache: &'a mut [T],
    /// Queries that are turned; empty where there are none.
    pub q: &'a mut [T],
}

/// Buffers of the outputs' spans. A cache begins as zeros.
#[derive(Clone, Debug, PartialEq)]
pub struct AppendResults<T> {
    /// The cache of keys.
    pub k_cache: Vec<T>,
    /// The cache of values.
    pub v_cache: Vec<T>,
    /// Queries that are turned; empty where there are none.
    pub q: Vec<T>,
}

impl sealed::Sealed for AppendProblem {}

impl Operation for AppendProblem {
    type Request = ();
    type Kernel = AppendKernel;
    type Algorithm = Algorithm;
    type Tile = Tile;
    type Details = ();
    type Addresses = AppendAddresses;
    type Inputs<'a, T: Element> = AppendInputs<'a, T>;
    type Outputs<'a, T: Element> = AppendOutputs<'a, T>;
    type Results<T: Element> = AppendResults<T>;

    fn dtype(&self) -> DType {
        self.dtype()
    }

    fn choose(&self, device: &Device, (): &()) -> Result<Choice<Self>> {
        plan(self, device)
    }

    fn choose_entry(&self, device: &Device, entry: &'static Entry) -> Result<Choice<Self>> {
        plan_entry(self, device, entry)
    }

    fn tensors<'t, 'i: 't, T: Element>(
        plan: &'t AppendPlan,
        inputs: AppendInputs<'i, T>,
        outputs: &'t mut AppendOutputs<'_, T>,
        place: &mut dyn FnMut(Tensor<'t>) -> Result<u64>,
    ) -> Result<AppendAddresses> {
        let (problem, tensors) = (plan.problem(), plan.problem().tensors());
        let AppendOutputs { k_cache, v_cache, q: q_out } = outputs;
        let entries = tensors.k.batch * problem.options().max_pages.unwrap_or(0);
        let mut list = |name, values| place(Tensor::list(name, values, entries));
        let page_table = inputs.page_table.map(|table| list("page_table", table)).transpose()?;
        let mut table = |name, values, layout| place(Tensor::input(name, values, layout));
        let cos_sin = match problem.table() {
            Some(layout) => {
                Some((table("rotary_cos", inputs.cos, layout)?, table("rotary_sin", inputs.sin, layout)?))
            }
            None => None,
        };
        let q = match problem.queries() {
            Some(queries) => Some((
                place(Tensor::input("q", inputs.q, queries.q))?,
                place(Tensor::output("q_out", q_out, queries.q_out))?,
            )),
            None => None,
        };
        Ok(AppendAddresses {
            k: place(Tensor::input("k", inputs.k, tensors.k))?,
            v: place(Tensor::input("v", inputs.v, tensors.v))?,
            k_cache: place(Tensor::updated("k_cache", k_cache, tensors.k_cache))?,
            v_cache: place(Tensor::updated("v_cache", v_cache, tensors.v_cache))?,
            seqused_k: place(Tensor::list("seqused_k", inputs.seqused_k, tensors.k.batch))?,
            page_table,
            cos_sin,
            q,
        })
    }

    fn params(
        plan: &AppendPlan,
        _: &Launch<Self>,
        addresses: &AppendAddresses,
        _: impl Fn(&TensorMap) -> Result<tma::TensorMap>,
    ) -> Result<Params> {
        params(plan.problem(), addresses)
    }

    fn check_inputs<T: Element>(&self, inputs: AppendInputs<'_, T>) -> Result<()> {
        self.check_lists(&inputs)
    }

    #[cfg(feature = "cpu")]
    fn run_on_cpu<T: Element>(
        plan: &AppendPlan,
        inputs: AppendInputs<'_, T>,
        outputs: &mut AppendOutputs<'_, T>,
    ) -> Result<u64> {
        super::cpu::run(plan.problem(), &inputs, outputs);
        Ok(0)
    }

    fn results<T: Element>(&self, device: &Device) -> Result<AppendResults<T>> {
        let tensors = self.tensors();
        Ok(AppendResults {
            k_cache: device.allocate("k_cache", tensors.k_cache.span())?,
            v_cache: device.allocate("v_cache", tensors.v_cache.span())?,
            q: device.allocate("q_out", self.queries().map_or(0, |queries| queries.q_out.span()))?,
        })
    }

    fn outputs<T: Element>(results: &mut AppendResults<T>) -> AppendOutputs<'_, T> {
        let AppendResults { k_cache, v_cache, q } = results;
        AppendOutputs { k_cache, v_cache, q }
    }
}
