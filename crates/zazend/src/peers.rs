//! Asks other nodes for blocks of files before the backing store is read: `zazen_frames::home` says
//! whom to ask, this file asks. Asks a node for the frames that it holds, where a client says so.
//!
//! Invariants: what a peer gives counts only if it is of the very file that the reader's own rights
//! have opened here, and if its bytes match their checksum; a peer that is dead, slow or wrong
//! costs a bounded time, and then the store is read. A peer asks nobody on behalf of another node.

use crate::settings_text::settings_text;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};
use zazen_call::{ClusterKey, Connection, Identity};
use zazen_core::{Blocks, Credentials, Error, ErrorKind, Result, Validator};
use zazen_frames::home::{parse_nodes, ranked};
use zazen_frames::messages::{GetBlock, GetPiece, GivenBlock, GivenPiece, frames_fn};
use zazen_wire::checksum::frame_checksum;
use zazen_wire::control::{NodeInfo, control_fn};
use zazen_wire::{Message, service};

/// How long a peer may take to accept a connection and to prove the key.
const CONNECT: Duration = Duration::from_secs(1);
/// How long it may take to give a block, which it may have to read from the store first.
const PATIENCE: Duration = Duration::from_secs(10);
/// A peer that did not answer is asked again after this.
const HOLD_OFF: Duration = Duration::from_secs(10);
/// Peers that are asked for one block, at most.
const ASKED_MAX: usize = 2;
/// How often the file that lists the nodes is looked at.
const LIST_LOOK: Duration = Duration::from_secs(2);
/// Idle connections that are kept for each peer.
const IDLE_MAX: usize = 8;

/// Where the list of nodes is, as told by `peers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerList {
    /// In a file, one `host:port` a line. It may change, or come later.
    File(PathBuf),
    /// Written out.
    Nodes(Vec<String>),
}

impl PeerList {
    /// A path, or `host:port,host:port`. A word with a slash, or without a colon, is a path.
    pub fn parse(text: &str) -> Result<PeerList> {
        if text.contains('/') || !text.contains(':') {
            let path = std::path::absolute(text)
                .map_err(|error| Error::io(format!("peers {text}: has no absolute form"), error))?;
            return Ok(PeerList::File(path));
        }
        match parse_nodes(text) {
            nodes if nodes.iter().all(|node| is_address(node)) => Ok(PeerList::Nodes(nodes)),
            _ => Err(Error::new(
                ErrorKind::Config,
                format!("peers {text:?}: give host:port,host:port, or a file with one host:port a line"),
            )),
        }
    }
}

fn is_address(node: &str) -> bool {
    node.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// The other nodes, for one daemon. Shared by threads.
pub struct Peers {
    list: RwLock<Option<PeerList>>,
    key: Option<ClusterKey>,
    identity: Identity,
    /// This node.
    own: u128,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    nodes: Vec<String>,
    /// In the order of `nodes`.
    peers: Vec<Arc<Mutex<Peer>>>,
    looked: Option<Instant>,
    /// The file when it was read.
    file: Option<(SystemTime, u64)>,
}

#[derive(Default)]
struct Peer {
    /// It is this node.
    is_own: bool,
    /// Which node it said to be when it was last connected to.
    node: Option<u128>,
    idle: Vec<Connection>,
    not_before: Option<Instant>,
}

/// A block to ask for.
pub struct Wanted<'a> {
    /// The dataset's directory, as users spell it.
    pub dataset: &'a str,
    /// The file, and which version of it.
    pub blocks: &'a Blocks,
    /// The block.
    pub number: u64,
    /// Its length in bytes.
    pub length: u64,
    /// What the source looked like when the reader's rights opened it.
    pub seen: Validator,
}

impl Peers {
    /// The nodes of `list`; none without a list or a key.
    pub fn new(list: Option<PeerList>, key: Option<ClusterKey>, name: &str, own: u128) -> Peers {
        let credentials = Credentials {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: Vec::new(),
        };
        let identity = Identity { credentials, host: name.to_owned(), pid: std::process::id() };
        Peers { list: RwLock::new(list), key, identity, own, known: Mutex::default() }
    }

