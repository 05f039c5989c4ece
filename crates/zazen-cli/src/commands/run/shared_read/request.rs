//! A call of the posix plug-in as the go-between sees it: its function, the descriptions and paths
//! that it names, and answers in its form. Pure.
//!
//! Invariant: places in messages are those of `posix.h`'s generated stubs; a test compares them
//! with the generator's own list. Whatever is malformed gives `None`: the daemon then refuses it.

use zazen_forward_api::structures::{PLUGIN_ID, PxStat, ROOT};
use zazen_wire::plugins::{self, AnswerHead, CallHead};

/// Numbers of functions: their order in `posix.h`.
pub(super) mod function {
    pub(crate) const HELLO: u32 = 0;
    pub(crate) const FORK: u32 = 1;
    pub(crate) const EXEC: u32 = 2;
    pub(crate) const OPEN: u32 = 6;
    pub(crate) const OPEN_WAIT: u32 = 7;
    pub(crate) const CLOSE: u32 = 9;
    pub(crate) const READ: u32 = 10;
    pub(crate) const READ_WAIT: u32 = 11;
    pub(crate) const WRITE: u32 = 12;
    pub(crate) const WRITE_WAIT: u32 = 13;
    pub(crate) const SEEK: u32 = 14;
    pub(crate) const COPY: u32 = 15;
    pub(crate) const SYNC: u32 = 16;
    pub(crate) const TRUNCATE: u32 = 17;
    pub(crate) const ALLOCATE: u32 = 18;
    pub(crate) const ENTRIES: u32 = 19;
    pub(crate) const STAT: u32 = 20;
    pub(crate) const STATFS: u32 = 21;
    pub(crate) const ACCESS: u32 = 22;
    pub(crate) const CHMOD: u32 = 23;
    pub(crate) const UTIMES: u32 = 25;
    pub(crate) const READLINK: u32 = 26;
    pub(crate) const REALPATH: u32 = 27;
    pub(crate) const GETXATTR: u32 = 28;
    pub(crate) const LISTXATTR: u32 = 29;
    pub(crate) const SETXATTR: u32 = 30;
    pub(crate) const REMOVEXATTR: u32 = 31;
    pub(crate) const RENAME: u32 = 32;
    pub(crate) const LINK: u32 = 33;
    pub(crate) const SYMLINK: u32 = 34;
    pub(crate) const UNLINK: u32 = 35;
    pub(crate) const MKDIR: u32 = 36;
    pub(crate) const MKNOD: u32 = 37;
    pub(crate) const FCNTL: u32 = 42;
    pub(crate) const ADVISE: u32 = 44;
    pub(crate) const SOCKET: u32 = 45;
    pub(crate) const ACCEPT: u32 = 49;
}
use function as f;
use zazen_forward_api::structures::function as all;

/// Where a message has the numbers of descriptions that are no part of a path.
pub(super) fn ids(function: u32) -> &'static [usize] {
    match function {
        3 | 4 | f::CLOSE..=f::SEEK | f::SYNC | f::ALLOCATE | f::ENTRIES | 38..=44 | 46..=55 => &[0],
        f::COPY => &[0, 16],
        _ => &[],
    }
}

/// Where a message has its paths: the description that each is relative to, and the string's span.
pub(super) fn paths(function: u32) -> &'static [(usize, usize)] {
    match function {
        f::OPEN..=8 | f::TRUNCATE | f::STAT..=f::REMOVEXATTR | f::UNLINK..=f::MKNOD => &[(0, 8)],
        all::OPEN_AHEAD => &[(0, 8)],
        f::RENAME | f::LINK => &[(0, 8), (24, 32)],
        f::SYMLINK => &[(16, 24)],
        _ => &[],
    }
}

/// Where a look-up's flags are, if it has any.
pub(super) fn flags_at(function: u32) -> Option<usize> {
    match function {
        f::STAT | f::GETXATTR | f::LISTXATTR => Some(24),
        f::ACCESS => Some(28),
        _ => None,
    }
}

/// Calls that only look at a name.
pub(super) fn is_look(function: u32) -> bool {
    matches!(
        function,
        f::STAT | f::STATFS | f::ACCESS | f::READLINK | f::REALPATH | f::GETXATTR | f::LISTXATTR
    )
}

