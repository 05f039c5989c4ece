//! Generates and compiles the client stubs of the posix plug-in, and compiles what only C can
//! express.

fn main() {
    println!("cargo:rerun-if-changed=src/variadic.c");
    // Constructors of other libraries open files and write to the standard streams. zig's linker
    // does not take the option: scripts/initfirst.py marks what it made.
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    if !std::env::var("RUSTC_LINKER").is_ok_and(|linker| linker.contains("zigcc")) {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    }
    link_unwinder();
    let stubs = zazen_stubs_build::Stubs::generate("../../plugins/posix/posix.h");
    stubs.write_raw();
    stubs
        .client()
        .file("src/variadic.c")
        // -D_FORTIFY_SOURCE would call functions that this library itself defines.
        .flag("-U_FORTIFY_SOURCE")
        .compile("zazen_preload_c");
}

/// Puts libgcc's unwinder into the library: as a library of its own, it would be loaded at the
/// start of each program, which takes as long as all else that is done there. Where the compiler
/// has no such archive, libgcc_s stays.
fn link_unwinder() {
    println!("cargo:rerun-if-env-changed=CC");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let asked = std::process::Command::new(compiler).arg("-print-file-name=libgcc_eh.a").output();
    let Ok(answer) = asked else { return };
    let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
    let path = std::path::Path::new(answer.trim());
    if let Some(folder) = path.parent().filter(|_| path.is_absolute() && path.is_file()) {
        println!("cargo:rustc-link-search=native={}", folder.display());
        println!("cargo:rustc-link-lib=static:+whole-archive,-bundle=gcc_eh");
    }
}
