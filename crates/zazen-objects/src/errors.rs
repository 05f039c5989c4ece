//! What the store's client reports, as errors that name the object, what happened and what to do.

use object_store::client::{HttpError, HttpErrorKind};
use std::error::Error as _;
use zazen_core::{Error, ErrorKind};

/// Where a machine or a container of a cloud is asked for its credentials.
const METADATA_SERVERS: [&str; 2] = ["http://169.254.169.254", "http://169.254.170.2"];

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
        _ if METADATA_SERVERS.iter().any(|server| error.to_string().contains(server)) => (
            ErrorKind::Unavailable,
            "no credentials are set, and this machine has none of its own; set AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY in the environment of zazend, or of the `zazen` that writes, or \
             anonymous=yes for a public bucket",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_credentials_are_named() {
        let check = |said: &str, words: &str| {
            let error = object_store::Error::Generic { store: "S3", source: said.into() };
            let told = translate("s3://b/p", error).to_string();
            assert!(told.contains(words), "{told}");
        };
        check("Error performing PUT http://169.254.169.254/latest/api/token", "no credentials are set");
        check("Error performing GET http://10.0.0.1/b in 3ms: Server returned error response", "trouble");
    }
}
