//! Files of spans as daemons write them: blocks of rows of one size (docs/formats/spans.md).
//!
//! A block stands for itself: it has the names that its rows use. So a writer keeps no more than a
//! block, and a reader checks each one as a whole. A row has only what differs from the row before:
//! 6 to 12 bytes where the words would be 64. Memory that is new to a machine costs more than that
//! work does.

use crate::span::{Span, VERSION};
use crate::text::Text;
use std::collections::BTreeMap;
use zazen_core::varint::{take_varint, unzigzag, write_varint, zigzag};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::checksum::crc32c;

/// How files of blocks end.
pub const SUFFIX: &str = ".spans";
/// Bytes of a block's head.
pub const HEAD_BYTES: usize = 32;
/// A row as numbers: see [`Block::add_words`].
pub type Words = [u64; 8];
/// Bytes of a row, at most: which words differ, and ten for each.
pub const ROW_BYTES_MAX: usize = 1 + 8 * 10;
/// Bytes of a caller.
const CALLER_BYTES: usize = 16;
/// What a block begins with; the last byte is the format's version.
const MAGIC: [u8; 8] = *b"zzspans2";
/// Rows of a block, at most.
const ROWS_MAX: usize = 1 << 16;
/// Texts of a block, at most: a row's numbers have 16 bits.
const TEXTS_MAX: usize = 1 << 16;
/// Texts that a row adds, at most.
const TEXTS_OF_ROW: usize = 3;
/// A block with more bytes of texts takes no further rows.
const TEXT_BYTES_ENOUGH: usize = 1 << 20;
/// Bytes after a block's head, at most.
const BODY_BYTES_MAX: usize = 16 << 20;
/// A text is cut here.
const TEXT_BYTES_MAX: usize = 4 << 10;

/// A call, with its texts and its caller as numbers of its block.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// As [`Span::start_ns`].
    pub start_ns: u64,
    /// As [`Span::duration_ns`].
    pub duration_ns: u64,
    /// As [`Span::queue_ns`].
    pub queue_ns: u64,
    /// As [`Span::bytes_in`].
    pub bytes_in: u64,
    /// As [`Span::bytes_out`].
    pub bytes_out: u64,
    /// As [`Span::bytes_moved`].
    pub bytes_moved: u64,
    /// As [`Span::id`].
    pub id: u64,
    /// Of [`Block::caller`].
    pub caller: u32,
    /// Of [`Block::text`]: [`Span::op`].
    pub op: u16,
    /// Of [`Block::text`]: [`Span::outcome`].
    pub outcome: u16,
}

impl Row {
    /// A row's last word.
    pub fn numbers(caller: u32, op: u16, outcome: u16) -> u64 {
        u64::from(caller) | u64::from(op) << 32 | u64::from(outcome) << 48
    }
}

/// A block that is being made. Numbers of texts and callers are of one block: when it was taken,
/// ask again.
pub struct Block {
    node: String,
    /// Room for the head, then rows.
    bytes: Vec<u8>,
    rows: usize,
    /// The last row's; zeros before the first.
    last: Words,
    callers: BTreeMap<u64, u32>,
    caller_bytes: Vec<u8>,
    texts: BTreeMap<String, u16>,
    lengths: Vec<u8>,
    text_bytes: Vec<u8>,
}

impl Block {
    /// An empty block of this node.
    pub fn new(node: &str) -> Block {
        let mut block = Block {
            node: node.to_owned(),
            bytes: vec![0; HEAD_BYTES],
            rows: 0,
            last: Words::default(),
            callers: BTreeMap::new(),
            caller_bytes: Vec::new(),
            texts: BTreeMap::new(),
            lengths: Vec::new(),
            text_bytes: Vec::new(),
        };
        block.text(node);
        block
    }

    /// The number of a text.
    pub fn text(&mut self, text: &str) -> u16 {
        let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        if let Some(number) = self.texts.get(text) {
            return *number;
        }
        let number = self.texts.len() as u16;
        self.texts.insert(text.to_owned(), number);
        self.lengths.extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.text_bytes.extend_from_slice(text.as_bytes());
        number
    }

