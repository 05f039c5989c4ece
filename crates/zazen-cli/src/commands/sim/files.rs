//! Files of results.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use zazen_core::{Error, Result};

/// Writes a file so that it is there whole or not at all.
pub(crate) fn write_whole(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    write_whole_by(path, |into| into.write_all(contents.as_ref()))
}

/// The same, with `write` for contents that need not be in memory as a whole.
///
/// Two processes may write the same file at a time: it is the one's or the other's. What is no
/// regular file, such as a pipe, is written to as it is.
pub(crate) fn write_whole_by(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> Result<()> {
    let failed = |error| Error::io(path.display().to_string(), error);
    // A link stays a link.
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let fill = |file: File| {
        let mut into = BufWriter::new(file);
        write(&mut into)?;
        into.flush()
    };
    if std::fs::metadata(&target).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return OpenOptions::new().write(true).open(&target).and_then(fill).map_err(failed);
    }
    let beside = beside(&target);
    let written = File::create(&beside).and_then(fill).and_then(|()| std::fs::rename(&beside, &target));
    written.map_err(|error| {
        // A full disk has room again.
        let _ = std::fs::remove_file(&beside);
        failed(error)
    })
}

/// A name that no other file has, nor that of another process.
fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn other_files_stay_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("cluster.part"), "mine").unwrap();
        std::os::unix::fs::symlink("real.toml", path("link.toml")).unwrap();
        std::fs::write(path("real.toml"), "old").unwrap();
        write_whole(&path("cluster.toml"), "new").unwrap();
        write_whole(&path("link.toml"), "new").unwrap();
        assert_eq!(names(folder.path()), ["cluster.part", "cluster.toml", "link.toml", "real.toml"]);
        assert_eq!(std::fs::read_to_string(path("cluster.part")).unwrap(), "mine");
        assert_eq!(std::fs::read_to_string(path("real.toml")).unwrap(), "new");
        assert!(std::fs::symlink_metadata(path("link.toml")).unwrap().is_symlink());
    }

    #[test]
    fn what_fails_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.csv");
        std::fs::write(&path, "old").unwrap();
        let full = write_whole_by(&path, |into| {
            into.write_all(b"half")?;
            Err(std::io::ErrorKind::StorageFull.into())
        });
        assert!(full.unwrap_err().to_string().contains("x.csv"));
        assert_eq!(names(folder.path()), ["x.csv"]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert!(write_whole(folder.path(), "x").is_err());
        assert_eq!(names(folder.path()), ["x.csv"]);
    }
}
