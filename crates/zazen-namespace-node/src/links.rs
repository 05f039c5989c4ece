//! Connections to other daemons.
//!
//! Envelopes of the engine go through one connection and one thread for each node: while a call is
//! under way, what comes meanwhile is collected, so traffic batches itself under load. A node that
//! does not answer loses what was meant for it, which the engine allows. Calls that need an answer
//! take a connection of their own.
//!
//! A connection begins with the proof of both sides who they are (`proof`). A node that the map has
//! at an address is believed there, and no other one.

use crate::proof::NodeSecret;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zazen_call::{ClusterKey, Connection, Identity, Reply};
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace::service::{Introduced, MapView, namespace_fn};
use zazen_wire::Message;
use zazen_wire::codec::{Reader, Writer};
use zazen_wire::field::{Blob, Field, List};
use zazen_wire::service;

/// How long a node may take to accept a connection and to prove the key.
const CONNECT: Duration = Duration::from_secs(2);
/// A node that did not accept is tried again after this.
const HOLD_OFF: Duration = Duration::from_millis(500);
/// How long a node may take for a batch of envelopes.
const POST: Duration = Duration::from_secs(5);
/// Idle connections that are kept for each node.
const IDLE_MAX: usize = 32;
/// Bytes of envelopes that wait for a node; what is more is dropped.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Bytes of envelopes in one call.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// The longest envelope.
const ENVELOPE_BYTES_MAX: usize = 64 << 20;

/// Envelopes that go in one call.
pub struct Envelopes;

impl Envelopes {
    /// The envelopes as a payload.
    pub fn encode(envelopes: &Vec<Vec<u8>>) -> Vec<u8> {
        let mut writer = Writer::new();
        List::<Blob<ENVELOPE_BYTES_MAX>>::write(envelopes, &mut writer);
        writer.into_bytes()
    }

    /// The envelopes in a payload.
    pub fn decode(payload: &[u8]) -> Result<Vec<Vec<u8>>> {
        List::<Blob<ENVELOPE_BYTES_MAX>>::read(&mut Reader::new("envelopes", payload))
    }
}

/// Nodes that are remembered beside those of the map.
const CAME_MAX: usize = 1 << 16;

/// The connections of one daemon to the others.
pub struct Links {
    way: Arc<Way>,
    peers: Mutex<HashMap<String, Arc<Peer>>>,
    stopping: Arc<AtomicBool>,
}

/// How to reach another node, and whom to believe there.
struct Way {
    key: Option<ClusterKey>,
    identity: Identity,
    secret: Mutex<Option<Arc<NodeSecret>>>,
    known: Mutex<Known>,
}

/// Which nodes are at an address.
#[derive(Default)]
struct Known {
    /// By the map; 0 for one that has not come yet.
    of_map: HashMap<String, Vec<u128>>,
    /// Nodes that the map does not have, or not there, and that proved to be there.
    came: HashMap<String, u128>,
    /// Who was asked whether it is this node and did not prove it, and when.
    unproved: HashMap<(String, u128), Instant>,
}

/// What is called: a node of the map only, or also one that wants to come in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Map,
    Envelopes,
}

impl Known {
    fn accepts(&self, address: &str, key: u128, of: Of) -> bool {
        let by_map = self.of_map.get(address).is_none_or(|keys| keys.contains(&key) || keys.contains(&0));
        by_map || (of == Of::Envelopes && self.came.get(address) == Some(&key))
    }
}

impl Way {
    /// A connection to `address` whose ends know each other.
    fn connect(&self, address: &str, of: Of) -> Result<Connection> {
        self.connect_to(address, |key| lock(&self.known).accepts(address, key, of))
    }

    fn connect_to(&self, address: &str, accepts: impl FnOnce(u128) -> bool) -> Result<Connection> {
        let unavailable = |why: String| Error::new(ErrorKind::Unavailable, why);
        let Some(key) = &self.key else {
            let why = format!("node {address}: this daemon has no cluster key, so it reaches no other node");
            return Err(unavailable(why));
        };
        let Some(secret) = lock(&self.secret).clone() else {
            return Err(unavailable(format!("node {address}: this node has not begun yet")));
        };
        let connection = Connection::tcp(address, key, &self.identity, CONNECT)?;
        // Both calls use it, one after the other.
        let connection = std::cell::RefCell::new(connection);
        connection.borrow_mut().set_timeout(Some(CONNECT));
        let call = |function, payload: &[u8]| {
            connection.borrow_mut().call(service::NAMESPACE, function, payload, &[])
        };
        secret.introduce(
            &format!("the daemon at {address}"),
            |mine| Introduced::decode(&call(namespace_fn::INTRODUCE, &mine.encode())?.payload),
            accepts,
            |proof| call(namespace_fn::PROVE, &proof.encode()).map(drop),
        )?;
        Ok(connection.into_inner())
    }
}

