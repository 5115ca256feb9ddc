//! NVTX ranges: names on the time line of Nsight Systems, or of whatever else listens.
//!
//! A tool that wants ranges names a library in `NVTX_INJECTION64_PATH`. Whoever has ranges loads it and gives
//! it a function that hands out tables of places, into which the tool writes its functions (NVTX 3:
//! `nvtxDetail/nvtxTypes.h` and `nvtxInit.h`). Crates for this compile NVIDIA's C headers, so that a build
//! would need a C compiler and libclang.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::Library;

/// What a tool is named by.
const INJECTION: &str = "NVTX_INJECTION64_PATH";

/// Its entry point, which takes [`export_table`] and returns 0 where it does not want to listen.
const INITIALIZE: &[u8] = b"InitializeInjectionNvtx2\0";

/// Functions of each module, the unused number 0 among them: none, core, CUDA, OpenCL, CUDA runtime, domains,
/// locks.
const SIZES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const LARGEST: usize = 16;

/// The module of ranges without a domain, and the numbers of its functions that are used here.
const CORE: usize = 1;
const RANGE_PUSH_A: usize = 9;
const RANGE_POP: usize = 11;

/// Numbers of export tables.
const CALLBACKS: u32 = 1;
const VERSION_INFO: u32 = 3;

/// A function of the tool's, or null.
type Slot = AtomicPtr<c_void>;

static SLOTS: [[Slot; LARGEST]; SIZES.len()] =
    [const { [const { AtomicPtr::new(std::ptr::null_mut()) }; LARGEST] }; SIZES.len()];

/// For each module the addresses of its slots; number 0 names no function, and a null ends the table.
static TABLES: [[AtomicPtr<Slot>; LARGEST + 1]; SIZES.len()] = {
    let mut tables = [const { [const { AtomicPtr::new(std::ptr::null_mut()) }; LARGEST + 1] }; SIZES.len()];
    let mut module = 0;
    while module < SIZES.len() {
        let mut number = 1;
        while number < SIZES[module] {
            tables[module][number] = AtomicPtr::new((&raw const SLOTS[module][number]).cast_mut());
            number += 1;
        }
        module += 1;
    }
    tables
};

type ExportTable = extern "system" fn(u32) -> *const c_void;
type Initialize = unsafe extern "system" fn(ExportTable) -> c_int;
type Push = unsafe extern "system" fn(*const c_char) -> c_int;
type Pop = unsafe extern "system" fn() -> c_int;

#[repr(C)]
struct Callbacks {
    bytes: usize,
    module_table: unsafe extern "system" fn(c_uint, *mut *const *const Slot, *mut c_uint) -> c_int,
}

#[repr(C)]
struct VersionInfo {
    bytes: usize,
    version: u32,
    reserved: u32,
    set_injection_version: extern "system" fn(u32),
}

static CALLBACK_TABLE: Callbacks = Callbacks { bytes: size_of::<Callbacks>(), module_table };

static VERSION_TABLE: VersionInfo =
    VersionInfo { bytes: size_of::<VersionInfo>(), version: 3, reserved: 0, set_injection_version };

extern "system" fn export_table(number: u32) -> *const c_void {
    match number {
        CALLBACKS => (&raw const CALLBACK_TABLE).cast(),
        VERSION_INFO => (&raw const VERSION_TABLE).cast(),
        _ => std::ptr::null(),
    }
}

/// Gives out the places of a module's functions: an array with a null behind it, and its length.
///
/// # Safety
/// Each pointer is null or may be written to.
unsafe extern "system" fn module_table(
    module: c_uint,
    table: *mut *const *const Slot,
    length: *mut c_uint,
) -> c_int {
    let Some(&size) = SIZES.get(module as usize).filter(|&&size| size > 0) else { return 0 };
    // SAFETY: each pointer is null or may be written to; an atomic pointer lies in memory as a pointer does.
    unsafe {
        if !table.is_null() {
            *table = TABLES[module as usize].as_ptr().cast();
        }
        if !length.is_null() {
            *length = size as c_uint;
        }
    }
    1
}

extern "system" fn set_injection_version(_version: u32) {}

/// What a tool that listens does with a range.
#[derive(Clone, Copy)]
struct Tool {
    push: Push,
    pop: Pop,
}

/// The tool, if one listens; asked for once.
fn tool() -> Option<Tool> {
    static TOOL: OnceLock<Option<Tool>> = OnceLock::new();
    *TOOL.get_or_init(|| {
        let path = std::env::var_os(INJECTION).filter(|path| !path.is_empty())?;
        // SAFETY: the user, or the tool that runs this program, wants this library's constructors to run.
        let library = unsafe { Library::new(path) }.ok()?;
        // SAFETY: by NVTX's protocol the symbol has this type.
        let initialize = unsafe { library.get::<Initialize>(INITIALIZE) }.ok()?;
        // SAFETY: by NVTX's protocol it is called once, with the function that gives out the tables.
        if unsafe { initialize(export_table) } == 0 {
            return None;
        }
        // Its functions are called until the program ends.
        std::mem::forget(library);
        let function = |number: usize| {
            let function = SLOTS[CORE][number].load(Ordering::Acquire);
            (!function.is_null()).then_some(function)
        };
        let (push, pop) = (function(RANGE_PUSH_A)?, function(RANGE_POP)?);
        // SAFETY: the tool wrote functions of these types into these places, by NVTX's protocol.
        Some(unsafe {
            Tool {
                push: std::mem::transmute::<*mut c_void, Push>(push),
                pop: std::mem::transmute::<*mut c_void, Pop>(pop),
            }
        })
    })
}

/// A range of this thread that ends when it is dropped.
pub(crate) struct Range {
    tool: Option<Tool>,
    /// Ranges of a thread are a stack, so that none goes to another thread.
    of_thread: PhantomData<*const ()>,
}

/// Begins a range; does nothing where no tool listens.
pub(crate) fn range(name: &str) -> Range {
    let of_thread = PhantomData;
    let Some((tool, name)) = tool().zip(CString::new(name).ok()) else {
        return Range { tool: None, of_thread };
    };
    // SAFETY: by NVTX's protocol the tool takes a string that ends in a null, and copies it.
    unsafe { (tool.push)(name.as_ptr()) };
    Range { tool: Some(tool), of_thread }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(tool) = self.tool {
            // SAFETY: ends the range that `range` began on this thread.
            unsafe { (tool.pop)() };
        }
    }
}