/// Calls that change a name or what it stands for.
pub(super) fn is_change(function: u32) -> bool {
    matches!(
        function,
        f::TRUNCATE | f::CHMOD..=f::UTIMES | f::SETXATTR..=f::MKNOD
    )
}

/// Whether a function's result has 64 bits.
fn is_long(function: u32) -> bool {
    matches!(function, f::READ..=f::COPY | f::ENTRIES | f::GETXATTR | f::LISTXATTR | f::FCNTL | 50 | 51)
}

/// Bytes of a function's answer but for strings.
fn answer_bytes(function: u32) -> usize {
    match function {
        f::OPEN | f::OPEN_WAIT => 8 + 24,
        f::STAT => 8 + size_of::<PxStat>(),
        f::READ | f::READ_WAIT | f::ENTRIES => 24,
        f::COPY => 32,
        _ if is_long(function) => 16,
        _ => 8,
    }
}

/// A call: its head, and its message in `payload`.
pub(super) struct Asked {
    pub(super) head: CallHead,
    pub(super) payload: Vec<u8>,
    /// Where the message begins.
    at: usize,
}

impl Asked {
    /// The call in a payload; `None` if it is none of the posix plug-in's.
    pub(super) fn of(payload: Vec<u8>) -> Result<Asked, Vec<u8>> {
        match CallHead::take(&payload).map(|(head, _, at)| (head, at)) {
            Ok((head, at)) if head.plugin == PLUGIN_ID && at <= payload.len() => {
                Ok(Asked { head, payload, at })
            }
            _ => Err(payload),
        }
    }

    /// A call of ours.
    pub(super) fn new(function: u32, message: &[u8], out_bytes: Option<u64>) -> Asked {
        let head = CallHead {
            plugin: PLUGIN_ID,
            function,
            in_count: 0,
            out_count: u32::from(out_bytes.is_some()),
            reply_bytes_max: answer_bytes(function) as u64,
            tag: 0,
            id: 0,
        };
        let mut payload = Vec::new();
        head.put(out_bytes.into_iter(), &mut payload);
        let at = payload.len();
        payload.extend_from_slice(message);
        Asked { head, payload, at }
    }

    pub(super) fn function(&self) -> u32 {
        self.head.function
    }

    pub(super) fn message(&self) -> &[u8] {
        &self.payload[self.at..]
    }

    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.message().get(at..at + N)?.try_into().ok()
    }

    pub(super) fn word(&self, at: usize) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    pub(super) fn long(&self, at: usize) -> Option<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    pub(super) fn put_word(&mut self, at: usize, value: u32) {
        let at = self.at + at;
        if let Some(to) = self.payload.get_mut(at..at + 4) {
            to.copy_from_slice(&value.to_le_bytes());
        }
    }

    pub(super) fn put_long(&mut self, at: usize, value: u64) {
        self.put_word(at, value as u32);
        self.put_word(at + 4, (value >> 32) as u32);
    }

    /// The bytes that a span names.
    pub(super) fn span(&self, at: usize) -> Option<&[u8]> {
        let (offset, bytes) =
            (usize::try_from(self.long(at)?).ok()?, usize::try_from(self.long(at + 8)?).ok()?);
        self.message().get(offset..offset.checked_add(bytes)?)
    }

    /// The string of a span, without its NUL.
    pub(super) fn text(&self, at: usize) -> Option<&[u8]> {
        let (nul, text) = self.span(at)?.split_last()?;
        (*nul == 0 && !text.contains(&0)).then_some(text)
    }

    /// The numbers of an array.
    pub(super) fn words(&self, at: usize) -> Option<Vec<u32>> {
        let words = self.span(at)?.chunks_exact(4);
        Some(words.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
    }

    /// Writes an array over one of the same length.
    pub(super) fn put_words(&mut self, at: usize, words: &[u32]) {
        let Some(offset) = self.long(at).and_then(|offset| usize::try_from(offset).ok()) else { return };
        for (index, word) in words.iter().enumerate() {
            self.put_word(offset + 4 * index, *word);
        }
    }

    /// The same question about an absolute path. `name` is the span of a second string, if any.
    pub(super) fn about(&self, path: &[u8], name: Option<usize>) -> Option<Asked> {
        let name = name.map(|at| Some((at, self.span(at)?))).map_or(Some(None), |found| found.map(Some))?;
        let fixed = usize::try_from(self.long(8)?).ok()?;
        let mut message = self.message().get(..fixed)?.to_vec();
        message.get_mut(..4)?.copy_from_slice(&ROOT.to_le_bytes());
        put_span(&mut message, 8, &[path, b"\0"].concat());
        if let Some((at, name)) = name {
            put_span(&mut message, at, name);
        }
        let mut asked = Asked::new(self.head.function, &message, None);
        asked.put_head(CallHead { tag: self.head.tag, ..self.head });
        Some(asked)
    }

    /// Replaces the head by one of as many segments.
    fn put_head(&mut self, head: CallHead) {
        let mut bytes = Vec::new();
        head.put(std::iter::empty(), &mut bytes);
        self.payload[..bytes.len()].copy_from_slice(&bytes);
        self.head = head;
    }
}

