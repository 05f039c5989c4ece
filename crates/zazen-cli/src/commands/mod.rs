//! One file per command: its flags, its help with examples, what it prints.

pub(crate) mod assign;
pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod datasets;
pub(crate) mod doctor;
pub(crate) mod evict;
pub(crate) mod explain;
pub(crate) mod index;
pub(crate) mod job;
pub(crate) mod key;
pub(crate) mod load;
pub(crate) mod ls;
pub(crate) mod mount;
pub(crate) mod namespace;
pub(crate) mod number;
pub(crate) mod pin;
pub(crate) mod plugin;
pub(crate) mod push;
pub(crate) mod run;
pub(crate) mod sim;
pub(crate) mod stage;
pub(crate) mod stat;
pub(crate) mod status;
pub(crate) mod testbed;
pub(crate) mod verify;
pub(crate) mod viz;
