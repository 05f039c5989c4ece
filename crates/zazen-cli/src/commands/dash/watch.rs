//! Asks the nodes again and again, each by itself, so that one that hangs keeps no other waiting.
//!
//! Invariant: a node that is killed, stopped or cut off is shown so within [`STATUS_WITHIN`] +
//! [`PING_WITHIN`] + the interval, plus what looking up its name takes.

use super::explained::Explained;
use super::rates::{Done, History};
use super::view::{self, Heard, Seen};
use crate::commands::status;
use crate::target::{Missed, Node};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use zazen_client::cluster::Remote;
use zazen_core::{Error, ErrorKind, Result};

/// How long a status may take before the node is asked whether it is there at all.
const STATUS_WITHIN: Duration = Duration::from_secs(3);
/// How long it may take to say so.
const PING_WITHIN: Duration = Duration::from_secs(2);
/// Nodes that are asked at once.
const THREADS_MAX: usize = 256;
/// The longest pause before a slow node is asked again.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// What is known of all nodes. Shared by threads.
pub(super) struct Watch {
    nodes: Vec<Node>,
    every: Duration,
    began: Instant,
    seen: Mutex<Vec<Seen>>,
    history: Mutex<History>,
    explained: Explained,
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When a node is asked next, and which one.
type Turn = Reverse<(Instant, usize)>;

impl Watch {
    /// `flags`: what a command line needs to reach the nodes.
    pub(super) fn new(nodes: Vec<Node>, flags: String, every: Duration) -> Arc<Watch> {
        let seen = nodes.iter().map(|node| Seen::new(node.name.clone(), node.target.to_string())).collect();
        Arc::new(Watch {
            explained: Explained::new(nodes.clone(), flags),
            nodes,
            every,
            began: Instant::now(),
            seen: Mutex::new(seen),
            history: Mutex::new(History::default()),
        })
    }

    /// Asks until the process ends. Fails if there can be no threads.
    pub(super) fn run(self: &Arc<Watch>) -> Result<()> {
        let now = Instant::now();
        let turns: BinaryHeap<Turn> = (0..self.nodes.len()).map(|index| Reverse((now, index))).collect();
        let turns = Arc::new(Mutex::new(turns));
        let connections = Arc::new((0..self.nodes.len()).map(|_| Mutex::new(None)).collect::<Vec<_>>());
        let threads = |error| Error::io("start a thread that asks the nodes", error);
        for _ in 0..self.nodes.len().min(THREADS_MAX) {
            let (watch, turns, connections) = (self.clone(), turns.clone(), connections.clone());
            let ask = move || watch.ask_in_turn(&turns, &connections);
            std::thread::Builder::new().name("asks".into()).spawn(ask).map_err(threads)?;
        }
        let watch = self.clone();
        let explain = move || {
            loop {
                watch.explained.go_on(|| watch.lately_used());
            }
        };
        std::thread::Builder::new().name("explains".into()).spawn(explain).map_err(threads)?;
        loop {
            std::thread::sleep(self.every);
            let all =
                held(&self.seen).iter().fold(Done::default(), |all, node| all.plus(node.progress.total));
            held(&self.history).add(self.now(), all);
        }
    }

    /// Seconds since the page began.
    fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn ask_in_turn(&self, turns: &Mutex<BinaryHeap<Turn>>, connections: &[Mutex<Option<Remote>>]) {
        loop {
            let Some(Reverse((at, index))) = held(turns).pop() else { return };
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            let begin = Instant::now();
            let heard = ask(&self.nodes[index], &mut held(&connections[index]));
            let took = begin.elapsed();
            let now = self.now();
            held(&self.seen)[index].hear(now, took.as_secs_f64(), heard);
            // A node that is busy is not kept busy by being asked.
            let pause = self.every.max((2 * took).min(PAUSE_MAX)).saturating_sub(took);
            held(turns).push(Reverse((Instant::now() + pause, index)));
        }
    }

    /// Directories of datasets, the one that was used last first, as far as the nodes tell.
    fn lately_used(&self) -> Vec<String> {
        let seen = held(&self.seen);
        let mut all: Vec<(Option<f64>, u64, &str)> = seen
            .iter()
            .flat_map(|node| node.used().map(|((path, _), at, clock)| (at, clock, path.as_str())))
            .collect();
        all.sort_by(|one, other| {
            other.0.partial_cmp(&one.0).unwrap_or(std::cmp::Ordering::Equal).then(other.1.cmp(&one.1))
        });
        let mut paths: Vec<String> = Vec::new();
        for (_, _, path) in all {
            if !paths.iter().any(|known| known == path) {
                paths.push(path.to_owned());
            }
        }
        paths
    }

    /// All that the page shows, as JSON. `dataset`: whose last analysis is to be explained; `None`:
    /// that of the last analysis there is.
    pub(super) fn state(&self, dataset: Option<String>) -> String {
        let now = self.now();
        let mut all = view::all(&held(&self.seen), now);
        all["version"] = json!(env!("CARGO_PKG_VERSION"));
        all["now_s"] = json!(now);
        all["every_s"] = json!(self.every.as_secs_f64());
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        all["wall_ms"] = json!(u64::try_from(epoch.as_millis()).unwrap_or(0));
        all["history"] = held(&self.history).as_json();
        all["explain"] = self.explained.of(dataset);
        all.to_string()
    }
}

/// Asks a node for its status over its connection, or over a new one.
fn ask(node: &Node, connection: &mut Option<Remote>) -> Heard {
    let missed = |error: Error| {
        let missed = Missed::new(node, error);
        let state = missed.state.word().to_owned();
        Heard::Missed { state, error: missed.error.to_string(), remedy: missed.state.remedy().to_owned() }
    };
    let kept = connection.take().filter(Remote::is_alive);
    let was_kept = kept.is_some();
    let mut answer = kept.map_or_else(|| node.connect(), Ok).and_then(status_of);
    let is_gone = |error: &Error| error.kind() != ErrorKind::TimedOut;
    // A daemon that was restarted meanwhile closed the old connection.
    if was_kept && answer.as_ref().is_err_and(is_gone) {
        answer = node.connect().and_then(status_of);
    }
    match answer {
        Ok((remote, status)) => {
            *connection = Some(remote);
            Heard::Status { state: status::state(&status).to_owned(), status }
        }
        Err(error) if error.kind() == ErrorKind::TimedOut && is_there(node) => Heard::Slow,
        Err(error) => missed(error),
    }
}

fn status_of(mut remote: Remote) -> Result<(Remote, Value)> {
    remote.set_timeout(Some(STATUS_WITHIN));
    let text = remote.status()?;
    let status = serde_json::from_str(&text)
        .map_err(|error| Error::new(ErrorKind::Protocol, format!("{}: status: {error}", remote.target())))?;
    Ok((remote, status))
}

fn is_there(node: &Node) -> bool {
    let pinged = Remote::connect_within(&node.target, node.key(), PING_WITHIN).and_then(|mut remote| {
        remote.set_timeout(Some(PING_WITHIN));
        remote.ping()
    });
    pinged.is_ok()
}
