//! The daemon: calls in, replies out, over the shipped store.

use crate::batch::Batch;
use crate::calls::{self, Part, refused};
use crate::content::{self, FrameId};
use crate::disk::NodeStore;
use crate::intake::Receiving;
use crate::mutant::Mutant;
use crate::node::{Scan, Session, Task, Waiting};
use crate::world::{Event, MS, World};
use std::sync::Arc;
use zazen_core::{Origin, Request, Result, RunSet};
use zazen_frames::messages::{
    DatasetInfo, Delivery, Holdings, OpenDataset, Push, Pushed, Query, ReportBad, ScanBatch, ScanNext,
    ScanOpen, ScanOpened, frames_fn,
};
use zazen_frames::stale::stands_for;
use zazen_store::Entry;
use zazen_wire::header::Header;
use zazen_wire::{Message, service};

/// Frames that one reply may have.
const BATCH_FRAMES: usize = 8;

impl World {
    pub(crate) fn daemon_receives(&mut self, node: usize, conn: u64, bytes: &[u8]) {
        let Some(store) = self.nodes[node].store.clone() else { return self.reset(conn) };
        let session = self.nodes[node].sessions.entry(conn).or_default();
        let parts = match session.incoming.feed(bytes) {
            Ok(parts) => parts,
            // Damaged on its way, or no message at all.
            Err(_) => {
                self.daemon_loses(node, conn);
                return self.reset(conn);
            }
        };
        for part in parts {
            self.daemon_takes(node, conn, &store, part);
        }
    }

    /// A connection ended: its scans and its unfinished push go.
    pub(crate) fn daemon_loses(&mut self, node: usize, conn: u64) {
        self.nodes[node].sessions.remove(&conn);
    }

    fn session(&mut self, node: usize, conn: u64) -> Option<&mut Session> {
        self.nodes[node].sessions.get_mut(&conn)
    }

    fn daemon_takes(&mut self, node: usize, conn: u64, store: &Arc<NodeStore>, part: Part) {
        match part {
            Part::Head(header, payload) if header.function == frames_fn::PUSH => {
                let local_ns = self.nodes[node].time.now_ns();
                let receiving = Receiving::new(header, &payload).map(|mut receiving| {
                    receiving.begin(store, local_ns);
                    Box::new(receiving)
                });
                if let (Some(session), Ok(receiving)) = (self.session(node, conn), receiving) {
                    session.receiving = Some(receiving);
                } else {
                    self.daemon_loses(node, conn);
                    self.reset(conn);
                }
            }
            Part::Head(header, payload) => {
                if let Some(session) = self.session(node, conn) {
                    session.pending = Some((header, payload));
                }
            }
            Part::Bulk(bytes) => {
                let local_ns = self.nodes[node].time.now_ns();
                if let Some(receiving) = self.session(node, conn).and_then(|it| it.receiving.as_mut()) {
                    receiving.takes(store, local_ns, &bytes);
                }
            }
            Part::End => {
                let Some(session) = self.session(node, conn) else { return };
                if let Some(mut receiving) = session.receiving.take() {
                    let local_ns = self.nodes[node].time.now_ns();
                    receiving.has_ended = true;
                    receiving.go_on(store, local_ns);
                    return self.push_is_here(node, conn, receiving);
                }
                let Some((header, payload)) = session.pending.take() else { return };
                if let Some(result) = self.serve(node, conn, store, header, &payload).transpose() {
                    self.reply(conn, &header, result.map(|payload| (payload, Vec::new())));
                }
            }
        }
    }

    fn reply(&mut self, conn: u64, header: &Header, result: Result<(Vec<u8>, Vec<u8>)>) {
        let bytes = calls::reply(header, result);
        self.send(conn, false, bytes);
    }

    /// Goes on with a task after the disk or the backing store has taken its time.
    pub(crate) fn later(&mut self, node: usize, task: Task, delay_ns: u64) {
        let task = self.nodes[node].new_task(task);
        let incarnation = self.nodes[node].incarnation;
        self.schedule.after(delay_ns, Event::Task { node, incarnation, task });
    }

    fn push_is_here(&mut self, node: usize, conn: u64, mut receiving: Box<Receiving>) {
        let mut replied = false;
        match self.mutant {
            Some(Mutant::AckBeforeCommit) if receiving.is_well() => {
                self.reply(conn, &receiving.header, Ok((Pushed::Stored.encode(), Vec::new())));
                replied = true;
            }
            Some(Mutant::AckWithoutCommit) if receiving.ask.meta.number.get() % 5 == 3 => {
                receiving.drop_put();
                self.reply(conn, &receiving.header, Ok((Pushed::Stored.encode(), Vec::new())));
                replied = true;
            }
            _ => {}
        }
        let delay = MS / 20 + self.random.below(3 * MS);
        self.later(node, Task::Commit { conn, receiving, replied }, delay);
    }

