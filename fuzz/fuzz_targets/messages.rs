//! The messages of the control and frames services; the first byte picks which.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zazen_wire::Message;
use zazen_wire::frames::*;

fn check<M: Message + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(message) = M::decode(bytes) {
        let again = M::decode(&message.encode()).expect("what was encoded decodes");
        assert_eq!(again, message);
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((pick, bytes)) = input.split_first() else { return };
    let checks: &[fn(&[u8])] = &[
        check::<NodeInfo>,
        check::<OpenDataset>,
        check::<DatasetInfo>,
        check::<Query>,
        check::<Holdings>,
        check::<ScanOpen>,
        check::<ScanOpened>,
        check::<ScanNext>,
        check::<BatchEntry>,
        check::<ScanBatch>,
        check::<ScanClose>,
        check::<Push>,
        check::<Pushed>,
        check::<ReportBad>,
        check::<Fetch>,
        check::<Fetched>,
        check::<Evict>,
        check::<Evicted>,
        check::<Pin>,
        check::<Verify>,
        check::<Verified>,
        check::<List>,
        check::<ListRow>,
        check::<Listing>,
    ];
    checks[usize::from(*pick) % checks.len()](bytes);
});
