//! The namespace: a file is where its holder is. Its index and files are named by a path in a
//! mount of the namespace, or, without a mount, as `namespace:/ocean/ts.vtm.series`.

use crate::{Located, Locations, Locator, Replica};
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace_client::core::Errno;
use zazen_namespace_client::core::operation::Mode;
use zazen_namespace_client::{Namespace, error};

/// What a path without a mount begins with.
pub(crate) const SCHEME: &str = "namespace:";
/// Bytes that one read brings.
const CHUNK_BYTES: usize = 4 << 20;
/// The type of the namespace's mounts, as the kernel names it (`zazen_mount::SUBTYPE`).
const MOUNT_KIND: &[u8] = b"fuse.zazen";
const READ: Mode = Mode { read: true, write: false, truncate: false };

/// A directory of the namespace, asked through a daemon.
pub struct InNamespace {
    namespace: Namespace,
    directory: String,
}

impl InNamespace {
    /// The files beneath `directory`, an absolute path of the namespace or `namespace:/…`.
    pub fn new(namespace: Namespace, directory: &str) -> InNamespace {
        let directory = directory.strip_prefix(SCHEME).unwrap_or(directory);
        InNamespace { namespace, directory: directory.trim_end_matches('/').to_owned() }
    }

    fn path_of(&self, file: &str) -> String {
        if file.starts_with('/') { file.to_owned() } else { format!("{}/{file}", self.directory) }
    }

    fn open(&self, file: &str) -> Result<zazen_namespace_client::File> {
        let path = self.path_of(file);
        let opened = self.namespace.open(None, path.as_bytes(), READ);
        opened.map_err(|errno| error(format!("{SCHEME}{path}"), errno))
    }

    /// The whole file, which may have at most `bytes_max` bytes.
    pub(crate) fn read(&self, file: &str, bytes_max: u64) -> Result<Vec<u8>> {
        let opened = self.open(file)?;
        let bytes = opened.attributes().bytes;
        if bytes > bytes_max {
            let why = format!("{SCHEME}{}: {bytes} bytes, the limit is {bytes_max}", self.path_of(file));
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        let mut read = vec![0; bytes as usize];
        let got = opened.read_at(&mut read, 0);
        let got = got.map_err(|errno| error(format!("{SCHEME}{}", self.path_of(file)), errno))?;
        read.truncate(got);
        Ok(read)
    }

    /// Writes the bytes of `file` into `into`, from the holder; fails if they are not `bytes`.
    pub fn fetch(&self, file: &str, bytes: u64, into: &mut File) -> Result<u64> {
        let shown = format!("{SCHEME}{}", self.path_of(file));
        let opened = self.open(file)?;
        let failed = |error| Error::io(format!("{shown}: keep its bytes"), error);
        into.rewind().and_then(|()| into.set_len(0)).map_err(failed)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut got = 0;
        while got <= bytes {
            let count = opened.read_at(&mut chunk, got).map_err(|errno| error(&shown, errno))?;
            if count == 0 {
                break;
            }
            into.write_all(&chunk[..count]).map_err(failed)?;
            got += count as u64;
        }
        if got != bytes {
            let why = format!("{shown}: it had {bytes} bytes when its place was asked, and has others now");
            return Err(Error::new(ErrorKind::Stale, why));
        }
        Ok(got)
    }

    /// The file itself if this node holds it, for reading; `None` if another node does.
    pub fn descriptor(&self, file: &str) -> Result<Option<OwnedFd>> {
        let opened = self.open(file)?;
        opened.descriptor().map_err(|errno| error(format!("{SCHEME}{}", self.path_of(file)), errno))
    }
}

impl Locator for InNamespace {
    fn describe(&self) -> String {
        format!("the namespace at {SCHEME}{}/", self.directory)
    }

