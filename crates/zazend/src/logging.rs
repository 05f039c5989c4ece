//! The daemon's log: lines on standard error, filtered by the setting `log`.

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};
use zazen_core::{Error, ErrorKind, Result};

/// Changes what is logged while the daemon runs.
#[derive(Clone)]
pub struct LogLevel(reload::Handle<Targets, Registry>);

impl LogLevel {
    /// Begins the log of this process. `told`: the setting `log`. One that is no filter counts as `info`, so that
    /// its refusal is logged.
    pub fn start(told: &str) -> LogLevel {
        let filter =
            told.parse::<Targets>().unwrap_or_else(|_| Targets::new().with_default(tracing::Level::INFO));
        let (filter, handle) = reload::Layer::new(filter);
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .with_target(false);
        tracing_subscriber::registry().with(filter).with(lines).init();
        LogLevel(handle)
    }

    /// Logs what `told`, a checked setting `log`, says from now on.
    pub fn set(&self, told: &str) -> Result<()> {
        let refuse = |why: String| Error::new(ErrorKind::Config, format!("log {told:?}: {why}"));
        let filter = told.parse::<Targets>().map_err(|error| refuse(error.to_string()))?;
        self.0.reload(filter).map_err(|error| refuse(error.to_string()))
    }
}
