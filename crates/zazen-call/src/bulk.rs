//! The bulk part of a request as the service reads it, and the bulk part of the reply as it writes
//! it.

use crate::carriers::account::{Account, Charge};
use crate::carriers::shm::core::{CoreLock, lock};
use crate::carriers::stream::{Fault, Stream};
use crate::shared::{SharedBytes, SharedBytesMut};
use crate::spare;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::Arc;
use zazen_core::limits::FRAME_BYTES_MAX;

/// Bytes that are discarded in one receive.
const DISCARD_BYTES: usize = 64 << 10;
/// The largest piece that [`Bulk::chunk`] and [`Output::chunk`] hold in memory of their own.
pub(crate) const CHUNK_BYTES_MAX: usize = 256 << 10;
/// An answer that is kept in the server's memory gets all of its room at once up to this many
/// bytes; a longer one grows.
const ROOM_AT_ONCE_MAX: u64 = 16 << 20;

/// The bulk bytes of a request, exactly as many as were announced. A caller that ends or stalls
/// early is an error, never an early end of file, so a service cannot take half a frame for a whole
/// one.
///
/// There are three ways to take them, which can be mixed; each goes on where the last one ended:
///
/// - as a stream ([`Read`]);
/// - where they lie ([`crate::Call::lend_input`]);
/// - piece by piece, without a copy if the carrier has them in memory ([`Bulk::chunk`]).
pub struct Bulk {
    source: Source,
    left: u64,
    fault: Option<Fault>,
}

enum Source {
    /// All bytes are there.
    Memory(std::io::Cursor<Vec<u8>>),
    Stream {
        stream: Box<Stream>,
        scratch: Vec<u8>,
    },
    Lane {
        core: CoreLock,
        pieces: VecDeque<InputPiece>,
        /// What is left of the streamed piece that came last.
        chunk: SharedBytes<'static>,
    },
}

/// A part of a lane's input, in order.
pub(crate) enum InputPiece {
    /// In memory: the region, or the lane's copy of the message.
    At(SharedBytes<'static>),
    /// This many of the bytes that are streamed.
    Streamed(u64),
}

impl InputPiece {
    /// `start` is valid for reads of `length` bytes until the call's end: the lane has checked it
    /// against its region.
    pub(crate) fn at(start: *const u8, length: usize) -> InputPiece {
        // SAFETY: the caller's promise; the lane keeps the region and the copy, and `Bulk` forgets
        // the piece with the call.
        InputPiece::At(unsafe { SharedBytes::new(start, length) })
    }
}

impl Bulk {
    /// The bulk bytes of what comes on `stream`, none for now.
    pub(crate) fn of_stream(stream: Stream) -> Bulk {
        let source = Source::Stream { stream: Box::new(stream), scratch: Vec::new() };
        Bulk { source, left: 0, fault: None }
    }

    /// Bulk bytes that are there.
    pub(crate) fn in_memory(bytes: Vec<u8>) -> Bulk {
        let left = bytes.len() as u64;
        Bulk { source: Source::Memory(std::io::Cursor::new(bytes)), left, fault: None }
    }

    /// The bulk bytes of what comes on a lane, none for now.
    pub(crate) fn of_lane(core: CoreLock) -> Bulk {
        let source = Source::Lane { core, pieces: VecDeque::new(), chunk: SharedBytes::of(&[]) };
        Bulk { source, left: 0, fault: None }
    }

    /// Begins the next message, which has `bytes` bulk bytes.
    pub(crate) fn begin(&mut self, bytes: u64) {
        (self.left, self.fault) = (bytes, None);
        if let Source::Lane { pieces, chunk, .. } = &mut self.source {
            pieces.clear();
            *chunk = SharedBytes::of(&[]);
        }
    }

    /// Goes on with the rest of a lane's message: `bytes` in all, in `pieces`.
    pub(crate) fn go_on(&mut self, bytes: u64, more: impl IntoIterator<Item = InputPiece>) {
        self.left = bytes;
        if let Source::Lane { pieces, .. } = &mut self.source {
            pieces.clear();
            pieces.extend(more);
        }
    }

