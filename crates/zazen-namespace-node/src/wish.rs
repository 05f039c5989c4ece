//! What shall become of a file: how many nodes shall have it, whether the archive shall, and how
//! large the chunks are that many nodes write. Each wish is an attribute ([`COPIES_WANTED`],
//! [`ARCHIVE_WANTED`], [`CHUNKS_WANTED`]).

use zazen_namespace::operation::{
    ARCHIVE_WANTED, CHUNKS_WANTED, COPIES_WANTED, GetXattr, Operation, SetXattr, chunk_mib_of,
};
use zazen_namespace::{InodeId, Name};

/// The most nodes that have a file.
const COPIES_MAX: u32 = 8;

/// What is wished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wish {
    /// How many nodes shall have the file.
    Copies,
    /// Whether the archive shall have it: 1 or 0.
    Archive,
    /// How many MiB its chunks have; 0: it has none.
    Chunks,
}

impl Wish {
    fn attribute(self) -> &'static [u8] {
        match self {
            Wish::Copies => COPIES_WANTED,
            Wish::Archive => ARCHIVE_WANTED,
            Wish::Chunks => CHUNKS_WANTED,
        }
    }

    /// What is wished if nothing is said: one node, the archive if there is one, no chunks.
    pub(crate) fn unsaid(self) -> u32 {
        match self {
            Wish::Copies | Wish::Archive => 1,
            Wish::Chunks => 0,
        }
    }

    pub(crate) fn parse(self, value: &[u8]) -> Option<u32> {
        if self == Wish::Chunks {
            return chunk_mib_of(value);
        }
        let text = std::str::from_utf8(value).ok()?;
        match (self, text.trim_end_matches(['\n', '\0'])) {
            (Wish::Copies, number) => number.parse().ok().filter(|wanted| (1..=COPIES_MAX).contains(wanted)),
            (Wish::Archive, "yes") => Some(1),
            (Wish::Archive, "no") => Some(0),
            (Wish::Archive | Wish::Chunks, _) => None,
        }
    }

    pub(crate) fn get(self, id: InodeId) -> Option<Operation> {
        Name::new(self.attribute()).ok().map(|name| Operation::GetXattr(GetXattr { id, name }))
    }

    /// The wish that the operation sets, if it sets one.
    fn of(set: &SetXattr) -> Option<Wish> {
        [Wish::Copies, Wish::Archive, Wish::Chunks]
            .into_iter()
            .find(|wish| wish.attribute() == set.name.as_bytes())
    }
}

/// Whether the operation sets a wish.
pub(crate) fn sets_one(set: &SetXattr) -> bool {
    Wish::of(set).is_some()
}

/// Whether the operation sets a wish to what is none.
pub(crate) fn sets_nonsense(set: &SetXattr) -> bool {
    let wish = Wish::of(set).zip(set.value.as_deref());
    wish.is_some_and(|(wish, value)| wish.parse(value).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_small_numbers_and_words() {
        let values: [(&[u8], Option<u32>); 8] = [
            (b"1", Some(1)),
            (b"2\n", Some(2)),
            (b"8", Some(8)),
            (b"0", None),
            (b"9", None),
            (b"-1", None),
            (b"", None),
            (b"two", None),
        ];
        for (value, wanted) in values {
            assert_eq!(Wish::Copies.parse(value), wanted, "{value:?}");
        }
        let values: [(&[u8], Option<u32>); 4] =
            [(b"yes", Some(1)), (b"no\n", Some(0)), (b"1", None), (b"", None)];
        for (value, wanted) in values {
            assert_eq!(Wish::Archive.parse(value), wanted, "{value:?}");
        }
        let values: [(&[u8], Option<u32>); 5] =
            [(b"4", Some(4)), (b"0\n", Some(0)), (b"1024", Some(1024)), (b"1025", None), (b"4M", None)];
        for (value, wanted) in values {
            assert_eq!(Wish::Chunks.parse(value), wanted, "{value:?}");
        }
    }

    #[test]
    fn what_is_no_wish_is_refused_and_other_attributes_are_left_alone() {
        let set = |name: &[u8], value: Option<&[u8]>| SetXattr {
            id: InodeId::ROOT,
            name: Name::new(name).unwrap(),
            value: value.map(<[u8]>::to_vec),
            create: false,
            replace: false,
        };
        for (name, value, wish, nonsense) in [
            (COPIES_WANTED, Some(&b"2"[..]), true, false),
            (COPIES_WANTED, Some(b"no"), true, true),
            (ARCHIVE_WANTED, Some(b"no"), true, false),
            (ARCHIVE_WANTED, Some(b"2"), true, true),
            (ARCHIVE_WANTED, None, true, false),
            (CHUNKS_WANTED, Some(b"4"), true, false),
            (CHUNKS_WANTED, Some(b"-1"), true, true),
            (b"user.other", Some(b"no"), false, false),
        ] {
            let set = set(name, value);
            assert_eq!((sets_one(&set), sets_nonsense(&set)), (wish, nonsense), "{set:?}");
        }
    }
}
