//! Generates and compiles the client stubs of the posix plug-in.

fn main() {
    let stubs = zazen_stubs_build::Stubs::generate("../../plugins/posix/posix.h");
    stubs.write_raw();
    stubs.client().compile("zazen_posix_client");
}
