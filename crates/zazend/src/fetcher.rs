//! Brings misses from the backing store: one fetch a frame, however many ask; a bound on fetches at once for each user.
//!
//! Invariants: a fetched frame is what its source was at one moment (the source looks the same before and after the
//! copy, both the opened file and what its name leads to); everybody who asks comes with the source opened by its own
//! user's rights; a failed fetch fails those who wait for it only if they are the same user, the others try for
//! themselves; no user's fetches take the slots of another's.

use crate::config::Validate;
use crate::look;
use crate::node::{Node, NodeStore, Opened};
use crate::viewer::Viewer;
use std::collections::{HashMap, hash_map};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zazen_backing::SourceFile;
use zazen_core::{Error, ErrorKind, FrameMeta, FrameNo, Origin, RelPath, Result, Source, Validator};
use zazen_store::Entry;

/// Bytes copied at a time.
const CHUNK_BYTES: u64 = 4 << 20;
/// How long one user waits for a copy that another makes; then it reads the source itself.
const PATIENCE: Duration = Duration::from_secs(1);
/// Copies begun anew because the source changed under them.
const TRIES: usize = 3;

/// What a fetch came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The frame is in the cache now; so many bytes were read for it.
    Stored(u64),
    /// The frame was in the cache when its turn came.
    Present,
    /// The cache has no room for it.
    NoRoom,
    /// The cache cannot take it, for another reason: its disk's trouble, or something in the frame's place.
    CacheFailed,
    /// Another user is copying the same frame, and takes long over it.
    Contended,
}

/// One for the daemon.
pub struct Fetcher {
    flights: Mutex<HashMap<(RelPath, u64), Arc<Flight>>>,
    at_once: usize,
    slots: Mutex<HashMap<Viewer, Arc<Slots>>>,
}

type Shared = std::result::Result<Outcome, (ErrorKind, String)>;

struct Flight {
    leader: Viewer,
    landed: Mutex<Option<Shared>>,
    landing: Condvar,
}

impl Flight {
    fn land(&self, result: Shared) {
        *self.landed.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.landing.notify_all();
    }

