//! `zazen_collectives_t`: the caller's own collectives.

use crate::status::{guard, invalid};
use std::collections::BTreeMap;
use std::ffi::c_void;
use zazen_assign::{Blocks, Collectives, check_blocks, dense, sparse};
use zazen_core::{Error, ErrorKind, Result};

/// The most bytes in all that an all-gather reduces.
const GATHER_BYTES_MAX: u64 = 1 << 20;

/// Collective operations of the caller's ranks. zazen_mpi.h fills it from an MPI_Comm; programs
/// without MPI fill it themselves.
///
/// All functions are called on the thread that called zazen_assign, by all ranks in the same order.
/// They block. Each returns 0, or a code of its own, which the error message repeats. After a
/// failure the ranks are out of step, and the job should end. No function may call back into Zazen.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct zazen_collectives_t {
    /// sizeof(zazen_collectives_t).
    pub struct_size: usize,
    /// Passed to every function.
    pub context: *mut c_void,
    /// This rank, from 0.
    pub rank: u64,
    /// How many ranks there are.
    pub size: u64,
    /// Replaces `words` by their element-wise sums (wrapping) over all ranks; counts are equal.
    pub allreduce_sum: Option<unsafe extern "C" fn(context: *mut c_void, words: *mut u64, count: u64) -> i32>,
    /// Replaces `words` by their bitwise or over all ranks; counts are equal.
    pub allreduce_or: Option<unsafe extern "C" fn(context: *mut c_void, words: *mut u64, count: u64) -> i32>,
    /// Sends word j of `send` to rank j; `receive[j]` is what rank j sent here. One word per rank
    /// each.
    pub alltoall:
        Option<unsafe extern "C" fn(context: *mut c_void, send: *const u64, receive: *mut u64) -> i32>,
    /// Sends `send_bytes[j]` bytes at `send[j]` to rank j and receives `receive_bytes[j]` from it
    /// at `receive[j]`. Both sides know the lengths, which may be 0 (then the pointer may be NULL)
    /// and may exceed 2^31. What a rank sends to itself has length 0.
    pub alltoallv: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            send: *const *const c_void,
            send_bytes: *const u64,
            receive: *const *mut c_void,
            receive_bytes: *const u64,
        ) -> i32,
    >,
    /// Copies rank 0's `bytes` bytes at `buffer` to all ranks.
    pub broadcast: Option<unsafe extern "C" fn(context: *mut c_void, buffer: *mut c_void, bytes: u64) -> i32>,
    /// Replaces `words` by their bitwise exclusive or over all ranks; counts are equal. May be
    /// NULL, on all ranks or on none. If it is NULL, or missing in a table of an older program,
    /// alltoall and alltoallv do its work.
    pub allreduce_xor: Option<unsafe extern "C" fn(context: *mut c_void, words: *mut u64, count: u64) -> i32>,
    /// Sends `send_bytes[i]` bytes at `send[i]` to rank `to[i]`, for each i below `count`. `to`
    /// ascends and does not name this rank; no length is 0. For each block that another rank sends
    /// here, calls `room(sink, from, bytes)` once and writes the block to the memory that it
    /// returns. If that is NULL, there is no room, and the function fails. Ranks that have nothing
    /// to say to each other should cost no message and no memory. May be NULL, on all ranks or on
    /// none. If it is NULL, or missing in a table of an older program, alltoall and alltoallv do
    /// its work, at 8 bytes or more for each rank.
    #[allow(clippy::type_complexity, reason = "the header shows the function as it is written here")]
    pub exchange: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            count: u64,
            to: *const u64,
            send: *const *const c_void,
            send_bytes: *const u64,
            room: Option<unsafe extern "C" fn(sink: *mut c_void, from: u64, bytes: u64) -> *mut c_void>,
            sink: *mut c_void,
        ) -> i32,
    >,
}

// SAFETY: repr(C), size first, zero is NULL throughout, no padding.
unsafe impl crate::structs::Sized0 for zazen_collectives_t {
    const NAME: &'static str = "zazen_collectives_t";
}

/// A checked table.
pub(crate) struct Table(zazen_collectives_t);

impl Table {
    pub(crate) fn new(table: zazen_collectives_t) -> Result<Table> {
        if table.rank >= table.size {
            return Err(invalid(format!(
                "zazen_collectives_t: rank {} of {}; ranks count from 0",
                table.rank, table.size
            )));
        }
        let complete = table.allreduce_sum.is_some()
            && table.allreduce_or.is_some()
            && table.alltoall.is_some()
            && table.alltoallv.is_some()
            && table.broadcast.is_some();
        if !complete {
            return Err(invalid(
                "zazen_collectives_t: a function is NULL; only allreduce_xor and exchange may be left out",
            ));
        }
        Ok(Table(table))
    }

