//! Messages of the plug-ins service: binding to a plug-in, calling it, asking how it is.
//!
//! A *call* on this service is a [`CallHead`], then the message that a generated stub made
//! (`docs/formats/plugin-wire.md`), then the input segments as bulk bytes, one behind the other.
//! The answer is an [`AnswerHead`], the plug-in's message, and as bulk bytes what became of the
//! output segments. Both heads are a multiple of 8 bytes, so that a message lies as aligned as the
//! payload does.
//!
//! Invariant: a head's segment counts are bounded before memory is asked for.

use crate::codec::Reader;
use crate::field::{AbsolutePath, Nested, Text};
use zazen_core::{Credentials, Error, ErrorKind, Result};
pub use zazen_plugin_abi::status;

/// Segments of one direction of a call, at most.
pub const SEGMENTS_MAX: u32 = 4096;
/// The longest name of a plug-in, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// A call's head without its segments' sizes.
pub const CALL_HEAD_BYTES: usize = 40;
/// An answer's head without its segments' sizes.
pub const ANSWER_HEAD_BYTES: usize = 16;

/// Function numbers of the plug-ins service.
pub mod plugins_fn {
    /// [`super::OpenPlugin`] → [`super::PluginOpened`].
    pub const OPEN: u16 = 1;
    /// See the module.
    pub const CALL: u16 = 2;
    /// [`super::About`] → [`super::Pong`]: the plug-in's host answers, or the call fails.
    pub const PING: u16 = 3;
    /// [`super::About`] (plug-in 0: all) → UTF-8 JSON.
    pub const STATS: u16 = 4;
    /// [`super::About`] → [`super::Fate`]: what became of that generation of the plug-in's process.
    pub const FATE: u16 = 5;
    /// [`super::About`] → (): the client says goodbye; its connections' ends that follow are no
    /// accident.
    pub const CLOSE: u16 = 6;
    /// [`super::Cancel`] → (): a call in progress on another lane of the caller is to end early.
    pub const CANCEL: u16 = 7;
    /// [`super::OpenPluginFor`] → [`super::PluginOpened`]: the daemon opens a plug-in's process for
    /// a caller of its own.
    pub const OPEN_FOR: u16 = 8;
    /// () → the folders that callers may reach by plug-ins that act as they: absolute paths, each
    /// with a NUL behind it. Behind an empty one come those that are mounts in nobody's view.
    pub const EXPORTS: u16 = 9;
    /// [`super::OpenPlugin`] → [`super::PluginOpened`]: as `OPEN`, and the connection carries calls
    /// of this plug-in only from then on. So a daemon may hand it to the plug-in's process, and a
    /// go-between to its caller: then the descriptor of its own connection comes with the answer.
    pub const OPEN_OVER: u16 = 10;
}

/// The encoding of a name: of a plug-in, or of a host.
type Name = Text<NAME_BYTES_MAX>;

crate::messages! {
    /// Which plug-in, and which start of it (0: the one that runs).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    About {
        /// The plug-in's ID.
        plugin: u16,
        /// Counts the starts of the plug-in.
        generation: u64,
    }

    /// The answer to a ping.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Pong {
        /// Counts the starts of the plug-in.
        generation: u64,
        /// Clients attached.
        clients: u64,
    }

    /// What became of a plug-in's process.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Fate {
        /// A [`FateKind`]'s number.
        kind: u8,
        /// A call that runs for at least this time counts as hung; 0 if that is not why.
        call_timeout_ms: u64,
    }

    /// Ends a call of this client early.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Cancel {
        /// The plug-in's ID.
        plugin: u16,
        /// The call's [`CallHead::tag`].
        tag: u64,
    }

    /// A client's first message to a plug-in.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    OpenPlugin {
        /// The plug-in's ID.
        plugin: u16,
        /// The name of its header.
        name: String = Name,
        /// Hash of the header that the client was generated from.
        schema_hash: u64,
        /// Hash of the layouts of its structures, as compiled.
        layout_hash: u64,
        /// The client's MPI rank, two's complement; -1 if it has none.
        rank: u32,
        /// The number of ranks, in the same form.
        ranks: u32,
        /// The client cannot connect elsewhere, so the daemon passes its calls on.
        stay: bool,
    }

    /// [`OpenPlugin`], sent by the daemon to a plug-in's process for a caller whom only the daemon
    /// can reach.
    #[derive(Clone, Debug, PartialEq, Eq)]
    OpenPluginFor {
        /// The caller's message.
        open: OpenPlugin = Nested<OpenPlugin>,
        /// Who the caller is.
        credentials: Credentials,
        /// Its process.
        pid: u32,
        /// Its machine; empty for this one.
        host: String = Name,
    }

    /// The answer to [`OpenPlugin`].
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    PluginOpened {
        /// `enum zazen_call_status`; if it is not 0, nothing else counts.
        status: u32,
        /// The socket of the plug-in's own process, where the client opens it; empty: here.
        elsewhere: String = AbsolutePath,
        /// Counts the starts of the plug-in.
        generation: u64,
        /// The client's number, as the plug-in sees it.
        client: u64,
        /// The largest request or reply, in bytes, without segments.
        message_bytes_max: u64,
        /// The most bytes of all segments of a call.
        segment_bytes_max: u64,
    }
}

