//! `zazen testbed down`: idempotent; touches only what the record names.

use crate::output;
use std::path::Path;
use zazen_core::{ErrorKind, Result};
use zazen_testbed::variables::{NAMES, TESTBED};
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
    // The shell's variables go on to name it.
    let is_named = std::env::var_os(TESTBED).is_some_and(|named| Path::new(&named) == state.dir);
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
    if is_named {
        let set: Vec<&str> = NAMES.into_iter().filter(|name| std::env::var_os(name).is_some()).collect();
        output::note(format!("this shell still names it: `unset {}`", set.join(" ")));
    }
    Ok(())
}
