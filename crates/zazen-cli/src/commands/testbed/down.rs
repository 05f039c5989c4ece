//! `zazen testbed down`: idempotent; touches only what the record names.

use crate::output;
use std::path::Path;
use zazen_core::{ErrorKind, Result};
use zazen_testbed::{State, take_down};

pub(crate) fn run(dir: &Path) -> Result<()> {
    let state = match State::load(dir) {
        Ok(state) => state,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            output::line(format!("testbed {}: there is none", dir.display()));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let folder = state.folder()?;
    let held = folder.lock()?;
    take_down(&state, &mut |remark| output::note(remark))?;
    folder.remove_lock();
    drop(held);
    // The folder goes too where nothing of the user's is left in it.
    let _ = std::fs::remove_dir(folder.path());
    output::line(format!("testbed {}: down", dir.display()));
    if state.backing_root.starts_with(folder.path()) && state.backing_root.exists() {
        output::line(format!("kept the file server's data in {}", state.backing_root.display()));
    }
    Ok(())
}
