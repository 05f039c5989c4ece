//! Generates and compiles the dispatcher.

fn main() {
    zazen_stubs_build::Stubs::generate("stream.h").compile_dispatcher();
}