    fn locate(&mut self, files: &[String]) -> Result<Locations> {
        let paths: Vec<String> = files.iter().map(|file| self.path_of(file)).collect();
        let asked: Vec<&[u8]> = paths.iter().map(String::as_bytes).collect();
        let answers = self.namespace.locate(None, &asked).map_err(|errno| error(self.describe(), errno))?;
        let mut locations = Locations::default();
        for (path, answer) in paths.iter().zip(answers) {
            locations.files.push(match answer {
                Ok(found) => {
                    let holders = found.holders.into_iter().map(|one| Replica {
                        node: if one.name.is_empty() { one.host } else { one.name },
                        bytes: one.bytes,
                    });
                    let replicas: Vec<Replica> = holders.collect();
                    let blocks = replicas.len().max(1);
                    Located { bytes: found.bytes, replicas, blocks }
                }
                // What a reader will be told when it opens the file.
                Err(errno) if is_of_the_file(errno) => Located { blocks: 1, ..Located::default() },
                Err(errno) => return Err(error(format!("{SCHEME}{path}"), errno)),
            });
        }
        Ok(locations)
    }
}

/// Whether an errno speaks of the file, and not of nodes that do not answer.
fn is_of_the_file(errno: Errno) -> bool {
    use Errno as E;
    matches!(errno, E::ENOENT | E::ENOTDIR | E::EISDIR | E::EINVAL | E::EACCES | E::ELOOP)
}

/// The path within the namespace of a path in a mount of it; `None` if it is in no such mount.
pub fn within_namespace(path: &Path) -> Result<Option<String>> {
    let failed = |error| Error::io(path.display().to_string(), error);
    // Links may lead into a mount, or out of one.
    let Ok(path) = path.canonicalize() else { return Ok(None) };
    let mounts = std::fs::read("/proc/thread-self/mountinfo").map_err(failed)?;
    let Some(within) = within(&path, &mounts) else { return Ok(None) };
    let told = String::from_utf8(within.into_os_string().into_vec());
    told.map(Some).map_err(|_| {
        Error::new(ErrorKind::InvalidArgument, format!("{}: is not UTF-8; rename it", path.display()))
    })
}

/// The same, where these are the kernel's mounts. The longest mount point counts; of several at one
/// point, the last.
fn within(path: &Path, mounts: &[u8]) -> Option<PathBuf> {
    let mut best: Option<(PathBuf, PathBuf, bool)> = None;
    for line in mounts.split(|byte| *byte == b'\n') {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let (Some(top), Some(point)) = (fields.get(3), fields.get(4)) else { continue };
        let kind = fields.iter().position(|field| *field == b"-").and_then(|dash| fields.get(dash + 1));
        let (top, point) = (unescaped(top), unescaped(point));
        let is_longer = |best: &(PathBuf, PathBuf, bool)| point.as_os_str().len() >= best.1.as_os_str().len();
        if path.starts_with(&point) && best.as_ref().is_none_or(is_longer) {
            best = Some((top, point, kind == Some(&MOUNT_KIND)));
        }
    }
    let (top, point, is_ours) = best?;
    let beneath = path.strip_prefix(point).ok()?;
    is_ours.then(|| if beneath.as_os_str().is_empty() { top } else { top.join(beneath) })
}

/// The kernel writes a blank and the like in paths as `\040`.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..b'8').contains(digit)));
        match digits {
            Some(digits) if *first == b'\\' => {
                bytes.push(digits.iter().fold(0_u8, |value, digit| (value << 3) | (digit - b'0')));
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_mount_is_one_of_the_namespace() {
        let mounts = b"1 0 8:1 / / rw - ext4 /dev/a rw\n\
            2 1 0:40 / /job rw shared:1 - fuse.zazen zazen rw\n\
            3 2 0:41 / /job/tmp rw - tmpfs none rw\n\
            4 1 0:40 /run1 /my\\040data rw - fuse.zazen zazen rw\n\
            5 1 0:50 / /old rw - fuse.zazen zazen rw\n\
            6 5 8:1 /x /old rw - ext4 /dev/a rw\n";
        let within = |path: &str| within(Path::new(path), mounts).map(|path| path.display().to_string());
        assert_eq!(within("/job"), Some("/".into()));
        assert_eq!(within("/job/ocean/s 0"), Some("/ocean/s 0".into()));
        assert_eq!(within("/my data/s0"), Some("/run1/s0".into()));
        assert_eq!(within("/my data"), Some("/run1".into()));
        for outside in ["/", "/jobs", "/job/tmp/x", "/old/x", "/lustre/ocean"] {
            assert_eq!(within(outside), None, "{outside}");
        }
    }
}
