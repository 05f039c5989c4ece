//! The structures and constants in Rust are those of the C headers: the C compiler says so.
#![allow(clippy::unwrap_used, reason = "a test that panics is a test that fails")]

use std::fmt::Write;
use std::mem::{align_of, offset_of, size_of};
use std::process::Command;
use zazen_plugin_abi::plugin::*;
use zazen_plugin_abi::segment::*;
use zazen_plugin_abi::status;
use zazen_plugin_abi::stub::{ConnectOptions, StubCall, StubService};

/// Lines of Rust's values, and the C expressions that must have the same values.
#[derive(Default)]
struct Facts {
    rust: String,
    c: String,
}

impl Facts {
    fn add(&mut self, expression: &str, value: u64) {
        writeln!(self.rust, "{expression} {value}").unwrap();
        writeln!(self.c, "    printf(\"%s %llu\\n\", \"{expression}\", (unsigned long long)({expression}));")
            .unwrap();
    }
}

/// Size, alignment and all fields' offsets.
macro_rules! layout {
    ($facts:expr, $rust:ident = $c:literal, $($field:ident $(= $name:literal)?),* $(,)?) => {
        $facts.add(concat!("sizeof(struct ", $c, ")"), size_of::<$rust>() as u64);
        $facts.add(concat!("_Alignof(struct ", $c, ")"), align_of::<$rust>() as u64);
        $(
            let name = [$($name,)? stringify!($field)][0];
            $facts.add(&format!("offsetof(struct {}, {name})", $c), offset_of!($rust, $field) as u64);
        )*
    };
}

#[test]
fn structures_and_constants_are_those_of_the_headers() {
    let mut facts = Facts::default();
    layout!(
        facts,
        Caller = "zazen_caller",
        struct_size,
        pid,
        client,
        generation,
        uid,
        gid,
        rank,
        ranks,
        host
    );
    layout!(
        facts,
        Host = "zazen_host",
        struct_size,
        abi,
        process_count,
        flags,
        caller,
        log,
        allocate,
        release,
        register_userbuf,
        groups,
        cancelled,
        exported,
        mounted
    );
    layout!(
        facts,
        CallOps = "zazen_call_ops",
        struct_size,
        reserved,
        allocate,
        receive,
        prepare,
        send,
        reply,
        send_fd,
        handle_enter,
        handle_get,
        handle_remove
    );
    layout!(
        facts,
        PluginCall = "zazen_call",
        struct_size,
        flags,
        message,
        message_bytes,
        reply_bytes_max,
        in_bytes,
        out_bytes,
        in_count,
        out_count,
        fds,
        fd_count,
        reserved,
        userbuf,
        ops,
        host_data
    );
    layout!(facts, Function = "zazen_function", name, dispatch, flags, reserved, allocate);
    layout!(facts, PluginTable = "zazen_plugin",);
    let at = offset_of!(PluginTable, plugin);
    for (name, offset) in [
        ("abi", offset_of!(Plugin, abi)),
        ("struct_size", offset_of!(Plugin, struct_size)),
        ("id", offset_of!(Plugin, id)),
        ("function_count", offset_of!(Plugin, function_count)),
        ("name", offset_of!(Plugin, name)),
        ("schema", offset_of!(Plugin, schema)),
        ("schema_hash", offset_of!(Plugin, schema_hash)),
        ("layout_hash", offset_of!(Plugin, layout_hash)),
        ("functions", offset_of!(Plugin, functions)),
        ("function_bytes", offset_of!(Plugin, function_bytes)),
        ("init", offset_of!(Plugin, init)),
        ("fini", offset_of!(Plugin, fini)),
        ("client_attach", offset_of!(Plugin, client_attach)),
        ("client_detach", offset_of!(Plugin, client_detach)),
    ] {
        facts.add(&format!("offsetof(struct zazen_plugin, {name})"), (at + offset) as u64);
    }
    let at = offset_of!(PluginTable, tail);
    facts.add("offsetof(struct zazen_plugin, flags)", (at + offset_of!(PluginTail, flags)) as u64);
    facts.add("offsetof(struct zazen_plugin, reserved)", (at + offset_of!(PluginTail, reserved)) as u64);
    layout!(facts, Segment = "zazen_segment", pointer, bytes);
    layout!(
        facts,
        StubService = "zazen_stub_service",
        struct_size,
        id,
        name,
        schema_hash,
        layout_hash,
        function_count
    );
    layout!(
        facts,
        StubCall = "zazen_stub_call",
        struct_size,
        function,
        flags,
        tail_count,
        fixed,
        fixed_bytes,
        tail,
        request_bytes,
        inputs = "in",
        outputs = "out",
        in_count,
        out_count,
        fds,
        fd_count,
        reply_fd_count,
        reply_bytes_max,
        reply,
        reply_bytes,
        reply_fds,
        runtime
    );
    layout!(
        facts,
        ConnectOptions = "zazen_connect_options",
        struct_size,
        carrier,
        rank,
        ranks,
        connect_ms,
        call_ms,
        key_file
    );
    for (name, value) in CONSTANTS {
        facts.add(name, *value);
    }
    assert_eq!(said_by_c(&facts.c), facts.rust);
}

