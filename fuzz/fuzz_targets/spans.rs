//! The target `spans` of zazen-fuzz.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (zazen_fuzz::target("spans").run)(bytes));
