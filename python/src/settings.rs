//! What Python says of a problem, as the library's types.

use flash_attention::forward::{Dropout, PerHead};
use flash_attention::{DType, Options, Problem, Request, TensorLayout, Tensors};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::raised;

/// Shape and strides of a tensor in elements, both in the order B, S, H, D.
pub(crate) type View = ([usize; 4], [usize; 4]);

/// The layout of a view.
pub(crate) fn layout((shape, strides): View) -> TensorLayout {
    TensorLayout::strided(shape, strides)
}

/// Those of Q, K, V and O.
pub(crate) fn tensors(views: [View; 4]) -> Tensors {
    let [q, k, v, o] = views.map(layout);
    Tensors { q, k, v, o }
}

/// The type of a name.
pub(crate) fn dtype(name: &str) -> PyResult<DType> {
    DType::RESULTS.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| {
        let names = DType::RESULTS.map(DType::name).join(", ");
        PyValueError::new_err(format!("dtype is {name}; one of {names} is needed"))
    })
}

/// What is computed, beside the shapes: the fields of Python's `Settings`.
#[derive(Clone, Debug, FromPyObject)]
pub(crate) struct Settings {
    causal: bool,
    softmax_scale: Option<f32>,
    /// Left and right; `None` is no limit.
    window: (Option<usize>, Option<usize>),
    softcap: f32,
    /// Values, on the CPU.
    alibi_slopes: Option<Vec<f32>>,
    /// How many there are, on a GPU.
    alibi_len: Option<usize>,
    /// As the slopes.
    sinks: Option<Vec<f32>>,
    sinks_len: Option<usize>,
    /// Probability, seed and offset.
    dropout: Option<(f32, u64, u32)>,
    /// Of a packed batch: sequences, and bounds of the rows of each in Q and in K.
    varlen: Option<(usize, usize, usize)>,
    /// Whether sequences use as many of their keys as a list says.
    has_seqused_k: bool,
    /// Whether a sequence gets the same bits in any batch.
    batch_invariant: bool,
}

impl Settings {
    /// How many sinks there are.
    pub(crate) fn sinks(&self) -> usize {
        self.sinks.as_ref().map(Vec::len).or(self.sinks_len).unwrap_or(0)
    }

    /// What is asked of the planner.
    pub(crate) fn request(&self) -> Request {
        Request { batch_invariant: self.batch_invariant, ..Request::default() }
    }

    /// What is asked of each row.
    pub(crate) fn options(self) -> Options {
        let dropout = self.dropout.map(|(probability, seed, offset)| Dropout { probability, seed, offset });
        Options {
            causal: self.causal,
            softmax_scale: self.softmax_scale,
            window: self.window,
            softcap: self.softcap,
            alibi_slopes: self.alibi_slopes,
            sinks: self.sinks,
            on_device: PerHead { alibi_slopes: self.alibi_len, sinks: self.sinks_len },
            dropout,
            ..Options::default()
        }
    }

    /// The validated problem.
    pub(crate) fn problem(self, dtype: DType, tensors: Tensors) -> PyResult<Problem> {
        let Self { varlen, has_seqused_k, .. } = self;
        let options = self.options();
        let problem = match varlen {
            None => Problem::new(tensors, dtype, options),
            Some((batch, longest_q, longest_k)) => {
                Problem::varlen_on_device(tensors, dtype, options, batch, (longest_q, longest_k))
            }
        }
        .map_err(raised)?;
        Ok(if has_seqused_k { problem.with_seqused_k_on_device() } else { problem })
    }
}

/// An address, where 0 is none.
pub(crate) fn optional(address: u64) -> Option<u64> {
    (address != 0).then_some(address)
}
