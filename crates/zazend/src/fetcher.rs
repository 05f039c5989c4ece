//! Brings misses from the backing store: one fetch a frame, however many ask; a bound on fetches at once.
//!
//! Invariants: a fetched frame is what its source was at one moment (the source looks the same before and after the
//! copy); an error reaches everybody who waited for it; whoever fetches has checked that *its own* caller may read
//! the source, and whoever joined checks for itself when it hands the frame out.

use crate::counters::Counters;
use crate::node::{NodeStore, Opened};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use zazen_backing::SourceFile;
use zazen_core::{Error, ErrorKind, FrameMeta, FrameNo, Origin, RelPath, Result, Source};

/// Bytes copied at a time.
const CHUNK_BYTES: u64 = 4 << 20;
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
}

/// One for the daemon.
pub struct Fetcher {
    flights: Mutex<HashMap<(RelPath, u64), Arc<Flight>>>,
    slots: Slots,
}

type Shared = std::result::Result<Outcome, (ErrorKind, String)>;

#[derive(Default)]
struct Flight {
    landed: Mutex<Option<Shared>>,
    landing: Condvar,
}

impl Flight {
    fn land(&self, result: Shared) {
        *self.landed.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.landing.notify_all();
    }

    fn wait(&self) -> Shared {
        let landed = self.landed.lock().unwrap_or_else(PoisonError::into_inner);
        let landed = self.landing.wait_while(landed, |landed| landed.is_none());
        landed
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
            .unwrap_or(Err((ErrorKind::Io, "a fetch ended without a result".into())))
    }
}

impl Fetcher {
    /// A fetcher that reads at most `at_once` frames at the same time.
    pub fn new(at_once: usize) -> Fetcher {
        Fetcher { flights: Mutex::default(), slots: Slots::new(at_once) }
    }

    /// Fetches under way.
    pub fn under_way(&self) -> usize {
        self.flights().len()
    }

    fn flights(&self) -> MutexGuard<'_, HashMap<(RelPath, u64), Arc<Flight>>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings frame `number` of `opened`, whose source is `source`, into the cache; joins a fetch of the same frame
    /// that is under way. Returns when it is there, or there is no room, or it can't be had.
    pub fn fetch(
        &self,
        store: &Arc<NodeStore>,
        counters: &Counters,
        opened: &Opened,
        source: &Source,
        number: u64,
        origin: Origin,
    ) -> Result<Outcome> {
        let key = (opened.series(), number);
        let (flight, leads) = match self.flights().entry(key.clone()) {
            std::collections::hash_map::Entry::Occupied(under_way) => (under_way.get().clone(), false),
            std::collections::hash_map::Entry::Vacant(free) => (free.insert(Arc::default()).clone(), true),
        };
        if !leads {
            counters.fetches_shared.add(1);
            return match flight.wait() {
                Ok(Outcome::Stored(_)) => Ok(Outcome::Present),
                Ok(outcome) => Ok(outcome),
                Err((kind, message)) => Err(Error::new(kind, message)),
            };
        }
        // Lands also if the copy panics: a bug of ours must not leave others waiting for ever.
        let landing = Landing { fetcher: self, flight: &flight, key: &key };
        let _slot = self.slots.take();
        let result = copy_frame(store, opened, source, number, origin);
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
        flight.land(shared);
        drop(landing);
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
    store: &Arc<NodeStore>,
    opened: &Opened,
    source: &Source,
    number: u64,
    origin: Origin,
) -> Result<Outcome> {
    let dataset = &opened.series();
    let describe = || format!("frame {number} of {}", opened.spelled());
    for _ in 0..TRIES {
        if let Some(entry) = store.entry(dataset, number)?
            && (entry.origin == Origin::Native || origin == Origin::Alien)
        {
            return Ok(Outcome::Present);
        }
        let path = opened.at.beneath.join(source.path.as_str())?;
        let file = opened.backing().open(&path).map_err(|error| error.within(describe()))?;
        let (offset, length) = extent_in(&*file, source, number, &opened.spelled())?;
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
        let copied = copy_bytes(store, opened, source, &meta, origin, &*file, offset);
        match copied {
            Err(error) if error.kind() == ErrorKind::NoSpace => return Ok(Outcome::NoRoom),
            // Pushed here while it was being fetched.
            Err(error) if error.kind() == ErrorKind::Conflict && store.entry(dataset, number)?.is_some() => {
                return Ok(Outcome::Present);
            }
            Err(error) if error.kind() == ErrorKind::Stale => {}
            Err(error) => return Err(error.within(describe())),
            Ok(()) => return Ok(Outcome::Stored(length)),
        }
    }
    Err(Error::new(
        ErrorKind::Stale,
        format!("{}: its source kept changing while it was copied; read it when it is written", describe()),
    ))
}

fn copy_bytes(
    store: &Arc<NodeStore>,
    opened: &Opened,
    source: &Source,
    meta: &FrameMeta,
    origin: Origin,
    file: &dyn SourceFile,
    offset: u64,
) -> Result<()> {
    let mut put = store.put(&opened.series(), source, meta, origin)?;
    let mut buffer = vec![0; meta.length.clamp(1, CHUNK_BYTES) as usize];
    let mut done = 0;
    while done < meta.length {
        let wanted = (meta.length - done).min(buffer.len() as u64) as usize;
        match file.read_at(&mut buffer[..wanted], offset + done)? {
            0 => return Err(Error::new(ErrorKind::Stale, "the source became shorter")),
            read => {
                put.write(&buffer[..read])?;
                done += read as u64;
            }
        }
    }
    let path = opened.at.beneath.join(source.path.as_str())?;
    let now = opened.backing().stat(&path)?.validator;
    if meta.validator.is_none_or(|then| !then.looks_like(&now)) {
        return Err(Error::new(ErrorKind::Stale, "the source changed"));
    }
    put.commit_computed().map(|_| ())
}

/// Reads a whole frame from its source, for want of room in the cache.
pub fn read_inline(opened: &Opened, source: &Source, number: u64) -> Result<Vec<u8>> {
    let path = opened.at.beneath.join(source.path.as_str())?;
    let file = opened.backing().open(&path)?;
    let (offset, length) = extent_in(&*file, source, number, &opened.spelled())?;
    let mut bytes = vec![0; length as usize];
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64)? {
            0 => {
                return Err(Error::new(ErrorKind::Stale, format!("{path} became shorter while it was read")));
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
