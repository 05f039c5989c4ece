//! Memory that a server keeps for answers. A program of its own: the process has one such store.
#![allow(clippy::unwrap_used, reason = "a test that panics is a test that fails")]

mod common;

use common::*;
use std::io::Write;
use std::sync::Arc;
use zazen_call::{Call, Caller, Reply, ServerLimits, Service, ShmLimits};
use zazen_core::{Error, Result};

/// Writes as many bytes as it is asked for.
struct Writes;

const WRITES: u16 = 77;

impl Service for Writes {
    fn id(&self) -> u16 {
        WRITES
    }

    fn call(&self, _caller: &Caller, call: Call<'_>) -> Result<Reply> {
        let bytes = u64::from_le_bytes(call.payload.try_into().unwrap());
        call.output.write_all(&pattern(bytes as usize)).map_err(|error| Error::io("answer", error))?;
        Ok(Reply::default())
    }

    fn detach(&self, _caller: &Caller) {}
}

fn answers(connection: &mut zazen_call::Connection, bytes: usize) {
    let reply = connection.call(WRITES, 0, &(bytes as u64).to_le_bytes(), &[]).unwrap();
    assert_eq!(reply.bulk.len(), bytes);
}

#[test]
fn a_server_keeps_no_more_memory_than_its_answers_use_at_once() {
    let probe = Arc::new(Probe::default());
    let bench = Bench::of(probe, vec![Arc::new(Writes)], ServerLimits::default(), ShmLimits::default());
    // Between daemons, nobody says how many bytes he has room for.
    let mut connection = bench.connect(Carrier::Tcp);
    for _ in 0..300 {
        answers(&mut connection, 250_000);
    }
    // The server is done with an answer's memory when it takes the next call.
    answers(&mut connection, 0);
    let kept = zazen_call::kept_bytes();
    assert!((250_000..2 << 20).contains(&kept), "one answer at a time, and {kept} bytes are kept");
    // Of all sizes: one buffer for each power of two, about.
    let mut bytes = 64 << 10;
    for _ in 0..300 {
        bytes = bytes * 16_807 % 2_000_003;
        answers(&mut connection, bytes);
    }
    answers(&mut connection, 0);
    let kept = zazen_call::kept_bytes();
    assert!(kept < 12 << 20, "one answer at a time, of at most 2 MB, and {kept} bytes are kept");
}
