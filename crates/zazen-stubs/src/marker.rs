//! `START-ZAZEN-SCANNER ID=… INIT=… FINI=…`: where the scanned part begins, and whose header it is.

use crate::diagnostic::{Diagnostics, SourceSpan, nearest};
use crate::lex::is_identifier;

/// What the marker says.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Marker {
    pub(crate) id: u32,
    pub(crate) init: Option<String>,
    pub(crate) fini: Option<String>,
    /// Published headers have this word without an explanation. It is recorded and never called.
    pub(crate) process: Option<String>,
    pub(crate) attach: Option<String>,
    pub(crate) detach: Option<String>,
    /// A host runs the functions with its caller's identity.
    pub(crate) acts_as_caller: bool,
}

/// The largest plug-in number: it travels in 16 bits.
pub(crate) const ID_MAX: u32 = 65535;

const STARTS: &[&str] = &["START-ZAZEN-SCANNER", "START-ZOID-SCANNER"];
const ENDS: &[&str] = &["END-ZAZEN-SCANNER", "END-ZOID-SCANNER"];
const KEYS: &[&str] = &["ID", "INIT", "FINI", "PROC", "ATTACH", "DETACH", "IDENTITY"];
const FORM: &str = "write /* START-ZAZEN-SCANNER ID=7 INIT=NULL FINI=NULL */ before the first prototype";

impl Marker {
    /// The plug-in's own functions, which are not forwarded.
    pub(crate) fn hooks(&self) -> impl Iterator<Item = &str> {
        [&self.init, &self.fini, &self.process, &self.attach, &self.detach]
            .into_iter()
            .flatten()
            .map(String::as_str)
    }
}

/// Whether a comment's text is an END marker.
pub(crate) fn is_end(comment: &str) -> bool {
    ENDS.contains(&comment.trim())
}

/// Whether a comment's text is a START marker.
pub(crate) fn is_start(comment: &str) -> bool {
    STARTS.iter().any(|start| comment.trim().starts_with(start))
}

/// Finds the marker; gives it and the byte after its comment.
pub(crate) fn find(text: &str, diagnostics: &mut Diagnostics<'_>) -> Option<(Marker, usize)> {
    let found = STARTS.iter().filter_map(|start| text.find(start).map(|at| (at, *start))).min();
    let Some((at, start)) = found else {
        let end = SourceSpan { start: 0, end: 1 };
        diagnostics.error(end, "this header has no START-ZAZEN-SCANNER marker", FORM);
        return None;
    };
    let place = SourceSpan { start: at, end: at + start.len() };
    let inside = text[..at].rfind("/*").is_some_and(|open| !text[open..at].contains("*/"));
    if !inside {
        diagnostics.error(place, "the START marker is not in a /* … */ comment", FORM);
        return None;
    }
    let Some(length) = text[at..].find("*/") else {
        diagnostics.error(place, "the comment of the START marker never ends", "close it with */");
        return None;
    };
    let body = place.end..at + length;
    Some((parse(&text[body.clone()], body.start, place, diagnostics), at + length + 2))
}

fn parse(body: &str, offset: usize, marker_place: SourceSpan, diagnostics: &mut Diagnostics<'_>) -> Marker {
    let mut marker = Marker::default();
    let mut seen: Vec<&str> = Vec::new();
    for part in body.split(|c: char| c.is_whitespace() || c == '*').filter(|part| !part.is_empty()) {
        let start = offset + (part.as_ptr() as usize - body.as_ptr() as usize);
        let place = SourceSpan { start, end: start + part.len() };
        let Some((key, value)) = part.split_once('=') else {
            diagnostics.error(place, format!("`{part}` in the marker is not KEY=VALUE"), FORM);
            continue;
        };
        if seen.contains(&key) {
            diagnostics.error(place, format!("{key}= twice in the marker"), "remove one of them");
        }
        seen.push(key);
        if key == "ID" {
            marker.id = id(value, place, diagnostics);
            continue;
        }
        if key == "IDENTITY" {
            marker.acts_as_caller = value == "caller";
            if value != "caller" {
                diagnostics.error(
                    place,
                    format!("IDENTITY={value}: only IDENTITY=caller has a meaning"),
                    "write that, or remove it: the functions then run as the host's own user",
                );
            }
            continue;
        }
        if value != "NULL" && !is_identifier(value) {
            diagnostics.error(
                place,
                format!("{key}={value}: not the name of a function"),
                "name one, or NULL",
            );
            continue;
        }
        let hook = (value != "NULL").then(|| value.to_owned());
        match key {
            "INIT" => marker.init = hook,
            "FINI" => marker.fini = hook,
            "PROC" => {
                if hook.is_some() {
                    diagnostics.warning(
                        place,
                        "PROC is recorded but never called: what it meant is not known",
                        "use ATTACH= and DETACH= to be told of clients",
                    );
                }
                marker.process = hook;
            }
            "ATTACH" => marker.attach = hook,
            "DETACH" => marker.detach = hook,
            _ => {
                let near = nearest(key, KEYS).map_or(String::new(), |near| format!("did you mean {near}=? "));
                let remedy = format!("{near}known: {}", KEYS.join(", "));
                diagnostics.error(place, format!("unknown key {key}= in the marker"), remedy);
            }
        }
    }
    if !seen.contains(&"ID") {
        diagnostics.error(
            marker_place,
            "the marker has no ID=",
            format!("add ID=, a number from 1 to {ID_MAX}"),
        );
    }
    for key in ["INIT", "FINI"] {
        if !seen.contains(&key) {
            diagnostics.error(
                marker_place,
                format!("the marker has no {key}="),
                format!("add {key}=, the plug-in's function or NULL"),
            );
        }
    }
    marker
}

fn id(value: &str, place: SourceSpan, diagnostics: &mut Diagnostics<'_>) -> u32 {
    let parsed = match value.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => value.parse().ok(),
    };
    match parsed {
        Some(id) if (1..=ID_MAX).contains(&id) => id,
        _ => {
            let remedy = format!("use a number from 1 to {ID_MAX} that no other plug-in of the daemon has");
            diagnostics.error(place, format!("ID={value} is no plug-in number"), remedy);
            0
        }
    }
}
