//! What strangers can send to a stream's port: any headers, in any order. The counters add up after each.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zazen_stream::packet::{HEADER_BYTES, Header};
use zazen_stream::ring::{Arrival, Deal, Pressure, Ring, Shape, Take};

const SHAPE: Shape = Shape {
    stations: 3,
    packets: 2,
    slots: 5,
    ranks: 2,
    deal: Deal::Turns,
    pressure: Pressure::DropOldest,
    deadline_ns: 4,
    silence_ns: 1000,
    first: None,
    count: None,
};

fuzz_target!(|input: (bool, Vec<([u8; HEADER_BYTES], u8)>)| {
    let (is_free, packets) = input;
    let deal = if is_free { Deal::Free } else { Deal::Turns };
    let mut ring = Ring::new(Shape { deal, ..SHAPE });
    for (step, (mut bytes, then)) in packets.into_iter().enumerate() {
        let now_ns = step as u64;
        // Nothing behind the magic would ever be reached.
        bytes[..4].copy_from_slice(b"ZST1");
        if let Some(header) = Header::take(&bytes) {
            assert_eq!(header.put(), bytes);
            let station = u32::from(header.station) % SHAPE.stations;
            if header.is_end {
                ring.station_ended(station, header.time, now_ns);
            } else if let Arrival::Store { slot, index } = ring.arrive(station, header.time, now_ns) {
                assert!(slot < SHAPE.slots && index < SHAPE.stations * SHAPE.packets);
                ring.stored(slot, 1);
            }
        }
        if then & 1 == 1
            && let Take::Block { block, .. } = ring.take(u32::from(then >> 1) % SHAPE.ranks, now_ns)
        {
            ring.returned(block, then & 4 == 0);
        }
        ring.check().expect("the counters add up");
    }
    ring.close();
    ring.check().expect("the counters add up");
});