    /// Asks the nodes of `list` from now on.
    pub fn set_list(&self, list: Option<PeerList>) {
        *self.list.write().unwrap_or_else(PoisonError::into_inner) = list;
        let mut known = lock(&self.known);
        (known.looked, known.file) = (None, None);
    }

    /// The block's bytes from another node; `None` if the store is to be read here.
    pub fn get(&self, wanted: &Wanted<'_>) -> Option<Vec<u8>> {
        let key = self.key.as_ref()?;
        let mut asked = 0;
        for (addr, peer) in self.in_order(wanted)? {
            let mut connection = match self.connect(key, &addr, &peer) {
                Whom::Peer(connection) => connection,
                Whom::Own => return None,
                Whom::Nobody => continue,
            };
            asked += 1;
            match ask(&mut connection, wanted) {
                Ok(bytes) => {
                    let mut peer = lock(&peer);
                    if peer.idle.len() < IDLE_MAX {
                        peer.idle.push(*connection);
                    }
                    return Some(bytes);
                }
                Err(error) => {
                    tracing::debug!("block {} of {} from {addr}: {error}", wanted.number, wanted.dataset);
                    if connection.is_alive() {
                        // It answers, and does not give this block.
                        return None;
                    }
                    lock(&peer).not_before = Some(Instant::now() + HOLD_OFF);
                }
            }
            if asked == ASKED_MAX {
                return None;
            }
        }
        None
    }

