//! Loaded kernels: each entry is a module of its own, compiled by the driver when first used.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::{DriverError, result, sys};
use fa_kernels::entries::Entry;

use super::driver;
use crate::{Error, Result};

/// Bytes for the driver compiler's log.
const LOG_BYTES: usize = 16 << 10;

/// Functions by entry name. Modules stay loaded as long as the process's primary context.
#[derive(Default)]
pub(super) struct Modules {
    functions: Mutex<HashMap<&'static str, Function>>,
}

#[derive(Clone, Copy)]
struct Function(sys::CUfunction);

// SAFETY: a function handle is an opaque address that the driver lets every thread use.
unsafe impl Send for Function {}

impl Modules {
    /// The entry's function, loaded into the current context if it is not yet.
    pub(super) fn function<A, T>(&self, entry: &'static Entry<A, T>) -> Result<sys::CUfunction> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(entry.name) {
            return Ok(function.0);
        }
        let function = load(entry, &crate::shipped::ptx(entry.name)?)?;
        functions.insert(entry.name, Function(function));
        Ok(function)
    }

    /// Loads `ptx` as the entry's, in place of what was loaded under its name.
    pub(super) fn load(&self, entry: &'static Entry, ptx: &str) -> Result<()> {
        let function = load(entry, ptx)?;
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        functions.insert(entry.name, Function(function));
        Ok(())
    }
}

fn load<A, T>(entry: &Entry<A, T>, ptx: &str) -> Result<sys::CUfunction> {
    let ptx =
        CString::new(ptx).map_err(|error| Error::Shipped { reason: format!("{}: {error}", entry.name) })?;
    let module = compile(entry.name, &ptx)?;
    let name = CString::new(entry.name)
        .map_err(|error| Error::Shipped { reason: format!("{}: {error}", entry.name) })?;
    // SAFETY: the module was just loaded and is never unloaded.
    let function =
        driver::check("cuModuleGetFunction", unsafe { result::module::get_function(module, name) })?;
    let shared = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // Beyond 48 KiB a kernel gets dynamic shared memory only when its limit is raised first.
    // SAFETY: the function is live; the planner checked the size against the device.
    let raised =
        unsafe { result::function::set_function_attribute(function, shared, entry.shared_bytes as i32) };
    driver::check(
        &format!("cuFuncSetAttribute({}, {} bytes of shared memory)", entry.name, entry.shared_bytes),
        raised,
    )?;
    Ok(function)
}

/// Has the driver compile PTX, with its log in the error.
fn compile(entry: &str, ptx: &CString) -> Result<sys::CUmodule> {
    let mut log = vec![0_u8; LOG_BYTES];
    let mut options =
        [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG_BYTES as *mut c_void];
    let mut module = std::ptr::null_mut();
    // SAFETY: the image is NUL-terminated PTX, and the two options carry a buffer and its size as
    // the driver API defines them; both outlive the call.
    let loaded = unsafe {
        sys::cuModuleLoadDataEx(
            &raw mut module,
            ptx.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    loaded.result().map(|()| module).map_err(|error| jit_error(entry, error, &log))
}

fn jit_error(entry: &str, error: DriverError, log: &[u8]) -> Error {
    let log = log.split(|&byte| byte == 0).next().unwrap_or_default();
    Error::Jit {
        entry: entry.to_owned(),
        name: driver::name(error),
        log: String::from_utf8_lossy(log).trim().to_owned(),
    }
}
