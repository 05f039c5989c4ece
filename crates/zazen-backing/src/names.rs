//! The names in a directory, in memory.

use std::any::Any;
use std::ops::Deref;

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