fn put_span(message: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let offset = message.len() as u64;
    message[at..at + 8].copy_from_slice(&offset.to_le_bytes());
    message[at + 8..at + 16].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    message.extend_from_slice(bytes);
    message.resize(message.len().next_multiple_of(8), 0);
}

/// A message of numbers and a path behind them: `dir` is the root.
pub(super) fn with_path(path: &[u8], words: &[u32]) -> Vec<u8> {
    let mut message = Vec::new();
    message.extend_from_slice(&ROOT.to_le_bytes());
    message.resize(24, 0);
    for word in words {
        message.extend_from_slice(&word.to_le_bytes());
    }
    message.resize(message.len().next_multiple_of(8), 0);
    put_span(&mut message, 8, &[path, b"\0"].concat());
    message
}

/// An answer's message, where the call was carried out.
pub(super) fn answered(payload: &[u8]) -> Option<&[u8]> {
    let (head, _, at) = AnswerHead::take(payload).ok()?;
    if head.status == 0 { payload.get(at..).filter(|message| message.len() >= 8) } else { None }
}

/// Bytes of an answer's only output.
pub(super) fn given(payload: &[u8]) -> Option<u64> {
    let (head, sizes, _) = AnswerHead::take(payload).ok()?;
    if head.status == 0 { plugins::sizes(sizes).next() } else { None }
}

/// What an answer says: its result, or errno.
pub(super) fn outcome(function: u32, message: &[u8]) -> Option<Result<i64, i32>> {
    let word = |at: usize| Some(i32::from_le_bytes(message.get(at..at + 4)?.try_into().ok()?));
    let result = if is_long(function) {
        i64::from_le_bytes(message.get(8..16)?.try_into().ok()?)
    } else {
        i64::from(word(4)?)
    };
    Some(if result < 0 { Err(word(0)?) } else { Ok(result) })
}

/// An answer's payload; `data`: bytes of the only output, if the function has one.
fn payload(message: &[u8], data: Option<u64>) -> Vec<u8> {
    let mut payload = Vec::new();
    AnswerHead { status: 0, out_count: u32::from(data.is_some()) }.put(data.into_iter(), &mut payload);
    payload.extend_from_slice(message);
    payload
}

fn message(function: u32, errno: i32, result: i64) -> Vec<u8> {
    let mut message = vec![0; answer_bytes(function)];
    message[..4].copy_from_slice(&errno.to_le_bytes());
    if is_long(function) {
        message[8..16].copy_from_slice(&result.to_le_bytes());
    } else {
        message[4..8].copy_from_slice(&(result as i32).to_le_bytes());
    }
    message
}

fn has_output(function: u32) -> bool {
    matches!(function, f::READ | f::READ_WAIT | f::ENTRIES)
}

/// The answer of a call that failed.
pub(super) fn failed(function: u32, errno: i32) -> Vec<u8> {
    payload(&message(function, errno, -1), has_output(function).then_some(0))
}

/// The answer of a call whose result is a number.
pub(super) fn done(function: u32, result: i64) -> Vec<u8> {
    payload(&message(function, 0, result), None)
}

