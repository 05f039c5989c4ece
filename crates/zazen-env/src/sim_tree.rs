//! The state behind a [`crate::SimDisk`]: names, files, and what of both has reached the platter.
//!
//! Invariants: the `durable` names plus the whole `journal` are the `current` names. A file lives
//! as long as a name, a journalled change or an open handle needs it. An operation costs what it
//! touches; only copies of the whole tree cost as much as there are names.

use crate::random::SeededRandom;
use crate::sim_inode::Inode;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Changes of names that may wait for the platter. Beyond it the oldest go there, as a kernel
/// commits its journal from time to time: otherwise a workload that never syncs a folder would keep
/// every file that it ever removed.
const JOURNAL_MAX: usize = 1024;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Dir,
    File(u64),
}

/// A change of names.
#[derive(Clone, Debug)]
enum Change {
    Set(String, Node),
    Rename(String, String),
    Unset(String),
    /// Zazen's mark on a file: attributes are journalled like names.
    Mark(u64),
}

impl Change {
    /// The file that the change speaks of, where it names one.
    fn file(&self) -> Option<u64> {
        match self {
            Change::Set(_, Node::File(inode)) | Change::Mark(inode) => Some(*inode),
            _ => None,
        }
    }
}

/// Which reference of a file to count.
#[derive(Clone, Copy)]
enum Hold {
    Link,
    Pin,
    Handle,
}

/// Names, files and the journal of changes that are not on the platter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    pub(crate) current: BTreeMap<String, Node>,
    durable: BTreeMap<String, Node>,
    journal: VecDeque<Change>,
    inodes: BTreeMap<u64, Inode>,
    next: u64,
    /// Files that a power failure could change.
    unsettled: BTreeSet<u64>,
    /// Pages of all files that have a name.
    pages: u64,
}

/// Applies a change of names; the files that gained and that lost a name.
fn apply(names: &mut BTreeMap<String, Node>, change: &Change) -> (Option<u64>, Option<u64>) {
    let file = |node: Option<Node>| match node {
        Some(Node::File(inode)) => Some(inode),
        _ => None,
    };
    match change {
        Change::Set(path, node) => (file(Some(*node)), file(names.insert(path.clone(), *node))),
        Change::Rename(from, to) => match names.remove(from) {
            Some(node) => (None, file(names.insert(to.clone(), node))),
            None => (None, None),
        },
        Change::Unset(path) => (None, file(names.remove(path))),
        Change::Mark(_) => (None, None),
    }
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(above, _)| above)
}

impl Tree {
    /// Pages of all files that have a name.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Files that take memory.
    pub(crate) fn inode_count(&self) -> usize {
        self.inodes.len()
    }

    fn count(&mut self, inode: u64, hold: Hold, step: i32) {
        let Some(file) = self.inodes.get_mut(&inode) else { return };
        let was_named = file.links > 0;
        let counter = match hold {
            Hold::Link => &mut file.links,
            Hold::Pin => &mut file.pins,
            Hold::Handle => &mut file.handles,
        };
        *counter = counter.saturating_add_signed(step);
        match (was_named, file.links > 0) {
            (false, true) => self.pages += file.allocated(),
            (true, false) => self.pages -= file.allocated(),
            _ => {}
        }
        if file.links == 0 && file.pins == 0 && file.handles == 0 {
            self.inodes.remove(&inode);
            self.unsettled.remove(&inode);
        }
    }

    fn change(&mut self, change: Change) {
        let (gained, lost) = apply(&mut self.current, &change);
        gained.into_iter().for_each(|inode| self.count(inode, Hold::Link, 1));
        change.file().into_iter().for_each(|inode| self.count(inode, Hold::Pin, 1));
        lost.into_iter().for_each(|inode| self.count(inode, Hold::Link, -1));
        self.journal.push_back(change);
        if self.journal.len() > JOURNAL_MAX {
            self.commit(JOURNAL_MAX / 2);
        }
    }

    /// Brings the oldest `changes` to the platter.
    fn commit(&mut self, changes: usize) {
        for _ in 0..changes {
            let Some(change) = self.journal.pop_front() else { return };
            let (gained, lost) = apply(&mut self.durable, &change);
            gained.into_iter().for_each(|inode| self.count(inode, Hold::Pin, 1));
            lost.into_iter().for_each(|inode| self.count(inode, Hold::Pin, -1));
            if let Change::Mark(inode) = change
                && let Some(file) = self.inodes.get_mut(&inode)
            {
                file.mark_is_durable();
            }
            change.file().into_iter().for_each(|inode| self.count(inode, Hold::Pin, -1));
        }
    }

    pub(crate) fn set_dir(&mut self, path: &str) {
        self.change(Change::Set(path.to_owned(), Node::Dir));
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        self.change(Change::Rename(from.to_owned(), to.to_owned()));
    }

