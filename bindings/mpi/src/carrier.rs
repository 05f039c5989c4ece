//! [`Collectives`] over a duplicate of the user's communicator.
//!
//! Among few ranks, all-to-alls are pairwise exchanges in shifted order. So they do not depend on
//! the libraries' tuning tables (whose default algorithms are up to twice slower), cause no incast,
//! and have 64-bit lengths with MPIs whose counts are `int`. Among many ranks most pairs have
//! nothing to say to each other, and `sparse.rs` sends only what there is.

use crate::abi::{Abi, Handle};
use crate::launcher::check_launcher;
use crate::library::{Mpi, UserOp, running};
use crate::links::slow_by_exchange;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ops::Range;
use zazen_assign::{Blocks, Collectives, check_blocks, dense, sparse, two_bit};
use zazen_core::{Error, ErrorKind, Result};

/// The most bytes of one message. It is well below 2³¹ − 1, because some libraries compute byte
/// offsets in an `int`.
const CHUNK_BYTES: usize = 1 << 30;
/// Tag of our messages. The communicator is our own, so no other messages use it.
pub(crate) const TAG: c_int = 0;
/// Up to this many ranks, every rank learns by one MPI_Alltoall who sends it what, and pairs
/// exchange in order. Beyond that, the lengths alone would be most of the traffic.
const PAIRWISE_RANKS_MAX: usize = 64;
/// Up to this many bytes in all, an all-gather is left to the library, which needs few messages.
const GATHER_BYTES_MAX: u64 = 1 << 20;

/// A communicator of the MPI that this process runs on.
///
/// Holds a duplicate of the user's communicator, which is freed on drop unless MPI is finalised by
/// then. Creating and dropping it are collective. It stays on its thread, because MPI may be
/// initialised for one thread only.
pub struct MpiCollectives {
    pub(crate) mpi: &'static Mpi,
    pub(crate) comm: Handle,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) chunk_bytes: usize,
    /// Up to so many ranks exchange pairwise.
    pairwise_ranks_max: usize,
    /// Sparse exchanges so far.
    pub(crate) exchanges: Cell<u32>,
    _one_thread: PhantomData<*const ()>,
}

