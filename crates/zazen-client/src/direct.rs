//! Reads a dataset directly from its backing store, without a daemon.

use crate::indexes::indexes;
use crate::read::job::{Data, Job};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zazen_backing::trajectory::{Confirmed, Finder};
use zazen_backing::{Backing, DirectoryBacking, ServedBacking, SourceFile, dataset, objects};
use zazen_core::limits::check_frame_bytes;
use zazen_core::{Error, ErrorKind, FrameNo, Layout, RelPath, Result, RunSet, Source, Validator};

/// Everything that is needed to open a dataset directly. Readers keep it in case their daemon dies.
#[derive(Clone, Debug)]
pub(crate) struct DirectSpec {
    /// Absolute path of the dataset.
    pub path: PathBuf,
    /// File-name template of the user.
    pub pattern: Option<String>,
    /// The backing store as `ROOT=tcp://host:port`.
    pub backing: Option<String>,
}

/// Two views of one store, and where the dataset is in it.
struct Views {
    lister: Arc<dyn Backing>,
    reader: Arc<dyn Backing>,
    /// The dataset's directory beneath the store's root.
    directory: RelPath,
    /// The directory as users spell it.
    path: PathBuf,
    /// The trajectory file that is the dataset, if the user named one.
    file: Option<String>,
    store: String,
}

/// A dataset opened directly. Shared by reader threads.
pub(crate) struct Direct {
    backing: Arc<dyn Backing>,
    /// The dataset beneath the backing's root.
    directory: RelPath,
    path: PathBuf,
    pattern: Option<String>,
    layout: Option<Layout>,
    /// Known if the layout was found by a listing.
    extent: Option<RunSet>,
    /// The store, for trajectory indexes.
    store: String,
    /// Looks of trajectory files that only grew.
    confirmed: Confirmed,
}

impl DirectSpec {
    /// Opens the dataset: `NotFound` if there is no such directory.
    pub(crate) fn open(&self) -> Result<Direct> {
        let named = |error: Error| error.within(format!("dataset {}", self.path.display()));
        let Views { lister, reader, directory, path, file, store } = self.backing().map_err(named)?;
        let pattern = self.pattern.clone().or(file);
        let indexes = indexes();
        let finder = Finder { indexes: &indexes, store: &store, stops: None };
        let (layout, extent) = match pattern.as_deref() {
            Some(given) => (dataset::layout(finder, &*lister, &directory, Some(given)).map_err(named)?, None),
            None => {
                let described = dataset::describe(finder, &*lister, &directory, None).map_err(named)?;
                (described.layout, Some(described.extent))
            }
        };
        let confirmed = Confirmed::default();
        Ok(Direct { backing: reader, directory, path, pattern, layout, extent, store, confirmed })
    }

    /// Two views of one store, for listing and for reading, and the dataset in it. Listing
    /// has a deadline. Reading has none, which saves a thread switch.
    fn backing(&self) -> Result<Views> {
        if let Some(spec) = &self.backing {
            let (root, store) = parse_backing(spec)?;
            if let (Ok(beneath), Some(addr)) = (self.path.strip_prefix(&root), store) {
                let beneath = RelPath::new(crate::cluster::utf8(beneath)?)?;
                let served: Arc<dyn Backing> = Arc::new(ServedBacking::connect(&addr)?);
                let store = root.to_string_lossy().into_owned();
                let (directory, file) = match self.pattern {
                    None => dataset::place(&*served, &beneath)?,
                    Some(_) => (beneath, None),
                };
                let path = root.join(directory.as_str());
                return Ok(Views { lister: served.clone(), reader: served, directory, path, file, store });
            }
        }
        if self.path.to_str().is_some_and(|path| path.starts_with(objects::SCHEME)) {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "object stores are read by the node's daemon, and none answers or this read goes past it; \
                 start zazend with this store as --backing, or check $ZAZEN_SOCKET",
            ));
        }
        let (path, file) = match std::fs::metadata(&self.path) {
            Ok(found) if found.is_dir() => (self.path.clone(), None),
            Ok(_) => {
                let path = file_itself(&self.path);
                let name = crate::cluster::utf8(Path::new(path.file_name().unwrap_or_default()))?;
                if self.pattern.is_some() || !dataset::is_file_name(name) {
                    return Err(Error::new(
                        ErrorKind::InvalidArgument,
                        "is a file; give the directory that holds the frames, or a trajectory file without a \
                         pattern",
                    ));
                }
                (path.parent().unwrap_or(&path).to_owned(), Some(name.to_owned()))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    "no such file or directory; check the spelling and the mount",
                ));
            }
            Err(error) => return Err(Error::io("cannot be looked at", error)),
        };
        let lister = Arc::new(DirectoryBacking::new(&path)?);
        let reader = Arc::new(DirectoryBacking::with_deadline(&path, None)?);
        let store = path.to_string_lossy().into_owned();
        Ok(Views { lister, reader, directory: RelPath::default(), path, file, store })
    }
}

