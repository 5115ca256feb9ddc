//! A merge as an [`Operation`].

use fa_kernels::entries::{Algorithm, Entry, Params, Tile};
use fa_kernels::ptx::tma;

use super::launch::params;
use super::plan::{plan, plan_entry};
use super::{MergeAddresses, MergeKernel, MergePart, MergePlan, MergeProblem};
use crate::forward::{Outputs, Results};
use crate::operation::{Choice, Launch, Operation, Tensor, sealed};
use crate::tensor_map::TensorMap;
use crate::{DType, Device, Element, Error, Result, TensorLayout};

impl sealed::Sealed for MergeProblem {}

impl Operation for MergeProblem {
    type Request = ();
    type Kernel = MergeKernel;
    type Algorithm = Algorithm;
    type Tile = Tile;
    type Details = ();
    type Addresses = MergeAddresses;
    /// The parts, in the problem's order.
    type Inputs<'a, T: Element> = &'a [MergePart<'a, T>];
    type Outputs<'a, T: Element> = Outputs<'a, T>;
    type Results<T: Element> = Results<T>;

    fn dtype(&self) -> DType {
        self.storage()
    }

    fn choose(&self, device: &Device, (): &()) -> Result<Choice<Self>> {
        plan(self, device)
    }

    fn choose_entry(&self, device: &Device, entry: &'static Entry) -> Result<Choice<Self>> {
        plan_entry(self, device, entry)
    }

    fn tensors<'t, 'i: 't, T: Element>(
        plan: &'t MergePlan,
        inputs: &'i [MergePart<'i, T>],
        outputs: &'t mut Outputs<'_, T>,
        place: &mut dyn FnMut(Tensor<'t>) -> Result<u64>,
    ) -> Result<MergeAddresses> {
        let problem = plan.problem();
        let (value, expected) = (inputs.len(), problem.parts().len());
        if value != expected {
            let (tensor, axis, other) = ("parts", "their number", "the problem");
            return Err(Error::ShapeMismatch { tensor, axis, value, other, expected });
        }
        let mut addresses = MergeAddresses::default();
        for ((at, layout), part) in addresses.parts.iter_mut().zip(problem.parts()).zip(inputs) {
            at.o = place(Tensor::input("a part's o", part.o, layout.o))?;
            at.lse = place(Tensor::input("a part's lse", part.lse, layout.lse))?;
        }
        addresses.o = place(Tensor::output("o", &mut *outputs.o, *problem.o()))?;
        let contiguous = TensorLayout::bshd(1, 1, 1, problem.lse_len());
        let lse = outputs.lse.as_deref_mut();
        addresses.lse = lse.map(|lse| place(Tensor::output("lse", lse, contiguous))).transpose()?;
        Ok(addresses)
    }

    fn params(
        plan: &MergePlan,
        _: &Launch<Self>,
        addresses: &MergeAddresses,
        _: impl Fn(&TensorMap) -> Result<tma::TensorMap>,
    ) -> Result<Params> {
        Ok(Params::Merge(params(plan.problem(), addresses)))
    }

    #[cfg(feature = "cpu")]
    fn run_on_cpu<T: Element>(
        plan: &MergePlan,
        inputs: &[MergePart<'_, T>],
        outputs: &mut Outputs<'_, T>,
    ) -> Result<u64> {
        super::cpu::run(plan.problem(), inputs, outputs);
        Ok(0)
    }

    fn results<T: Element>(&self, device: &Device) -> Result<Results<T>> {
        let o = device.allocate("o", self.o().span())?;
        Ok(Results { o, lse: device.allocate("lse", self.lse_len())? })
    }

    fn outputs<T: Element>(results: &mut Results<T>) -> Outputs<'_, T> {
        results.outputs()
    }
}
