//! Tensor maps in the form that the hardware reads.

use std::ffi::c_void;

use cudarc::driver::sys;
use fa_kernels::ptx::tma;

use super::driver;
use crate::tensor_map::TensorMap;
use crate::{Error, Result};

/// The first driver that makes tensor maps, as 1000·major + 10·minor.
const CUDA_12: i32 = 12_000;

/// Encodes a map for a driver of CUDA version `cuda_version`: about a microsecond on the host, and nothing on the device.
///
/// # Errors
/// When the driver is too old, or refuses the map.
pub(super) fn encode(cuda_version: i32, map: &TensorMap) -> Result<tma::TensorMap> {
    if cuda_version < CUDA_12 {
        return Err(Error::DriverTooOld {
            found: driver::version_name(cuda_version),
            needed: driver::version_name(CUDA_12),
        });
    }
    let mut encoded = sys::CUtensorMap { opaque: [0; 16] };
    // SAFETY: the map is written to a place of its own; the arrays have as many elements as the rank says, at least, and
    // the address is only written down.
    let result = unsafe {
        sys::cuTensorMapEncodeTiled(
            &raw mut encoded,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
            map.rank,
            map.address as *mut c_void,
            map.dims.as_ptr(),
            map.strides.as_ptr(),
            map.box_dims.as_ptr(),
            [1; 5].as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    driver::check("cuTensorMapEncodeTiled", result.result())?;
    Ok(tma::TensorMap(encoded.opaque))
}
