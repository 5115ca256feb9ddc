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
        let cache = problem.cache_dtype();
        let keeps = dense.leaves_queries();
        let [k_descale, v_descale] = match problem.descales() {
            Some(descales) => [descales.k.place(place)?, descales.v.place(place)?],
            None => [None, None],
        };
        let q = place(Tensor::input("q", inputs.q, dense.tensors().q))?;
        let k = place(inputs.k.tensor("k", *problem.k(), cache)?)?;
        let v = if problem.is_latent() { k } else { place(inputs.v.tensor("v", *problem.v(), cache)?)? };
        Ok(DecodeAddresses {
            k_descale,
            v_descale,
            q,
            k,
            v,
            o: place(Tensor::written("o", &mut *outputs.o, dense.tensors().o, keeps))?,
            lse: lse.map(|lse| place(Tensor::written("lse", lse, contiguous, keeps))).transpose()?,
            cu_seqlens_q: dense
                .cu_seqlens()
                .map(|(offsets, _)| place(Tensor::list("cu_seqlens_q", offsets, offsets.len())))
                .transpose()?,
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

    fn is_aligned(plan: &DecodePlan, addresses: &DecodeAddresses) -> bool {
        let DecodeAddresses { q, k, v, .. } = addresses;
        let q = if plan.kernel() == DecodeKernel::ForwardSm90 { *q } else { 0 };
        [q, *k, *v].iter().all(|address| address.is_multiple_of(16))
    }

    fn needed<'a>(launches: &'a [Launch<Self>], addresses: &DecodeAddresses) -> &'a [Launch<Self>] {
        without_merging(launches, |details| details, addresses.seqused_k)
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
        let dense = problem.dense();
        let allocate = |len| plan.device().allocate("lse", len);
        let mut of_sequence = allocate(dense.heads() * dense.seqlen_q())?;
        let Outputs { o, lse } = outputs;
        match lse {
            Some(lse) => cpu::run(problem, &inputs, o, lse, &mut of_sequence),
            None => cpu::run(problem, &inputs, o, &mut allocate(dense.lse_len())?, &mut of_sequence),
        }
    }

    fn results<T: Element>(&self, device: &Device) -> Result<Results<T>> {
        Results::new(self.dense(), device)
    }

    fn outputs<T: Element>(results: &mut Results<T>) -> Outputs<'_, T> {
        results.outputs()
    }
}

/// The launches without that which merges splits, where blocks add up all of them.
pub(crate) fn without_merging<O: Operation>(
    launches: &[Launch<O>],
    details: impl Fn(O::Details) -> DecodeLaunchDetails,
    seqused_k: Option<u64>,
) -> &[Launch<O>] {
    match launches {
        [of_splits @ .., _] if seqused_k.is_none() && details(launches[0].details).enough_sequences > 0.0 => {
            of_splits
        }
        _ => launches,
    }
}

impl DecodePlan {
    /// The same launches with the offsets of packed queries, for a run on host tensors.
    ///
    /// # Errors
    /// When the problem is not of [`DecodeProblem::varlen_on_device`], and as [`DecodeProblem::varlen`] and
    /// for offsets beyond its bounds.
    pub fn with_cu_seqlens_q(&self, cu_seqlens_q: &[u32]) -> Result<Self> {
        Ok(self.with_problem(self.problem().with_cu_seqlens_q(cu_seqlens_q)?))
    }
}
