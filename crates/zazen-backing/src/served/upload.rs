//! Files that are written through the helper program of an object store, for a user who asks for
//! it ([`crate::objects::ObjectWriter`]). No daemon does that.
//!
//! A connection writes one file at a time: BEGIN, the bytes in their order by ADD, FINISH.
//!
//! Invariant: the file is there only after FINISH, whole, with as many bytes as BEGIN said. A
//! connection that ends earlier leaves nothing.

use super::client::{Failure, Link};
use super::{Carrier, READ_BYTES_MAX, ServedBacking, function, read_validator, write_validator};
use std::sync::Arc;
use zazen_core::{Error, ErrorKind, RelPath, Result, Validator};
use zazen_wire::Message;
use zazen_wire::codec::{Reader, Writer};

/// A file that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    /// Its path.
    pub path: RelPath,
    /// How many bytes it has.
    pub bytes: u64,
    /// When its source was written last, in nanoseconds since the epoch.
    pub modified_ns: i64,
    /// The checksum of its bytes (`frame_checksum`), if who writes it wants to find it there again.
    pub checksum: Option<u64>,
}

impl Message for NewFile {
    const NAME: &'static str = "NewFile";
    fn write(&self, writer: &mut Writer) {
        writer.rel_path(&self.path);
        writer.u64(self.bytes);
        writer.i64(self.modified_ns);
        write_known(writer, self.checksum);
    }
    fn read(reader: &mut Reader<'_>) -> Result<NewFile> {
        Ok(NewFile {
            path: reader.rel_path()?,
            bytes: reader.u64()?,
            modified_ns: reader.i64()?,
            checksum: read_known(reader)?,
        })
    }
}

/// A number that may be unknown.
fn write_known(writer: &mut Writer, number: Option<u64>) {
    writer.bool(number.is_some());
    writer.u64(number.unwrap_or_default());
}

fn read_known(reader: &mut Reader<'_>) -> Result<Option<u64>> {
    match (reader.bool()?, reader.u64()?) {
        (true, number) => Ok(Some(number)),
        (false, 0) => Ok(None),
        (false, _) => Err(Error::new(ErrorKind::Protocol, "a number that is not known has a value")),
    }
}

/// Which version of an object was written, as a [`Validator`] says it. Both are 0 if the store told
/// no version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// In the place of the inode.
    pub inode: u64,
    /// In the place of the change time.
    pub ctime_ns: i64,
}

impl Tag {
    /// Whether the object that looks like `seen` is this version, as far as the store told.
    pub fn is_of(&self, seen: &Validator) -> bool {
        *self == Tag::default() || *self == Tag { inode: seen.inode, ctime_ns: seen.ctime_ns }
    }
}

impl Message for Tag {
    const NAME: &'static str = "Tag";
    fn write(&self, writer: &mut Writer) {
        writer.u64(self.inode);
        writer.i64(self.ctime_ns);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Tag> {
        Ok(Tag { inode: reader.u64()?, ctime_ns: reader.i64()? })
    }
}

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum There {
    /// Nothing.
    Nothing,
    /// A folder: other files are beneath it.
    Folder,
    /// A file.
    File {
        /// [`NewFile::modified_ns`] of who wrote it; `None` if it was written in another way.
        modified_ns: Option<i64>,
        /// [`NewFile::checksum`] of who wrote it.
        checksum: Option<u64>,
        /// What it looks like. The rest is of this version.
        seen: Validator,
    },
}

impl Message for There {
    const NAME: &'static str = "There";
    fn write(&self, writer: &mut Writer) {
        let (kind, modified_ns, checksum, seen) = match *self {
            There::Nothing => (0, None, None, Validator::default()),
            There::Folder => (1, None, None, Validator::default()),
            There::File { modified_ns, checksum, seen } => (2, modified_ns, checksum, seen),
        };
        writer.u32(kind);
        write_known(writer, modified_ns.map(|time| time as u64));
        write_known(writer, checksum);
        write_validator(writer, &seen);
    }
    fn read(reader: &mut Reader<'_>) -> Result<There> {
        let kind = reader.u32()?;
        let modified_ns = read_known(reader)?.map(|time| time as i64);
        let (checksum, seen) = (read_known(reader)?, read_validator(reader)?);
        let is_bare = modified_ns.is_none() && checksum.is_none() && seen == Validator::default();
        match kind {
            0 if is_bare => Ok(There::Nothing),
            1 if is_bare => Ok(There::Folder),
            2 => Ok(There::File { modified_ns, checksum, seen }),
            _ => Err(Error::new(ErrorKind::Protocol, "There: is of no known kind")),
        }
    }
}

/// Takes files. For any thread.
pub trait Receiver: Send + Sync {
    /// What is at a path.
    fn look(&self, path: &RelPath) -> Result<There>;
    /// Begins to take a file.
    fn begin(&self, file: &NewFile) -> Result<Box<dyn Incoming>>;
}

/// A file that is being taken. Nothing of one stays that is dropped before it is finished.
pub trait Incoming {
    /// Takes the next bytes.
    fn add(&mut self, bytes: Vec<u8>) -> Result<()>;
    /// All bytes have come: makes the file, in the place of the one that was there. Says which
    /// version that is.
    fn finish(&mut self) -> Result<Tag>;
}

/// The writing side of one connection.
pub(super) struct Writing<'a> {
    receiver: &'a dyn Receiver,
    current: Option<Current>,
}

