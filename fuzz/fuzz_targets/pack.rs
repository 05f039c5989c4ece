//! The target `pack` of zazen-fuzz.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (zazen_fuzz::target("pack").run)(bytes));
