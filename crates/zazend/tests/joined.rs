//! The tests that may share a process: one program takes less compiling and linking than one for
//! each file. A test of what a process has only once is a program of its own.
// The exemption for tests does not reach their helpers.
#![allow(clippy::unwrap_used)]

mod common;
mod namespaces;

mod joined {
    mod blocks;
    mod frames;
    mod layouts;
    mod left;
    mod namespace;
    mod namespace_archive;
    mod namespace_chunks;
    mod namespace_peers;
    mod openers;
    mod process;
    mod several_disks;
}
