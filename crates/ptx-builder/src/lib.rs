//! From the sources of `fa-kernels` to the PTX that ships with it.
//!
//! * [`toolchain`] finds a device compiler and ptxas; [`install`] puts them in place without root.
//! * [`device_core`] builds `core` for the GPU where the compiler has none ready-made.
//! * [`compile`] makes one PTX text per target, [`ptx`] takes it apart into entries.
//! * [`assemble`] runs ptxas over each entry; [`gate`] rejects what must never ship.
//! * [`pipeline`] is all of these in order; [`variant`] is the same for one tile beside the list, for sweeps.
//! * [`functions`] builds kernels with functions of scores that another crate brings along, from its
//!   `build.rs`.
//! * [`archive`] writes and reads the result, [`check`] compares it with the list of entries.

pub mod archive;
pub mod assemble;
pub mod check;
pub mod compile;
pub mod device_core;
pub mod functions;
pub mod gate;
pub mod install;
pub mod pipeline;
pub mod ptx;
pub mod source;
pub mod spec;
pub mod toolchain;
pub mod variant;
pub mod workspace;

mod parallel;
mod process;

pub use functions::Functions;
pub use spec::EntrySpec;
pub use workspace::Workspace;
