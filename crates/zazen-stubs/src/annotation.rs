//! What the comments say: `DIR:KIND[:option...]` after a parameter, words about a whole function.

use crate::diagnostic::{Diagnostics, SourceSpan, nearest};
use crate::lex::{Kind, Token, is_identifier};
use crate::model::{Direction, Shape};

/// A parameter's annotation as written.
#[derive(Clone, Debug)]
pub(crate) struct Annotation {
    pub(crate) direction: Direction,
    pub(crate) shape: Shape,
    pub(crate) size: Option<SizeOption>,
    pub(crate) max: Option<u64>,
    pub(crate) nullok: bool,
    pub(crate) zerocopy: bool,
    pub(crate) userbuf: bool,
    pub(crate) handle: Option<String>,
    pub(crate) close: bool,
    pub(crate) fd: bool,
    pub(crate) place: SourceSpan,
}

/// `size=±k`, `size=*±k`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizeOption {
    pub(crate) offset: i64,
    pub(crate) through_pointer: bool,
    pub(crate) place: SourceSpan,
}

const DIRECTIONS: &[&str] = &["in", "out", "inout"];
const SHAPES: &[&str] = &["obj", "ptr", "str", "arr", "arr2d"];
const OPTIONS: &[&str] = &["size", "nullok", "zerocopy", "userbuf", "max", "handle", "close", "fd"];
const FUNCTION_WORDS: &[&str] = &["errno", "blocking", "oneway", "idempotent", "handle", "fd"];

/// What a comment beside a parameter is.
#[derive(Clone, Debug)]
pub(crate) enum Comment {
    /// Its annotation.
    Annotation(Annotation),
    /// An annotation with a mistake, which has been reported.
    Wrong,
    /// A name, commented out.
    Name(String),
    /// Prose.
    Other,
}

/// Reads a comment beside a parameter.
pub(crate) fn of_parameter(token: &Token<'_>, diagnostics: &mut Diagnostics<'_>) -> Comment {
    let text = token.comment_text();
    let head = text.split(':').next().unwrap_or("").trim();
    let is_word = !head.is_empty() && head.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_word {
        return Comment::Other;
    }
    let meant = DIRECTIONS.contains(&head) || (text.contains(':') && nearest(head, DIRECTIONS).is_some());
    let second = text.split(':').nth(1).map(str::trim).unwrap_or("");
    if !meant && SHAPES.contains(&second) {
        diagnostics.error(
            place_of(token, head),
            format!("unknown direction `{head}`"),
            "write in, out or inout before the kind, as in /* in:obj */",
        );
        return Comment::Wrong;
    }
    if !meant {
        return if text.contains(':') { Comment::Other } else { Comment::Name(head.to_owned()) };
    }
    if token.kind == Kind::LineComment {
        diagnostics.error(
            token.place,
            "an annotation in a // comment",
            "write it as /* … */ between the parameter and its comma",
        );
        return Comment::Wrong;
    }
    parse(token, text, diagnostics).map_or(Comment::Wrong, Comment::Annotation)
}

/// Where `part`, a slice of the token's text, lies.
fn place_of(token: &Token<'_>, part: &str) -> SourceSpan {
    let offset = (part.as_ptr() as usize).saturating_sub(token.text.as_ptr() as usize);
    let start = token.place.start + offset.min(token.text.len());
    SourceSpan { start, end: start + part.len().max(1) }
}

fn suggestion(word: &str, known: &[&str]) -> String {
    match nearest(word, known) {
        Some(near) => format!("did you mean `{near}`? known: {}", known.join(", ")),
        None => format!("known: {}", known.join(", ")),
    }
}

fn parse(token: &Token<'_>, text: &str, diagnostics: &mut Diagnostics<'_>) -> Option<Annotation> {
    let errors_before = diagnostics.error_count();
    let mut parts = text.split(':').map(str::trim);
    let head = parts.next().unwrap_or("");
    let direction = match head {
        "in" => Direction::In,
        "out" => Direction::Out,
        "inout" => Direction::InOut,
        _ => {
            let message = format!("unknown direction `{head}`");
            diagnostics.error(place_of(token, head), message, suggestion(head, DIRECTIONS));
            Direction::In
        }
    };
    let Some(kind) = parts.next().filter(|kind| !kind.is_empty()) else {
        diagnostics.error(
            token.place,
            format!("`{head}` says no kind"),
            format!("write /* {}:KIND */, KIND one of {}", direction.word(), SHAPES.join(", ")),
        );
        return None;
    };
    let shape = match kind {
        "obj" => Shape::Obj,
        "ptr" => Shape::Ptr,
        "str" => Shape::Str,
        "arr" => Shape::Arr,
        "arr2d" => Shape::Arr2d,
        _ => {
            diagnostics.error(
                place_of(token, kind),
                format!("unknown kind `{kind}`"),
                suggestion(kind, SHAPES),
            );
            return None;
        }
    };
    let mut annotation = Annotation {
        direction,
        shape,
        size: None,
        max: None,
        nullok: false,
        zerocopy: false,
        userbuf: false,
        handle: None,
        close: false,
        fd: false,
        place: token.place,
    };
    let mut seen: Vec<&str> = Vec::new();
    for part in parts {
        let (word, value) = match part.split_once('=') {
            Some((word, value)) => (word.trim(), Some(value.trim())),
            None => (part, None),
        };
        if seen.contains(&word) {
            diagnostics.error(place_of(token, part), format!("`{word}` twice"), "remove one of them");
        }
        seen.push(word);
        option(token, &mut annotation, part, word, value, diagnostics);
    }
    (diagnostics.error_count() == errors_before).then_some(annotation)
}

