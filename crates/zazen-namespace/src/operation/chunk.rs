//! What is asked about files of chunks, and what is answered.

use super::mode::Mode;
use crate::InodeId;
use crate::attributes::Attributes;
use zazen_wire::field::{List, Nested};

/// The extended attribute that says in chunks of how many MiB a file's bytes are: a number up to
/// [`CHUNK_MIB_MAX`]; 0 for a file that one node holds.
pub const CHUNKS_WANTED: &[u8] = b"user.zazen.chunks";
/// The largest chunk, in MiB.
pub const CHUNK_MIB_MAX: u32 = 1024;

zazen_wire::messages! {
    /// Opens a chunk of a file that the asking node has open: for writing, if the chunk is to be
    /// written. It is closed by [`super::Release`], as a file is.
    #[derive(Clone, Debug, PartialEq, Eq)]
    OpenChunk {
        /// The file.
        file: InodeId,
        /// Which of its chunks.
        index: u64,
        /// How; without `truncate`.
        mode: Mode = Nested<Mode>,
        /// Make it, if there is none. Without it: `ENOENT`.
        make: bool,
    }

    /// Lists chunks of a file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Chunks {
        /// The file.
        file: InodeId,
        /// From this one on.
        from: u64,
        /// At most so many, and at most [`super::MANY_MAX`].
        max: u32,
        /// Only those that some node has open for writing.
        writing: bool,
    }

    /// Gives out a range at the end of a file of chunks, which the asking node has open for
    /// writing. Nobody else gets the same bytes; they are zeros until they are written.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Append {
        /// The file.
        file: InodeId,
        /// How many bytes.
        bytes: u64,
    }

    /// Chunks of a file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ChunkList {
        /// Their attributes, in order; [`Attributes::chunk_of`] says which they are.
        chunks: Vec<Attributes> = List<Nested<Attributes>>,
        /// Whether there are no more.
        end: bool,
    }

    /// Where a range begins.
    #[derive(Clone, Debug, PartialEq, Eq)]
    Offset {
        /// Its first byte.
        offset: u64,
    }
}

/// What the value of [`CHUNKS_WANTED`] says: MiB of a chunk. `None` if it is no wish.
pub fn chunk_mib_of(value: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(value).ok()?.trim_end_matches(['\n', '\0']);
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|mib| is_plain && *mib <= CHUNK_MIB_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PartitionNo;
    use crate::operation::CreateMany;
    use zazen_wire::Message;

    #[test]
    fn a_wish_for_chunks_is_a_number_of_mib() {
        let values: [(&[u8], Option<u32>); 9] = [
            (b"4", Some(4)),
            (b"0", Some(0)),
            (b"1024\n", Some(1024)),
            (b"1025", None),
            (b"", None),
            (b"+4", None),
            (b"-1", None),
            (b"4M", None),
            (b"99999999999", None),
        ];
        for (value, wanted) in values {
            assert_eq!(chunk_mib_of(value), wanted, "{value:?}");
        }
    }

    /// Messages without the fields that came later are those of older nodes, and the other way
    /// round: an older reader skips what it does not know.
    #[test]
    fn what_came_with_chunks_is_at_the_end_of_messages() {
        let at = InodeId::new(PartitionNo(7), 9);
        let many = CreateMany {
            directory: at,
            names: vec![],
            mode: 0o644,
            copies: 2,
            archived: None,
            chunk_mib: Some(4),
        };
        let bytes = many.encode();
        // An option of archived, and one of u32.
        let older = &bytes[..bytes.len() - 5];
        assert_eq!(CreateMany::decode(older).expect("decodes"), CreateMany { chunk_mib: None, ..many });
    }
}
