//! The client runtime, `libzazen_stub.so`: found where this program was installed, put beside the
//! headers.

use crate::output;
use std::path::{Path, PathBuf};
use zazen_core::{Error, Result};

const LIBRARY: &str = "libzazen_stub.so";

/// `$ZAZEN_STUB_LIBRARY`, or what was installed with this program.
fn find() -> Option<PathBuf> {
    let named = std::env::var_os("ZAZEN_STUB_LIBRARY").filter(|name| !name.is_empty());
    named.map(PathBuf::from).or_else(|| zazen_env::installed::find_library(LIBRARY))
}

/// Copies the library into `folder`; where there is none, the loopback runtime is still there.
pub(super) fn copy_to(folder: &Path) -> Result<()> {
    let Some(library) = find() else {
        output::note(format!(
            "no {LIBRARY} beside this program: clients can be linked with zazen_loopback.c only; install it, \
             or name it by $ZAZEN_STUB_LIBRARY"
        ));
        return Ok(());
    };
    // Aside and renamed: a program that has the old one mapped goes on with it.
    let (fresh, target) = (folder.join(format!("{LIBRARY}.new")), folder.join(LIBRARY));
    std::fs::copy(&library, &fresh)
        .and_then(|_| std::fs::rename(&fresh, &target))
        .map_err(|error| Error::io(format!("copy {} to {}", library.display(), target.display()), error))
}
