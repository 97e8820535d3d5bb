//! Gives the library the name under which programs ask for the driver.

fn main() {
    // Who has loaded it by its path gets the same library for `libcuda.so.1`.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rerun-if-changed=build.rs");
}