    fn lengths(&self, send: &[u64]) -> Result<Vec<u64>> {
        let mut receive = vec![0u64; send.len()];
        let call = self.0.alltoall.ok_or_else(missing)?;
        // SAFETY: the table's contract; both arrays have one word per rank.
        check(unsafe { call(self.0.context, send.as_ptr(), receive.as_mut_ptr()) }, "alltoall")?;
        Ok(receive)
    }

    /// Sends `block(j)` to each other rank j; returns what each other rank sent, and nothing for
    /// this one.
    fn exchange<'a>(&self, block: impl Fn(usize) -> &'a [u8]) -> Result<Vec<Vec<u8>>> {
        let others = |rank: usize| if rank == self.rank() { &[][..] } else { block(rank) };
        let blocks: Vec<&[u8]> = (0..self.size()).map(others).collect();
        let send_bytes: Vec<u64> = blocks.iter().map(|block| block.len() as u64).collect();
        let receive_bytes = self.lengths(&send_bytes)?;
        let mut received = receive_bytes
            .iter()
            .enumerate()
            .map(|(from, bytes)| room(*bytes, from))
            .collect::<Result<Vec<_>>>()?;
        let send: Vec<*const c_void> = blocks.iter().map(|block| block.as_ptr().cast()).collect();
        let receive: Vec<*mut c_void> = received.iter_mut().map(|room| room.as_mut_ptr().cast()).collect();
        let call = self.0.alltoallv.ok_or_else(missing)?;
        // SAFETY: the table's contract; each pointer is to as many bytes as its length says.
        let code = unsafe {
            call(self.0.context, send.as_ptr(), send_bytes.as_ptr(), receive.as_ptr(), receive_bytes.as_ptr())
        };
        check(code, "alltoallv")?;
        Ok(received)
    }

    /// As [`Table::exchange`], by the table's own function for it.
    fn exchange_sparse(&self, call: Exchange, send: &Blocks) -> Result<Blocks> {
        let others = || send.iter().filter(|(to, _)| *to != self.rank());
        let to: Vec<u64> = others().map(|(to, _)| *to as u64).collect();
        let blocks: Vec<*const c_void> = others().map(|(_, block)| block.as_ptr().cast()).collect();
        let bytes: Vec<u64> = others().map(|(_, block)| block.len() as u64).collect();
        let mut inbox = Inbox { size: self.0.size, blocks: BTreeMap::new(), refused: None };
        let sink = (&raw mut inbox).cast();
        // SAFETY: the table's contract; the arrays have one entry per block, and `sink` is what
        // `room_in_inbox` expects.
        let code = unsafe {
            call(
                self.0.context,
                to.len() as u64,
                to.as_ptr(),
                blocks.as_ptr(),
                bytes.as_ptr(),
                Some(room_in_inbox),
                sink,
            )
        };
        if let Some(error) = inbox.refused {
            return Err(error);
        }
        check(code, "exchange")?;
        Ok(inbox.blocks.into_iter().filter(|(_, block)| !block.is_empty()).collect())
    }

    fn bcast(&self, bytes: &mut [u8]) -> Result<()> {
        let call = self.0.broadcast.ok_or_else(missing)?;
        // SAFETY: the table's contract; the buffer is writable for its length.
        check(unsafe { call(self.0.context, bytes.as_mut_ptr().cast(), bytes.len() as u64) }, "broadcast")
    }
}

type Exchange = unsafe extern "C" fn(
    *mut c_void,
    u64,
    *const u64,
    *const *const c_void,
    *const u64,
    Option<unsafe extern "C" fn(*mut c_void, u64, u64) -> *mut c_void>,
    *mut c_void,
) -> i32;

/// What comes in by the caller's `exchange`.
struct Inbox {
    size: u64,
    blocks: BTreeMap<usize, Vec<u8>>,
    refused: Option<Error>,
}

/// Room for a block of `bytes` bytes from rank `from`; NULL if there is none, or the rank cannot
/// send a block.
unsafe extern "C" fn room_in_inbox(sink: *mut c_void, from: u64, bytes: u64) -> *mut c_void {
    // SAFETY: `sink` is the inbox of the exchange that is under way on this thread.
    let inbox = unsafe { &mut *sink.cast::<Inbox>() };
    if from >= inbox.size || inbox.blocks.contains_key(&(from as usize)) {
        let context = format!(
            "the caller's exchange brings a block from rank {from}, which does not exist or sent one before"
        );
        inbox.refused = Some(Error::new(ErrorKind::Mpi, context));
        return std::ptr::null_mut();
    }
    match room(bytes, from as usize) {
        Ok(room) => inbox.blocks.entry(from as usize).or_insert(room).as_mut_ptr().cast(),
        Err(error) => {
            inbox.refused = Some(error);
            std::ptr::null_mut()
        }
    }
}

fn missing() -> Error {
    invalid("zazen_collectives_t: a function is NULL")
}

