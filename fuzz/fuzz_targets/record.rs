//! What a store reads from its disk: file headers, log records, names.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zazen_wire::record::{FileHeader, FileKind, NameEntry, RECORD_BYTES, Record};

fuzz_target!(|input: (u128, u64, &[u8])| {
    let (id, index, bytes) = input;
    for kind in [FileKind::NativeLog, FileKind::AlienLog, FileKind::Names] {
        if let Ok(header) = FileHeader::decode(bytes, kind) {
            assert_eq!(FileHeader::decode(&header.encode(), kind).expect("what was encoded decodes"), header);
        }
    }
    if let Some((first, _)) = bytes.split_first_chunk::<RECORD_BYTES>()
        && let Some(record) = Record::decode(first, id, index)
    {
        assert_eq!(Record::decode(&record.encode(id, index), id, index).as_ref(), Some(&record));
        assert_eq!(Record::decode(&record.encode(id, index), id, index ^ 1), None);
    }
    if let Some(entry) = NameEntry::decode(bytes, id) {
        assert_eq!(NameEntry::decode(&entry.encode(id), id), Some(entry));
    }
});
