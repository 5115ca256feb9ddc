//! The backward pass as an [`Operation`].

use fa_kernels::entries::{Algorithm, Entry, Params, Tile};
use fa_kernels::ptx::tma;

use super::launch::LaunchDetails;
use super::{
    BackwardAddresses, BackwardInputs, BackwardKernel, BackwardOutputs, BackwardPart, BackwardPlan,
    BackwardProblem, BackwardRequest, BackwardResults, params, plan,
};
use crate::forward::Addresses;
use crate::launch::{check_workspace, place_cu_seqlens, place_seqused_k};
use crate::operation::{Choice, Launch, Operation, Tensor, sealed};
use crate::tensor_map::TensorMap;
use crate::{DType, Device, Element, Error, Result, TensorLayout};

impl sealed::Sealed for BackwardProblem {}

impl Operation for BackwardProblem {
    type Request = BackwardRequest;
    type Kernel = BackwardKernel;
    type Algorithm = Algorithm;
    type Tile = Tile;
    type Details = LaunchDetails;
    type Addresses = BackwardAddresses;
    type Inputs<'a, T: Element> = BackwardInputs<'a, T>;
    type Outputs<'a, T: Element> = BackwardOutputs<'a, T>;
    type Results<T: Element> = BackwardResults<T>;

    fn dtype(&self) -> DType {
        self.forward().dtype()
    }

    fn choose(&self, device: &Device, request: &BackwardRequest) -> Result<Choice<Self>> {
        plan::plan(self, device, request)
    }

    fn choose_entry(&self, device: &Device, entry: &'static Entry) -> Result<Choice<Self>> {
        plan::plan_entry(self, device, entry)
    }

    fn tensors<'t, 'i: 't, T: Element>(
        plan: &'t BackwardPlan,
        inputs: BackwardInputs<'i, T>,
        outputs: &'t mut BackwardOutputs<'_, T>,
        place: &mut dyn FnMut(Tensor<'t>) -> Result<u64>,
    ) -> Result<BackwardAddresses> {
        let (problem, forward) = (plan.problem(), plan.problem().forward());
        let (tensors, gradients) = (forward.tensors(), problem.layouts());
        let (keeps_queries, keeps_keys) = (forward.leaves_queries(), forward.leaves_keys());
        let part = problem.computes();
        let (reads_products, reads_rows) = (part != BackwardPart::Delta, part.reads_o());
        let (has_queries, has_keys) = (part.has_queries(), part.has_keys());
        // What a part neither reads nor writes has no place.
        let mut place_if =
            |is_needed: bool, tensor: Tensor<'t>| if is_needed { place(tensor) } else { Ok(0) };
        let q = place_if(reads_products, Tensor::input("q", inputs.q, tensors.q))?;
        let k = place_if(reads_products, Tensor::input("k", inputs.k, tensors.k))?;
        let v = place_if(reads_products, Tensor::input("v", inputs.v, tensors.v))?;
        let o = place_if(reads_rows, Tensor::input("o", inputs.o, tensors.o))?;
        let lse = place_if(reads_products, Tensor::list("lse", inputs.lse, forward.lse_len()))?;
        let dq = Tensor::written("dq", &mut *outputs.dq, gradients.dq, keeps_queries);
        let dk = Tensor::written("dk", &mut *outputs.dk, gradients.dk, keeps_keys);
        let dv = Tensor::written("dv", &mut *outputs.dv, gradients.dv, keeps_keys);
        let [dq, dk, dv] = [(has_queries, dq), (has_keys, dk), (has_keys, dv)]
            .map(|(is_needed, tensor)| place_if(is_needed, tensor));
        Ok(BackwardAddresses {
            forward: Addresses {
                q,
                k,
                v,
                o,
                lse: Some(lse),
                workspace: place(Tensor::workspace("workspace", plan.workspace_bytes()))?,
                per_head: forward.scores().place(place)?,
                descale: [None; 3],            // There is no backward pass in e4m3.
                functions: Default::default(), // Nor with functions of scores.
                cu_seqlens: place_cu_seqlens(forward, place)?,
                seqused_k: place_seqused_k(forward, place)?,
            },
            dout: place(Tensor::input("dout", inputs.dout, gradients.dout))?,
            dq: dq?,
            dk: dk?,
            dv: dv?,
            dlse: inputs
                .dlse
                .filter(|_| reads_rows)
                .map(|dlse| place(Tensor::list("dlse", dlse, forward.lse_len())))
                .transpose()?,
            dsinks: outputs
                .dsinks
                .as_deref_mut()
                .map(|dsinks| {
                    let contiguous = TensorLayout::bshd(1, 1, 1, problem.sinks()?);
                    place(Tensor::output("dsinks", dsinks, contiguous))
                })
                .transpose()?,
            delta: match (part, inputs.delta, outputs.delta.as_deref_mut()) {
                (BackwardPart::All, ..) => None,
                (BackwardPart::Delta, _, Some(delta)) => {
                    Some(place(Tensor::output("delta", delta, forward.lse_layout()))?)
                }
                (BackwardPart::Queries | BackwardPart::Keys, Some(delta), _) => {
                    Some(place(Tensor::list("delta", delta, forward.lse_len()))?)
                }
                _ => return Err(Error::MissingAddress { tensor: "delta" }),
            },
        })
    }

