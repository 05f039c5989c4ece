//! Everything the tool prints: tables and JSON to stdout, progress and errors to stderr.
//!
//! Invariants: stdout carries results only, so that a script can read it; a reader that closes the
//! pipe early (`zazen ls … | head`) ends the program quietly. Other users choose names of files and
//! datasets: nothing in them reaches a terminal as an order, and none of them begins a row or a
//! line. Text for people is therefore of type [`Lines`].

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::Duration;
use zazen_explain::{is_order, shown};

pub(crate) use zazen_core::byte_size::show as human_bytes;

/// Text for people. What was added as one line is one, whatever names are in it.
#[derive(Debug, Default)]
pub(crate) struct Lines(String);

impl Lines {
    /// Adds a line. A line feed within it is part of a name.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) {
        self.0.push_str(&shown(text.as_ref()));
        self.0.push('\n');
    }

    /// Adds text in lines, where whoever made the text took care of the names in it.
    pub(crate) fn text(&mut self, text: &str) {
        text.lines().for_each(|line| self.line(line));
    }

    #[cfg(test)]
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Adds lines.
    pub(crate) fn add(&mut self, more: &Lines) {
        self.0.push_str(&more.0);
    }
}

/// A message of one or several lines, after `zazen: `. Only the command begins a line: the others
/// begin with blanks, since a line feed may be part of a name.
fn message(text: &str) -> String {
    let lines: Vec<String> = text.trim_end_matches('\n').split('\n').map(shown).collect();
    lines.join("\n    ") + "\n"
}

/// Writes `lines` to stdout.
pub(crate) fn print(lines: &Lines) {
    print_raw(&lines.0);
}

/// Writes `text`, in which no names of others are, to stdout as it is.
pub(crate) fn print_raw(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        let quietly = error.kind() == std::io::ErrorKind::BrokenPipe;
        std::process::exit(if quietly { 0 } else { 1 });
    }
}

/// Writes a line to stdout. A line feed within it is part of a name.
pub(crate) fn line(text: impl AsRef<str>) {
    let mut lines = Lines::default();
    lines.line(text);
    print(&lines);
}

/// Writes a JSON value to stdout, indented for people where stdout is a terminal.
pub(crate) fn json(value: &serde_json::Value) {
    let pretty = std::io::stdout().is_terminal();
    json_text(if pretty { format!("{value:#}") } else { value.to_string() });
}

/// Writes `text`, which is JSON, to stdout, and ends the line.
pub(crate) fn json_text(text: String) {
    print_raw(&(harmless_json(text) + "\n"));
}

/// JSON escapes most control characters itself. The others, which are within texts, are escaped
/// here.
fn harmless_json(text: String) -> String {
    let is_left = |character: char| is_order(character) && character != '\n';
    if !text.contains(is_left) {
        return text;
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match is_left(character) {
            true => shown.push_str(&format!("\\u{:04x}", u32::from(character))),
            false => shown.push(character),
        }
    }
    shown
}

/// Writes the outcome of `name` to stdout as JSON.
pub(crate) fn json_of(name: &str, outcome: &impl serde::Serialize) -> zazen_core::Result<()> {
    let value = serde_json::to_value(outcome).map_err(|error| {
        let context = format!("{name}: outcome as JSON: {error}");
        zazen_core::Error::new(zazen_core::ErrorKind::InvalidArgument, context)
    })?;
    json(&value);
    Ok(())
}

/// Writes a remark to stderr; it is not part of the result.
pub(crate) fn note(text: impl AsRef<str>) {
    // Nothing is left to be done where even stderr is gone.
    let _ = write!(std::io::stderr(), "zazen: {}", message(text.as_ref()));
}

/// Writes a compiler-like message to stderr as it is: editors look for its place at the line's
/// beginning.
pub(crate) fn diagnostic(text: impl AsRef<str>) {
    let _ = write!(std::io::stderr(), "{}", message(text.as_ref()));
}

/// Says what is wrong with the command line, or prints the help that it asks for, and exits.
///
/// A shell makes names of files to words of a command line: their errors are shown as any other.
pub(crate) fn refuse(error: &clap::Error) -> ! {
    let gives_orders = |word: std::ffi::OsString| word.to_string_lossy().contains(is_order);
    if error.use_stderr() && std::env::args_os().any(gives_orders) {
        diagnostic(error.to_string());
        std::process::exit(error.exit_code());
    }
    error.exit()
}

