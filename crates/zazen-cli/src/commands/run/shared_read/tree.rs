//! What the daemon says of the shared folders to one identity: names, attributes, listings and
//! bytes, each fetched once.
//!
//! Invariant: bytes of different versions of a file are never put together. Each fetch looks
//! whether the file is still the one that was opened first; if not, the call fails with ESTALE.

use super::kept::Kept;
use super::request::{self, Asked, FarOpened, FarStat, function as f};
use std::io::IoSliceMut;
use std::sync::{Arc, Mutex, PoisonError};
use zazen_call::Connection;
use zazen_core::{Error, ErrorKind, Result};
use zazen_forward_api::structures::{HELLO_NEW, Hello};
use zazen_wire::plugins::plugins_fn;
use zazen_wire::service;

/// Bytes of files that are kept, at most.
const DATA_BYTES_MAX: usize = 512 << 20;
/// The same for answers about names, for opened files, and for listings.
const NAMES_BYTES_MAX: usize = 64 << 20;
/// Files are fetched in pieces of so many bytes.
pub(super) const BLOCK_BYTES: u64 = 4 << 20;
/// Bytes of one piece of a listing.
const ENTRIES_BYTES: u64 = 1 << 20;
/// What is asked of a file, whatever a program wants to know: the basic attributes, the time of its
/// birth and its mount.
pub(super) const STAT_MASK: u32 = 0x1fff;

pub(super) type Path = Arc<[u8]>;

/// What became of a call of the far side's: its result or errno.
pub(super) type Outcome<T> = std::result::Result<T, i32>;

/// A regular file or a directory, as it was opened.
pub(super) struct File {
    pub(super) path: Path,
    pub(super) flags: i32,
    pub(super) opened: FarOpened,
    pub(super) stat: FarStat,
}

impl File {
    pub(super) fn is_regular(&self) -> bool {
        self.opened.mode & libc::S_IFMT == libc::S_IFREG && self.flags & libc::O_PATH == 0
    }

    pub(super) fn is_listed(&self) -> bool {
        self.opened.mode & libc::S_IFMT == libc::S_IFDIR && self.flags & libc::O_PATH == 0
    }
}

/// What an open leads to.
#[derive(Clone)]
pub(super) enum Found {
    File(Arc<File>),
    Errno(i32),
    /// To what cannot be shared: the caller opens it by itself.
    Unshared,
}

type Block = (u64, Vec<u8>, u64);

pub(super) struct Tree {
    far: Far,
    /// By the question.
    answers: Kept<Vec<u8>, Arc<Vec<u8>>>,
    files: Kept<(Path, i32), Found>,
    listings: Kept<Path, Arc<Vec<u8>>>,
    /// By device, version and number.
    blocks: Kept<Block, Arc<Vec<u8>>>,
}

/// Whether a failure says something of the name, and not of the moment.
fn is_lasting(errno: i32) -> bool {
    matches!(
        errno,
        libc::ENOENT
            | libc::ENOTDIR
            | libc::EACCES
            | libc::EPERM
            | libc::ELOOP
            | libc::ENAMETOOLONG
            | libc::ENODATA
            | libc::EOPNOTSUPP
            | libc::EINVAL
            | libc::ERANGE
            | libc::EISDIR
            | libc::EROFS
    )
}

impl Tree {
    pub(super) fn new(connect: impl Fn() -> Result<Connection> + Send + Sync + 'static) -> Tree {
        Tree {
            far: Far { connect: Box::new(connect), idle: Mutex::default() },
            answers: Kept::new(NAMES_BYTES_MAX, |key, answer| key.len() * 2 + answer.len() + 200),
            files: Kept::new(NAMES_BYTES_MAX, |(path, _), _| path.len() * 2 + 500),
            listings: Kept::new(NAMES_BYTES_MAX, |path, entries| path.len() * 2 + entries.len() + 200),
            blocks: Kept::new(DATA_BYTES_MAX, |(_, version, _), bytes| version.len() + bytes.len() + 200),
        }
    }

