//! A directory served over TCP at a bounded rate, and the backing that reads it. It is the
//! testbed's model of a slow shared file server, because NFS needs root.
//!
//! Messages have the header of [`zazen_wire::header`] and a service number of their own. The data
//! of a read is the reply's bulk part. There is no authentication, and every file that the server's
//! user may read is served. So bind the server to a loopback address or to the testbed's own
//! network.
//!
//! The helper program of object stores speaks the same protocol with its daemon, over socket pairs
//! that nobody else has ([`crate::objects`]). A program that a user starts also writes files
//! ([`upload`]); a file server and a daemon's helper do not.

mod client;
mod server;
mod token_bucket;
mod upload;
mod view;

pub use client::{Carrier, Dial, Patience, ServedBacking};
pub use server::{FileServer, answer_peer, answer_writer, serve};
pub use token_bucket::TokenBucket;
pub use upload::{Incoming, NewFile, Receiver, Sending, Tag, There};

use crate::SourceStat;
use std::io::{Read, Write};
use zazen_core::{Error, ErrorKind, RelPath, Result, Validator};
use zazen_wire::Message;
use zazen_wire::codec::{Reader, Writer};
use zazen_wire::header::{HEADER_BYTES, Header, Kind};

/// The largest read in one request, in bytes.
pub const READ_BYTES_MAX: usize = 4 << 20;
/// A longer read may be answered by so many bytes while the rest is coming, in bytes: whoever asked
/// keeps them meanwhile, and asks again.
pub const STEP_BYTES: u64 = 1 << 20;
/// Paths in one stat request.
pub const STATS_MAX: usize = 1024;
/// The largest payload in either direction, in bytes: a listing of a few hundred thousand names.
pub const PAYLOAD_MAX: usize = 64 << 20;
/// The file server's number in the header.
const SERVICE: u16 = 0x4653;

mod function {
    pub(super) const STAT_MANY: u16 = 1;
    pub(super) const OPEN: u16 = 2;
    pub(super) const LIST: u16 = 3;
    pub(super) const READ: u16 = 4;
    pub(super) const TRAFFIC: u16 = 5;
    pub(super) const LOOK: u16 = 6;
    pub(super) const BEGIN: u16 = 7;
    pub(super) const ADD: u16 = 8;
    pub(super) const FINISH: u16 = 9;
}

/// What a file server has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Requests for data.
    pub reads: u64,
    /// Bytes of data sent.
    pub bytes: u64,
    /// Files opened.
    pub opens: u64,
    /// Files and directories looked at.
    pub stats: u64,
    /// Directories listed.
    pub lists: u64,
    /// Connections now.
    pub connections: u64,
    /// The bound on data, in bytes per second; 0: none.
    pub rate_bytes_per_s: u64,
}

impl Message for Traffic {
    const NAME: &'static str = "Traffic";
    fn write(&self, writer: &mut Writer) {
        let Traffic { reads, bytes, opens, stats, lists, connections, rate_bytes_per_s } = *self;
        for value in [reads, bytes, opens, stats, lists, connections, rate_bytes_per_s] {
            writer.u64(value);
        }
    }
    fn read(reader: &mut Reader<'_>) -> Result<Traffic> {
        Ok(Traffic {
            reads: reader.u64()?,
            bytes: reader.u64()?,
            opens: reader.u64()?,
            stats: reader.u64()?,
            lists: reader.u64()?,
            connections: reader.u64()?,
            rate_bytes_per_s: reader.u64()?,
        })
    }
}

struct StatMany(Vec<RelPath>);

impl Message for StatMany {
    const NAME: &'static str = "StatMany";
    fn write(&self, writer: &mut Writer) {
        writer.list(&self.0, Writer::rel_path);
    }
    fn read(reader: &mut Reader<'_>) -> Result<StatMany> {
        reader.list(4, Reader::rel_path).map(StatMany)
    }
}

/// A [`SourceStat`] on the wire.
struct StatMessage(SourceStat);

impl Message for StatMessage {
    const NAME: &'static str = "SourceStat";
    fn write(&self, writer: &mut Writer) {
        write_validator(writer, &self.0.validator);
        writer.u32(self.0.uid);
        writer.u32(self.0.gid);
        writer.u32(self.0.mode);
        writer.bool(self.0.is_dir);
    }
    fn read(reader: &mut Reader<'_>) -> Result<StatMessage> {
        Ok(StatMessage(SourceStat {
            validator: read_validator(reader)?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            mode: reader.u32()?,
            is_dir: reader.bool()?,
        }))
    }
}

/// Answers to a [`StatMany`], in its order: a stat, or an error's kind and message.
struct Stats(Vec<Result<SourceStat>>);

