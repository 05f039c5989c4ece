//! All-to-alls among many ranks of which each has little to say: no rank holds a list of all ranks,
//! and no message goes where there is nothing to say.
//!
//! This is the nonblocking consensus of Hoefler, Siebert and Lumsdaine (PPoPP 2010, "NBX"). A rank
//! sends its blocks by synchronous sends, which end when their receiver has begun to take them.
//! Meanwhile it takes what comes. Once all its sends have ended it enters a nonblocking barrier,
//! and goes on taking until the barrier ends: then every block of every rank has been taken.
//!
//! A rank may leave the barrier and begin its next exchange while others still take. It cannot be
//! two exchanges ahead. So two tags in turn keep exchanges apart.

use crate::carrier::{MpiCollectives, TAG, room_for};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use zazen_assign::Blocks;
use zazen_core::{Error, ErrorKind, Result};

/// The most sends under way at a time. More would flood a receiver that many send to.
const SENDS_MAX: usize = 32;

/// A piece of a block that is being sent, and its request, which MPI writes into the slot.
struct Sending {
    request: u64,
    _block: std::rc::Rc<Vec<u8>>,
}

/// What one sparse exchange has under way.
struct Exchange<'a> {
    carrier: &'a MpiCollectives,
    tag: c_int,
    sendings: Vec<Sending>,
    /// By sender: its block so far, and whether that is all of it.
    received: BTreeMap<usize, (Vec<u8>, bool)>,
}

impl MpiCollectives {
    /// [`zazen_assign::Collectives::alltoallv`] with a message per block.
    ///
    /// A block goes in pieces of `chunk_bytes`; a shorter piece, which may be empty, is its last.
    pub(crate) fn exchange_sparse(&self, send: Blocks) -> Result<Blocks> {
        let number = self.exchanges.get();
        self.exchanges.set(number.wrapping_add(1));
        let tag = TAG + 1 + (number % 2) as c_int;
        let mut exchange = Exchange { carrier: self, tag, sendings: Vec::new(), received: BTreeMap::new() };
        let result = exchange.run(send);
        if result.is_err() {
            // MPI may still read from what it was given to send, whatever the error was.
            std::mem::forget(std::mem::take(&mut exchange.sendings));
        }
        result.map(|()| exchange.received.into_iter().map(|(from, (block, _))| (from, block)).collect())
    }
}

