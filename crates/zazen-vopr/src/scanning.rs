//! Scans, around the shipped order of a scan, looks, misses and shares.

use crate::batch::Batch;
use crate::calls::refused;
use crate::content::{self, FrameId};
use crate::disk::NodeStore;
use crate::mutant::Mutant;
use crate::node::{Arrived, Pending, Share, Task, Waiting, Way};
use crate::world::{MS, World};
use std::sync::Arc;
use zazen_core::limits::FDS_PER_MESSAGE_MAX;
use zazen_core::{Credentials, Error, ErrorKind, Origin, RelPath, Result, SourceStat};
use zazen_frames::flight::{Outcome, Shared, Ticket};
use zazen_frames::hand_out::{self, Described, Handed};
use zazen_frames::look::{self, Looking, Refusal, Rules, Verdict};
use zazen_frames::messages::{Delivery, ScanBatch, ScanNext};
use zazen_frames::misses::{self, Brought, Take, Wanted};
use zazen_frames::scan::{AfterCheck, Proof, after_check, refetched_as};
use zazen_frames::stale::Validate;
use zazen_store::CachedFrame;
use zazen_wire::Message;
use zazen_wire::header::Header;

/// A scan of one connection on a node.
type At = (usize, u64, u32);

/// The user of a connection: the daemon's own, the owner of all files, or somebody else.
pub(crate) fn user_of(conn: u64) -> Option<Credentials> {
    let uid = [None, Some(content::OWNER), Some(content::STRANGER)][conn as usize % 3]?;
    Some(Credentials { uid, gid: uid, groups: Vec::new() })
}

impl World {
    fn scan(&mut self, (node, conn, scan): At) -> Option<&mut crate::node::Scan> {
        self.nodes[node].sessions.get_mut(&conn)?.scans.get_mut(&scan)
    }

    pub(crate) fn scan_next(&mut self, node: usize, conn: u64, header: Header, ask: &ScanNext) -> Result<()> {
        let at = (node, conn, ask.scan);
        let state = self.scan(at).ok_or_else(|| refused("no such scan"))?;
        state.pending = Some(Pending { header, batch: Batch::default(), refusals: Vec::new(), taking: None });
        let (frames_max, bytes_max) = (usize::from(ask.frames_max).max(1), ask.bytes_max);
        let files_max = FDS_PER_MESSAGE_MAX;
        self.scan_steps(at, hand_out::Event::Next { frames_max, bytes_max, files_max });
        Ok(())
    }

    /// Steps the order of a scan, and does what it asks for, until it waits for something that
    /// takes time.
    fn scan_steps(&mut self, at: At, event: hand_out::Event<CachedFrame>) {
        let Some(store) = self.nodes[at.0].store.clone() else { return };
        let mut event = Some(event);
        while let Some(happened) = event.take() {
            let Some(state) = self.scan(at) else { return };
            let mut actions = Vec::new();
            state.order.step(happened, &mut actions);
            for action in actions {
                event = self.scan_does(at, &store, action);
            }
        }
    }