    pub(crate) fn daemon_goes_on(&mut self, node: usize, task: u64) {
        let Some(store) = self.nodes[node].store.clone() else { return };
        match self.nodes[node].tasks.remove(&task) {
            Some(Task::Commit { conn, receiving, replied }) => {
                let (header, ask) = (receiving.header, receiving.ask.clone());
                self.excuse_late(node, &ask);
                let local_ns = self.nodes[node].time.now_ns();
                let committed = receiving.ends(local_ns, self.mutant);
                let told = format!("{:?}", committed.as_ref().map_err(ToString::to_string));
                self.tell(|| format!("node {node}: push of {} of {}: {told}", ask.meta.number, ask.dataset));
                if self.mutant == Some(Mutant::DataAfterRecord) {
                    let incarnation = self.nodes[node].incarnation;
                    self.schedule.after(20 * MS, Event::Flush { node, incarnation });
                }
                if !replied {
                    self.reply(conn, &header, committed.map(|pushed| (pushed.encode(), Vec::new())));
                }
            }
            Some(Task::Look { conn, header, scan, group }) => {
                // The connection may have ended meanwhile.
                let Some(dataset) = self.scan(node, conn, scan).map(|scan| scan.dataset) else { return };
                let batch = self.look(node, conn, scan, &store, dataset, group);
                self.next_of_scan(node, conn, &store, header, scan, batch);
            }
            Some(Task::Copy(copy)) => self.copy_goes_on(node, &store, copy),
            Some(Task::Impatient(ticket)) => self.impatient(node, ticket),
            None => {}
        }
    }

    /// A push of an older version, late or come twice, takes the place of the newer one: readers
    /// see that it is stale.
    fn excuse_late(&mut self, node: usize, ask: &Push) {
        let Some(dataset) = content::dataset_at(&ask.dataset) else { return };
        let frame = FrameId { dataset, number: ask.meta.number.get() };
        let latest = frame.bytes(self.backing.latest(frame));
        if zazen_wire::checksum::frame_checksum(&latest) != ask.meta.checksum {
            self.checks.excuse(node, frame);
        }
    }

    pub(crate) fn backing_delay(&mut self) -> u64 {
        MS / 5 + self.random.below(4 * MS)
    }

    fn scan(&mut self, node: usize, conn: u64, scan: u32) -> Option<&mut Scan> {
        self.session(node, conn)?.scans.get_mut(&scan)
    }

    /// Serves a call; `None`: the reply comes later.
    fn serve(
        &mut self,
        node: usize,
        conn: u64,
        store: &Arc<NodeStore>,
        header: Header,
        payload: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        if header.service != service::FRAMES {
            return Err(refused("no such service"));
        }
        let session = self.nodes[node].sessions.entry(conn).or_default();
        let dataset_of = |session: &Session, handle: u32| {
            session.opened.get(handle as usize).copied().ok_or_else(|| refused("no such handle"))
        };
        match header.function {
            frames_fn::OPEN => {
                let ask = OpenDataset::decode(payload)?;
                let dataset = content::dataset_at(&ask.path).ok_or_else(|| refused("no such dataset"))?;
                session.opened.push(dataset);
                let info = DatasetInfo {
                    handle: session.opened.len() as u32 - 1,
                    dataset: content::series(dataset)?,
                    layout: Some(content::layout()?),
                    extent: None,
                    backing_ok: true,
                    series: Vec::new(),
                };
                Ok(Some(info.encode()))
            }
            frames_fn::QUERY => {
                let ask = Query::decode(payload)?;
                let request = Request::new(ask.begin, ask.end, ask.stride)?;
                let (native, alien) = store.holdings(&content::series(dataset_of(session, ask.handle)?)?);
                let within = |set: &RunSet| set.cut(&request).uncut(&request);
                Ok(Some(Holdings { native: within(&native), alien: within(&alien) }.encode()))
            }
            frames_fn::SCAN_OPEN => {
                let ask = ScanOpen::decode(payload)?;
                let dataset = dataset_of(session, ask.handle)?;
                let number = session.scans.last_key_value().map_or(0, |(last, _)| last + 1);
                let series = content::series(dataset)?;
                let guard = (self.mutant != Some(Mutant::EvictInUse)).then(|| store.scan(&series));
                let (native, alien) = store.holdings(&series);
                let cached = ask.set.intersection(&native.union(&alien));
                let missing = ask.set.difference(&cached);
                let opened = ScanOpened { scan: number, cached: cached.len() };
                let misses = missing.iter().map(|number| (number, Origin::Alien)).collect();
                let (cursor, page) = Default::default();
                session.scans.insert(number, Scan { dataset, left: cached, cursor, page, misses, guard });
                Ok(Some(opened.encode()))
            }
            frames_fn::SCAN_NEXT => {
                let ask = ScanNext::decode(payload)?;
                if !session.scans.contains_key(&ask.scan) {
                    return Err(refused("no such scan"));
                }
                self.next_of_scan(node, conn, store, header, ask.scan, Batch::default());
                Ok(None)
            }
            frames_fn::REPORT_BAD => {
                let ask = ReportBad::decode(payload)?;
                store.verify(&content::series(dataset_of(session, ask.handle)?)?, ask.number)?;
                Ok(Some(Vec::new()))
            }
            _ => Err(refused("no such function")),
        }
    }

