//! The state behind a [`crate::SimDisk`]: inodes, names, and what of both has reached the platter.
//!
//! Invariant: `durable` plus the whole `journal` is `current`.

use crate::random::SeededRandom;
use std::collections::BTreeMap;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Dir,
    File(usize),
}

/// A change of names.
#[derive(Clone, Debug)]
enum Change {
    Set(String, Node),
    Rename(String, String),
    Unset(String),
    /// Zazen's mark on an inode: attributes are journalled like names.
    Mark(usize),
}

/// A file's bytes: what programs see and what has been synced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inode {
    pub(crate) bytes: Vec<u8>,
    durable: Vec<u8>,
    pub(crate) marked: bool,
    durable_marked: bool,
}

impl Inode {
    pub(crate) fn sync(&mut self) {
        self.durable.clone_from(&self.bytes);
        self.durable_marked = self.marked;
    }

    /// What a power failure leaves: each sector of 512 bytes is new, old or zero; the length is that of the
    /// old or the new file, or in between.
    fn after_power_failure(&self, random: &mut SeededRandom) -> Inode {
        let (old, new) = (self.durable.len() as u64, self.bytes.len() as u64);
        let between = old.min(new) + random.below(old.max(new) - old.min(new) + 1);
        let fate = random.below(8);
        let len = match fate {
            0 | 1 => new,
            2 => old,
            _ => *[old, new, new, between].get(random.below(4) as usize).unwrap_or(&new),
        } as usize;
        let mut bytes = vec![0; len];
        for start in (0..len).step_by(512) {
            let end = len.min(start + 512);
            let take = |from: &[u8], into: &mut [u8]| {
                let have = from.len().clamp(start, end) - start;
                into[..have].copy_from_slice(from.get(start..start + have).unwrap_or(&[]));
            };
            let into = &mut bytes[start..end];
            match fate {
                0 => take(&self.bytes, into),
                1 => take(&self.durable, into),
                2 => take(if random.percent(50) { &self.bytes } else { &self.durable }, into),
                _ if random.percent(80) => take(&self.bytes, into),
                _ => take(&self.durable, into),
            }
        }
        // What was synced and not overwritten since is safe, whatever happens to the rest.
        for (at, byte) in self.durable.iter().enumerate().take(len) {
            if self.bytes.get(at) == Some(byte) {
                bytes[at] = *byte;
            }
        }
        let marked = self.durable_marked;
        Inode { durable: bytes.clone(), bytes, marked, durable_marked: marked }
    }
}

/// Names, inodes and the journal of name changes that are not on the platter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    pub(crate) current: BTreeMap<String, Node>,
    durable: BTreeMap<String, Node>,
    journal: Vec<Change>,
    pub(crate) inodes: Vec<Inode>,
}

fn apply(names: &mut BTreeMap<String, Node>, change: &Change) {
    match change {
        Change::Set(path, node) => {
            names.insert(path.clone(), *node);
        }
        Change::Rename(from, to) => {
            if let Some(node) = names.remove(from) {
                names.insert(to.clone(), node);
            }
        }
        Change::Unset(path) => {
            names.remove(path);
        }
        Change::Mark(_) => {}
    }
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(above, _)| above)
}

impl Tree {
    fn change(&mut self, change: Change) {
        apply(&mut self.current, &change);
        self.journal.push(change);
    }

    pub(crate) fn set(&mut self, path: &str, node: Node) {
        self.change(Change::Set(path.to_owned(), node));
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        self.change(Change::Rename(from.to_owned(), to.to_owned()));
    }

    pub(crate) fn unset(&mut self, path: &str) {
        self.change(Change::Unset(path.to_owned()));
    }

    pub(crate) fn mark(&mut self, inode: usize) {
        self.inodes[inode].marked = true;
        self.change(Change::Mark(inode));
    }

    pub(crate) fn new_file(&mut self, path: &str) -> usize {
        self.inodes.push(Inode::default());
        let inode = self.inodes.len() - 1;
        self.set(path, Node::File(inode));
        inode
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
        for change in self.journal.drain(..upto) {
            apply(&mut self.durable, &change);
            if let Change::Mark(inode) = change {
                self.inodes[inode].durable_marked = true;
            }
        }
    }

    pub(crate) fn sync_all(&mut self) {
        self.durable.clone_from(&self.current);
        self.journal.clear();
        self.inodes.iter_mut().for_each(Inode::sync);
    }

    /// The tree after the power failed: a prefix of the name changes, and of each file what its own fate leaves.
    pub(crate) fn after_power_failure(&self, random: &mut SeededRandom) -> Tree {
        let changes = self.journal.len() as u64;
        let kept = if random.percent(40) { changes } else { random.below(changes + 1) };
        let mut names = self.durable.clone();
        for change in &self.journal[..kept as usize] {
            apply(&mut names, change);
        }
        let mut inodes: Vec<Inode> =
            self.inodes.iter().map(|inode| inode.after_power_failure(random)).collect();
        for change in &self.journal[..kept as usize] {
            if let Change::Mark(inode) = change {
                (inodes[*inode].marked, inodes[*inode].durable_marked) = (true, true);
            }
        }
        Tree { current: names.clone(), durable: names, journal: Vec::new(), inodes }
    }

    /// The tree after the process died and the machine went on.
    pub(crate) fn after_kill(&self) -> Tree {
        self.clone()
    }
}
