//! The shared-memory carrier's bytes: golden ones, any that decode encode again, lies about places
//! are refused.

use proptest::prelude::*;
use zazen_core::ErrorKind;
use zazen_wire::Message;
use zazen_wire::shm::{ENTRIES_MAX, ENTRY_BYTES, Offer, Op, PartPlace, Record, SLOT_BYTES, Span, TableEntry};

const POOL: Span = Span { at: 2 << 20, bytes: 32 << 20 };

fn offer() -> Offer {
    Offer {
        version: 1,
        region: 7,
        region_bytes: 34 << 20,
        lane_at: 151_552,
        slots: 64,
        eager_bytes: 64 << 10,
        inline_bytes: 4096,
        chunk_bytes: 256 << 10,
        pool: POOL,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn bytes_are_as_they_always_were() {
    assert_eq!(
        hex(&offer().encode()),
        "010007000000000000000000200200000000005002000000000040000000000001\
         00001000000000040000002000000000000000000200000000"
    );
    let record = Record {
        op: Op::Message,
        head: PartPlace::Inline,
        data: PartPlace::Streamed,
        is_payload: true,
        slots: 5,
        call_number: 0x0102_0304,
        inputs: 2,
        outputs: 3,
        span: Span { at: 0x1122_3344, bytes: 0x55 },
    };
    let slot = record.encode(&[0xee; 64]);
    let expected = "010002010500000004030201020003004433221100000000550000000000000000";
    assert_eq!(hex(&slot[64..97]), expected);
    assert_eq!((&slot[..64], &slot[97..]), (&[0xee; 64][..], &[0; 31][..]));
    assert_eq!(hex(&TableEntry::Data(9).encode()), "ffffffffffffffff0900000000000000");
    assert_eq!(
        hex(&TableEntry::Pool(Span { at: 4096, bytes: 1 }).encode()),
        "00100000000000000100000000000000"
    );
}

#[test]
fn places_are_where_the_page_says() {
    let lane = offer().lane();
    let at = 151_552;
    let counters = [lane.requests_tail(), lane.requests_head(), lane.replies_tail(), lane.replies_head()];
    assert_eq!(counters, [at, at + 64, at + 128, at + 192]);
    assert_eq!((lane.client_line(), lane.daemon_line()), (at + 256, at + 320));
    assert_eq!((lane.requests(), lane.replies()), (at + 4096, at + 4096 + 8192));
    assert_eq!(lane.eager_in(), Span { at: at + 20_480, bytes: 65_536 });
    assert_eq!(lane.eager_out(), Span { at: at + 86_016, bytes: 65_536 });
    assert_eq!(lane.span(), Span { at, bytes: 151_552 });
}

#[test]
fn offers_that_make_no_sense_are_refused() {
    let wrong: [fn(&mut Offer); 10] = [
        |offer| offer.slots = 48,
        |offer| offer.slots = 1 << 30,
        |offer| offer.lane_at = u64::MAX - 4095,
        |offer| offer.lane_at = 1,
        |offer| offer.lane_at = 2 << 20,
        |offer| offer.pool.bytes = u64::MAX,
        |offer| offer.pool.at = u64::MAX - 4095,
        |offer| offer.inline_bytes = 8065,
        |offer| offer.eager_bytes = 0,
        |offer| offer.region_bytes = u64::MAX,
    ];
    for (nth, change) in wrong.iter().enumerate() {
        let mut bad = offer();
        change(&mut bad);
        assert_eq!(Offer::decode(&bad.encode()).unwrap_err().kind(), ErrorKind::Protocol, "{nth}");
    }
    let newer = Offer { version: 2, ..offer() };
    assert_eq!(Offer::decode(&newer.encode()).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(Offer::decode(&offer().encode()).unwrap(), offer());
}

proptest! {
    #[test]
    fn records_that_decode_encode_again(
        mut slot in prop::collection::vec(any::<u8>(), SLOT_BYTES),
        op in 0u8..7,
        places in (0u8..4, 0u8..4),
        slots in 0u16..70,
        tables in (0u16..70, 0u16..70)
    ) {
        slot[64..67].copy_from_slice(&[op, places.0, places.1]);
        slot[68..70].copy_from_slice(&slots.to_le_bytes());
        slot[76..78].copy_from_slice(&tables.0.to_le_bytes());
        slot[78..80].copy_from_slice(&tables.1.to_le_bytes());
        let slot: [u8; SLOT_BYTES] = slot.try_into().unwrap();
        let good = (1..=5).contains(&op) && places.0 < 3 && places.1 < 3 && (1..=64).contains(&slots)
            && usize::from(tables.0.max(tables.1)) <= ENTRIES_MAX;
        match Record::decode(&slot, 64) {
            Ok((record, header)) => {
                prop_assert!(good);
                prop_assert_eq!(Record::decode(&record.encode(&header), 64).unwrap(), (record, header));
                prop_assert_eq!(&header[..], &slot[..64]);
            }
            Err(error) => {
                prop_assert!(!good);
                prop_assert_eq!(error.kind(), ErrorKind::Protocol);
            }
        }
    }

    /// What a table names lies in the pool and sums up, counted here in 128 bits.
    #[test]
    fn tables_name_what_is_in_the_pool(
        entries in prop::collection::vec(
            (prop_oneof![POOL.at - 10..POOL.at + 10, Just(u64::MAX), any::<u64>(),
             (POOL.at + POOL.bytes - 10)..(POOL.at + POOL.bytes + 10)],
             prop_oneof![0u64..20, any::<u64>()]),
            0..6),
        off in 0u64..2
    ) {
        let bytes: Vec<u8> =
            entries.iter()
            .flat_map(|(at, bytes)| [at.to_le_bytes(), bytes.to_le_bytes()].concat()).collect();
        prop_assert_eq!(bytes.len(), entries.len() * ENTRY_BYTES);
        let sum: u128 = entries.iter().map(|(_, bytes)| u128::from(*bytes)).sum();
        let total = (sum as u64).wrapping_add(off);
        let (low, high) = (u128::from(POOL.at), u128::from(POOL.at + POOL.bytes));
        let inside = |(at, bytes): &(u64, u64)|
            *at == u64::MAX
            || (u128::from(*at) >= low && u128::from(*at) + u128::from(*bytes) <= high);
        let good = entries.iter().all(inside) && sum == u128::from(total);
        let decoded = TableEntry::decode_table(&bytes, POOL, total);
        prop_assert_eq!(decoded.is_ok(), good);
        if let Ok(table) = decoded {
            let again: Vec<u8> = table.iter().flat_map(TableEntry::encode).collect();
            prop_assert_eq!(again, bytes);
        }
    }
}
