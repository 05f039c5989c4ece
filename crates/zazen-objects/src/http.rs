//! HTTP as the store's client uses it: no redirects, and no answer without a bound.

use async_trait::async_trait;
use http_body_util::{BodyExt, Limited};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use std::time::Duration;

/// The longest answer to anything but a read: a page of a listing has at most 1,000 keys of 1,024
/// bytes.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// The longest error.
const ERROR_BYTES_MAX: usize = 64 << 10;
/// A server that accepts no connection within this time is away.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// A server that sends nothing for this time hangs.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The same where a request brings a part of an object, which must come through first.
const WRITE_TIMEOUT: Duration = Duration::from_secs(120);
/// Idle connections that are kept.
const IDLE_MAX: usize = 64;

/// Makes clients that follow no redirect: a server that names another host could make this program
/// fetch what only this machine can reach.
#[derive(Debug)]
pub(crate) struct Connector {
    /// Whether objects are written.
    pub(crate) writes: bool,
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(if self.writes { WRITE_TIMEOUT } else { READ_TIMEOUT })
            .pool_max_idle_per_host(IDLE_MAX)
            .http1_only()
            .build()
            .map_err(|error| object_store::Error::Generic { store: "S3", source: Box::new(error) })?;
        Ok(HttpClient::new(Bounded(client)))
    }
}

/// A client whose answers are bounded.
#[derive(Debug)]
struct Bounded(reqwest::Client);

#[async_trait]
impl HttpService for Bounded {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let range =
            request.headers().get("range").and_then(|range| range.to_str().ok()).and_then(range_bytes);
        let (parts, body) = HttpService::call(&self.0, request).await?.into_parts();
        let bytes_max = match (parts.status.is_success(), range) {
            (true, Some(bytes)) => bytes,
            (true, None) => ANSWER_BYTES_MAX,
            (false, _) => ERROR_BYTES_MAX,
        };
        let bounded = Limited::new(body, bytes_max).map_err(|error| match error.downcast::<HttpError>() {
            Ok(error) => *error,
            Err(error) => HttpError::new_boxed(HttpErrorKind::Decode, error),
        });
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(bounded)))
    }
}

/// The length of `bytes=FIRST-LAST`.
fn range_bytes(range: &str) -> Option<usize> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let bytes = last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)?;
    usize::try_from(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_says_its_length() {
        assert_eq!(range_bytes("bytes=0-0"), Some(1));
        assert_eq!(range_bytes("bytes=10-109"), Some(100));
        for odd in ["bytes=5-", "bytes=-5", "bytes=9-5", "items=0-1", "bytes=0-18446744073709551615", ""] {
            assert_eq!(range_bytes(odd), None, "{odd}");
        }
    }
}
