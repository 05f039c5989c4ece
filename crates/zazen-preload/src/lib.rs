//! The preload library. It stands between an unmodified program and libc, and forwards the
//! program's calls on files (and, if asked, on internet sockets) to a daemon's posix plug-in.
//! docs/forwarding.md says what it promises.
//!
//! `zazen run --forward PREFIX -- PROGRAM` puts it into `LD_PRELOAD`. A call on a path that is not
//! below a forwarded prefix goes to libc, and costs one comparison more.
//!
//! Invariants: a hook does what libc's function does, errno included. Reads and writes allocate
//! nothing, and take no lock but for bytes that came along (`ahead.rs`). The library starts no
//! thread, and connects at the first forwarded path. No destructor runs at the end, so late writes
//! still arrive. A panic ends the process, because nothing may unwind through libc's callers.
// A reference to a mutable static is made through a raw one, as static_mut_refs asks.
#![allow(clippy::deref_addrof)]
// The macros bring their own unsafe blocks.
#![allow(clippy::missing_safety_doc, unused_unsafe)]

use std::ffi::{c_char, c_int};

mod ahead;
mod aio;
mod by_descriptor;
mod call_ids;
mod clones;
mod cwd;
mod data;
mod descriptors;
mod directories;
mod dup;
mod events;
mod far;
mod fault;
mod given;
mod heard;
mod identity;
mod jumps;
mod kernel;
mod libraries;
mod lineage;
mod list;
mod memory;
mod metadata;
mod names;
mod near;
mod open;
mod others;
mod poll;
mod process;
mod raw_calls;
mod real;
mod rings;
mod signals;
mod sockets;
mod state;
mod stdio;
mod streams;
mod supervised;
mod table;
mod told;
mod transport;
mod trees;
mod unix_names;
mod wal;
mod walk;
mod watch;
mod wire;
mod words;

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = begin;

/// Runs before all other constructors (build.rs asks the loader for it), libc's own among them.
extern "C" fn begin(_count: c_int, _arguments: *mut *mut c_char, environment: *mut *mut c_char) {
    state::begin(environment);
    if state::is_active() {
        fault::begin();
        jumps::begin();
        table::before_first(streams::begin);
        far::look_alive_by(transport::look_alive);
        heard::tell_by(ahead::hear_of_calls);
        cwd::refresh_local();
        process::begin();
    }
}