/// The answer of a call that gives `bytes` bytes.
pub(super) fn gave(function: u32, bytes: usize) -> Vec<u8> {
    let mut message = message(function, 0, bytes as i64);
    message[16..24].copy_from_slice(&(bytes as u64).to_le_bytes());
    payload(&message, Some(bytes as u64))
}

/// `struct px_opened`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FarOpened {
    pub(super) ino: u64,
    pub(super) dev: u64,
    pub(super) id: u32,
    pub(super) mode: u32,
}

impl FarOpened {
    /// Out of an answer's message.
    pub(super) fn of(message: &[u8], at: usize) -> Option<FarOpened> {
        let long = |at: usize| Some(u64::from_le_bytes(message.get(at..at + 8)?.try_into().ok()?));
        let last = long(at + 16)?;
        Some(FarOpened { ino: long(at)?, dev: long(at + 8)?, id: last as u32, mode: (last >> 32) as u32 })
    }

    /// The answer of an open.
    pub(super) fn answer(self, function: u32) -> Vec<u8> {
        let mut message = message(function, 0, 0);
        for (at, value) in
            [(8, self.ino), (16, self.dev), (24, u64::from(self.id) | u64::from(self.mode) << 32)]
        {
            message[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        payload(&message, None)
    }
}

/// What an answer of `px_stat` says of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FarStat(pub(super) Vec<u8>);

impl FarStat {
    pub(super) fn of(message: &[u8]) -> Option<FarStat> {
        message.get(8..8 + size_of::<PxStat>()).map(|bytes| FarStat(bytes.to_vec()))
    }

    fn number<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|index| self.0[at + index])
    }

    pub(super) fn mode(&self) -> u32 {
        u32::from_le_bytes(self.number(std::mem::offset_of!(PxStat, mode)))
    }

    pub(super) fn size(&self) -> u64 {
        u64::from_le_bytes(self.number(std::mem::offset_of!(PxStat, size)))
    }

    /// What is another value once the file has changed: its number, size and times.
    pub(super) fn version(&self) -> Vec<u8> {
        let (seconds, nanoseconds) =
            (std::mem::offset_of!(PxStat, seconds), std::mem::offset_of!(PxStat, nanoseconds));
        let ino = std::mem::offset_of!(PxStat, ino);
        [
            &self.0[ino..ino + 16],
            &self.0[seconds + 16..seconds + 32],
            &self.0[nanoseconds + 8..nanoseconds + 16],
        ]
        .concat()
    }

