//! The frame of Hopper's kernels: a block stays on its multiprocessor and goes through tiles, one warpgroup
//! copies, and the others multiply.
//!
//! * [`roles`] says which warpgroup this is, and moves registers to those that multiply.
//! * [`ring`] hands stages of shared memory from the threads that copy to those that multiply.
//! * [`scheduler`] tells all warps which tile comes next.
//! * [`epilogue`] brings accumulators to shared memory, from where tensor copies fetch them.

pub mod epilogue;
pub mod ring;
pub mod roles;
pub mod scheduler;