fn room(bytes: u64, from: usize) -> Result<Vec<u8>> {
    let too_large =
        || Error::new(ErrorKind::TooLarge, format!("no memory for {bytes} bytes from rank {from}"));
    let length = usize::try_from(bytes).map_err(|_| too_large())?;
    let mut room = Vec::new();
    room.try_reserve_exact(length).map_err(|_| too_large())?;
    room.resize(length, 0);
    Ok(room)
}

/// Checks that MPI's world has the size that the launcher made. `world_size` is the size of
/// MPI_COMM_WORLD. ZAZEN_MPI if the launcher started several ranks and each is a world of one; then
/// each would read every frame. zazen_mpi.h calls this.
#[unsafe(no_mangle)]
pub extern "C" fn zazen_check_launcher(world_size: u64) -> i32 {
    guard(|| zazen_mpi::check_launcher(usize::try_from(world_size).unwrap_or(usize::MAX)))
}

fn check(code: i32, name: &str) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Mpi,
        format!("the caller's {name} returned {code}; end the job, its ranks are out of step"),
    ))
}

impl Collectives for Table {
    fn rank(&self) -> usize {
        self.0.rank as usize
    }
    fn size(&self) -> usize {
        self.0.size as usize
    }
    fn allreduce_sum(&self, values: &mut [u64]) -> Result<()> {
        let call = self.0.allreduce_sum.ok_or_else(missing)?;
        // SAFETY: the table's contract; the words are writable for their count.
        check(unsafe { call(self.0.context, values.as_mut_ptr(), values.len() as u64) }, "allreduce_sum")
    }
    fn allreduce_xor(&self, values: &mut [u64]) -> Result<()> {
        let Some(call) = self.0.allreduce_xor else { return zazen_mpi::xor_by_exchange(self, values) };
        // SAFETY: the table's contract; the words are writable for their count.
        check(unsafe { call(self.0.context, values.as_mut_ptr(), values.len() as u64) }, "allreduce_xor")
    }
    fn allreduce_or(&self, values: &mut [u64]) -> Result<()> {
        let call = self.0.allreduce_or.ok_or_else(missing)?;
        // SAFETY: the table's contract; the words are writable for their count.
        check(unsafe { call(self.0.context, values.as_mut_ptr(), values.len() as u64) }, "allreduce_or")
    }
    fn allreduce_two_bit(&self, values: &mut [u64]) -> Result<()> {
        zazen_mpi::two_bit_by_exchange(self, values)
    }
    fn alltoallv(&self, send: Blocks) -> Result<Blocks> {
        check_blocks(&send, self.size())?;
        if let Some(call) = self.0.exchange {
            let mut received = self.exchange_sparse(call, &send)?;
            let own = send.into_iter().find(|(to, _)| *to == self.rank());
            if let Some(own) = own {
                let at = received.partition_point(|(from, _)| *from < own.0);
                received.insert(at, own);
            }
            check_blocks(&received, self.size())?;
            return Ok(received);
        }
        let mut send = dense(send, self.size());
        let mut received = self.exchange(|to| &send[to])?;
        received[self.rank()] = std::mem::take(&mut send[self.rank()]);
        Ok(sparse(received))
    }
    fn allgatherv(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        // The table has no all-gather. Short blocks are laid side by side in one bitwise or, which
        // takes a few messages; an all-to-all would take one for each rank.
        let mut lengths = vec![0; self.size()];
        lengths[self.rank()] = mine.len() as u64;
        self.allreduce_or(&mut lengths)?;
        let words = |length: &u64| length.div_ceil(8) as usize;
        let total = lengths.iter().fold(0, |sum: u64, length| sum.saturating_add(*length));
        if total > GATHER_BYTES_MAX {
            let mut received = self.exchange(|_| mine)?;
            received[self.rank()] = mine.to_vec();
            return Ok(received);
        }
        let mut side_by_side = vec![0u64; lengths.iter().map(words).sum()];
        let start: usize = lengths[..self.rank()].iter().map(words).sum();
        for (at, byte) in mine.iter().enumerate() {
            side_by_side[start + at / 8] |= u64::from(*byte) << (at % 8 * 8);
        }
        self.allreduce_or(&mut side_by_side)?;
        let mut rest = side_by_side.as_slice();
        let block = |length: &u64| {
            let (words, after) = rest.split_at(words(length));
            rest = after;
            let byte = |at: usize| (words[at / 8] >> (at % 8 * 8)) as u8;
            (0..*length as usize).map(byte).collect()
        };
        Ok(lengths.iter().map(block).collect())
    }
    fn broadcast(&self, mine: &[u8]) -> Result<Vec<u8>> {
        let mut length = (mine.len() as u64).to_le_bytes();
        self.bcast(&mut length)?;
        let mut bytes = if self.rank() == 0 { mine.to_vec() } else { room(u64::from_le_bytes(length), 0)? };
        self.bcast(&mut bytes)?;
        Ok(bytes)
    }
    fn is_slow(&self) -> Result<bool> {
        zazen_mpi::slow_by_exchange(self)
    }
}