    /// Does what the order of a scan asks for; the answer, if it has one now.
    fn scan_does(
        &mut self,
        at: At,
        store: &Arc<NodeStore>,
        action: hand_out::Action,
    ) -> Option<hand_out::Event<CachedFrame>> {
        let state = self.scan(at)?;
        let dataset = state.dataset;
        let series = content::series(dataset).ok()?;
        let entry = |state: &crate::node::Scan, place: usize| state.order.group()[place].clone();
        match action {
            hand_out::Action::Describe => {
                let found = store.entries_page(&series, state.order.wanted()?, &mut state.cursor);
                return Some(hand_out::Event::Described(match found {
                    Ok(Some(entries)) => Described::Page(entries),
                    Ok(None) => Described::Gone,
                    Err(_) => Described::Failed,
                }));
            }
            hand_out::Action::Look => {
                let delay = self.backing_delay();
                self.later(at.0, Task::Look { conn: at.1, scan: at.2 }, delay);
            }
            // Simulated looks do not announce themselves: their delay is drawn for each.
            hand_out::Action::Announce { .. } => {}
            hand_out::Action::HandOut(place) => {
                let entry = entry(state, place);
                let pending = state.pending.as_mut()?;
                return Some(hand_out::Event::Handed(match store.open_entry(&series, &entry) {
                    Ok(Some(frame)) => {
                        let delivery = match frame.origin {
                            Origin::Native => Delivery::Native,
                            Origin::Alien => Delivery::Alien,
                        };
                        match pending.batch.add(frame, delivery) {
                            Ok(()) => Handed::Added,
                            Err(_) => Handed::Bad,
                        }
                    }
                    Ok(None) => Handed::Gone,
                    Err(_) => Handed::Failed,
                }));
            }
            hand_out::Action::Refuse(place) => {
                let number = entry(state, place).meta.number.get();
                let pending = state.pending.as_mut()?;
                let why = pending.refusals.get_mut(place).and_then(Option::take);
                pending.batch.fail(number, &why.unwrap_or_else(|| refused("refused")));
                return Some(hand_out::Event::Refused);
            }
            hand_out::Action::DropStale(place) => {
                let entry = entry(state, place);
                self.drops_stale(at.0, store, dataset, &entry);
                return Some(hand_out::Event::Dropped);
            }
            hand_out::Action::Check(place) => {
                let number = entry(state, place).meta.number.get();
                return Some(match store.verify(&series, number) {
                    Ok(good) => hand_out::Event::Checked(good),
                    Err(_) => hand_out::Event::NotChecked,
                });
            }
            hand_out::Action::Want(wanted) => self.misses_step(at, misses::Event::Add(wanted)),
            hand_out::Action::Take { frames_max } => {
                state.pending.as_mut()?.taking = Some(frames_max);
                self.take_misses(at);
            }
            hand_out::Action::Reply => {
                let Pending { header, batch, .. } = state.pending.take()?;
                if let Some(guard) = &state.guard {
                    guard.goes_on();
                }
                let reply = ScanBatch { entries: batch.entries }.encode();
                self.reply(at.1, &header, Ok((reply, batch.bulk)));
            }
        }
        None
    }

    fn drops_stale(&mut self, node: usize, store: &Arc<NodeStore>, dataset: usize, entry: &CachedFrame) {
        let Ok(series) = content::series(dataset) else { return };
        let dropped = store.drop_stale(&series, entry);
        let frame = FrameId { dataset, number: entry.meta.number.get() };
        self.tell(|| format!("node {node}: {frame} is stale, dropped: {dropped:?}"));
    }

    /// What the backing store tells `who` of a frame's file: rights of the file count for other
    /// users than the daemon's own.
    fn opens(&mut self, node: usize, frame: FrameId, who: Option<&Credentials>) -> Result<SourceStat> {
        let stat = self.ask_backing(node, frame)?;
        if who.is_none_or(|who| who.may_read(stat.uid, stat.gid, stat.mode)) {
            return Ok(stat);
        }
        Err(Error::new(ErrorKind::PermissionDenied, format!("{frame} is closed")))
    }

