//! Plug-ins' part in status, metrics and `--check`.

use crate::config::Config;
use serde_json::{Value, json};
use std::time::Duration;
use zazen_core::Result;
use zazen_plugins::{HostOptions, MountedFolder, PluginConfig, PluginReport, Plugins, Recording};

/// How long a plug-in may take to load and to initialise.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// What the plug-ins of a daemon with these settings share. `mounted`: folders of mounts that are
/// in nobody's view.
pub fn host_options(config: &Config, mounted: Vec<MountedFolder>) -> HostOptions {
    HostOptions {
        socket: config.socket.clone(),
        exports: config.exports.clone(),
        mounted,
        worker: config.plugin_worker.clone(),
        connections_max: config.connections_max,
        start_timeout: START_TIMEOUT,
        drain: config.drain,
        recording: config.spans.as_ref().map(|folder| Recording {
            folder: folder.clone(),
            node: config.name.clone(),
            open: crate::spans::open,
        }),
    }
}

/// A line of `--check` for one plug-in. It is loaded in a process of its own, and its init does not
/// run.
pub fn check(config: &Config, plugin: &PluginConfig) -> Result<String> {
    let found = Plugins::check(plugin, &host_options(config, Vec::new()))?;
    let place = match (plugin.isolate, found.acts_as_caller || plugin.acts_as_caller) {
        (true, false) => "in a process of its own",
        (true, true) => "in a process for each identity of its callers",
        (false, false) => "in this process: a crash is the daemon's",
        (false, true) => "in this process, for the daemon's own user only",
    };
    let functions = found.functions.len();
    Ok(format!("{} (ID {}), {functions} functions, {place}", found.name, found.id))
}

/// The plug-ins' part of the daemon's status.
pub fn status(plugins: &Plugins) -> Value {
    let row = |report: &PluginReport| {
        json!({
            "id": report.id, "name": report.name, "path": report.path, "placement": report.placement,
            "state": report.state, "generation": report.generation, "pid": report.pid,
            "crashes": report.crashes, "clients": report.clients,
            "calls": report.sum(|function| function.calls),
            "errors": report.sum(|function| function.errors),
        })
    };
    Value::Array(plugins.reports().iter().map(row).collect())
}
