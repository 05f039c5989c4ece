//! `zazen_stub.h` and `zazen_connect.h` in Rust.
//!
//! Invariant: laid out as in the headers; the test below asks the compiler of C.

use std::ffi::{c_char, c_int, c_void};

/// A piece of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Where; NULL for none.
    pub pointer: *mut c_void,
    /// How much.
    pub bytes: u64,
}

/// `struct zazen_stub_service`: what a generated client is a client of.
#[repr(C)]
#[derive(Debug)]
pub struct StubService {
    /// As the client was compiled.
    pub struct_size: u32,
    /// `ID=` of the header.
    pub id: u32,
    /// The header's name without `.h`.
    pub name: *const c_char,
    /// Of prototypes and annotations.
    pub schema_hash: u64,
    /// The same with the structs' sizes and alignments.
    pub layout_hash: u64,
    /// Functions of the header.
    pub function_count: u32,
}

/// `struct zazen_stub_call`: one call, filled in by a stub.
#[repr(C)]
#[derive(Debug)]
pub struct StubCall {
    pub(crate) struct_size: u32,
    pub(crate) function: u32,
    pub(crate) flags: u32,
    pub(crate) tail_count: u32,
    pub(crate) fixed: *const c_void,
    pub(crate) fixed_bytes: u64,
    pub(crate) tail: *const Segment,
    pub(crate) request_bytes: u64,
    pub(crate) input: *const Segment,
    pub(crate) output: *mut Segment,
    pub(crate) in_count: u32,
    pub(crate) out_count: u32,
    pub(crate) fds: *const c_int,
    pub(crate) fd_count: u32,
    pub(crate) reply_fd_count: u32,
    pub(crate) reply_bytes_max: u64,
    pub(crate) reply: *mut c_void,
    pub(crate) reply_bytes: u64,
    pub(crate) reply_fds: *mut c_int,
    pub(crate) runtime: *mut c_void,
}

/// The function may block for long.
pub(crate) const FUNCTION_BLOCKING: u32 = 1;
/// Running it twice is running it once.
pub(crate) const FUNCTION_IDEMPOTENT: u32 = 4;

/// `struct zazen_connect_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ConnectOptions {
    pub(crate) struct_size: u32,
    pub(crate) carrier: u32,
    pub(crate) rank: i32,
    pub(crate) ranks: i32,
    pub(crate) connect_ms: u32,
    pub(crate) call_ms: u32,
    pub(crate) key_file: *const c_char,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn structs_are_laid_out_as_in_the_headers() {
        let lines = [
            format!("segment {} {}", size_of::<Segment>(), offset_of!(Segment, bytes)),
            format!("service {} {}", size_of::<StubService>(), offset_of!(StubService, function_count)),
            format!(
                "call {} {} {} {}",
                size_of::<StubCall>(),
                offset_of!(StubCall, output),
                offset_of!(StubCall, reply_bytes_max),
                offset_of!(StubCall, runtime)
            ),
            format!("options {} {}", size_of::<ConnectOptions>(), offset_of!(ConnectOptions, key_file)),
        ];
        let program = r#"
            #include "zazen_connect.h"
            #include <stdio.h>
            #define AT(type, field) offsetof(struct type, field)
            int main(void) {
                printf("segment %zu %zu\n", sizeof(struct zazen_segment), AT(zazen_segment, bytes));
                printf("service %zu %zu\n", sizeof(struct zazen_stub_service), AT(zazen_stub_service, function_count));
                printf("call %zu %zu %zu %zu\n", sizeof(struct zazen_stub_call), AT(zazen_stub_call, out),
                       AT(zazen_stub_call, reply_bytes_max), AT(zazen_stub_call, runtime));
                printf("options %zu %zu\n", sizeof(struct zazen_connect_options), AT(zazen_connect_options, key_file));
                return 0;
            }"#;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("abi.c"), program).unwrap();
        let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/plugin/include");
        let built = std::process::Command::new("cc")
            .args(["-std=c11", "-I", include, "abi.c", "-o", "abi"])
            .current_dir(folder.path())
            .status()
            .unwrap();
        assert!(built.success());
        let said = std::process::Command::new(folder.path().join("abi")).output().unwrap();
        assert_eq!(String::from_utf8(said.stdout).unwrap(), lines.join("\n") + "\n");
    }
}