    /// Looks at the sources of a group.
    pub(crate) fn looks(&mut self, node: usize, conn: u64, scan: u32) {
        let at = (node, conn, scan);
        let Some(state) = self.scan(at) else { return };
        let (dataset, group) = (state.dataset, state.order.group().to_vec());
        let who = user_of(conn);
        let root = Credentials { uid: 0, gid: 0, groups: Vec::new() };
        let Ok(layout) = content::layout() else { return };
        let rules = Rules {
            validate: Validate::Always,
            own: who.is_none(),
            who: who.as_ref().unwrap_or(&root),
            layout: Some(&layout),
        };
        let mut looking = Looking::new(rules, &group);
        let mut event = look::Event::Begin;
        let (verdicts, adopted) = loop {
            let mut actions = Vec::new();
            looking.step(event, &mut actions);
            event = match actions.pop() {
                Some(look::Action::StatAll(paths)) => look::Event::Stats(Ok(self.stats(at, &paths, None))),
                Some(look::Action::ProbeAll(paths)) => {
                    look::Event::Stats(Ok(self.stats(at, &paths, who.as_ref())))
                }
                // The directories stay; only an outage hides them.
                Some(look::Action::StatFolder) => look::Event::Folder(self.backing.check(self.now_ns())),
                Some(look::Action::IsStoreAway) => {
                    look::Event::StoreAway(self.backing.check(self.now_ns()).is_err())
                }
                Some(look::Action::Open(place)) => {
                    let frame = FrameId { dataset, number: group[place].meta.number.get() };
                    look::Event::Opened(self.opens(node, frame, who.as_ref()).map(drop))
                }
                Some(look::Action::Done(verdicts, adopted)) => break (verdicts, adopted),
                None => return,
            };
        };
        let adopted: Vec<_> = adopted.iter().map(|(place, validator)| (&group[*place], *validator)).collect();
        if let (Some(store), Ok(series), false) =
            (self.nodes[node].store.clone(), content::series(dataset), adopted.is_empty())
        {
            // A disk that fails here only forgets what the source looks like.
            let _ = store.adopt(&series, &adopted);
        }
        let mutant = self.mutant;
        let seen = verdicts.into_iter().map(|verdict| match verdict {
            Verdict::Stale if mutant == Some(Mutant::ForgetStale) => (hand_out::Look::Fresh, None),
            Verdict::Refused(_) if mutant == Some(Mutant::ForgetRights) => (hand_out::Look::Fresh, None),
            Verdict::Fresh => (hand_out::Look::Fresh, None),
            // Files of frames do not grow here.
            Verdict::Stale | Verdict::Grown(_) => (hand_out::Look::Stale, None),
            Verdict::Refused(refusal) => (hand_out::Look::Refused, Some(error_of(refusal))),
        });
        let (looks, refusals): (Vec<_>, Vec<_>) = seen.unzip();
        if let Some(pending) = self.scan(at).and_then(|state| state.pending.as_mut()) {
            pending.refusals = refusals;
        }
        self.scan_steps(at, hand_out::Event::Looked(looks));
    }

    fn stats(&mut self, at: At, paths: &[RelPath], who: Option<&Credentials>) -> Vec<Result<SourceStat>> {
        let Some(dataset) = self.scan(at).map(|state| state.dataset) else { return Vec::new() };
        let frame_of = |path: &RelPath| {
            let number = content::number_of(path.as_str()).ok_or_else(|| refused("no frame's path"))?;
            Ok(FrameId { dataset, number })
        };
        paths.iter().map(|path| self.opens(at.0, frame_of(path)?, who)).collect()
    }

    /// Steps the misses of a scan, and does what they ask for.
    pub(crate) fn misses_step(&mut self, at: At, event: misses::Event<Arrived>) {
        let local_ns = self.nodes[at.0].time.now_ns();
        let Some(state) = self.scan(at) else { return };
        let mut actions = Vec::new();
        state.misses.step(local_ns, event, &mut actions);
        for action in actions {
            match action {
                misses::Action::Hire { first } => self.hires(at, first),
                misses::Action::Bring { wanted, ahead } => self.brings(at, wanted, ahead),
                misses::Action::Rest { until_ns: Some(until_ns) } => {
                    self.works(at, until_ns.saturating_sub(local_ns).max(MS));
                }
                misses::Action::Rest { until_ns: None } => {
                    if let Some(state) = self.scan(at) {
                        state.resting += 1;
                    }
                }
                misses::Action::Leave => {
                    if let Some(state) = self.scan(at) {
                        state.workers.pop();
                    }
                }
                // A scan's first worker can always be had.
                misses::Action::Abandon => {}
                misses::Action::Wake => {
                    let resting = self.scan(at).map_or(0, |state| std::mem::take(&mut state.resting));
                    (0..resting).for_each(|_| self.works(at, MS / 100));
                    self.take_misses(at);
                }
            }
        }
    }

