//! The forward pass: [`attention`] in one call, and the types of [`Problem`] and its calls.

mod attention;
mod operation;
mod tensor;

pub use attention::{Attention, attention};
pub(crate) use operation::score_roundoff;
pub use tensor::{DeviceTensor, HostTensor, TensorView};

pub use crate::dropout::Dropout;
pub use crate::factor::Factor;
pub use crate::launch::Addresses;
pub use crate::options::{Descale, MAX_SOFTCAP, PerHead};
pub use crate::problem::{MAX_HEAD_DIM, MAX_LATENT_HEAD_DIMS, MAX_SEQLEN};
use crate::{Device, Element, Problem, Result};

/// Host tensors that attention writes.
#[derive(Debug)]
pub struct Outputs<'a, T: Element> {
    /// O; elements that its view does not reach keep their values.
    pub o: &'a mut [T::Output],
    /// Log-sum-exp of each row, as [`Problem`] has it; `None` where it is not wanted.
    pub lse: Option<&'a mut [f32]>,
}

/// O and lse of a call, in buffers of the library's: what O's view does not reach is unspecified.
#[derive(Clone, Debug)]
pub struct Results<T: Element> {
    /// O, as long as its view reaches.
    pub o: Vec<T::Output>,
    /// Log-sum-exp of each row.
    pub lse: Vec<f32>,
}

impl<T: Element> Results<T> {
    pub(crate) fn new(problem: &Problem, device: &Device) -> Result<Self> {
        let o = device.allocate("o", problem.tensors().o.span())?;
        Ok(Self { o, lse: device.allocate("lse", problem.lse_len())? })
    }

    pub(crate) fn outputs(&mut self) -> Outputs<'_, T> {
        Outputs { o: &mut self.o, lse: Some(&mut self.lse) }
    }
}
