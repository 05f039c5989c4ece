//! One call as a line of JSON.

use crate::text::{Text, Texts};
use serde::{Deserialize, Serialize};
use std::io::Write;
use zazen_core::{Error, ErrorKind, Result};
use zazen_frames::messages::frames_fn;
use zazen_namespace::service::namespace_fn;
use zazen_wire::control::control_fn;
use zazen_wire::service;

/// The version of the lines that are written; lines of earlier versions are read too.
pub const VERSION: u32 = 3;
/// How files of lines end.
pub const LINES_SUFFIX: &str = ".spans.jsonl";
/// The longest line.
const LINE_BYTES_MAX: usize = 64 << 10;

/// One call, as the daemon saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// [`VERSION`].
    pub v: u32,
    /// When the service got the call: nanoseconds since 1970, by the node's clock.
    pub start_ns: u64,
    /// Until the service had answered, by a clock that never jumps.
    pub duration_ns: u64,
    /// Of that time: how long the call waited in the daemon for its turn. 0 in version 1.
    #[serde(default)]
    pub queue_ns: u64,
    /// The daemon's name.
    pub node: Text,
    /// Service and function, such as `frames.push`.
    pub op: Text,
    /// Bytes that came with the call, beside its arguments.
    pub bytes_in: u64,
    /// Bytes that went with the answer, beside its results.
    pub bytes_out: u64,
    /// Bytes that the daemon read or fetched for the call, and that neither came with it nor went
    /// with its answer. 0 in version 1.
    #[serde(default)]
    pub bytes_moved: u64,
    /// The caller's connection: unique within a daemon's life.
    pub connection: u64,
    /// The caller's user, process and host, such as `1000:4711@n3`; without `@`, a local one.
    pub peer: Text,
    /// `ok`, or the kind of the error.
    pub outcome: Text,
    /// Names a plug-in call, and a forwarded one, in all spans of processes that it went through:
    /// its client chose the number. 0: it has none.
    #[serde(default, skip_serializing_if = "is_none", with = "hex")]
    pub id: u64,
}

fn is_none(id: &u64) -> bool {
    *id == 0
}

/// Numbers as 16 digits, because readers of JSON take large numbers for fractions.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(number: &u64, into: S) -> Result<S::Ok, S::Error> {
        into.collect_str(&format_args!("{number:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        u64::from_str_radix(&text, 16).map_err(|_| D::Error::custom(format!("id {text:?} is no number")))
    }
}

/// The name of a function of a service.
pub fn op_name(service_id: u16, function: u16) -> std::borrow::Cow<'static, str> {
    let known = match (service_id, function) {
        (service::CONTROL, control_fn::HELLO) => "control.hello",
        (service::CONTROL, control_fn::STATUS) => "control.status",
        (service::CONTROL, control_fn::DUMP) => "control.dump",
        (service::CONTROL, control_fn::PING) => "control.ping",
        (service::FRAMES, frames_fn::OPEN) => "frames.open",
        (service::FRAMES, frames_fn::QUERY) => "frames.query",
        (service::FRAMES, frames_fn::SCAN_OPEN) => "frames.scan_open",
        (service::FRAMES, frames_fn::SCAN_NEXT) => "frames.scan_next",
        (service::FRAMES, frames_fn::SCAN_CLOSE) => "frames.scan_close",
        (service::FRAMES, frames_fn::PUSH) => "frames.push",
        (service::FRAMES, frames_fn::FETCH) => "frames.fetch",
        (service::FRAMES, frames_fn::EVICT) => "frames.evict",
        (service::FRAMES, frames_fn::PIN) => "frames.pin",
        (service::FRAMES, frames_fn::VERIFY) => "frames.verify",
        (service::FRAMES, frames_fn::LIST) => "frames.list",
        (service::FRAMES, frames_fn::DATASETS) => "frames.datasets",
        (service::FRAMES, frames_fn::GET_BLOCK) => "frames.get_block",
        (service::FRAMES, frames_fn::READ_MANY) => "frames.read_many",
        (service::FRAMES, frames_fn::BRING) => "frames.bring",
        (service::FRAMES, frames_fn::PLACES) => "frames.places",
        (service::FRAMES, frames_fn::OPEN_READ) => "frames.open_read",
        (service::FRAMES, frames_fn::GET_PIECE) => "frames.get_piece",
        (service::FRAMES, frames_fn::PUSH_MANY) => "frames.push_many",
        (service::FRAMES, frames_fn::CLOSE) => "frames.close",
        (service::NAMESPACE, namespace_fn::ASK) => "namespace.ask",
        (service::NAMESPACE, namespace_fn::READ) => "namespace.read",
        (service::NAMESPACE, namespace_fn::WRITE) => "namespace.write",
        (service::NAMESPACE, namespace_fn::SYNC) => "namespace.sync",
        (service::NAMESPACE, namespace_fn::CLOSE) => "namespace.close",
        _ => {
            let service = match service_id {
                service::CONTROL => "control",
                service::FRAMES => "frames",
                service::PLUGINS => "plugins",
                service::NAMESPACE => "namespace",
                _ => return format!("{service_id}.{function}").into(),
            };
            return format!("{service}.{function}").into();
        }
    };
    known.into()
}

impl Span {
    /// Writes the span as a line, with its end.
    pub fn write_line(&self, into: &mut impl Write) -> std::io::Result<()> {
        serde_json::to_writer(&mut *into, self)?;
        into.write_all(b"\n")
    }