    fn is_aligned(plan: &BackwardPlan, addresses: &BackwardAddresses) -> bool {
        plan.launches().iter().all(|launch| addresses.are_mapped(&launch.details.copies))
    }

    fn params(
        plan: &BackwardPlan,
        launch: &Launch<Self>,
        addresses: &BackwardAddresses,
        encode: impl Fn(&TensorMap) -> Result<tma::TensorMap>,
    ) -> Result<Params> {
        check_workspace(addresses.forward.workspace, plan.workspace_bytes())?;
        params(plan.problem(), (launch.entry, launch.details), addresses, encode)
    }

    #[cfg(feature = "cpu")]
    fn run_on_cpu<T: Element>(
        plan: &BackwardPlan,
        inputs: BackwardInputs<'_, T>,
        outputs: &mut BackwardOutputs<'_, T>,
    ) -> Result<u64> {
        Ok(crate::cpu::backward(plan.problem(), &inputs, outputs)?.extra_bytes as u64)
    }

    fn results<T: Element>(&self, device: &Device) -> Result<BackwardResults<T>> {
        let layouts = self.layouts();
        Ok(BackwardResults {
            dq: device.allocate("dq", layouts.dq.span())?,
            dk: device.allocate("dk", layouts.dk.span())?,
            dv: device.allocate("dv", layouts.dv.span())?,
            dsinks: self.sinks().ok().map(|len| device.allocate("dsinks", len)).transpose()?,
        })
    }

    fn outputs<T: Element>(results: &mut BackwardResults<T>) -> BackwardOutputs<'_, T> {
        let BackwardResults { dq, dk, dv, dsinks } = results;
        BackwardOutputs { dq, dk, dv, dsinks: dsinks.as_deref_mut(), delta: None }
    }
}

impl BackwardPlan {
    /// The same launches with the offsets of a packed batch, for a run on host tensors.
    ///
    /// # Errors
    /// When the problem is not of [`Problem::varlen_on_device`](crate::Problem::varlen_on_device), and as
    /// [`Problem::varlen`](crate::Problem::varlen) and for offsets beyond its bounds.
    pub fn with_cu_seqlens(&self, cu_seqlens_q: &[u32], cu_seqlens_k: &[u32]) -> Result<Self> {
        Ok(self.with_problem(self.problem().with_cu_seqlens(cu_seqlens_q, cu_seqlens_k)?))
    }

    /// The same launches with the keys that each sequence uses, int32 `[B]`, for a run on host tensors; of a
    /// packed batch behind [`Self::with_cu_seqlens`].
    ///
    /// # Errors
    /// When the problem's sequences use all keys, and as
    /// [`Problem::with_seqused_k`](crate::Problem::with_seqused_k).
    pub fn with_seqused_k(&self, seqused_k: &[i32]) -> Result<Self> {
        Ok(self.with_problem(self.problem().with_seqused_k(seqused_k)?))
    }
}