    /// The fault that ended the transfer early, if there was one.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// The stream beneath; `None` on a lane.
    pub(crate) fn stream(&mut self) -> Option<&mut Stream> {
        match &mut self.source {
            Source::Stream { stream, .. } => Some(stream),
            Source::Lane { .. } | Source::Memory(_) => None,
        }
    }

    /// Takes the stream beneath out.
    pub(crate) fn into_stream(self) -> Option<Stream> {
        match self.source {
            Source::Stream { stream, .. } => Some(*stream),
            Source::Lane { .. } | Source::Memory(_) => None,
        }
    }

    /// Reads exactly `bytes` into `into`, which grows as they arrive.
    pub(crate) fn read_vec(&mut self, into: &mut Vec<u8>, bytes: usize) -> Result<(), Fault> {
        into.clear();
        while into.len() < bytes {
            let have = into.len();
            let target = bytes.min(have + have.max(CHUNK_BYTES_MAX));
            into.try_reserve_exact(target - have).map_err(|_| Fault::Kernel(rustix::io::Errno::NOMEM))?;
            into.resize(target, 0);
            let mut filled = have;
            while filled < target {
                filled += self.receive(&mut into[filled..target])?;
            }
        }
        Ok(())
    }

    /// The next bytes of a lane's input where they lie, at most `want`; `want` and what is left are
    /// not 0.
    fn next_in_lane(&mut self, want: usize) -> Result<SharedBytes<'static>, Fault> {
        let Source::Lane { core, pieces, chunk } = &mut self.source else {
            return Ok(SharedBytes::of(&[]));
        };
        loop {
            match pieces.front_mut() {
                // The pieces are summed up by this crate: they are as many bytes as the message
                // says, or the message was refused.
                None => return Err(Fault::Broken("its input is shorter than it says")),
                Some(InputPiece::At(bytes)) if bytes.is_empty() => {}
                Some(InputPiece::Streamed(0)) => {}
                Some(InputPiece::At(bytes)) => {
                    let got = bytes.part(0, want);
                    *bytes = bytes.part(got.len(), usize::MAX);
                    return Ok(got);
                }
                Some(InputPiece::Streamed(left)) => {
                    if chunk.is_empty() {
                        let mut core = lock(core);
                        let span = core.next_input()?;
                        let start = core.port.view().pointer(span).cast_const();
                        // SAFETY: the span lies in the region, which the lane keeps mapped longer
                        // than any call lasts; the chunk is forgotten with the call.
                        *chunk = unsafe { SharedBytes::new(start, span.bytes as usize) };
                    }
                    let most = usize::try_from(*left).unwrap_or(usize::MAX).min(want);
                    let got = chunk.part(0, most);
                    *chunk = chunk.part(got.len(), usize::MAX);
                    *left -= got.len() as u64;
                    return Ok(got);
                }
            }
            pieces.pop_front();
        }
    }

    /// Bytes still to come.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// See [`crate::Call::lend_input`].
    pub(crate) fn lend(&mut self, bytes: usize) -> Option<(*const u8, usize)> {
        if bytes == 0 {
            return Some((std::ptr::dangling(), 0));
        }
        match &mut self.source {
            Source::Lane { pieces, .. } if bytes as u64 <= self.left => {
                while matches!(pieces.front(), Some(InputPiece::At(piece)) if piece.is_empty()) {
                    pieces.pop_front();
                }
                match pieces.front_mut() {
                    Some(InputPiece::At(piece)) if piece.len() >= bytes => {
                        let lent = piece.part(0, bytes);
                        *piece = piece.part(bytes, usize::MAX);
                        self.left -= bytes as u64;
                        Some((lent.as_ptr(), bytes))
                    }
                    _ => None,
                }
            }
            Source::Stream { .. } | Source::Lane { .. } | Source::Memory(_) => None,
        }
    }