/// Splits `ROOT=tcp://host:port`, `tcp://host:port/ROOT` or `ROOT` into the root as users write it
/// and the server's address (`None` for a mounted directory).
fn parse_backing(spec: &str) -> Result<(PathBuf, Option<String>)> {
    let refuse = || {
        Error::new(
            ErrorKind::Config,
            format!(
                "backing store {spec:?}: write /ROOT=tcp://HOST:PORT, /ROOT as users spell the directory"
            ),
        )
    };
    let (root, addr) = match spec.split_once('=') {
        Some((root, addr)) if addr.starts_with("tcp://") => (root.to_owned(), Some(addr.to_owned())),
        Some((root, addr)) if addr.starts_with('/') => (root.to_owned(), None),
        Some(_) => return Err(refuse()),
        None => match spec.strip_prefix("tcp://") {
            Some(rest) => {
                let (addr, root) = rest.split_once('/').ok_or_else(refuse)?;
                (format!("/{root}"), Some(format!("tcp://{addr}")))
            }
            None => (spec.to_owned(), None),
        },
    };
    if !root.starts_with('/') {
        return Err(refuse());
    }
    Ok((PathBuf::from(root), addr))
}

impl Direct {
    /// How numbers map to files, if known.
    pub(crate) fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    /// The frame numbers that exist.
    pub(crate) fn extent(&self) -> Result<RunSet> {
        if let Some(extent) = &self.extent {
            return Ok(extent.clone());
        }
        let indexes = indexes();
        let finder = Finder { indexes: &indexes, store: &self.store, stops: None };
        let pattern = self.pattern.as_deref();
        let described = dataset::describe(finder, &*self.backing, &self.directory, pattern);
        Ok(described.map_err(|error| error.within(format!("dataset {}", self.path.display())))?.extent)
    }

    /// Opens the file of frame `number`. `last` is the file that the caller opened before; pieces
    /// of one trajectory share it.
    pub(crate) fn open(&self, number: u64, last: &mut Option<(RelPath, Arc<dyn SourceFile>)>) -> Result<Job> {
        let named = |error: Error| error.within(format!("frame {number}"));
        let source = self.source(number)?;
        let file = match last {
            Some((path, file)) if *path == source.path => file.clone(),
            _ => {
                let path = self.directory.join(source.path.as_str()).map_err(named)?;
                let file: Arc<dyn SourceFile> = Arc::from(self.backing.open(&path).map_err(named)?);
                if source.length.is_some() {
                    *last = Some((source.path.clone(), file.clone()));
                }
                file
            }
        };
        if let Some(trajectory) = self.layout.as_ref().and_then(Layout::trajectory) {
            let confirmed = &self.confirmed;
            zazen_backing::trajectory::confirm(&*file, trajectory, number, &source, confirmed)
                .map_err(named)?;
        }
        let size = file.stat().validator.size;
        let rest = size.saturating_sub(source.offset);
        let length = source.length.unwrap_or(rest);
        if source.offset > size || length > rest {
            let place = format!("bytes {} .. {}", source.offset, source.offset.saturating_add(length));
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("frame {number}: {} ends at byte {size}, the frame is {place}", source.path),
            ));
        }
        let within = |error: Error| error.within(format!("frame {number} ({})", source.path));
        check_frame_bytes(length).map_err(within)?;
        let data = match file.descriptor() {
            Some(descriptor) => Data::Descriptor(Arc::new(descriptor), source.offset),
            None => Data::Source(file, source.offset),
        };
        let path = Arc::from(self.path.join(source.path.as_str()));
        let whole = source.offset == 0 && source.length.is_none();
        Ok(Job { number, delivery: None, path, whole, length, checksum: None, data })
    }

    /// Whether the bytes of frame `number`, which were just read from its trajectory file, are that
    /// frame's; the file looks like `now`. `Stale` if it was replaced, cut or rewritten meanwhile.
    pub(crate) fn check_read(&self, number: u64, now: &Validator) -> Result<()> {
        match self.layout.as_ref().and_then(Layout::trajectory) {
            Some(trajectory) if !self.confirmed.knows(trajectory, number, now) => {
                self.open(number, &mut None).map(drop)
            }
            _ => Ok(()),
        }
    }

    fn source(&self, number: u64) -> Result<Source> {
        let none = |why: &str| {
            Error::new(
                ErrorKind::NotFound,
                format!("frame {number} of dataset {}: {why}", self.path.display()),
            )
        };
        let layout = self.layout.as_ref().ok_or_else(|| none("the dataset has no frames"))?;
        layout.source(FrameNo::new(number)?).ok_or_else(|| match layout.trajectory() {
            None => none("no file of the dataset holds it"),
            Some(trajectory) => {
                let (kind, why) = trajectory.why_not(number);
                Error::new(kind, format!("frame {number} of dataset {}: {why}", self.path.display()))
            }
        })
    }
}

