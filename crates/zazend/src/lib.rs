//! The node daemon
