//! Mistakes in a header: the place, the mistake, the remedy.

use std::fmt;

/// Whether a diagnostic stops the generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is generated.
    Error,
    /// Suspicious; generated all the same.
    Warning,
}

/// One mistake. Its `Display` is what a compiler would print: place, message, the line with carets,
/// the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// The header's name.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// How many characters of the line are meant; at least 1.
    pub width: usize,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
    /// The line of the header, tabs as blanks.
    pub source_line: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diagnostic { file, line, column, message, remedy, source_line, .. } = self;
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        writeln!(f, "{file}:{line}:{column}: {severity}: {message}")?;
        writeln!(f, "{line:>5} | {source_line}")?;
        writeln!(
            f,
            "      | {}{}",
            " ".repeat((column - 1).min(LINE_BYTES_MAX)),
            "^".repeat(self.width.min(LINE_BYTES_MAX))
        )?;
        write!(f, "      = {remedy}")
    }
}

/// A stretch of the header, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceSpan {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl SourceSpan {
    /// From the beginning of this one to the end of `other`.
    pub(crate) fn to(self, other: SourceSpan) -> SourceSpan {
        SourceSpan { start: self.start, end: other.end.max(self.end) }
    }
}

/// How many errors, and how many warnings, are shown for one header.
const EACH_MAX: usize = 200;
/// Bytes of a line that are shown.
const LINE_BYTES_MAX: usize = 1000;

fn clipped(line: &str) -> &str {
    &line[..line.floor_char_boundary(LINE_BYTES_MAX.min(line.len()))]
}

/// Collects diagnostics on one header.
pub(crate) struct Diagnostics<'a> {
    file: &'a str,
    text: &'a str,
    line_starts: Vec<usize>,
    found: Vec<(SourceSpan, Diagnostic)>,
}

impl<'a> Diagnostics<'a> {
    pub(crate) fn new(file: &'a str, text: &'a str) -> Diagnostics<'a> {
        let line_starts =
            std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect::<Vec<_>>();
        Diagnostics { file, text, line_starts, found: Vec::new() }
    }

    pub(crate) fn error(&mut self, place: SourceSpan, message: impl Into<String>, remedy: impl Into<String>) {
        self.add(Severity::Error, place, message.into(), remedy.into());
    }

    pub(crate) fn warning(
        &mut self,
        place: SourceSpan,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(Severity::Warning, place, message.into(), remedy.into());
    }

    pub(crate) fn error_count(&self) -> usize {
        self.found.iter().filter(|(_, diagnostic)| diagnostic.severity == Severity::Error).count()
    }

    fn add(&mut self, severity: Severity, place: SourceSpan, message: String, remedy: String) {
        let row = self.line_starts.partition_point(|&start| start <= place.start).saturating_sub(1);
        let start = self.line_starts[row];
        let end = self.text[start..].find('\n').map_or(self.text.len(), |length| start + length);
        let characters =
            |from: usize, to: usize| self.text.get(from..to).map_or(0, |part| part.chars().count());
        let width = characters(place.start, place.end.min(end)).max(1);
        let source_line = clipped(self.text[start..end].trim_end()).replace('\t', " ");
        let column = characters(start, place.start.min(end)) + 1;
        let diagnostic = Diagnostic {
            severity,
            file: self.file.to_owned(),
            line: row + 1,
            column,
            width,
            message,
            remedy,
            source_line,
        };
        let same_kind = self.found.iter().filter(|(_, known)| known.severity == severity).count();
        let is_news = !self.found.iter().any(|(_, known)| *known == diagnostic);
        if is_news && same_kind < EACH_MAX {
            self.found.push((place, diagnostic));
        }
    }

    /// Errors and warnings, each in the order of their places.
    pub(crate) fn into_parts(mut self) -> (Vec<Diagnostic>, Vec<Diagnostic>) {
        self.found.sort_by_key(|(place, _)| place.start);
        self.found
            .into_iter()
            .map(|(_, diagnostic)| diagnostic)
            .partition(|diagnostic| diagnostic.severity == Severity::Error)
    }
}

/// The word of `known` that `word` was probably meant to be: at most two edits away, and not most
/// of it.
pub(crate) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let best = known.iter().map(|candidate| (distance(word, candidate), *candidate)).min()?;
    (best.0 <= 2 && best.0 * 2 <= word.chars().count().max(2)).then_some(best.1)
}

/// The number of insertions, deletions, substitutions and swaps of neighbours between two words.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut rows = vec![vec![0; right.len() + 1]; left.len() + 1];
    for i in 0..=left.len() {
        for j in 0..=right.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let same = usize::from(left[i - 1] != right[j - 1]);
                let mut best = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + same);
                if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                    best = best.min(rows[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_finds_its_word_and_prose_does_not() {
        let known = ["in", "out", "inout", "zerocopy", "blocking"];
        let check =
            |word: &str, expected: Option<&str>| assert_eq!(nearest(word, &known), expected, "{word}");
        check("zercopy", Some("zerocopy"));
        check("blokcing", Some("blocking"));
        check("oot", Some("out"));
        check("inuot", Some("inout"));
        check("buffer", None);
        check("a", None);
    }

    #[test]
    fn places_count_characters_and_survive_any_byte_range() {
        let text = "é\tx\nlast";
        let mut diagnostics = Diagnostics::new("a.h", text);
        diagnostics.error(SourceSpan { start: 3, end: 4 }, "m", "r");
        diagnostics.error(SourceSpan { start: 9, end: 9 }, "end", "r");
        let (errors, _) = diagnostics.into_parts();
        assert_eq!((errors[0].line, errors[0].column, errors[0].width), (1, 3, 1));
        assert_eq!(errors[0].to_string(), "a.h:1:3: error: m\n    1 | é x\n      |   ^\n      = r");
        assert_eq!((errors[1].line, errors[1].column), (2, 5));
    }

    #[test]
    fn a_line_of_mistakes_is_not_told_a_thousand_times() {
        let text = "x ".repeat(100_000);
        let mut diagnostics = Diagnostics::new("a.h", &text);
        for at in 0..5000 {
            diagnostics.warning(SourceSpan { start: 2 * at, end: 2 * at + 1 }, "w", "r");
        }
        diagnostics.error(SourceSpan { start: 150_000, end: 199_999 }, "m", "r");
        let (errors, warnings) = diagnostics.into_parts();
        assert_eq!((errors.len(), warnings.len()), (1, EACH_MAX));
        assert!(errors[0].to_string().len() < 5000);
    }
}