    /// Its result; for another user than its leader `None` after [`PATIENCE`].
    fn wait(&self, viewer: &Viewer) -> Option<Shared> {
        let landed = self.landed.lock().unwrap_or_else(PoisonError::into_inner);
        if self.leader == *viewer {
            let landed = self.landing.wait_while(landed, |landed| landed.is_none());
            return landed.unwrap_or_else(PoisonError::into_inner).clone();
        }
        let landed = self.landing.wait_timeout_while(landed, PATIENCE, |landed| landed.is_none());
        landed.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

impl Fetcher {
    /// A fetcher that reads at most `at_once` frames at the same time for each user.
    pub fn new(at_once: usize) -> Fetcher {
        Fetcher { flights: Mutex::default(), at_once, slots: Mutex::default() }
    }

    /// Fetches under way.
    pub fn under_way(&self) -> usize {
        self.flights().len()
    }

    fn flights(&self) -> MutexGuard<'_, HashMap<(RelPath, u64), Arc<Flight>>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slots_of(&self, viewer: &Viewer) -> Arc<Slots> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|of, slots| of == viewer || Arc::strong_count(slots) > 1);
        slots.entry(viewer.clone()).or_insert_with(|| Arc::new(Slots::new(self.at_once))).clone()
    }

    /// Brings frame `number` of `opened`, whose source is `source`, into the cache; joins a fetch of the same frame
    /// that is under way. Returns when it is there, or there is no room, or it can't be had. `file` is the source, opened
    /// by the user of `opened`; where it changed meanwhile it is opened again.
    pub fn fetch(
        &self,
        node: &Node,
        opened: &Opened,
        source: &Source,
        number: u64,
        origin: Origin,
        file: &mut Box<dyn SourceFile>,
    ) -> Result<Outcome> {
        let counters = &node.counters;
        let key = (opened.series(), number);
        let slots = self.slots_of(&opened.viewer);
        let (flight, _slot) = loop {
            // First the turn, then the flight: who is listed copies, and keeps nobody waiting for a turn of its own.
            let slot = slots.take();
            let under_way = match self.flights().entry(key.clone()) {
                hash_map::Entry::Occupied(under_way) => under_way.get().clone(),
                hash_map::Entry::Vacant(free) => {
                    let (leader, landed) = (opened.viewer.clone(), Mutex::default());
                    let flight = Flight { leader, landed, landing: Condvar::new() };
                    break (free.insert(Arc::new(flight)).clone(), slot);
                }
            };
            drop(slot);
            counters.fetches_shared.add(1);
            match under_way.wait(&opened.viewer) {
                None => return Ok(Outcome::Contended),
                Some(Ok(Outcome::Stored(_))) => return Ok(Outcome::Present),
                Some(Ok(outcome)) => return Ok(outcome),
                Some(Err((kind, message))) if under_way.leader == opened.viewer => {
                    return Err(Error::new(kind, message));
                }
                // What another user may not do, or cannot, says nothing about this one.
                Some(Err(_)) => {}
            }
        };
        // Lands also if the copy panics: a bug of ours must not leave others waiting for ever.
        let landing = Landing { fetcher: self, flight: &flight, key: &key };
        let result = copy_frame(node, opened, source, number, origin, file);
        match &result {
            Ok(Outcome::Stored(bytes)) => {
                counters.fetched.add(1);
                counters.fetched_bytes.add(*bytes);
            }
            Ok(_) => {}
            Err(_) => counters.fetch_failures.add(1),
        }
        let shared =
            result.as_ref().map(|outcome| *outcome).map_err(|error| (error.kind(), error.to_string()));
        // Off the list first: who waited and tries for itself must not find it again.
        drop(landing);
        flight.land(shared);
        result
    }
}

struct Landing<'a> {
    fetcher: &'a Fetcher,
    flight: &'a Flight,
    key: &'a (RelPath, u64),
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.fetcher.flights().remove(self.key);
        if std::thread::panicking() {
            self.flight.land(Err((ErrorKind::Io, "the fetch failed inside zazend; see its log".into())));
        }
    }
}

/// Where the frame is in its opened source file: (offset, length).
pub fn extent_in(file: &dyn SourceFile, source: &Source, number: u64, spelled: &str) -> Result<(u64, u64)> {
    let size = file.stat().validator.size;
    let length = source.length.unwrap_or(size.saturating_sub(source.offset));
    match source.offset.checked_add(length) {
        Some(end) if end <= size => Ok((source.offset, length)),
        _ => Err(Error::new(
            ErrorKind::NotFound,
            format!(
                "frame {number} of {spelled}: its file {} has {size} bytes, the frame should be {length} bytes at \
                 {}; it is not written yet, or zazen.toml is wrong",
                source.path, source.offset
            ),
        )),
    }
}