    /// Fails if this daemon asks no other nodes.
    pub fn check_asks(&self) -> Result<()> {
        let has_list = self.list.read().unwrap_or_else(PoisonError::into_inner).is_some();
        match has_list && self.key.is_some() {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Unsupported,
                "this daemon asks no other nodes: give it their list (--peers) and the cluster key (--key)",
            )),
        }
    }

    /// A part of a frame from the node `holder`, which one of the addresses of the list must be.
    pub fn piece(&self, holder: u128, ask: &GetPiece) -> Result<(GivenPiece, Vec<u8>)> {
        self.check_asks()?;
        let mut failed = None;
        // A connection that was idle may be of a daemon that has ended since.
        for _ in 0..2 {
            let (peer, mut connection) = match self.to_node(holder) {
                Ok(found) => found,
                Err(error) => return Err(failed.unwrap_or(error)),
            };
            let reply = connection.call(service::FRAMES, frames_fn::GET_PIECE, &ask.encode(), &[]);
            if connection.is_alive() {
                let mut peer = lock(&peer);
                if peer.idle.len() < IDLE_MAX {
                    peer.idle.push(*connection);
                }
                drop(peer);
                let reply = reply?;
                let given = GivenPiece::decode(&reply.payload)?;
                if reply.bulk.len() as u64 != ask.length {
                    return Err(Error::new(
                        ErrorKind::Protocol,
                        "what the other node gave has another length",
                    ));
                }
                return Ok((given, reply.bulk));
            }
            lock(&peer).idle.clear();
            failed = reply.err();
        }
        Err(failed.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "the other node left")))
    }

    /// A connection to the node `holder`.
    fn to_node(&self, holder: u128) -> Result<(Arc<Mutex<Peer>>, Box<Connection>)> {
        let absent = || {
            let why = "no node of the list of peers that answers is the one that holds the frame";
            Error::new(ErrorKind::Unavailable, why)
        };
        let key = self.key.as_ref().ok_or_else(absent)?;
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(absent)?;
        let all: Vec<_> = {
            let mut known = lock(&self.known);
            known.refresh(&list);
            known.nodes.iter().cloned().zip(known.peers.iter().cloned()).collect()
        };
        let is_holder = |peer: &Arc<Mutex<Peer>>| lock(peer).node == Some(holder);
        let may_be = |peer: &Arc<Mutex<Peer>>| lock(peer).node.is_none_or(|node| node == holder);
        // Who has said to be that node, then who has said nothing yet. Another thread may have
        // heard of it meanwhile.
        let said = all.iter().filter(|(_, peer)| is_holder(peer));
        let others = all.iter().filter(|(_, peer)| may_be(peer) && !lock(peer).is_own);
        for (addr, peer) in said.chain(others) {
            if let Whom::Peer(connection) = self.connect(key, addr, peer) {
                if is_holder(peer) {
                    return Ok((peer.clone(), connection));
                }
                lock(peer).idle.push(*connection);
            }
        }
        Err(absent())
    }

    /// The peers in the order in which they are asked for a block; `None` if there are none.
    fn in_order(&self, wanted: &Wanted<'_>) -> Option<Vec<(String, Arc<Mutex<Peer>>)>> {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner).clone()?;
        let mut known = lock(&self.known);
        known.refresh(&list);
        let file = format!("{}/{}", wanted.dataset, wanted.blocks.path);
        let ranked = ranked(&known.nodes, &file, wanted.number);
        Some(ranked.into_iter().map(|at| (known.nodes[at].clone(), known.peers[at].clone())).collect())
    }

    /// A connection to the peer at `addr`, if it is time to ask it and it answers.
    fn connect(&self, key: &ClusterKey, addr: &str, peer: &Mutex<Peer>) -> Whom {
        {
            let mut peer = lock(peer);
            if peer.is_own {
                return Whom::Own;
            }
            if peer.not_before.is_some_and(|until| Instant::now() < until) {
                return Whom::Nobody;
            }
            peer.not_before = None;
            if let Some(idle) = peer.idle.pop() {
                return Whom::Peer(Box::new(idle));
            }
        }
        match self.connect_anew(key, addr) {
            Ok((node, _)) if node == self.own => {
                lock(peer).is_own = true;
                Whom::Own
            }
            Ok((node, connection)) => {
                lock(peer).node = Some(node);
                Whom::Peer(Box::new(connection))
            }
            Err(error) => {
                tracing::debug!("peer {addr}: {error}");
                lock(peer).not_before = Some(Instant::now() + HOLD_OFF);
                Whom::Nobody
            }
        }
    }

    /// Which node listens there, and a connection to it.
    fn connect_anew(&self, key: &ClusterKey, addr: &str) -> Result<(u128, Connection)> {
        let mut connection = Connection::tcp(addr, key, &self.identity, CONNECT)?;
        connection.set_timeout(Some(CONNECT));
        let info =
            NodeInfo::decode(&connection.call(service::CONTROL, control_fn::HELLO, &[], &[])?.payload)?;
        connection.set_timeout(Some(PATIENCE));
        Ok((info.node, connection))
    }
}

enum Whom {
    Peer(Box<Connection>),
    /// This node is the home, or stands in for it.
    Own,
    Nobody,
}

