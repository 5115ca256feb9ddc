//! The functions of NCCL that are called here, with the types of `nccl.h`.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{Failure, Nccl};
use crate::cuda::driver::Stream;
use crate::cuda::library::functions;

/// A `ncclResult_t`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct NcclResult(pub(super) c_int);

impl NcclResult {
    pub(super) const SUCCESS: Self = Self(0);
    /// A call of a communicator that does not block goes on.
    pub(super) const IN_PROGRESS: Self = Self(7);
}

/// A `ncclComm_t`.
pub(super) type CommHandle = *mut c_void;

/// A `ncclWindow_t`.
pub(super) type WindowHandle = *mut c_void;

/// What makes a communicator's ranks find one another.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::cuda) struct UniqueId(pub(in crate::cuda) [u8; 128]);

/// A `ncclDataType_t` of single bytes: copies look at no value.
pub(super) const BYTES: c_int = 0;

/// A `ncclConfig_t` as NCCL 2.27 has it, which later versions take, filling in what they added.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
    collnet_enable: c_int,
    cta_policy: c_int,
    shrink_share: c_int,
    nvls_ctas: c_int,
}

impl Config {
    /// What NCCL knows that a caller filled in its version's fields by.
    const MAGIC: c_uint = 0xcafe_beef;

    /// The version whose fields these are.
    const VERSION: c_uint = 22_700;

    /// A field that is left to NCCL.
    const UNSET: c_int = c_int::MIN;

    /// `NCCL_CTA_POLICY_ZERO`: no multiprocessor copies where copy engines can.
    const POLICY_ZERO: c_int = 2;

    /// No call blocks, copies are those of copy engines or of kernels, and all else is left to NCCL.
    pub(super) const fn new(on_copy_engines: bool) -> Self {
        let cta_policy = if on_copy_engines { Self::POLICY_ZERO } else { Self::UNSET };
        Self {
            size: size_of::<Self>(),
            magic: Self::MAGIC,
            version: Self::VERSION,
            blocking: 0,
            cga_cluster_size: Self::UNSET,
            min_ctas: Self::UNSET,
            max_ctas: Self::UNSET,
            net_name: std::ptr::null(),
            split_share: Self::UNSET,
            traffic_class: Self::UNSET,
            comm_name: std::ptr::null(),
            collnet_enable: Self::UNSET,
            cta_policy,
            shrink_share: Self::UNSET,
            nvls_ctas: Self::UNSET,
        }
    }
}

/// All ranks register the window together, at any addresses of their own.
pub(super) const WINDOW_SYMMETRIC: c_int = 1;

functions! {
    Nccl, NcclResult, Failure<'_>;
    fn ncclGetVersion(version: *mut c_int);
    fn ncclGetUniqueId(id: *mut UniqueId);
    fn ncclCommInitRankConfig(
        comm: *mut CommHandle,
        ranks: c_int,
        id: UniqueId,
        rank: c_int,
        config: *mut Config,
    );
    fn ncclCommSplit(comm: CommHandle, color: c_int, key: c_int, new: *mut CommHandle, config: *mut Config);
    fn ncclCommDestroy(comm: CommHandle);
    fn ncclCommAbort(comm: CommHandle);
    fn ncclCommGetAsyncError(comm: CommHandle, error: *mut NcclResult);
    // NCCL 2.19.
    fn ncclMemAlloc(address: *mut *mut c_void, bytes: usize);
    fn ncclMemFree(address: *mut c_void);
    // NCCL 2.27.
    fn ncclCommWindowRegister(
        comm: CommHandle,
        address: *mut c_void,
        bytes: usize,
        window: *mut WindowHandle,
        flags: c_int,
    );
    fn ncclCommWindowDeregister(comm: CommHandle, window: WindowHandle);
    fn ncclAllGather(
        from: *const c_void,
        to: *mut c_void,
        count: usize,
        data_type: c_int,
        comm: CommHandle,
        stream: Stream,
    );
    fn ncclGroupStart();
    fn ncclGroupEnd();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets that `nccl.h` of 2.27 gives its fields on a machine of 64 bits.
    #[test]
    fn the_config_is_that_of_the_header() {
        assert_eq!(size_of::<Config>(), 72);
        assert_eq!(std::mem::offset_of!(Config, blocking), 16);
        assert_eq!(std::mem::offset_of!(Config, net_name), 32);
        assert_eq!(std::mem::offset_of!(Config, comm_name), 48);
        assert_eq!(std::mem::offset_of!(Config, cta_policy), 60);
        assert_eq!(std::mem::offset_of!(Config, nvls_ctas), 68);
    }
}
