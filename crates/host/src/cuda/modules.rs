//! Loaded kernels: each entry is a module of its own, compiled by the driver when first used, or loaded as
//! the cubin that ships with it.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use fa_kernels::entries::{Entry, Image};

use super::driver::{CuFunction, CuModule, Driver, FunctionAttribute, JitOption};
use crate::{Error, Result};

/// Bytes for the driver compiler's log.
const LOG_BYTES: usize = 16 << 10;

/// Functions by the entry's address, for a sweep's variant may have the name of a listed one. Modules stay
/// loaded as long as the process's primary context.
#[derive(Default)]
pub(super) struct Modules {
    functions: Mutex<HashMap<usize, Arc<Mutex<Option<Function>>>>>,
}

#[derive(Clone, Copy)]
struct Function {
    handle: CuFunction,
    /// Bytes of shared memory that a launch of it may have.
    shared_bytes: u32,
}

// SAFETY: a function handle is an opaque address that the driver lets every thread use.
unsafe impl Send for Function {}

impl Modules {
    /// The entry's function for launches with so many bytes of shared memory, loaded into the current context
    /// if it is not yet.
    pub(super) fn function<A, T>(
        &self,
        entry: &'static Entry<A, T>,
        shared_bytes: u32,
    ) -> Result<CuFunction> {
        let place = self.place(entry);
        // Other threads wait for this entry alone while the driver compiles it.
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        let mut function = match *place {
            Some(function) => function,
            None => function(entry, module(entry)?)?,
        };
        if function.shared_bytes < shared_bytes {
            function = function.with_shared(entry, shared_bytes)?;
        }
        *place = Some(function);
        Ok(function.handle)
    }

    /// Where an entry's function stands once it is loaded.
    fn place<A, T>(&self, entry: &'static Entry<A, T>) -> Arc<Mutex<Option<Function>>> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(functions.entry(std::ptr::from_ref(entry).addr()).or_default())
    }

    /// Loads `ptx` as the entry's, in place of what was loaded of it.
    pub(super) fn load<A, T>(&self, entry: &'static Entry<A, T>, ptx: &str) -> Result<()> {
        let function = function(entry, compile(entry.name, ptx)?)?;
        *self.place(entry).lock().unwrap_or_else(PoisonError::into_inner) = Some(function);
        Ok(())
    }
}

/// An entry's module, from what the program brings along or from what ships.
fn module<A, T>(entry: &Entry<A, T>) -> Result<CuModule> {
    let name = entry.name;
    match entry.image {
        Some(Image { ptx, cubin }) => load(name, cubin, || Ok(ptx.into())),
        None => load(name, crate::shipped::cubin(name)?.as_deref(), || crate::shipped::ptx(name)),
    }
}

/// The cubin, where there is one that the driver takes, else the PTX. Only an entry that runs on one
/// architecture alone has a cubin, and no plan launches it on another.
fn load(entry: &str, cubin: Option<&[u8]>, ptx: impl FnOnce() -> Result<String>) -> Result<CuModule> {
    if let Some(cubin) = cubin {
        let mut module = std::ptr::null_mut();
        // SAFETY: the driver writes one handle; the image is a whole cubin, of a length that its headers say.
        let loaded = unsafe { Driver::get()?.cuModuleLoadData(&raw mut module, cubin.as_ptr().cast()) };
        // A driver that is older than the cubin's assembler may refuse it, and compile the PTX.
        if loaded.is_ok() {
            return Ok(module);
        }
    }
    compile(entry, &ptx()?)
}

fn c_string(entry: &str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|error| Error::Shipped { reason: format!("{entry}: {error}") })
}

/// The entry's function in its module.
fn function<A, T>(entry: &Entry<A, T>, module: CuModule) -> Result<Function> {
    let (driver, name) = (Driver::get()?, c_string(entry.name, entry.name)?);
    let mut handle = std::ptr::null_mut();
    // SAFETY: the driver writes one handle; the module was just loaded and is never unloaded.
    unsafe { driver.cuModuleGetFunction(&raw mut handle, module, name.as_ptr()) }
        .map_err(|failure| failure.of(entry.name))?;
    Function { handle, shared_bytes: 0 }.with_shared(entry, entry.shared_bytes)
}

impl Function {
    /// It, with its limit raised: beyond 48 KiB a kernel gets dynamic shared memory only then.
    fn with_shared<A, T>(self, entry: &Entry<A, T>, shared_bytes: u32) -> Result<Self> {
        let attribute = FunctionAttribute::MaxDynamicSharedSize;
        // SAFETY: the function is live; the planner checked the size against the device.
        unsafe { Driver::get()?.cuFuncSetAttribute(self.handle, attribute, shared_bytes as i32) }.map_err(
            |failure| failure.of(format_args!("{}, {shared_bytes} bytes of shared memory", entry.name)),
        )?;
        Ok(Self { shared_bytes, ..self })
    }
}

/// Has the driver compile PTX, with its log in the error.
fn compile(entry: &str, ptx: &str) -> Result<CuModule> {
    let ptx = c_string(entry, ptx)?;
    let mut log = vec![0_u8; LOG_BYTES];
    let mut options = [JitOption::ErrorLogBuffer, JitOption::ErrorLogBufferSizeBytes];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG_BYTES as *mut c_void];
    let mut module = std::ptr::null_mut();
    // SAFETY: the image is NUL-terminated PTX, and the two options carry a buffer and its size as
    // the driver API defines them; both outlive the call.
    let loaded = unsafe {
        Driver::get()?.cuModuleLoadDataEx(
            &raw mut module,
            ptx.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    loaded.map(|()| module).map_err(|failure| failure.of_compiler(entry, &log))
}
