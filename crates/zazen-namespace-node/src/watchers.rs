//! Who is told what has changed: the tables of `watch`.
//!
//! - The primary of a partition remembers for a while which nodes looked at an inode
//!   ([`Interest`]). When another node changes it, those nodes are told, and forgotten: they look
//!   again. The change is told after it was acknowledged, so who looks again sees it.
//! - A node passes on what it is told to its callers that watch. What one of its callers changes is
//!   told to the others at once.
//! - Nothing here is promised: a message that is lost, or a table that is full, costs only the time
//!   that kernels keep what they know.
//!
//! A node of which nobody watches says so, and is left alone for a while.

use crate::handles::lock;
use crate::links::Links;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use zazen_namespace::operation::{Answer, At, Operation};
use zazen_namespace::service::{Changes, Noticed, Watched, namespace_fn};
use zazen_namespace::{Attributes, Errno, InodeId, NodeNo};
use zazen_wire::Message;

/// How long a node counts as interested in an inode that it looked at.
const INTEREST: Duration = Duration::from_secs(10);
/// Inodes with interested nodes; beyond, what is old is forgotten, and then all.
const INTEREST_MAX: usize = 1 << 16;
/// How long a node on which nobody watches is left alone.
const DEAF: Duration = Duration::from_secs(2);
/// How long a caller that has watched counts as watching.
const WATCHES: Duration = Duration::from_secs(10);
/// Changes that are kept for slow watchers, and that wait for a node.
pub(crate) const KEPT_MAX: usize = 1 << 14;
/// What the changes that are kept for slow watchers may take, as bytes of messages.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// Inodes and names in one answer to a watcher; beyond, it is told to forget all. With the longest
/// names that is about 1 MiB, far below the limit of a reply.
pub(crate) const TOLD_MAX: usize = 4096;
/// How long a node may take to hear of changes.
const TELL: Duration = Duration::from_secs(2);

/// What an operation changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    /// Inodes whose attributes, bytes or entries.
    pub(crate) inodes: Vec<InodeId>,
    /// Names that lead elsewhere, or nowhere, from now on.
    pub(crate) entries: Vec<At>,
}

