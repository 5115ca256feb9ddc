//! NCCL, loaded at run time: the process's own, PyTorch's, or the system's.
//!
//! Names and values are those of `nccl.h`.

mod communicator;
mod functions;

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

use super::library::Library;
use crate::{Error, Result};
pub(in crate::cuda) use communicator::{Communicator, KeepOn, Memory};
pub(in crate::cuda) use functions::UniqueId;
use functions::{Functions, NcclResult};

/// The library's names, the one of all installations first: PyTorch's wheels have no other.
const FILES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The variable that names another file.
const VARIABLE: &str = "FA_NCCL";

/// The first version that gathers by copy engines.
const COPY_ENGINES: i32 = 22_800;

/// The first version that has all that gathers by kernels need.
const KERNELS: i32 = 21_900;

/// NCCL of this process.
pub(in crate::cuda) struct Nccl {
    library: Library,
    functions: Functions,
    /// Where it was found.
    file: String,
    /// As 10000·major + 100·minor + patch.
    version: i32,
}

impl Nccl {
    /// NCCL, which is opened once; a failure to open it is kept too. `FA_NCCL` names the file; without it, a
    /// library that the process has loaded already, as PyTorch does, comes before the system's.
    ///
    /// # Errors
    /// [`Error::NoNccl`] when there is none, with where it was looked for.
    pub(in crate::cuda) fn get() -> Result<&'static Self> {
        static NCCL: OnceLock<Result<Nccl, String>> = OnceLock::new();
        let opened = NCCL.get_or_init(|| {
            let named = std::env::var(VARIABLE).ok();
            match &named {
                Some(file) => Self::open(&[file.as_str()]),
                None => Self::open(&FILES),
            }
        });
        opened.as_ref().map_err(|reason| Error::NoNccl { reason: reason.clone() })
    }

    /// The first of these files that opens.
    fn open(files: &[&str]) -> Result<Self, String> {
        let mut reasons = Vec::new();
        for file in files {
            match Library::open(file) {
                Ok(library) => {
                    let functions = Functions::default();
                    let mut nccl = Self { library, functions, file: (*file).to_owned(), version: 0 };
                    let mut version = 0;
                    // SAFETY: NCCL writes one integer.
                    let found = unsafe { nccl.ncclGetVersion(&raw mut version) };
                    match found.map_err(Error::from) {
                        Ok(()) => {
                            nccl.version = version;
                            return Ok(nccl);
                        }
                        Err(error) => reasons.push(format!("{file}: {error}")),
                    }
                }
                Err(reason) => reasons.push(format!("{file}: {reason}")),
            }
        }
        Err(reasons.join("; "))
    }

    /// The version, as 10000·major + 100·minor + patch.
    pub(in crate::cuda) const fn version(&self) -> i32 {
        self.version
    }

    /// Its version and file, in words.
    pub(in crate::cuda) fn name(&self) -> String {
        format!("NCCL {} of {}", version_name(self.version), self.file)
    }

    /// Refuses a version whose gathers take multiprocessors.
    ///
    /// # Errors
    /// [`Error::NoNccl`], with the version.
    pub(in crate::cuda) fn check_copy_engines(&self) -> Result<()> {
        self.check_version(COPY_ENGINES)
    }

    /// Refuses a version that has not what gathers by kernels need.
    ///
    /// # Errors
    /// As [`Self::check_copy_engines`].
    pub(in crate::cuda) fn check_kernels(&self) -> Result<()> {
        self.check_version(KERNELS)
    }

    fn check_version(&self, needed: i32) -> Result<()> {
        if self.version >= needed {
            return Ok(());
        }
        let [found, needed] = [self.version, needed].map(version_name);
        Err(Error::NoNccl { reason: format!("{} is NCCL {found}, and {needed} is needed", self.file) })
    }

    /// NCCL's words for a code.
    fn description(&self, code: NcclResult) -> String {
        type GetErrorString = unsafe extern "system" fn(NcclResult) -> *const c_char;
        // SAFETY: `nccl.h` declares the function so, and takes any code.
        let text = unsafe { self.library.find::<GetErrorString>("ncclGetErrorString").map(|get| get(code)) };
        match text {
            // SAFETY: NCCL's texts end with NUL and stay where they are while it is loaded.
            Some(text) if !text.is_null() => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
            _ => "no description".to_owned(),
        }
    }
}

