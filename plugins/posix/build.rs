//! Generates and compiles the dispatcher.

fn main() {
    zazen_stubs_build::Stubs::generate("posix.h").compile_dispatcher();
}
