//! The sockets and threads of a stream's receivers.

use crate::config::Config;
use crate::lock::lock;
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A receiver notices within this time that its stream is shut.
pub(crate) const TICK_MS: u64 = 50;

/// The receivers of a stream.
#[derive(Default)]
pub(crate) struct Receivers {
    threads: Mutex<Vec<JoinHandle<()>>>,
    sockets: Mutex<Vec<UdpSocket>>,
    ports: Mutex<Vec<u16>>,
    /// Bytes that the kernel keeps for a socket, the smallest.
    pub(crate) buffer_bytes: AtomicU64,
}

pub(crate) fn number(error: &std::io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl Receivers {
    /// Binds a datagram socket.
    pub(crate) fn bind(&self, address: IpAddr, port: u16, config: &Config) -> Result<UdpSocket, c_int> {
        let socket = UdpSocket::bind((address, port)).map_err(|error| number(&error))?;
        let wanted = config.receive_bytes.min(i32::MAX as u32) as c_int;
        let raw = socket.as_raw_fd();
        // Beyond the system's limit if this process may, else up to the limit.
        if set_option(raw, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, wanted).is_err() {
            let _ = set_option(raw, libc::SOL_SOCKET, libc::SO_RCVBUF, wanted);
        }
        // Ask the kernel to deliver datagrams that a sender or a card has joined as one piece. It
        // may decline.
        let _ = set_option(raw, libc::SOL_UDP, libc::UDP_GRO, 1);
        let tick = Duration::from_millis(TICK_MS);
        socket.set_read_timeout(Some(tick)).map_err(|error| number(&error))?;
        let granted = get_option(raw, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0) as u64;
        let before = self.buffer_bytes.load(Ordering::Relaxed);
        let least = if before == 0 { granted } else { before.min(granted) };
        self.buffer_bytes.store(least, Ordering::Relaxed);
        lock(&self.ports).push(socket.local_addr().map_err(|error| number(&error))?.port());
        lock(&self.sockets).push(socket.try_clone().map_err(|error| number(&error))?);
        Ok(socket)
    }

    /// Counts a port of a listener among [`Receivers::ports`].
    pub(crate) fn listens(&self, port: u16) {
        lock(&self.ports).push(port);
    }

    /// Keeps a thread for [`Receivers::join`].
    pub(crate) fn keep(&self, thread: JoinHandle<()>) {
        let mut threads = lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }

    /// The ports that are listened on.
    pub(crate) fn ports(&self) -> Vec<u16> {
        lock(&self.ports).clone()
    }

    /// Datagrams that the kernel dropped because the buffer was full.
    pub(crate) fn kernel_drops(&self) -> u64 {
        lock(&self.sockets).iter().map(|socket| drops_of(socket.as_raw_fd())).sum()
    }

    /// Waits for the threads' end; the stream is shut.
    pub(crate) fn join(&self) {
        loop {
            let Some(thread) = lock(&self.threads).pop() else { break };
            let _ = thread.join();
        }
        lock(&self.sockets).clear();
    }
}

fn set_option(socket: RawFd, level: c_int, option: c_int, value: c_int) -> Result<(), c_int> {
    let bytes = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: a number and its size.
    let done = unsafe { libc::setsockopt(socket, level, option, (&raw const value).cast(), bytes) };
    if done < 0 { Err(libc::EINVAL) } else { Ok(()) }
}

pub(crate) fn get_option(socket: RawFd, level: c_int, option: c_int) -> Option<c_int> {
    let (mut value, mut bytes) = (0, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: room for a number, as is said.
    let done = unsafe { libc::getsockopt(socket, level, option, (&raw mut value).cast(), &raw mut bytes) };
    (done == 0).then_some(value)
}

fn drops_of(socket: RawFd) -> u64 {
    /// Where the drops are among what SO_MEMINFO says (linux/sock_diag.h).
    const DROPS: usize = 8;
    let mut values = [0u32; 16];
    let mut bytes = size_of_val(&values) as libc::socklen_t;
    let at = values.as_mut_ptr().cast::<c_void>();
    // SAFETY: room for as many numbers as is said.
    let done = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, at, &raw mut bytes) };
    if done == 0 { u64::from(values[DROPS]) } else { 0 }
}
