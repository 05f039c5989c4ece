//! Patterns of paths in the namespace, as a shell has them: no shell expands these, because the
//! paths are not this machine's.

use super::paths;
use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace_client::Namespace;
use zazen_namespace_client::core::{Errno, Kind};

/// Whether `name` matches `pattern`, as in a shell: only a dot matches a dot at the beginning.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (Ok(pattern), Ok(name)) = (CString::new(pattern), CString::new(name)) else { return false };
    // SAFETY: strings that live for the call.
    unsafe { libc::fnmatch(pattern.as_ptr(), name.as_ptr(), libc::FNM_PERIOD) == 0 }
}

fn is_pattern(text: &[u8]) -> bool {
    text.iter().any(|byte| b"*?[".contains(byte))
}

/// The files that `given` names: itself, if there is one or if it is no pattern, else what matches,
/// in the order of names. `NotFound` if nothing does.
pub(super) fn files(namespace: &Namespace, given: &Path) -> Result<Vec<PathBuf>> {
    let path = given.as_os_str().as_bytes();
    if !is_pattern(path) || namespace.stat(None, path, true).is_ok() {
        return Ok(vec![given.to_owned()]);
    }
    let mut found = vec![Vec::new()];
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
    for (at, name) in names.iter().enumerate() {
        let is_last = at + 1 == names.len();
        let mut next = Vec::new();
        for folder in found {
            next.extend(below(namespace, folder, name, is_last)?);
        }
        found = next;
    }
    if !names.last().is_some_and(|last| is_pattern(last)) {
        found.retain(|path| namespace.stat(None, path, true).is_ok());
    }
    if found.is_empty() {
        let why = format!("{}: no file of the namespace matches", given.display());
        return Err(paths::with_hint(Error::new(ErrorKind::NotFound, why), given));
    }
    Ok(found.into_iter().map(|path| OsString::from_vec(path).into()).collect())
}

/// The paths below `folder` that a part of a pattern stands for.
fn below(namespace: &Namespace, folder: Vec<u8>, name: &[u8], is_last: bool) -> Result<Vec<Vec<u8>>> {
    let joined = |name: &[u8]| [folder.as_slice(), b"/", name].concat();
    if !is_pattern(name) {
        return Ok(vec![joined(name)]);
    }
    let listed = match namespace.list(None, if folder.is_empty() { b"/" } else { &folder }, false) {
        Ok(listed) => listed,
        // As in a shell: what cannot be listed has nothing that matches.
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES) => return Ok(Vec::new()),
        Err(errno) => {
            let folder = String::from_utf8_lossy(&folder).into_owned();
            return Err(zazen_namespace_client::error(folder, errno));
        }
    };
    let kind = |kind| if is_last { kind == Kind::File } else { kind != Kind::File };
    let fits = listed.iter().filter(|entry| kind(entry.kind) && matches(name, entry.name.as_bytes()));
    let mut names: Vec<Vec<u8>> = fits.map(|entry| joined(entry.name.as_bytes())).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_in_a_shell() {
        let check = |pattern: &str, name: &str, expected| {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        };
        check("*.vtu", "step-17.vtu", true);
        check("*.vtu", ".vtu", false);
        check("step-[0-9].vtu", "step-7.vtu", true);
        check("step-?", "step-77", false);
        assert!(is_pattern(b"/run1/*.vtu") && !is_pattern(b"/run1/a.vtu"));
    }
}
