//! The tests that may share a process: one program takes less compiling and linking than one for
//! each file. A test of what a process has only once is a program of its own.
// The exemption for tests does not reach their helpers.
#![allow(clippy::print_stderr, clippy::unwrap_used)]

mod joined {
    mod crowded;
    mod forgetful;
    mod mounted;
}