fn copy_frame(
    node: &Node,
    opened: &Opened,
    source: &Source,
    number: u64,
    origin: Origin,
    file: &mut Box<dyn SourceFile>,
) -> Result<Outcome> {
    let (store, dataset) = (&node.store, &opened.series());
    let describe = || format!("frame {number} of {}", opened.spelled());
    for attempt in 0..TRIES {
        if attempt > 0 {
            *file = opened.open_source(source, number)?;
        }
        let is_current = |entry: &Entry| {
            entry.source == *source
                && match node.config.validate {
                    Validate::Always => look::stands_for(entry, &file.stat()),
                    Validate::Never => {
                        opened.viewer.is_own() || look::is_same_file(&entry.meta, &file.stat())
                    }
                }
        };
        // A cache that cannot be asked has nothing.
        if let Ok(Some(entry)) = store.entry(dataset, number)
            && (entry.origin == Origin::Native || origin == Origin::Alien)
            && is_current(&entry)
        {
            return Ok(Outcome::Present);
        }
        let (offset, length) = extent_in(&**file, source, number, &opened.spelled())?;
        let stat = file.stat();
        let meta = FrameMeta {
            number: FrameNo::new(number)?,
            length,
            checksum: 0,
            validator: Some(stat.validator),
            uid: stat.uid,
            gid: stat.gid,
            mode: stat.mode,
        };
        let copied = copy_bytes(store, opened, source, &meta, origin, &**file, offset);
        let error = match copied {
            Ok(()) => return Ok(Outcome::Stored(length)),
            Err(Failure::Source(error)) if error.kind() == ErrorKind::Stale => continue,
            Err(Failure::Source(error)) => return Err(error.within(describe())),
            Err(Failure::Cache(error)) => error,
        };
        return match error.kind() {
            ErrorKind::NoSpace => Ok(Outcome::NoRoom),
            // Pushed here while it was being fetched.
            ErrorKind::Conflict if matches!(store.entry(dataset, number), Ok(Some(_))) => {
                Ok(Outcome::Present)
            }
            // Whatever is the matter with the cache, the source can be read.
            _ => {
                node.cache_failed(&error.within(describe()));
                Ok(Outcome::CacheFailed)
            }
        };
    }
    Err(Error::new(
        ErrorKind::Stale,
        format!("{}: its source kept changing while it was copied; read it when it is written", describe()),
    ))
}

/// Whose fault it is that a frame was not copied.
enum Failure {
    Source(Error),
    Cache(Error),
}

fn copy_bytes(
    store: &Arc<NodeStore>,
    opened: &Opened,
    source: &Source,
    meta: &FrameMeta,
    origin: Origin,
    file: &dyn SourceFile,
    offset: u64,
) -> std::result::Result<(), Failure> {
    let mut put = store.put(&opened.series(), source, meta, origin).map_err(Failure::Cache)?;
    let mut buffer = vec![0; meta.length.clamp(1, CHUNK_BYTES) as usize];
    let mut done = 0;
    while done < meta.length {
        let wanted = (meta.length - done).min(buffer.len() as u64) as usize;
        match file.read_at(&mut buffer[..wanted], offset + done).map_err(Failure::Source)? {
            0 => {
                let error = Error::new(ErrorKind::Stale, "the source became shorter");
                return Err(Failure::Source(error));
            }
            read => {
                put.write(&buffer[..read]).map_err(Failure::Cache)?;
                done += read as u64;
            }
        }
    }
    let now = || {
        let path = opened.at.beneath.join(source.path.as_str())?;
        Ok([file.stat_now()?.validator, opened.backing().stat(&path)?.validator])
    };
    let is_same = |now: &Validator| meta.validator.is_some_and(|then| then.looks_like(now));
    if !now().map_err(Failure::Source)?.iter().all(is_same) {
        return Err(Failure::Source(Error::new(ErrorKind::Stale, "the source changed")));
    }
    put.commit_computed().map_err(Failure::Cache).map(|_| ())
}

/// Reads a whole frame from its opened source, for want of room in the cache.
pub fn read_inline(opened: &Opened, source: &Source, number: u64, file: &dyn SourceFile) -> Result<Vec<u8>> {
    let (offset, length) = extent_in(file, source, number, &opened.spelled())?;
    let mut bytes = vec![0; length as usize];
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64)? {
            0 => {
                return Err(Error::new(
                    ErrorKind::Stale,
                    format!("{} became shorter while it was read", source.path),
                ));
            }
            read => done += read,
        }
    }
    Ok(bytes)
}

/// A counting semaphore, first come first served as far as the condition variable is.
struct Slots {
    free: Mutex<usize>,
    freed: Condvar,
}

impl Slots {
    fn new(slots: usize) -> Slots {
        Slots { free: Mutex::new(slots.max(1)), freed: Condvar::new() }
    }

    fn take(&self) -> Slot<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.freed.wait_while(free, |free| *free == 0);
        *free.unwrap_or_else(PoisonError::into_inner) -= 1;
        Slot(self)
    }
}

struct Slot<'a>(&'a Slots);

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}
