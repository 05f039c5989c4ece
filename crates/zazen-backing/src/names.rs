//! The names in a directory, in memory.

use std::any::Any;
use std::borrow::Cow;
use std::ops::Deref;
use zazen_core::survey::NO_UTF8;
use zazen_core::{Error, ErrorKind, Result};

/// What a name takes in memory beside its bytes.
const NAME_OVERHEAD_BYTES: u64 = size_of::<String>() as u64;

/// The names in a directory, unordered. Whoever made the list may have bound it to something that
/// is released with it: a share of the memory that a user's listings may take.
#[derive(Default)]
pub struct DirectoryNames {
    names: Vec<String>,
    _hold: Option<Box<dyn Any + Send>>,
}

impl DirectoryNames {
    /// The same names, which keep `hold` until they are dropped.
    pub fn holding(self, hold: impl Any + Send) -> DirectoryNames {
        DirectoryNames { _hold: Some(Box::new(hold)), ..self }
    }

    /// What the names take in memory.
    pub fn bytes(&self) -> u64 {
        self.names.iter().map(|name| bytes_of(name)).sum()
    }
}

/// A file's name as text, with [`NO_UTF8`] where it is none.
pub(crate) fn text_of(name: &[u8]) -> Cow<'_, str> {
    match String::from_utf8_lossy(name) {
        Cow::Owned(lossy) => Cow::Owned(lossy.replace('\u{fffd}', &NO_UTF8.to_string())),
        text => text,
    }
}

/// Refuses the path of a file that is wanted and whose name is not UTF-8: it would be left out
/// without a word.
pub(crate) fn check_utf8(path: &str) -> Result<()> {
    match path.contains(NO_UTF8) {
        false => Ok(()),
        true => {
            let shown = path.replace(NO_UTF8, "\u{fffd}");
            Err(Error::new(ErrorKind::InvalidArgument, format!("{shown}: its name is not UTF-8; rename it")))
        }
    }
}

/// What one name takes in memory.
pub(crate) fn bytes_of(name: &str) -> u64 {
    name.len() as u64 + NAME_OVERHEAD_BYTES
}

impl From<Vec<String>> for DirectoryNames {
    fn from(names: Vec<String>) -> DirectoryNames {
        DirectoryNames { names, _hold: None }
    }
}

impl From<DirectoryNames> for Vec<String> {
    fn from(names: DirectoryNames) -> Vec<String> {
        names.names
    }
}

impl Deref for DirectoryNames {
    type Target = [String];
    fn deref(&self) -> &[String] {
        &self.names
    }
}