    /// The number of a caller: of this connection; `peer` is asked where it is a new one.
    pub fn caller(&mut self, connection: u64, peer: impl FnOnce() -> String) -> u32 {
        if let Some(number) = self.callers.get(&connection) {
            return *number;
        }
        let number = self.callers.len() as u32;
        self.callers.insert(connection, number);
        let peer = self.text(&peer());
        self.caller_bytes.extend_from_slice(&connection.to_le_bytes());
        self.caller_bytes.extend_from_slice(&u64::from(peer).to_le_bytes());
        number
    }

    /// Adds a row.
    pub fn add(&mut self, row: &Row) {
        self.add_words([
            row.start_ns,
            row.duration_ns,
            row.queue_ns,
            row.bytes_in,
            row.bytes_out,
            row.bytes_moved,
            row.id,
            Row::numbers(row.caller, row.op, row.outcome),
        ]);
    }

    /// Adds a row whose words are there already: the numbers of [`Row`] in their order, then
    /// [`Row::numbers`].
    pub fn add_words(&mut self, words: Words) {
        let mut row = [0; ROW_BYTES_MAX];
        let length = put_row(&mut row, &self.last, &words);
        self.add_rows(&row[..length], 1, words);
    }

    /// Adds so many rows as [`put_row`] made them, one after the other: the first one behind the
    /// row that was added last. `last`: the words of the last of them.
    pub fn add_rows(&mut self, bytes: &[u8], rows: usize, last: Words) {
        self.bytes.extend_from_slice(bytes);
        self.rows += rows;
        self.last = last;
    }

    /// Whether it must be taken before another row is made.
    pub fn is_full(&self) -> bool {
        !self.has_room(1)
    }

    /// Whether so many rows more can be made, each with texts and a caller of its own.
    pub fn has_room(&self, rows: usize) -> bool {
        self.rows + rows <= ROWS_MAX
            && self.texts.len() + TEXTS_OF_ROW * rows <= TEXTS_MAX
            && self.text_bytes.len() < TEXT_BYTES_ENOUGH
    }

    /// Whether it has no row.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Its bytes, for `take`; then it is empty.
    pub fn take<T>(&mut self, take: impl FnOnce(&[u8]) -> T) -> T {
        let rows = std::mem::take(&mut self.rows);
        self.last = Words::default();
        for part in [&self.caller_bytes, &self.lengths, &self.text_bytes] {
            self.bytes.extend_from_slice(part);
        }
        let (head, body) = self.bytes.split_at_mut(HEAD_BYTES);
        let numbers = [
            body.len() as u32,
            rows as u32,
            self.callers.len() as u32,
            self.texts.len() as u32,
            crc32c(body),
        ];
        head[..8].copy_from_slice(&MAGIC);
        for (place, number) in head[8..].as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
            *place = number.to_le_bytes();
        }
        let checksum = crc32c(&head[..HEAD_BYTES - 4]);
        head[HEAD_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
        let taken = take(&self.bytes);
        self.bytes.truncate(HEAD_BYTES);
        self.callers.clear();
        self.caller_bytes.clear();
        self.texts.clear();
        self.lengths.clear();
        self.text_bytes.clear();
        let node = std::mem::take(&mut self.node);
        self.text(&node);
        self.node = node;
        taken
    }
}

/// Makes the row of `words` behind that of `last`, which are zeros before a block's first row.
/// Returns its length.
#[inline]
pub fn put_row(into: &mut [u8; ROW_BYTES_MAX], last: &Words, words: &Words) -> usize {
    let (mut at, mut differing) = (1, 0);
    for (bit, (word, last)) in words.iter().zip(last).enumerate() {
        if word != last {
            differing |= 1 << bit;
            write_varint(into, &mut at, zigzag(word.wrapping_sub(*last) as i64));
        }
    }
    into[0] = differing;
    at
}

/// What a block's head says of its body.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Bytes that follow the head; bounded.
    pub body_bytes: usize,
    rows: usize,
    callers: usize,
    texts: usize,
    checksum: u32,
}

