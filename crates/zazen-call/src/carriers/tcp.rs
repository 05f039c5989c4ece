//! TCP sockets: listening, connecting within a deadline, and the options that both ends want.

use rustix::net::sockopt;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};

/// A peer whose machine is gone is noticed within about a minute. The kernel probes after this much
/// silence,
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// at this interval,
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// this many times. It gives up data that nobody acknowledges after the same time.
const KEEPALIVE_TRIES: u32 = 3;
const UNACKNOWLEDGED_MS_MAX: u32 = 60_000;

/// Listens on `addr`; see [`crate::Server::listen_tcp`].
pub(crate) fn listen(addr: &str) -> Result<(OwnedFd, SocketAddr)> {
    let addresses = resolve(addr).map_err(|error| error.within("listen"))?;
    let listener = TcpListener::bind(addresses.as_slice()).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Error::new(
            ErrorKind::Busy,
            format!("address {addr} is in use by another program; stop it or configure another port"),
        ),
        std::io::ErrorKind::AddrNotAvailable => Error::new(
            ErrorKind::Config,
            format!("this machine has no address {addr}; configure one of its own"),
        ),
        _ => Error::io(format!("listen on {addr}"), error),
    })?;
    let bound = listener.local_addr().map_err(|error| Error::io(format!("listen on {addr}"), error))?;
    // The standard library's backlog is too short for a large job's ranks.
    let _ = rustix::net::listen(&listener, crate::carriers::unix::BACKLOG);
    Ok((listener.into(), bound))
}

/// Connects to the first of `addr`'s addresses that answers before `deadline`.
pub(crate) fn connect(addr: &str, deadline: Instant) -> Result<OwnedFd> {
    let mut failure = None;
    for address in resolve(addr)? {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                let socket = OwnedFd::from(stream);
                set_options(socket.as_fd());
                return Ok(socket);
            }
            Err(error) => failure = Some(error),
        }
    }
    Err(match failure {
        Some(error) if error.kind() != std::io::ErrorKind::TimedOut => Error::new(
            ErrorKind::Unavailable,
            format!(
                "no daemon answers at {addr} ({error}); start `zazend` on that node, or check the address \
                 and the firewall"
            ),
        ),
        _ => Error::new(
            ErrorKind::TimedOut,
            format!("{addr} did not accept a connection in time; check that the node is up and reachable"),
        ),
    })
}

fn resolve(addr: &str) -> Result<Vec<SocketAddr>> {
    match addr.to_socket_addrs().map(Vec::from_iter) {
        Ok(addresses) if !addresses.is_empty() => Ok(addresses),
        Ok(_) => Err(Error::new(ErrorKind::Unavailable, format!("the name in {addr} has no address"))),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("address {addr:?} is not of the form host:port ({error})"),
        )),
        Err(error) => Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "the host name in {addr} can't be resolved ({error}); check its spelling and the name service"
            ),
        )),
    }
}

/// Sends small messages without delay, and notices a peer that silently vanished. A failure here
/// costs only that.
pub(crate) fn set_options(socket: std::os::fd::BorrowedFd<'_>) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(socket, KEEPALIVE_TRIES);
    let _ = sockopt::set_tcp_user_timeout(socket, UNACKNOWLEDGED_MS_MAX);
}