/// 22809 as 2.28.9.
pub(in crate::cuda) fn version_name(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// A call that failed.
pub(in crate::cuda) struct Failure<'nccl> {
    nccl: &'nccl Nccl,
    function: &'static str,
    /// `None` where the library has no such function.
    code: Option<NcclResult>,
}

impl<'nccl> Failure<'nccl> {
    const fn missing(nccl: &'nccl Nccl, function: &'static str) -> Self {
        Self { nccl, function, code: None }
    }

    /// The call's outcome by the code that it returned; a call that goes on has not failed.
    fn check(nccl: &'nccl Nccl, function: &'static str, code: NcclResult) -> Result<(), Self> {
        match code {
            NcclResult::SUCCESS | NcclResult::IN_PROGRESS => Ok(()),
            code => Err(Self { nccl, function, code: Some(code) }),
        }
    }
}

impl From<Failure<'_>> for Error {
    fn from(Failure { nccl, function, code }: Failure<'_>) -> Self {
        let found = || format!("{} is NCCL {}", nccl.file, version_name(nccl.version));
        match code {
            None => Self::NcclFunction { function, found: found() },
            Some(code) => Self::Nccl { function, code: code.0, description: nccl.description(code) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_all_places() {
        let reason = Nccl::open(&["libnccl-that-is-missing.so.2", "libnccl-nor-this.so"]).err().unwrap();
        let [first, second] = ["libnccl-that-is-missing.so.2: ", "; libnccl-nor-this.so: "];
        assert!(reason.starts_with(first) && reason.contains(second), "{reason}");
    }

    #[test]
    fn a_library_that_is_no_nccl_is_refused() {
        let reason = Nccl::open(&["libc.so.6"]).err().unwrap();
        let expected = "libc.so.6: NCCL has no function ncclGetVersion; libc.so.6 is NCCL 0.0.0";
        assert_eq!(reason, expected);
    }

    #[test]
    fn versions_are_named_as_releases_are() {
        assert_eq!(version_name(22_809), "2.28.9");
    }

    /// A library of this version alone, which the compiler of these tests makes.
    fn stub(version: i32) -> Nccl {
        let folder = std::env::temp_dir().join(format!("nccl-{version}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [source, library] = ["stub.rs", "libnccl.so.2"].map(|name| folder.join(name));
        let function = format!(
            "extern \"C\" fn ncclGetVersion(to: *mut i32) -> i32 {{ unsafe {{ *to = {version} }}; 0 }}"
        );
        std::fs::write(&source, format!("#[unsafe(no_mangle)] pub unsafe {function}")).unwrap();
        let mut rustc = std::process::Command::new("rustc");
        rustc.args(["--crate-type=cdylib", "--edition=2024", "-o"]).args([&library, &source]);
        assert!(rustc.status().unwrap().success());
        let opened = Nccl::open(&[library.to_str().unwrap()]).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        opened
    }

    #[test]
    fn a_library_that_is_too_old_or_lacks_a_function_is_named() {
        let refusal = stub(22_703).check_copy_engines().unwrap_err().to_string();
        assert!(refusal.contains("libnccl.so.2 is NCCL 2.27.3, and 2.28.0 is needed; "), "{refusal}");
        stub(22_703).check_kernels().unwrap();
        let refusal = stub(21_805).check_kernels().unwrap_err().to_string();
        assert!(refusal.contains("libnccl.so.2 is NCCL 2.18.5, and 2.19.0 is needed; "), "{refusal}");
        let nccl = stub(22_809);
        nccl.check_copy_engines().unwrap();
        let mut id = UniqueId([0; 128]);
        // SAFETY: the library has no such function, and nothing is called.
        let missing = unsafe { nccl.ncclGetUniqueId(&raw mut id) }.map_err(Error::from).unwrap_err();
        let text = missing.to_string();
        assert!(
            text.starts_with("NCCL has no function ncclGetUniqueId; ") && text.ends_with("2.28.9"),
            "{text}"
        );
    }
}
