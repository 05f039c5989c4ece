//! The daemon's host for plug-ins: shared objects with one versioned entry table
//! (`zazen_plugin.h`), run in the daemon or in worker processes of their own.
//!
//! An [`Instance`] is a plug-in that runs in this process. What the two placements promise differs:
//! in the daemon, a plug-in that crashes, leaks or never returns takes the daemon with it; in a
//! worker it costs its own callers an error, and the worker is started again.
//!
//! Invariants: no lock of the host's is held while a plug-in's code runs; what a client sends is
//! checked before a plug-in sees it; a plug-in's word about its outputs is checked before a client
//! sees them.

mod arena;
mod clients;
mod config;
mod confine;
mod control;
mod counters;
mod handles;
mod host;
mod identity;
mod instance;
mod object;
mod process;
mod relay;
mod running;
mod service;
mod stats;
mod supervisor;
mod watch;
mod worker;

pub use config::{FunctionNames, HostOptions, MountedFolder, PluginConfig, Recorder, Recording};
pub use instance::{Guest, Instance, InstanceOptions};
pub use object::{Description, FunctionDescription};
pub use service::Plugins;
pub use stats::{BUCKETS, FunctionReport, PluginReport};
pub use worker::{WORKER_FLAG, worker_main};
