//! The run-set codec.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zazen_wire::runset_codec;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((set, used)) = runset_codec::decode_prefix(bytes) {
        assert!(used <= bytes.len());
        assert!(runset_codec::decode(&bytes[..used]).expect("the prefix is a set") == set);
        let mut again = Vec::new();
        runset_codec::encode(&set, &mut again);
        assert!(runset_codec::decode(&again).expect("what was encoded decodes") == set);
    }
});
