//! The functions of `stream.h`, which the host calls.

use crate::config::Config;
use crate::memory::{self, Landing};
use crate::stream::{Scattered, Stream};
use crate::streams::{self, Attachment};
use std::ffi::{c_char, c_int, c_void};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zazen_plugin_sdk::{Caller, Outcome, caller, guarded, is_cancelled, register_userbuf};

/// A handle's stream, if the caller may use it. The dispatcher has checked that the handle is the
/// client's own.
fn attachment(handle: i64) -> Outcome<Attachment> {
    streams::get(handle)
}

/// # Safety
///
/// `name` is a string that lives as long as the call.
unsafe fn text<'a>(name: *const c_char) -> Outcome<&'a str> {
    // SAFETY: the dispatcher checked it; the caller's promise.
    let text = unsafe { zazen_plugin_sdk::text(name) };
    text.to_str().ok().filter(|text| !text.is_empty()).ok_or(libc::EINVAL)
}

/// Called once, before any call.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stream_init(_host: *const c_void) -> c_int {
    0
}

/// Called once, after the last call.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stream_fini() {
    let _ = catch_unwind(|| {
        streams::leave_all();
        memory::drop_spare();
    });
}

/// A client came. It opens its handles itself.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stream_attached(_caller: *const c_void) {}

/// A client went.
///
/// # Safety
///
/// `caller` is the host's `struct zazen_caller`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stream_detached(caller: *const c_void, _reason: i32) {
    // SAFETY: the host's word.
    let caller = unsafe { Caller::of_callback(caller.cast()) };
    let _ = catch_unwind(|| streams::leave((caller.client, caller.generation)));
}

/// See `stream.h`.
///
/// # Safety
///
/// Called by the dispatcher.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stream_open(name: *const c_char, config: *const Config) -> i64 {
    guarded(|| {
        // SAFETY: checked by the dispatcher.
        let (name, config) = unsafe { (text(name)?, *config) };
        let (config, caller) = (config.complete()?, caller()?);
        if (1..1024).contains(&config.port) && config.input != 2 && caller.uid != 0 {
            return Err(libc::EACCES);
        }
        streams::open(name, config, &caller)
    })
}

/// See `stream.h`.
///
/// # Safety
///
/// Called by the dispatcher.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stream_attach(name: *const c_char, rank: i32) -> i64 {
    guarded(|| {
        let rank = match rank {
            -1 => None,
            other => Some(u32::try_from(other).map_err(|_| libc::EINVAL)?),
        };
        // SAFETY: checked by the dispatcher.
        streams::attach(unsafe { text(name)? }, rank, &caller()?)
    })
}

/// See `stream.h`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stream_close(handle: i64) -> c_int {
    guarded(|| streams::close(handle).map(|()| 0))
}

/// See `stream.h`.
///
/// # Safety
///
/// Called by the dispatcher.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stream_describe(handle: i64, config: *mut Config) -> c_int {
    guarded(|| {
        let attachment = attachment(handle)?;
        // SAFETY: the dispatcher's.
        unsafe { *config = attachment.stream.config };
        Ok(0)
    })
}

/// See `stream.h`.
///
/// # Safety
///
/// Called by the dispatcher.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stream_ports(handle: i64, ports: *mut u16, count: *mut u32) -> c_int {
    guarded(|| {
        let all = attachment(handle)?.stream.receivers.ports();
        // SAFETY: room for `count` of them, as the dispatcher checked.
        unsafe { hand_over(&all, ports, count) }
    })
}

/// Copies as many values as there is room for, and stores their number. Returns the total number.
///
/// # Safety
///
/// There is room for `*count` values.
unsafe fn hand_over<T: Copy>(all: &[T], values: *mut T, count: *mut u32) -> Outcome<c_int> {
    // SAFETY: as promised.
    unsafe {
        let fit = all.len().min(*count as usize);
        if fit > 0 {
            std::ptr::copy_nonoverlapping(all.as_ptr(), values, fit);
        }
        *count = fit as u32;
    }
    c_int::try_from(all.len()).map_err(|_| libc::EOVERFLOW)
}

/// `struct stream_block`.
#[repr(C)]
pub(crate) struct Block {
    pub(crate) block: u64,
    pub(crate) index: u64,
    pub(crate) time: u64,
    pub(crate) is_dropped: u32,
    pub(crate) packets_missing: u32,
    pub(crate) bytes: u64,
}

/// A block on its way to a rank. The host reports when it has arrived, or that it never will.
struct OnItsWay {
    stream: Arc<Stream>,
    block: u64,
}

unsafe extern "C" fn arrived(status: i32, argument: *mut c_void) {
    // SAFETY: made by `stream_scatter`, and the host calls exactly once.
    let on_its_way = unsafe { Box::from_raw(argument.cast::<OnItsWay>()) };
    let told = AssertUnwindSafe(|| on_its_way.stream.returned(on_its_way.block, status == 0));
    let _ = catch_unwind(told);
}

