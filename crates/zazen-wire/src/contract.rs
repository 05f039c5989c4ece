//! What every message must keep to, as checks for the tests of the crates that declare messages.
//!
//! A golden file has one line `name = hex` for each message.

use crate::Message;
use std::fmt::Debug;
use zazen_core::ErrorKind;

/// All messages of a golden file, with their names.
pub fn golden_messages(file: &str) -> impl Iterator<Item = (&str, Vec<u8>)> {
    let lines = file.lines().filter_map(|line| line.split_once(" = "));
    lines.map(|(name, digits)| {
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("two hex digits");
        (name, (0..digits.len()).step_by(2).map(byte).collect())
    })
}

/// The message called `name` in a golden file.
pub fn golden_message(file: &str, name: &str) -> Vec<u8> {
    let found = golden_messages(file).find(|(of, _)| *of == name);
    found.unwrap_or_else(|| panic!("{name} is not in the golden file")).1
}

/// Bytes as a golden file has them.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks that `message` is written as its golden bytes and is read back from them, that a longer
/// message of a newer peer is read, and that a shorter one is refused.
pub fn check_golden<M: Message + PartialEq + Debug>(file: &str, name: &str, message: M) {
    let bytes = golden_message(file, name);
    assert_eq!(hex(&message.encode()), hex(&bytes), "{name}");
    assert_eq!(M::decode(&bytes).expect(name), message);
    let longer = [&bytes[..], b"a field of the future"].concat();
    assert_eq!(M::decode(&longer).expect(name), message);
    for cut in 0..bytes.len() {
        let error = M::decode(&bytes[..cut]).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Protocol, "{name} cut at {cut}: {error}");
    }
}

/// Checks that if `bytes` are a message, it is encoded to something that decodes to the same
/// message. The bytes may differ: fields of the future are skipped, and a run set may be built
/// otherwise.
pub fn check_bytes<M: Message + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(message) = M::decode(bytes) {
        let again = M::decode(&message.encode());
        assert_eq!(again.expect("an encoded message decodes"), message);
    }
}
