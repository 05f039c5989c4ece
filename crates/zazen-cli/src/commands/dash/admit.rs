//! Which requests may have what of the page. *Pure.*
//!
//! Any user of this machine can connect to a port, and any web page can make the user's browser
//! send requests there. So:
//!
//! - a request gets data only if it has the token in `Authorization`. A browser adds no such header
//!   by itself, and a page of another origin may not add it: its browser would first have to ask
//!   the server for leave (CORS), which it never gives.
//! - the request must name this machine as its host. A page whose own name was made to mean
//!   127.0.0.1 (DNS rebinding) has another name there.

/// What a request may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The page, which holds no data.
    Shell,
    /// What the nodes say.
    Data,
    /// Nothing.
    Refused { status: &'static str, why: &'static str },
}

/// Where the data is.
pub(super) const DATA_PATH: &str = "/state";

/// What a request with these headers may have.
pub(super) fn admit(host: Option<&str>, authorization: Option<&str>, path: &str, token: &str) -> Admission {
    if !host.is_some_and(is_this_machine) {
        let why = "the page is for this machine's own address; open the address that `zazen dash` printed";
        return Admission::Refused { status: "421 Misdirected Request", why };
    }
    if path != DATA_PATH {
        return Admission::Shell;
    }
    match authorization.and_then(|value| value.strip_prefix("Bearer ")) {
        Some(shown) if is_same(shown.as_bytes(), token.as_bytes()) => Admission::Data,
        _ => {
            let why = "the token is missing or old; open the address that `zazen dash` printed";
            Admission::Refused { status: "401 Unauthorized", why }
        }
    }
}

/// Any port: with `ssh -L`, the browser's one is another than ours.
fn is_this_machine(host: &str) -> bool {
    let is_port =
        |port: &str| (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
    ["127.0.0.1", "localhost", "[::1]"].iter().any(|name| {
        host.strip_prefix(name)
            .is_some_and(|rest| rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port))
    })
}

/// Compares in a time that tells nothing of where two texts of one length differ.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// The dataset of a query `explain=PATH`; `None` if it names none, or not in UTF-8.
pub(super) fn asked_dataset(query: &str) -> Option<String> {
    let value = query.split('&').find_map(|part| part.strip_prefix("explain="))?;
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        rest = others;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &rest[2..];
    }
    let is_dataset =
        |path: &String| path.starts_with('/') || path.starts_with(zazen_backing::objects::SCHEME);
    String::from_utf8(bytes).ok().filter(is_dataset)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn data_needs_the_token() {
        let asked =
            |authorization: Option<&str>| admit(Some("127.0.0.1:80"), authorization, DATA_PATH, TOKEN);
        assert_eq!(asked(Some(&format!("Bearer {TOKEN}"))), Admission::Data);
        let wrong = [
            "",
            "Bearer",
            "Bearer ",
            TOKEN,
            "Basic 0123456789abcdef0123456789abcdef",
            "Bearer 0123456789abcdef0123456789abcdee",
            "Bearer 0123456789abcdef0123456789abcdef0",
            "bearer 0123456789abcdef0123456789abcdef",
        ];
        for authorization in wrong.map(Some).into_iter().chain([None]) {
            let got = asked(authorization);
            assert!(
                matches!(got, Admission::Refused { status: "401 Unauthorized", .. }),
                "{authorization:?}"
            );
        }
    }

    #[test]
    fn other_hosts_get_nothing() {
        let shown = format!("Bearer {TOKEN}");
        for path in ["/", DATA_PATH, "/dash.js", "/else"] {
            for host in ["127.0.0.1", "127.0.0.1:8080", "localhost:1", "[::1]:65535", "localhost"].map(Some) {
                let expected = if path == DATA_PATH { Admission::Data } else { Admission::Shell };
                assert_eq!(admit(host, Some(&shown), path, TOKEN), expected, "{host:?} {path}");
            }
            let hosts = [
                "evil.example",
                "evil.example:8080",
                "127.0.0.1.evil.example:8080",
                "localhost.evil.example",
                "127.0.0.1:80.evil.example",
                "127.0.0.1:",
                "127.0.0.1:123456",
                "user@127.0.0.1",
                "",
            ];
            for host in hosts.map(Some).into_iter().chain([None]) {
                let got = admit(host, Some(&shown), path, TOKEN);
                assert!(matches!(got, Admission::Refused { .. }), "{host:?} {path}: {got:?}");
            }
        }
    }

    #[test]
    fn a_dataset_is_decoded_from_the_query() {
        let check = |query: &str, expected: Option<&str>| {
            assert_eq!(asked_dataset(query).as_deref(), expected, "{query}");
        };
        check("", None);
        check("explain=%2Flustre%2Fsim%201", Some("/lustre/sim 1"));
        check("x=1&explain=/a%C3%A9", Some("/aé"));
        check("explain=s3%3A%2F%2Fbucket%2Fsim1", Some("s3://bucket/sim1"));
        check("explain=/a%2", None);
        check("explain=/a%zz", None);
        check("explain=/a%ff", None);
        check("explain=relative", None);
        check("explain=", None);
    }
}
