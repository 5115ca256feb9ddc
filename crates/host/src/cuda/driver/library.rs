//! A shared library that is opened at run time.

use std::error::Error as _;

/// A shared library.
pub(super) struct Library(libloading::Library);

impl Library {
    /// Opens a file that the system's loader finds.
    ///
    /// # Errors
    /// The loader's reason.
    pub(super) fn open(file: &str) -> Result<Self, String> {
        // SAFETY: the driver's constructors and destructors ask nothing of who opens it.
        let opened = unsafe { libloading::Library::new(file) };
        opened.map(Self).map_err(|error| reason(file, &error))
    }

    /// The function of a name, if there is one.
    ///
    /// # Safety
    /// `F` is the function's type, and is called only while the library is open.
    pub(super) unsafe fn find<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: the type is the caller's promise, and `None` stands for an address of 0.
        let symbol = unsafe { self.0.get::<Option<F>>(name) };
        symbol.ok().and_then(|symbol| *symbol)
    }
}

/// Why a library did not open, without its name, with which some loaders begin.
fn reason(file: &str, error: &libloading::Error) -> String {
    let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    reason.strip_prefix(file).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&reason).to_owned()
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;

    use super::*;

    #[test]
    fn functions_are_found_by_name() {
        let library = Library::open(if cfg!(windows) { "msvcrt.dll" } else { "libc.so.6" }).unwrap();
        type Abs = unsafe extern "C" fn(c_int) -> c_int;
        // SAFETY: C's `abs` has this type, and the library is open.
        let abs = unsafe { library.find::<Abs>("abs").unwrap()(-3) };
        assert_eq!(abs, 3);
        // SAFETY: nothing is called.
        assert!(unsafe { library.find::<Abs>("cuInit") }.is_none());
    }
}
