//! Tensor maps in the form that the hardware reads, kept from call to call.

use std::ffi::c_void;
use std::num::NonZero;
use std::sync::{Mutex, PoisonError};

use fa_kernels::ptx::tma;
use lru::LruCache;

use super::driver::{
    CuTensorMap, Driver, TensorMapDataType, TensorMapFloatOobFill, TensorMapInterleave, TensorMapL2Promotion,
    TensorMapSwizzle, version_name,
};
use crate::tensor_map::TensorMap;
use crate::{Error, Result};

/// The first driver that makes tensor maps, as 1000·major + 10·minor.
const CUDA_12: i32 = 12_000;

/// Maps that are kept at most, of less than 300 bytes each. A call of forward_sm90 takes up to 25, so that
/// about forty shapes in turns find theirs.
const KEPT: NonZero<usize> = NonZero::new(1024).unwrap();

/// Encoded maps by all that they describe but the address, which is another in each call, and which the
/// driver replaces in less time than it takes to encode a map.
pub(super) struct TensorMaps {
    kept: Mutex<LruCache<TensorMap, tma::TensorMap>>,
}

impl TensorMaps {
    pub(super) fn new() -> Self {
        Self::keeping(KEPT)
    }

    /// Keeps so many; beyond that, the one that was not used for longest goes.
    fn keeping(count: NonZero<usize>) -> Self {
        Self { kept: Mutex::new(LruCache::new(count)) }
    }

    /// The map for a driver of CUDA version `cuda_version`; nothing on the device.
    ///
    /// # Errors
    /// When the driver is too old, or refuses the map.
    pub(super) fn encoded(&self, cuda_version: i32, map: &TensorMap) -> Result<tma::TensorMap> {
        self.get(map, |map| encode(cuda_version, map), replace_address)
    }

    /// What `encode` makes of `map`, or made of one that differed in the address alone, with that replaced.
    fn get(
        &self,
        map: &TensorMap,
        encode: impl FnOnce(&TensorMap) -> Result<tma::TensorMap>,
        replace_address: impl FnOnce(&tma::TensorMap, u64) -> Result<tma::TensorMap>,
    ) -> Result<tma::TensorMap> {
        let shape = TensorMap { address: 0, ..*map };
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // A copy, so that no other thread waits for the driver.
        let found = kept().get(&shape).copied();
        if let Some(found) = found {
            return replace_address(&found, map.address);
        }
        let encoded = encode(map)?;
        kept().put(shape, encoded);
        Ok(encoded)
    }
}

/// [`TensorMaps::encoded`], of a map that is not kept.
fn encode(cuda_version: i32, map: &TensorMap) -> Result<tma::TensorMap> {
    if cuda_version < CUDA_12 {
        return Err(Error::DriverTooOld { found: version_name(cuda_version), needed: version_name(CUDA_12) });
    }
    let data_type = match map.element_bytes {
        1 => TensorMapDataType::Uint8,
        _ => TensorMapDataType::Uint16,
    };
    let mut encoded = CuTensorMap([0; 16]);
    // SAFETY: the map is written to a place of its own; the arrays have as many elements as the rank says, at
    // least, and the address is only written down.
    unsafe {
        Driver::get()?.cuTensorMapEncodeTiled(
            &raw mut encoded,
            data_type,
            map.rank,
            map.address as *mut c_void,
            map.dims.as_ptr(),
            map.strides.as_ptr(),
            map.box_dims.as_ptr(),
            [1; 5].as_ptr(),
            TensorMapInterleave::None,
            TensorMapSwizzle::Bytes128,
            if map.promotes { TensorMapL2Promotion::Bytes256 } else { TensorMapL2Promotion::None },
            TensorMapFloatOobFill::None,
        )
    }?;
    Ok(tma::TensorMap(encoded.0))
}

/// A kept map with another address; the driver refuses one that is no multiple of 16.
fn replace_address(kept: &tma::TensorMap, address: u64) -> Result<tma::TensorMap> {
    let mut map = CuTensorMap(kept.0);
    // SAFETY: `encode` made the map, which is in a place of its own here; the address is only written down.
    unsafe { Driver::get()?.cuTensorMapReplaceAddress(&raw mut map, address as *mut c_void) }?;
    Ok(tma::TensorMap(map.0))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::tensor_map::{Dimension, swizzled};

    /// Rows of so many columns.
    fn map(address: u64, columns: usize) -> TensorMap {
        let dimension = |length, stride, boxed| Dimension { length, stride, boxed };
        swizzled((address, 2), [dimension(columns, 1, 64), dimension(30, 256, 64)])
    }

    /// A map in the simulator's form, by way of `maps`, and whether it was encoded.
    fn get(maps: &TensorMaps, map: &TensorMap) -> (tma::TensorMap, bool) {
        let encoded = Cell::new(false);
        let encode = |map: &TensorMap| {
            encoded.set(true);
            Ok(map.encode().unwrap())
        };
        let replace_address = |kept: &tma::TensorMap, address| {
            let mut words = kept.0;
            // The second word is the address, as the caller compares.
            words[1] = address;
            Ok(tma::TensorMap(words))
        };
        (maps.get(map, encode, replace_address).unwrap(), encoded.get())
    }

    #[test]
    fn a_map_of_the_same_shape_is_encoded_once_and_each_has_its_address() {
        let maps = TensorMaps::new();
        for (address, columns, is_encoded) in
            [(4096, 128, true), (8192, 128, false), (4096, 129, true), (64, 129, false), (4096, 128, false)]
        {
            let map = map(address, columns);
            let (found, encoded) = get(&maps, &map);
            assert_eq!(found, map.encode().unwrap());
            assert_eq!(encoded, is_encoded, "{columns} columns at {address}");
        }
    }

    #[test]
    fn beyond_the_bound_the_one_that_was_not_used_for_longest_goes() {
        let maps = TensorMaps::keeping(NonZero::new(2).unwrap());
        let is_encoded = |columns| get(&maps, &map(4096, columns)).1;
        assert_eq!([1, 2, 1, 3, 1, 2].map(is_encoded), [true, true, false, true, false, true]);
        assert_eq!(maps.kept.lock().unwrap().len(), 2);
    }

    #[test]
    fn what_the_driver_refuses_is_not_kept() {
        let maps = TensorMaps::new();
        let refuse = |_: &TensorMap| encode(11_080, &map(4096, 128));
        let error = maps.get(&map(4096, 128), refuse, |map, _| Ok(*map)).unwrap_err().to_string();
        assert!(error.starts_with("NVIDIA driver is too old: it supports CUDA 11.8"), "{error}");
        assert!(get(&maps, &map(4096, 128)).1);
    }

    #[test]
    fn threads_share_what_is_kept() {
        let maps = TensorMaps::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (1..9_u64)
                .map(|thread| {
                    let maps = &maps;
                    scope.spawn(move || {
                        for columns in (1..100).map(|column| column % 9 + 1) {
                            let map = map(4096 * thread, columns);
                            assert_eq!(get(maps, &map).0, map.encode().unwrap());
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(maps.kept.lock().unwrap().len(), 9);
    }
}
