//! A node that leaves the namespace, when an operator asks for it.
//!
//! The node's state in the map says how far it is. `Leaving`: the other nodes take over its
//! partitions, and it gives its files to them. `Gone`: it keeps nothing, and is no node of the
//! namespace any more. The wish is a file in the node's folder, so it outlives a restart; a node
//! that was down for longer than its lease begins to leave again.
//!
//! A file moves as by [`crate::balance`]: it counts only if nobody has the file open.

use crate::data::Tries;
use crate::folder::replace;
use crate::handles::lock;
use crate::leaving::Told;
use crate::node::NamespaceNode;
use crate::objects::{self, FOLDERS, ObjectName};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace::map::State;
use zazen_namespace::service::{Leave, Leaving, NodeView, SeatView, namespace_fn};
use zazen_namespace::{Attributes, Errno, NodeNo, Place};
use zazen_wire::Message;

/// The file that says that the node shall leave.
const WISH: &str = "leaving";
/// How long another node may take to answer.
const THERE: Duration = Duration::from_secs(10);
/// Other nodes know after this time that the node leaves, and give it no new files.
const KNOWN: Duration = Duration::from_secs(5);
/// Between two looks at all that is left.
const PAUSE: Duration = Duration::from_secs(1);

/// What a look at all objects found.
#[derive(Default)]
struct Look {
    files: u64,
    bytes: u64,
    in_use: u64,
}

impl NamespaceNode {
    /// Whether the node shall leave.
    pub(crate) fn leaves(&self) -> bool {
        lock(&self.leave.told).wanted
    }

    /// Whether the node may get files: it takes part, and does not leave.
    pub(crate) fn stays(&self, node: NodeNo) -> bool {
        let stays = |view: &NodeView| view.node == node && view.up && view.state == State::Up;
        self.map().nodes.iter().any(stays)
    }