    /// A worker asks what to do, after some time.
    fn works(&mut self, at: At, delay_ns: u64) {
        self.later(at.0, Task::Work { conn: at.1, scan: at.2 }, delay_ns);
    }

    fn hires(&mut self, at: At, first: bool) {
        let share = match first {
            true => None,
            false => match Share::take(&self.nodes[at.0].fetchers, at.1 % 3) {
                None => return self.misses_step(at, misses::Event::NotHired),
                share => share,
            },
        };
        let Some(state) = self.scan(at) else { return };
        // The first worker leaves last.
        state.workers.push(share);
        self.works(at, MS / 50);
        self.misses_step(at, misses::Event::Hired);
    }

    fn brings(&mut self, at: At, wanted: Wanted, ahead: bool) {
        let share = match ahead {
            true => Share::take(&self.nodes[at.0].ahead, at.1 % 3),
            false => None,
        };
        if ahead && share.is_none() {
            return self.misses_step(at, misses::Event::Denied(wanted));
        }
        let Some(dataset) = self.scan(at).map(|state| state.dataset) else { return };
        let frame = FrameId { dataset, number: wanted.number };
        let stat = match self.opens(at.0, frame, user_of(at.1).as_ref()) {
            Ok(stat) => stat,
            Err(error) => return self.brought(at, wanted.number, Err(error), share),
        };
        let at_ns = self.nodes[at.0].time.now_ns();
        if wanted.around {
            let way = self.inline(at.0, frame);
            return self.brought(at, wanted.number, way, share);
        }
        let source = match frame.source() {
            Ok(source) => source,
            Err(error) => return self.brought(at, wanted.number, Err(error), share),
        };
        let proof = Proof { source, stat, at_ns };
        let (conn, scan, origin) = (at.1, at.2, wanted.origin);
        self.want(at.0, Waiting { conn, scan, frame, origin, proof, share });
    }

    fn inline(&mut self, node: usize, frame: FrameId) -> Result<Way> {
        self.ask_backing(node, frame)?;
        let version = self.backing.version(frame, self.now_ns());
        Ok(Way::Inline(frame.bytes(version)))
    }

    fn brought(&mut self, at: At, number: u64, result: Result<Way>, share: Option<Share>) {
        let inline_bytes = match &result {
            Ok(Way::Inline(bytes)) => bytes.len() as u64,
            _ => 0,
        };
        let is_held = matches!(result, Ok(Way::Inline(_)));
        let what = Arrived { result, _share: share.filter(|_| is_held) };
        self.misses_step(at, misses::Event::Brought(Brought { number, inline_bytes, what }));
        self.works(at, MS / 100);
    }

    /// One who asked for a copy gets what came of it.
    pub(crate) fn is_brought(&mut self, node: usize, ticket: Ticket, result: Shared) {
        let Some(waiting) = self.nodes[node].waiting.remove(&ticket) else { return };
        let Waiting { conn, scan, frame, proof, share, .. } = waiting;
        let way = match result {
            Ok(Outcome::Stored(_) | Outcome::Given(_) | Outcome::Present) => Ok(Way::Cached(proof)),
            Ok(Outcome::NoRoom | Outcome::CacheFailed | Outcome::Contended) => self.inline(node, frame),
            Err((kind, message)) => Err(Error::new(kind, message)),
        };
        self.brought((node, conn, scan), frame.number, way, share);
    }

