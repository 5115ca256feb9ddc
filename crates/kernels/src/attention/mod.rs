//! Attention algorithms, one per file, each generic over storage type and tile.

pub mod alignment;
pub mod append;
pub mod backward_delta;
pub mod backward_simt;
pub mod backward_sinks;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod backward_sm80;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod backward_sm90;
pub mod backward_tiles;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod combine;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod decode;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod decode_sm90;
pub mod forward_simt;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod forward_sm80;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod forward_sm90;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
pub mod merge;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod mla_sm90;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod pack;
pub mod standard;
pub mod stored_ds;
pub mod tile_schedule;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod transpose;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
pub mod widen;

#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
mod cache_box;
mod gradient;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
mod split_output;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
mod split_work;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
mod splits;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_80"))]
mod tree_mask;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
mod work_items;