    /// The answer's payload to a question about an absolute path.
    pub(super) fn look(&self, asked: &Asked) -> Result<Arc<Vec<u8>>> {
        let function = asked.function();
        let mut key = function.to_le_bytes().to_vec();
        key.extend_from_slice(&asked.head.reply_bytes_max.to_le_bytes());
        key.extend_from_slice(asked.message());
        self.answers.get(&key, || {
            let payload = self.far.with(|connection| Ok(ask(connection, asked, 0)?.0))?;
            let outcome = request::answered(&payload).and_then(|found| request::outcome(function, found));
            let keep = match outcome {
                Some(Ok(_)) => true,
                Some(Err(errno)) => is_lasting(errno),
                None => false,
            };
            Ok((Arc::new(payload), keep))
        })
    }

    pub(super) fn stat(&self, path: &[u8], nofollow: bool) -> Result<Outcome<FarStat>> {
        let flags = if nofollow { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
        let asked = Asked::new(f::STAT, &request::with_path(path, &[flags as u32, STAT_MASK]), None);
        stat_in(&self.look(&asked)?)
    }

    /// Opens for reading, with O_PATH, O_DIRECTORY and O_NOFOLLOW as `flags` says.
    pub(super) fn open(&self, path: &Path, flags: i32) -> Result<Found> {
        let key = (path.clone(), flags);
        self.files.get(&key, || {
            let found = self.fetch_file(path, flags)?;
            let keep = match &found {
                Found::File(_) => true,
                Found::Errno(errno) => is_lasting(*errno),
                Found::Unshared => false,
            };
            Ok((found, keep))
        })
    }

    fn fetch_file(&self, path: &Path, flags: i32) -> Result<Found> {
        // Opening a FIFO or a device would have an effect.
        let kind = match self.stat(path, flags & libc::O_NOFOLLOW != 0)? {
            Ok(stat) => stat.mode() & libc::S_IFMT,
            Err(errno) => return Ok(Found::Errno(errno)),
        };
        if !matches!(kind, libc::S_IFREG | libc::S_IFDIR) {
            return Ok(Found::Unshared);
        }
        self.far.with(|connection| {
            let opened = match far_open(connection, path, flags)? {
                Ok(opened) => opened,
                Err(libc::EINPROGRESS) => return Ok(Found::Unshared),
                Err(errno) => return Ok(Found::Errno(errno)),
            };
            let stat = match far_stat(connection, opened.id)? {
                Ok(stat) => stat,
                Err(errno) => return Ok(Found::Errno(errno)),
            };
            let file = File { path: path.clone(), flags, opened, stat };
            if file.is_regular() {
                let size = file.stat.size();
                // A byte more: what has no size in advance, as files of /proc, cannot be shared.
                let data = match far_read(connection, opened.id, 0, size.saturating_add(1).min(BLOCK_BYTES))?
                {
                    Ok(data) => data,
                    Err(errno) => return Ok(Found::Errno(errno)),
                };
                if data.len() as u64 != size.min(BLOCK_BYTES) {
                    far_close(connection, opened.id)?;
                    return Ok(Found::Unshared);
                }
                self.blocks.put(block_key(&file, 0), Arc::new(data));
            }
            far_close(connection, opened.id)?;
            Ok(Found::File(Arc::new(file)))
        })
    }

    /// The block with this number of a regular file.
    pub(super) fn block(&self, file: &File, number: u64) -> Result<Outcome<Arc<Vec<u8>>>> {
        let fetched = self.blocks.get(&block_key(file, number), || {
            let begin = number * BLOCK_BYTES;
            let bytes = file.stat.size().saturating_sub(begin).min(BLOCK_BYTES);
            let data = self.far.with(|connection| {
                self.opened_again(connection, file, |connection, id| far_read(connection, id, begin, bytes))
            });
            match data {
                Ok(Ok(data)) if data.len() as u64 == bytes => Ok((Arc::new(data), true)),
                Ok(Ok(_)) => Err(Ok(libc::ESTALE)),
                Ok(Err(errno)) => Err(Ok(errno)),
                Err(error) => Err(Err(error)),
            }
        });
        or_error(fetched)
    }

    /// All entries of a directory, in Linux's form.
    pub(super) fn entries(&self, file: &File) -> Result<Outcome<Arc<Vec<u8>>>> {
        let fetched = self.listings.get(&file.path, || {
            let entries = self.far.with(|connection| {
                self.opened_again(connection, file, |connection, id| {
                    let mut all = Vec::new();
                    loop {
                        match far_entries(connection, id)? {
                            Ok(more) if more.is_empty() => return Ok(Ok(all)),
                            Ok(more) => all.extend_from_slice(&more),
                            Err(errno) => return Ok(Err(errno)),
                        }
                    }
                })
            });
            match entries {
                Ok(Ok(entries)) => Ok((Arc::new(entries), true)),
                Ok(Err(errno)) => Err(Ok(errno)),
                Err(error) => Err(Err(error)),
            }
        });
        or_error(fetched)
    }

    /// Does `body` with the same version of a file, opened once more.
    fn opened_again<T>(
        &self,
        connection: &mut Connection,
        file: &File,
        body: impl FnOnce(&mut Connection, u32) -> Result<Outcome<T>>,
    ) -> Result<Outcome<T>> {
        let id = match far_open(connection, &file.path, file.flags)? {
            Ok(opened) => opened.id,
            Err(errno) => return Ok(Err(if errno == libc::ENOENT { libc::ESTALE } else { errno })),
        };
        let outcome = match far_stat(connection, id)? {
            Ok(now) if now.version() == file.stat.version() => body(connection, id),
            Ok(_) => Ok(Err(libc::ESTALE)),
            Err(errno) => Ok(Err(errno)),
        }?;
        far_close(connection, id)?;
        Ok(outcome)
    }
}

fn block_key(file: &File, number: u64) -> Block {
    (file.opened.dev, file.stat.version(), number)
}

fn or_error<T>(fetched: std::result::Result<T, std::result::Result<i32, Error>>) -> Result<Outcome<T>> {
    match fetched {
        Ok(found) => Ok(Ok(found)),
        Err(Ok(errno)) => Ok(Err(errno)),
        Err(Err(error)) => Err(error),
    }
}

/// Connections of our own to the daemon, each with a session, for one fetch at a time.
struct Far {
    connect: Box<dyn Fn() -> Result<Connection> + Send + Sync>,
    idle: Mutex<Vec<Connection>>,
}

impl Far {
    fn with<T>(&self, mut body: impl FnMut(&mut Connection) -> Result<T>) -> Result<T> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        while let Some(mut connection) = idle() {
            // The daemon may have been started again since.
            if let Ok(found) = body(&mut connection) {
                self.put_back(connection);
                return Ok(found);
            }
        }
        let mut connection = (self.connect)()?;
        let found = body(&mut connection)?;
        self.put_back(connection);
        Ok(found)
    }