impl MpiCollectives {
    /// Collectives over a duplicate of the communicator `handle` (an `MPI_Comm`, zero-extended if
    /// it is an `int`; mpi4py's `comm.handle`). Collective over it.
    ///
    /// Fails with `Mpi` if no MPI is loaded, if MPI is not initialised, or if each rank is a world
    /// of its own; with `InvalidArgument` for a null handle or an intercommunicator.
    ///
    /// # Safety
    /// `handle` is a live communicator of the MPI library that this process has initialised.
    pub unsafe fn from_handle(handle: usize) -> Result<MpiCollectives> {
        if handle == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "the communicator is null; give a live one"));
        }
        let mpi = running()?;
        let handle = if mpi.constants.int_handles { handle & 0xffff_ffff } else { handle };
        let ask = |call: unsafe extern "C" fn(Handle, *mut c_int) -> c_int, name, comm| {
            let mut value: c_int = 0;
            // SAFETY: MPI is up, `comm` is live by the caller's word, and the call writes one int.
            mpi.check(unsafe { call(comm, &mut value) }, name)?;
            Ok::<usize, Error>(usize::try_from(value).unwrap_or(0))
        };
        check_launcher(ask(mpi.calls.comm_size, "MPI_Comm_size", mpi.constants.comm_world)?)?;
        if ask(mpi.calls.comm_test_inter, "MPI_Comm_test_inter", handle)? != 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the communicator is an intercommunicator; merge it first (MPI_Intercomm_merge)",
            ));
        }
        let mut slot = 0u64;
        // SAFETY: as above; the new handle, int or pointer, fits the 8-byte slot.
        mpi.check(unsafe { (mpi.calls.comm_dup)(handle, (&raw mut slot).cast()) }, "MPI_Comm_dup")?;
        let comm = mpi.constants.handle_of(slot);
        let mut carrier = MpiCollectives {
            mpi,
            comm,
            rank: 0,
            size: 0,
            chunk_bytes: CHUNK_BYTES,
            pairwise_ranks_max: PAIRWISE_RANKS_MAX,
            exchanges: Cell::new(0),
            _one_thread: PhantomData,
        };
        // SAFETY: both handles are live; from here on errors come back as codes.
        let code = unsafe { (mpi.calls.comm_set_errhandler)(comm, mpi.constants.errors_return) };
        mpi.check(code, "MPI_Comm_set_errhandler")?;
        carrier.rank = ask(mpi.calls.comm_rank, "MPI_Comm_rank", comm)?;
        carrier.size = ask(mpi.calls.comm_size, "MPI_Comm_size", comm)?;
        Ok(carrier)
    }

    /// Collectives over a duplicate of MPI_COMM_WORLD. Collective over all ranks; fails as
    /// [`MpiCollectives::from_handle`] does.
    pub fn world() -> Result<MpiCollectives> {
        let world = running()?.constants.comm_world;
        // SAFETY: MPI_COMM_WORLD is live while MPI is up, which `running` has checked.
        unsafe { MpiCollectives::from_handle(world) }
    }

    /// With messages of at most `bytes` bytes (at least 8) instead of 2³⁰, so that a test can cut
    /// blocks without long ones. All ranks must use the same value.
    #[doc(hidden)]
    pub fn chunked(mut self, bytes: usize) -> MpiCollectives {
        self.chunk_bytes = bytes.clamp(8, CHUNK_BYTES);
        self
    }

    /// With sparse exchanges whatever the number of ranks, for tests. All ranks must do the same.
    #[doc(hidden)]
    pub fn sparse(mut self) -> MpiCollectives {
        self.pairwise_ranks_max = 0;
        self
    }

    /// The MPI library's file and ABI.
    pub fn library(&self) -> (&str, Abi) {
        (&self.mpi.file, self.mpi.abi)
    }

    fn allreduce(&self, values: &mut [u64], op: Handle) -> Result<()> {
        let constants = &self.mpi.constants;
        for chunk in values.chunks_mut(self.chunk_bytes / 8) {
            // SAFETY: `chunk` is writable for its length in words, which fits an int; the handles
            // are live.
            let code = unsafe {
                (self.mpi.calls.allreduce)(
                    constants.in_place as *const c_void,
                    chunk.as_mut_ptr().cast(),
                    chunk.len() as c_int,
                    constants.uint64,
                    op,
                    self.comm,
                )
            };
            self.mpi.check(code, "MPI_Allreduce")?;
        }
        Ok(())
    }

    /// For each rank, the length of the block that it will send here.
    fn exchange_lengths(&self, outgoing: &[u64]) -> Result<Vec<u64>> {
        let mut incoming = vec![0u64; self.size];
        let uint64 = self.mpi.constants.uint64;
        // SAFETY: both arrays have one word per rank.
        let code = unsafe {
            (self.mpi.calls.alltoall)(
                outgoing.as_ptr().cast(),
                1,
                uint64,
                incoming.as_mut_ptr().cast(),
                1,
                uint64,
                self.comm,
            )
        };
        self.mpi.check(code, "MPI_Alltoall")?;
        Ok(incoming)
    }

    /// Sends `block(j)` to each other rank j; returns what each other rank sent here, and nothing
    /// for this one.
    fn exchange<'a>(&self, block: impl Fn(usize) -> &'a [u8]) -> Result<Vec<Vec<u8>>> {
        let outgoing: Vec<u64> = (0..self.size).map(|to| block(to).len() as u64).collect();
        let incoming = self.exchange_lengths(&outgoing)?;
        let mut received: Vec<Vec<u8>> = (0..self.size).map(|_| Vec::new()).collect();
        for shift in 1..self.size {
            let to = (self.rank + shift) % self.size;
            let from = (self.rank + self.size - shift) % self.size;
            received[from] = room_for(incoming[from], from)?;
            self.send_and_receive(to, block(to), from, &mut received[from])?;
        }
        Ok(received)
    }

    /// The `length` of each rank.
    fn gather_lengths(&self, length: u64) -> Result<Vec<u64>> {
        let mut lengths = vec![0u64; self.size];
        let uint64 = self.mpi.constants.uint64;
        // SAFETY: one word goes out, and there is room for one from each rank.
        let code = unsafe {
            let send = (&raw const length).cast();
            (self.mpi.calls.allgather)(send, 1, uint64, lengths.as_mut_ptr().cast(), 1, uint64, self.comm)
        };
        self.mpi.check(code, "MPI_Allgather")?;
        Ok(lengths)
    }

    /// The bytes of each rank; `lengths` add up to less than an int's range.
    fn gather_short(&self, mine: &[u8], lengths: &[u64]) -> Result<Vec<Vec<u8>>> {
        let counts: Vec<c_int> = lengths.iter().map(|length| *length as c_int).collect();
        let places = counts.iter().scan(0, |end, count| {
            let start = *end;
            *end += count;
            Some(start)
        });
        let places: Vec<c_int> = places.collect();
        let mut room = vec![0u8; lengths.iter().sum::<u64>() as usize];
        let byte = self.mpi.constants.byte;
        // SAFETY: `mine` goes out whole; `room` holds every rank's bytes at its place, and both
        // arrays have one int per rank.
        let code = unsafe {
            (self.mpi.calls.allgatherv)(
                mine.as_ptr().cast(),
                mine.len() as c_int,
                byte,
                room.as_mut_ptr().cast(),
                counts.as_ptr(),
                places.as_ptr(),
                byte,
                self.comm,
            )
        };
        self.mpi.check(code, "MPI_Allgatherv")?;
        let block =
            |(place, count): (&c_int, &c_int)| room[*place as usize..(place + count) as usize].to_vec();
        Ok(places.iter().zip(&counts).map(block).collect())
    }

    fn send_and_receive(&self, to: usize, send: &[u8], from: usize, receive: &mut [u8]) -> Result<()> {
        let constants = &self.mpi.constants;
        for (out, into) in messages(send.len(), receive.len(), self.chunk_bytes) {
            let (out, into) = (&send[out], &mut receive[into]);
            let peer =
                |rank: usize, bytes: usize| if bytes == 0 { constants.proc_null } else { rank as c_int };
            // SAFETY: both buffers are live for their lengths, which fit an int; a side that is
            // done names no peer.
            let code = unsafe {
                (self.mpi.calls.sendrecv)(
                    out.as_ptr().cast(),
                    out.len() as c_int,
                    constants.byte,
                    peer(to, out.len()),
                    TAG,
                    into.as_mut_ptr().cast(),
                    into.len() as c_int,
                    constants.byte,
                    peer(from, into.len()),
                    TAG,
                    self.comm,
                    constants.status_ignore as *mut c_void,
                )
            };
            self.mpi.check(code, "MPI_Sendrecv")?;
        }
        Ok(())
    }

    fn bcast(&self, buffer: *mut c_void, count: usize, datatype: Handle) -> Result<()> {
        // SAFETY: the callers pass a buffer of `count` elements of `datatype`, `count` within an
        // int.
        let code = unsafe { (self.mpi.calls.bcast)(buffer, count as c_int, datatype, 0, self.comm) };
        self.mpi.check(code, "MPI_Bcast")
    }
}

