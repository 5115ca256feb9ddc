//! Moving and multiplying tiles in shared memory.

#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod mma;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod mma_block;
pub mod simt;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod warp_tile;
