//! What functions of the driver take (CUDA driver API, "Data types used by CUDA driver").
//!
//! Enums are written for the driver and never by it, which may know values that are not listed here.

use std::ffi::c_int;

/// Objects that handles point to, which the driver alone looks into.
pub(in crate::cuda) mod object {
    pub(in crate::cuda) enum Context {}
    pub(in crate::cuda) enum Module {}
    pub(in crate::cuda) enum Function {}
    pub(in crate::cuda) enum Graph {}
    pub(in crate::cuda) enum GraphExec {}
    pub(in crate::cuda) enum Event {}
}

pub(in crate::cuda) type CuDevice = c_int;
pub(in crate::cuda) type CuContext = *mut object::Context;
pub(in crate::cuda) type CuModule = *mut object::Module;
pub(in crate::cuda) type CuFunction = *mut object::Function;
pub(in crate::cuda) type CuGraph = *mut object::Graph;
pub(in crate::cuda) type CuGraphExec = *mut object::GraphExec;
pub(in crate::cuda) type CuEvent = *mut object::Event;

/// `CU_STREAM_NON_BLOCKING`: the stream does not wait for the legacy default stream, nor that one for it.
pub(in crate::cuda) const STREAM_NON_BLOCKING: u32 = 1;

/// `CU_EVENT_DEFAULT`: the event has a time.
#[cfg(feature = "testing")]
pub(in crate::cuda) const EVENT_DEFAULT: u32 = 0;

/// `CU_EVENT_DISABLE_TIMING`: the event orders streams, and has no time.
pub(in crate::cuda) const EVENT_DISABLE_TIMING: u32 = 2;

/// `CUdevice_attribute`.
#[repr(u32)]
#[derive(Clone, Copy)]
pub(in crate::cuda) enum DeviceAttribute {
    MultiprocessorCount = 16,
    /// In kHz.
    MemoryClockRate = 36,
    /// In bits.
    GlobalMemoryBusWidth = 37,
    /// In bytes.
    #[cfg(feature = "testing")]
    L2CacheSize = 38,
    ComputeCapabilityMajor = 75,
    ComputeCapabilityMinor = 76,
    /// In bytes.
    MaxSharedMemoryPerMultiprocessor = 81,
    /// In bytes, for kernels whose limit was raised.
    MaxSharedMemoryPerBlockOptin = 97,
}

/// `CUfunction_attribute`.
#[repr(u32)]
#[derive(Clone, Copy)]
pub(in crate::cuda) enum FunctionAttribute {
    /// In bytes.
    MaxDynamicSharedSize = 8,
}

/// `CUpointer_attribute`.
#[repr(u32)]
#[derive(Clone, Copy)]
pub(in crate::cuda) enum PointerAttribute {
    /// An `int`.
    DeviceOrdinal = 9,
}

/// `CUjit_option`.
#[repr(u32)]
#[derive(Clone, Copy)]
pub(in crate::cuda) enum JitOption {
    /// A `char *`.
    ErrorLogBuffer = 5,
    /// An `unsigned int`.
    ErrorLogBufferSizeBytes = 6,
}

/// `CUlaunchConfig`.
#[repr(C)]
pub(in crate::cuda) struct LaunchConfig {
    pub(in crate::cuda) grid: [u32; 3],
    pub(in crate::cuda) block: [u32; 3],
    pub(in crate::cuda) shared_bytes: u32,
    pub(in crate::cuda) stream: super::Stream,
    pub(in crate::cuda) attributes: *const LaunchAttribute,
    pub(in crate::cuda) count: u32,
}

/// `CUlaunchAttribute`, whose value has 64 bytes.
#[repr(C, align(8))]
pub(in crate::cuda) struct LaunchAttribute {
    id: u32,
    padding: u32,
    value: [u32; 16],
}

impl LaunchAttribute {
    /// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`: the launch may begin before the one in front
    /// of it in the stream has ended.
    pub(in crate::cuda) const BEGINS_EARLY: Self = {
        let mut value = [0; 16];
        value[0] = 1;
        Self { id: 6, padding: 0, value }
    };
}

impl LaunchAttribute {
    /// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`: so many blocks run together.
    pub(in crate::cuda) const fn cluster(blocks: u32) -> Self {
        let mut value = [0; 16];
        (value[0], value[1], value[2]) = (blocks, 1, 1);
        Self { id: 4, padding: 0, value }
    }
}

const _: () = assert!(size_of::<LaunchAttribute>() == 72);

/// `CUstreamCaptureMode`.
#[repr(u32)]
#[derive(Clone, Copy)]
pub(in crate::cuda) enum CaptureMode {
    /// Calls of the thread that records may not break the recording; other threads' are free.
    ThreadLocal = 1,
}

/// `CUtensorMap`. Functions want it at a multiple of 64 bytes; `cuda.h` of CUDA 13.0 declares 128.
#[repr(C, align(128))]
pub(in crate::cuda) struct CuTensorMap(pub(in crate::cuda) [u64; 16]);

/// `CUtensorMapDataType`.
#[repr(u32)]
#[derive(Clone, Copy)]
pub(in crate::cuda) enum TensorMapDataType {
    Uint8 = 0,
    Uint16 = 1,
}

/// `CUtensorMapInterleave`.
#[repr(u32)]
#[derive(Clone, Copy)]
pub(in crate::cuda) enum TensorMapInterleave {
    None = 0,
}

/// `CUtensorMapSwizzle`.
#[repr(u32)]
#[derive(Clone, Copy)]
pub(in crate::cuda) enum TensorMapSwizzle {
    Bytes128 = 3,
}

/// `CUtensorMapL2promotion`.
#[repr(u32)]
#[derive(Clone, Copy)]
pub(in crate::cuda) enum TensorMapL2Promotion {
    None = 0,
    Bytes256 = 3,
}

/// `CUtensorMapFloatOOBfill`.
#[repr(u32)]
#[derive(Clone, Copy)]
pub(in crate::cuda) enum TensorMapFloatOobFill {
    /// 0.
    None = 0,
}