impl Drop for MpiCollectives {
    fn drop(&mut self) {
        if self.mpi.is_up() {
            let mut slot = self.comm as u64;
            // SAFETY: the duplicate is ours and live; on little-endian machines an int handle is
            // the slot's first four bytes. A failure leaks one communicator, which is all that can
            // be done here.
            unsafe { (self.mpi.calls.comm_free)((&raw mut slot).cast()) };
        }
    }
}

/// The ranges to send and to receive, message by message, for blocks of `send` and `receive` bytes
/// in messages of at most `limit` bytes. A side that is done early has empty ranges. The cuts
/// depend only on a block's length, so sender and receiver agree.
fn messages(send: usize, receive: usize, limit: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let piece = move |length: usize, at: usize| {
        let start = length.min(at.saturating_mul(limit));
        start..length.min(start.saturating_add(limit))
    };
    (0..send.max(receive).div_ceil(limit)).map(move |at| (piece(send, at), piece(receive, at)))
}

/// A zeroed buffer for a block that rank `from` announces.
pub(crate) fn room_for(bytes: u64, from: usize) -> Result<Vec<u8>> {
    let too_large = || {
        Error::new(
            ErrorKind::TooLarge,
            format!(
                "rank {from} sends a block of {bytes} bytes, for which this rank has no memory; use more \
                 nodes"
            ),
        )
    };
    let length = usize::try_from(bytes).map_err(|_| too_large())?;
    let mut room = Vec::new();
    room.try_reserve_exact(length).map_err(|_| too_large())?;
    room.resize(length, 0);
    Ok(room)
}

