//! The stub generator: no header makes it panic, and each mistake has a place within the text.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, &str)| {
    let (marked, text) = input;
    let marker = "/* START-ZAZEN-SCANNER ID=3 INIT=NULL FINI=NULL */\n";
    let text = if marked { format!("{marker}{text}") } else { text.to_owned() };
    match zazen_stubs::generate("fuzz.h", &text) {
        Ok(output) => assert!(!output.files.is_empty()),
        Err(mistakes) => assert!(!mistakes.is_empty()),
    }
});
