//! The client runtime, `libzazen_stub.so`: found where this program was installed, put beside the headers.

use crate::output;
use std::path::{Path, PathBuf};
use zazen_core::{Error, Result};

const LIBRARY: &str = "libzazen_stub.so";

/// `$ZAZEN_STUB_LIBRARY`; beside this program; in a `lib` folder beside its folder, of a Python environment too.
fn find() -> Option<PathBuf> {
    let named = std::env::var_os("ZAZEN_STUB_LIBRARY").filter(|name| !name.is_empty());
    if let Some(named) = named {
        return Some(named.into());
    }
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?;
    let lib = folder.parent()?.join("lib");
    let pythons = std::fs::read_dir(&lib).into_iter().flatten().flatten();
    let pythons = pythons.map(|python| python.path().join("site-packages/zazen/lib"));
    [folder.to_path_buf(), lib.clone()]
        .into_iter()
        .chain(pythons)
        .map(|folder| folder.join(LIBRARY))
        .find(|library| library.is_file())
}

/// Copies the library into `folder`; where there is none, the loopback runtime is still there.
pub(super) fn copy_to(folder: &Path) -> Result<()> {
    let Some(library) = find() else {
        output::note(format!(
            "no {LIBRARY} beside this program: clients can be linked with zazen_loopback.c only; install it, or \
             name it by $ZAZEN_STUB_LIBRARY"
        ));
        return Ok(());
    };
    // Aside and renamed: a program that has the old one mapped goes on with it.
    let (fresh, target) = (folder.join(format!("{LIBRARY}.new")), folder.join(LIBRARY));
    std::fs::copy(&library, &fresh)
        .and_then(|_| std::fs::rename(&fresh, &target))
        .map_err(|error| Error::io(format!("copy {} to {}", library.display(), target.display()), error))
}
