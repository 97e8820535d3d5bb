//! A program that looks for cuFile by both of its names, and opens it.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::ffi::c_void;

#[repr(C)]
struct Status(i32, i32);

fn main() {
    for name in [c"libcufile.so", c"libcufile.so.0"] {
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        let symbol = |function: &std::ffi::CStr| unsafe { libc::dlsym(library, function.as_ptr()) };
        let open = symbol(c"cuFileDriverOpen");
        if library.is_null() || open.is_null() {
            println!("{name:?} is missing");
            continue;
        }
        let opened =
            unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> Status>(open)() };
        let count = symbol(c"cuFileUseCount");
        let count = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> i64>(count)() };
        println!("{name:?} {} {count}", opened.0);
    }
}