struct Peer {
    address: String,
    idle: Mutex<Idle>,
    queue: Mutex<Queue>,
    filled: Condvar,
}

#[derive(Default)]
struct Idle {
    connections: Vec<Connection>,
    not_before: Option<Instant>,
}

#[derive(Default)]
struct Queue {
    envelopes: Vec<Vec<u8>>,
    bytes: usize,
    dropped: u64,
    has_thread: bool,
}

/// Why a call gave no reply.
pub(crate) enum Failed {
    /// It was not sent.
    Before(Error),
    /// It was sent, and may have been executed.
    Meanwhile(Error),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Links {
    /// Links that prove `key`; without one there are no other nodes.
    pub fn new(key: Option<ClusterKey>, name: &str) -> Links {
        let identity = Identity { host: name.to_owned(), ..Identity::of_this_process() };
        // Groups are of no use to a daemon, and a remote one is told of some only.
        let credentials = zazen_core::Credentials { groups: Vec::new(), ..identity.credentials };
        let identity = Identity { credentials, ..identity };
        let way = Way { key, identity, secret: Mutex::default(), known: Mutex::default() };
        Links { way: Arc::new(way), peers: Mutex::default(), stopping: Arc::default() }
    }

    /// Who this node is. Without it no other node is reached.
    pub fn prove_as(&self, secret: NodeSecret) {
        *lock(&self.way.secret) = Some(Arc::new(secret));
    }

    /// What this node proves to be, once it has begun.
    pub(crate) fn secret(&self) -> Option<Arc<NodeSecret>> {
        lock(&self.way.secret).clone()
    }

    /// Takes from a map which nodes are where.
    pub fn learn(&self, map: &MapView) {
        let mut of_map: HashMap<String, Vec<u128>> = HashMap::new();
        for node in &map.nodes {
            of_map.entry(node.addr.clone()).or_default().push(node.key);
        }
        lock(&self.way.known).of_map = of_map;
    }

    /// Whether the daemon at `address` proves to be the node with this key. Asks it, unless it has
    /// proved so before.
    pub(crate) fn confirms(&self, address: &str, key: u128) -> bool {
        {
            let known = lock(&self.way.known);
            let of_map = known.of_map.get(address).is_some_and(|keys| keys.contains(&key));
            if of_map || known.came.get(address) == Some(&key) {
                return true;
            }
            // Envelopes come all the time, and each question takes a connection.
            let asked = known.unproved.get(&(address.to_owned(), key));
            if asked.is_some_and(|asked| asked.elapsed() < HOLD_OFF) {
                return false;
            }
        }
        let confirmed = self.way.connect_to(address, |proved| proved == key);
        let mut known = lock(&self.way.known);
        if known.came.len() >= CAME_MAX {
            known.came.clear();
        }
        if known.unproved.len() >= CAME_MAX {
            known.unproved.clear();
        }
        match confirmed {
            Ok(_) => {
                known.unproved.remove(&(address.to_owned(), key));
                known.came.insert(address.to_owned(), key);
                true
            }
            Err(error) => {
                known.unproved.insert((address.to_owned(), key), Instant::now());
                tracing::debug!("namespace: a node says that it is at {address}: {error}");
                false
            }
        }
    }

    fn peer(&self, address: &str) -> Arc<Peer> {
        let mut peers = lock(&self.peers);
        if let Some(peer) = peers.get(address) {
            return Arc::clone(peer);
        }
        let peer = Arc::new(Peer {
            address: address.to_owned(),
            idle: Mutex::default(),
            queue: Mutex::default(),
            filled: Condvar::new(),
        });
        peers.insert(address.to_owned(), Arc::clone(&peer));
        peer
    }

    /// Sends an envelope to the engine at `address`, or drops it.
    pub fn post(&self, address: &str, bytes: Vec<u8>) {
        if self.way.key.is_none() {
            return;
        }
        let peer = self.peer(address);
        let mut queue = lock(&peer.queue);
        if queue.bytes + bytes.len() > QUEUE_BYTES_MAX {
            queue.dropped += 1;
            return;
        }
        queue.bytes += bytes.len();
        queue.envelopes.push(bytes);
        if !queue.has_thread {
            let (peer, way) = (Arc::clone(&peer), Arc::clone(&self.way));
            let stopping = Arc::clone(&self.stopping);
            let run = move || run_post(&peer, &way, &stopping);
            let thread = std::thread::Builder::new().name("ns-post".to_owned()).spawn(run);
            queue.has_thread = thread.is_ok();
        }
        peer.filled.notify_one();
    }

    /// Calls the daemon at `address` and waits, at most for `patience`. `Unavailable` if it did not
    /// accept a moment ago.
    pub fn call(
        &self,
        address: &str,
        function: u16,
        payload: &[u8],
        bulk: &[u8],
        patience: Duration,
    ) -> Result<Reply> {
        let called = self.try_call(address, function, payload, bulk, patience);
        called.map_err(|failed| match failed {
            Failed::Before(error) | Failed::Meanwhile(error) => error,
        })
    }

    /// The same; a failure says whether the call may have been executed.
    pub(crate) fn try_call(
        &self,
        address: &str,
        function: u16,
        payload: &[u8],
        bulk: &[u8],
        patience: Duration,
    ) -> std::result::Result<Reply, Failed> {
        let peer = self.peer(address);
        let mut connection = self.connect(&peer).map_err(Failed::Before)?;
        connection.set_timeout(Some(patience));
        let bulk: &[&[u8]] = if bulk.is_empty() { &[] } else { &[bulk] };
        let reply = connection.call(service::NAMESPACE, function, payload, bulk);
        let mut idle = lock(&peer.idle);
        if connection.is_alive() && !is_denied(&reply) {
            if idle.connections.len() < IDLE_MAX {
                idle.connections.push(connection);
            }
        } else {
            // The others are to the same life of the daemon.
            idle.connections.clear();
        }
        reply.map_err(Failed::Meanwhile)
    }

    fn connect(&self, peer: &Peer) -> Result<Connection> {
        {
            let mut idle = lock(&peer.idle);
            if let Some(connection) = idle.connections.pop() {
                return Ok(connection);
            }
            if idle.not_before.is_some_and(|until| Instant::now() < until) {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("node {}: does not answer", peer.address),
                ));
            }
        }
        let connected = self.way.connect(&peer.address, Of::Map);
        if connected.is_err() {
            lock(&peer.idle).not_before = Some(Instant::now() + HOLD_OFF);
        }
        connected
    }

    /// Ends the threads.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        lock(&self.peers).values().for_each(|peer| peer.filled.notify_all());
    }

    /// For each node: address, envelopes that were dropped.
    pub fn status(&self) -> Vec<(String, u64)> {
        let peers = lock(&self.peers);
        let mut rows: Vec<_> =
            peers.values().map(|peer| (peer.address.clone(), lock(&peer.queue).dropped)).collect();
        rows.sort();
        rows
    }
}

