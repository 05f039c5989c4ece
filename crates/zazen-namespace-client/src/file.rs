//! An open file.
//!
//! Reads of a file that this node holds are the kernel's own: the daemon gives a descriptor. So are
//! writes, if this program may vouch (a mount). All else goes through the daemon, to the holder.

use crate::link::{Namespace, Repeat, errno_of};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use zazen_env::fork::Mine;
use zazen_namespace::service::{CHUNK_BYTES_MAX, Done, HandleCall, namespace_fn};
use zazen_namespace::{Attributes, Errno};
use zazen_wire::{Message, service};

type Result<T> = std::result::Result<T, Errno>;

/// The flag of a WRITE that goes to the file's end.
const APPENDS: u32 = 1;

/// An open file. Any thread may use it. It is closed when it is dropped; only [`File::close`] tells
/// whether that worked. In a forked child, and once the daemon was restarted, calls to the daemon
/// answer `ESTALE`.
#[derive(Debug)]
pub struct File {
    namespace: Namespace,
    handle: u64,
    attributes: Attributes,
    created: bool,
    /// The bytes on this node, for reading; `None` inside if they are elsewhere.
    here: OnceLock<Option<std::fs::File>>,
    /// Whether anything may have been written by it.
    wrote: AtomicBool,
    closed: bool,
    /// A forked child has its parent's descriptor, and not its parent's handle.
    mine: Mine,
}

impl File {
    pub(crate) fn new(namespace: Namespace, handle: u64, attributes: Attributes, created: bool) -> File {
        File {
            namespace,
            handle,
            attributes,
            created,
            here: OnceLock::new(),
            wrote: AtomicBool::new(false),
            closed: false,
            mine: Mine::default(),
        }
    }

    /// The attributes when it was opened.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Whether the open made the file.
    pub fn created(&self) -> bool {
        self.created
    }

    /// The descriptor of the bytes if this node holds them, for a mount to hand to the kernel: for
    /// reading, and for writing if the file was opened so. `None` if another node holds them.
    pub fn descriptor(&self) -> Result<Option<OwnedFd>> {
        // From now on nobody sees what is written.
        self.writes();
        self.local_descriptor()
    }

    fn local_descriptor(&self) -> Result<Option<OwnedFd>> {
        let call = self.handle_call(0, 0, 0).encode();
        let reply = self.namespace.call(namespace_fn::DESCRIPTOR, &call, Repeat::Yes);
        let mut reply = reply.map_err(|error| errno_of(&error))?;
        match self.done(&reply.payload) {
            Ok(_) => reply.fds.pop().map(Some).ok_or(Errno::EIO),
            Err(Errno::EXDEV | Errno::EPERM) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn here(&self) -> Option<&std::fs::File> {
        let ask = || self.local_descriptor().ok().flatten().map(std::fs::File::from);
        self.here.get_or_init(ask).as_ref()
    }

    /// Reads at `offset`: fewer bytes than there is room for only where the file ends.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let mut got = 0;
        while got < into.len() {
            let end = into.len().min(got + CHUNK_BYTES_MAX);
            let count = self.read_chunk(&mut into[got..end], offset + got as u64)?;
            got += count;
            if count == 0 {
                break;
            }
        }
        Ok(got)
    }

    fn read_chunk(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        if let Some(file) = self.here() {
            return file.read_at(into, offset).map_err(|error| errno(&error));
        }
        let call = self.handle_call(offset, into.len() as u64, 0).encode();
        let exchanged = self.namespace.with(Repeat::Yes, |connection| {
            let mut output = [IoSliceMut::new(into)];
            connection.exchange(service::NAMESPACE, namespace_fn::READ, &call, &[], &mut output)
        });
        let count = self.done(&exchanged.map_err(|error| errno_of(&error))?.payload)?;
        usize::try_from(count).ok().filter(|count| *count <= into.len()).ok_or(Errno::EIO)
    }

    /// Writes at `offset`: all bytes, or as many as were written before an error; an error only if
    /// none were.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.writes();
        let mut put = 0;
        while put < bytes.len() {
            let chunk = &bytes[put..bytes.len().min(put + CHUNK_BYTES_MAX)];
            let mut call = self.handle_call(offset + put as u64, chunk.len() as u64, 0);
            // The same bytes at the same place: a second write changes nothing.
            let exchanged = self.namespace.with(Repeat::Yes, |connection| {
                let (payload, input) = (next_try(&mut call), [IoSlice::new(chunk)]);
                connection.exchange(service::NAMESPACE, namespace_fn::WRITE, &payload, &input, &mut [])
            });
            let done = exchanged.map_err(|error| errno_of(&error)).and_then(|done| self.done(&done.payload));
            match done {
                Ok(count) if count > 0 && count <= chunk.len() as u64 => put += count as usize,
                Ok(_) if put > 0 => return Ok(put),
                Ok(_) => return Err(Errno::EIO),
                Err(_) if put > 0 => return Ok(put),
                Err(errno) => return Err(errno),
            }
        }
        Ok(put)
    }

