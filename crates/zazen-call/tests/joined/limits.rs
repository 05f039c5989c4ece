//! One identity's demands are bounded, and cost nobody else. Over TCP: root's own local calls have
//! no bounds.

use crate::common::*;
use std::time::Duration;
use zazen_call::{CallerLimits, ServerLimits};
use zazen_core::ErrorKind;

fn bench(caller: CallerLimits) -> Bench {
    Bench::with(ServerLimits { caller, stall_timeout: PATIENCE, ..ServerLimits::default() })
}

fn assert_busy<T: std::fmt::Debug>(result: zazen_core::Result<T>, setting: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains(setting), "{error}");
}

#[test]
fn connections_of_one_identity_are_bounded() {
    let bench = bench(CallerLimits { connections_max: 2, ..CallerLimits::default() });
    let mut held: Vec<_> = (0..2).map(|_| bench.connect(Carrier::Tcp)).collect();
    assert_busy(bench.try_connect(Carrier::Tcp), "caller_connections_max");
    bench.connect(Carrier::Unix).call(SERVICE, ECHO, b"x", &[]).unwrap();
    held.iter_mut().for_each(|one| drop(one.call(SERVICE, ECHO, b"x", &[]).unwrap()));
    drop(held);
    while bench.server.connections() > 0 {
        std::thread::yield_now();
    }
    bench.connect(Carrier::Tcp).call(SERVICE, ECHO, b"x", &[]).unwrap();
}

#[test]
fn memory_for_messages_of_one_identity_is_bounded() {
    let bench = bench(CallerLimits { bytes_max: 1 << 20, ..CallerLimits::default() });
    let large = vec![7; 900 << 10];
    std::thread::scope(|scope| {
        let (mut holder, mut other) = (bench.connect(Carrier::Tcp), bench.connect(Carrier::Tcp));
        let large = &large;
        scope.spawn(move || holder.call(SERVICE, GATE, large, &[]).unwrap());
        bench.probe.wait("the large one waits", |state| state.waiting == 1);
        // The refused call's bytes are read over: its connection goes on.
        for _ in 0..3 {
            assert_busy(other.call(SERVICE, ECHO, large, &[b"and bulk"]), "caller_bytes_max");
            assert_eq!(other.call(SERVICE, ECHO, b"small", &[]).unwrap().payload, b"small");
        }
        bench.connect(Carrier::Unix).call(SERVICE, ECHO, large, &[]).unwrap();
        bench.probe.open_gate();
    });
    bench.connect(Carrier::Tcp).call(SERVICE, ECHO, &large[..400 << 10], &[]).unwrap();
}

#[test]
fn calls_of_one_identity_wait_for_each_other_and_not_for_ever() {
    let queue_max = Duration::from_millis(200);
    let bench = bench(CallerLimits { calls_max: 2, queue_max, ..CallerLimits::default() });
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let mut one = bench.connect(Carrier::Tcp);
            scope.spawn(move || one.call(SERVICE, GATE, b"", &[]).unwrap());
        }
        bench.probe.wait("both wait", |state| state.waiting == 2);
        let mut third = bench.connect(Carrier::Tcp);
        assert_busy(third.call(SERVICE, ECHO, b"x", &[b"bulk"]), "caller_calls_max");
        bench.connect(Carrier::Unix).call(SERVICE, ECHO, b"x", &[]).unwrap();
        bench.probe.open_gate();
        third.call(SERVICE, ECHO, b"x", &[]).unwrap();
    });
}