impl Known {
    /// Reads the list again if it may have changed. A list that cannot be read is taken as it was.
    fn refresh(&mut self, list: &PeerList) {
        if self.looked.is_some_and(|at| at.elapsed() < LIST_LOOK) {
            return;
        }
        self.looked = Some(Instant::now());
        let nodes = match list {
            PeerList::Nodes(nodes) => nodes.clone(),
            PeerList::File(path) => {
                let Ok(found) = std::fs::metadata(path) else { return };
                let stamp = found.modified().ok().map(|modified| (modified, found.len()));
                if stamp.is_some() && stamp == self.file {
                    return;
                }
                let Ok(text) = settings_text(path) else { return };
                self.file = stamp;
                parse_nodes(&text)
            }
        };
        if nodes != self.nodes {
            let kept = |node: &String| {
                let at = self.nodes.iter().position(|known| known == node);
                at.map_or_else(Arc::default, |at| self.peers[at].clone())
            };
            self.peers = nodes.iter().map(kept).collect();
            self.nodes = nodes;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ask(connection: &mut Connection, wanted: &Wanted<'_>) -> Result<Vec<u8>> {
    let ask = GetBlock {
        dataset: wanted.dataset.to_owned(),
        pattern: wanted.blocks.pattern(),
        version: wanted.blocks.version,
        number: wanted.number,
    };
    let reply = connection.call(service::FRAMES, frames_fn::GET_BLOCK, &ask.encode(), &[])?;
    let given = GivenBlock::decode(&reply.payload)?;
    check(wanted, &given, &reply.bulk)?;
    Ok(reply.bulk)
}

/// Whether these are the bytes that this node's own copy of the source would have.
fn check(wanted: &Wanted<'_>, given: &GivenBlock, bytes: &[u8]) -> Result<()> {
    let refuse = |kind, why: &str| Err(Error::new(kind, format!("what the other node gave {why}")));
    if bytes.len() as u64 != wanted.length {
        return refuse(ErrorKind::Protocol, "has another length");
    }
    if !given.validator.agrees_with(&wanted.seen) {
        return refuse(ErrorKind::Stale, "is of another version of the file, or of one that is just written");
    }
    if given.checksum != frame_checksum(bytes) {
        return refuse(ErrorKind::Corrupt, "does not match its checksum");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_core::RelPath;

    #[test]
    fn lists_of_peers() {
        assert_eq!(PeerList::parse("b:2,a:1").unwrap(), PeerList::Nodes(vec!["a:1".into(), "b:2".into()]));
        assert_eq!(PeerList::parse("/etc/nodes").unwrap(), PeerList::File("/etc/nodes".into()));
        for wrong in ["a:1,b", "a:x", ":1"] {
            let error = PeerList::parse(wrong).unwrap_err();
            assert!(error.to_string().contains("host:port"), "{wrong}: {error}");
        }
    }

    #[test]
    fn bytes_that_are_not_the_sources_are_refused() {
        let seen = Validator { size: 9000, mtime_ns: 5, ctime_ns: 6, inode: 7, unsettled: false };
        let blocks = Blocks { path: RelPath::new("f").unwrap(), block_bytes: 4096, version: seen };
        let wanted = Wanted { dataset: "/d", blocks: &blocks, number: blocks.first(), length: 4096, seen };
        let bytes = vec![3; 4096];
        let good = GivenBlock { validator: seen, checksum: frame_checksum(&bytes) };
        check(&wanted, &good, &bytes).unwrap();
        let kind = |given: GivenBlock, bytes: &[u8]| check(&wanted, &given, bytes).unwrap_err().kind();
        assert_eq!(kind(good, &bytes[1..]), ErrorKind::Protocol);
        assert_eq!(kind(GivenBlock { checksum: 1, ..good }, &bytes), ErrorKind::Corrupt);
        for validator in [
            Validator { mtime_ns: 4, ..seen },
            Validator { inode: 8, ..seen },
            Validator { unsettled: true, ..seen },
        ] {
            assert_eq!(kind(GivenBlock { validator, ..good }, &bytes), ErrorKind::Stale);
        }
    }

    #[test]
    fn the_file_of_nodes_may_come_later_and_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes");
        let list = PeerList::File(path.clone());
        let mut known = Known::default();
        let mut look = |text: Option<&str>| {
            if let Some(text) = text {
                std::fs::write(&path, text).unwrap();
            }
            known.looked = None;
            known.refresh(&list);
            known.nodes.clone()
        };
        assert!(look(None).is_empty());
        assert_eq!(look(Some("# x\nb:2\na:1\n")), ["a:1", "b:2"]);
        assert_eq!(look(Some("b:2\n")), ["b:2"]);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(look(None), ["b:2"]);
        // Nobody waits for a FIFO's writer, and what has no end is not read.
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        assert_eq!(look(None), ["b:2"]);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert_eq!(look(None), ["b:2"]);
    }
}
