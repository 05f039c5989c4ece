//! Objects that a user's own program writes. Its helper has the user's credentials, from the
//! environment, and no daemon is asked: the bucket's policy says who may write what.

use super::helper::WRITES;
use super::{ObjectLocation, served};
use crate::SourceFile;
use crate::served::{NewFile, Sending, ServedBacking, There};
use std::path::PathBuf;
use zazen_core::{RelPath, Result};

/// Writes objects. For any thread.
pub struct ObjectWriter(ServedBacking);

impl ObjectWriter {
    /// Writes at `location` by means of `program`, which is started by the first call.
    pub fn new(location: &ObjectLocation, program: PathBuf) -> ObjectWriter {
        ObjectWriter(served(location, program, vec![WRITES.to_owned(), location.told()]))
    }

    /// What is at a path beneath the location. An object hides a folder of the same name.
    pub fn look(&self, path: &RelPath) -> Result<There> {
        self.0.look(path)
    }

    /// Begins to write an object. Nobody sees it before [`Sending::finish`].
    pub fn begin(&self, file: &NewFile) -> Result<Sending> {
        self.0.begin(file)
    }

    /// Opens an object for reading.
    pub fn open(&self, path: &RelPath) -> Result<Box<dyn SourceFile>> {
        use crate::Backing;
        self.0.open(path)
    }
}
