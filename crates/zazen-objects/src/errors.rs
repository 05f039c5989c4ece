//! What the store's client reports, as errors that name the object, what happened and what to do.

use object_store::client::{HttpError, HttpErrorKind};
use std::error::Error as _;
use zazen_core::{Error, ErrorKind};

/// The longest text of a server that is passed on.
const TEXT_CHARS_MAX: usize = 300;

/// The error of a request for `what`.
pub(crate) fn translate(what: &str, error: object_store::Error) -> Error {
    use object_store::Error as Store;
    let (kind, why) = match &error {
        Store::NotFound { .. } => return Error::new(ErrorKind::NotFound, format!("{what}: no such object")),
        Store::Precondition { .. } => (ErrorKind::Stale, "the object was replaced; open it again"),
        Store::PermissionDenied { .. } | Store::Unauthenticated { .. } => (
            ErrorKind::PermissionDenied,
            "the object store refuses the credentials; check AWS_ACCESS_KEY_ID and the like in the \
             environment of zazend, or of the `zazen` that writes, and the bucket's policy",
        ),
        Store::InvalidPath { .. } => (
            ErrorKind::Unsupported,
            "a key there has an empty part, `.`, `..` or a control character, which no path can name; rename \
             that object",
        ),
        _ => kind_of(&error),
    };
    Error::new(kind, format!("{what}: {why} ({})", shown(&error.to_string())))
}

fn kind_of(error: &object_store::Error) -> (ErrorKind, &'static str) {
    let mut next: Option<&(dyn std::error::Error + 'static)> = error.source();
    let mut text = error.to_string();
    while let Some(cause) = next {
        if let Some(http) = cause.downcast_ref::<HttpError>() {
            return match http.kind() {
                HttpErrorKind::Timeout => (ErrorKind::TimedOut, "the object store does not answer in time"),
                HttpErrorKind::Connect | HttpErrorKind::Request | HttpErrorKind::Interrupted => {
                    (ErrorKind::Unavailable, "the object store cannot be reached")
                }
                _ => (ErrorKind::Protocol, "the object store sent what no object store sends"),
            };
        }
        text = cause.to_string();
        next = cause.source();
    }
    let is_busy =
        ["status code: 5", "status code: 429", "status code: 408", "Server returned error response"];
    if is_busy.iter().any(|sign| text.contains(sign)) {
        return (ErrorKind::Unavailable, "the object store has trouble of its own");
    }
    if text.contains("redirect") || text.contains("status code: 3") {
        return (ErrorKind::Config, "the object store sends elsewhere; check endpoint and region");
    }
    (ErrorKind::Protocol, "the object store sent what no object store sends")
}

/// A bounded part of what a server may have written, without control characters.
fn shown(text: &str) -> String {
    let plain = text.chars().map(|char| if char.is_control() { ' ' } else { char });
    plain.take(TEXT_CHARS_MAX).collect()
}
