//! `include/zazen.h` is what cbindgen makes of the sources.

use std::path::Path;

/// The Rust doc comments' sections for callers of `unsafe` functions, as C programmers read them.
fn polished(header: String) -> String {
    header.replace("// # Safety\n", "// The caller sees to it that:\n").replace(" `None`", " NULL")
}

/// The sources, in the order of the header.
const SOURCES: [&str; 12] = [
    "status",
    "runset",
    "collectives",
    "dataset",
    "told_trajectory",
    "trajectory",
    "frames",
    "paths",
    "random",
    "writer",
    "matching",
    "namespace",
];

#[test]
fn no_source_with_calls_is_left_out() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let has_calls = std::fs::read_to_string(&path).unwrap().contains("#[unsafe(no_mangle)]");
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(!has_calls || SOURCES.contains(&name), "{name}.rs is not among the header's sources");
    }
}

#[test]
fn header_is_up_to_date() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(crate_dir.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in SOURCES {
        builder = builder.with_src(crate_dir.join("src").join(file).with_extension("rs"));
    }
    let mut generated = Vec::new();
    builder.generate().unwrap().write(&mut generated);
    let generated = polished(String::from_utf8(generated).unwrap());
    let path = crate_dir.join("include/zazen.h");
    if std::env::var_os("ZAZEN_UPDATE_HEADER").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == generated,
        "include/zazen.h is not what the sources say; run `ZAZEN_UPDATE_HEADER=1 cargo test -p zazen-c`"
    );
}
