//! The node daemon: configuration, the frames and control services, and what holds them together.
//!
//! Invariants: the cache is never the truth (whatever it lacks or doubts comes from the backing
//! store); a frame is handed only to a caller whose own rights, as the kernel has them, would open
//! its source; one miss is one fetch, however many ask. The daemon is a library with a thin `main`,
//! so that tests run it in their own process.

pub mod backing_roots;
mod batch;
pub mod check;
pub mod clock;
pub mod config;
pub mod cores;
pub mod counters;
pub mod daemon;
pub mod disk_readers;
mod examine;
pub mod fetch;
pub mod fetcher;
mod forward;
mod grown;
pub mod guarded_backing;
pub mod latency;
pub mod layouts;
pub mod logging;
pub mod look;
pub mod memory;
pub mod metrics;
pub mod misses;
mod namespace_check;
pub mod namespace_settings;
mod neighbours;
pub mod node;
pub mod node_store;
pub mod notes;
pub mod opened;
pub mod peers;
pub mod placement;
pub mod plugin_settings;
mod probe;
pub mod push_buffers;
pub mod quota_settings;
pub mod quotas;
pub mod reload;
pub mod scan;
pub mod scan_records;
pub mod service_control;
pub mod service_frames;
pub mod service_plugins;
pub mod session;
mod settings_text;
pub mod shares;
pub mod signals;
mod spans;
pub mod status;
pub mod told_files;
pub mod user_room;
pub mod viewer;

pub use config::Config;
pub use daemon::Daemon;
pub use spans::record_plugin;
