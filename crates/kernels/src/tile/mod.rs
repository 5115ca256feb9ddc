//! Moving and multiplying tiles in shared memory.

pub mod simt;
