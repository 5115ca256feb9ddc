//! Addresses of host memory as slices.

use pyo3::PyResult;
use pyo3::exceptions::PyValueError;

/// Refuses an address that no element can have.
fn check<T>(tensor: &str, address: usize) -> PyResult<()> {
    if address == 0 {
        return Err(PyValueError::new_err(format!("{tensor}: no address was given")));
    }
    let align = align_of::<T>();
    if !address.is_multiple_of(align) {
        let message = format!("{tensor}: address {address:#x} is no multiple of {align}, its element's size");
        return Err(PyValueError::new_err(message));
    }
    Ok(())
}

/// The `len` elements from an address on, which are read.
///
/// # Safety
/// Memory of so many initialised elements is there, and is not written, for `'a`.
pub(crate) unsafe fn read<'a, T>(tensor: &str, address: usize, len: usize) -> PyResult<&'a [T]> {
    check::<T>(tensor, address)?;
    // SAFETY: the address is aligned and not null; the caller vouches for the memory.
    Ok(unsafe { std::slice::from_raw_parts(address as *const T, len) })
}

/// The `len` elements from an address on, which are written.
///
/// # Safety
/// Memory of so many elements is there, and nothing else reads or writes it, for `'a`.
pub(crate) unsafe fn write<'a, T>(tensor: &str, address: usize, len: usize) -> PyResult<&'a mut [T]> {
    check::<T>(tensor, address)?;
    // SAFETY: the address is aligned and not null; the caller vouches for the memory, and any bits are a
    // number.
    Ok(unsafe { std::slice::from_raw_parts_mut(address as *mut T, len) })
}
