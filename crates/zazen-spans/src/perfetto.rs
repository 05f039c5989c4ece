//! Spans for the eye: the Trace Event format that Perfetto and Chrome's tracing page open.

use crate::span::Span;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;

/// Writes the spans as one JSON document: a process for each node, a thread for each connection.
/// Times begin at the first span. Spans of one call in several processes, as its ID says, are
/// joined by arrows, from the first that got the call to the last.
pub fn perfetto(spans: &[Span], into: &mut impl Write) -> std::io::Result<()> {
    let first = spans.iter().map(|span| span.start_ns).min().unwrap_or(0);
    let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
    spans.iter().for_each(|span| {
        let next = nodes.len() + 1;
        nodes.entry(&span.node).or_insert(next);
    });
    let ts = |span: &Span| (span.start_ns - first) as f64 / 1e3;
    let names = nodes.iter().map(
        |(node, number)| json!({"ph": "M", "name": "process_name", "pid": number, "args": {"name": node}}),
    );
    let calls = spans.iter().map(|span| call(span, nodes[span.node.as_str()], ts(span)));
    let arrows = ways(spans).into_iter().flat_map(|(id, way)| {
        let last = way.len() - 1;
        let arrow = |(at, span): (usize, &&Span)| {
            json!({
                "ph": if at == 0 { "s" } else if at == last { "f" } else { "t" },
                "bp": "e",
                "name": "call",
                "cat": "call",
                "id": format!("{id:016x}"),
                "ts": ts(span),
                "pid": nodes[span.node.as_str()],
                "tid": span.connection,
            })
        };
        way.iter().enumerate().map(arrow).collect::<Vec<_>>()
    });
    // One after the other: as a whole they may take many times the memory of the spans.
    into.write_all(br#"{"displayTimeUnit":"ms","traceEvents":["#)?;
    for (number, event) in names.chain(calls).chain(arrows).enumerate() {
        if number > 0 {
            into.write_all(b",")?;
        }
        serde_json::to_writer(&mut *into, &event)?;
    }
    into.write_all(b"]}")
}

fn call(span: &Span, process: usize, ts: f64) -> Value {
    let mut event = json!({
        "ph": "X",
        "name": span.op,
        "cat": span.op.split('.').next().unwrap_or(""),
        "ts": ts,
        "dur": span.duration_ns as f64 / 1e3,
        "pid": process,
        "tid": span.connection,
        "args": {
            "bytes_in": span.bytes_in,
            "bytes_out": span.bytes_out,
            "bytes_moved": span.bytes_moved,
            "queue_us": span.queue_ns as f64 / 1e3,
            "peer": span.peer,
            "outcome": span.outcome,
        },
    });
    if span.id != 0 {
        event["args"]["id"] = format!("{:016x}", span.id).into();
    }
    event
}

/// By ID: the spans of a call that went through several processes, in its order.
fn ways(spans: &[Span]) -> BTreeMap<u64, Vec<&Span>> {
    let mut calls: BTreeMap<u64, Vec<&Span>> = BTreeMap::new();
    spans.iter().filter(|span| span.id != 0).for_each(|span| calls.entry(span.id).or_default().push(span));
    calls.retain(|_, way| way.len() > 1);
    // Whoever passes a call on has it for longer: of equal times that one comes first.
    let order = |span: &&Span| (span.start_ns, std::cmp::Reverse(span.duration_ns));
    calls.values_mut().for_each(|way| way.sort_by_key(order));
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_times_nodes_and_names() {
        let written = |spans: &[Span]| {
            let mut text = Vec::new();
            perfetto(spans, &mut text).unwrap();
            serde_json::from_slice::<Value>(&text).unwrap()
        };
        let span = |node: &str, start_ns| Span {
            v: 2,
            start_ns,
            duration_ns: 5_000,
            queue_ns: 1_000,
            node: node.into(),
            op: "frames.push".into(),
            bytes_in: 1,
            bytes_out: 0,
            bytes_moved: 0,
            connection: 3,
            peer: "".into(),
            outcome: "ok".into(),
            id: 0,
        };
        let value = written(&[span("b", 2_000), span("a", 1_000)]);
        let events = value["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 4);
        let of_b = events.iter().find(|event| event["ph"] == "X" && event["ts"] == 1.0).unwrap();
        assert_eq!((of_b["dur"].as_f64(), of_b["tid"].as_u64()), (Some(5.0), Some(3)));
        let name = events.iter().find(|event| event["ph"] == "M" && event["pid"] == of_b["pid"]).unwrap();
        assert_eq!(name["args"]["name"], "b");
        assert!(events.iter().all(|event| event["args"].get("id").is_none()));

        // A call that went through "a" to a plug-in's process, in which one of its own began.
        let call = |node: &str, start_ns, id| Span { id, ..span(node, start_ns) };
        let value = written(&[call("a.posix", 1_500, 7), call("a", 1_000, 7), call("a.posix", 4_000, 8)]);
        let events = value["traceEvents"].as_array().unwrap();
        let arrows: Vec<_> = events.iter().filter(|event| event["name"] == "call").collect();
        let way: Vec<_> = arrows.iter().map(|arrow| (arrow["ph"].as_str(), arrow["ts"].as_f64())).collect();
        assert_eq!(way, [(Some("s"), Some(0.0)), (Some("f"), Some(0.5))]);
        assert!(arrows.iter().all(|arrow| arrow["id"] == "0000000000000007"));
        assert_ne!(arrows[0]["pid"], arrows[1]["pid"]);
    }
}
