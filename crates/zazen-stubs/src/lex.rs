//! Turns text into tokens. Comments are tokens too.
//!
//! Covers what can stand in the scanned part of a header. Preprocessor directives come out as one
//! token each, continuation lines joined.

use crate::diagnostic::{Diagnostics, SourceSpan};

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier or keyword.
    Word,
    /// A number, as C's preprocessor sees one.
    Number,
    /// A string or character literal.
    Literal,
    /// One character of punctuation; three for `...`.
    Punctuation,
    /// `/* ... */`.
    Comment,
    /// `// ...`.
    LineComment,
    /// `#...` up to the end of its logical line.
    Directive,
    /// The end of the text.
    End,
}

/// A token and where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    pub(crate) place: SourceSpan,
}

impl Token<'_> {
    pub(crate) fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Word | Kind::Punctuation) && self.text == text
    }

    pub(crate) fn is_comment(&self) -> bool {
        matches!(self.kind, Kind::Comment | Kind::LineComment)
    }

    /// What a comment says, without its marks and the blanks beside them.
    pub(crate) fn comment_text(&self) -> &str {
        let text = self.text;
        let inner = match self.kind {
            Kind::Comment => text.strip_prefix("/*").map(|rest| rest.strip_suffix("*/").unwrap_or(rest)),
            _ => text.strip_prefix("//"),
        };
        inner.unwrap_or(text).trim_matches(|c: char| c.is_whitespace() || c == '*')
    }
}

/// The tokens of `text` from byte `from` on, the last one being [`Kind::End`].
pub(crate) fn tokens<'a>(text: &'a str, from: usize, diagnostics: &mut Diagnostics<'_>) -> Vec<Token<'a>> {
    let mut lexer = Lexer { text, at: from, line_start: true };
    let mut tokens = Vec::new();
    while let Some(token) = lexer.next(diagnostics) {
        tokens.push(token);
    }
    let end = SourceSpan { start: text.len(), end: text.len() };
    tokens.push(Token { kind: Kind::End, text: "", place: end });
    tokens
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    /// Whether only blanks and comments came before on this line, so that `#` begins a directive.
    line_start: bool,
}

impl<'a> Lexer<'a> {
    fn next(&mut self, diagnostics: &mut Diagnostics<'_>) -> Option<Token<'a>> {
        loop {
            let rest = &self.text[self.at..];
            let first = rest.chars().next()?;
            if first == '\n' {
                self.line_start = true;
                self.at += 1;
            } else if first.is_whitespace() || first == '\u{feff}' {
                self.at += first.len_utf8();
            } else if rest.starts_with("\\\n") || rest.starts_with("\\\r\n") {
                self.at += rest.find('\n').unwrap_or(0) + 1;
            } else {
                break;
            }
        }
        let rest = &self.text[self.at..];
        let (kind, length) = self.measure(rest, diagnostics);
        let place = SourceSpan { start: self.at, end: self.at + length };
        self.at += length;
        if !matches!(kind, Kind::Comment | Kind::LineComment) {
            self.line_start = false;
        }
        Some(Token { kind, text: &rest[..length], place })
    }

    fn measure(&self, rest: &str, diagnostics: &mut Diagnostics<'_>) -> (Kind, usize) {
        let first = rest.chars().next().unwrap_or(' ');
        let length_while = |accept: fn(char) -> bool| rest.find(|c: char| !accept(c)).unwrap_or(rest.len());
        if let Some(inside) = rest.strip_prefix("/*") {
            let Some(end) = inside.find("*/") else {
                let place = SourceSpan { start: self.at, end: self.at + 2 };
                diagnostics.error(place, "this comment never ends", "close it with */");
                return (Kind::Comment, rest.len());
            };
            (Kind::Comment, end + 4)
        } else if rest.starts_with("//") {
            (Kind::LineComment, length_while(|c| c != '\n'))
        } else if first == '#' && self.line_start {
            (Kind::Directive, directive_length(rest))
        } else if is_word_start(first) {
            (Kind::Word, length_while(|c| is_word_start(c) || c.is_ascii_digit()))
        } else if first.is_ascii_digit() {
            (Kind::Number, length_while(|c| c.is_ascii_alphanumeric() || c == '.' || c == '_'))
        } else if first == '"' || first == '\'' {
            (Kind::Literal, literal_length(rest, first))
        } else if rest.starts_with("...") {
            (Kind::Punctuation, 3)
        } else {
            (Kind::Punctuation, first.len_utf8())
        }
    }
}

fn is_word_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

/// Goes to the end of the logical line, but not into a comment that continues after it.
fn directive_length(rest: &str) -> usize {
    let mut at = 0;
    loop {
        let end = rest[at..].find('\n').map_or(rest.len(), |length| at + length);
        if end == rest.len() || !rest[..end].trim_end_matches('\r').ends_with('\\') {
            let comment = rest[at..end].find("/*").map(|start| at + start);
            break comment.unwrap_or(end);
        }
        at = end + 1;
    }
}

fn literal_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            '\n' => return at,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

pub(crate) fn is_identifier(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[(Kind, &str)]) {
        let mut diagnostics = Diagnostics::new("a.h", text);
        let found: Vec<(Kind, &str)> =
            tokens(text, 0, &mut diagnostics).iter().map(|token| (token.kind, token.text)).collect();
        assert_eq!(found[..found.len() - 1], *expected, "{text:?}");
    }

    #[test]
    fn tokens_of_all_kinds() {
        use Kind::*;
        check(
            "int *a[4];",
            &[
                (Word, "int"),
                (Punctuation, "*"),
                (Word, "a"),
                (Punctuation, "["),
                (Number, "4"),
                (Punctuation, "]"),
                (Punctuation, ";"),
            ],
        );
        check(
            "a/* x */b//c\nd",
            &[(Word, "a"), (Comment, "/* x */"), (Word, "b"), (LineComment, "//c"), (Word, "d")],
        );
        check(
            "# define A \\\n  1\nx # y",
            &[(Directive, "# define A \\\n  1"), (Word, "x"), (Punctuation, "#"), (Word, "y")],
        );
        check("\"a\\\"b\" ...", &[(Literal, "\"a\\\"b\""), (Punctuation, "...")]);
        check("#endif /* A_H */", &[(Directive, "#endif "), (Comment, "/* A_H */")]);
    }

    #[test]
    fn a_comment_without_an_end_is_reported_and_ends_the_text() {
        let mut diagnostics = Diagnostics::new("a.h", "int /* x");
        assert_eq!(tokens("int /* x", 0, &mut diagnostics).len(), 3);
        assert_eq!(diagnostics.error_count(), 1);
    }
}