/// Standard error for the log, which writes each message in one piece.
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        std::io::stderr().write_all(message(&String::from_utf8_lossy(text)).as_bytes())?;
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// A table for people: columns as wide as their widest cell, numbers to the right.
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns; a name that starts with `>` sets its column to the right.
    pub(crate) fn new(header: &[&'static str]) -> Table {
        Table { header: header.to_vec(), rows: Vec::new() }
    }

    /// Adds a row of as many cells as there are columns.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.header.len());
        self.rows.push(cells.iter().map(|cell| shown(cell)).collect());
    }

    /// The table, without trailing blanks.
    pub(crate) fn render(&self) -> Lines {
        let names: Vec<&str> = self.header.iter().map(|name| name.trim_start_matches('>')).collect();
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([names[column].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..names.len()).map(width).collect();
        let mut lines = Lines::default();
        let mut put = |cells: &mut dyn Iterator<Item = &str>| {
            let mut line = String::new();
            for (column, cell) in cells.enumerate() {
                let pad = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
                let gap = if column == 0 { "" } else { "  " };
                match self.header[column].starts_with('>') {
                    true => line.push_str(&format!("{gap}{pad}{cell}")),
                    false => line.push_str(&format!("{gap}{cell}{pad}")),
                }
            }
            lines.line(line.trim_end());
        };
        put(&mut names.iter().copied());
        for row in &self.rows {
            put(&mut row.iter().map(String::as_str));
        }
        lines
    }
}

/// A progress bar on stderr, or nothing where stderr is no terminal.
pub(crate) fn bar(total: u64, what: &'static str) -> ProgressBar {
    let style = "{msg} [{bar:30}] {human_pos}/{human_len} frames, {per_sec}, {eta} left";
    progress(Some(total), what, style)
}

/// A progress bar for simulated steps.
pub(crate) fn steps_bar(total: u64, what: &'static str) -> ProgressBar {
    progress(Some(total), what, "{msg} [{bar:30}] {percent} % of {human_len} steps, {eta} left")
}

/// A progress bar for bytes.
pub(crate) fn bytes_bar(total: u64, what: &'static str) -> ProgressBar {
    let style = "{msg} [{bar:30}] {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
    progress(Some(total), what, style)
}

/// A progress bar for parts of equal work.
pub(crate) fn parts_bar(total: u64, what: &'static str) -> ProgressBar {
    progress(Some(total), what, "{msg} [{bar:30}] {percent} %, {eta} left")
}

/// A spinner with a message, for work whose end is unknown.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    let bar = progress(None, what, "{spinner} {msg}");
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn progress(total: Option<u64>, what: &'static str, style: &str) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(total, target);
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.with_message(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_give_a_terminal_no_orders() {
        let name = "a\x1b[2J\u{9b}31m\rb\tc\u{202e}";
        let harmless = "a\\u{1b}[2J\\u{9b}31m\\rb\\tc\\u{202e}";
        let told = message(&format!("{name}: no such file\n{name}\n"));
        assert_eq!(told, format!("{harmless}: no such file\n    {harmless}\n"));
        let mut lines = Lines::default();
        lines.line(format!("{name}\nforged"));
        lines.text("one\ntwo");
        assert_eq!(lines.0, format!("{harmless}\\nforged\none\ntwo\n"));
        let mut table = Table::new(&["name", ">count"]);
        table.row(vec!["x\nforged  7".into(), "1".into()]);
        assert_eq!(table.render().0.lines().count(), 2, "a line feed makes no row");
        let value = serde_json::json!({"name": format!("{name}\u{7f}\n")});
        for text in [format!("{value:#}"), value.to_string()] {
            let shown = harmless_json(text);
            assert!(!shown.contains(|c: char| is_order(c) && c != '\n'), "{shown:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
        }
    }

    #[test]
    fn a_table_lines_up_and_has_no_trailing_blanks() {
        let mut table = Table::new(&["node", ">frames", "state"]);
        table.row(vec!["n0".into(), "12".into(), "up".into()]);
        table.row(vec!["node-17".into(), "3".into(), "".into()]);
        let expected = "node     frames  state\nn0           12  up\nnode-17       3\n";
        assert_eq!(table.render().0, expected);
    }
}
