//! Names of directory entries: bytes, as the kernel has them.

use crate::Errno;
use zazen_core::Result;
use zazen_wire::codec::{Reader, Writer};
use zazen_wire::field::Field;

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// The name of a directory entry: 1 to 255 bytes, without `/` and NUL, and neither `.` nor `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

impl Name {
    /// Checks a name. `ENAMETOOLONG` beyond 255 bytes, `EINVAL` for what no entry may be called.
    pub fn new(bytes: &[u8]) -> std::result::Result<Name, Errno> {
        if bytes.len() > NAME_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let special = matches!(bytes, b"" | b"." | b"..");
        if special || bytes.iter().any(|byte| matches!(byte, b'/' | 0)) {
            return Err(Errno::EINVAL);
        }
        Ok(Name(bytes.into()))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Field for Name {
    type Value = Name;
    const BYTES_MIN: usize = 4 + 1;
    fn write(value: &Name, writer: &mut Writer) {
        writer.blob(&value.0);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Name> {
        let bytes = reader.blob(NAME_BYTES_MAX)?;
        Name::new(bytes).map_err(|_| reader.malformed("a name that no entry may have"))
    }
}