    pub(super) fn answer(&self) -> Vec<u8> {
        let mut message = message(f::STAT, 0, 0);
        message[8..].copy_from_slice(&self.0);
        payload(&message, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    type Places = BTreeMap<String, usize>;

    /// Functions: their names, where the parts of requests and answers are, and whether the result
    /// has 64 bits.
    fn generated() -> Vec<(String, Places, Places, bool)> {
        let header =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../plugins/posix/posix.h"))
                .unwrap();
        let output = zazen_stubs::generate("posix.h", &header).unwrap();
        let schema = output.files.iter().find(|file| file.name.ends_with("_schema.json")).unwrap();
        let schema: serde_json::Value = serde_json::from_str(&schema.text).unwrap();
        let places = |parts: &serde_json::Value| {
            let parts = parts.as_array().unwrap().iter();
            let place = |part: &serde_json::Value| {
                Some((part[0].as_str()?.to_owned(), usize::try_from(part[2].as_u64()?).ok()?))
            };
            parts.filter_map(place).collect::<Places>()
        };
        let functions = schema["functions"].as_array().unwrap().iter();
        functions
            .map(|function| {
                (
                    function["name"].as_str().unwrap().to_owned(),
                    places(&function["request"]),
                    places(&function["reply"]),
                    function["result"] == "int64_t",
                )
            })
            .collect()
    }

    #[test]
    fn places_are_those_of_the_generated_stubs() {
        for (number, (name, request, reply, long)) in generated().into_iter().enumerate() {
            let number = number as u32;
            let of = |part: &str| request.get(part).copied();
            let mut expected: Vec<(usize, usize)> =
                [("v_dir", "s_path"), ("v_from", "s_old_path"), ("v_to", "s_new_path")]
                    .into_iter()
                    .filter_map(|(dir, path)| Some((of(dir)?, of(path)?)))
                    .collect();
            expected.sort_unstable();
            assert_eq!(paths(number), expected, "{name}: paths");
            let mut expected: Vec<usize> = of("v_id").into_iter().collect();
            if of("s_old_path").is_none() {
                expected.extend(of("v_from").into_iter().chain(of("v_to")));
            }
            assert_eq!(ids(number), expected, "{name}: descriptions");
            assert_eq!(is_long(number), long, "{name}: result");
            assert_eq!(reply.get("result"), Some(&if long { 8 } else { 4 }), "{name}");
            if let Some(at) = flags_at(number) {
                assert_eq!(of("v_flags"), Some(at), "{name}: flags");
            }
            if is_look(number) {
                // The path's string comes first: `about` cuts there.
                let first =
                    request.iter().filter(|(part, _)| part.starts_with("s_")).map(|(_, at)| *at).min();
                assert_eq!(first, Some(8), "{name}");
            }
        }
        let names: Vec<String> = generated().into_iter().map(|(name, ..)| name).collect();
        let check = |number: u32, name: &str| assert_eq!(names[number as usize], format!("px_{name}"));
        check(f::HELLO, "hello");
        check(f::OPEN, "open");
        check(f::READ_WAIT, "read_wait");
        check(f::ENTRIES, "entries");
        check(f::STAT, "stat");
        check(f::REMOVEXATTR, "removexattr");
        check(f::MKNOD, "mknod");
        check(f::ADVISE, "advise");
        check(f::ACCEPT, "accept");
        check(all::HELLO, "hello");
        check(all::CLOSE, "close");
        check(all::READ, "read");
        check(all::WRITE, "write");
        check(all::SEEK, "seek");
        check(all::ENTRIES, "entries");
        check(all::STAT, "stat");
        check(all::STATFS, "statfs");
        check(all::ACCESS, "access");
        check(all::REALPATH, "realpath");
        check(all::GETXATTR, "getxattr");
        check(all::LISTXATTR, "listxattr");
        check(all::FCNTL, "fcntl");
        check(all::ADVISE, "advise");
        check(all::OPEN_AHEAD, "open_ahead");
        check(all::STAT_SEVERAL, "stat_several");
        check(all::OPEN_SEVERAL, "open_several");
    }

    #[test]
    fn a_question_is_asked_of_another_path() {
        let mut message = vec![0; 56];
        put_span(&mut message, 8, b"rel\0");
        put_span(&mut message, 32, b"user.a\0");
        let asked = Asked::new(f::GETXATTR, &message, None);
        assert_eq!(asked.text(8), Some(&b"rel"[..]));
        let other = asked.about(b"/some/where/else", Some(32)).unwrap();
        assert_eq!(other.word(0), Some(ROOT as u32));
        assert_eq!(other.text(8), Some(&b"/some/where/else"[..]));
        assert_eq!(other.text(32), Some(&b"user.a"[..]));
        assert_eq!(other.message().len() % 8, 0);
    }

    #[test]
    fn spans_beyond_the_message_are_none() {
        let mut asked = Asked::new(f::STAT, &with_path(b"/a", &[0, 0]), None);
        assert_eq!(asked.text(8), Some(&b"/a"[..]));
        asked.put_long(16, u64::MAX);
        assert_eq!((asked.text(8), asked.span(8)), (None, None));
        asked.put_long(8, 1 << 40);
        assert_eq!(asked.text(8), None);
        assert!(Asked::of(vec![0; 7]).is_err());
    }

    #[test]
    fn answers_have_the_plugins_form() {
        let payload = failed(f::OPEN, 30);
        let message = answered(&payload).unwrap();
        assert_eq!((message.len(), outcome(f::OPEN, message)), (32, Some(Err(30))));
        let opened = FarOpened { ino: 1, dev: 2, id: 3, mode: 4 };
        let payload = opened.answer(f::OPEN);
        assert_eq!(FarOpened::of(answered(&payload).unwrap(), 8), Some(opened));
        let payload = gave(f::READ, 5);
        assert_eq!(outcome(f::READ, answered(&payload).unwrap()), Some(Ok(5)));
    }
}
