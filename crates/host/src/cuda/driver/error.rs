//! What a call of the driver comes to.

use std::ffi::{CStr, c_char};
use std::fmt::Display;

use super::{Driver, version_name};
use crate::Error;

/// A `CUresult`: any number, for drivers return codes that are newer than this crate.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct CuResult(pub(super) u32);

impl CuResult {
    pub(super) const SUCCESS: Self = Self(0);
    const OUT_OF_MEMORY: Self = Self(2);
    const NOT_READY: Self = Self(600);
    const PEER_ACCESS_ALREADY_ENABLED: Self = Self(704);
}

/// A call that failed. The driver's words are looked up only when it becomes an [`Error`].
pub(in crate::cuda) struct Failure<'driver> {
    driver: &'driver Driver,
    function: &'static str,
    /// `None` where the driver has no such function.
    code: Option<CuResult>,
}

impl<'driver> Failure<'driver> {
    pub(super) const fn missing(driver: &'driver Driver, function: &'static str) -> Self {
        Self { driver, function, code: None }
    }

    /// The call's outcome by the code that it returned.
    pub(super) fn check(driver: &'driver Driver, function: &'static str, code: CuResult) -> Result<(), Self> {
        if code == CuResult::SUCCESS { Ok(()) } else { Err(Self { driver, function, code: Some(code) }) }
    }

    pub(in crate::cuda) fn is_out_of_memory(&self) -> bool {
        self.code == Some(CuResult::OUT_OF_MEMORY)
    }

    pub(in crate::cuda) fn is_not_ready(&self) -> bool {
        self.code == Some(CuResult::NOT_READY)
    }

    pub(in crate::cuda) fn is_enabled_already(&self) -> bool {
        self.code == Some(CuResult::PEER_ACCESS_ALREADY_ENABLED)
    }

    /// The error of a call for `what`.
    pub(in crate::cuda) fn of(&self, what: impl Display) -> Error {
        self.error(format!("{}({what})", self.function))
    }

    /// The error of compiling an entry, with the compiler's log, which ends with NUL.
    pub(in crate::cuda) fn of_compiler(&self, entry: &str, log: &[u8]) -> Error {
        let Some(code) = self.code else { return self.of(entry) };
        let name = format!("{}, code {}", self.driver.name(code), code.0);
        let log = log.split(|&byte| byte == 0).next().unwrap_or_default();
        Error::Jit { entry: entry.to_owned(), name, log: String::from_utf8_lossy(log).trim().to_owned() }
    }

    fn error(&self, call: String) -> Error {
        let Some(code) = self.code else {
            let found = self.driver.version().map(|version| format!("CUDA {}", version_name(version)));
            let found = found.unwrap_or_else(|_| "an unknown CUDA version".to_owned());
            return Error::NoDriverFunction { function: self.function, found };
        };
        let (name, description) = (self.driver.name(code), self.driver.description(code));
        Error::Cuda { call, code: code.0, name, description }
    }
}

impl From<Failure<'_>> for Error {
    fn from(failure: Failure<'_>) -> Self {
        failure.error(failure.function.to_owned())
    }
}

impl Driver {
    /// The driver's name of a code, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    fn name(&self, code: CuResult) -> String {
        // SAFETY: the driver writes the address of a string of its own, or 0.
        let name = text(|text| unsafe { self.cuGetErrorName(code, text) });
        name.unwrap_or_else(|| "an error that the driver has no name for".to_owned())
    }

    /// The driver's description of a code.
    fn description(&self, code: CuResult) -> String {
        // SAFETY: the driver writes the address of a string of its own, or 0.
        let description = text(|text| unsafe { self.cuGetErrorString(code, text) });
        description.unwrap_or_else(|| "no description".to_owned())
    }
}

/// The string whose address `get` writes; none where it fails, as it does for a code that it does not know.
fn text<'driver>(get: impl FnOnce(*mut *const c_char) -> Result<(), Failure<'driver>>) -> Option<String> {
    let mut text = std::ptr::null();
    get(&raw mut text).ok()?;
    if text.is_null() {
        return None;
    }
    // SAFETY: the driver's texts end with NUL and stay where they are while it is loaded.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