struct Current {
    incoming: Box<dyn Incoming>,
    /// Bytes that have not come yet.
    missing: u64,
}

impl<'a> Writing<'a> {
    pub(super) fn new(receiver: &'a dyn Receiver) -> Writing<'a> {
        Writing { receiver, current: None }
    }

    /// The answer to a question about writing; `None` for any other question.
    pub(super) fn answer(&mut self, function: u16, payload: &[u8]) -> Option<Result<Vec<u8>>> {
        match function {
            function::LOOK => Some(self.look(payload)),
            function::BEGIN => Some(self.begin(payload)),
            function::ADD => Some(self.add(payload)),
            function::FINISH => Some(self.finish()),
            _ => None,
        }
    }

    fn look(&self, payload: &[u8]) -> Result<Vec<u8>> {
        let super::OpenFile(path) = super::OpenFile::decode(payload)?;
        self.receiver.look(&path).map(|there| there.encode())
    }

    fn begin(&mut self, payload: &[u8]) -> Result<Vec<u8>> {
        // One that was not finished ends first.
        self.current = None;
        let file = NewFile::decode(payload)?;
        self.current = Some(Current { incoming: self.receiver.begin(&file)?, missing: file.bytes });
        Ok(Vec::new())
    }

    fn add(&mut self, payload: &[u8]) -> Result<Vec<u8>> {
        // After an error the file counts as ended.
        let mut current = self.current.take().ok_or_else(nothing_begun)?;
        let more = payload.len() as u64;
        let Some(missing) = current.missing.checked_sub(more) else {
            let why = format!("{more} more bytes of a file that lacks {}", current.missing);
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        };
        current.incoming.add(payload.to_vec())?;
        self.current = Some(Current { missing, ..current });
        Ok(Vec::new())
    }

    fn finish(&mut self) -> Result<Vec<u8>> {
        let mut current = self.current.take().ok_or_else(nothing_begun)?;
        if current.missing > 0 {
            let why = format!("{} bytes of the file have not come", current.missing);
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        current.incoming.finish().map(|tag| tag.encode())
    }
}

fn nothing_begun() -> Error {
    Error::new(ErrorKind::InvalidArgument, "no file was begun on this connection")
}

/// A file that is being sent. Nothing of one stays that is dropped before it is finished.
pub struct Sending {
    link: Arc<Link>,
    carrier: Box<dyn Carrier>,
}

impl ServedBacking {
    /// What is at a path, for who writes there.
    pub fn look(&self, path: &RelPath) -> Result<There> {
        There::decode(&self.link().call(function::LOOK, &super::OpenFile(path.clone()).encode())?)
    }

    /// Begins to write a file.
    pub fn begin(&self, file: &NewFile) -> Result<Sending> {
        let link = Arc::clone(self.link());
        let mut sending = Sending { carrier: link.dial_to_write()?, link };
        sending.ask(function::BEGIN, &file.encode())?;
        Ok(sending)
    }
}

impl Sending {
    /// Sends the next bytes.
    pub fn add(&mut self, bytes: &[u8]) -> Result<()> {
        bytes.chunks(READ_BYTES_MAX).try_for_each(|piece| self.ask(function::ADD, piece).map(drop))
    }

    /// Makes the file of what was sent. Says which version that is.
    pub fn finish(mut self) -> Result<Tag> {
        Tag::decode(&self.ask(function::FINISH, &[])?)
    }

    fn ask(&mut self, function: u16, request: &[u8]) -> Result<Vec<u8>> {
        let mut carrier: &mut dyn Carrier = &mut *self.carrier;
        match self.link.ask(&mut carrier, function, request) {
            Ok((_, answer)) => Ok(answer),
            Err(Failure::Answered(error) | Failure::Lost(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Dial, Patience, answer_writer};
    use super::*;
    use crate::DirectoryBacking;
    use std::collections::BTreeMap;
    use std::os::unix::net::UnixStream;
    use std::sync::{Mutex, MutexGuard};
    use std::time::Duration;

    /// Files in memory, and how many are being taken.
    #[derive(Default)]
    struct Memory {
        files: Mutex<BTreeMap<RelPath, (Vec<u8>, NewFile)>>,
        under_way: Mutex<usize>,
    }

    struct Taking {
        memory: Arc<Memory>,
        file: NewFile,
        bytes: Vec<u8>,
    }

    fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }

    fn looks(bytes: usize) -> Validator {
        Validator { size: bytes as u64, mtime_ns: -1, ctime_ns: 8, inode: 7, unsettled: false }
    }

    struct Shared(Arc<Memory>);

    impl Receiver for Shared {
        fn look(&self, path: &RelPath) -> Result<There> {
            Ok(match lock(&self.0.files).get(path) {
                Some((bytes, file)) => There::File {
                    modified_ns: Some(file.modified_ns),
                    checksum: file.checksum,
                    seen: looks(bytes.len()),
                },
                None => There::Nothing,
            })
        }
        fn begin(&self, file: &NewFile) -> Result<Box<dyn Incoming>> {
            *lock(&self.0.under_way) += 1;
            Ok(Box::new(Taking { memory: Arc::clone(&self.0), file: file.clone(), bytes: Vec::new() }))
        }
    }

    impl Incoming for Taking {
        fn add(&mut self, bytes: Vec<u8>) -> Result<()> {
            self.bytes.extend(bytes);
            Ok(())
        }
        fn finish(&mut self) -> Result<Tag> {
            let file = (std::mem::take(&mut self.bytes), self.file.clone());
            lock(&self.memory.files).insert(self.file.path.clone(), file);
            Ok(Tag { inode: 7, ctime_ns: 8 })
        }
    }

    impl Drop for Taking {
        fn drop(&mut self) {
            *lock(&self.memory.under_way) -= 1;
        }
    }

    struct Pairs(Arc<Memory>, tempfile::TempDir);

    impl Dial for Pairs {
        fn describe(&self) -> String {
            "memory".into()
        }
        fn dial(&self) -> Result<Box<dyn Carrier>> {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let tree = Arc::new(DirectoryBacking::with_deadline(self.1.path(), None).unwrap());
            let receiver = Shared(Arc::clone(&self.0));
            std::thread::spawn(move || answer_writer(&mut theirs, tree, &receiver));
            Ok(Box::new(ours))
        }
    }

    fn writer() -> (ServedBacking, Arc<Memory>) {
        let memory = Arc::new(Memory::default());
        let long = Duration::from_secs(60);
        let patience = Patience { list: long, call: long, write: long };
        let dial = Pairs(Arc::clone(&memory), tempfile::tempdir().unwrap());
        (ServedBacking::over(Box::new(dial), patience), memory)
    }

    fn file(path: &str, bytes: usize) -> NewFile {
        let path = RelPath::new(path).unwrap();
        NewFile { path, bytes: bytes as u64, modified_ns: -7, checksum: Some(u64::MAX) }
    }

    #[test]
    fn a_file_is_there_only_after_its_end_and_whole() {
        let (writer, memory) = writer();
        for length in [0, 1, READ_BYTES_MAX + 5] {
            let (new, bytes) = (file("a/b", length), vec![7; length]);
            lock(&memory.files).clear();
            let mut sending = writer.begin(&new).unwrap();
            sending.add(&bytes[..length / 2]).unwrap();
            sending.add(&bytes[length / 2..]).unwrap();
            assert_eq!(writer.look(&new.path).unwrap(), There::Nothing);
            let tag = sending.finish().unwrap();
            let seen = looks(length);
            assert!(tag.is_of(&seen) && !tag.is_of(&Validator { ctime_ns: 9, ..seen }));
            let there = There::File { modified_ns: Some(-7), checksum: Some(u64::MAX), seen };
            assert_eq!(writer.look(&new.path).unwrap(), there);
            assert_eq!(lock(&memory.files)[&new.path].0, bytes);
        }
    }

    #[test]
    fn one_that_is_dropped_or_has_other_bytes_than_it_said_leaves_nothing() {
        let (writer, memory) = writer();
        let mut dropped = writer.begin(&file("a", 10)).unwrap();
        dropped.add(&[1; 10]).unwrap();
        drop(dropped);
        let mut long = writer.begin(&file("b", 10)).unwrap();
        assert_eq!(long.add(&[1; 11]).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(long.finish().unwrap_err().kind(), ErrorKind::InvalidArgument, "it has ended");
        let mut short = writer.begin(&file("c", 10)).unwrap();
        short.add(&[1; 9]).unwrap();
        assert_eq!(short.finish().unwrap_err().kind(), ErrorKind::InvalidArgument);
        while *lock(&memory.under_way) > 0 {
            std::thread::yield_now();
        }
        assert!(lock(&memory.files).is_empty());
    }

    #[test]
    fn messages_come_back_and_no_other_bytes_are_taken() {
        let all = [
            There::Nothing,
            There::Folder,
            There::File { modified_ns: None, checksum: None, seen: Validator::default() },
            There::File { modified_ns: Some(i64::MIN), checksum: Some(0), seen: looks(5) },
        ];
        for there in all {
            assert_eq!(There::decode(&there.encode()).unwrap(), there);
        }
        for odd in [[3; 55], [1; 55]] {
            assert!(There::decode(&odd).is_err());
        }
        let new = file("a/b", 9);
        assert_eq!(NewFile::decode(&new.encode()).unwrap(), new);
    }
}
