//! `zazen dash`: a page in the user's browser that shows all nodes, live.
//!
//! The tool asks the nodes with its user's own rights (`watch.rs`), makes one JSON text of the
//! answers (`view.rs`) and serves it to this machine (`admit.rs` says to whom). The page itself is
//! in `page/`; it is the same for everybody and holds no data.
//!
//! Invariants: only a request with the token gets data, and each start makes a new token. The page
//! is served on the loopback interface only.

mod admit;
mod explained;
mod rates;
mod view;
mod watch;

use crate::output;
use crate::target::{Done, Targets};
use admit::{Admission, admit};
use clap::Args;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use watch::Watch;
use zazen_core::{Error, ErrorKind, Result};
use zazen_env::random_u128;
use zazen_http::{Page, Request, Responder};

#[derive(Args)]
#[command(after_help = "EXAMPLES:
  zazen dash                                              # this machine's daemon
  zazen dash --nodes nodes.txt --key /etc/zazen/key       # all nodes
  ssh -L 8080:127.0.0.1:8080 HOST zazen dash --port 8080 --nodes nodes.txt   # from another machine

It prints an address; open that in a browser on this machine. The address holds a secret: everybody
who has it sees what you may see. Ctrl-C ends the page.")]
pub(crate) struct Dash {
    #[command(flatten)]
    targets: Targets,
    /// The port of 127.0.0.1 to serve the page at [default: one that is free]
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// How often each node is asked, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = interval)]
    every: f64,
}

fn interval(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.5..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("give seconds from 0.5 to 3600".to_owned()),
    }
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const JSON: &str = "application/json; charset=utf-8";

/// For every answer. The page runs its own script and talks to its own server; nobody else's page
/// may frame it or embed its answers.
const HEADERS: &[(&str, &str)] = &[
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
];

pub(crate) fn run(arguments: &Dash) -> Result<Done> {
    let nodes = arguments.targets.nodes()?;
    let token = format!("{:032x}", random_u128()?);
    let watch = Watch::new(nodes, arguments.targets.as_flags(), Duration::from_secs_f64(arguments.every));
    let addr = (Ipv4Addr::LOCALHOST, arguments.port);
    let pages = {
        let (watch, token) = (watch.clone(), token.clone());
        move |request: &Request| Page { headers: HEADERS, ..page(request, &token, &watch) }
    };
    let responder =
        Responder::serve(&format!("{}:{}", addr.0, addr.1), "page", Box::new(pages)).map_err(|error| {
            let why = format!("page at {}:{}: {error}; give another --port, or none", addr.0, addr.1);
            Error::new(ErrorKind::Config, why)
        })?;
    output::line(format!("http://{}/#token={token}", responder.addr));
    output::note("open this address in a browser on this machine; Ctrl-C ends the page");
    watch.run()?;
    Ok(Done::Wholly)
}

fn page(request: &Request, token: &str, watch: &Arc<Watch>) -> Page {
    match admit(request.header("host"), request.header("authorization"), &request.path, token) {
        Admission::Shell => match request.path.as_str() {
            "/" => Page::of(HTML, include_str!("dash/page/index.html")),
            "/dash.js" => Page::of(SCRIPT, include_str!("dash/page/dash.js")),
            "/dash.css" => Page::of(STYLE, include_str!("dash/page/dash.css")),
            _ => Page::refusal("404 Not Found", "the page is at /"),
        },
        Admission::Data => Page::of(JSON, watch.state(admit::asked_dataset(&request.query))),
        Admission::Refused { status, why } => Page::refusal(status, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_bounded() {
        for wrong in ["0", "-1", "NaN", "inf", "1e9", "x", "0.4"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
        assert_eq!(interval("0.5"), Ok(0.5));
    }
}
