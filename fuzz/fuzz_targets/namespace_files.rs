//! The target `namespace_files` of zazen-fuzz.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (zazen_fuzz::target("namespace_files").run)(bytes));
