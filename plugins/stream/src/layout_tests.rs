//! The structures and constants in Rust are those of `stream.h`: the C compiler says so.

use crate::config::Config;
use crate::entry::Block;
use std::io::Write;
use std::mem::{offset_of, size_of};
use std::process::{Command, Stdio};

/// What C must find true: the size of a structure, and the place of each of its fields.
macro_rules! layout {
    ($rust:ty, $c:literal, $($field:ident)+) => {
        [
            format!("sizeof(struct {}) == {}", $c, size_of::<$rust>()),
            $(format!("offsetof(struct {}, {}) == {}", $c, stringify!($field), offset_of!($rust, $field)),)+
        ]
    };
}

#[test]
fn structures_are_those_of_the_header() {
    let config = layout!(
        Config, "stream_config",
        stations station_first subbands sample_bytes packet_samples block_packets slots buffer_ms sample_rate
        block_first block_count ranks deal pressure deadline_ms silence_ms tag input port ports receive_bytes
        integrate element groups_open reserved address
    );
    let block = layout!(Block, "stream_block", block index time is_dropped packets_missing bytes);
    let mut program = "#include \"stream.h\"\n#include <stddef.h>\n".to_owned();
    for fact in config.iter().chain(&block) {
        program += &format!("_Static_assert({fact}, \"{fact}\");\n");
    }
    let mut compiler = Command::new("cc")
        .args(["-std=c11", "-fsyntax-only", "-I", env!("CARGO_MANIFEST_DIR"), "-x", "c", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("cc starts");
    compiler.stdin.take().expect("a pipe").write_all(program.as_bytes()).expect("cc reads");
    assert!(compiler.wait().expect("cc ends").success());
}