    pub(crate) fn unset(&mut self, path: &str) {
        self.change(Change::Unset(path.to_owned()));
    }

    pub(crate) fn mark(&mut self, inode: u64) {
        self.update(inode, Inode::mark);
        self.change(Change::Mark(inode));
    }

    pub(crate) fn new_file(&mut self, path: &str, now_ns: i64) -> u64 {
        let inode = self.next;
        self.next += 1;
        self.inodes.insert(inode, Inode::new(now_ns));
        self.unsettled.insert(inode);
        self.change(Change::Set(path.to_owned(), Node::File(inode)));
        inode
    }

    pub(crate) fn opened(&mut self, inode: u64) {
        self.count(inode, Hold::Handle, 1);
    }

    pub(crate) fn closed(&mut self, inode: u64) {
        self.count(inode, Hold::Handle, -1);
    }

    /// The file with this number; one that never came to be reads as empty.
    pub(crate) fn file(&self, inode: u64) -> Option<&Inode> {
        self.inodes.get(&inode)
    }

    /// Changes a file and keeps count of its pages.
    pub(crate) fn update<R>(&mut self, inode: u64, change: impl FnOnce(&mut Inode) -> R) -> Option<R> {
        let file = self.inodes.get_mut(&inode)?;
        let before = file.allocated();
        let result = change(file);
        if file.links > 0 {
            self.pages = self.pages + file.allocated() - before;
        }
        if file.is_settled() {
            self.unsettled.remove(&inode);
        } else {
            self.unsettled.insert(inode);
        }
        Some(result)
    }

    /// Changes every file that a power failure could change.
    pub(crate) fn update_unsettled(&mut self, mut change: impl FnMut(&mut Inode)) {
        for inode in self.unsettled.clone() {
            self.update(inode, &mut change);
        }
    }

    /// Entries of a directory: (name, node).
    pub(crate) fn entries<'a>(&'a self, path: &'a str) -> impl Iterator<Item = (&'a str, Node)> {
        let start = if path.is_empty() { String::new() } else { format!("{path}/") };
        let skip = start.len();
        self.current
            .range(start.clone()..)
            .take_while(move |(name, _)| name.starts_with(&start))
            .filter(move |(name, _)| folder(name) == path && !name.is_empty())
            .map(move |(name, node)| (&name[skip..], *node))
    }

    /// Makes durable all changes up to the last that touched `dir`.
    pub(crate) fn sync_dir(&mut self, dir: &str) {
        let touches = |change: &Change| match change {
            Change::Set(path, _) | Change::Unset(path) => folder(path) == dir,
            Change::Rename(from, to) => folder(from) == dir || folder(to) == dir,
            Change::Mark(_) => false,
        };
        let upto = self.journal.iter().rposition(touches).map_or(0, |at| at + 1);
        self.commit(upto);
    }

    pub(crate) fn sync_all(&mut self) {
        self.commit(self.journal.len());
        self.update_unsettled(Inode::sync);
    }

    /// The tree after the power failed: a prefix of the changes of names, and of each file what its
    /// own fate leaves.
    pub(crate) fn after_power_failure(&self, random: &mut SeededRandom) -> Tree {
        let mut tree = self.clone();
        let changes = tree.journal.len() as u64;
        let kept = if random.percent(40) { changes } else { random.below(changes + 1) };
        tree.commit(kept as usize);
        tree.journal.clear();
        tree.current.clone_from(&tree.durable);
        tree.update_unsettled(|file| file.power_fails(random));
        tree.recounted()
    }

    /// The tree after the process died and the machine went on.
    pub(crate) fn after_kill(&self) -> Tree {
        self.clone().recounted()
    }

    /// A copy without the handles of the original.
    fn recounted(mut self) -> Tree {
        for file in self.inodes.values_mut() {
            (file.links, file.pins, file.handles) = (0, 0, 0);
        }
        let is_file = |node: &Node| match node {
            Node::File(inode) => Some(*inode),
            Node::Dir => None,
        };
        let links: Vec<u64> = self.current.values().filter_map(is_file).collect();
        let names = self.durable.values().filter_map(is_file);
        let pins: Vec<u64> = names.chain(self.journal.iter().filter_map(Change::file)).collect();
        for (inodes, is_link) in [(links, true), (pins, false)] {
            for inode in inodes {
                let Some(file) = self.inodes.get_mut(&inode) else { continue };
                let counter = if is_link { &mut file.links } else { &mut file.pins };
                *counter += 1;
            }
        }
        self.inodes.retain(|_, file| file.links > 0 || file.pins > 0);
        let (inodes, unsettled) = (&self.inodes, &mut self.unsettled);
        unsettled.retain(|inode| inodes.contains_key(inode));
        self.pages = self.inodes.values().filter(|file| file.links > 0).map(Inode::allocated).sum();
        self
    }
}