/// A rank's request: where the answer goes, and how long the rank waits.
struct Wanted<'a> {
    timeout_ms: i32,
    block: &'a mut Block,
    present: *mut u8,
    present_bytes: &'a mut u32,
}

impl Wanted<'_> {
    /// Waits for the next block of this handle, and describes it. The block with its slot;
    /// `Some(None)` for one that was dropped, `None` at the end.
    fn next(self, attachment: &Attachment) -> Outcome<Option<Option<(u64, u32)>>> {
        let config = &attachment.stream.config;
        let rank = attachment.rank.or((config.deal == 1).then_some(0)).ok_or(libc::EINVAL)?;
        let mask_bytes = (config.stations * config.block_packets).div_ceil(8);
        if std::mem::take(self.present_bytes) < mask_bytes {
            return Err(libc::ENOBUFS);
        }
        let timeout = u64::try_from(self.timeout_ms).ok().map(Duration::from_millis);
        // SAFETY: the dispatcher's own memory, with room for at least as many bytes.
        let mask = unsafe { std::slice::from_raw_parts_mut(self.present, mask_bytes as usize) };
        let (number, taken) = match attachment.stream.scatter(rank, timeout, &is_cancelled, mask)? {
            Scattered::End => return Ok(None),
            Scattered::Gap { block } => (block, None),
            Scattered::Block { block, slot, missing } => {
                self.block.packets_missing = missing;
                self.block.bytes = config.block_bytes();
                *self.present_bytes = mask_bytes;
                (block, Some((block, slot)))
            }
        };
        let (first, ..) = attachment.stream.look(crate::ring::Ring::window);
        self.block.block = number;
        self.block.index = number.wrapping_sub(first);
        self.block.time = number.wrapping_mul(config.block_samples());
        self.block.is_dropped = u32::from(taken.is_none());
        Ok(Some(taken))
    }
}

/// See `stream.h`.
///
/// # Safety
///
/// Called by the dispatcher.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stream_scatter(
    handle: i64,
    timeout_ms: i32,
    block: *mut Block,
    present: *mut u8,
    present_bytes: *mut u32,
    _samples: *mut c_void,
    bytes: *mut u64,
) -> c_int {
    // SAFETY: the dispatcher's variables, and room for as many bytes as they say.
    let (block, present_bytes, bytes) = unsafe { (&mut *block, &mut *present_bytes, &mut *bytes) };
    let room = std::mem::take(bytes);
    let outcome = guarded(|| {
        let attachment = attachment(handle)?;
        let size = attachment.stream.config.block_bytes();
        if room < size {
            return Err(libc::ENOBUFS);
        }
        let taken =
            Wanted { timeout_ms, block, present, present_bytes: &mut *present_bytes }.next(&attachment)?;
        if let Some(Some((number, slot))) = taken {
            hand_out(&attachment.stream, number, slot)?;
            *bytes = size;
        }
        Ok(i32::from(taken.is_some()))
    });
    if outcome < 0 {
        *present_bytes = 0;
    }
    outcome
}

/// See `stream.h`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stream_memory(handle: i64) -> c_int {
    guarded(|| {
        let shared = attachment(handle)?.stream.memory();
        shared.map(IntoRawFd::into_raw_fd).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    })
}

/// See `stream.h`.
///
/// # Safety
///
/// Called by the dispatcher.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stream_borrow(
    handle: i64,
    timeout_ms: i32,
    block: *mut Block,
    present: *mut u8,
    present_bytes: *mut u32,
    offset: *mut u64,
) -> c_int {
    // SAFETY: the dispatcher's variables, and room for as many bytes as they say.
    let (block, present_bytes, offset) = unsafe { (&mut *block, &mut *present_bytes, &mut *offset) };
    let outcome = guarded(|| {
        let attachment = attachment(handle)?;
        let taken =
            Wanted { timeout_ms, block, present, present_bytes: &mut *present_bytes }.next(&attachment)?;
        if let Some(Some((number, slot))) = taken {
            attachment.lend(number)?;
            *offset = attachment.stream.block_offset(slot);
        }
        Ok(i32::from(taken.is_some()))
    });
    if outcome < 0 {
        *present_bytes = 0;
    }
    outcome
}

/// See `stream.h`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stream_return(handle: i64, block: u64) -> c_int {
    guarded(|| attachment(handle)?.give_back(block).map(|()| 0))
}

/// Names the block's memory to the host, which sends it from there.
fn hand_out(stream: &Arc<Stream>, block: u64, slot: u32) -> Outcome<()> {
    let on_its_way = Box::into_raw(Box::new(OnItsWay { stream: stream.clone(), block }));
    let at = stream.block_at(slot).cast();
    // SAFETY: the block stays as it is until `arrived`, which takes the box back.
    let registered = unsafe { register_userbuf(at, arrived, on_its_way.cast()) };
    if registered.is_err() {
        // SAFETY: nobody else has it.
        drop(unsafe { Box::from_raw(on_its_way) });
        stream.returned(block, false);
    }
    registered
}

/// Memory for a result that is about to come.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stream_gather_allocate_cb(bytes: u64) -> *mut c_void {
    let landing = usize::try_from(bytes).ok().and_then(Landing::new);
    landing.map_or(std::ptr::null_mut(), |landing| landing.into_address().cast())
}