impl Exchange<'_> {
    fn run(&mut self, mut send: Blocks) -> Result<()> {
        let carrier = self.carrier;
        // Begin with the next rank, so that not all ranks send to the lowest ones first.
        let high = send.split_off(send.partition_point(|(to, _)| *to <= carrier.rank));
        let mut pieces = Vec::new();
        for (to, block) in high.into_iter().chain(send) {
            if to == carrier.rank {
                self.received.insert(to, (block, true));
                continue;
            }
            let block = std::rc::Rc::new(block);
            for at in (0..=block.len()).step_by(carrier.chunk_bytes) {
                pieces.push((to, block.clone(), at));
            }
        }
        let mut pieces = pieces.into_iter();
        let mut barrier: Option<u64> = None;
        loop {
            let mut idle = !self.take()?;
            let before = self.sendings.len();
            self.retire()?;
            idle &= self.sendings.len() == before;
            while self.sendings.len() < SENDS_MAX {
                let Some((to, block, at)) = pieces.next() else { break };
                self.send(to, block, at)?;
                idle = false;
            }
            let ended = match &mut barrier {
                Some(request) => carrier.is_done(request)?,
                None => false,
            };
            if ended {
                break;
            }
            if barrier.is_none() && self.sendings.is_empty() {
                barrier = Some(carrier.begin_barrier()?);
            }
            if idle {
                // Ranks may share cores.
                std::thread::yield_now();
            }
        }
        match self.received.iter().find(|(_, (_, whole))| !whole) {
            None => Ok(()),
            Some((from, _)) => Err(Error::new(
                ErrorKind::Protocol,
                format!("rank {from} sent a part of a block only; run one version on all ranks"),
            )),
        }
    }

    fn send(&mut self, to: usize, block: std::rc::Rc<Vec<u8>>, at: usize) -> Result<()> {
        let carrier = self.carrier;
        let piece = &block[at..(at + carrier.chunk_bytes).min(block.len())];
        let (start, length) = (piece.as_ptr(), piece.len() as c_int);
        let mut request = 0u64;
        // SAFETY: the piece lives until the request has ended, since `Sending` holds its block; its
        // length fits an int.
        let code = unsafe {
            (carrier.mpi.calls.issend)(
                start.cast(),
                length,
                carrier.mpi.constants.byte,
                to as c_int,
                self.tag,
                carrier.comm,
                (&raw mut request).cast(),
            )
        };
        carrier.mpi.check(code, "MPI_Issend")?;
        self.sendings.push(Sending { request, _block: block });
        Ok(())
    }

    /// Forgets the sends that have ended.
    fn retire(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.sendings.len() {
            if self.carrier.is_done(&mut self.sendings[at].request)? {
                self.sendings.swap_remove(at);
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    /// Takes a piece, if one has come.
    fn take(&mut self) -> Result<bool> {
        let (carrier, mpi) = (self.carrier, self.carrier.mpi);
        let (mut come, mut length) = (0, 0);
        // Longer than any ABI's MPI_Status, and aligned as its longest field.
        let mut status = [0u64; 8];
        let status_at: *mut c_void = status.as_mut_ptr().cast();
        // SAFETY: both out-parameters are live; MPI is up, as long as the carrier lives.
        let code = unsafe {
            (mpi.calls.iprobe)(mpi.constants.any_source, self.tag, carrier.comm, &mut come, status_at)
        };
        mpi.check(code, "MPI_Iprobe")?;
        if come == 0 {
            return Ok(false);
        }
        // SAFETY: MPI_Iprobe has written the status.
        let code = unsafe { (mpi.calls.get_count)(status_at, mpi.constants.byte, &mut length) };
        mpi.check(code, "MPI_Get_count")?;
        // SAFETY: the status is an array of ints, and `status_source` is below its length.
        let source = unsafe { status_at.cast::<c_int>().add(mpi.constants.status_source).read() };
        let from = usize::try_from(source).ok().filter(|from| *from < carrier.size).ok_or_else(|| {
            Error::new(ErrorKind::Mpi, format!("MPI_Iprobe found a message of rank {source}; end the job"))
        })?;
        let mut piece = room_for(u64::try_from(length).unwrap_or(u64::MAX), from)?;
        // SAFETY: the piece has room for the message that MPI_Iprobe has found. No other thread
        // receives on this communicator, so MPI_Recv gets that message.
        let code = unsafe {
            (mpi.calls.recv)(
                piece.as_mut_ptr().cast(),
                length,
                mpi.constants.byte,
                source,
                self.tag,
                carrier.comm,
                mpi.constants.status_ignore as *mut c_void,
            )
        };
        mpi.check(code, "MPI_Recv")?;
        let last = piece.len() < carrier.chunk_bytes;
        let (block, whole) = self.received.entry(from).or_default();
        if *whole {
            let context = format!("rank {from} sent two blocks; run one version on all ranks");
            return Err(Error::new(ErrorKind::Protocol, context));
        }
        if block.is_empty() {
            *block = piece;
        } else {
            block.extend_from_slice(&piece);
        }
        *whole = last;
        Ok(true)
    }
}

impl MpiCollectives {
    fn begin_barrier(&self) -> Result<u64> {
        let mut request = 0u64;
        // SAFETY: the communicator is live; the new handle, int or pointer, fits the slot.
        let code = unsafe { (self.mpi.calls.ibarrier)(self.comm, (&raw mut request).cast()) };
        self.mpi.check(code, "MPI_Ibarrier")?;
        Ok(request)
    }

    /// Whether the request has ended; then it is freed.
    fn is_done(&self, request: &mut u64) -> Result<bool> {
        let mut done = 0;
        let ignored = self.mpi.constants.status_ignore as *mut c_void;
        // SAFETY: the slot holds a live request of this library.
        let code = unsafe { (self.mpi.calls.test)((request as *mut u64).cast(), &mut done, ignored) };
        self.mpi.check(code, "MPI_Test")?;
        Ok(done != 0)
    }
}
