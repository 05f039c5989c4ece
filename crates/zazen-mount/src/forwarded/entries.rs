//! Directory entries as Linux's getdents64 gives them.

use crate::tree::{Kind, Name};

/// Bytes of an entry in front of its name: inode, offset, length, type.
const HEAD_BYTES: usize = 8 + 8 + 2 + 1;

/// The name, inode number and kind of each entry, without `.`, `..` and what no entry may be
/// called. `None` for bytes that are no entries: they come from the far side.
pub(super) fn parse(mut bytes: &[u8]) -> Option<Vec<(Name, u64, Kind)>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        if bytes.len() <= HEAD_BYTES {
            return None;
        }
        let inode = u64::from_ne_bytes(std::array::from_fn(|at| bytes[at]));
        let length = usize::from(u16::from_ne_bytes([bytes[16], bytes[17]]));
        if length <= HEAD_BYTES || length > bytes.len() {
            return None;
        }
        let (entry, rest) = bytes.split_at(length);
        bytes = rest;
        let name = &entry[HEAD_BYTES..];
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        if let Ok(name) = Name::new(&name[..end]) {
            found.push((name, inode, Kind::of(entry[18]).unwrap_or(Kind::File)));
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(inode: u64, kind: u8, name: &[u8]) -> Vec<u8> {
        let length = (HEAD_BYTES + name.len() + 1).next_multiple_of(8);
        let mut bytes = inode.to_ne_bytes().to_vec();
        bytes.extend(7_u64.to_ne_bytes());
        bytes.extend((length as u16).to_ne_bytes());
        bytes.push(kind);
        bytes.extend(name);
        bytes.resize(length, 0);
        bytes
    }

    #[test]
    fn entries_come_with_name_inode_and_kind() {
        let bytes = [entry(1, 4, b"."), entry(2, 8, b"file"), entry(3, 4, b"a folder"), entry(4, 0, b"?")];
        let found: Vec<_> = parse(&bytes.concat())
            .expect("entries")
            .into_iter()
            .map(|(name, inode, kind)| (String::from_utf8_lossy(name.as_bytes()).into_owned(), inode, kind))
            .collect();
        let expected = [("file", 2, Kind::File), ("a folder", 3, Kind::Directory), ("?", 4, Kind::File)];
        assert_eq!(found, expected.map(|(name, inode, kind)| (name.to_owned(), inode, kind)));
    }

    #[test]
    fn bytes_that_are_no_entries_are_refused() {
        let one = entry(2, 8, b"file").len();
        let whole = [entry(2, 8, b"file"), entry(3, 8, b"more")].concat();
        for cut in 0..=whole.len() {
            let count = parse(&whole[..cut]).map(|found| found.len());
            let expected = (cut % one == 0).then_some(cut / one);
            assert_eq!(count, expected, "{cut}");
        }
        let mut lies = whole.clone();
        lies[16..18].copy_from_slice(&0_u16.to_ne_bytes());
        assert!(parse(&lies).is_none(), "a length of nothing");
        lies[16..18].copy_from_slice(&u16::MAX.to_ne_bytes());
        assert!(parse(&lies).is_none(), "a length beyond the end");
    }
}
