//! Where a TCP peer comes from, as far as the kernel knows: which user of this machine, or which
//! other machine.
//!
//! A peer that has not proven the cluster key has no identity. But the kernel knows which user a
//! socket of this machine belongs to (`sock_diag`). So a user who floods the port takes only the
//! user's own share of it.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

/// Who shares the places of peers that have proven nothing yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PeerGroup {
    /// A user of this machine; `None` if the kernel does not say which one.
    Here(Option<u32>),
    /// Another machine. IPv6 addresses with equal first 64 bits count as one machine, because one
    /// machine has them all.
    There(IpAddr),
}

impl fmt::Display for PeerGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerGroup::Here(Some(uid)) => write!(f, "user {uid} of this machine"),
            PeerGroup::Here(None) => write!(f, "this machine"),
            PeerGroup::There(IpAddr::V6(prefix)) => write!(f, "{prefix}/64"),
            PeerGroup::There(address) => write!(f, "{address}"),
        }
    }
}

/// Asks the kernel about peers. It keeps one socket for that.
pub(crate) struct PeerGroups {
    diag: Option<OwnedFd>,
    asked: u32,
}

impl PeerGroups {
    /// Without a socket, users of this machine are one group; the log says so.
    pub(crate) fn new() -> PeerGroups {
        let kind = (AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC);
        let diag = rustix::net::socket_with(kind.0, kind.1, kind.2, Some(netlink::SOCK_DIAG));
        let diag = diag.inspect_err(|errno| {
            tracing::warn!(
                "the kernel does not tell which user of this machine connects ({errno}): a flood of one \
                 user's connections may keep the others out; allow sockets of AF_NETLINK, as \
                 packaging/zazend.service does"
            );
        });
        PeerGroups { diag: diag.ok(), asked: 0 }
    }

    /// Where the peer at `peer` comes from, whose connection has the address `own` here.
    pub(crate) fn of(&mut self, peer: SocketAddr, own: SocketAddr) -> PeerGroup {
        let (peer, own) = (canonical(peer), canonical(own));
        // A machine may have many addresses, so the kernel is asked about every peer.
        let user = self.uid(peer, own);
        if user.is_some() || peer.ip().is_loopback() || peer.ip() == own.ip() {
            return PeerGroup::Here(user);
        }
        PeerGroup::There(match peer.ip() {
            IpAddr::V6(address) => {
                let words = address.segments();
                IpAddr::V6(Ipv6Addr::new(words[0], words[1], words[2], words[3], 0, 0, 0, 0))
            }
            address => address,
        })
    }

    /// The user of the socket here that is connected from `peer` to `own`. `None` if the kernel
    /// does not say, or if the socket is closed: then nobody has it any more.
    fn uid(&mut self, peer: SocketAddr, own: SocketAddr) -> Option<u32> {
        let diag = self.diag.as_ref()?;
        self.asked = self.asked.wrapping_add(1);
        let question = question(self.asked, peer, own);
        rustix::net::send(diag, &question, SendFlags::DONTWAIT).ok()?;
        let mut answer = [0_u8; 512];
        // The kernel has put its answer into the queue before `send` returned. An older question's
        // answer may come first, if that one was given up.
        loop {
            let (_, length) = rustix::net::recv(diag, &mut answer[..], RecvFlags::DONTWAIT).ok()?;
            let answer = answer.get(..length)?;
            if word(answer, SEQUENCE_AT)? == self.asked {
                return uid_of(answer);
            }
        }
    }
}

/// An IPv4 address that an IPv6 socket shows is that IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// linux/sock_diag.h, linux/netlink.h: the type of questions and of answers.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
/// Where the header (struct nlmsghdr) has the type and the sequence number.
const TYPE_AT: usize = 4;
const SEQUENCE_AT: usize = 8;
const HEADER_BYTES: usize = 16;
/// struct inet_diag_msg behind the header: the state, and the user.
const STATE_AT: usize = HEADER_BYTES + 1;
const UID_AT: usize = HEADER_BYTES + 64;
const QUESTION_BYTES: usize = HEADER_BYTES + 56;
const TCP_ESTABLISHED: u8 = 1;
const ALL_STATES: u32 = u32::MAX;
/// The socket may be any: struct inet_diag_sockid, idiag_cookie.
const NO_COOKIE: u32 = u32::MAX;

