//! Misses: frames brought from the backing store into a cache, around the shipped flights, copies
//! and outage rules.

use crate::content::{self, FrameId};
use crate::disk::NodeStore;
use crate::mutant::Mutant;
use crate::node::{Copy, Task, Waiting};
use crate::scanning::user_of;
use crate::world::{Event, MS, World};
use std::sync::Arc;
use zazen_core::{Error, ErrorKind, FrameNo, Result, SourceStat};
use zazen_frames::copy::{self, Ask, Copying, Failure};
use zazen_frames::flight::{self, Shared, Ticket};
use zazen_frames::outage;
use zazen_frames::stale::{Held, Validate};

/// Bytes read at once: few, so that a source may change in the middle of a copy.
const PIECE: u64 = 16 << 10;

impl World {
    /// What the backing store tells `node` of a frame's file, or why it does not.
    pub(crate) fn ask_backing(&mut self, node: usize, frame: FrameId) -> Result<SourceStat> {
        let now_ns = self.now_ns();
        let path = content::series(frame.dataset)?;
        let at = &mut self.nodes[node];
        let local_ns = at.time.now_ns();
        let mut actions = Vec::new();
        at.health.step(local_ns, outage::Event::Ask { path: &path }, &mut actions);
        for action in actions.drain(..) {
            if let outage::Action::Refuse { kind, message } = action {
                return Err(Error::new(kind, message));
            }
        }
        if let Err(error) = self.backing.check(now_ns) {
            at.health.step(local_ns, outage::Event::Failed { path: &path, error: &error }, &mut actions);
            if actions.iter().any(|action| matches!(action, outage::Action::AskRoot)) {
                let root = outage::Event::Root { path: &path, error: &error, answers: false };
                at.health.step(local_ns, root, &mut actions);
            }
            return Err(error);
        }
        at.health.step(local_ns, outage::Event::Answered { path: &path }, &mut actions);
        let version = self.backing.version(frame, now_ns);
        let absent = || Error::new(ErrorKind::NotFound, format!("{frame} has no file"));
        if self.backing.is_deleted(frame, now_ns, now_ns) {
            return Err(absent());
        }
        let mode = if self.backing.is_closed(frame.dataset, now_ns, now_ns) { 0o600 } else { 0o644 };
        let seen = self.backing.seen(frame, version, at.time.wall_ns()).ok_or_else(absent)?;
        Ok(SourceStat { mode, ..seen })
    }

    /// A scan needs a frame that the cache does not have.
    pub(crate) fn want(&mut self, node: usize, waiting: Waiting) {
        let at = &mut self.nodes[node];
        at.next_ticket += 1;
        let ticket = Ticket(at.next_ticket);
        // Three users share a node.
        let (key, who) = (waiting.frame, waiting.conn % 3);
        at.waiting.insert(ticket, waiting);
        self.flights_step(node, flight::Event::Want { ticket, key, who });
    }

    fn flights_step(&mut self, node: usize, event: flight::Event<FrameId, u64>) {
        let at = &mut self.nodes[node];
        let local_ns = at.time.now_ns();
        let mut actions = Vec::new();
        at.flights.step(local_ns, event, &mut actions);
        for action in actions {
            match action {
                flight::Action::Lead { ticket } => self.lead(node, ticket),
                flight::Action::Joined { ticket, until_ns: Some(until_ns) } => {
                    self.later(node, Task::Impatient(ticket), until_ns.saturating_sub(local_ns));
                }
                flight::Action::Joined { until_ns: None, .. } => {}
                flight::Action::Share { ticket, result } => self.is_brought(node, ticket, result),
            }
        }
    }

    pub(crate) fn impatient(&mut self, node: usize, ticket: Ticket) {
        if self.nodes[node].waiting.contains_key(&ticket) {
            self.flights_step(node, flight::Event::Impatient { ticket });
        }
    }

    fn lead(&mut self, node: usize, ticket: Ticket) {
        let Some((frame, origin, conn, stat)) =
            self.nodes[node].waiting.get(&ticket).map(|it| (it.frame, it.origin, it.conn, it.proof.stat))
        else {
            return;
        };
        let begun = FrameNo::new(frame.number).and_then(|number| {
            let ask = Ask {
                number,
                source: frame.source()?,
                origin,
                validate: Validate::Always,
                own: user_of(conn).is_none(),
                grows: false,
                spelled: content::spelled(frame.dataset),
            };
            Ok(Copying::new(ask, stat))
        });
        match begun {
            Ok(machine) => {
                let copy = Copy { ticket, frame, origin, machine, action: copy::Action::LookUp, put: None };
                self.copy_steps(node, copy, copy::Event::Begin);
            }
            Err(error) => self.landed(node, ticket, Err((error.kind(), error.to_string()))),
        }
    }