    /// The next piece, at most `max` bytes and usually fewer; empty only at the end (or if `max` is
    /// 0). The piece stays valid until the next use of this bulk. Write it away, then ask for the
    /// next one: the caller fills more meanwhile.
    pub fn chunk(&mut self, max: usize) -> io::Result<SharedBytes<'_>> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(max);
        if let Some(fault) = self.fault {
            return Err(self.explain(fault));
        }
        if want == 0 {
            return Ok(SharedBytes::of(&[]));
        }
        if let Source::Lane { .. } = &self.source {
            return match self.next_in_lane(want) {
                Ok(got) => {
                    self.left -= got.len() as u64;
                    Ok(got)
                }
                Err(fault) => {
                    self.fault = Some(fault);
                    Err(self.explain(fault))
                }
            };
        }
        if let Source::Memory(_) = &self.source {
            return Ok(self.chunk_in_memory(want));
        }
        let want = want.min(CHUNK_BYTES_MAX);
        let Source::Stream { scratch, .. } = &mut self.source else { return Ok(SharedBytes::of(&[])) };
        let mut bytes = std::mem::take(scratch);
        if bytes.len() < want {
            bytes.resize(want, 0);
        }
        // Fill whole pieces, so that disks see large writes whatever the size of the socket's
        // buffers.
        let mut have = 0;
        let mut failed = None;
        while have < want && failed.is_none() {
            match self.receive(&mut bytes[have..want]) {
                Ok(count) => have += count,
                Err(fault) => failed = Some(fault),
            }
        }
        let Source::Stream { scratch, .. } = &mut self.source else { return Ok(SharedBytes::of(&[])) };
        *scratch = bytes;
        match failed {
            Some(fault) => Err(self.explain(fault)),
            None => {
                let Source::Stream { scratch, .. } = &self.source else { return Ok(SharedBytes::of(&[])) };
                Ok(SharedBytes::of(&scratch[..have]))
            }
        }
    }

    fn chunk_in_memory(&mut self, want: usize) -> SharedBytes<'_> {
        let Source::Memory(bytes) = &mut self.source else { return SharedBytes::of(&[]) };
        let start = bytes.position() as usize;
        bytes.set_position((start + want) as u64);
        self.left -= want as u64;
        SharedBytes::of(&bytes.get_ref()[start..start + want])
    }

    /// [`Read::read_exact`], for callers that have not named the trait.
    pub fn read_exact(&mut self, into: &mut [u8]) -> io::Result<()> {
        Read::read_exact(self, into)
    }

    /// [`Read::read_to_end`], likewise. Memory grows as bytes arrive.
    pub fn read_to_end(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        Read::read_to_end(self, into)
    }

    /// Reads and drops what the service left, so that the connection is at the next message.
    pub(crate) fn discard(&mut self) -> Result<(), Fault> {
        let mut scratch = Vec::new();
        while self.left > 0 {
            scratch.resize(DISCARD_BYTES, 0);
            self.receive(&mut scratch)?;
        }
        if let Source::Stream { scratch, .. } = &mut self.source {
            // An idle connection holds no memory for bulk bytes.
            *scratch = Vec::new();
        }
        self.fault.map_or(Ok(()), Err)
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<usize, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        if want == 0 {
            return Ok(0);
        }
        let got = match &mut self.source {
            Source::Stream { stream, .. } => stream.read_some(&mut into[..want]),
            Source::Memory(bytes) => bytes.read(&mut into[..want]).map_err(|_| Fault::Closed),
            Source::Lane { .. } => self.next_in_lane(want).map(|bytes| {
                bytes.copy_to(&mut into[..bytes.len()]);
                bytes.len()
            }),
        };
        match got {
            Ok(count) => {
                self.left -= count as u64;
                Ok(count)
            }
            Err(fault) => {
                self.fault = Some(fault);
                Err(fault)
            }
        }
    }

    fn explain(&self, fault: Fault) -> io::Error {
        match fault {
            Fault::Closed => io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the caller was gone with {} bulk bytes still to come", self.left),
            ),
            Fault::Stalled => io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the caller stalled with {} bulk bytes still to come", self.left),
            ),
            Fault::Kernel(errno) => errno.into(),
            Fault::Broken(why) => io::Error::other(format!("the caller broke the rules: {why}")),
        }
    }
}

impl Read for Bulk {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.receive(into).map_err(|fault| self.explain(fault))
    }
}