    /// Writes at the file's end, wherever that is when the bytes arrive at their holder. As many
    /// bytes as were written.
    pub fn append(&self, bytes: &[u8]) -> Result<usize> {
        self.writes();
        let chunk = &bytes[..bytes.len().min(CHUNK_BYTES_MAX)];
        let call = self.handle_call(0, chunk.len() as u64, APPENDS).encode();
        let exchanged = self.namespace.with(Repeat::No, |connection| {
            let input = [IoSlice::new(chunk)];
            connection.exchange(service::NAMESPACE, namespace_fn::WRITE, &call, &input, &mut [])
        });
        let count = self.done(&exchanged.map_err(|error| errno_of(&error))?.payload)?;
        usize::try_from(count).ok().filter(|count| *count <= chunk.len()).ok_or(Errno::EIO)
    }

    /// Writes all bytes at `offset`.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let mut put = 0;
        while put < bytes.len() {
            put += self.write_at(&bytes[put..], offset + put as u64)?;
        }
        Ok(())
    }

    /// Cuts or extends the file to `bytes`.
    pub fn set_length(&self, bytes: u64) -> Result<()> {
        self.writes();
        self.simple(namespace_fn::TRUNCATE, self.handle_call(bytes, 0, 0), Repeat::Yes).map(drop)
    }

    /// `fallocate(2)` with its flags.
    pub fn allocate(&self, flags: u32, offset: u64, bytes: u64) -> Result<()> {
        self.writes();
        self.simple(namespace_fn::ALLOCATE, self.handle_call(offset, bytes, flags), Repeat::No).map(drop)
    }

    /// Where data begins at or behind `offset`; `ENXIO` if there is none.
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        self.simple(namespace_fn::SEEK, self.handle_call(offset, 0, 0), Repeat::Yes)
    }

    /// Where a hole, or the end, is at or behind `offset`.
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.simple(namespace_fn::SEEK, self.handle_call(offset, 0, 1), Repeat::Yes)
    }

    /// Syncs the bytes to the holder's disk, and their length and times to the metadata.
    pub fn sync(&self) -> Result<()> {
        self.simple(namespace_fn::SYNC, self.handle_call(0, 0, 0), Repeat::Yes).map(drop)
    }

    /// The same. Of a file in chunks it syncs all, and not only those that were written through
    /// this open file.
    pub fn sync_every(&self) -> Result<()> {
        self.simple(namespace_fn::SYNC, self.handle_call(0, 0, 4), Repeat::Yes).map(drop)
    }

    /// Tells the metadata the file's length and times, as a close does, without a sync.
    pub fn flush(&self) -> Result<()> {
        self.simple(namespace_fn::SYNC, self.handle_call(0, 0, 1), Repeat::Yes).map(drop)
    }

    /// Closes the file; what was written is known to all when it returns.
    ///
    /// `ESTALE` if the daemon was restarted since the open, and something was written. The bytes
    /// are as safe as any, but their length may be untold until the file is opened again.
    pub fn close(mut self) -> Result<()> {
        self.end(Repeat::Yes)
    }

    fn end(&mut self, repeat: Repeat) -> Result<()> {
        if std::mem::replace(&mut self.closed, true) || !self.mine.is_mine() {
            return Ok(());
        }
        let wrote = self.wrote.load(Ordering::Relaxed);
        let repeat = if wrote { repeat } else { Repeat::No };
        match self.simple(namespace_fn::CLOSE, self.handle_call(0, 0, 0), repeat) {
            // There is nothing to tell. What the daemon had open ended with it.
            Err(_) if !wrote => Ok(()),
            closed => closed.map(drop),
        }
    }

    /// Something may be written by it from now on.
    fn writes(&self) {
        self.wrote.store(true, Ordering::Relaxed);
    }

    fn handle_call(&self, offset: u64, bytes: u64, flags: u32) -> HandleCall {
        let call = self.namespace.fresh_call();
        HandleCall { handle: self.handle, offset, bytes, flags, call, again: 0 }
    }

    fn simple(&self, function: u16, mut call: HandleCall, repeat: Repeat) -> Result<u64> {
        let reply = self.namespace.with(repeat, |connection| {
            connection.call(service::NAMESPACE, function, &next_try(&mut call), &[])
        });
        self.done(&reply.map_err(|error| errno_of(&error))?.payload)
    }

    /// A handle that the daemon does not know is one of its earlier life.
    fn done(&self, payload: &[u8]) -> Result<u64> {
        let done = Done::decode(payload).map_err(|error| errno_of(&error))?;
        match done.result() {
            Err(Errno::EBADF) => Err(Errno::ESTALE),
            result => result,
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Err(errno) = self.end(Repeat::No) {
            tracing::debug!("close of inode {}: {errno}", self.attributes.id);
        }
    }
}

/// The call as it is sent now; the next time it says that it comes again.
fn next_try(call: &mut HandleCall) -> Vec<u8> {
    let payload = call.encode();
    call.again += 1;
    payload
}

fn errno(error: &std::io::Error) -> Errno {
    let number = error.raw_os_error().and_then(|number| u16::try_from(number).ok());
    number.map_or(Errno::EIO, Errno::of)
}