    /// Tells a copy what came of its last action, and begins the next one.
    fn copy_steps(&mut self, node: usize, mut copy: Copy, event: copy::Event) {
        let mut actions = Vec::new();
        copy.machine.step(event, &mut actions);
        for action in actions {
            match action {
                copy::Action::Abandon => copy.put = None,
                copy::Action::CacheFailed(_) => {}
                copy::Action::Done(result) => {
                    let (frame, ticket) = (copy.frame, copy.ticket);
                    drop(copy);
                    self.tell(|| format!("node {node}: copy of {frame}: {result:?}"));
                    let shared = result.map_err(|error| (error.kind(), error.to_string()));
                    return self.landed(node, ticket, shared);
                }
                asked => copy.action = asked,
            }
        }
        let delay = match copy.action {
            copy::Action::LookUp => MS / 50,
            _ => self.backing_delay(),
        };
        self.later(node, Task::Copy(Box::new(copy)), delay);
    }

    /// Does what a copy asked for.
    pub(crate) fn copy_goes_on(&mut self, node: usize, store: &Arc<NodeStore>, mut copy: Box<Copy>) {
        let frame = copy.frame;
        let Ok(series) = content::series(frame.dataset) else { return };
        let event = match std::mem::replace(&mut copy.action, copy::Action::Abandon) {
            copy::Action::LookUp => {
                let entry = store.entry(&series, frame.number).ok().flatten();
                let held = |entry: zazen_store::CachedFrame| Held {
                    meta: entry.meta,
                    origin: entry.origin,
                    source: entry.source,
                };
                copy::Event::Held(entry.map(held))
            }
            copy::Action::Reopen => {
                let reopened = self.ask_backing(node, frame);
                if let (Ok(stat), Some(waiting)) = (&reopened, self.nodes[node].waiting.get_mut(&copy.ticket))
                {
                    waiting.proof.stat = *stat;
                }
                copy::Event::Reopened(reopened)
            }
            copy::Action::BeginPut { meta } => {
                let begun = frame.source().and_then(|source| store.put(&series, &source, &meta, copy.origin));
                if self.profile.rewrites && !self.calm && self.random.percent(3) {
                    let delay = self.random.below(8 * MS);
                    self.schedule.after(delay, Event::Rewrite(frame));
                }
                copy::Event::Begun(begun.map(|put| copy.put = Some(put)))
            }
            copy::Action::Copy { offset, bytes } => {
                let copied = self.ask_backing(node, frame).map_err(Failure::Source).and_then(|_| {
                    let source = frame.bytes(self.backing.version(frame, self.now_ns()));
                    let start = source.len().min(offset as usize);
                    let part = &source[start..source.len().min(start + bytes.min(PIECE) as usize)];
                    if let Some(put) = &mut copy.put {
                        put.write(part).map_err(Failure::Cache)?;
                    }
                    Ok(part.len() as u64)
                });
                copy::Event::Copied(copied)
            }
            copy::Action::LookAgain if self.mutant == Some(Mutant::SkipSecondLook) => {
                copy::Event::Looked(Ok([copy.machine.stat().validator; 2]))
            }
            copy::Action::LookAgain => {
                copy::Event::Looked(self.ask_backing(node, frame).map(|stat| [stat.validator; 2]))
            }
            copy::Action::Commit => {
                let committed = copy.put.take().map(|put| put.commit_computed().map(drop));
                self.check_copy(node, store, frame);
                copy::Event::Committed(committed.unwrap_or(Ok(())))
            }
            copy::Action::Abandon | copy::Action::CacheFailed(_) | copy::Action::Done(_) => return,
        };
        self.copy_steps(node, *copy, event);
    }

    /// A copy is what its source was at one moment, the one that its validator tells.
    fn check_copy(&mut self, node: usize, store: &NodeStore, frame: FrameId) {
        let Some(series) = content::series(frame.dataset).ok() else { return };
        let Ok(Some(entry)) = store.entry(&series, frame.number) else { return };
        let looks_so = |version: &u32| {
            let seen = self.backing.seen(frame, *version, 0);
            let alike =
                |seen: SourceStat| entry.meta.validator.is_some_and(|it| it.looks_like(&seen.validator));
            seen.is_some_and(alike)
        };
        let version = (1..=self.backing.latest(frame)).find(looks_so);
        let right = version.map(|version| zazen_wire::checksum::frame_checksum(&frame.bytes(version)));
        if right != Some(entry.meta.checksum) {
            self.checks
                .fail(format!("mixed copy: node {node} has {frame} in no version (as of {version:?})"));
        }
    }

    fn landed(&mut self, node: usize, ticket: Ticket, result: Shared) {
        self.is_brought(node, ticket, result.clone());
        self.flights_step(node, flight::Event::Landed { ticket, result });
    }
}