impl Message for Stats {
    const NAME: &'static str = "Stats";
    fn write(&self, writer: &mut Writer) {
        writer.list(&self.0, |writer, stat| {
            writer.record(|writer| match stat {
                Ok(stat) => {
                    writer.u32(0);
                    StatMessage(*stat).write(writer);
                }
                Err(error) => {
                    writer.u32(error.kind() as u32);
                    writer.clipped_text(&error.to_string());
                }
            });
        });
    }
    fn read(reader: &mut Reader<'_>) -> Result<Stats> {
        let stats = reader.list(8, |reader| {
            reader.record("Stats", |reader| {
                Ok(match reader.u32()? {
                    0 => Ok(StatMessage::read(reader)?.0),
                    code => {
                        let kind = ErrorKind::from_code(code).unwrap_or(ErrorKind::Unsupported);
                        Err(Error::new(kind, reader.free_text()?))
                    }
                })
            })
        });
        stats.map(Stats)
    }
}

struct ListDirectory {
    path: RelPath,
    files_only: bool,
}

impl Message for ListDirectory {
    const NAME: &'static str = "ListDirectory";
    fn write(&self, writer: &mut Writer) {
        writer.rel_path(&self.path);
        writer.bool(self.files_only);
    }
    fn read(reader: &mut Reader<'_>) -> Result<ListDirectory> {
        Ok(ListDirectory { path: reader.rel_path()?, files_only: reader.bool()? })
    }
}

struct Names(Vec<String>);

impl Message for Names {
    const NAME: &'static str = "Names";
    fn write(&self, writer: &mut Writer) {
        writer.list(&self.0, |writer, name| writer.text(name));
    }
    fn read(reader: &mut Reader<'_>) -> Result<Names> {
        reader.list(4, Reader::free_text).map(Names)
    }
}

struct OpenFile(RelPath);

impl Message for OpenFile {
    const NAME: &'static str = "OpenFile";
    fn write(&self, writer: &mut Writer) {
        writer.rel_path(&self.0);
    }
    fn read(reader: &mut Reader<'_>) -> Result<OpenFile> {
        reader.rel_path().map(OpenFile)
    }
}

/// A read of a file that looked like `validator` when it was opened; `Stale` if it looks different
/// now.
struct ReadFile {
    path: RelPath,
    offset: u64,
    length: u32,
    validator: Validator,
}

impl Message for ReadFile {
    const NAME: &'static str = "ReadFile";
    fn write(&self, writer: &mut Writer) {
        writer.rel_path(&self.path);
        writer.u64(self.offset);
        writer.u32(self.length);
        write_validator(writer, &self.validator);
    }
    fn read(reader: &mut Reader<'_>) -> Result<ReadFile> {
        Ok(ReadFile {
            path: reader.rel_path()?,
            offset: reader.u64()?,
            length: reader.u32()?,
            validator: read_validator(reader)?,
        })
    }
}

fn write_validator(writer: &mut Writer, validator: &Validator) {
    writer.u64(validator.size);
    writer.i64(validator.mtime_ns);
    writer.i64(validator.ctime_ns);
    writer.u64(validator.inode);
    writer.bool(validator.unsettled);
}

fn read_validator(reader: &mut Reader<'_>) -> Result<Validator> {
    Ok(Validator {
        size: reader.u64()?,
        mtime_ns: reader.i64()?,
        ctime_ns: reader.i64()?,
        inode: reader.u64()?,
        unsettled: reader.bool()?,
    })
}

fn send(
    stream: &mut impl Write,
    kind: Kind,
    function: u16,
    status: u32,
    payload: &[u8],
    bulk_bytes: u64,
) -> std::io::Result<()> {
    let header = Header {
        kind,
        service: SERVICE,
        function,
        status,
        call: 0,
        payload_bytes: payload.len() as u32,
        fd_count: 0,
        bulk_bytes,
        payload_crc: zazen_wire::checksum::crc32c(payload),
        flags: 0,
        room: None,
    };
    let mut message = header.encode().to_vec();
    message.extend_from_slice(payload);
    stream.write_all(&message)
}

/// Receives header and payload. The caller reads the bulk part. `None` if the peer closed between
/// messages.
fn receive(stream: &mut impl Read, kind: Kind, peer: &str) -> Result<Option<(Header, Vec<u8>)>> {
    let lost = |error| Error::io(format!("connection with {peer}"), error);
    let mut head = [0; HEADER_BYTES];
    let mut filled = 0;
    while filled < HEADER_BYTES {
        match stream.read(&mut head[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(lost(std::io::ErrorKind::UnexpectedEof.into())),
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(lost(error)),
        }
    }
    let header = Header::decode(&head)?;
    if header.kind != kind || header.service != SERVICE || header.payload_bytes as usize > PAYLOAD_MAX {
        return Err(Error::new(
            ErrorKind::Protocol,
            format!("{peer} does not speak the file server's protocol; check the address"),
        ));
    }
    let mut payload = Vec::new();
    let read = Read::take(&mut *stream, u64::from(header.payload_bytes)).read_to_end(&mut payload);
    read.map_err(lost)?;
    header.check_payload(&payload)?;
    Ok(Some((header, payload)))
}