/// struct nlmsghdr and struct inet_diag_req_v2: the socket with the address `peer` that is
/// connected to `own`.
fn question(sequence: u32, peer: SocketAddr, own: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(QUESTION_BYTES);
    bytes.extend((QUESTION_BYTES as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0_u32.to_ne_bytes());
    let family = if peer.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    bytes.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    bytes.extend(ALL_STATES.to_ne_bytes());
    bytes.extend(peer.port().to_be_bytes());
    bytes.extend(own.port().to_be_bytes());
    for address in [peer.ip(), own.ip()] {
        match address {
            IpAddr::V4(address) => {
                bytes.extend(Ipv4Addr::octets(&address));
                bytes.extend([0; 12]);
            }
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend([NO_COOKIE.to_ne_bytes(), NO_COOKIE.to_ne_bytes()].concat());
    bytes
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The user in an answer. A socket that its process has closed shows user 0, so only a connected
/// socket counts.
fn uid_of(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(answer.get(TYPE_AT..TYPE_AT + 2)?.try_into().ok()?);
    (kind == SOCK_DIAG_BY_FAMILY && *answer.get(STATE_AT)? == TCP_ESTABLISHED)
        .then(|| word(answer, UID_AT))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn pair(address: &str) -> Option<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind((address, 0)).ok()?;
        let from = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        Some((from, listener.accept().unwrap().0))
    }

    fn peer_group(accepted: &TcpStream) -> PeerGroup {
        PeerGroups::new().of(accepted.peer_addr().unwrap(), accepted.local_addr().unwrap())
    }

    #[test]
    fn a_peer_of_this_machine_is_its_user() {
        let own = rustix::process::getuid().as_raw();
        for address in ["127.0.0.1", "::1"] {
            let Some((_from, accepted)) = pair(address) else {
                eprintln!("this machine has no address {address}");
                continue;
            };
            assert_eq!(peer_group(&accepted), PeerGroup::Here(Some(own)), "{address}");
        }
    }

    #[test]
    fn a_socket_that_is_closed_is_nobodys() {
        let (from, accepted) = pair("127.0.0.1").unwrap();
        let (peer, own) = (accepted.peer_addr().unwrap(), accepted.local_addr().unwrap());
        let mut peer_groups = PeerGroups::new();
        drop(from);
        assert_eq!(peer_groups.of(peer, own), PeerGroup::Here(None));
        drop(accepted);
        assert_eq!(
            peer_groups.of(peer, own),
            PeerGroup::Here(None),
            "nor is one that waits for late packets"
        );
    }

    /// A user cannot become another group by connecting from another address of this machine.
    #[test]
    fn a_peer_of_this_machine_is_its_user_whatever_its_address() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: a network namespace needs root");
            return;
        }
        // The network of this thread only.
        let found = std::thread::spawn(|| {
            // SAFETY: this thread alone leaves its network.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                println!("skipped: no network namespace: {}", std::io::Error::last_os_error());
                return None;
            }
            for words in ["link set lo up", "addr add 10.9.8.1/32 dev lo", "addr add 10.9.8.2/32 dev lo"] {
                let done = std::process::Command::new("ip").args(words.split(' ')).status();
                if !done.is_ok_and(|status| status.success()) {
                    println!("skipped: `ip {words}` fails here");
                    return None;
                }
            }
            let listener = TcpListener::bind("10.9.8.1:0").unwrap();
            let own = listener.local_addr().unwrap();
            let kind = rustix::net::SocketType::STREAM;
            let from = rustix::net::socket(AddressFamily::INET, kind, None).unwrap();
            let other: SocketAddr = "10.9.8.2:0".parse().unwrap();
            rustix::net::bind(&from, &other).unwrap();
            rustix::net::connect(&from, &own).unwrap();
            let accepted = listener.accept().unwrap().0;
            Some(peer_group(&accepted))
        });
        if let Some(found) = found.join().unwrap() {
            assert_eq!(found, PeerGroup::Here(Some(0)));
        }
    }

    #[test]
    fn another_machine_is_its_address_or_its_ipv6_prefix() {
        let of = |peer: &str| PeerGroups::new().of(peer.parse().unwrap(), "10.0.0.9:1".parse().unwrap());
        assert_eq!(of("10.0.0.1:7"), of("10.0.0.1:8"));
        assert_ne!(of("10.0.0.1:7"), of("10.0.0.2:7"));
        assert_eq!(of("[::ffff:10.0.0.1]:7"), of("10.0.0.1:7"));
        assert_eq!(of("[2001:db8:1:2::3]:7"), of("[2001:db8:1:2:ffff::4]:7"));
        assert_ne!(of("[2001:db8:1:2::3]:7"), of("[2001:db8:1:3::3]:7"));
        assert_eq!(of("[2001:db8:1:2::3]:7").to_string(), "2001:db8:1:2::/64");
    }
}