    /// Replies with what the batch has, or goes on until it has something or the scan is through.
    pub(crate) fn next_of_scan(
        &mut self,
        node: usize,
        conn: u64,
        store: &Arc<NodeStore>,
        header: Header,
        scan: u32,
        batch: Batch,
    ) {
        if batch.entries.is_empty() {
            let Some(state) = self.scan(node, conn, scan) else { return };
            let group = next_cached(store, state);
            if !group.is_empty() {
                let delay = self.backing_delay();
                return self.later(node, Task::Look { conn, header, scan, group }, delay);
            }
            if let Some((number, origin)) = state.misses.pop_front() {
                let frame = FrameId { dataset: state.dataset, number };
                return self.want(node, Waiting { conn, header, scan, frame, origin, batch });
            }
        }
        if let Some(guard) = self.scan(node, conn, scan).and_then(|scan| scan.guard.as_ref()) {
            guard.goes_on();
        }
        let reply = ScanBatch { entries: batch.entries }.encode();
        self.reply(conn, &header, Ok((reply, batch.bulk)));
    }

    /// Compares copies with their sources and hands out those that stand for them.
    fn look(
        &mut self,
        node: usize,
        conn: u64,
        scan: u32,
        store: &Arc<NodeStore>,
        dataset: usize,
        group: Vec<Entry>,
    ) -> Batch {
        let mut batch = Batch::default();
        let Ok(series) = content::series(dataset) else { return batch };
        for entry in group {
            let frame = FrameId { dataset, number: entry.meta.number.get() };
            // Where nobody can tell, the copy is handed out as it is.
            let source = self.ask_backing(node, frame).ok();
            let stands = source.is_none_or(|source| stands_for(&entry.meta, &entry.source, &source));
            let mut missed = Some(Origin::Alien);
            if stands || self.mutant == Some(Mutant::ForgetStale) {
                if let Ok(Some(opened)) = store.open_entry(&series, &entry) {
                    let delivery = match opened.origin {
                        Origin::Native => Delivery::Native,
                        Origin::Alien => Delivery::Alien,
                    };
                    if batch.add(opened, delivery).is_ok() {
                        missed = None;
                    }
                }
            } else {
                let young = entry.meta.validator.is_some_and(|validator| validator.unsettled);
                missed = Some(if young { entry.origin } else { Origin::Alien });
                let dropped = store.drop_stale(&series, &entry);
                self.tell(|| format!("node {node}: {frame} is stale, dropped: {dropped:?}"));
            }
            if let (Some(origin), Some(scan)) = (missed, self.scan(node, conn, scan)) {
                scan.misses.push_back((frame.number, origin));
            }
        }
        batch
    }
}

/// The next cached frames of a scan, in storage order; none when all are through.
fn next_cached(store: &NodeStore, scan: &mut Scan) -> Vec<Entry> {
    let Ok(series) = content::series(scan.dataset) else { return Vec::new() };
    while scan.page.is_empty() && !scan.left.is_empty() {
        match store.entries_page(&series, &scan.left, &mut scan.cursor) {
            Ok(Some(entries)) => {
                for entry in entries {
                    // A page may repeat frames when the store has rewritten its log meanwhile.
                    if scan.left.remove(entry.meta.number.get()) {
                        scan.page.push_back(entry);
                    }
                }
            }
            // Gone since the scan began, or not to be read.
            Ok(None) | Err(_) => {
                let gone = std::mem::take(&mut scan.left);
                scan.misses.extend(gone.iter().map(|number| (number, Origin::Alien)));
            }
        }
    }
    let count = scan.page.len().min(BATCH_FRAMES);
    scan.page.drain(..count).collect()
}
