//! Many paths in few calls.
//!
//! Paths are grouped by the directory that they are in, as written. Each directory is found once;
//! then one call asks for up to 1,024 names, in whatever directories they are.

use crate::link::Namespace;
use crate::tree::{Found, Who};
use crate::walk::directory_of;
use std::collections::{BTreeMap, HashMap};
use zazen_namespace::operation::{Answer, At, Operation};
use zazen_namespace::{Errno, InodeId, Kind, Name, NodeNo};

type Result<T> = std::result::Result<T, Errno>;

/// A node that holds bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Which.
    pub node: NodeNo,
    /// As [`Located::name`].
    pub name: String,
    /// As [`Located::host`].
    pub host: String,
    /// How many bytes, as of the last commit. Holes of a file in chunks are nobody's.
    pub bytes: u64,
}

/// Where the bytes of a file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The node that holds them, or most of them if it is a file in chunks; `None` for a file that
    /// never had any.
    pub node: Option<NodeNo>,
    /// The node's name, for people and schedulers; empty if there is no node, or if it is down and
    /// never said its name to the daemon.
    pub name: String,
    /// The host of its daemon.
    pub host: String,
    /// How many bytes, as of the last commit.
    pub bytes: u64,
    /// All nodes that hold bytes of it: one, or several if it is a file in chunks, the one with the
    /// most bytes first.
    pub holders: Vec<Holder>,
}

/// How many bytes of chunks each node holds: the one with the most first.
pub fn held_by(chunks: &[Found]) -> Vec<(NodeNo, u64)> {
    let mut held: BTreeMap<NodeNo, u64> = BTreeMap::new();
    for chunk in chunks {
        if let Some(place) = chunk.place.as_ref().filter(|_| chunk.bytes > 0) {
            *held.entry(place.holder).or_default() += chunk.bytes;
        }
    }
    let mut held: Vec<_> = held.into_iter().collect();
    held.sort_by_key(|(node, bytes)| (std::cmp::Reverse(*bytes), *node));
    held
}

/// The last name of a path that ends in one, and needs no walk beyond its directory.
fn plain_name(path: &[u8]) -> Option<Name> {
    let last = path.rsplit(|byte| *byte == b'/').next()?;
    Name::new(last).ok()
}