impl Head {
    /// `Corrupt`, with the reason only, if this is no head.
    pub fn read(bytes: &[u8; HEAD_BYTES]) -> Result<Head> {
        if bytes[..7] != MAGIC[..7] {
            return Err(corrupt("no block of spans begins here; is it the right file?"));
        }
        if bytes[7] != MAGIC[7] {
            let version = char::from(bytes[7]).escape_default();
            return Err(corrupt(format!("the block has version {version}, not {}", char::from(MAGIC[7]))));
        }
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if number(HEAD_BYTES - 4) != crc32c(&bytes[..HEAD_BYTES - 4]) {
            return Err(corrupt("the block's head is damaged"));
        }
        let size = |at: usize| number(at) as usize;
        let head = Head {
            body_bytes: size(8),
            rows: size(12),
            callers: size(16),
            texts: size(20),
            checksum: number(24),
        };
        // A row has a byte at least.
        let least = head
            .callers
            .checked_mul(CALLER_BYTES)
            .and_then(|callers| callers.checked_add(head.texts.checked_mul(4)?)?.checked_add(head.rows));
        let fits = least.is_some_and(|least| least <= head.body_bytes) && head.body_bytes <= BODY_BYTES_MAX;
        if !fits || head.rows > ROWS_MAX || head.texts > TEXTS_MAX {
            return Err(corrupt("the block's head has sizes that no daemon writes"));
        }
        Ok(head)
    }

