//! Shared memory's records, tables and offers: what decodes encodes to the same again, and lies within its bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zazen_wire::Message;
use zazen_wire::shm::{Entry, Span, Offer, Record, SLOT_BYTES};

fuzz_target!(|input: ([u8; SLOT_BYTES], Vec<u8>, (u64, u64), u64)| {
    let (slot, bytes, pool, total) = input;
    if let Ok((record, header)) = Record::decode(&slot, 64) {
        let again = Record::decode(&record.encode(&header), 64).expect("what was encoded decodes");
        assert_eq!(again, (record, header));
        assert!((1..=64).contains(&record.slots));
    }
    let pool = Span { at: pool.0, bytes: pool.1 };
    if let Ok(table) = Entry::decode_table(&bytes, pool, total) {
        for entry in table {
            if let Entry::Pool(span) = entry {
                assert!(
                    span.at >= pool.at
                        && u128::from(span.at) + u128::from(span.bytes)
                            <= u128::from(pool.at) + u128::from(pool.bytes)
                );
            }
        }
    }
    if let Ok(offer) = Offer::decode(&bytes) {
        let lane = offer.lane().span();
        assert!(u128::from(lane.at) + u128::from(lane.bytes) <= u128::from(offer.region_bytes));
        assert_eq!(Offer::decode(&offer.encode()).expect("what was encoded decodes"), offer);
    }
});
