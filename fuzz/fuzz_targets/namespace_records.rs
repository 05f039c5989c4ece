//! The target `namespace_records` of zazen-fuzz.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (zazen_fuzz::target("namespace_records").run)(bytes));
