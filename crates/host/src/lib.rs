//! FlashAttention for Rust: exact attention in linear memory, on an NVIDIA GPU, on the CPU, or, with the
//! feature `sim`, in a simulator of the GPU.
//!
//! ```
//! use flash_attention::{Backend, HostTensor, attention};
//!
//! let backend = Backend::open(None)?; // a GPU if there is one, else the CPU
//! let values = vec![0.5_f32; 100 * 2 * 64];
//! let q = HostTensor::bshd(&values, [1, 100, 2, 64]); // batch, seqlen, heads, head_dim
//! let found = attention(&q, &q, &q).causal().run(&backend)?;
//! assert!((found.o[0] - 0.5).abs() < 1e-6);
//! # Ok::<(), flash_attention::Error>(())
//! ```
//!
//! Tensors that already lie on a GPU are [`DeviceTensor`]s: `attention(&q, &k, &v).causal().enqueue(&cuda,
//! &o, stream)` puts the launches on the caller's stream, a [`cuda::Stream`] of whichever library made it.
//!
//! Everything else goes the long way, which is the same for every [`Operation`]: a problem is validated once,
//! [`Backend::plan`] chooses kernel and tile and says why, and the [`Plan`] is run as often as one likes,
//! over host slices by [`Backend::run`], or on raw device pointers and a stream by [`cuda::Cuda::enqueue`],
//! which allocates nothing.
//!
//! | module | problem | what |
//! |---|---|---|
//! | [`forward`] | [`Problem`] | O and lse, of dense or packed sequences |
//! | [`backward`] | [`backward::BackwardProblem`] | dQ, dK and dV by recomputation |
//! | [`decode`] | [`decode::DecodeProblem`] | few queries against a K/V cache, paged or not |
//! | [`append`] | [`append::AppendProblem`] | new keys and values into that cache, rotary embeddings |
//! | [`merge`] | [`merge::MergeProblem`] | results over disjoint keys, such as a shared prefix, as one |
//! | [`gemm`] | [`gemm::GemmProblem`] | C = A·B, what attention's products are measured against |
//!
//! Kernels alone, for any driver API, come from [`shipped`].
//!
//! | feature | what |
//! |---|---|
//! | `cuda` (default) | NVIDIA GPUs: [`cuda`], [`shipped`] |
//! | `cpu` (default) | all cores: [`cpu`] |
//! | `sim` | runs of [`sim`], whose code takes a compiler minutes |
//! | `forward`, `backward`, `decode`, `gemm` (default) | the kernels of these that `cuda` ships |
//! | `testing` | what judges and times kernels: f64 references, error bounds, poisoned outputs, clocks |
//!
//! Without any of them problems are validated and planned, for a [`Device`] whose fields are known; a backend
//! that was left out is [`Error::NotBuilt`].
#![cfg_attr(test, allow(clippy::unwrap_used))]
// Parameters of launches, and tables of tensors, are for what runs them.
#![cfg_attr(not(all(feature = "cuda", feature = "cpu")), allow(dead_code))]

#[cfg(feature = "testing")]
pub mod accuracy;
pub mod append;
mod backend;
pub mod backward;
#[cfg(feature = "cpu")]
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod decode;
mod device;
pub mod distributed;
mod dropout;
mod element;
mod error;
mod factor;
pub mod forward;
pub mod functions;
pub mod gemm;
mod head_values;
mod launch;
mod layout;
pub mod merge;
pub mod operation;
mod options;
mod plan;
mod prepared;
mod problem;
#[cfg(feature = "testing")]
pub mod reference;
#[cfg(feature = "cuda")]
pub mod shipped;
pub mod sim;
mod tensor_map;
#[cfg(feature = "testing")]
pub mod timing;
mod used_keys;
mod varlen;
mod visibility;

pub use backend::Backend;
pub use device::{BackendKind, Device};
pub use element::{DType, Element};
pub use error::{Error, Result};
pub use forward::{DeviceTensor, HostTensor, attention};
pub use layout::TensorLayout;
pub use operation::{Operation, Plan};
pub use options::Options;
pub use plan::{Kernel, Request};
pub use prepared::Prepared;
pub use problem::{Problem, Tensors};
