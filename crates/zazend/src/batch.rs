//! A batch of a scan in the making: frames as descriptors, as places in a shared one, or as bytes.
//!
//! A call for a few frames gets small packed frames as bytes, whoever calls.
//!
//! Invariant: a descriptor shows its receiver nothing but what it may read. A file that packs
//! several frames goes only to root and the daemon's user, who could open it by its path; other
//! users get copies of their frames' bytes, and no path of the cache.

use crate::counters::Counters;
use crate::node::Node;
use crate::opened::OpenedDataset;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use zazen_backing::SourceFile;
use zazen_call::Reply;
use zazen_core::{Error, ErrorKind, FrameMeta, Result, Source};
use zazen_frames::messages::{BatchEntry, Delivery, ScanBatch};
use zazen_store::{CachedFrame, OpenFrame};
use zazen_wire::Message;
use zazen_wire::checksum::frame_checksum;

/// A reply in the making.
#[derive(Default)]
pub(crate) struct Batch {
    entries: Vec<BatchEntry>,
    fds: Vec<OwnedFd>,
    bulk: Vec<u8>,
    bytes: u64,
    /// The entry whose file is the last of `fds`.
    last_entry: Option<CachedFrame>,
    /// Whether the receiver may have the cache's own files.
    privileged: bool,
    /// Small packed frames go as bytes to whoever may have the file, too.
    copies_small: bool,
}

/// The longest frame that costs less to copy than to hand over a descriptor for.
const COPIED_MAX: u64 = 16 << 10;

impl Batch {
    pub(crate) fn new(privileged: bool) -> Batch {
        Batch { privileged, ..Batch::default() }
    }

    /// One of a few frames. Bytes go through shared memory with the answer. A descriptor would be
    /// sent through the socket, received, read and closed.
    pub(crate) fn of_few(privileged: bool) -> Batch {
        Batch { privileged, copies_small: true, ..Batch::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Its frames so far.
    pub(crate) fn frames(&self) -> usize {
        self.entries.len()
    }

    /// Its descriptors so far.
    pub(crate) fn files(&self) -> usize {
        self.fds.len()
    }

    /// Bytes that it holds itself so far.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.bulk.len() as u64
    }

    /// Whether its receiver gets packed frames as bytes.
    pub(crate) fn sends_packed(&self) -> bool {
        !self.privileged
    }

    /// Bytes of its frames so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn into_reply(self) -> Reply {
        self.into_reply_as(&|batch| batch.encode())
    }

    /// The reply whose payload `encode` makes.
    pub(crate) fn into_reply_as(self, encode: &dyn Fn(ScanBatch) -> Vec<u8>) -> Reply {
        Reply {
            payload: encode(ScanBatch { entries: self.entries }),
            fds: self.fds,
            bulk: self.bulk,
            ..Reply::default()
        }
    }

    fn push_fd(&mut self, fd: OwnedFd) -> Option<u16> {
        self.last_entry = None;
        self.fds.push(fd);
        Some(self.fds.len() as u16 - 1)
    }

    /// Adds the frame of `entry` without opening anything, if the last descriptor is of the file
    /// that packs it too.
    pub(crate) fn cached_beside(&mut self, node: &Node, entry: &CachedFrame, delivery: Delivery) -> bool {
        let Some(last) = self.last_entry.as_ref().filter(|last| last.is_packed_with(entry)) else {
            return false;
        };
        let access = |meta: &FrameMeta| (meta.uid, meta.gid, meta.mode);
        if access(&last.meta) != access(&entry.meta) || self.fds.is_empty() {
            return false;
        }
        let fd = self.fds.len() as u16 - 1;
        let place = FileRange { fd: Some(fd), offset: entry.offset, path: &entry.path, whole: false };
        self.cached_in(&node.counters, &entry.meta, place, delivery);
        true
    }

    pub(crate) fn fail(&mut self, node: &Node, number: u64, error: &Error) {
        node.counters.failed.add(1);
        if error.kind() == ErrorKind::PermissionDenied {
            node.counters.permission_denied.add(1);
        }
        self.entries.push(BatchEntry {
            number,
            delivery: Delivery::Failed,
            fd: None,
            offset: 0,
            length: 0,
            checksum: None,
            path: String::new(),
            error: Some((error.kind() as u32, error.to_string())),
            whole: false,
        });
    }

