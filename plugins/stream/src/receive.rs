//! Receivers: threads that take packets from sockets and put them into the ring, many at a time.
//!
//! Invariants: all bytes that arrive on a socket are packets of this stream, or are counted as
//! foreign and dropped. A receiver notices within [`TICK_MS`] that its stream is shut. Nobody else
//! reads its socket.

use crate::config::{Config, Input};
use crate::packet::{HEADER_BYTES, Header, Piece};
use crate::receivers::{TICK_MS, get_option, number};
use crate::stream::Stream;
use crate::tally::Tally;
use std::ffi::c_int;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Datagrams of one system call, at most.
const BATCH: usize = 32;
/// The largest datagram, and what the kernel joins at most (UDP_GRO).
const DATAGRAM_BYTES: usize = 65_536;
const TCP_BUFFER_BYTES: usize = 512 << 10;
/// TCP connections of a stream at once, at most.
const CONNECTIONS_MAX: usize = 64;
/// A receiver that found few datagrams rests, so that one call and one wake-up bring many: for as
/// long as a quarter of the socket's buffer lasts at this rate …
const REST_BYTES_PER_S: f64 = 12.5e9;
/// … at most this long …
const REST_MAX: Duration = Duration::from_micros(500);
/// … and not at all if that would be shorter than a timer's error.
const REST_MIN: Duration = Duration::from_micros(50);
/// Batches between two looks at the thread's clock.
const CLOCK_EVERY: u32 = 64;

/// A stream that receives. The config is complete.
pub(crate) fn open(config: Config) -> Result<Arc<Stream>, c_int> {
    let stream = Stream::new(config)?;
    if let Err(error) = start(&stream) {
        stream.shut();
        return Err(error);
    }
    Ok(stream)
}

/// Binds the sockets, then starts the threads.
fn start(stream: &Arc<Stream>) -> Result<(), c_int> {
    let config = &stream.config;
    let address = config.address()?;
    let first = config.port as u16;
    match config.input()? {
        Input::Udp => {
            for step in 0..config.ports as u16 {
                let port = if first == 0 { 0 } else { first + step };
                let socket = stream.receivers.bind(address, port, config)?;
                let number = stream.add_receiver();
                spawn(stream, move |stream| receive_datagrams(stream, &socket, number))?;
            }
        }
        Input::TcpListen => {
            let listener = TcpListener::bind((address, first)).map_err(|error| number(&error))?;
            listener.set_nonblocking(true).map_err(|error| number(&error))?;
            let port = listener.local_addr().map_err(|error| number(&error))?.port();
            stream.receivers.listens(port);
            spawn(stream, move |stream| accept(stream, &listener))?;
        }
        Input::TcpConnect => {
            let to = SocketAddr::new(address, first);
            spawn(stream, move |stream| connect(stream, to))?;
        }
    }
    Ok(())
}

fn spawn(stream: &Arc<Stream>, work: impl FnOnce(&Arc<Stream>) + Send + 'static) -> Result<(), c_int> {
    let own = stream.clone();
    let thread = std::thread::Builder::new()
        .name("stream-receive".to_owned())
        .spawn(move || {
            let mut clock = Clock::default();
            work(&own);
            clock.look(&own.tally);
        })
        .map_err(|error| number(&error))?;
    stream.receivers.keep(thread);
    Ok(())
}

/// A thread's CPU time, as far as it was counted.
#[derive(Default)]
struct Clock {
    counted_ns: u64,
    batches: u32,
}

impl Clock {
    fn look(&mut self, tally: &Tally) {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: room for a time.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        let now_ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        Tally::add(&tally.receiver_cpu_ns, now_ns - self.counted_ns);
        self.counted_ns = now_ns;
        self.batches = 0;
    }

    fn batch(&mut self, tally: &Tally) {
        self.batches += 1;
        if self.batches == CLOCK_EVERY {
            self.look(tally);
        }
    }
}

/// What a header and its samples are to a stream.
enum Sorted<'a> {
    Packet(Piece<'a>),
    End { station: u32, packet_end: u64 },
    Foreign,
}

fn sort<'a>(config: &Config, header: &Header, samples: &'a [u8]) -> Sorted<'a> {
    let station = u32::from(header.station).checked_sub(config.station_first);
    let Some(station) = station.filter(|station| *station < config.stations && header.tag == config.tag)
    else {
        return Sorted::Foreign;
    };
    let times = u64::from(config.packet_samples);
    if header.is_end {
        return Sorted::End { station, packet_end: header.time.div_ceil(times) };
    }
    if samples.len() as u64 != config.packet_bytes() || !header.time.is_multiple_of(times) {
        return Sorted::Foreign;
    }
    Sorted::Packet(Piece { station, packet: header.time / times, samples })
}

