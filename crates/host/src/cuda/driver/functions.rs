//! The functions of the driver that are called here.

use super::error::CuResult;
use super::types::*;
use super::{Driver, Failure, Stream};
use crate::cuda::library::functions;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

// All are in drivers of CUDA 12.0. Of those that older ones lack, the first version is named.
functions! {
    Driver, CuResult, Failure<'_>;
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuGetErrorName(code: CuResult, name: *mut *const c_char);
    fn cuGetErrorString(code: CuResult, description: *mut *const c_char);

    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGet(device: *mut CuDevice, ordinal: c_int);
    fn cuDeviceGetName(name: *mut c_char, bytes: c_int, device: CuDevice);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: DeviceAttribute, device: CuDevice);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CuDevice);

    fn cuDevicePrimaryCtxRetain(context: *mut CuContext, device: CuDevice);
    // CUDA 11.0.
    fn cuDevicePrimaryCtxRelease_v2(device: CuDevice);
    fn cuCtxGetCurrent(context: *mut CuContext);
    fn cuCtxSetCurrent(context: CuContext);
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: CuDevice, peer: CuDevice);
    fn cuCtxEnablePeerAccess(peer: CuContext, flags: c_uint);

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize);
    fn cuMemFree_v2(address: u64);
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Stream);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Stream);
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize);
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Stream);
    fn cuMemcpyPeerAsync(
        to: u64,
        to_context: CuContext,
        from: u64,
        from_context: CuContext,
        bytes: usize,
        stream: Stream,
    );
    fn cuMemsetD8Async(address: u64, byte: c_uchar, bytes: usize, stream: Stream);
    fn cuPointerGetAttribute(value: *mut c_void, attribute: PointerAttribute, address: u64);

    fn cuModuleLoadData(module: *mut CuModule, image: *const c_void);
    fn cuModuleLoadDataEx(
        module: *mut CuModule,
        image: *const c_void,
        count: c_uint,
        options: *mut JitOption,
        values: *mut *mut c_void,
    );
    fn cuModuleGetFunction(function: *mut CuFunction, module: CuModule, name: *const c_char);
    fn cuFuncSetAttribute(function: CuFunction, attribute: FunctionAttribute, value: c_int);
    fn cuLaunchKernel(
        function: CuFunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: Stream,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    );

    // CUDA 11.8.
    fn cuLaunchKernelEx(
        config: *const LaunchConfig,
        function: CuFunction,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    );

    fn cuStreamCreate(stream: *mut Stream, flags: c_uint);
    fn cuStreamCreateWithPriority(stream: *mut Stream, flags: c_uint, priority: c_int);
    fn cuStreamDestroy_v2(stream: Stream);
    fn cuStreamSynchronize(stream: Stream);
    fn cuStreamWaitEvent(stream: Stream, event: CuEvent, flags: c_uint);
    // CUDA 10.1.
    fn cuStreamBeginCapture_v2(stream: Stream, mode: CaptureMode);
    fn cuStreamEndCapture(stream: Stream, graph: *mut CuGraph);
    // CUDA 11.4. `cuda.h` has `cuGraphInstantiate` stand for it from 12.0 on.
    fn cuGraphInstantiateWithFlags(exec: *mut CuGraphExec, graph: CuGraph, flags: c_ulonglong);
    fn cuGraphLaunch(exec: CuGraphExec, stream: Stream);
    fn cuGraphExecDestroy(exec: CuGraphExec);
    fn cuGraphDestroy(graph: CuGraph);

    fn cuEventCreate(event: *mut CuEvent, flags: c_uint);
    fn cuEventDestroy_v2(event: CuEvent);
    fn cuEventRecord(event: CuEvent, stream: Stream);
    fn cuEventSynchronize(event: CuEvent);
    fn cuEventQuery(event: CuEvent);
    // From CUDA 12.8 on `cuda.h` has `_v2` beside it, for the same three arguments; drivers export both.
    #[cfg(feature = "testing")]
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CuEvent, end: CuEvent);

    // CUDA 12.0.
    fn cuTensorMapEncodeTiled(
        map: *mut CuTensorMap,
        data_type: TensorMapDataType,
        rank: c_uint,
        address: *mut c_void,
        dims: *const u64,
        strides: *const u64,
        box_dims: *const c_uint,
        element_strides: *const c_uint,
        interleave: TensorMapInterleave,
        swizzle: TensorMapSwizzle,
        l2_promotion: TensorMapL2Promotion,
        out_of_bounds_fill: TensorMapFloatOobFill,
    );
    // CUDA 12.0.
    fn cuTensorMapReplaceAddress(map: *mut CuTensorMap, address: *mut c_void);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    /// A code of no driver so far.
    const UNKNOWN: c_uint = 54_321;

    /// A table over a library that has none of the functions.
    fn driver() -> Driver {
        Driver::open(if cfg!(windows) { "kernel32.dll" } else { "libc.so.6" }).unwrap()
    }

    /// `cuInit` that returns its argument.
    unsafe extern "system" fn init(flags: c_uint) -> CuResult {
        CuResult(flags)
    }

    unsafe extern "system" fn version(version: *mut c_int) -> CuResult {
        // SAFETY: the place of an integer, as `cuda.h` asks.
        unsafe { *version = 11_080 };
        CuResult::SUCCESS
    }

    /// `cuGetErrorName` or `cuGetErrorString`: fails for a code that it does not know, and writes 0.
    unsafe extern "system" fn words(code: CuResult, words: *mut *const c_char) -> CuResult {
        let is_known = code.0 < UNKNOWN;
        // SAFETY: the place of an address, as `cuda.h` asks.
        unsafe { *words = if is_known { c"words".as_ptr() } else { std::ptr::null() } };
        CuResult(c_uint::from(!is_known))
    }

    fn init_error(driver: &Driver, flags: c_uint) -> Error {
        // SAFETY: the function takes any number.
        unsafe { driver.cuInit(flags) }.err().unwrap().into()
    }

    #[test]
    fn a_missing_function_is_named_with_the_drivers_version() {
        let driver = driver();
        let start = "NVIDIA driver has no function cuInit; it supports ";
        assert_eq!(init_error(&driver, 0).to_string(), format!("{start}an unknown CUDA version"));
        let driver = self::driver();
        driver.functions.cuDriverGetVersion.set(Some(version)).unwrap();
        assert_eq!(init_error(&driver, 0).to_string(), format!("{start}CUDA 11.8"));
    }

    #[test]
    fn an_unknown_code_is_kept_as_its_number() {
        let driver = driver();
        driver.functions.cuInit.set(Some(init)).unwrap();
        driver.functions.cuGetErrorName.set(Some(words)).unwrap();
        driver.functions.cuGetErrorString.set(Some(words)).unwrap();
        let unknown = "cuInit failed with 54321: an error that the driver has no name for (no description)";
        assert_eq!(init_error(&driver, UNKNOWN).to_string(), unknown);
        assert_eq!(init_error(&driver, 700).to_string(), "cuInit failed with 700: words (words)");
    }

    #[test]
    fn a_function_is_looked_up_once() {
        let driver = driver();
        assert!(driver.functions.cuInit.get().is_none());
        init_error(&driver, 0);
        // A further call finds in the table that there is none.
        assert_eq!(driver.functions.cuInit.get(), Some(&None));
        let driver = self::driver();
        driver.functions.cuInit.set(Some(init)).unwrap();
        // SAFETY: the function takes any number.
        assert!(unsafe { driver.cuInit(0) }.is_ok(), "the library was asked again, and has no cuInit");
    }
}