/// Where a service writes the bulk part of its reply while the call runs. The bytes go straight
/// into the caller's buffers if the carrier can do that, else into memory that follows the reply.
/// The bytes of [`crate::Reply::bulk`] come after them.
///
/// Write it as a stream ([`Write`]), fill the caller's memory in place
/// ([`crate::Call::lend_output`]), or fill it piece by piece ([`Output::chunk`],
/// [`Output::commit`]). If the call then fails, the caller learns only of the error, though its
/// buffers may hold some of the bytes.
pub struct Output {
    target: Target,
    room: Option<u64>,
    written: u64,
    fault: Option<Fault>,
    /// Counts the bytes that are kept in the server's memory against the caller.
    charge: Option<Charge>,
}

enum Target {
    /// Written bytes, then room for the piece that is being filled.
    Memory(Vec<u8>),
    /// The caller's buffers, in order. `lends`: the carried bytes stay in one place until the
    /// reply.
    Lane { core: CoreLock, slots: VecDeque<OutputSlot>, lends: bool },
}

/// A part of a lane's output, in order.
pub(crate) enum OutputSlot {
    /// The caller's own buffer in the region: where it begins, as a number, and its length.
    At { start: usize, length: usize },
    /// This many bytes that are carried to the caller.
    Carried(u64),
}

impl OutputSlot {
    /// `start` is valid for writes of `length` bytes until the call's end: the lane has checked it
    /// against its region.
    pub(crate) fn at(start: *mut u8, length: usize) -> OutputSlot {
        OutputSlot::At { start: start.expose_provenance(), length }
    }

    fn is_full(&self) -> bool {
        matches!(self, OutputSlot::At { length: 0, .. } | OutputSlot::Carried(0))
    }
}

impl Output {
    pub(crate) fn in_memory(room: Option<u64>, account: &Arc<Account>) -> Output {
        let charge = Some(Charge::none(account));
        Output { target: Target::Memory(Vec::new()), room, written: 0, fault: None, charge }
    }

    /// Writes to where a lane's calls say.
    pub(crate) fn of_lane(core: CoreLock) -> Output {
        let target = Target::Lane { core, slots: VecDeque::new(), lends: false };
        Output { target, room: None, written: 0, fault: None, charge: None }
    }

    /// Begins a lane's next call, whose caller has `room` in all, in `buffers`. Carried bytes stay
    /// in one place if they fit into `eager_bytes`.
    pub(crate) fn begin(
        &mut self,
        room: Option<u64>,
        buffers: impl IntoIterator<Item = OutputSlot>,
        eager_bytes: u64,
    ) {
        (self.room, self.written, self.fault) = (room, 0, None);
        let Target::Lane { slots, lends, .. } = &mut self.target else { return };
        slots.clear();
        slots.extend(buffers);
        let carried = slots.iter().fold(0u64, |sum, slot| match slot {
            OutputSlot::Carried(bytes) => sum.saturating_add(*bytes),
            OutputSlot::At { .. } => sum,
        });
        *lends = carried <= eager_bytes;
    }

    /// The fault that ended the transfer early, if there was one.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Bulk bytes that the caller has room for in all; `None` if it takes what comes.
    pub fn room(&self) -> Option<u64> {
        self.room
    }

