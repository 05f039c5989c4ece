//! The messages of the TCP handshake and the error reply: what a stranger can make either end decode.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zazen_wire::Message;
use zazen_wire::handshake::{ClientHello, Proof, ServerHello};
use zazen_wire::header::ErrorReply;

fn check<M: Message + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(message) = M::decode(bytes) {
        let again = M::decode(&message.encode()).expect("what was encoded decodes");
        assert_eq!(again, message);
    }
}

fuzz_target!(|bytes: &[u8]| {
    check::<ClientHello>(bytes);
    check::<ServerHello>(bytes);
    check::<Proof>(bytes);
    check::<ErrorReply>(bytes);
});
