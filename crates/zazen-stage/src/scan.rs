//! Which entries a tree has.

use crate::side::{Kind, Meta, Side};
use std::io::Result;
use std::path::{Path, PathBuf};

/// An entry, with its path relative to the root of the tree; empty for the root.
#[derive(Clone, Debug)]
pub(crate) struct TreeEntry {
    pub(crate) path: PathBuf,
    pub(crate) meta: Meta,
}

/// The end of the names of parts.
const PART: &str = ".zazen-part";

/// The part of a file: a hidden name beside it. A name that is too long for that is cut; a digest
/// keeps parts apart.
pub(crate) fn part_of(path: &Path) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    let name = path.file_name().unwrap_or_default().as_bytes();
    let mut part = std::ffi::OsString::from(".");
    if name.len() + 1 + PART.len() <= 255 {
        part.push(std::ffi::OsStr::from_bytes(name));
    } else {
        part.push(format!("{:016x}", zazen_wire::checksum::frame_checksum(name)));
    }
    part.push(PART);
    path.with_file_name(part)
}

/// Whether a name is that of a part.
fn is_part(name: &std::ffi::OsStr) -> bool {
    use std::os::unix::ffi::OsStrExt;
    name.as_bytes().starts_with(b".") && name.as_bytes().ends_with(PART.as_bytes())
}

/// All entries beneath `root`, directories before what is in them. A directory that cannot be
/// listed goes to `failed`. Parts of a run that is under way are left out.
pub(crate) fn scan(
    side: &dyn Side,
    root: &Path,
    stopped: &dyn Fn() -> bool,
    failed: &mut dyn FnMut(PathBuf, std::io::Error),
) -> Result<Vec<TreeEntry>> {
    let missing = || std::io::Error::from_raw_os_error(libc::ENOENT);
    let meta = side.meta(root)?.ok_or_else(missing)?;
    let mut entries = vec![TreeEntry { path: PathBuf::new(), meta }];
    let mut at = 0;
    while at < entries.len() && !stopped() {
        let directory = entries[at].path.clone();
        if entries[at].meta.kind == Kind::Directory {
            match side.list(&join(root, &directory)) {
                Ok(mut listed) => {
                    listed.retain(|(name, _)| !is_part(name));
                    listed.sort_by(|a, b| a.0.cmp(&b.0));
                    entries.extend(
                        listed.into_iter().map(|(name, meta)| TreeEntry { path: directory.join(name), meta }),
                    );
                }
                Err(error) => failed(directory, error),
            }
        }
        at += 1;
    }
    Ok(entries)
}

/// `root/path`, or `root` itself.
pub(crate) fn join(root: &Path, path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() { root.to_path_buf() } else { root.join(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_hidden_names_that_fit() {
        assert_eq!(part_of(Path::new("/a/b")), Path::new("/a/.b.zazen-part"));
        let long = "x".repeat(255);
        let part = part_of(&Path::new("/a").join(&long));
        assert!(part.file_name().is_some_and(|name| name.len() <= 255 && is_part(name)));
        assert_ne!(part, part_of(&Path::new("/a").join("y".repeat(255))));
        assert!(!is_part("b.zazen-part".as_ref()));
    }
}