/// What a plug-in's process is doing or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FateKind {
    /// It runs.
    Running = 0,
    /// It ended by itself or by a signal.
    Crashed = 1,
    /// It was killed because a call did not end.
    Hung = 2,
    /// The daemon stopped it.
    Stopped = 3,
}

impl FateKind {
    /// The kind with this number; one that this build does not know is as good as a crash.
    pub fn from_code(code: u8) -> FateKind {
        match code {
            0 => FateKind::Running,
            2 => FateKind::Hung,
            3 => FateKind::Stopped,
            _ => FateKind::Crashed,
        }
    }
}

/// What precedes a call's message. `in_bytes` and `out_bytes` follow it, 8 bytes each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallHead {
    /// The plug-in's ID.
    pub plugin: u16,
    /// The function's index.
    pub function: u32,
    /// Input segments.
    pub in_count: u32,
    /// Output segments.
    pub out_count: u32,
    /// The longest reply message that the client takes.
    pub reply_bytes_max: u64,
    /// The client's own number of this call, for [`Cancel`].
    pub tag: u64,
    /// Names this call in every process that it goes through, for spans: [`call_id`]. 0: it has
    /// none, as those of releases that know of no such number.
    pub id: u64,
}

/// The ID of a client's call: `process`, a number that the client's process drew at random, and the
/// call's place among those of that process. Only for people: nothing is decided by it.
pub fn call_id(process: u32, place: u64) -> u64 {
    u64::from(process) << 32 | (place & u64::from(u32::MAX))
}

impl CallHead {
    /// Appends the head and the segments' sizes to `payload`, whose length must be a multiple of 8.
    pub fn put(&self, sizes: impl Iterator<Item = u64>, payload: &mut Vec<u8>) {
        payload.extend_from_slice(&u32::from(self.plugin).to_le_bytes());
        for number in [self.function, self.in_count, self.out_count] {
            payload.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.reply_bytes_max, self.tag, self.id] {
            payload.extend_from_slice(&number.to_le_bytes());
        }
        for bytes in sizes {
            payload.extend_from_slice(&bytes.to_le_bytes());
        }
    }

    /// The head at the beginning of `payload`; the bytes of the sizes, inputs first; where the
    /// message begins.
    pub fn take(payload: &[u8]) -> Result<(CallHead, &[u8], usize)> {
        let mut reader = Reader::new("CallHead", payload);
        let plugin =
            u16::try_from(reader.u32()?).map_err(|_| reader.malformed("a plug-in's ID is beyond 65535"))?;
        let (function, in_count, out_count) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let (reply_bytes_max, tag, id) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let count = bounded(in_count)? + bounded(out_count)?;
        let sizes = reader.raw(count * 8)?;
        let head = CallHead { plugin, function, in_count, out_count, reply_bytes_max, tag, id };
        Ok((head, sizes, CALL_HEAD_BYTES + count * 8))
    }
}

/// What precedes an answer's message. The output segments' sizes follow it, 8 bytes each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerHead {
    /// `enum zazen_call_status`.
    pub status: u32,
    /// Output segments.
    pub out_count: u32,
}

impl AnswerHead {
    /// The head with its sizes.
    pub fn put(&self, sizes: impl Iterator<Item = u64>, payload: &mut Vec<u8>) {
        for number in [self.status, self.out_count] {
            payload.extend_from_slice(&number.to_le_bytes());
        }
        payload.extend_from_slice(&0u64.to_le_bytes());
        for bytes in sizes {
            payload.extend_from_slice(&bytes.to_le_bytes());
        }
    }

    /// The head with its sizes, at the beginning of `payload`, which has room for both; what is
    /// beyond stays.
    pub fn write_to(&self, sizes: impl Iterator<Item = u64>, payload: &mut [u8]) {
        let mut put = |at: usize, bytes: &[u8]| payload[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.status.to_le_bytes());
        put(4, &self.out_count.to_le_bytes());
        put(8, &0u64.to_le_bytes());
        for (index, bytes) in sizes.enumerate() {
            put(ANSWER_HEAD_BYTES + 8 * index, &bytes.to_le_bytes());
        }
    }

