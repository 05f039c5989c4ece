//! The daemon's log: lines on standard error, filtered by the setting `log`.
//!
//! Invariant: only the daemon begins a line. Messages name files and datasets, and users choose
//! those names: a line feed in a message begins a line with blanks in front.

use std::io::Write;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};
use zazen_core::{Error, ErrorKind, Result};

/// Changes what is logged while the daemon runs.
#[derive(Clone)]
pub struct LogLevel(reload::Handle<Targets, Registry>);

impl LogLevel {
    /// Begins the log of this process. `told`: the setting `log`. One that is no filter counts as
    /// `info`, so that its refusal is logged.
    pub fn start(told: &str) -> LogLevel {
        let filter = told.parse::<Targets>().map(with_errors);
        let filter = filter.unwrap_or_else(|_| Targets::new().with_default(tracing::Level::INFO));
        let (filter, handle) = reload::Layer::new(filter);
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(|| Lines)
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .with_target(false);
        tracing_subscriber::registry().with(filter).with(lines).init();
        LogLevel(handle)
    }

    /// Logs what `told`, a setting `log`, says from now on.
    pub fn set(&self, told: &str) -> Result<()> {
        self.take(LogFilter::parse(told)?);
        Ok(())
    }

    /// Logs what `filter` lets pass from now on.
    pub fn take(&self, filter: LogFilter) {
        // It fails only where no log was begun.
        let _ = self.0.reload(filter.0);
    }
}

/// Standard error, which gets each message of the log in one piece.
struct Lines;

impl Write for Lines {
    fn write(&mut self, message: &[u8]) -> std::io::Result<usize> {
        std::io::stderr().write_all(&one_line(message))?;
        Ok(message.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// A message whose further lines cannot be taken for the daemon's.
fn one_line(message: &[u8]) -> Vec<u8> {
    let (text, end) = match message.split_last() {
        Some((b'\n', text)) => (text, &b"\n"[..]),
        _ => (message, &b""[..]),
    };
    let mut shown = Vec::with_capacity(message.len());
    for byte in text {
        match byte {
            b'\n' => shown.extend_from_slice(b"\n    "),
            b'\r' => shown.extend_from_slice(b"\\r"),
            other => shown.push(*other),
        }
    }
    shown.extend_from_slice(end);
    shown
}

/// A setting `log` that is one.
pub struct LogFilter(Targets);

impl LogFilter {
    /// `Config` if `told` is no filter.
    pub fn parse(told: &str) -> Result<LogFilter> {
        let refuse = |error| Error::new(ErrorKind::Config, format!("log {told:?}: {error}"));
        told.parse::<Targets>().map(|filter| LogFilter(with_errors(filter))).map_err(refuse)
    }
}

/// A list of crates, or a word that is no level, does not hide the errors of all others.
fn with_errors(filter: Targets) -> Targets {
    match filter.default_level() {
        None => filter.with_default(tracing::Level::ERROR),
        Some(_) => filter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_daemon_begins_a_line() {
        let message = b"INFO dataset x\r\nERROR forged is away\n";
        assert_eq!(one_line(message), b"INFO dataset x\\r\n    ERROR forged is away\n");
        assert_eq!(one_line(b"plain\n"), b"plain\n");
        assert_eq!((one_line(b""), one_line(b"\n")), (Vec::new(), b"\n".to_vec()));
    }

    #[test]
    fn errors_of_all_crates_are_logged_unless_the_setting_says_off() {
        let check = |told: &str, errors: bool, infos: bool| {
            let filter = with_errors(told.parse().unwrap());
            let enables = |level| filter.would_enable("zazen_store", &level);
            assert_eq!(
                (enables(tracing::Level::ERROR), enables(tracing::Level::INFO)),
                (errors, infos),
                "{told}"
            );
        };
        check("info", true, true);
        check("warn", true, false);
        check("zazend=debug", true, false);
        check("zazend=debug,info", true, true);
        check("verbose", true, false);
        check("off", false, false);
    }
}
