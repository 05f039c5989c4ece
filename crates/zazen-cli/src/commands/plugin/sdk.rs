//! `zazen plugin sdk`: the headers and runtimes that generated code stands on.

use super::runtime;
use crate::output;
use std::path::Path;
use zazen_core::{Error, Result};

macro_rules! sdk {
    ($($folder:literal / $name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../../../sdk/plugin/", $folder, "/", $name)))),*]
    };
}

/// What generated code is compiled with.
const SDK: [(&str, &str); 8] = sdk![
    "include" / "zazen_segment.h",
    "include" / "zazen_stub.h",
    "include" / "zazen_connect.h",
    "include" / "zazen_plugin.h",
    "include" / "zazen_selftest.h",
    "include" / "zazen_fuzz.h",
    "loopback" / "zazen_loopback.h",
    "loopback" / "zazen_loopback.c",
];

/// Writes them into `folder`, which is made if it is not there.
pub(super) fn write(folder: &Path) -> Result<()> {
    write_all(folder, SDK.iter().copied())?;
    runtime::copy_to(folder)?;
    output::line(format!("headers and runtimes written to {}", folder.display()));
    Ok(())
}

/// Writes (name, text) files into `folder`, which is made if it is not there.
pub(super) fn write_all<'a>(folder: &Path, files: impl Iterator<Item = (&'a str, &'a str)>) -> Result<()> {
    std::fs::create_dir_all(folder)
        .map_err(|error| Error::io(format!("folder {}", folder.display()), error))?;
    for (name, text) in files {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|error| Error::io(format!("file {}", path.display()), error))?;
    }
    Ok(())
}