    /// Adds a cached frame. `entry` is where it lies, if that is known. `Corrupt` if its bytes had
    /// to be looked at and do not match their checksum.
    pub(crate) fn cached(
        &mut self,
        node: &Node,
        frame: OpenFrame,
        entry: Option<&CachedFrame>,
        delivery: Delivery,
    ) -> Result<()> {
        let OpenFrame { file, offset, meta, path, is_packed, .. } = frame;
        if is_packed && (!self.privileged || self.copies_small && meta.length <= COPIED_MAX) {
            return self.copied(node, &file, offset, &meta, delivery);
        }
        self.fds.push(file.into());
        let fd = Some(self.fds.len() as u16 - 1);
        self.last_entry = entry.filter(|entry| entry.is_packed()).cloned();
        let place = FileRange { fd, offset, path: &path, whole: !is_packed };
        self.cached_in(&node.counters, &meta, place, delivery);
        Ok(())
    }

    /// Adds a frame of a file that holds others, too, as bytes. They are compared with their
    /// checksum here: what took its place meanwhile may be a frame that this user must not see.
    fn copied(
        &mut self,
        node: &Node,
        file: &std::fs::File,
        offset: u64,
        meta: &FrameMeta,
        delivery: Delivery,
    ) -> Result<()> {
        let begin = self.bulk.len();
        self.bulk.resize(begin + meta.length as usize, 0);
        let read = file.read_exact_at(&mut self.bulk[begin..], offset);
        if read.is_err() || frame_checksum(&self.bulk[begin..]) != meta.checksum {
            self.bulk.truncate(begin);
            let what = format!("frame {}: its copy does not match its checksum", meta.number);
            return Err(Error::new(ErrorKind::Corrupt, what));
        }
        let place = FileRange { fd: None, offset: begin as u64, path: Path::new(""), whole: false };
        self.cached_in(&node.counters, meta, place, delivery);
        Ok(())
    }

    fn cached_in(&mut self, counters: &Counters, meta: &FrameMeta, place: FileRange<'_>, delivery: Delivery) {
        match delivery {
            Delivery::Native => {
                counters.native_reads.add(1);
                counters.native_bytes.add(meta.length);
            }
            Delivery::Alien => {
                counters.alien_reads.add(1);
                counters.alien_bytes.add(meta.length);
            }
            _ => counters.fetched_reads.add(1),
        }
        self.bytes += meta.length;
        self.entries.push(BatchEntry {
            number: meta.number.get(),
            delivery,
            fd: place.fd,
            offset: place.offset,
            length: meta.length,
            checksum: Some(meta.checksum),
            path: if self.privileged { text(place.path) } else { String::new() },
            error: None,
            whole: place.whole,
        });
    }

    /// Adds the source itself: the very descriptor that its user's rights opened.
    pub(crate) fn read_through(
        &mut self,
        node: &Node,
        opened: &OpenedDataset,
        source: &Source,
        number: u64,
        file: &dyn SourceFile,
    ) -> Result<()> {
        let path = opened.at.beneath.join(source.path.as_str())?;
        let (offset, length) = crate::fetch::extent_in(file, source, number, &opened.spelled())?;
        let fd = file.descriptor().ok_or_else(|| {
            Error::new(ErrorKind::Io, format!("frame {number} of {}: no descriptor left", opened.spelled()))
        })?;
        node.counters.read_through.add(1);
        self.bytes += length;
        let fd = self.push_fd(fd);
        self.entries.push(BatchEntry {
            number,
            delivery: Delivery::ReadThrough,
            fd,
            offset,
            length,
            checksum: None,
            path: opened.at.root.spelled(&path),
            error: None,
            whole: source.offset == 0 && source.length.is_none(),
        });
        Ok(())
    }

    /// The bytes of inline frames follow each other in the bulk part in the order of the entries;
    /// `offset` is the place in the bulk part.
    pub(crate) fn inline(
        &mut self,
        node: &Node,
        opened: &OpenedDataset,
        source: &Source,
        number: u64,
        bytes: Vec<u8>,
    ) {
        node.counters.inline.add(1);
        self.bytes += bytes.len() as u64;
        let path = opened.at.beneath.join(source.path.as_str()).unwrap_or_default();
        self.entries.push(BatchEntry {
            number,
            delivery: Delivery::Inline,
            fd: None,
            offset: self.bulk.len() as u64,
            length: bytes.len() as u64,
            checksum: Some(frame_checksum(&bytes)),
            path: opened.at.root.spelled(&path),
            error: None,
            whole: false,
        });
        self.bulk.extend_from_slice(&bytes);
    }
}

/// Where the bytes of a cached frame are.
struct FileRange<'a> {
    /// The descriptor's index; `None`: in the bulk part.
    fd: Option<u16>,
    offset: u64,
    path: &'a Path,
    /// The file has nothing but this frame.
    whole: bool,
}

fn text(path: &Path) -> String {
    path.to_str().map_or_else(|| path.to_string_lossy().into_owned(), str::to_owned)
}