    /// Puts misses into the reply that waits for them, if there are any.
    fn take_misses(&mut self, at: At) {
        let Some(state) = self.scan(at) else { return };
        let Some(frames_max) = state.pending.as_mut().and_then(|pending| pending.taking.take()) else {
            return;
        };
        match state.misses.take(frames_max) {
            Take::Wait => {
                if let Some(pending) = &mut state.pending {
                    pending.taking = Some(frames_max);
                }
            }
            Take::End => self.scan_steps(at, hand_out::Event::Took { any: false, added: false }),
            Take::Frames(frames) => {
                let resting = std::mem::take(&mut state.resting);
                (0..resting).for_each(|_| self.works(at, MS / 100));
                for Brought { number, what, .. } in frames {
                    let handed = what.result.and_then(|way| self.hand_out_way(at, number, way));
                    let pending = self.scan(at).and_then(|state| state.pending.as_mut());
                    if let (Err(error), Some(pending)) = (handed, pending) {
                        pending.batch.fail(number, &error);
                    }
                }
                let pending = self.scan(at).and_then(|state| state.pending.as_ref());
                let added = pending.is_some_and(|pending| !pending.batch.entries.is_empty());
                self.scan_steps(at, hand_out::Event::Took { any: true, added });
            }
        }
    }

    fn hand_out_way(&mut self, at: At, number: u64, way: Way) -> Result<()> {
        let gone = || refused("the scan is gone");
        let store = self.nodes[at.0].store.clone().ok_or_else(gone)?;
        let dataset = self.scan(at).ok_or_else(gone)?.dataset;
        let (frame, series) = (FrameId { dataset, number }, content::series(dataset)?);
        let want = |origin, around| misses::Event::Add(Wanted { number, origin, around });
        let bytes = match way {
            Way::Inline(bytes) => bytes,
            Way::Cached(proof) => {
                let local_ns = self.nodes[at.0].time.now_ns();
                let who = user_of(at.1);
                if proof.is_lapsed(local_ns) && who.is_some() {
                    self.opens(at.0, frame, who.as_ref())?;
                }
                match store.open_frame(&series, number).unwrap_or(None) {
                    Some(copy) if proof.covers(Validate::Always, (&copy.meta, &copy.source)) => {
                        let pending = self.scan(at).and_then(|state| state.pending.as_mut());
                        if pending.ok_or_else(gone)?.batch.add(copy, Delivery::Fetched).is_err() {
                            let good = store.verify(&series, number);
                            let around = good.map_or(true, |good| after_check(good) == AfterCheck::Around);
                            self.misses_step(at, want(Origin::Alien, around));
                        }
                        return Ok(());
                    }
                    // Another version than the user's rights have opened, perhaps a newer one.
                    Some(_) => {
                        let stat = self.opens(at.0, frame, who.as_ref())?;
                        let proof = Proof { source: frame.source()?, stat, at_ns: local_ns };
                        let entry = store.entry(&series, number)?;
                        let covered = |entry: &CachedFrame| {
                            proof.covers(Validate::Always, (&entry.meta, &entry.source))
                        };
                        let stale = entry.filter(|entry| !covered(entry));
                        let origin = stale.as_ref().map(|entry| refetched_as(&entry.meta, entry.origin));
                        stale.iter().for_each(|entry| self.drops_stale(at.0, &store, dataset, entry));
                        self.misses_step(at, want(origin.unwrap_or(Origin::Alien), false));
                        return Ok(());
                    }
                    None => {
                        self.opens(at.0, frame, who.as_ref())?;
                        match self.inline(at.0, frame)? {
                            Way::Inline(bytes) => bytes,
                            Way::Cached(_) => return Err(gone()),
                        }
                    }
                }
            }
        };
        let pending = self.scan(at).and_then(|state| state.pending.as_mut());
        pending.ok_or_else(gone)?.batch.inline(number, &bytes);
        Ok(())
    }
}

fn error_of(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Deleted => Error::new(ErrorKind::NotFound, "its source was deleted"),
        Refusal::Denied(error)
        | Refusal::Unknowable(error)
        | Refusal::Failed(error)
        | Refusal::NotOpened(error) => error,
    }
}