/// The absolute form of a path that a user typed. `..` leads where the kernel's does, also after a
/// symbolic link; what does not exist is resolved as text.
///
/// A path of an object store (`s3://BUCKET/…`) stays one; only its slashes are made plain.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    check_path(path)?;
    if let Some(plain) = path.to_str().and_then(objects::plain_path) {
        return plain.map(PathBuf::from);
    }
    let spelled = std::path::absolute(path)
        .map_err(|error| Error::io(format!("dataset path {:?}: has no absolute form", path), error))?;
    let mut normal = PathBuf::new();
    for part in spelled.components() {
        match part {
            std::path::Component::ParentDir => normal = parent(normal),
            part => normal.push(part),
        }
    }
    Ok(normal)
}

/// `InvalidArgument` for what no dataset can be called: nothing, or a path with a NUL, which the
/// kernel would cut there.
pub fn check_path(path: &Path) -> Result<()> {
    let why = match path.as_os_str().as_encoded_bytes() {
        [] => "the dataset's path is empty; give its directory, or a trajectory file".to_owned(),
        bytes if bytes.contains(&0) => format!("dataset {path:?}: a path cannot hold the character NUL"),
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::InvalidArgument, why))
}

/// The file at `path` or, if that is a link that leads out of its directory, the file that it leads
/// to. Names are looked up beneath the directory only.
fn file_itself(path: &Path) -> PathBuf {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    let is_link = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    match (real(path), path.parent().and_then(real)) {
        (Some(file), Some(directory)) if is_link && !file.starts_with(&directory) => file,
        _ => path.to_owned(),
    }
}

/// The directory above, spelled as `path` is, unless a link leads elsewhere.
fn parent(mut path: PathBuf) -> PathBuf {
    let above = std::fs::canonicalize(&path).ok().and_then(|found| found.parent().map(Path::to_owned));
    path.pop();
    match above {
        Some(above) if std::fs::canonicalize(&path).is_ok_and(|spelled| spelled != above) => above,
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(spec: &str, expected: Option<(&str, Option<&str>)>) {
        let found = parse_backing(spec).ok();
        let found = found.as_ref().map(|(root, addr)| (root.to_str().unwrap(), addr.as_deref()));
        assert_eq!(found, expected, "{spec:?}");
    }

    #[test]
    fn two_dots_after_a_link_lead_where_the_kernel_goes() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        for name in ["a/run", "b"] {
            std::fs::create_dir_all(real.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(real.join("a/run"), real.join("b/link")).unwrap();
        std::os::unix::fs::symlink(&real, real.join("whole")).unwrap();
        let check = |typed: &str, expected: &str| {
            assert_eq!(absolute(&real.join(typed)).unwrap(), real.join(expected), "{typed}");
        };
        check("b/link/../x", "a/x");
        check("b/link/../../x", "x");
        check("a/run/../x", "a/x");
        // The spelling stays where it means the same, or where nothing is there.
        check("whole/a/run/../x", "whole/a/x");
        check("none/run/../x", "none/x");
        check("./a/./run", "a/run");
        assert_eq!(absolute(Path::new("/../../x")).unwrap(), Path::new("/x"));
    }

    #[test]
    fn links_out_of_their_directory_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(real.join("a/deep")).unwrap();
        std::fs::create_dir(real.join("b")).unwrap();
        for name in ["a/x.xtc", "a/deep/y.xtc"] {
            std::fs::write(real.join(name), b"x").unwrap();
        }
        let link = |from: &str, to: &Path| std::os::unix::fs::symlink(to, real.join(from)).unwrap();
        link("b/out.xtc", &real.join("a/x.xtc"));
        link("a/in.xtc", Path::new("deep/y.xtc"));
        link("b/gone.xtc", Path::new("nothing"));
        let check = |typed: &str, expected: &str| {
            assert_eq!(file_itself(&real.join(typed)), real.join(expected), "{typed}");
        };
        check("b/out.xtc", "a/x.xtc");
        check("a/in.xtc", "a/in.xtc");
        check("a/x.xtc", "a/x.xtc");
        check("b/gone.xtc", "b/gone.xtc");
    }

    #[test]
    fn backing_spellings() {
        check("/lustre=tcp://h:1", Some(("/lustre", Some("tcp://h:1"))));
        check("tcp://h:1/lustre/a", Some(("/lustre/a", Some("tcp://h:1"))));
        check("/lustre", Some(("/lustre", None)));
        check("tcp://h:1", None);
        check("lustre=tcp://h:1", None);
        check("/lustre=h:1", None);
    }

    #[test]
    fn paths_are_made_absolute_by_spelling() {
        assert_eq!(absolute(Path::new("/a/./b/../c")).unwrap(), Path::new("/a/c"));
        assert_eq!(absolute(Path::new("/../a")).unwrap(), Path::new("/a"));
        assert!(absolute(Path::new("x")).unwrap().is_absolute());
    }

    #[test]
    fn what_is_no_path_is_the_callers_mistake() {
        for (bad, says) in [("", "is empty"), ("a\0b", "NUL"), ("/\0", "NUL")] {
            let error = absolute(Path::new(bad)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bad:?}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