const CONSTANTS: &[(&str, u64)] = &[
    ("ZAZEN_PLUGIN_ABI", ABI as u64),
    ("ZAZEN_PLUGIN_ACTS_AS_CALLER", ACTS_AS_CALLER as u64),
    ("ZAZEN_HOST_CONFINED", HOST_CONFINED as u64),
    ("sizeof(((struct zazen_caller *)0)->host)", HOST_BYTES as u64),
    ("ZAZEN_DETACH_CLOSED", DetachReason::Closed as u64),
    ("ZAZEN_DETACH_DIED", DetachReason::Died as u64),
    ("ZAZEN_DETACH_EXPELLED", DetachReason::Expelled as u64),
    ("ZAZEN_DETACH_SHUTDOWN", DetachReason::Shutdown as u64),
    ("ZAZEN_FUNCTION_BLOCKING", FUNCTION_BLOCKING as u64),
    ("ZAZEN_FUNCTION_ONEWAY", FUNCTION_ONEWAY as u64),
    ("ZAZEN_FUNCTION_IDEMPOTENT", FUNCTION_IDEMPOTENT as u64),
    ("ZAZEN_FUNCTION_ERRNO", FUNCTION_ERRNO as u64),
    ("ZAZEN_CALL_OK", status::OK as u64),
    ("ZAZEN_CALL_MALFORMED", status::MALFORMED as u64),
    ("ZAZEN_CALL_TOO_LARGE", status::TOO_LARGE as u64),
    ("ZAZEN_CALL_NO_MEMORY", status::NO_MEMORY as u64),
    ("ZAZEN_CALL_BAD_HANDLE", status::BAD_HANDLE as u64),
    ("ZAZEN_CALL_BAD_REPLY", status::BAD_REPLY as u64),
    ("ZAZEN_CALL_NO_FUNCTION", status::NO_FUNCTION as u64),
    ("ZAZEN_CALL_NO_SERVICE", status::NO_SERVICE as u64),
    ("ZAZEN_CALL_SCHEMA", status::SCHEMA as u64),
    ("ZAZEN_CALL_DISCONNECTED", status::DISCONNECTED as u64),
    ("ZAZEN_CALL_TIMED_OUT", status::TIMED_OUT as u64),
    ("ZAZEN_CALL_UNSUPPORTED", status::UNSUPPORTED as u64),
    ("ZAZEN_CALL_CRASHED", status::CRASHED as u64),
];

fn said_by_c(lines: &str) -> String {
    let program = format!(
        "#include \"zazen_connect.h\"\n#include \"zazen_plugin.h\"\n#include <stdio.h>\n\
         int main(void) {{\n{lines}    return 0;\n}}\n"
    );
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("layout.c"), program).unwrap();
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/plugin/include");
    let built = Command::new("cc")
        .args(["-std=c11", "-I", include, "layout.c", "-o", "layout"])
        .current_dir(folder.path())
        .status()
        .unwrap();
    assert!(built.success());
    let said = Command::new(folder.path().join("layout")).output().unwrap();
    String::from_utf8(said.stdout).unwrap()
}
