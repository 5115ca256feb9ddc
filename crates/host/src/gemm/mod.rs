//! Matrix multiplication C = A·B on the three backends: what attention's products are measured against.
//!
//! The way through is attention's: a [`GemmProblem`] is validated once, a [`GemmPlan`] says which kernel and
//! tile and why, and [`Backend::run`](crate::Backend::run) runs it.
//!
//! ```
//! use flash_attention::gemm::{GemmProblem, GemmRequest, Matrices, MatrixLayout};
//! use flash_attention::{Backend, DType};
//!
//! let matrices = Matrices {
//!     a: MatrixLayout::row_major(2, 3),
//!     b: MatrixLayout::column_major(3, 1),
//!     c: MatrixLayout::row_major(2, 1),
//! };
//! let problem = GemmProblem::new(matrices, DType::F32)?;
//! let backend = Backend::open(None)?; // a GPU if there is one, else the CPU
//! let plan = backend.plan(&problem, &GemmRequest::default())?;
//! let (a, b) = ([1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 1.0, 2.0]);
//! let mut c = [0.0; 2];
//! backend.run(&plan, (&a, &b), &mut c)?;
//! assert_eq!(c, [9.0, 21.0]);
//! # Ok::<(), flash_attention::Error>(())
//! ```

#[cfg(feature = "cpu")]
mod cpu;
mod launch;
mod operation;
mod plan;
mod problem;
#[cfg(feature = "testing")]
pub mod reference;

pub use launch::GemmAddresses;
pub(crate) use launch::params;
pub use plan::{GemmKernel, GemmPlan, GemmRequest};
pub use problem::{GemmProblem, MAX_EXTENT, Matrices, MatrixLayout, Order};