impl Namespace {
    /// The directories that `paths` are in: each found once.
    fn directories<'p>(&self, who: Who<'_>, paths: &[&'p [u8]]) -> HashMap<&'p [u8], Result<InodeId>> {
        let mut found = HashMap::new();
        for path in paths {
            let above = directory_of(path);
            found.entry(above).or_insert_with(|| self.afresh(|| self.directory(who, above)));
        }
        found
    }

    /// Asks `operation` of each path's directory and name; `None` for a path that does not end in a
    /// plain name.
    fn at_each(
        &self,
        who: Who<'_>,
        paths: &[&[u8]],
        operation: impl Fn(At) -> Operation,
    ) -> Vec<Option<Result<Answer>>> {
        let directories = self.directories(who, paths);
        let mut answers: Vec<Option<Result<Answer>>> = Vec::with_capacity(paths.len());
        let mut asked = Vec::with_capacity(paths.len());
        let mut operations = Vec::with_capacity(paths.len());
        for (place, path) in paths.iter().enumerate() {
            answers.push(match (plain_name(path), &directories[directory_of(path)]) {
                (None, _) => None,
                (Some(_), Err(errno)) => Some(Err(*errno)),
                (Some(name), Ok(directory)) => {
                    asked.push(place);
                    operations.push(operation(At { directory: *directory, name }));
                    None
                }
            });
        }
        for (place, answer) in asked.into_iter().zip(self.ask_many(who, operations)) {
            answers[place] = Some(answer.map(|answered| answered.answer));
        }
        answers
    }

    /// `stat` (`follow`) or `lstat` of many paths; one result for each, in order.
    pub fn stat_many(&self, who: Who<'_>, paths: &[&[u8]], follow: bool) -> Vec<Result<Found>> {
        let answers = self.at_each(who, paths, Operation::Lookup);
        let mut found: Vec<Result<Found>> = Vec::with_capacity(paths.len());
        let mut elsewhere = Vec::new();
        for (path, answer) in paths.iter().zip(answers) {
            found.push(match answer {
                None => self.stat(who, path, follow),
                // A directory that was found earlier may be another one by now.
                Some(Err(errno)) if errno.asks_for_another_look() && errno != Errno::ENOENT => {
                    self.stat(who, path, follow)
                }
                Some(Err(errno)) => Err(errno),
                Some(Ok(Answer::Entry(entry))) if follow && entry.kind == Kind::Symlink => {
                    self.stat(who, path, true)
                }
                Some(Ok(Answer::Entry(entry))) => entry.attributes.ok_or_else(|| {
                    elsewhere.push((found.len(), entry.id));
                    Errno::ENOENT
                }),
                Some(Ok(_)) => Err(Errno::EIO),
            });
        }
        let ids: Vec<InodeId> = elsewhere.iter().map(|(_, id)| *id).collect();
        let brought = if ids.is_empty() { Ok(Vec::new()) } else { self.attributes_many(who, &ids) };
        match brought {
            Ok(brought) => {
                for ((place, _), attributes) in elsewhere.into_iter().zip(brought) {
                    found[place] = attributes.ok_or(Errno::ENOENT);
                }
            }
            Err(errno) => elsewhere.into_iter().for_each(|(place, _)| found[place] = Err(errno)),
        }
        found
    }

    /// Removes many names that are not directories'; one result for each, in order.
    pub fn remove_many(&self, who: Who<'_>, paths: &[&[u8]]) -> Vec<Result<()>> {
        let answers = self.at_each(who, paths, Operation::Unlink);
        let done = |(path, answer): (&&[u8], Option<Result<Answer>>)| match answer {
            None => self.remove(who, path),
            Some(Ok(Answer::Done)) => Ok(()),
            Some(Ok(_)) => Err(Errno::EIO),
            Some(Err(errno)) => Err(errno),
        };
        paths.iter().zip(answers).map(done).collect()
    }

    /// Makes many empty files in the directory at `path`; one result for each name, in order. The
    /// call fails as a whole only if nothing was asked of the directory.
    pub fn create_many_at(
        &self,
        who: Who<'_>,
        path: &[u8],
        names: &[Name],
        mode: u32,
    ) -> Result<Vec<Result<InodeId>>> {
        self.afresh(|| self.create_many(who, self.directory(who, path)?, names, mode))
    }

    /// Where the bytes of many files are; one result for each path, in order. `EISDIR` and `EINVAL`
    /// for what is not a file.
    pub fn locate(&self, who: Who<'_>, paths: &[&[u8]]) -> Result<Vec<Result<Located>>> {
        let held = self.stat_many(who, paths, true).into_iter().map(|found| {
            let found = found?;
            match found.kind {
                Kind::File => Ok((self.holders(who, &found)?, found.bytes)),
                Kind::Directory => Err(Errno::EISDIR),
                _ => Err(Errno::EINVAL),
            }
        });
        let held: Vec<Result<_>> = held.collect();
        let nodes = held.iter().flatten().flat_map(|(held, _)| held.iter().map(|(node, _)| *node)).collect();
        let map = self.map_with_names(&nodes).map_err(|error| crate::link::errno_of(&error))?;
        let holder = |(node, bytes): (NodeNo, u64)| {
            let view = map.nodes.iter().find(|view| view.node == node);
            let host = view.map_or("", |view| view.addr.rsplit_once(':').map_or("", |(host, _)| host));
            let name = view.map_or_else(String::new, |view| view.name.clone());
            Holder { node, name, host: host.to_owned(), bytes }
        };
        let located = |(held, bytes): (Vec<(NodeNo, u64)>, u64)| {
            let holders: Vec<Holder> = held.into_iter().map(holder).collect();
            let first = holders.first();
            Located {
                node: first.map(|first| first.node),
                name: first.map_or_else(String::new, |first| first.name.clone()),
                host: first.map_or_else(String::new, |first| first.host.clone()),
                bytes,
                holders,
            }
        };
        Ok(held.into_iter().map(|held| held.map(located)).collect())
    }

    /// The nodes that hold bytes of a file that was found, and how many bytes each: the one with
    /// the most first.
    pub fn holders(&self, who: Who<'_>, found: &Found) -> Result<Vec<(NodeNo, u64)>> {
        match (&found.chunks, &found.place) {
            (Some(_), _) => Ok(held_by(&self.chunks(who, found.id)?)),
            (None, Some(place)) => Ok(vec![(place.holder, found.bytes)]),
            (None, None) => Ok(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_namespace::{Attributes, Place};

    #[test]
    fn nodes_are_ordered_by_what_they_hold_and_empty_chunks_are_nobodys() {
        let chunk = |holder: u32, bytes| Attributes {
            bytes,
            place: Some(Place { holder: NodeNo(holder), generation: 1, writing: false, copies: Vec::new() }),
            ..Attributes::new(InodeId(9), Kind::File)
        };
        let chunks = [chunk(3, 10), chunk(1, 4), chunk(2, 0), chunk(1, 8), chunk(4, 10)];
        assert_eq!(held_by(&chunks), [(NodeNo(1), 12), (NodeNo(3), 10), (NodeNo(4), 10)]);
        assert_eq!(held_by(&[]), []);
    }
}
