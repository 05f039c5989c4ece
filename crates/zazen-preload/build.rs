//! Generates and compiles the client stubs of the posix plug-in, and compiles what only C can express.

fn main() {
    println!("cargo:rerun-if-changed=src/variadic.c");
    // Constructors of other libraries open files and write to the standard streams.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    let stubs = zazen_stubs_build::Stubs::generate("../../plugins/posix/posix.h");
    stubs.write_raw();
    stubs
        .client()
        .file("src/variadic.c")
        // -D_FORTIFY_SOURCE would call functions that this library itself defines.
        .flag("-U_FORTIFY_SOURCE")
        .compile("zazen_preload_c");
}
