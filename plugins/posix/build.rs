//! Makes the dispatcher from `posix.h` and compiles it.

use std::path::{Path, PathBuf};

fn main() {
    let sdk = Path::new("../../sdk/plugin/include");
    println!("cargo:rerun-if-changed=posix.h");
    println!("cargo:rerun-if-changed={}", sdk.display());
    let text = std::fs::read_to_string("posix.h").expect("posix.h stands beside build.rs");
    let output = zazen_stubs::generate("posix.h", &text).unwrap_or_else(|mistakes| {
        let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        panic!("posix.h:\n{}", lines.join("\n"))
    });
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for file in &output.files {
        std::fs::write(out.join(&file.name), &file.text).expect("OUT_DIR can be written");
    }
    cc::Build::new()
        .file(out.join("posix_dispatch.c"))
        .include(sdk)
        .include(&out)
        .include(".")
        // A Rust library can't export what C defines: src/entry.rs does it under the real name.
        .define("zazen_plugin_v1", "zazen_posix_table")
        .flag_if_supported("-std=gnu11")
        .warnings(false)
        .compile("zazen_posix_dispatch");
}