    fn put_back(&self, connection: Connection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }
}

/// Makes a call; its answer's payload, and the bytes of its output.
fn ask(connection: &mut Connection, asked: &Asked, room: u64) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut data = vec![0; usize::try_from(room).unwrap_or(0)];
    let output = &mut [IoSliceMut::new(&mut data)];
    let answer = connection.exchange(service::PLUGINS, plugins_fn::CALL, &asked.payload, &[], output)?;
    let bytes = request::given(&answer.payload).unwrap_or(0).min(answer.bulk_bytes);
    data.truncate(usize::try_from(bytes).unwrap_or(0));
    Ok((answer.payload, data))
}

fn refused() -> Error {
    Error::new(ErrorKind::Unavailable, "the posix plug-in did not carry out a call of --shared-read")
}

/// The same for a call whose answer is needed: its message, or errno.
fn carry_out(connection: &mut Connection, asked: &Asked, room: u64) -> Result<Outcome<(Vec<u8>, Vec<u8>)>> {
    let (payload, data) = ask(connection, asked, room)?;
    let message = request::answered(&payload).ok_or_else(refused)?;
    match request::outcome(asked.function(), message).ok_or_else(refused)? {
        Ok(_) => Ok(Ok((message.to_vec(), data))),
        Err(errno) => Ok(Err(errno)),
    }
}

