//! New keys and values into a K/V cache, contiguous or paged, with rotary embeddings of these and of queries.
//!
//! What [`decode`](crate::decode) and the forward pass read next: a step of generation is an
//! [`AppendProblem`] and a [`DecodeProblem`](crate::decode::DecodeProblem) over the same cache.
//!
//! ```
//! use flash_attention::append::{
//!     AppendInputs, AppendOptions, AppendOutputs, AppendProblem, AppendTensors,
//! };
//! use flash_attention::{Backend, BackendKind, DType, TensorLayout};
//!
//! let new = TensorLayout::bshd(2, 1, 4, 64); // a key of each of two sequences, 4 heads
//! let pages = TensorLayout::bshd(10, 16, 4, 64); // 10 pages of 16 keys
//! let tensors = AppendTensors { k: new, v: new, k_cache: pages, v_cache: pages };
//! let options = AppendOptions { max_pages: Some(2), ..AppendOptions::default() };
//! let problem = AppendProblem::new(tensors, DType::F32, options)?;
//!
//! let backend = Backend::open(Some(BackendKind::Cpu))?;
//! let plan = backend.plan(&problem, &())?;
//! let values = vec![0.5_f32; new.span()];
//! let mut caches = [vec![0.0; pages.span()], vec![0.0; pages.span()]];
//! let [k_cache, v_cache] = &mut caches;
//! let inputs = AppendInputs {
//!     seqused_k: &[20, 3],
//!     page_table: Some(&[7, 1, /* the second sequence */ 2, -1]),
//!     ..AppendInputs::new(&values, &values)
//! };
//! backend.run(&plan, inputs, AppendOutputs { k_cache, v_cache, q: &mut [] })?;
//! assert_eq!(caches[0][pages.row(1, 20 % 16, 0)], 0.5);
//! assert_eq!(caches[1][pages.row(2, 3, 0)], 0.5);
//! # Ok::<(), flash_attention::Error>(())
//! ```

#[cfg(feature = "cpu")]
mod cpu;
mod launch;
mod operation;
mod plan;
mod problem;
#[cfg(feature = "testing")]
mod reference;

pub use launch::AppendAddresses;
pub use operation::{AppendOutputs, AppendResults};
pub use plan::{AppendKernel, AppendPlan};
pub use problem::{
    AppendInputs, AppendOptions, AppendProblem, AppendTensors, MAX_APPEND_HEAD_DIM, Rotary, RotaryQueries,
};
#[cfg(feature = "testing")]
pub use reference::{AppendExpected, AppendReport};