/// The result did not come.
///
/// # Safety
///
/// The buffer is of `stream_gather_allocate_cb`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stream_gather_release_cb(buffer: *mut c_void, _status: i32) {
    // SAFETY: as promised, and the function has not run.
    unsafe { Landing::from_address(buffer.cast()) }.recycle();
}

/// See `stream.h`.
///
/// # Safety
///
/// Called by the dispatcher; the buffer is of `stream_gather_allocate_cb`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stream_gather(
    handle: i64,
    block: u64,
    part: u32,
    weight: u64,
    result: *const c_void,
    _bytes: u64,
) -> c_int {
    // SAFETY: the function owns it now.
    let landing = unsafe { Landing::from_address(result.cast::<u8>().cast_mut()) };
    guarded(|| {
        let stream = attachment(handle)?.stream;
        stream.gather(block, part, Some((landing, weight)), &is_cancelled).map(i32::from)
    })
}

/// See `stream.h`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stream_skip(handle: i64, block: u64, part: u32) -> c_int {
    guarded(|| attachment(handle)?.stream.gather(block, part, None, &is_cancelled).map(i32::from))
}

/// See `stream.h`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stream_store(handle: i64, fd: c_int) -> c_int {
    guarded(|| {
        let stream = attachment(handle)?.stream;
        let sink = if fd < 0 {
            None
        } else {
            // SAFETY: open during the call.
            let lent = unsafe { BorrowedFd::borrow_raw(fd) };
            Some(lent.try_clone_to_owned().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?)
        };
        stream.store.set_sink(sink);
        Ok(0)
    })
}

/// See `stream.h`.
///
/// # Safety
///
/// Called by the dispatcher.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stream_store_at(handle: i64, place: *const c_char) -> c_int {
    guarded(|| {
        let stream = attachment(handle)?.stream;
        // SAFETY: checked by the dispatcher.
        let sink = open_sink(unsafe { text(place)? })?;
        stream.store.set_sink(Some(sink));
        Ok(0)
    })
}

fn open_sink(place: &str) -> Outcome<OwnedFd> {
    let number = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::ETIMEDOUT);
    if let Some(address) = place.strip_prefix("tcp:") {
        let address: SocketAddr = address.parse().map_err(|_| libc::EINVAL)?;
        return TcpStream::connect_timeout(&address, Duration::from_secs(10))
            .map(OwnedFd::from)
            .map_err(number);
    }
    // SAFETY: no arguments.
    if caller()?.uid != unsafe { libc::geteuid() } {
        return Err(libc::EPERM);
    }
    let mut options = std::fs::OpenOptions::new();
    let opened = options.append(true).create(true).mode(0o644).custom_flags(libc::O_NOCTTY).open(place);
    opened.map(OwnedFd::from).map_err(number)
}

/// See `stream.h`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stream_end(handle: i64) -> c_int {
    guarded(|| {
        attachment(handle)?.stream.finish();
        Ok(0)
    })
}

/// See `stream.h`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stream_flush(handle: i64) -> c_int {
    guarded(|| attachment(handle)?.stream.flush(&is_cancelled).map(|()| 0))
}

/// See `stream.h`.
///
/// # Safety
///
/// Called by the dispatcher.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn stream_counters(handle: i64, values: *mut u64, count: *mut u32) -> c_int {
    guarded(|| {
        let all = counters(&attachment(handle)?.stream);
        // SAFETY: room for `count` of them, as the dispatcher checked.
        unsafe { hand_over(&all, values, count) }
    })
}

/// In the order of `enum stream_counter`.
fn counters(stream: &Stream) -> Vec<u64> {
    let (window, blocks, stations) =
        stream.look(|ring| (ring.window(), ring.block_counters(), ring.station_counters()));
    let (results, open) = stream.results();
    let (stored, lost) = stream.store.written();
    let tally = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let counts = &stream.tally;
    let mut all = vec![window.0, window.1, window.2, window.3];
    all.extend([blocks.delivered, blocks.incomplete, blocks.dropped, blocks.redealt, blocks.gaps]);
    all.extend([blocks.gaps_forgotten, tally(&counts.foreign), stream.receivers.kernel_drops()]);
    all.extend([tally(&counts.receives), tally(&counts.bytes_in), tally(&counts.bytes_scattered)]);
    all.extend([tally(&counts.bytes_gathered), stored, results.arrived, results.added, results.skipped]);
    all.extend([results.duplicate, results.late, results.unfit, results.groups, results.groups_incomplete]);
    all.extend([open as u64, lost, tally(&counts.receiver_cpu_ns)]);
    all.extend([tally(&stream.receivers.buffer_bytes), u64::from(stream.config.stations)]);
    for (c, has_ended) in stations {
        all.extend([c.arrived, c.stored, c.duplicate, c.late, c.refused, c.outside, c.strange]);
        all.extend([c.delivered, c.dropped, c.missing, u64::from(has_ended)]);
    }
    all
}
