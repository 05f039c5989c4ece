//! `NAME_fuzz.c` sends hostile messages to the dispatchers. It has an entry for libFuzzer, and a
//! plain program that mutates valid messages.

use super::code::{Code, banner};
use crate::model::Interface;

pub(crate) fn text(interface: &Interface) -> String {
    let name = &interface.name;
    let file = format!("{name}_fuzz.c");
    let what = "hostile messages to the dispatchers";
    let mut code = Code::after(banner(interface, &file, what));
    code.lines(&format!(
        "/* Plain:     cc -std=c11 -fsanitize=address,undefined -I SDK/include -I SDK/loopback {file} \\
        SDK/loopback/zazen_loopback.c -o {name}_fuzz && ./{name}_fuzz [MESSAGES [SEED]]
        libFuzzer: clang -DZAZEN_LIBFUZZER -fsanitize=fuzzer,address,undefined (the same otherwise) */
        #define main roundtrip_main
        #include \"{name}_roundtrip.c\"
        #undef main

        #include \"zazen_fuzz.h\"

        static const struct zazen_fuzz_target target = {{
        .plugin = &zazen_plugin_v1,
        .bind = {name}_bind,
        .rounds = (void (*const[])(uint64_t *)){{"
    ));
    for function in &interface.functions {
        code.line(format!("round_{},", function.name));
    }
    code.lines(
        "},
        .connection = &connection,
        };

        #ifdef ZAZEN_LIBFUZZER
        int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

        int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
        {
        return zazen_fuzz_one(&target, data, size);
        }
        #else
        int main(int argc, char **argv)
        {
        return zazen_fuzz_main(&target, argc, argv);
        }
        #endif",
    );
    code.finish()
}