/// The paper's operator as an `MPI_User_function` on MPI_UINT64_T.
unsafe extern "C" fn two_bit_op(
    input: *mut c_void,
    inout: *mut c_void,
    length: *mut c_int,
    _datatype: *mut c_void,
) {
    // SAFETY: MPI passes two buffers of `*length` elements of the reduction's datatype, which is
    // MPI_UINT64_T; a library may pass them unaligned, hence the unaligned reads.
    unsafe {
        let words = usize::try_from(*length).unwrap_or(0);
        let (input, inout) = (input.cast::<u64>(), inout.cast::<u64>());
        for at in 0..words {
            let combined = two_bit(input.add(at).read_unaligned(), inout.add(at).read_unaligned());
            inout.add(at).write_unaligned(combined);
        }
    }
}

impl Collectives for MpiCollectives {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn allreduce_sum(&self, values: &mut [u64]) -> Result<()> {
        self.allreduce(values, self.mpi.constants.sum)
    }

    fn allreduce_xor(&self, values: &mut [u64]) -> Result<()> {
        self.allreduce(values, self.mpi.constants.bxor)
    }

    fn allreduce_or(&self, values: &mut [u64]) -> Result<()> {
        self.allreduce(values, self.mpi.constants.bor)
    }

    fn allreduce_two_bit(&self, values: &mut [u64]) -> Result<()> {
        let mut slot = 0u64;
        let commutes = 1;
        // SAFETY: `two_bit_op` lives as long as the program; the new handle fits the slot.
        let code =
            unsafe { (self.mpi.calls.op_create)(two_bit_op as UserOp, commutes, (&raw mut slot).cast()) };
        self.mpi.check(code, "MPI_Op_create")?;
        let reduced = self.allreduce(values, self.mpi.constants.handle_of(slot));
        // SAFETY: the operator is ours and no reduction with it is under way.
        let freed = unsafe { (self.mpi.calls.op_free)((&raw mut slot).cast()) };
        reduced.and(self.mpi.check(freed, "MPI_Op_free"))
    }

    fn alltoallv(&self, send: Blocks) -> Result<Blocks> {
        check_blocks(&send, self.size)?;
        if self.size > self.pairwise_ranks_max {
            return self.exchange_sparse(send);
        }
        let mut send = dense(send, self.size);
        let mut received = self.exchange(|to| &send[to])?;
        received[self.rank] = std::mem::take(&mut send[self.rank]);
        Ok(sparse(received))
    }

    fn allgatherv(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = self.gather_lengths(mine.len() as u64)?;
        let total = lengths.iter().fold(0, |sum: u64, length| sum.saturating_add(*length));
        if total <= GATHER_BYTES_MAX {
            return self.gather_short(mine, &lengths);
        }
        let mut received = self.exchange(|_| mine)?;
        received[self.rank] = mine.to_vec();
        Ok(received)
    }

    fn broadcast(&self, mine: &[u8]) -> Result<Vec<u8>> {
        let mut length = mine.len() as u64;
        self.bcast((&raw mut length).cast(), 1, self.mpi.constants.uint64)?;
        let mut bytes = if self.rank == 0 { mine.to_vec() } else { room_for(length, 0)? };
        for chunk in bytes.chunks_mut(self.chunk_bytes) {
            self.bcast(chunk.as_mut_ptr().cast(), chunk.len(), self.mpi.constants.byte)?;
        }
        Ok(bytes)
    }

    fn is_slow(&self) -> Result<bool> {
        slow_by_exchange(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_cut_by_its_length_alone_and_arrives_whole() {
        for length in [0usize, 1, 6, 7, 8, 14, 15, 1000, (1 << 33) + 5] {
            let limit = if length > 1 << 32 { CHUNK_BYTES } else { 7 };
            for other in [0usize, 1, 7, 50, length] {
                let sent: Vec<_> = messages(length, other, limit).map(|message| message.0).collect();
                let received: Vec<_> = messages(other, length, limit).map(|message| message.1).collect();
                let alone: Vec<_> = messages(length, 0, limit).map(|message| message.0).collect();
                assert!(sent == received && sent[..alone.len()] == alone, "{length} and {other} by {limit}");
                let mut next = 0;
                for piece in &sent {
                    assert!(piece.start == next && piece.len() <= limit);
                    next = piece.end;
                }
                assert_eq!(next, length);
                assert!(sent[alone.len()..].iter().all(|piece| piece.is_empty()));
            }
        }
        assert!(CHUNK_BYTES <= c_int::MAX as usize);
    }
}
