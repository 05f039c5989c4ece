//! The daemon's log: lines on standard error, filtered by the setting `log`, as text or as JSON.
//!
//! Invariant: only the daemon begins a line. Messages name files and datasets, and users choose
//! those names: a line feed in a message begins a line with blanks in front. In JSON there is none.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};
use zazen_core::{Error, ErrorKind, Result};

/// What is logged where nobody says.
pub const DEFAULT_LOG: &str = "info";

/// Whether messages are JSON; text otherwise. One for the process, as standard error is.
static JSON: AtomicBool = AtomicBool::new(false);

/// Changes what is logged while the daemon runs.
#[derive(Clone)]
pub struct LogLevel(reload::Handle<Targets, Registry>);

impl LogLevel {
    /// Begins the log of this process. `told`: the setting `log`. One that is no filter counts as
    /// `info`, so that its refusal is logged.
    pub fn start(told: &str) -> LogLevel {
        let info = || LogFilter { filter: Targets::new().with_default(Level::INFO), json: false };
        let told = LogFilter::parse(told).unwrap_or_else(|_| info());
        JSON.store(told.json, Ordering::Relaxed);
        let (filter, handle) = reload::Layer::new(told.filter);
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(|| Lines)
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .event_format(Form::of_standard_error());
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
        JSON.store(filter.json, Ordering::Relaxed);
        // It fails only where no log was begun.
        let _ = self.0.reload(filter.filter);
    }
}

/// How a message is written.
struct Form {
    text: Format<Full, SystemTime>,
    /// Where standard error is systemd's journal: it knows the time, and takes the level from
    /// the beginning of a line (sd-daemon(3)).
    journal: Option<Format<Full, ()>>,
}

impl Form {
    fn of_standard_error() -> Form {
        let text = Format::default().with_target(false);
        let journal = is_journal().then(|| text.clone().without_time().with_level(false));
        Form { text, journal }
    }
}

/// Whether standard error leads to the journal: systemd names the socket in $JOURNAL_STREAM.
fn is_journal() -> bool {
    let Ok(found) = rustix::fs::fstat(std::io::stderr()) else { return false };
    std::env::var("JOURNAL_STREAM").is_ok_and(|told| told == format!("{}:{}", found.st_dev, found.st_ino))
}

impl<S, N> FormatEvent<S, N> for Form
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if JSON.load(Ordering::Relaxed) {
            return writeln!(writer, "{}", as_json(event)?);
        }
        match &self.journal {
            None => self.text.format_event(context, writer, event),
            Some(journal) => {
                write!(writer, "{}", level_of_journal(event.metadata().level()))?;
                journal.format_event(context, writer, event)
            }
        }
    }
}

/// The beginning of a line of this level, as the journal takes it.
fn level_of_journal(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        _ => "<7>",
    }
}

/// One message as a JSON object.
fn as_json(event: &Event<'_>) -> std::result::Result<serde_json::Value, fmt::Error> {
    let mut time = String::new();
    SystemTime.format_time(&mut Writer::new(&mut time))?;
    let mut fields = Fields(serde_json::Map::new());
    fields.0.insert("time".to_owned(), time.into());
    fields.0.insert("level".to_owned(), event.metadata().level().as_str().into());
    fields.0.insert("part".to_owned(), event.metadata().target().into());
    event.record(&mut fields);
    Ok(fields.0.into())
}

/// The fields of a message, by name; its text is `message`.
struct Fields(serde_json::Map<String, serde_json::Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
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
    // In the journal, each line has the level of its message.
    let level: &[u8] = match text {
        [b'<', b'0'..=b'7', b'>', ..] => &text[..3],
        _ => &[],
    };
    let mut shown = Vec::with_capacity(message.len());
    for byte in text {
        match byte {
            b'\n' => shown.extend([b"\n", level, b"    "].concat()),
            b'\r' => shown.extend_from_slice(b"\\r"),
            other => shown.push(*other),
        }
    }
    shown.extend_from_slice(end);
    shown
}

/// A setting `log` that is one: levels, and perhaps the word `json` or `text`, joined by commas.
pub struct LogFilter {
    filter: Targets,
    json: bool,
}

impl LogFilter {
    /// `Config` if `told` is no filter.
    pub fn parse(told: &str) -> Result<LogFilter> {
        let refuse = |error| Error::new(ErrorKind::Config, format!("log {told:?}: {error}"));
        let (forms, levels): (Vec<&str>, Vec<&str>) =
            told.split(',').map(str::trim).partition(|word| is_form(word));
        let levels = if levels.is_empty() { DEFAULT_LOG.to_owned() } else { levels.join(",") };
        let filter = levels.parse::<Targets>().map(with_errors).map_err(refuse)?;
        Ok(LogFilter { filter, json: forms.last() == Some(&"json") })
    }
}

/// Whether a word of the setting `log` names a form.
pub fn is_form(word: &str) -> bool {
    ["json", "text"].contains(&word)
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
    fn further_lines_of_a_message_have_its_level_in_the_journal() {
        assert_eq!(one_line(b"<4>a\n<3>b\n"), b"<4>a\n<4>    <3>b\n");
        assert_eq!(one_line(b"<9>a\nb\n"), b"<9>a\n    b\n");
    }

    #[test]
    fn a_setting_may_name_a_form() {
        let check = |told: &str, json: bool, info: bool, debug: bool| {
            let found = LogFilter::parse(told).unwrap();
            let enables = |level| found.filter.would_enable("zazen_store", &level);
            let all = (found.json, enables(Level::INFO), enables(Level::DEBUG));
            assert_eq!(all, (json, info, debug), "{told}");
        };
        check("json", true, true, false);
        check("json,warn", true, false, false);
        check("warn, json", true, false, false);
        check("json,info,zazen_store=debug", true, true, true);
        check("text", false, true, false);
        check("json,text,debug", false, true, true);
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
