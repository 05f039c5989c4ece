//! Makes the posix plug-in's client stubs, for `zazen run --seccomp`, and compiles them.

use std::path::{Path, PathBuf};

fn main() {
    let sdk = Path::new("../../sdk/plugin/include");
    let plugin = Path::new("../../plugins/posix");
    let header = plugin.join("posix.h");
    println!("cargo:rerun-if-changed={}", header.display());
    println!("cargo:rerun-if-changed={}", sdk.display());
    let text = std::fs::read_to_string(&header).expect("plugins/posix/posix.h is there");
    let output = zazen_stubs::generate("posix.h", &text).unwrap_or_else(|mistakes| {
        let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        panic!("posix.h:\n{}", lines.join("\n"))
    });
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for file in &output.files {
        std::fs::write(out.join(&file.name), &file.text).expect("OUT_DIR can be written");
    }
    // Of the generated Rust only the plain functions are wanted.
    let rust = std::fs::read_to_string(out.join("posix.rs")).expect("it was just written");
    let raw: String = rust
        .lines()
        .skip_while(|line| !line.starts_with("pub mod raw {"))
        .take_while(|line| *line != "}")
        .flat_map(|line| [line, "\n"])
        .collect();
    std::fs::write(out.join("posix_raw.rs"), raw + "}\n").expect("OUT_DIR can be written");
    cc::Build::new()
        .file(out.join("posix_client.c"))
        .include(sdk)
        .include(&out)
        .include(plugin)
        .flag_if_supported("-std=gnu11")
        .warnings(false)
        .compile("zazen_posix_client");
}
