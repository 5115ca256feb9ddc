//! Shared libraries that are opened at run time, and tables of their functions.

use std::error::Error as _;

/// A shared library.
pub(in crate::cuda) struct Library(libloading::Library);

impl Library {
    /// Opens a file that the system's loader finds.
    ///
    /// # Errors
    /// The loader's reason.
    pub(in crate::cuda) fn open(file: &str) -> Result<Self, String> {
        // SAFETY: the constructors and destructors of the driver and of NCCL ask nothing of who opens them.
        let opened = unsafe { libloading::Library::new(file) };
        opened.map(Self).map_err(|error| reason(file, &error))
    }

    /// The function of a name, if there is one.
    ///
    /// # Safety
    /// `F` is the function's type, and is called only while the library is open.
    pub(in crate::cuda) unsafe fn find<F: Copy>(&self, name: &str) -> Option<F> {
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

/// Makes a method of a library's type of each function, by the name that the library exports it under.
/// Methods return nothing, or a failure that knows the library, the function's name and its code.
macro_rules! functions {
    (
        $library:ty, $code:ty, $failure:ty;
        $($(#[$cfg:meta])? fn $name:ident($($argument:ident: $type:ty),* $(,)?);)*
    ) => {
        /// What was found of each function: empty until its first call, `None` where the library lacks it.
        #[derive(Default)]
        #[allow(non_snake_case, reason = "the library's names")]
        pub(super) struct Functions {
            $($(#[$cfg])?
            $name: std::sync::OnceLock<Option<unsafe extern "system" fn($($type),*) -> $code>>,)*
        }

        /// Each method is `unsafe`, for the library trusts its arguments: they are what its documentation
        /// asks of those of the function.
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the library's names and arguments")]
        impl $library {
            $($(#[$cfg])?
            pub(in crate::cuda) unsafe fn $name(&self, $($argument: $type),*) -> Result<(), $failure> {
                let name = stringify!($name);
                // SAFETY: the library's header declares the function so; `self` keeps the library open.
                let function = self.functions.$name.get_or_init(|| unsafe { self.library.find(name) });
                let Some(function) = function else { return Err(Failure::missing(self, name)) };
                // SAFETY: the arguments are what the library asks of this function, as said above.
                let code = unsafe { function($($argument),*) };
                Failure::check(self, name, code)
            })*
        }
    };
}
pub(in crate::cuda) use functions;

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