    /// Bytes that may still be written.
    pub fn left(&self) -> u64 {
        self.room.unwrap_or(FRAME_BYTES_MAX).saturating_sub(self.written)
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// See [`crate::Call::lend_output`].
    pub(crate) fn lend(&mut self, bytes: usize) -> Option<(*mut u8, usize)> {
        if bytes == 0 {
            return Some((std::ptr::dangling_mut(), 0));
        }
        let Target::Lane { core, slots, lends } = &mut self.target else { return None };
        while slots.front().is_some_and(OutputSlot::is_full) {
            slots.pop_front();
        }
        let lent = match slots.front_mut()? {
            OutputSlot::At { start, length } if *length >= bytes => {
                let lent = std::ptr::with_exposed_provenance_mut(*start);
                (*start, *length) = (*start + bytes, *length - bytes);
                lent
            }
            OutputSlot::Carried(left) if *lends && *left >= bytes as u64 => {
                let mut core = lock(core);
                let span = core.output_room(bytes as u64, false).ok()?;
                if span.bytes < bytes as u64 {
                    return None;
                }
                core.output_filled(bytes as u64);
                *left -= bytes as u64;
                core.port.view().pointer(span)
            }
            _ => return None,
        };
        self.written += bytes as u64;
        Some((lent, bytes))
    }

    /// Room for the next piece, at most `max` bytes and usually fewer; empty if none is left. Fill
    /// it, then say by [`Output::commit`] how many bytes count.
    pub fn chunk(&mut self, max: usize) -> io::Result<SharedBytesMut<'_>> {
        let want = usize::try_from(self.left()).unwrap_or(usize::MAX).min(max);
        match &mut self.target {
            Target::Lane { core, slots, .. } => {
                while slots.front().is_some_and(OutputSlot::is_full) {
                    slots.pop_front();
                }
                let (start, length) = match slots.front() {
                    _ if want == 0 => return Ok(SharedBytesMut::of(&mut [])),
                    None => return Ok(SharedBytesMut::of(&mut [])),
                    Some(OutputSlot::At { start, length }) => {
                        (std::ptr::with_exposed_provenance_mut(*start), want.min(*length))
                    }
                    Some(OutputSlot::Carried(left)) => {
                        let mut core = lock(core);
                        let span = core.output_room((want as u64).min(*left), false).map_err(|fault| {
                            self.fault = Some(fault);
                            io::Error::new(io::ErrorKind::BrokenPipe, "the caller does not take its answer")
                        })?;
                        (core.port.view().pointer(span), span.bytes as usize)
                    }
                };
                // SAFETY: in the region, which the lane keeps mapped (see `OutputSlot::at`,
                // `Region::pointer`).
                Ok(unsafe { SharedBytesMut::new(start, length) })
            }
            Target::Memory(bytes) => {
                let want = want.min(CHUNK_BYTES_MAX);
                let start = usize::try_from(self.written).unwrap_or(usize::MAX);
                if let Some(charge) = &mut self.charge {
                    let counted = charge.grow_to(self.written.saturating_add(want as u64));
                    counted
                        .map_err(|error| io::Error::new(io::ErrorKind::ResourceBusy, error.to_string()))?;
                }
                let end = start.saturating_add(want);
                if bytes.capacity() < end {
                    let first = self.room.filter(|room| bytes.capacity() == 0 && *room <= ROOM_AT_ONCE_MAX);
                    let at_once = first.map_or(bytes.capacity().saturating_mul(2), |room| room as usize);
                    spare::grow(bytes, end.max(at_once)).ok_or(io::ErrorKind::OutOfMemory)?;
                }
                bytes.resize(start + want, 0);
                Ok(SharedBytesMut::of(&mut bytes[start..]))
            }
        }
    }

    /// The first `bytes` bytes of the last [`Output::chunk`] are written. Panics if it was smaller.
    pub fn commit(&mut self, bytes: usize) -> io::Result<()> {
        match &mut self.target {
            Target::Lane { core, slots, .. } => match slots.front_mut() {
                Some(OutputSlot::At { start, length }) => {
                    assert!(bytes <= *length, "no more is committed than there was room for");
                    (*start, *length) = (*start + bytes, *length - bytes);
                }
                Some(OutputSlot::Carried(left)) => {
                    assert!(bytes as u64 <= *left, "no more is committed than there was room for");
                    *left -= bytes as u64;
                    lock(core).output_filled(bytes as u64);
                }
                None => assert!(bytes == 0, "no more is committed than there was room for"),
            },
            Target::Memory(all) => {
                let end = usize::try_from(self.written).unwrap_or(usize::MAX).saturating_add(bytes);
                assert!(end <= all.len(), "no more is committed than there was room for");
                all.truncate(end);
            }
        }
        self.written += bytes as u64;
        Ok(())
    }

    /// The bytes that were written and travel after the reply, and the charge for them, which is
    /// held until they are sent.
    pub(crate) fn into_memory(self) -> (Vec<u8>, Option<Charge>) {
        let bytes = match self.target {
            Target::Memory(mut bytes) => {
                bytes.truncate(usize::try_from(self.written).unwrap_or(usize::MAX));
                bytes
            }
            Target::Lane { .. } => Vec::new(),
        };
        (bytes, self.charge)
    }
}

impl Write for Output {
    /// Writes 0 bytes where the caller's room ends.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut room = self.chunk(bytes.len())?;
        let count = room.len();
        room.copy_from(&bytes[..count]);
        self.commit(count)?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
