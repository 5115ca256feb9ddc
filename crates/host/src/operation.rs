//! What every operation is, whatever it computes: a validated problem that can be planned, a table of its
//! tensors, and the parameters of each launch. Plans, backends and buffers are written once, over this.

mod plan;
mod tensor;

use std::fmt;

use fa_kernels::entries::{Entry, Params};
use fa_kernels::ptx::tma;

use crate::tensor_map::TensorMap;
use crate::{DType, Device, Element, Result};
pub(crate) use plan::Choice;
pub use plan::{Launch, Plan};
#[cfg(feature = "cuda")]
pub(crate) use tensor::copy_rows;
pub use tensor::{Data, Tensor};
#[cfg(feature = "testing")]
pub(crate) use tensor::{bytes, bytes_mut};

/// A validated problem of a kind that the library computes: [`Problem`](crate::Problem),
/// [`DecodeProblem`](crate::decode::DecodeProblem), [`AppendProblem`](crate::append::AppendProblem),
/// [`MergeProblem`](crate::merge::MergeProblem), [`BackwardProblem`](crate::backward::BackwardProblem) and
/// [`GemmProblem`](crate::gemm::GemmProblem). Other crates cannot add to them.
pub trait Operation: sealed::Sealed + Clone + fmt::Debug + Send + Sync + 'static {
    /// What the caller may ask of the planner.
    type Request;

    /// The kernels that the planner chooses from.
    type Kernel: Copy + fmt::Debug + PartialEq + Send + Sync;

    /// What an entry of a launch computes.
    type Algorithm: Copy + fmt::Debug + PartialEq + Sync;

    /// The tile of an entry.
    type Tile: Copy + fmt::Debug + Sync;

    /// What the parameters of a launch need beside its entry.
    #[doc(hidden)]
    type Details: Copy + Default + fmt::Debug + Send + Sync;

    /// Where the tensors lie on the device that runs the launches (in host memory for the simulator).
    type Addresses: Copy + fmt::Debug + Send + Sync;

    /// Host tensors that are read.
    type Inputs<'a, T: Element>: Copy;

    /// Host tensors that are written; elements that their views do not reach keep their values.
    type Outputs<'a, T: Element>;

    /// Buffers of the outputs' spans.
    type Results<T: Element>;

    /// Storage type of the inputs.
    fn dtype(&self) -> DType;

    /// Chooses kernel, tiles and launches for `device`.
    #[doc(hidden)]
    fn choose(&self, device: &Device, request: &Self::Request) -> Result<Choice<Self>>;

    /// Plans the launch of an entry, which need not be in the list; other launches are as chosen.
    #[doc(hidden)]
    fn choose_entry(
        &self,
        device: &Device,
        entry: &'static Entry<Self::Algorithm, Self::Tile>,
    ) -> Result<Choice<Self>>;

    /// The table of tensors: each one goes to `place`, which says where it lies, once and in the same order
    /// in each call. Also the only place where an operation's tensors are listed.
    ///
    /// # Errors
    /// The error of `place`.
    fn tensors<'t, 'i: 't, T: Element>(
        plan: &'t Plan<Self>,
        inputs: Self::Inputs<'i, T>,
        outputs: &'t mut Self::Outputs<'_, T>,
        place: &mut dyn FnMut(Tensor<'t>) -> Result<u64>,
    ) -> Result<Self::Addresses>;

    /// Whether the tensors start where [`Plan::launches`] want them; elsewhere [`Plan::unaligned`] runs.
    #[doc(hidden)]
    fn is_aligned(plan: &Plan<Self>, addresses: &Self::Addresses) -> bool {
        let (_, _) = (plan, addresses);
        true
    }

    /// Those of the launches that have something to do, of tensors at these addresses.
    #[doc(hidden)]
    fn needed<'a>(launches: &'a [Launch<Self>], addresses: &Self::Addresses) -> &'a [Launch<Self>] {
        let _ = addresses;
        launches
    }

    /// The parameters that a launch of the plan takes; its tensor maps, where it has some, in the form that
    /// `encode` gives them.
    ///
    /// # Errors
    /// When an address that the problem needs was left out, and where `encode` fails.
    fn params(
        plan: &Plan<Self>,
        launch: &Launch<Self>,
        addresses: &Self::Addresses,
        encode: impl Fn(&TensorMap) -> Result<tma::TensorMap>,
    ) -> Result<Params>;

    /// Checks values of inputs that are indices into other tensors.
    #[doc(hidden)]
    fn check_inputs<T: Element>(&self, inputs: Self::Inputs<'_, T>) -> Result<()> {
        let _ = inputs;
        Ok(())
    }

    /// Runs the plan on all cores, over tensors that were checked, and returns the bytes of memory that it
    /// took beside them.
    #[cfg(feature = "cpu")]
    #[doc(hidden)]
    fn run_on_cpu<T: Element>(
        plan: &Plan<Self>,
        inputs: Self::Inputs<'_, T>,
        outputs: &mut Self::Outputs<'_, T>,
    ) -> Result<u64>;

    /// Buffers for all outputs, in host memory.
    #[doc(hidden)]
    fn results<T: Element>(&self, device: &Device) -> Result<Self::Results<T>>;

    /// The outputs in these buffers.
    #[doc(hidden)]
    fn outputs<T: Element>(results: &mut Self::Results<T>) -> Self::Outputs<'_, T>;
}

pub(crate) mod sealed {
    /// Of the library's own operations.
    pub trait Sealed {}
}
