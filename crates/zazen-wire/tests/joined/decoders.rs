//! Decoders against the world: any bytes give a message or an error, and what is read is written
//! the same.

use proptest::prelude::*;
use zazen_core::ErrorKind;
use zazen_wire::Message;
use zazen_wire::codec::{Reader, clip};
use zazen_wire::contract::{check_bytes, golden_messages};
use zazen_wire::control::{Examine, NodeInfo};
use zazen_wire::handshake::{ClientHello, Proof, ServerHello};
use zazen_wire::header::{ErrorReply, Header};

fn check_all(bytes: &[u8]) {
    macro_rules! all {
        ($($message:ty),* $(,)?) => { $(check_bytes::<$message>(bytes);)* };
    }
    all!(NodeInfo, Examine, ErrorReply, ClientHello, ServerHello, Proof);
    if let Ok(header) = bytes.try_into().map(|bytes: &[u8; 64]| Header::decode(bytes))
        && let Ok(header) = header
    {
        assert_eq!(Header::decode(&header.encode()).unwrap(), header);
    }
}

/// Every golden message, as a beginning for mutations.
fn golden() -> Vec<Vec<u8>> {
    golden_messages(include_str!("../golden.txt")).map(|(_, bytes)| bytes).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        check_all(&bytes);
    }

    #[test]
    fn damaged_messages_are_a_message_or_an_error(
        pick in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let golden = golden();
        let mut bytes = golden[pick.index(golden.len())].clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        check_all(&bytes);
    }
}

#[test]
fn long_messages_to_people_are_clipped_at_a_character() {
    let long = "é".repeat(40_000);
    let error = ErrorReply { message: long.clone() };
    let back = ErrorReply::decode(&error.encode()).unwrap().message;
    assert!(back.len() <= 64 << 10 && long.starts_with(&back) && back.len() > 65_000);
    assert_eq!(clip("aé", 2), "a");
    assert_eq!(clip("aé", 3), "aé");
    let mut reader = Reader::new("M", &[1, 0, 0, 0, 0xff]);
    assert_eq!(reader.free_text().unwrap_err().kind(), ErrorKind::Protocol);
}
