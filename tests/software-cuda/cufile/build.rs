//! Gives the library the name that runtime installs of cuFile have.

fn main() {
    // Who has loaded it by its path gets the same library for `libcufile.so.0`.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcufile.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
