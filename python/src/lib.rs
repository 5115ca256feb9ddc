//! Plans and launches for the Python package: shapes, strides and addresses, no type of any tensor library.
//!
//! Python's half owns all tensors. It gives addresses of live memory that has the type, shape and strides of
//! the plan, and keeps it alive until a call on the CPU returns or a launch is in its stream's order.

mod append;
mod backward;
mod decode;
mod error;
mod forward;
mod memory;
mod place;
mod ranks;
mod settings;
mod threads;
mod watch;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("MAX_DECODE_SEQLEN_Q", flash_attention::decode::MAX_DECODE_SEQLEN_Q)?;
    module.add_class::<forward::Forward>()?;
    module.add_class::<backward::Backward>()?;
    module.add_class::<decode::Decode>()?;
    module.add_class::<append::Append>()?;
    module.add_class::<ranks::Part>()?;
    module.add_class::<ranks::Ranks>()?;
    module.add_class::<ranks::RankPlan>()?;
    module.add("PeerError", module.py().get_type::<ranks::PeerError>())?;
    module.add_function(wrap_pyfunction!(place::describe, module)?)
}
