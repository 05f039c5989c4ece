//! The tests that may share a process: one program takes less compiling and linking than one for
//! each file. A test of what a process has only once is a program of its own.

mod joined {
    mod golden;
    mod properties;
}
