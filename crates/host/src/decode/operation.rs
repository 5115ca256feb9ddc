//! Decode as an [`Operation`].

use fa_kernels::entries::{Algorithm, Entry, Params, Tile};
use fa_kernels::ptx::tma;

use super::plan::{DecodeLaunchDetails, plan, plan_entry};
use super::{DecodeAddresses, DecodeInputs, DecodeKernel, DecodePlan, DecodeProblem, DecodeRequest, params};
use crate::forward::{Outputs, Results};
use crate::operation::{Choice, Launch, Operation, Tensor, sealed};
use crate::tensor_map::TensorMap;
use crate::{DType, Device, Element, Result, TensorLayout};

impl sealed::Sealed for DecodeProblem {}

impl Operation for DecodeProblem {
    type Request = DecodeRequest;
    type Kernel = DecodeKernel;
    type Algorithm = Algorithm;
    type Tile = Tile;
    type Details = DecodeLaunchDetails;
    type Addresses = DecodeAddresses;
    type Inputs<'a, T: Element> = DecodeInputs<'a, T>;
    type Outputs<'a, T: Element> = Outputs<'a, T>;
    type Results<T: Element> = Results<T>;

    fn dtype(&self) -> DType {
        self.dense().dtype()
    }

    fn choose(&self, device: &Device, request: &DecodeRequest) -> Result<Choice<Self>> {
        plan(self, device, request)
    }

    fn choose_entry(&self, device: &Device, entry: &'static Entry) -> Result<Choice<Self>> {
        plan_entry(self, device, entry)
    }

    fn tensors<'t, 'i: 't, T: Element>(
        plan: &'t DecodePlan,
        inputs: DecodeInputs<'i, T>,
        outputs: &'t mut Outputs<'_, T>,
        place: &mut dyn FnMut(Tensor<'t>) -> Result<u64>,
    ) -> Result<DecodeAddresses> {
        let problem = plan.problem();
        let (dense, batch) = (problem.dense(), problem.dense().batch());
        let entries = batch * problem.max_pages().unwrap_or(0);
        let lse = outputs.lse.as_deref_mut();
        let contiguous = TensorLayout::bshd(1, 1, 1, dense.lse_len());
        Ok(DecodeAddresses {
            q: place(Tensor::input("q", inputs.q, dense.tensors().q))?,
            k: place(Tensor::input("k", inputs.k, *problem.k()))?,
            v: place(Tensor::input("v", inputs.v, *problem.v()))?,
            o: place(Tensor::output("o", &mut *outputs.o, dense.tensors().o))?,
            lse: lse.map(|lse| place(Tensor::output("lse", lse, contiguous))).transpose()?,
            seqused_k: inputs
                .seqused_k
                .map(|used| place(Tensor::list("seqused_k", used, batch)))
                .transpose()?,
            page_table: inputs
                .page_table
                .map(|table| place(Tensor::list("page_table", table, entries)))
                .transpose()?,
            tree_mask: inputs
                .tree_mask
                .map(|mask| place(Tensor::list("tree_mask", mask, batch * dense.seqlen_q())))
                .transpose()?,
            workspace: place(Tensor::workspace("the splits' results", plan.workspace_bytes()))?,
            per_head: dense.scores().place(place)?,
        })
    }

    fn params(
        plan: &DecodePlan,
        launch: &Launch<Self>,
        addresses: &DecodeAddresses,
        encode: impl Fn(&TensorMap) -> Result<tma::TensorMap>,
    ) -> Result<Params> {
        params(plan.problem(), launch, addresses, encode)
    }

    fn is_aligned(_: &DecodePlan, addresses: &DecodeAddresses) -> bool {
        addresses.k.is_multiple_of(16) && addresses.v.is_multiple_of(16)
    }

    fn check_inputs<T: Element>(&self, inputs: DecodeInputs<'_, T>) -> Result<()> {
        self.check_lists(&inputs)
    }

    #[cfg(feature = "cpu")]
    fn run_on_cpu<T: Element>(
        plan: &DecodePlan,
        inputs: DecodeInputs<'_, T>,
        outputs: &mut Outputs<'_, T>,
    ) -> Result<u64> {
        use super::cpu;
        let problem = plan.problem();
        let Outputs { o, lse } = outputs;
        match lse {
            Some(lse) => cpu::run(problem, &inputs, o, lse),
            None => {
                let mut lse = plan.device().allocate("lse", problem.dense().lse_len())?;
                cpu::run(problem, &inputs, o, &mut lse)
            }
        }
    }

    fn results<T: Element>(&self, device: &Device) -> Result<Results<T>> {
        Results::new(self.dense(), device)
    }

    fn outputs<T: Element>(results: &mut Results<T>) -> Outputs<'_, T> {
        results.outputs()
    }
}