fn option(
    token: &Token<'_>,
    annotation: &mut Annotation,
    part: &str,
    word: &str,
    value: Option<&str>,
    diagnostics: &mut Diagnostics<'_>,
) {
    let place = place_of(token, part);
    match (word, value) {
        ("nullok", None) => annotation.nullok = true,
        ("zerocopy", None) => annotation.zerocopy = true,
        ("userbuf", None) => annotation.userbuf = true,
        ("close", None) => annotation.close = true,
        ("fd", None) => annotation.fd = true,
        ("handle", None) => annotation.handle = Some("handle".to_owned()),
        ("handle", Some(kind)) if is_identifier(kind) => annotation.handle = Some(kind.to_owned()),
        ("size", Some(value)) => match size(value, place) {
            Some(size) => annotation.size = Some(size),
            None => diagnostics.error(
                place,
                format!("`size={value}` is no relative index"),
                "write size=+1 for the next argument, size=-2 for the second before this one",
            ),
        },
        ("max", Some(value)) => match value.parse::<u64>() {
            Ok(max) if (1..=MAX_LIMIT).contains(&max) => annotation.max = Some(max),
            _ => diagnostics.error(
                place,
                format!("`max={value}` is no count"),
                format!("write a number from 1 to {MAX_LIMIT}: elements, or bytes of void and strings"),
            ),
        },
        (word, None) if ["size", "max"].contains(&word) => {
            diagnostics.error(place, format!("`{word}` needs a value"), format!("write {word}=…"));
        }
        (word, Some(_)) if OPTIONS.contains(&word) => {
            diagnostics.error(place, format!("`{word}` takes no such value"), format!("write {word} alone"));
        }
        _ => diagnostics.error(place, format!("unknown option `{word}`"), suggestion(word, OPTIONS)),
    }
}

/// The largest `max=`: 2^48, beyond any memory.
const MAX_LIMIT: u64 = 1 << 48;

fn size(value: &str, place: SourceSpan) -> Option<SizeOption> {
    let (through_pointer, index) = match value.strip_prefix('*') {
        Some(rest) => (true, rest),
        None => (false, value),
    };
    let digits = index.strip_prefix(['+', '-'])?;
    if digits.is_empty() || !digits.chars().all(|c| c.is_ascii_digit()) {
        return None;
    }
    Some(SizeOption { offset: index.parse().ok()?, through_pointer, place })
}

/// The words that describe a function: (word, value of `handle=`), each with its place.
pub(crate) type FunctionWords = Vec<(&'static str, Option<String>, SourceSpan)>;

/// Reads a comment before a prototype (`strict` false: it may be prose) or behind its return type
/// or its parentheses (`strict`: nobody writes prose there).
pub(crate) fn of_function(
    token: &Token<'_>,
    strict: bool,
    diagnostics: &mut Diagnostics<'_>,
) -> FunctionWords {
    let text = token.comment_text();
    let parts: Vec<&str> = text
        .split(|c: char| c.is_whitespace() || c == ',' || c == ':')
        .filter(|part| !part.is_empty())
        .collect();
    let word_of = |part: &str| part.split('=').next().unwrap_or("").to_owned();
    let is_known = |part: &&str| FUNCTION_WORDS.contains(&word_of(part).as_str());
    let is_near = |part: &&str| is_known(part) || nearest(&word_of(part), FUNCTION_WORDS).is_some();
    // Prose may contain one of the words, or a similar word.
    let meant = !parts.is_empty() && parts.iter().all(is_near);
    let expected = strict && parts.iter().any(is_known);
    if !(meant || expected) {
        return Vec::new();
    }
    let mut words = FunctionWords::new();
    for part in parts {
        let (word, value) = match part.split_once('=') {
            Some((word, value)) => (word, Some(value)),
            None => (part, None),
        };
        let place = place_of(token, part);
        let Some(known) = FUNCTION_WORDS.iter().find(|known| **known == word) else {
            let message = format!("unknown word `{word}` about the function");
            diagnostics.error(place, message, suggestion(word, FUNCTION_WORDS));
            continue;
        };
        let value = match (*known, value) {
            ("handle", Some(kind)) if is_identifier(kind) => Some(kind.to_owned()),
            ("handle", None) => Some("handle".to_owned()),
            (_, None) => None,
            (known, Some(_)) => {
                diagnostics.error(
                    place,
                    format!("`{known}` takes no such value"),
                    format!("write {known} alone"),
                );
                None
            }
        };
        words.push((known, value, place));
    }
    words
}
