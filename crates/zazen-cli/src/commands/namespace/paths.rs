//! Paths of the namespace that a command was given and did not find.

use std::path::{Path, PathBuf};
use zazen_core::Error;
use zazen_namespace_client::core::Errno;

/// The error of `path`. People name files by their paths in a mount, too: then it says the right
/// one.
pub(super) fn refused(path: &Path, errno: Errno) -> Error {
    let error = zazen_namespace_client::error(path.display(), errno);
    if errno == Errno::ENOENT { with_hint(error, path) } else { error }
}

/// Adds to the error of a path that was not found what it is in the namespace, if it lies in a
/// mount.
pub(super) fn with_hint(error: Error, path: &Path) -> Error {
    let told = |path: &Path| zazen_locate::within_namespace(path).ok().flatten();
    match in_mount(path, told) {
        Some(right) => {
            let right = right.display();
            let why = format!("{error}; paths begin at the namespace's root, not at a mount: give {right}");
            Error::new(error.kind(), why)
        }
        None => error,
    }
}

/// What `path` is in the namespace; `None` if it lies in no mount. `within` tells that of a path
/// that is there, and `path` may not be.
fn in_mount(path: &Path, within: impl Fn(&Path) -> Option<String>) -> Option<PathBuf> {
    let there = path.ancestors().filter(|_| path.is_absolute()).find(|above| above.exists())?;
    let rest = path.strip_prefix(there).ok()?;
    let right = PathBuf::from(within(there)?);
    Some(if rest.as_os_str().is_empty() { right } else { right.join(rest) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_mount_has_another_name_in_the_namespace() {
        let mount = tempfile::tempdir().unwrap();
        std::fs::create_dir(mount.path().join("run1")).unwrap();
        let within = |path: &Path| {
            let beneath = path.strip_prefix(mount.path()).ok()?;
            Some(Path::new("/").join(beneath).to_str()?.to_owned())
        };
        let check = |path: PathBuf, expected: Option<&str>| {
            assert_eq!(in_mount(&path, within), expected.map(PathBuf::from), "{}", path.display());
        };
        check(mount.path().join("run1"), Some("/run1"));
        check(mount.path().join("run1/new/f-*"), Some("/run1/new/f-*"));
        check("/no/such".into(), None);
        check("relative".into(), None);
    }
}