/// Datagrams of one batch: what they are scattered to.
struct Batch {
    buffers: Vec<u8>,
    controls: Vec<[u64; 4]>,
}

impl Batch {
    /// Receives at least one datagram, or nothing within a tick: the bytes and the size of the
    /// pieces of each.
    fn receive(&mut self, socket: RawFd) -> std::io::Result<Vec<(usize, usize)>> {
        let mut parts: Vec<libc::iovec> = self
            .buffers
            .chunks_mut(DATAGRAM_BYTES)
            .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() })
            .collect();
        let mut messages: Vec<libc::mmsghdr> = parts
            .iter_mut()
            .zip(&mut self.controls)
            .map(|(part, control)| {
                // SAFETY: all zeros is an empty message.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                message.msg_hdr.msg_iov = part;
                message.msg_hdr.msg_iovlen = 1;
                message.msg_hdr.msg_control = control.as_mut_ptr().cast();
                message.msg_hdr.msg_controllen = size_of_val(control);
                message
            })
            .collect();
        let (room, wait) = (messages.len() as u32, libc::MSG_WAITFORONE);
        // SAFETY: so many messages, whose parts and controls outlive the call.
        let count =
            unsafe { libc::recvmmsg(socket, messages.as_mut_ptr(), room, wait, std::ptr::null_mut()) };
        let count = usize::try_from(count).map_err(|_| std::io::Error::last_os_error())?;
        Ok(messages[..count]
            .iter()
            .map(|message| {
                let bytes = message.msg_len as usize;
                // A cut datagram is not a packet of this stream.
                let is_cut = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
                (if is_cut { 0 } else { bytes }, piece_bytes(&message.msg_hdr).unwrap_or(bytes))
            })
            .collect())
    }
}

/// The size of the datagrams that the kernel joined into this one.
fn piece_bytes(message: &libc::msghdr) -> Option<usize> {
    // SAFETY: the kernel has filled the control buffer, and said how far.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(message);
        while let Some(head) = control.as_ref() {
            if (head.cmsg_level, head.cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO) {
                let bytes = libc::CMSG_DATA(control).cast::<c_int>().read_unaligned();
                return usize::try_from(bytes).ok().filter(|bytes| *bytes > 0);
            }
            control = libc::CMSG_NXTHDR(message, control);
        }
    }
    None
}

/// How long a receiver rests when there is little to do, for a socket's buffer of this size.
fn rest(buffer_bytes: u64) -> Option<Duration> {
    let lasts = Duration::from_secs_f64(buffer_bytes as f64 / 4.0 / REST_BYTES_PER_S);
    (lasts >= REST_MIN).then(|| lasts.min(REST_MAX))
}

fn receive_datagrams(stream: &Arc<Stream>, socket: &UdpSocket, number: usize) {
    let granted = get_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0);
    let rest = rest(granted as u64);
    let mut batch = Batch { buffers: vec![0; BATCH * DATAGRAM_BYTES], controls: vec![[0; 4]; BATCH] };
    let mut clock = Clock::default();
    while !stream.is_shut() {
        let asked_ns = stream.now_ns();
        let Ok(sizes) = batch.receive(socket.as_raw_fd()) else {
            stream.drained(number, asked_ns);
            clock.look(&stream.tally);
            continue;
        };
        Tally::add(&stream.tally.receives, 1);
        let buffers = batch.buffers.chunks(DATAGRAM_BYTES);
        let datagrams = buffers.zip(&sizes).flat_map(|(buffer, (bytes, piece))| {
            // A datagram without bytes is one too.
            let whole = if *bytes == 0 { &buffer[..1] } else { &buffer[..*bytes] };
            whole.chunks((*piece).max(1))
        });
        take_datagrams(stream, datagrams);
        if sizes.len() < BATCH {
            stream.drained(number, asked_ns);
        }
        clock.batch(&stream.tally);
        if let Some(rest) = rest.filter(|_| sizes.len() < BATCH / 2) {
            std::thread::sleep(rest);
        }
    }
    clock.look(&stream.tally);
}

