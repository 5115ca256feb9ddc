//! The entry points of the lists, as `cargo xtask kernels` writes them.
//!
//! A build for one target has the features of all older ones too, and holds the families of its own alone.

#[cfg(any(not(target_arch = "nvptx64"), not(target_feature = "sm_80")))]
#[rustfmt::skip]
mod standard;
#[cfg(any(not(target_arch = "nvptx64"), not(target_feature = "sm_80")))]
#[rustfmt::skip]
mod append;
#[cfg(any(not(target_arch = "nvptx64"), not(target_feature = "sm_80")))]
#[rustfmt::skip]
mod forward_simt;
#[cfg(any(not(target_arch = "nvptx64"), not(target_feature = "sm_80")))]
#[rustfmt::skip]
mod backward_simt;
#[cfg(any(not(target_arch = "nvptx64"), all(target_feature = "sm_80", not(target_feature = "sm_90a"))))]
#[rustfmt::skip]
mod forward_sm80;
#[cfg(any(not(target_arch = "nvptx64"), all(target_feature = "sm_80", not(target_feature = "sm_90a"))))]
#[rustfmt::skip]
mod decode;
#[cfg(any(not(target_arch = "nvptx64"), all(target_feature = "sm_80", not(target_feature = "sm_90a"))))]
#[rustfmt::skip]
mod backward_sm80;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
#[rustfmt::skip]
mod forward_sm90;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
#[rustfmt::skip]
mod forward_sm90_cached;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
#[rustfmt::skip]
mod decode_sm90;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
#[rustfmt::skip]
mod mla_sm90;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
#[rustfmt::skip]
mod backward_sm90;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
#[rustfmt::skip]
mod pack;
#[cfg(any(not(target_arch = "nvptx64"), not(target_feature = "sm_80")))]
#[rustfmt::skip]
mod gemm_simt;
#[cfg(any(not(target_arch = "nvptx64"), all(target_feature = "sm_80", not(target_feature = "sm_90a"))))]
#[rustfmt::skip]
mod gemm_sm80;
#[cfg(any(not(target_arch = "nvptx64"), all(target_feature = "sm_80", not(target_feature = "sm_90a"))))]
#[rustfmt::skip]
mod mma_peak;
#[cfg(any(not(target_arch = "nvptx64"), all(target_feature = "sm_80", not(target_feature = "sm_90a"))))]
#[rustfmt::skip]
mod read_peak;
#[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
#[rustfmt::skip]
mod gemm_sm90;

/// Native code by the names of entries.
#[cfg(all(feature = "sim", not(any(target_arch = "nvptx64", test))))]
pub(super) const NATIVE: [&[(&str, super::Run)]; 18] = [
    standard::native::RUN,
    append::native::RUN,
    forward_simt::native::RUN,
    backward_simt::native::RUN,
    forward_sm80::native::RUN,
    decode::native::RUN,
    backward_sm80::native::RUN,
    forward_sm90::native::RUN,
    forward_sm90_cached::native::RUN,
    decode_sm90::native::RUN,
    mla_sm90::native::RUN,
    backward_sm90::native::RUN,
    pack::native::RUN,
    gemm_simt::native::RUN,
    gemm_sm80::native::RUN,
    mma_peak::native::RUN,
    read_peak::native::RUN,
    gemm_sm90::native::RUN,
];
