//! Files of spans: what is read of them can be written and read again.

use crate::targets::take;
use zazen_spans::{Block, HEAD_BYTES, Head, Row, Span, read_lines};
use zazen_wire::checksum::crc32c;

/// The first byte says what follows: a block as it is, one whose checksums are made right, or
/// lines.
pub(crate) fn spans(mut input: &[u8]) {
    let [kind] = take(&mut input);
    match kind % 3 {
        0 => _ = block(input),
        1 => _ = block(&sealed(input)),
        _ => lines(input),
    }
}

/// The spans of a block, if it is one.
fn block(bytes: &[u8]) -> Option<Vec<Span>> {
    let (head, body) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let head = Head::read(head).ok()?;
    let mut found = Vec::new();
    let read = head.body(body, &mut found);
    assert!(read.is_ok() || found.is_empty(), "spans of a block that is refused");
    assert!(found.len() <= body.len());
    read.ok()?;
    found.iter().for_each(|span| assert_eq!(again(span).as_ref(), Some(span)));
    Some(found)
}

/// The span, written as a block of its own and read.
fn again(span: &Span) -> Option<Span> {
    let bytes = written(span);
    let (head, body) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let mut found = Vec::new();
    Head::read(head).and_then(|head| head.body(body, &mut found)).ok()?;
    found.pop()
}

fn written(span: &Span) -> Vec<u8> {
    let mut block = Block::new(&span.node);
    let caller = block.caller(span.connection, || span.peer.as_str().to_owned());
    let (op, outcome) = (block.text(&span.op), block.text(&span.outcome));
    block.add(&Row {
        start_ns: span.start_ns,
        duration_ns: span.duration_ns,
        queue_ns: span.queue_ns,
        bytes_in: span.bytes_in,
        bytes_out: span.bytes_out,
        bytes_moved: span.bytes_moved,
        id: span.id,
        caller,
        op,
        outcome,
    });
    block.take(<[u8]>::to_vec)
}

/// A damaged block, with the length and the checksums of a whole one.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().max(HEAD_BYTES), 0);
    let (head, body) = bytes.split_at_mut(HEAD_BYTES);
    head[..8].copy_from_slice(&written(&span())[..8]);
    head[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[24..28].copy_from_slice(&crc32c(body).to_le_bytes());
    let sum = crc32c(&head[..28]);
    head[28..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn lines(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let Ok(found) = read_lines("spans", text) else { return };
    let mut lines = Vec::new();
    found.iter().for_each(|span| span.write_line(&mut lines).unwrap());
    let text = String::from_utf8(lines).unwrap();
    assert_eq!(read_lines("spans", &text).unwrap(), found);
}

fn span() -> Span {
    Span {
        v: zazen_spans::VERSION,
        start_ns: 1_700_000_000_000_000_000,
        duration_ns: 42_000,
        queue_ns: 1_000,
        node: "n0".into(),
        op: "plugins.posix.px_read".into(),
        bytes_in: 1 << 20,
        bytes_out: 4096,
        bytes_moved: 7,
        connection: 3,
        peer: "1000:4711@n1".into(),
        outcome: "ok".into(),
        id: 0x12_0000_000a,
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut many = Block::new("n0");
    for number in 0..20_u64 {
        let caller = many.caller(number % 3, || format!("1000:{number}"));
        let (op, outcome) = (many.text("frames.push"), many.text(&format!("status {}", number % 2)));
        let (start_ns, duration_ns, id) = (number, number, number);
        let (queue_ns, bytes_in, bytes_out, bytes_moved) = (0, number, 0, 0);
        many.add(&Row {
            start_ns,
            duration_ns,
            queue_ns,
            bytes_in,
            bytes_out,
            bytes_moved,
            id,
            caller,
            op,
            outcome,
        });
    }
    let many = many.take(<[u8]>::to_vec);
    let found = block(&many).unwrap();
    assert_eq!(found.len(), 20);
    let mut lines = Vec::new();
    found.iter().for_each(|span| span.write_line(&mut lines).unwrap());
    let of = |kind: u8, bytes: &[u8]| [&[kind], bytes].concat();
    vec![of(0, &many), of(1, &many), of(1, &written(&span())), of(2, &lines)]
}
