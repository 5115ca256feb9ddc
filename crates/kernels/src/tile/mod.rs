//! Moving and multiplying tiles in shared memory.

#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod chunk;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod kv_cache;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod mma;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod mma_block;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod mma_copy;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod mma_store;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod panels;
pub mod simt;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod warp_tile;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod wgmma;
