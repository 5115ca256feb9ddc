//! Matrix multiplication as an [`Operation`].

use fa_kernels::entries::{GemmAlgorithm, GemmEntry, GemmTile, Params};
use fa_kernels::ptx::tma;

use super::{GemmAddresses, GemmKernel, GemmPlan, GemmProblem, GemmRequest, params, plan};
use crate::operation::{Choice, Launch, Operation, Tensor, sealed};
use crate::tensor_map::TensorMap;
use crate::{DType, Device, Element, Result};

impl sealed::Sealed for GemmProblem {}

impl Operation for GemmProblem {
    type Request = GemmRequest;
    type Kernel = GemmKernel;
    type Algorithm = GemmAlgorithm;
    type Tile = GemmTile;
    type Details = ();
    type Addresses = GemmAddresses;
    /// A and B.
    type Inputs<'a, T: Element> = (&'a [T], &'a [T]);
    /// C; elements outside of the matrix keep their values.
    type Outputs<'a, T: Element> = &'a mut [T];
    type Results<T: Element> = Vec<T>;

    fn dtype(&self) -> DType {
        self.dtype()
    }

    fn choose(&self, device: &Device, request: &GemmRequest) -> Result<Choice<Self>> {
        plan::plan(self, device, request)
    }

    fn choose_entry(&self, device: &Device, entry: &'static GemmEntry) -> Result<Choice<Self>> {
        plan::plan_entry(self, device, entry)
    }

    fn tensors<'t, 'i: 't, T: Element>(
        plan: &'t GemmPlan,
        (a, b): (&'i [T], &'i [T]),
        c: &'t mut &mut [T],
        place: &mut dyn FnMut(Tensor<'t>) -> Result<u64>,
    ) -> Result<GemmAddresses> {
        let matrices = plan.problem().matrices();
        Ok(GemmAddresses {
            a: place(Tensor::input("a", a, matrices.a.lines()))?,
            b: place(Tensor::input("b", b, matrices.b.lines()))?,
            c: place(Tensor::output("c", c, matrices.c.lines()))?,
        })
    }

    fn is_aligned(_: &GemmPlan, addresses: &GemmAddresses) -> bool {
        (addresses.a | addresses.b).is_multiple_of(16)
    }

    fn params(
        plan: &GemmPlan,
        launch: &Launch<Self>,
        addresses: &GemmAddresses,
        encode: impl Fn(&TensorMap) -> Result<tma::TensorMap>,
    ) -> Result<Params> {
        params(plan.problem(), launch.entry, addresses, encode)
    }

    #[cfg(feature = "cpu")]
    fn run_on_cpu<T: Element>(plan: &GemmPlan, inputs: (&[T], &[T]), c: &mut &mut [T]) -> Result<u64> {
        super::cpu::run(plan.problem(), plan.device(), inputs, c)
    }

    fn results<T: Element>(&self, device: &Device) -> Result<Vec<T>> {
        device.allocate("c", self.matrices().c.span())
    }

    fn outputs<T: Element>(results: &mut Vec<T>) -> &mut [T] {
        results
    }
}