impl Touched {
    pub(crate) fn of(operation: &Operation) -> Touched {
        let at = |directory: InodeId, name: &zazen_namespace::Name| At { directory, name: name.clone() };
        let inodes = |inodes: Vec<InodeId>| Touched { inodes, entries: Vec::new() };
        match operation {
            Operation::Create(create) => inodes(vec![create.directory]),
            Operation::CreateMany(create) => inodes(vec![create.directory]),
            Operation::MakeDirectory(make) => inodes(vec![make.directory]),
            Operation::Link(link) => inodes(vec![link.id, link.directory]),
            Operation::SetAttributes(set) => inodes(vec![set.id]),
            Operation::SetXattr(set) => inodes(vec![set.id]),
            Operation::Commit(commit) | Operation::Recommit(commit) => inodes(vec![commit.id]),
            Operation::Append(append) => inodes(vec![append.file]),
            Operation::Release(release) if release.commit.is_some() => inodes(vec![release.id]),
            Operation::Open(open) if open.mode.truncate => inodes(vec![open.id]),
            Operation::Unlink(gone) | Operation::RemoveDirectory(gone) => {
                Touched { inodes: vec![gone.directory], entries: vec![gone.clone()] }
            }
            Operation::Rename(moved) => Touched {
                inodes: vec![moved.directory, moved.new_directory],
                entries: vec![at(moved.directory, &moved.name), at(moved.new_directory, &moved.new_name)],
            },
            _ => Touched::default(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// What it takes in a message, about.
    fn bytes(&self) -> usize {
        let names: usize = self.entries.iter().map(|at| 16 + at.name.as_bytes().len()).sum();
        16 + 8 * self.inodes.len() + names
    }

    pub(crate) fn add(&mut self, other: Touched) {
        self.inodes.extend(other.inodes);
        self.entries.extend(other.entries);
    }

    /// The same, with the directories of buckets in the places of these; without those of which the
    /// directory is not known.
    pub(crate) fn by_directories(self, directory_of: impl Fn(InodeId) -> Option<InodeId>) -> Touched {
        let entries = self.entries.into_iter();
        Touched {
            inodes: self.inodes.into_iter().filter_map(&directory_of).collect(),
            entries: entries
                .filter_map(|at| Some(At { directory: directory_of(at.directory)?, name: at.name }))
                .collect(),
        }
    }

    /// The part of it that a partition's primary answers for.
    pub(crate) fn split(
        self,
        mut primary_of: impl FnMut(InodeId) -> Option<NodeNo>,
    ) -> HashMap<NodeNo, Touched> {
        let mut parts: HashMap<NodeNo, Touched> = HashMap::new();
        for id in self.inodes {
            if let Some(primary) = primary_of(id) {
                parts.entry(primary).or_default().inodes.push(id);
            }
        }
        for at in self.entries {
            if let Some(primary) = primary_of(at.directory) {
                parts.entry(primary).or_default().entries.push(at);
            }
        }
        parts
    }
}

pub(crate) fn was_done(answer: &Answer) -> bool {
    match answer {
        Answer::Moved(_) | Answer::Ended => false,
        // It may have been done.
        Answer::Refused(refused) => refused.errno == Errno::ETIMEDOUT,
        _ => true,
    }
}

/// Which nodes looked at which inodes of this node's partitions. *Pure*: time is an argument.
#[derive(Default)]
pub(crate) struct Interest {
    nodes: HashMap<InodeId, Vec<(NodeNo, Instant)>>,
    /// The files of chunks that were opened.
    files: HashMap<InodeId, InodeId>,
    deaf: HashMap<NodeNo, Instant>,
}

impl Interest {
    /// An inode was opened: if it is a chunk, its file is remembered.
    pub(crate) fn granted(&mut self, attributes: &Attributes) {
        if let Some(of) = &attributes.chunk_of {
            if self.files.len() >= INTEREST_MAX {
                self.files.clear();
            }
            self.files.insert(attributes.id, of.file);
        }
    }

    /// What changes a chunk changes its file.
    pub(crate) fn add_files(&self, touched: &mut Touched) {
        let files: Vec<InodeId> =
            touched.inodes.iter().filter_map(|id| self.files.get(id).copied()).collect();
        touched.inodes.extend(files);
    }

    pub(crate) fn looked(&mut self, now: Instant, node: NodeNo, id: InodeId) {
        if self.nodes.len() >= INTEREST_MAX && !self.nodes.contains_key(&id) {
            self.nodes.retain(|_, nodes| nodes.iter().any(|(_, until)| *until > now));
            if self.nodes.len() >= INTEREST_MAX {
                self.nodes.clear();
            }
        }
        let nodes = self.nodes.entry(id).or_default();
        match nodes.iter_mut().find(|known| known.0 == node) {
            Some(known) => known.1 = now + INTEREST,
            None => nodes.push((node, now + INTEREST)),
        }
    }

    pub(crate) fn is_deaf(&self, now: Instant, node: NodeNo) -> bool {
        self.deaf.get(&node).is_some_and(|until| *until > now)
    }

    /// Whom to tell that `by` has changed the inode. They count as told.
    fn changed(&mut self, now: Instant, by: NodeNo, id: InodeId) -> Vec<NodeNo> {
        let Some(nodes) = self.nodes.get_mut(&id) else { return Vec::new() };
        let told: Vec<NodeNo> =
            nodes.iter().filter(|(node, until)| *node != by && *until > now).map(|(node, _)| *node).collect();
        nodes.retain(|(node, until)| *node == by && *until > now);
        if nodes.is_empty() {
            self.nodes.remove(&id);
        }
        told
    }
}

/// What is told to the callers of this node that watch.
#[derive(Default)]
pub(crate) struct Ring {
    /// The number of the first that is kept.
    first: u64,
    kept: VecDeque<(Option<u64>, Touched)>,
    /// Of all that is kept: [`Touched::bytes`].
    bytes: usize,
}

impl Ring {
    /// The number behind the last that is kept.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// Keeps a change. What is too much goes, the oldest first: who has not heard of it hears that
    /// changes are missing.
    fn push(&mut self, by: Option<u64>, touched: Touched) {
        self.bytes += touched.bytes();
        self.kept.push_back((by, touched));
        while self.kept.len() > KEPT_MAX || self.bytes > KEPT_BYTES_MAX {
            let Some((_, gone)) = self.kept.pop_front() else { return };
            self.bytes -= gone.bytes();
            self.first += 1;
        }
    }

    /// The changes from a number on, each as `add` adds it with who made it. A watcher for which
    /// changes are missing, or are too many for an answer, is told to forget all.
    pub(crate) fn changes_from(
        &self,
        after: u64,
        mut add: impl FnMut(Option<u64>, &Touched, &mut Changes),
    ) -> Changes {
        let next = self.end() + 1;
        let all = Changes { next, all: true, inodes: Vec::new(), entries: Vec::new() };
        if after < self.first || after > self.end() {
            return all;
        }
        let mut changes = Changes { all: false, ..all.clone() };
        for (by, touched) in self.kept.iter().skip((after - self.first) as usize) {
            add(*by, touched, &mut changes);
            if changes.inodes.len() + changes.entries.len() > TOLD_MAX {
                return all;
            }
        }
        changes
    }
}

/// What waits to be told to another node.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) touched: Touched,
    /// What that node is the primary of, by who changed it: it knows who looked.
    pub(crate) passes_on: HashMap<NodeNo, Touched>,
    pub(crate) has_thread: bool,
}

impl Outbox {
    /// Inodes and names that wait.
    pub(crate) fn len(&self) -> usize {
        let parts = self.passes_on.values().chain([&self.touched]);
        parts.map(|part| part.inodes.len() + part.entries.len()).sum()
    }
}

/// What a node knows of watchers.
#[derive(Default)]
pub(crate) struct Watchers {
    pub(crate) interest: Mutex<Interest>,
    pub(crate) ring: Mutex<Ring>,
    pub(crate) filled: Condvar,
    callers: Mutex<HashMap<u64, Instant>>,
    pub(crate) watching: AtomicUsize,
    pub(crate) outboxes: Mutex<HashMap<String, Outbox>>,
    pub(crate) posted: Condvar,
    is_stopping: AtomicBool,
}

impl Watchers {
    pub(crate) fn begins(&self, caller: u64) {
        let now = Instant::now();
        let mut callers = lock(&self.callers);
        callers.insert(caller, now + WATCHES);
        callers.retain(|_, until| *until > now);
        self.watching.store(callers.len(), Ordering::Relaxed);
    }

    pub(crate) fn ends(&self, caller: u64) {
        let mut callers = lock(&self.callers);
        callers.remove(&caller);
        self.watching.store(callers.len(), Ordering::Relaxed);
    }

    /// Whether another caller of this node than this one watches.
    pub(crate) fn another_watches(&self, caller: u64) -> bool {
        match self.watching.load(Ordering::Relaxed) {
            0 => false,
            _ => lock(&self.callers).keys().any(|other| *other != caller),
        }
    }

    pub(crate) fn keep(&self, by: Option<u64>, touched: Touched) {
        if touched.is_empty() || self.watching.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut ring = lock(&self.ring);
        ring.push(by, touched);
        drop(ring);
        self.filled.notify_all();
    }

    /// Tells one node what it waits for. While a call is under way, what comes is collected.
    pub(crate) fn run_outbox(&self, links: &Links, node: NodeNo, address: &str) {
        while let Some((touched, passes_on)) = self.next_for(address) {
            let told = [(node, touched, false)];
            let passed = passes_on.into_iter().map(|(by, touched)| (by, touched, true));
            for (by, touched, passes_on) in told.into_iter().chain(passed) {
                if touched.is_empty() {
                    continue;
                }
                let inodes: BTreeSet<InodeId> = touched.inodes.into_iter().collect();
                let inodes = inodes.into_iter().collect();
                let payload = Noticed { by, passes_on, inodes, entries: touched.entries }.encode();
                let reply = links.call(address, namespace_fn::NOTICE, &payload, &[], TELL);
                match reply.and_then(|reply| Watched::decode(&reply.payload)) {
                    Ok(watched) if !watched.watched && !passes_on => {
                        lock(&self.interest).deaf.insert(node, Instant::now() + DEAF);
                    }
                    Ok(_) => {}
                    Err(error) => tracing::debug!("namespace: changes to {address}: {error}"),
                }
            }
        }
    }

    /// What waits for a node; `None` once the daemon stops.
    fn next_for(&self, address: &str) -> Option<(Touched, HashMap<NodeNo, Touched>)> {
        let mut outboxes = lock(&self.outboxes);
        loop {
            if self.is_stopping.load(Ordering::Relaxed) {
                return None;
            }
            let outbox = outboxes.get_mut(address)?;
            if outbox.len() > 0 {
                return Some((std::mem::take(&mut outbox.touched), std::mem::take(&mut outbox.passes_on)));
            }
            let waited = self.posted.wait_timeout(outboxes, Duration::from_secs(1));
            outboxes = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.filled.notify_all();
        self.posted.notify_all();
    }
}

pub(crate) fn fan_out(
    interest: &mut Interest,
    now: Instant,
    by: NodeNo,
    touched: Touched,
    told: &mut HashMap<NodeNo, Touched>,
) {
    let mut looked: HashMap<InodeId, Vec<NodeNo>> = HashMap::new();
    for id in touched.inodes {
        let nodes = interest.changed(now, by, id);
        nodes.iter().for_each(|node| told.entry(*node).or_default().inodes.push(id));
        looked.insert(id, nodes);
    }
    for at in touched.entries {
        for node in looked.get(&at.directory).into_iter().flatten() {
            told.entry(*node).or_default().entries.push(at.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_namespace::{ChunkOf, Kind};

    const A: NodeNo = NodeNo(1);
    const B: NodeNo = NodeNo(2);

    #[test]
    fn who_looked_is_told_once_and_not_by_itself() {
        let mut interest = Interest::default();
        let now = Instant::now();
        let id = InodeId(77);
        interest.looked(now, A, id);
        interest.looked(now, B, id);
        assert_eq!(interest.changed(now, A, id), [B]);
        assert_eq!(interest.changed(now, A, id), []);
        assert_eq!(interest.changed(now, B, id), [A]);
        interest.looked(now, A, id);
        assert_eq!(interest.changed(now + INTEREST, B, id), [], "it has asked no more since");
        assert!(interest.nodes.is_empty());
    }

    #[test]
    fn who_looked_at_a_file_is_told_of_its_chunks() {
        let mut interest = Interest::default();
        let (file, chunk, other) = (InodeId(77), InodeId(78), InodeId(79));
        let mut found = Attributes {
            chunk_of: Some(ChunkOf { file, index: 3, chunk_bytes: 1 << 20 }),
            ..Attributes::new(chunk, Kind::File)
        };
        interest.granted(&found);
        (found.id, found.chunk_of) = (other, None);
        interest.granted(&found);
        let mut touched = Touched { inodes: vec![chunk, other], entries: Vec::new() };
        interest.add_files(&mut touched);
        assert_eq!(touched.inodes, [chunk, other, file]);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut interest = Interest::default();
        let now = Instant::now();
        for id in 0..INTEREST_MAX as u64 + 10 {
            interest.looked(now, A, InodeId(id));
        }
        assert!(interest.nodes.len() <= INTEREST_MAX);
        assert_eq!(interest.changed(now, B, InodeId(INTEREST_MAX as u64 + 9)), [A]);
    }

    fn names(of: std::ops::Range<usize>) -> Touched {
        let at = |number: usize| {
            let name = format!("{number:0>255}");
            At { directory: InodeId(5), name: zazen_namespace::Name::new(name.as_bytes()).expect("a name") }
        };
        Touched { inodes: vec![InodeId(5)], entries: of.map(at).collect() }
    }

    fn tell(_: Option<u64>, touched: &Touched, changes: &mut Changes) {
        changes.inodes.extend(&touched.inodes);
        changes.entries.extend(touched.entries.iter().cloned());
    }

    #[test]
    fn too_many_names_for_an_answer_are_told_as_all_once() {
        let mut ring = Ring::default();
        (0..10).for_each(|part| ring.push(None, names(part * 1000..part * 1000 + 1000)));
        let few = ring.changes_from(ring.end() - 1, tell);
        assert_eq!((few.all, few.entries.len()), (false, 1000));
        let many = ring.changes_from(ring.first, tell);
        assert_eq!((many.all, many.inodes.len(), many.entries.len()), (true, 0, 0));
        assert!(many.encode().len() < 100);
        let rest = ring.changes_from(many.next - 1, tell);
        assert_eq!((rest.all, rest.inodes.len()), (false, 0), "it goes on behind them");
    }

    #[test]
    fn what_is_kept_is_bounded_in_bytes_and_the_slow_are_told() {
        let mut ring = Ring::default();
        for part in 0..100 {
            ring.push(None, names(part * 1000..part * 1000 + 1000));
            let bytes: usize = ring.kept.iter().map(|(_, touched)| touched.bytes()).sum();
            assert_eq!(bytes, ring.bytes);
            assert!(bytes <= KEPT_BYTES_MAX);
        }
        assert_eq!(ring.end(), 100);
        assert!(ring.changes_from(50, tell).all, "changes are missing");
        // One that is too large alone is missed by everybody.
        ring.push(None, names(0..20_000));
        assert_eq!((ring.kept.len(), ring.bytes), (0, 0));
        assert!(ring.changes_from(100, tell).all);
        assert!(!ring.changes_from(101, tell).all);
    }

    #[test]
    fn names_go_to_those_who_looked_at_their_directory() {
        let mut interest = Interest::default();
        let now = Instant::now();
        interest.looked(now, A, InodeId(5));
        let name = zazen_namespace::Name::new(b"f").expect("a name");
        let gone = At { directory: InodeId(5), name };
        let touched = Touched::of(&Operation::Unlink(gone.clone()));
        let mut told = HashMap::new();
        fan_out(&mut interest, now, B, touched, &mut told);
        assert_eq!(told.remove(&A), Some(Touched { inodes: vec![InodeId(5)], entries: vec![gone] }));
        assert!(told.is_empty());
    }
}