    /// The head at the beginning of `payload`, the bytes of the sizes, and where the message
    /// begins.
    pub fn take(payload: &[u8]) -> Result<(AnswerHead, &[u8], usize)> {
        let mut reader = Reader::new("AnswerHead", payload);
        let (status, out_count) = (reader.u32()?, reader.u32()?);
        reader.u64()?;
        let count = bounded(out_count)?;
        let sizes = reader.raw(count * 8)?;
        Ok((AnswerHead { status, out_count }, sizes, ANSWER_HEAD_BYTES + count * 8))
    }
}

/// The sizes in what [`CallHead::take`] or [`AnswerHead::take`] gave.
pub fn sizes(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(8).map(|chunk| {
        let mut size = [0; 8];
        size.copy_from_slice(chunk);
        u64::from_le_bytes(size)
    })
}

fn bounded(count: u32) -> Result<usize> {
    if count > SEGMENTS_MAX {
        let why = format!("a call has {count} segments, beyond the limit of {SEGMENTS_MAX}");
        return Err(Error::new(ErrorKind::TooLarge, why));
    }
    Ok(count as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn any_bytes_give_a_head_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let messages = [
                CallHead::take(&bytes)
                    .map(|(head, sizes, at)| (head.in_count + head.out_count, sizes.len(), at)),
                AnswerHead::take(&bytes).map(|(head, sizes, at)| (head.out_count, sizes.len(), at)),
            ];
            for (count, size_bytes, at) in messages.into_iter().flatten() {
                prop_assert_eq!(size_bytes, count as usize * 8);
                prop_assert!(at <= bytes.len() && at % 8 == 0);
            }
            let _ = OpenPlugin::decode(&bytes);
            let _ = PluginOpened::decode(&bytes);
            let _ = OpenPluginFor::decode(&bytes);
        }

        #[test]
        fn heads_come_back(
            function: u32, tag: u64, id: u64, reply_bytes_max: u64,
            ins in prop::collection::vec(any::<u64>(), 0..5)
        ) {
            let head =
                CallHead { plugin: 7, function, in_count: ins.len() as u32, out_count: 0,
                    reply_bytes_max, tag, id };
            let mut bytes = Vec::new();
            head.put(ins.iter().copied(), &mut bytes);
            prop_assert_eq!(bytes.len(), CALL_HEAD_BYTES + 8 * ins.len());
            bytes.extend_from_slice(b"message.");
            let (back, found, at) = CallHead::take(&bytes).unwrap();
            prop_assert_eq!(back, head);
            prop_assert_eq!(sizes(found).collect::<Vec<_>>(), ins);
            prop_assert_eq!(&bytes[at..], b"message.");
        }
    }

    #[test]
    fn messages_come_back() {
        let open = OpenPlugin {
            plugin: 77,
            name: "service".into(),
            schema_hash: 1,
            layout_hash: u64::MAX,
            rank: u32::MAX,
            ranks: 4,
            stay: true,
        };
        assert_eq!(OpenPlugin::decode(&open.encode()).unwrap(), open);
        let credentials = Credentials { uid: 1, gid: 2, groups: vec![3, 4] };
        let told = OpenPluginFor { open, credentials, pid: 5, host: "far".into() };
        assert_eq!(OpenPluginFor::decode(&told.encode()).unwrap(), told);
        let opened = PluginOpened {
            elsewhere: "/run/zazen/plug-in".into(),
            generation: 2,
            client: 3,
            message_bytes_max: 4,
            segment_bytes_max: 5,
            ..PluginOpened::default()
        };
        assert_eq!(PluginOpened::decode(&opened.encode()).unwrap(), opened);
    }

    #[test]
    fn heads_have_these_bytes() {
        let mut bytes = Vec::new();
        let head = CallHead {
            plugin: 2,
            function: 3,
            in_count: 1,
            out_count: 0,
            reply_bytes_max: 4,
            tag: 5,
            id: call_id(8, 9 + (1 << 32)),
        };
        head.put([6].into_iter(), &mut bytes);
        let words: Vec<u64> = sizes(&bytes).collect();
        assert_eq!(words, [2 | 3 << 32, 1, 4, 5, 8 << 32 | 9, 6]);
        bytes.clear();
        AnswerHead { status: 13, out_count: 1 }.put([9].into_iter(), &mut bytes);
        assert_eq!(sizes(&bytes).collect::<Vec<_>>(), [13 | 1 << 32, 0, 9]);
        let mut written = [7; 32];
        AnswerHead { status: 13, out_count: 1 }.write_to([9].into_iter(), &mut written);
        assert_eq!((&written[..24], &written[24..]), (&bytes[..], &[7; 8][..]));
        let many = CallHead { in_count: SEGMENTS_MAX + 1, ..CallHead::default() };
        bytes.clear();
        many.put(std::iter::empty(), &mut bytes);
        assert_eq!(CallHead::take(&bytes).unwrap_err().kind(), ErrorKind::TooLarge);
    }
}