/// Begins a session of our own.
pub(super) fn greet(connection: &mut Connection) -> Result<()> {
    let hello = Hello {
        key: zazen_env::random_u128()? as u64,
        token: 0,
        kind: HELLO_NEW,
        pid: std::process::id(),
        umask: 0o22,
        keep_all: 0,
    };
    let mut message = vec![0; 24];
    message[..8].copy_from_slice(&56_u64.to_le_bytes());
    for number in [hello.key, hello.token] {
        message.extend_from_slice(&number.to_le_bytes());
    }
    for number in [hello.kind, hello.pid, hello.umask, hello.keep_all] {
        message.extend_from_slice(&number.to_le_bytes());
    }
    let said = carry_out(connection, &Asked::new(f::HELLO, &message, None), 0)?;
    said.map(|_| ()).map_err(|_| refused())
}

fn far_open(connection: &mut Connection, path: &[u8], flags: i32) -> Result<Outcome<FarOpened>> {
    let asked = Asked::new(f::OPEN, &request::with_path(path, &[flags as u32, 0, 0]), None);
    match carry_out(connection, &asked, 0)? {
        Ok((message, _)) => FarOpened::of(&message, 8).map(Ok).ok_or_else(refused),
        Err(errno) => Ok(Err(errno)),
    }
}

/// The message of a look at a description.
pub(super) fn stat_of(id: u32) -> Vec<u8> {
    let mut message = request::with_path(b"", &[libc::AT_EMPTY_PATH as u32, STAT_MASK]);
    message[..4].copy_from_slice(&id.to_le_bytes());
    message
}

fn far_stat(connection: &mut Connection, id: u32) -> Result<Outcome<FarStat>> {
    match carry_out(connection, &Asked::new(f::STAT, &stat_of(id), None), 0)? {
        Ok((message, _)) => FarStat::of(&message).map(Ok).ok_or_else(refused),
        Err(errno) => Ok(Err(errno)),
    }
}

/// What an answer of `px_stat` says.
pub(super) fn stat_in(payload: &[u8]) -> Result<Outcome<FarStat>> {
    let message = request::answered(payload).ok_or_else(refused)?;
    match request::outcome(f::STAT, message).ok_or_else(refused)? {
        Ok(_) => FarStat::of(message).map(Ok).ok_or_else(refused),
        Err(errno) => Ok(Err(errno)),
    }
}

fn far_read(connection: &mut Connection, id: u32, begin: u64, bytes: u64) -> Result<Outcome<Vec<u8>>> {
    let mut all = Vec::new();
    while (all.len() as u64) < bytes {
        let want = bytes - all.len() as u64;
        let mut message = vec![0; 32];
        message[..4].copy_from_slice(&id.to_le_bytes());
        message[8..16].copy_from_slice(&(begin + all.len() as u64).to_le_bytes());
        message[24..].copy_from_slice(&want.to_le_bytes());
        match carry_out(connection, &Asked::new(f::READ, &message, Some(want)), want)? {
            Ok((_, data)) if data.is_empty() => break,
            Ok((_, data)) => {
                let is_last = (data.len() as u64) < want;
                if all.is_empty() {
                    all = data;
                } else {
                    all.extend_from_slice(&data);
                }
                if is_last {
                    break;
                }
            }
            Err(errno) => return Ok(Err(errno)),
        }
    }
    Ok(Ok(all))
}

fn far_entries(connection: &mut Connection, id: u32) -> Result<Outcome<Vec<u8>>> {
    let mut message = vec![0; 16];
    message[..4].copy_from_slice(&id.to_le_bytes());
    message[8..].copy_from_slice(&ENTRIES_BYTES.to_le_bytes());
    let asked = Asked::new(f::ENTRIES, &message, Some(ENTRIES_BYTES));
    Ok(carry_out(connection, &asked, ENTRIES_BYTES)?.map(|(_, data)| data))
}

fn far_close(connection: &mut Connection, id: u32) -> Result<()> {
    let mut message = id.to_le_bytes().to_vec();
    message.extend_from_slice(&1_u32.to_le_bytes());
    carry_out(connection, &Asked::new(f::CLOSE, &message, None), 0).map(|_| ())
}