    /// Appends the spans of a body of [`Head::body_bytes`] to `into`. `Corrupt`, with the reason
    /// only, if it is not what was written; then nothing is appended.
    pub fn body(&self, body: &[u8], into: &mut Vec<Span>) -> Result<()> {
        if body.len() != self.body_bytes || crc32c(body) != self.checksum {
            return Err(corrupt("the block is damaged: its checksum is another one"));
        }
        let mut rows = Vec::with_capacity(self.rows);
        let mut at = 0;
        let mut last = Words::default();
        for _ in 0..self.rows {
            last = take_row(body, &mut at, last).ok_or_else(|| corrupt("a row of the block is cut"))?;
            rows.push(last);
        }
        let short = || corrupt("the block is shorter than what it says it has");
        let (callers, rest) = body[at..].split_at_checked(self.callers * CALLER_BYTES).ok_or_else(short)?;
        let (lengths, mut rest) = rest.split_at_checked(self.texts * 4).ok_or_else(short)?;
        let mut texts = Vec::with_capacity(self.texts);
        for length in lengths.as_chunks::<4>().0 {
            let bytes = u32::from_le_bytes(*length) as usize;
            let (text, after) = rest
                .split_at_checked(bytes)
                .filter(|_| bytes <= TEXT_BYTES_MAX)
                .ok_or_else(|| corrupt("a text of the block is longer than texts are"))?;
            rest = after;
            let text = str::from_utf8(text).map_err(|_| corrupt("a text of the block is not UTF-8"))?;
            texts.push(Text::from(text));
        }
        if !rest.is_empty() {
            return Err(corrupt("the block has bytes that belong to nothing"));
        }
        let no_text = || corrupt("the block names a text that it does not have");
        let text = |number: u64| texts.get(number as usize).cloned().ok_or_else(no_text);
        let words = |bytes: &[u8], at: usize| -> u64 {
            bytes.as_chunks::<8>().0.get(at).map_or(0, |word| u64::from_le_bytes(*word))
        };
        let callers = callers
            .chunks_exact(CALLER_BYTES)
            .map(|caller| Ok((words(caller, 0), text(words(caller, 1))?)))
            .collect::<Result<Vec<(u64, Text)>>>()?;
        let node = text(0)?;
        let before = into.len();
        into.reserve(self.rows);
        for [start_ns, duration_ns, queue_ns, bytes_in, bytes_out, bytes_moved, id, last] in rows {
            let made = (|| {
                let no_caller = || corrupt("the block names a caller that it does not have");
                let (connection, peer) = callers.get(last as u32 as usize).ok_or_else(no_caller)?;
                Ok(Span {
                    v: VERSION,
                    start_ns,
                    duration_ns,
                    queue_ns,
                    node: node.clone(),
                    op: text(last >> 32 & 0xffff)?,
                    bytes_in,
                    bytes_out,
                    bytes_moved,
                    connection: *connection,
                    peer: peer.clone(),
                    outcome: text(last >> 48)?,
                    id,
                })
            })();
            match made {
                Ok(span) => into.push(span),
                Err(error) => {
                    into.truncate(before);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// The words of the row that begins at `at`, which then is its end; `last` are those of the row
/// before. `None` if it is cut.
pub fn take_row(bytes: &[u8], at: &mut usize, mut last: Words) -> Option<Words> {
    let differing = *bytes.get(*at)?;
    *at += 1;
    for (bit, word) in last.iter_mut().enumerate() {
        if differing >> bit & 1 == 1 {
            *word = word.wrapping_add(unzigzag(take_varint(bytes, at)?) as u64);
        }
    }
    Some(last)
}

fn corrupt(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(number: u64) -> Span {
        Span {
            v: VERSION,
            start_ns: 1_700_000_000_000_000_000 + number,
            duration_ns: 42_000,
            queue_ns: 1_000,
            node: "n0".into(),
            op: "frames.push".into(),
            bytes_in: 430_000,
            bytes_out: 3,
            bytes_moved: 5,
            connection: 7,
            peer: "1000:4711".into(),
            outcome: "ok".into(),
            id: 0x12_0000_000a,
        }
    }

    fn add(block: &mut Block, span: &Span) {
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
    }

    fn taken(spans: &[Span]) -> Vec<u8> {
        let mut block = Block::new(spans.first().map_or("n0", |span| &span.node));
        spans.iter().for_each(|span| add(&mut block, span));
        block.take(<[u8]>::to_vec)
    }

    /// Reads one block.
    fn read(bytes: &[u8]) -> Result<Vec<Span>> {
        let (head, body) = bytes.split_first_chunk().ok_or_else(|| corrupt("short"))?;
        let mut spans = Vec::new();
        Head::read(head)?.body(body, &mut spans).map(|()| spans)
    }

    /// Bytes that lie in users' files: a change of them needs another version.
    #[test]
    fn golden_block() {
        let second = Span { duration_ns: 41_700, id: span(0).id + 1, ..span(2_500) };
        let bytes = taken(&[span(0), second]);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        // Made by a Python program of its own: struct, a CRC-32C bit by bit, numbers by division.
        let head = "7a7a7370616e733260000000020000000100000004000000d0dd878df9768e83";
        let rows = "ff8080d0e2c6bfce972fa09005d00fe0be34060a94808080c00480808080c0808003438827d70402";
        let callers = "07000000000000000100000000000000";
        let lengths = "02000000090000000b00000002000000";
        let texts: String = "n01000:4711frames.pushok".bytes().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, format!("{head}{rows}{callers}{lengths}{texts}"));
    }

    proptest! {
        /// What goes in comes out, whatever the names and numbers, and from a block used again.
        #[test]
        fn blocks_survive(
            node in any::<String>(),
            calls in prop::collection::vec((any::<[u64; 7]>(), 0..5_u64, any::<String>(), 0..3_u8), 0..50),
        ) {
            let spans: Vec<Span> = calls
                .iter()
                .map(|(numbers, connection, op, outcome)| Span {
                    v: VERSION,
                    start_ns: numbers[0],
                    duration_ns: numbers[1],
                    queue_ns: numbers[2],
                    node: node.as_str().into(),
                    op: op.as_str().into(),
                    bytes_in: numbers[3],
                    bytes_out: numbers[4],
                    bytes_moved: numbers[5],
                    connection: *connection,
                    peer: format!("{connection}:{node}").into(),
                    outcome: format!("status {outcome}").into(),
                    id: numbers[6],
                })
                .collect();
            let mut block = Block::new(&node);
            for _ in 0..2 {
                spans.iter().for_each(|span| add(&mut block, span));
                prop_assert_eq!(block.is_empty(), spans.is_empty());
                prop_assert_eq!(&block.take(read).unwrap(), &spans);
            }
        }

        /// Rows that were made elsewhere are the same bytes.
        #[test]
        fn rows_made_elsewhere_are_the_same(
            first in any::<Words>(),
            rows in prop::collection::vec(prop::array::uniform8(prop_oneof![0..3_u64, any::<u64>()]), 1..40),
        ) {
            let (mut alone, mut joined) = (Block::new("n"), Block::new("n"));
            [&mut alone, &mut joined].into_iter().for_each(|block| block.add_words(first));
            rows.iter().for_each(|words| alone.add_words(*words));
            let (mut made, mut last) = (Vec::new(), first);
            for words in &rows {
                let mut row = [0; ROW_BYTES_MAX];
                let length = put_row(&mut row, &last, words);
                made.extend_from_slice(&row[..length]);
                let mut end = 0;
                prop_assert_eq!(take_row(&row[..length], &mut end, last), Some(*words));
                prop_assert_eq!(end, length);
                last = *words;
            }
            joined.add_rows(&made, rows.len(), last);
            [&mut alone, &mut joined].into_iter().for_each(|block| block.add_words(first));
            prop_assert_eq!(alone.take(<[u8]>::to_vec), joined.take(<[u8]>::to_vec));
        }

        /// Damage is refused or changes nothing; no byte makes a reader panic.
        #[test]
        fn damage_is_refused(at in 0..256_usize, to in any::<u8>(), cut in 0..256_usize) {
            let spans = [span(0), span(1)];
            let good = taken(&spans);
            let mut bad = good.clone();
            let at = at % good.len();
            bad[at] = to;
            prop_assert_eq!(read(&bad).is_ok(), bad == good);
            prop_assert!(read(&good[..cut % good.len()]).is_err());
        }

        /// Bodies whose checksums are right, and whose sizes and numbers are somebody's choice.
        #[test]
        fn lies_are_refused(
            rows in 0..4_u32, callers in 0..4_u32, texts in 0..4_u32,
            body in prop::collection::vec(prop_oneof![Just(0_u8), Just(1), any::<u8>()], 0..400),
        ) {
            let mut bytes = MAGIC.to_vec();
            for number in [body.len() as u32, rows, callers, texts, crc32c(&body)] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
            let checksum = crc32c(&bytes);
            bytes.extend_from_slice(&checksum.to_le_bytes());
            bytes.extend_from_slice(&body);
            if let Ok(spans) = read(&bytes) {
                prop_assert_eq!(spans.len(), rows as usize);
            }
        }
    }

    #[test]
    fn damaged_heads_say_what_is_wrong() {
        let good = taken(&[span(0)]);
        let check = |change: &dyn Fn(&mut Vec<u8>), expected: &str| {
            let mut bad = good.clone();
            change(&mut bad);
            let message = read(&bad).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        };
        check(&|bytes| bytes[0] = b'{', "right file");
        check(&|bytes| bytes[7] = b'9', "version 9");
        check(&|bytes| bytes[12] ^= 1, "head is damaged");
        check(&|bytes| bytes[40] ^= 1, "checksum");
        check(&|bytes| bytes[7] = b'1', "version 1");
        let told = |bytes: &mut Vec<u8>, at: usize, number: u32| {
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            let checksum = crc32c(&bytes[..28]);
            bytes[28..32].copy_from_slice(&checksum.to_le_bytes());
        };
        for (at, number) in [(8, u32::MAX), (12, u32::MAX), (16, u32::MAX), (20, u32::MAX), (12, 1_000)] {
            check(&|bytes| told(bytes, at, number), "no daemon writes");
        }
    }

    #[test]
    fn a_block_is_full_before_its_numbers_or_its_bytes_end() {
        let mut block = Block::new("n0");
        let mut count = 0_u64;
        while !block.is_full() {
            add(&mut block, &Span { connection: count, peer: format!("0:{count}").into(), ..span(count) });
            count += 1;
        }
        let found = block.take(read).unwrap();
        assert_eq!(found.len() as u64, count);
        assert!(
            count > 60_000 && found.iter().zip(0..).all(|(one, n)| one.peer.as_str() == format!("0:{n}"))
        );
        while !block.is_full() {
            add(&mut block, &Span { op: format!("{count}{}", "x".repeat(100_000)).into(), ..span(0) });
            add(&mut block, &Span { peer: "é".repeat(100_000).into(), connection: count, ..span(0) });
            count += 1;
        }
        assert!(block.take(<[u8]>::len) < BODY_BYTES_MAX);
        assert!(block.is_empty() && !block.is_full());
        // Many rows at a time, each with texts of its own.
        let mut made = Vec::new();
        while block.has_room(64) {
            for number in made.len()..made.len() + 64 {
                let own = |what: &str| format!("{what}{number}").into();
                let (op, outcome, peer) = (own("op"), own("out"), own("0:"));
                made.push(Span { op, outcome, peer, connection: number as u64, ..span(0) });
                add(&mut block, made.last().unwrap());
            }
        }
        assert_eq!(block.take(read).unwrap(), made);
        // Rows of one caller.
        while !block.is_full() {
            add(&mut block, &span(0));
        }
        assert_eq!(block.take(read).unwrap().len(), ROWS_MAX);
    }
}
