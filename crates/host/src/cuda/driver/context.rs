//! A GPU's primary context.

use std::ffi::{CStr, c_char, c_int};

use super::{CuContext, CuDevice, DeviceAttribute, Driver};
use crate::{Error, Result};

/// Bytes for a device's name.
const NAME_BYTES: usize = 256;

/// A GPU's primary context, which all libraries of the process share; retained until it is dropped.
pub(in crate::cuda) struct Context {
    driver: &'static Driver,
    ordinal: usize,
    device: CuDevice,
    handle: CuContext,
}

// SAFETY: the handle is an address that is only given to the driver, whose functions every thread may call,
// with the contexts of the process. It stays valid until `drop`.
unsafe impl Send for Context {}
// SAFETY: as above; no method changes anything but the driver's state of the calling thread.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of GPU `ordinal` and makes it the calling thread's.
    pub(in crate::cuda) fn retain(driver: &'static Driver, ordinal: usize) -> Result<Self> {
        let devices = driver.device_count()?;
        if ordinal >= devices {
            return Err(Error::NoCudaDevice {
                reason: format!("device {ordinal} was asked for, and the driver sees {devices}"),
            });
        }
        let (mut device, mut handle) = (0, std::ptr::null_mut());
        // SAFETY: the driver writes one device, of an ordinal below its count.
        unsafe { driver.cuDeviceGet(&raw mut device, ordinal as c_int) }?;
        // SAFETY: the driver writes one handle, of a device that it gave; `drop` releases it.
        unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut handle, device) }?;
        let context = Self { driver, ordinal, device, handle };
        context.make_current()?;
        Ok(context)
    }

    pub(in crate::cuda) const fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// The GPU's number.
    pub(in crate::cuda) const fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// The driver's handle.
    pub(in crate::cuda) const fn handle(&self) -> CuContext {
        self.handle
    }

    /// Lets this GPU reach the memory of another, and says whether it can.
    pub(in crate::cuda) fn reach(&self, other: &Self) -> Result<bool> {
        self.make_current()?;
        let mut can = 0;
        // SAFETY: the driver writes one integer, of two of its devices.
        unsafe { self.driver.cuDeviceCanAccessPeer(&raw mut can, self.device, other.device) }?;
        if can == 0 {
            return Ok(false);
        }
        // SAFETY: the other context is retained; this one is current.
        match unsafe { self.driver.cuCtxEnablePeerAccess(other.handle, 0) } {
            Err(failure) if !failure.is_enabled_already() => Err(failure.into()),
            _ => Ok(true),
        }
    }

    /// Makes this the context of the calling thread, which functions without a context as argument act on.
    pub(in crate::cuda) fn make_current(&self) -> Result<()> {
        let mut current = std::ptr::null_mut();
        // SAFETY: the driver writes one handle, or 0.
        unsafe { self.driver.cuCtxGetCurrent(&raw mut current) }?;
        if current != self.handle {
            // SAFETY: the context is retained.
            unsafe { self.driver.cuCtxSetCurrent(self.handle) }?;
        }
        Ok(())
    }

    /// The device's name.
    pub(in crate::cuda) fn name(&self) -> Result<String> {
        let mut name = [0_u8; NAME_BYTES];
        let start = name.as_mut_ptr().cast::<c_char>();
        // SAFETY: the driver writes no more than so many bytes, and this is one of its devices.
        unsafe { self.driver.cuDeviceGetName(start, NAME_BYTES as c_int, self.device) }?;
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    /// One attribute of the device.
    pub(in crate::cuda) fn attribute(&self, attribute: DeviceAttribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the driver writes one integer, of one of its devices.
        unsafe { self.driver.cuDeviceGetAttribute(&raw mut value, attribute, self.device) }?;
        Ok(value)
    }

    /// Bytes of the device's memory.
    pub(in crate::cuda) fn total_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: the driver writes one integer, of one of its devices.
        unsafe { self.driver.cuDeviceTotalMem_v2(&raw mut bytes, self.device) }?;
        Ok(bytes as u64)
    }

    /// Bytes of the device's memory that are free.
    pub(in crate::cuda) fn free_bytes(&self) -> Result<u64> {
        self.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes two integers.
        unsafe { self.driver.cuMemGetInfo_v2(&raw mut free, &raw mut total) }?;
        Ok(free as u64)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // A failure can be reported to no caller.
        // SAFETY: `retain` has retained it once. Streams, events and buffers hold this object, so that none
        // of them is left.
        let _ = unsafe { self.driver.cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}
