//! The call header. The CRC is made right for every second input, or nothing behind it would ever be reached.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zazen_wire::checksum::crc32c;
use zazen_wire::header::{HEADER_BYTES, Header, MAGIC};

fuzz_target!(|input: (bool, [u8; HEADER_BYTES])| {
    let (reseal, mut bytes) = input;
    if reseal {
        bytes[..4].copy_from_slice(&MAGIC);
        let crc = crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    }
    let _ = Header::call_of(&bytes);
    if let Ok(header) = Header::decode(&bytes) {
        assert_eq!(Header::decode(&header.encode()).expect("what was encoded decodes"), header);
    }
});
