//! The structures and constants in Rust are those of `posix.h`: the C compiler says so.

use std::fmt::Write;
use std::mem::{align_of, offset_of, size_of};
use std::process::Command;
use zazen_forward_api::paths::PATH_MAX;
use zazen_forward_api::structures::*;

/// Lines of Rust's values, and the C expressions that must have the same values.
#[derive(Default)]
struct Facts {
    rust: String,
    c: String,
}

impl Facts {
    fn add(&mut self, expression: &str, value: i64) {
        writeln!(self.rust, "{expression} {value}").unwrap();
        writeln!(self.c, "    printf(\"%s %lld\\n\", \"{expression}\", (long long)({expression}));").unwrap();
    }
}

/// Size, alignment and the given fields' offsets.
macro_rules! layout {
    ($facts:expr, $rust:ident = $c:literal { $($field:tt = $name:literal),* $(,)? }) => {
        $facts.add(concat!("sizeof(struct ", $c, ")"), size_of::<$rust>() as i64);
        $facts.add(concat!("_Alignof(struct ", $c, ")"), align_of::<$rust>() as i64);
        $($facts.add(concat!("offsetof(struct ", $c, ", ", $name, ")"), offset_of!($rust, $field) as i64);)*
    };
}

#[test]
fn structures_and_constants_are_those_of_the_header() {
    let mut facts = Facts::default();
    layout!(facts, Hello = "px_hello" {
        key = "key", token = "token", kind = "kind", pid = "pid", umask = "umask", keep_all = "keep_all",
    });
    layout!(facts, PxOpened = "px_opened" { ino = "ino", dev = "dev", id = "id", mode = "mode" });
    layout!(facts, PxStat = "px_stat" {
        mask = "mask", blksize = "blksize", attributes = "attributes", nlink = "nlink",
        uid = "uid", gid = "gid",
        mode = "mode", ino = "ino", size = "size", blocks = "blocks", attributes_mask = "attributes_mask",
        seconds = "atime", nanoseconds = "atime_nsec", devices = "rdev_major", mnt_id = "mnt_id",
    });
    for (index, name) in ["atime", "btime", "ctime", "mtime"].iter().enumerate() {
        let at = offset_of!(PxStat, seconds) + 8 * index;
        facts.add(&format!("offsetof(struct px_stat, {name})"), at as i64);
        let at = offset_of!(PxStat, nanoseconds) + 4 * index;
        facts.add(&format!("offsetof(struct px_stat, {name}_nsec)"), at as i64);
    }
    for (index, name) in ["rdev_major", "rdev_minor", "dev_major", "dev_minor"].iter().enumerate() {
        let at = offset_of!(PxStat, devices) + 4 * index;
        facts.add(&format!("offsetof(struct px_stat, {name})"), at as i64);
    }
    layout!(facts, Found = "px_found" {
        error = "error", acl = "acl", label = "label", reserved = "reserved", stat = "stat",
    });
    layout!(facts, Came = "px_came" { opened = "opened", stat = "stat", bits = "bits", bytes = "bytes" });
    layout!(facts, StatFs = "px_statfs" { 0 = "type" });
    let names = [
        "type", "bsize", "blocks", "bfree", "bavail", "files", "ffree", "fsid", "namelen", "frsize", "flags",
    ];
    for (index, name) in names.iter().enumerate() {
        facts.add(&format!("offsetof(struct px_statfs, {name})"), 8 * index as i64);
    }
    layout!(facts, Lock = "px_lock" {
        start = "start", length = "length", kind = "type", whence = "whence",
        pid = "pid", reserved = "reserved",
    });
    layout!(facts, Times = "px_times" { 0 = "atime" });
    for (index, name) in ["atime", "atime_nsec", "mtime", "mtime_nsec"].iter().enumerate() {
        facts.add(&format!("offsetof(struct px_times, {name})"), 8 * index as i64);
    }
    layout!(facts, PollFd = "px_pollfd" { id = "id", events = "events", revents = "revents" });
    layout!(facts, Address = "px_address" { bytes = "bytes", data = "data", reserved = "reserved" });
    let constants = [
        ("PX_ROOT", i64::from(ROOT)),
        ("PX_OFFSET", OFFSET),
        ("PX_BYTES_MAX", BYTES_MAX as i64),
        ("PX_PATH_MAX", PATH_MAX as i64),
        ("PX_AHEAD_STAT", AHEAD_STAT.into()),
        ("PX_AHEAD_WHOLE", AHEAD_WHOLE.into()),
        ("PX_AHEAD_QUIET", AHEAD_QUIET.into()),
        ("PX_AHEAD_NEWS", AHEAD_NEWS.into()),
        ("PX_CLOSE_LAST", CLOSE_LAST.into()),
        ("PX_CLOSE_READ", CLOSE_READ.into()),
        ("PX_HELLO_NEW", HELLO_NEW.into()),
        ("PX_HELLO_JOIN", HELLO_JOIN.into()),
        ("PX_HELLO_FORK", HELLO_FORK.into()),
        ("PX_HELLO_EXEC", HELLO_EXEC.into()),
    ];
    for (name, value) in constants {
        facts.add(name, value);
    }
    assert_eq!(said_by_c(&facts.c), facts.rust);
}

#[test]
fn the_number_of_the_plugin_is_the_header_s() {
    let header = std::fs::read_to_string(format!("{FOLDER}/posix.h")).unwrap();
    assert!(header.contains(&format!("START-ZAZEN-SCANNER ID={PLUGIN_ID} ")));
}

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../plugins/posix");

fn said_by_c(lines: &str) -> String {
    let program =
        format!("#include \"posix.h\"\n#include <stdio.h>\nint main(void) {{\n{lines}    return 0;\n}}\n");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("layout.c"), program).unwrap();
    let built = Command::new("cc")
        .args(["-std=c11", "-I", FOLDER, "layout.c", "-o", "layout"])
        .current_dir(folder.path())
        .status()
        .unwrap();
    assert!(built.success());
    let said = Command::new(folder.path().join("layout")).output().unwrap();
    String::from_utf8(said.stdout).unwrap()
}
