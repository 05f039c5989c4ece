//! Many paths in few calls.
//!
//! Paths are grouped by the directory that they are in, as written. Each directory is found once;
//! then one call asks for up to 1,024 names, in whatever directories they are.

use crate::link::Namespace;
use crate::tree::{Found, Who};
use crate::walk::directory_of;
use std::collections::HashMap;
use zazen_namespace::operation::{Answer, At, Operation};
use zazen_namespace::{Errno, InodeId, Kind, Name, NodeNo};

type Result<T> = std::result::Result<T, Errno>;

/// Where the bytes of a file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The node that holds them; `None` for a file that never had any.
    pub node: Option<NodeNo>,
    /// The node's name, for people and schedulers; empty if there is no node, or if it is down and
    /// never said its name to the daemon.
    pub name: String,
    /// The host of its daemon.
    pub host: String,
    /// How many bytes, as of the last commit.
    pub bytes: u64,
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
        let found = self.stat_many(who, paths, true);
        let holder = |found: &Found| found.place.as_ref().map(|place| place.holder);
        let holders = found.iter().flatten().filter_map(holder).collect();
        let map = self.map_with_names(&holders).map_err(|error| crate::link::errno_of(&error))?;
        let located = |found: Found| match found.kind {
            Kind::File => {
                let node = found.place.as_ref().map(|place| place.holder);
                let view = map.nodes.iter().find(|view| Some(view.node) == node);
                let host = view.map_or("", |view| view.addr.rsplit_once(':').map_or("", |(host, _)| host));
                Ok(Located {
                    node,
                    name: view.map_or_else(String::new, |view| view.name.clone()),
                    host: host.to_owned(),
                    bytes: found.bytes,
                })
            }
            Kind::Directory => Err(Errno::EISDIR),
            _ => Err(Errno::EINVAL),
        };
        Ok(found.into_iter().map(|found| found.and_then(located)).collect())
    }
}
