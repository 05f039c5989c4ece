//! Objects that a user's own program writes. Its helper has the user's credentials, from the
//! environment, and no daemon is asked: the bucket's policy says who may write what.

use super::helper::WRITES;
use super::{ObjectLocation, served};
use crate::SourceFile;
use crate::served::{NewFile, Sending, ServedBacking, There};
use std::path::PathBuf;
use zazen_core::{Error, ErrorKind, RelPath, Result, Validator};

/// Writes objects. For any thread.
pub struct ObjectWriter {
    store: ServedBacking,
    root: String,
}

impl ObjectWriter {
    /// Writes at `location` by means of `program`, which is started by the first call.
    pub fn new(location: &ObjectLocation, program: PathBuf) -> ObjectWriter {
        let store = served(location, program, vec![WRITES.to_owned(), location.told()]);
        ObjectWriter { store, root: location.root() }
    }

    /// What is at a path beneath the location. An object hides a folder of the same name.
    pub fn look(&self, path: &RelPath) -> Result<There> {
        self.store.look(path)
    }

    /// Begins to write an object. Nobody sees it before [`Sending::finish`].
    pub fn begin(&self, file: &NewFile) -> Result<Sending> {
        self.store.begin(file)
    }

    /// Writes an object whose bytes are here. Returns what it looks like.
    ///
    /// `Stale` if another program replaced it at once: then nobody knows whose bytes are there.
    pub fn put(&self, file: &NewFile, bytes: &[u8]) -> Result<Validator> {
        let mut sending = self.begin(file)?;
        sending.add(bytes)?;
        let tag = sending.finish()?;
        // What answers a write says no time: that takes a look.
        match self.look(&file.path)? {
            There::File { seen, .. } if tag.is_of(&seen) && seen.size == file.bytes => Ok(seen),
            _ => Err(Error::new(
                ErrorKind::Stale,
                format!("{}/{}: another program replaced it as it was written", self.root, file.path),
            )),
        }
    }

    /// Opens an object for reading.
    pub fn open(&self, path: &RelPath) -> Result<Box<dyn SourceFile>> {
        use crate::Backing;
        self.store.open(path)
    }
}
