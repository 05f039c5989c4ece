//! A push whose bytes are coming in, around the shipped [`Intake`].

use crate::calls::{of_the_disk, refused};
use crate::content;
use crate::disk::{Disk, NodeStore};
use crate::mutant::Mutant;
use std::sync::Arc;
use zazen_core::{Credentials, Origin, Result};
use zazen_frames::messages::{Push, Pushed};
use zazen_frames::push::{Action, Event, Intake, Pusher};
use zazen_frames::stale::Held;
use zazen_store::{Put, Stored};
use zazen_wire::Message;
use zazen_wire::header::Header;

/// One push.
pub(crate) struct Receiving {
    pub(crate) header: Header,
    pub(crate) ask: Push,
    intake: Intake,
    /// What the machine asked for last.
    action: Action,
    put: Option<Put<Disk>>,
    /// Bytes that came and that the machine has not asked for.
    inbox: Vec<u8>,
    /// Bytes that it took and that are not written.
    taken: Vec<u8>,
    /// All bytes are here.
    pub(crate) has_ended: bool,
}

impl Receiving {
    /// A push begins.
    pub(crate) fn new(header: Header, payload: &[u8]) -> Result<Receiving> {
        let ask = Push::decode(payload)?;
        let dataset = content::dataset_at(&ask.dataset).ok_or_else(|| refused("no such dataset"))?;
        let directory = zazen_core::RelPath::new(&format!("d{dataset}"))?;
        // Writers hold the cluster's key.
        let pusher = Pusher { who: Credentials { uid: 0, gid: 0, groups: Vec::new() }, operator: true };
        let intake = Intake::new(ask.clone(), header.bulk_bytes, pusher, directory);
        let (inbox, taken) = (Vec::new(), Vec::new());
        let action = Action::LookUp;
        Ok(Receiving { header, ask, intake, action, put: None, inbox, taken, has_ended: false })
    }

    /// Begins; the machine's time is `now_ns`.
    pub(crate) fn begin(&mut self, store: &Arc<NodeStore>, now_ns: u64) {
        self.step(now_ns, Event::Begin);
        self.go_on(store, now_ns);
    }

    pub(crate) fn takes(&mut self, store: &Arc<NodeStore>, now_ns: u64, bytes: &[u8]) {
        self.inbox.extend_from_slice(bytes);
        self.go_on(store, now_ns);
    }

    fn step(&mut self, now_ns: u64, event: Event) {
        let mut actions = Vec::new();
        self.intake.step(now_ns, event, &mut actions);
        if let Some(action) = actions.pop() {
            self.action = action;
        }
    }

    /// Whether nothing went wrong so far.
    pub(crate) fn is_well(&self) -> bool {
        !matches!(self.action, Action::Done(Err(_)))
    }

    /// Does what the machine asks for, until it waits for bytes, for the commit, or has ended.
    pub(crate) fn go_on(&mut self, store: &Arc<NodeStore>, now_ns: u64) {
        loop {
            let event = match &self.action {
                Action::Commit | Action::Done(_) => return,
                Action::LookUp => Event::Held(self.look_up(store)),
                Action::BeginPut { meta } => {
                    let dataset = content::dataset_at(&self.ask.dataset).unwrap_or(0);
                    let begun = content::series(dataset).and_then(|series| {
                        store.put_gradually(&series, &self.ask.source, meta, Origin::Native)
                    });
                    Event::Begun(begun.map(|put| self.put = Some(put)).map_err(of_the_disk))
                }
                Action::Receive { .. } if self.inbox.is_empty() && !self.has_ended => return,
                Action::Receive { bytes_max } => {
                    let count = self.inbox.len().min(*bytes_max as usize);
                    self.taken.extend(self.inbox.drain(..count));
                    Event::Came(Ok(count as u64))
                }
                Action::Write { bytes } => {
                    let bytes: Vec<u8> = self.taken.drain(..*bytes as usize).collect();
                    let written = self.put.as_mut().map_or(Ok(()), |put| put.write(&bytes));
                    Event::Written(written.map_err(of_the_disk))
                }
                Action::DropHeld => Event::Dropped(Ok(())),
                Action::TakeShare => Event::Shared(Ok(())),
                Action::Stat(_) => Event::Stat(Err(refused("operators are not asked"))),
                Action::Allows(..) => Event::Allows(Ok(true)),
            };
            self.step(now_ns, event);
        }
    }

    fn look_up(&self, store: &Arc<NodeStore>) -> Result<Option<Held>> {
        let dataset = content::dataset_at(&self.ask.dataset).unwrap_or(0);
        let entry = store.entry(&content::series(dataset)?, self.ask.meta.number.get());
        let held = |entry: zazen_store::CachedFrame| Held {
            meta: entry.meta,
            origin: entry.origin,
            source: entry.source,
        };
        entry.map(|entry| entry.map(held)).map_err(of_the_disk)
    }

    /// Commits, if it has come to that, and tells how the push ended.
    pub(crate) fn ends(mut self, now_ns: u64, mutant: Option<Mutant>) -> Result<Pushed> {
        if matches!(self.action, Action::Commit) {
            let put = self.put.take().ok_or_else(|| refused("a push without a put"))?;
            let stored = match mutant {
                Some(Mutant::SkipPushChecksum) => put.commit_computed().map(|(stored, _)| stored),
                _ => put.commit(),
            };
            let pushed = stored.map_err(of_the_disk).map(|stored| match stored {
                Stored::Stored => Pushed::Stored,
                Stored::AlreadyHere => Pushed::AlreadyHere,
            });
            self.step(now_ns, Event::Committed(pushed));
        }
        match self.action {
            Action::Done(result) => result,
            _ => Err(refused("a push that did not end")),
        }
    }

    /// Drops what came (a planted bug).
    pub(crate) fn drop_put(&mut self) {
        self.put = None;
        self.action = Action::Done(Err(refused("dropped by a planted bug")));
    }
}
