//! Listens to NVTX ranges by its protocol, and writes each beginning and end to the file that LISTENER_LOG
//! names.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::io::Write as _;

#[repr(C)]
struct Callbacks {
    bytes: usize,
    module_table: unsafe extern "C" fn(c_uint, *mut *mut *mut *const c_void, *mut c_uint) -> c_int,
}

#[repr(C)]
struct VersionInfo {
    bytes: usize,
    version: u32,
    reserved: u32,
    set_injection_version: unsafe extern "C" fn(u32),
}

fn log(line: &str) {
    let path = std::env::var_os("LISTENER_LOG").unwrap();
    let mut file = File::options().create(true).append(true).open(path).unwrap();
    writeln!(file, "{line}").unwrap();
}

unsafe extern "C" fn push(name: *const c_char) -> c_int {
    log(&format!("push {}", unsafe { CStr::from_ptr(name) }.to_str().unwrap()));
    0
}

unsafe extern "C" fn pop() -> c_int {
    log("pop");
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn InitializeInjectionNvtx2(get: unsafe extern "C" fn(u32) -> *const c_void) -> c_int {
    if std::env::var_os("LISTENER_REFUSES").is_some() {
        return 0;
    }
    unsafe {
        let version = &*get(3).cast::<VersionInfo>();
        assert!(version.bytes == size_of::<VersionInfo>() && version.version == 3);
        (version.set_injection_version)(3);
        let callbacks = &*get(1).cast::<Callbacks>();
        assert!(callbacks.bytes == size_of::<Callbacks>() && get(2).is_null());
        let (mut table, mut length) = (std::ptr::null_mut(), 0);
        for (module, functions) in [(0, 0), (1, 16), (2, 9), (3, 15), (4, 7), (5, 16), (6, 7), (7, 0)] {
            let there = (callbacks.module_table)(module, &mut table, &mut length);
            assert_eq!(there != 0, functions > 0);
            if functions > 0 {
                assert_eq!(length, functions);
                assert!((*table).is_null() && (*table.add(length as usize)).is_null());
                assert!((1..length as usize).all(|number| !(*table.add(number)).is_null()));
            }
        }
        (callbacks.module_table)(1, &mut table, &mut length);
        **table.add(9) = push as *const c_void;
        **table.add(11) = pop as *const c_void;
    }
    1
}