    /// Reads the wish of an earlier life of the daemon.
    pub(crate) fn remember_leave(&self) {
        let found = rustix::fs::statat(self.folder.fd(), WISH, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        lock(&self.leave.told).wanted = found.is_ok();
    }

    /// A node shall leave or stay, or is asked how far it is.
    pub(crate) fn leave(&self, asked: &Leave) -> Result<Leaving> {
        let own = self.driver.ask(|engine| engine.number());
        if let Some(node) = asked.node.filter(|node| Some(*node) != own) {
            let map = self.map();
            let view = map.nodes.iter().find(|view| view.node == node);
            let view = view.ok_or_else(|| {
                Error::new(ErrorKind::NotFound, format!("the namespace has no node {node}"))
            })?;
            if view.state == State::Gone && asked.run == Some(false) {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!(
                        "node {node} has left: it is too late to stay; to join again as a new node, stop \
                         its daemon, empty its folder, and start it"
                    ),
                ));
            }
            if view.state == State::Gone {
                return Ok(Leaving { wanted: true, state: State::Gone, ..Leaving::default() });
            }
            let ask = Leave { node: None, ..asked.clone() }.encode();
            let reply = self.links.call(&view.addr, namespace_fn::LEAVE, &ask, &[], THERE)?;
            return Leaving::decode(&reply.payload);
        }
        match asked.run {
            Some(true) => self.begin_to_leave(own)?,
            Some(false) => self.stay()?,
            None => {}
        }
        Ok(self.leaving())
    }

    fn begin_to_leave(&self, own: Option<NodeNo>) -> Result<()> {
        if self.is_gone() {
            return Ok(());
        }
        let own = own.ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("{} is no node of a namespace yet", self.told.name))
        })?;
        let map = self.map();
        if !map.nodes.iter().any(|view| view.node != own && self.stays(view.node)) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "node {own} is the only one that could keep the namespace's files: no other node is up; \
                     start one, and ask again"
                ),
            ));
        }
        let within = |error| Error::io(format!("{}/{WISH}", self.folder.path().display()), error);
        replace(self.folder.fd(), WISH, b"").map_err(within)?;
        let mut told = lock(&self.leave.told);
        if !told.wanted {
            tracing::warn!("namespace: an operator wants this node to leave: its files go to other nodes");
            *told = Told { wanted: true, ..Told::default() };
        }
        Ok(())
    }

    /// Whether it has left, by its map.
    pub(crate) fn is_gone(&self) -> bool {
        self.driver.ask(|engine| engine.state()) == Some(State::Gone)
    }

    fn stay(&self) -> Result<()> {
        if self.is_gone() {
            return Err(Error::new(ErrorKind::InvalidArgument, self.has_left()));
        }
        let mut told = lock(&self.leave.told);
        if told.closed {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "{} keeps nothing any more, and is being forgotten: it is too late to stay",
                    self.told.name
                ),
            ));
        }
        match rustix::fs::unlinkat(self.folder.fd(), WISH, rustix::fs::AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => {
                let path = format!("{}/{WISH}", self.folder.path().display());
                return Err(Error::io(path, errno.into()));
            }
        }
        if std::mem::take(&mut *told).wanted {
            tracing::info!("namespace: this node does not leave after all; what moved comes back by use");
        }
        Ok(())
    }

    /// What people are told who ask a node that has left for something.
    pub(crate) fn has_left(&self) -> String {
        format!(
            "{} has left the namespace, and keeps nothing of it; to join again as a new node, stop the \
             daemon, empty {}, and start it",
            self.told.name,
            self.folder.path().display()
        )
    }

    /// How far the node is.
    pub(crate) fn leaving(&self) -> Leaving {
        let (own, state) = self.driver.ask(|engine| (engine.number(), engine.state()));
        let map = self.map();
        let keeps =
            |seat: &&SeatView| own.is_some_and(|own| seat.primary == own || seat.backups.contains(&own));
        let keeps = map.partitions.iter().filter(keeps).count();
        let told = lock(&self.leave.told);
        Leaving {
            wanted: told.wanted,
            state: state.unwrap_or(State::Down),
            partitions: keeps as u64,
            is_steward: self.driver.ask(|engine| engine.is_steward()),
            open_files: self.open_files(),
            ..told.found.clone()
        }
    }

    fn open_files(&self) -> u64 {
        lock(&self.sessions).values().map(|session| session.handles() as u64).sum()
    }

    /// Does what is next, if the node shall leave, or shall stay after all.
    pub(crate) fn leave_some(&self) {
        let wanted = self.leaves();
        match self.driver.ask(|engine| engine.state()) {
            Some(State::Up) => {
                {
                    let mut told = lock(&self.leave.told);
                    (told.since, told.closed) = (None, false);
                }
                if wanted {
                    self.driver.wish(State::Leaving);
                }
            }
            Some(State::Leaving) if !wanted => self.driver.wish(State::Up),
            Some(State::Leaving) => {
                let due = {
                    let mut told = lock(&self.leave.told);
                    told.since.get_or_insert_with(Instant::now);
                    told.next.is_none_or(|next| next <= Instant::now())
                };
                if due && self.identity().is_ok() {
                    self.leave_now();
                    lock(&self.leave.told).next = Some(Instant::now() + PAUSE);
                }
            }
            _ => {}
        }
    }

    /// Gives away what can be given away. When nothing is left, nothing is taken from other nodes
    /// any more; and when a look after that finds nothing, the node is gone.
    fn leave_now(&self) {
        let (is_known, was_closed) = {
            let told = lock(&self.leave.told);
            (told.since.is_some_and(|since| since.elapsed() >= KNOWN), told.closed)
        };
        // New files go to other nodes from now on, but those that are being made.
        self.choose_place();
        let is_placed = self.place().is_some();
        let is_quiet = self.leave.wait(PAUSE);
        let Some(look) = self.give_all() else { return };
        {
            let mut told = lock(&self.leave.told);
            (told.found.files, told.found.bytes) = (look.files, look.bytes);
            told.found.in_use = look.in_use;
        }
        let Leaving { partitions, is_steward, open_files, .. } = self.leaving();
        let keeps_nothing = look.files == 0 && partitions == 0 && !is_steward && open_files == 0;
        if !(keeps_nothing && is_known && is_placed && is_quiet) {
            return;
        }
        if was_closed {
            self.driver.wish(State::Gone);
        } else {
            let mut told = lock(&self.leave.told);
            told.closed = told.wanted;
        }
    }

    /// Whether the node takes nothing from others, because it is about to be gone. What asks this
    /// must be under way ([`crate::leaving::Work::begin`]) until it has taken what it takes.
    pub(crate) fn takes_nothing(&self) -> bool {
        lock(&self.leave.told).closed
    }

    /// Looks at all objects, and gives away those that are this node's. What is left then; `None`
    /// if the look was not whole.
    fn give_all(&self) -> Option<Look> {
        let mut look = Look::default();
        for folder in 0..FOLDERS {
            let names = match self.objects.folder(folder)? {
                // What only the archive has comes back, and moves, too.
                Ok(names) => names.into_iter().chain(self.archive.away_in(folder)).collect::<Vec<_>>(),
                Err(errno) => {
                    tracing::error!(
                        "namespace: folder {folder:03x} of the objects cannot be listed: {errno}; this node \
                         cannot leave"
                    );
                    return None;
                }
            };
            let ids: Vec<_> = names.iter().map(|name| name.id).collect();
            for (name, found) in names.iter().zip(self.attributes_of(&ids)) {
                if self.stopping.load(Ordering::Relaxed) || !self.leaves() {
                    return None;
                }
                let found = match found {
                    Ok(Some(found)) => found,
                    // No file has it.
                    Ok(None) => continue,
                    Err(_) => return None,
                };
                match self.give_away(*name, &found) {
                    Ok(false) => {}
                    Ok(true) => {
                        let mut told = lock(&self.leave.told);
                        told.found.moved += 1;
                        told.found.moved_bytes += found.bytes;
                    }
                    Err(errno) => {
                        tracing::debug!("namespace: inode {} is still here: {errno}", name.id);
                        look.files += 1;
                        look.bytes += found.bytes;
                        look.in_use += u64::from(errno == Errno::EBUSY);
                    }
                }
            }
        }
        Some(look)
    }

    /// A copy of another node's file counts until the holder has made one elsewhere, and says so:
    /// it may be the last one. A holder that is lost is replaced by a node with a copy, as ever.
    fn keep_copy(&self, name: ObjectName, place: &Place) -> std::result::Result<bool, Errno> {
        if self.map().nodes.iter().any(|view| view.node == place.holder && view.up) {
            self.commit_there(place.holder, name, true, Tries::One)?;
        }
        Err(Errno::EAGAIN)
    }

    /// Gives a file to a node that stays: to one with a copy, or to the one with the most space.
    /// False if it is not this node's to give.
    fn give_away(&self, name: ObjectName, found: &Attributes) -> std::result::Result<bool, Errno> {
        let (me, _) = self.identity().map_err(|_| Errno::ETIMEDOUT)?;
        let Some(place) = &found.place else { return Ok(false) };
        if place.generation == name.generation && place.holder != me && place.copies.contains(&me) {
            return self.keep_copy(name, place);
        }
        if (place.holder, place.generation) != (me, name.generation) {
            return Ok(false);
        }
        let with_copy = place.nodes_with_copy().find(|node| self.stays(*node));
        let spaces = self.spaces().into_iter().filter(|space| space.node != me && self.stays(space.node));
        let with_space = || spaces.max_by_key(|space| (space.bytes_free, space.node));
        let has_room = |bytes_free: u64| bytes_free > found.bytes.saturating_add(crate::copies::SPARE_BYTES);
        let node = match with_copy {
            Some(node) => node,
            None => with_space().filter(|space| has_room(space.bytes_free)).ok_or(Errno::ENOSPC)?.node,
        };
        let address = self.address(node).ok_or(Errno::ETIMEDOUT)?;
        // One without bytes has no checksums of its own accord.
        if found.bytes == 0 && !place.writing {
            let object = self.objects.open(name)?;
            if self.seals.get(name, &objects::stat(&object)?).is_none() {
                self.seals.seal(name, &object, crate::driver::wall_ns())?;
            }
        }
        let goes_on = |_: usize| !self.stopping.load(Ordering::Relaxed) && self.leaves();
        self.move_to(me, name, found, node, &address, &goes_on)
    }
}
