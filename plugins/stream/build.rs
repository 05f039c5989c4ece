//! Makes the dispatcher from `stream.h` and compiles it.

use std::path::{Path, PathBuf};

fn main() {
    let sdk = Path::new("../../sdk/plugin/include");
    println!("cargo:rerun-if-changed=stream.h");
    println!("cargo:rerun-if-changed={}", sdk.display());
    let text = std::fs::read_to_string("stream.h").expect("stream.h stands beside build.rs");
    let output = zazen_stubs::generate("stream.h", &text).unwrap_or_else(|mistakes| {
        let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        panic!("stream.h:\n{}", lines.join("\n"))
    });
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for file in &output.files {
        std::fs::write(out.join(&file.name), &file.text).expect("OUT_DIR can be written");
    }
    cc::Build::new()
        .file(out.join("stream_dispatch.c"))
        .include(sdk)
        .include(&out)
        .include(".")
        // A Rust library can't export what C defines: src/entry.rs does it under the real name.
        .define("zazen_plugin_v1", "zazen_stream_table")
        .flag_if_supported("-std=gnu11")
        .warnings(false)
        .compile("zazen_stream_dispatch");
}