    /// When the service had answered: nanoseconds since 1970.
    pub fn end_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.duration_ns)
    }

    /// The host that the call came from: the daemon's own for a local caller.
    pub fn client_host(&self) -> &str {
        self.peer.split_once('@').map_or(&self.node, |(_, host)| host)
    }

    /// Whether the call succeeded.
    pub fn is_ok(&self) -> bool {
        self.outcome == "ok"
    }
}

/// Reads a file of lines; `name` is the file's. `Corrupt` if a line is no span, or the last one was
/// cut; the message has the line's number.
pub fn read_lines(name: &str, text: &str) -> Result<Vec<Span>> {
    let refuse = |line: usize, why: &str| {
        Err(Error::new(ErrorKind::Corrupt, format!("{name}: line {}: {why}", line + 1)))
    };
    let (mut spans, mut texts) = (Vec::new(), Texts::default());
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if line.len() > LINE_BYTES_MAX {
            return refuse(number, "is longer than spans are; is it the right file?");
        }
        let Some(line) = line.strip_suffix('\n') else {
            return refuse(number, "was cut: the daemon was killed while it wrote; remove the line");
        };
        match serde_json::from_str::<Span>(line) {
            Ok(mut span) if (1..=VERSION).contains(&span.v) => {
                for text in [&mut span.node, &mut span.op, &mut span.peer, &mut span.outcome] {
                    texts.share(text);
                }
                spans.push(span);
            }
            Ok(span) => return refuse(number, &format!("has version {}, not 1 to {VERSION}", span.v)),
            Err(error) => return refuse(number, &format!("is no span: {error}")),
        }
    }
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(span: &Span) -> String {
        let mut line = Vec::new();
        span.write_line(&mut line).unwrap();
        String::from_utf8(line).unwrap()
    }

    fn span() -> Span {
        Span {
            v: VERSION,
            start_ns: 1_700_000_000_000_000_000,
            duration_ns: 42_000,
            queue_ns: 1_000,
            node: "n0".into(),
            op: "frames.push".into(),
            bytes_in: 430_000,
            bytes_out: 0,
            bytes_moved: 5,
            connection: 7,
            peer: "1000:4711".into(),
            outcome: "ok".into(),
            id: 0,
        }
    }

    #[test]
    fn golden_line() {
        let line = written(&span());
        let expected = "{\"v\":3,\"start_ns\":1700000000000000000,\"duration_ns\":42000,\"queue_ns\":1000,\
                        \"node\":\"n0\",\"op\":\"frames.push\",\"bytes_in\":430000,\"bytes_out\":0,\
                        \"bytes_moved\":5,\"connection\":7,\"peer\":\"1000:4711\",\"outcome\":\"ok\"}\n";
        assert_eq!(line, expected);
        let with_id = written(&Span { id: 0x12_0000_000a, ..span() });
        assert_eq!(with_id, expected.replace("\"ok\"}", "\"ok\",\"id\":\"000000120000000a\"}"));
    }

    /// A line as version 1 had it.
    #[test]
    fn old_lines_are_read() {
        let line = "{\"v\":1,\"start_ns\":1700000000000000000,\"duration_ns\":42000,\"node\":\"n0\",\
                    \"op\":\"frames.push\",\"bytes_in\":430000,\"bytes_out\":0,\"connection\":7,\
                    \"peer\":\"1000:4711\",\"outcome\":\"ok\"}\n";
        assert_eq!(read_lines("old", line).unwrap(), [Span { v: 1, queue_ns: 0, bytes_moved: 0, ..span() }]);
        let line = written(&Span { v: 2, ..span() });
        assert_eq!(read_lines("old", &line).unwrap(), [Span { v: 2, ..span() }]);
    }

    #[test]
    fn a_local_caller_is_on_the_daemons_host() {
        assert_eq!(span().client_host(), "n0");
        assert_eq!(Span { peer: "0:7@login1".into(), ..span() }.client_host(), "login1");
    }

    proptest! {
        /// What is written is read again, whatever the names.
        #[test]
        fn lines_survive(
            node in any::<String>(), peer in any::<String>(), start_ns in any::<u64>(), id in any::<u64>()
        ) {
            let span = Span { node: node.into(), peer: peer.into(), start_ns, id, ..span() };
            let text = written(&span).repeat(2);
            prop_assert_eq!(read_lines("file", &text).unwrap(), [span.clone(), span]);
        }
    }

    #[test]
    fn damaged_files_are_refused_by_line() {
        let good = written(&span());
        let check = |text: String, expected: &str| {
            let message = read_lines("a.spans.jsonl", &text).unwrap_err().to_string();
            assert!(message.contains("a.spans.jsonl: line 2") && message.contains(expected), "{message}");
        };
        check(format!("{good}{}", &good[..40]), "was cut");
        check(format!("{good}{}\n", &good[..40]), "is no span");
        check(good.clone() + &good.replace("\"v\":3", "\"v\":9"), "version 9");
        check(good.clone() + &good.replace("\"node\"", "\"knot\""), "knot");
        check(good.clone() + &good.replace('}', ",\"id\":\"far\"}"), "is no number");
        check(good.clone() + &"x".repeat(100_000) + "\n", "longer");
    }

    #[test]
    fn functions_have_names() {
        assert_eq!(op_name(service::FRAMES, frames_fn::PUSH), "frames.push");
        assert_eq!(op_name(service::PLUGINS, 2), "plugins.2");
        assert_eq!(op_name(service::NAMESPACE, namespace_fn::CLOSE), "namespace.close");
        assert_eq!(op_name(99, 3), "99.3");
    }
}
