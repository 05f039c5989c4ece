//! For build scripts: generates stubs from an annotated header into `OUT_DIR` and compiles them.
//!
//! A plug-in in Rust calls [`Stubs::compile_dispatcher`]; a client of a plug-in calls
//! [`Stubs::write_raw`] and [`Stubs::client`]. All functions panic if something fails: a build
//! script has no other way to say so.
#![allow(clippy::print_stdout, reason = "a build script talks to cargo by its standard output")]

use std::path::{Path, PathBuf};

/// The headers that generated code includes.
const SDK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/plugin/include");

/// What the generator made of one header; it lies in `OUT_DIR`.
pub struct Stubs {
    name: String,
    folder: PathBuf,
    out: PathBuf,
}

impl Stubs {
    /// Generates all files of `header`, a path relative to the crate. Cargo runs the build script
    /// again when the header or the SDK changes.
    pub fn generate(header: &str) -> Stubs {
        let path = Path::new(header);
        println!("cargo:rerun-if-changed={header}");
        println!("cargo:rerun-if-changed={SDK}");
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{header}: {error}"));
        let file = path.file_name().and_then(|name| name.to_str()).expect("a header has a name");
        let output = zazen_stubs::generate(file, &text).unwrap_or_else(|mistakes| {
            let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            panic!("{header}:\n{}", lines.join("\n"))
        });
        let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        for file in &output.files {
            std::fs::write(out.join(&file.name), &file.text).expect("OUT_DIR can be written");
        }
        let folder = path.parent().map_or_else(PathBuf::new, Path::to_path_buf);
        Stubs { name: file.trim_end_matches(".h").to_owned(), folder, out }
    }

    fn compiler(&self, file: &str) -> cc::Build {
        let here = if self.folder.as_os_str().is_empty() { Path::new(".") } else { &self.folder };
        let mut build = cc::Build::new();
        build.file(self.out.join(file)).include(SDK).include(&self.out).include(here);
        build.flag_if_supported("-std=gnu11").warnings(false);
        build
    }

    /// Compiles the dispatcher of a plug-in in Rust. Its entry table gets the name
    /// `zazen_plugin_table`: a Rust library cannot export what C defines, so zazen-plugin-sdk
    /// exports a copy under the name that hosts look for.
    pub fn compile_dispatcher(&self) {
        let Stubs { name, .. } = self;
        let mut build = self.compiler(&format!("{name}_dispatch.c"));
        build.define("zazen_plugin_v1", "zazen_plugin_table").compile(&format!("zazen_{name}_dispatch"));
    }

    /// A compiler set up for the client stubs. The caller may add files and flags, and calls
    /// `compile`.
    pub fn client(&self) -> cc::Build {
        self.compiler(&format!("{}_client.c", self.name))
    }

    /// Writes `NAME_raw.rs`: of the generated Rust only the module `raw`, the functions as C has
    /// them.
    pub fn write_raw(&self) {
        let path = |suffix: &str| self.out.join(format!("{}{suffix}.rs", self.name));
        let rust = std::fs::read_to_string(path("")).expect("it was just written");
        let raw: String = rust
            .lines()
            .skip_while(|line| !line.starts_with("pub mod raw {"))
            .take_while(|line| *line != "}")
            .flat_map(|line| [line, "\n"])
            .collect();
        std::fs::write(path("_raw"), raw + "}\n").expect("OUT_DIR can be written");
    }
}