fn take_datagrams<'a>(stream: &Stream, datagrams: impl Iterator<Item = &'a [u8]>) {
    let (mut pieces, mut ends) = (Vec::with_capacity(BATCH), Vec::new());
    let (mut foreign, mut bytes) = (0, 0);
    for datagram in datagrams {
        let header =
            Header::take(datagram).filter(|header| header.bytes as usize == datagram.len() - HEADER_BYTES);
        let sorted = header.map(|header| sort(&stream.config, &header, &datagram[HEADER_BYTES..]));
        match sorted.unwrap_or(Sorted::Foreign) {
            Sorted::Packet(piece) => {
                bytes += datagram.len() as u64;
                pieces.push(piece);
            }
            Sorted::End { station, packet_end } => ends.push((station, packet_end)),
            Sorted::Foreign => foreign += 1,
        }
    }
    Tally::add(&stream.tally.foreign, foreign);
    Tally::add(&stream.tally.bytes_in, bytes);
    stream.take_in(&pieces);
    for (station, packet_end) in ends {
        stream.station_ended(station, packet_end);
    }
}

fn accept(stream: &Arc<Stream>, listener: &TcpListener) {
    let open = Arc::new(AtomicUsize::new(0));
    while !stream.is_shut() {
        let connection = listener.accept();
        if open.load(Ordering::Relaxed) == CONNECTIONS_MAX {
            drop(connection);
        } else if let Ok((connection, _)) = connection {
            open.fetch_add(1, Ordering::Relaxed);
            let its = open.clone();
            let work = move |stream: &Arc<Stream>| {
                receive_bytes(stream, connection);
                its.fetch_sub(1, Ordering::Relaxed);
            };
            if spawn(stream, work).is_err() {
                open.fetch_sub(1, Ordering::Relaxed);
            }
            continue;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn connect(stream: &Arc<Stream>, to: SocketAddr) {
    let mut connection = None;
    while !stream.is_shut() && connection.is_none() {
        connection = TcpStream::connect_timeout(&to, Duration::from_millis(500)).ok();
        if connection.is_none() {
            std::thread::sleep(Duration::from_millis(TICK_MS));
        }
    }
    if let Some(connection) = connection {
        receive_bytes(stream, connection);
    }
}

/// Packets one after the other, until the other end closes, sends what is none, or the stream is
/// shut.
fn receive_bytes(stream: &Arc<Stream>, mut connection: TcpStream) {
    // Accepted from a listener that doesn't block.
    let tick = Some(Duration::from_millis(TICK_MS));
    if connection.set_nonblocking(false).is_err() || connection.set_read_timeout(tick).is_err() {
        return;
    }
    let packet_bytes = HEADER_BYTES + stream.config.packet_bytes() as usize;
    let mut buffer = vec![0; TCP_BUFFER_BYTES.max(4 * packet_bytes)];
    let mut filled = 0;
    let mut clock = Clock::default();
    while !stream.is_shut() {
        match connection.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                clock.look(&stream.tally);
                continue;
            }
            Err(_) => break,
        }
        Tally::add(&stream.tally.receives, 1);
        let Some(taken) = take_packets(stream, &buffer[..filled]) else { break };
        buffer.copy_within(taken..filled, 0);
        filled -= taken;
        clock.batch(&stream.tally);
    }
    clock.look(&stream.tally);
}

/// Takes the whole packets at the beginning of the bytes; how many bytes they are, or `None` for
/// nonsense.
fn take_packets(stream: &Stream, bytes: &[u8]) -> Option<usize> {
    let mut pieces = Vec::new();
    let mut ends = Vec::new();
    let (mut at, mut is_sane) = (0, true);
    while bytes.len() - at >= HEADER_BYTES && is_sane {
        let header = Header::take(&bytes[at..]);
        let size = header.map_or(0, |header| if header.is_end { 0 } else { header.bytes as usize });
        let whole = bytes.get(at + HEADER_BYTES..at + HEADER_BYTES + size);
        let could_be = size as u64 <= stream.config.packet_bytes();
        match header
            .filter(|_| could_be)
            .map(|header| whole.map(|whole| sort(&stream.config, &header, whole)))
        {
            // The rest has not come yet.
            Some(None) => break,
            Some(Some(Sorted::Packet(piece))) => pieces.push(piece),
            Some(Some(Sorted::End { station, packet_end })) => ends.push((station, packet_end)),
            Some(Some(Sorted::Foreign)) | None => is_sane = false,
        }
        if is_sane {
            at += HEADER_BYTES + size;
        }
    }
    Tally::add(&stream.tally.bytes_in, at as u64);
    stream.take_in(&pieces);
    for (station, packet_end) in ends {
        stream.station_ended(station, packet_end);
    }
    if !is_sane {
        Tally::add(&stream.tally.foreign, 1);
        return None;
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_buffers_let_a_receiver_rest() {
        assert_eq!(rest(2 * 212_992), None);
        assert_eq!(rest(2 * (64 << 20)), Some(REST_MAX));
        let some = rest(12 << 20).expect("a quarter of it lasts a while");
        assert!(some > REST_MIN && some < REST_MAX);
    }
}