impl Peer {
    /// The next envelopes; none once the links stop.
    fn next(&self, stopping: &AtomicBool) -> Vec<Vec<u8>> {
        let mut queue = lock(&self.queue);
        while queue.envelopes.is_empty() && !stopping.load(Ordering::Relaxed) {
            let waited = self.filled.wait_timeout(queue, Duration::from_secs(1));
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut bytes = 0;
        let fits = |envelope: &&Vec<u8>| {
            bytes += envelope.len();
            bytes <= BATCH_BYTES_MAX
        };
        let count = queue.envelopes.iter().take_while(fits).count().max(1).min(queue.envelopes.len());
        let batch: Vec<Vec<u8>> = queue.envelopes.drain(..count).collect();
        queue.bytes -= batch.iter().map(Vec::len).sum::<usize>();
        batch
    }

    fn drop_all(&self, more: usize) {
        let mut queue = lock(&self.queue);
        queue.dropped += (queue.envelopes.len() + more) as u64;
        queue.envelopes.clear();
        queue.bytes = 0;
    }
}

/// Whether the other node does not take this one for who it says it is: perhaps this node has begun
/// anew, as another one. The next connection proves who it is now.
fn is_denied(reply: &Result<Reply>) -> bool {
    reply.as_ref().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

fn run_post(peer: &Peer, way: &Way, stopping: &AtomicBool) {
    let mut connection: Option<Connection> = None;
    while !stopping.load(Ordering::Relaxed) {
        let batch = peer.next(stopping);
        if batch.is_empty() {
            continue;
        }
        let count = batch.len();
        let payload = Envelopes::encode(&batch);
        // A daemon that was restarted is met by the second try.
        let sent = (0..2).any(|_| {
            let open = match connection.take() {
                Some(open) => Ok(open),
                None => way.connect(&peer.address, Of::Envelopes),
            };
            let mut open = match open {
                Ok(open) => open,
                Err(error) => {
                    tracing::debug!("namespace: no way to {}: {error}", peer.address);
                    return false;
                }
            };
            open.set_timeout(Some(POST));
            let sent = open.call(service::NAMESPACE, namespace_fn::PEER, &payload, &[]);
            if open.is_alive() && !is_denied(&sent) {
                connection = Some(open);
            }
            match sent {
                Ok(_) => true,
                Err(error) => {
                    tracing::debug!("namespace: envelopes to {}: {error}", peer.address);
                    false
                }
            }
        });
        if !sent {
            peer.drop_all(count);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
