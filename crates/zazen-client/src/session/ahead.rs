//! Small frames read one by one: from places that the daemon gave ahead. `zazen_frames::ahead`
//! decides when to ask for places, and whether a copy still stands for its source.
//!
//! Invariants: a frame that is read from its place was compared with its source by a look of this
//! read, unless the daemon takes sources not to change; its bytes are checked against their
//! checksum. Whatever is not as it was is left to the daemon. Descriptors are closed when the
//! places lapse, by a thread of their own if the program rests.

use crate::read::{Data, Job};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zazen_backing::directory::stat_name;
use zazen_core::limits::check_frame_bytes;
use zazen_core::{Error, ErrorKind, FrameMeta, Origin, Source};
use zazen_env::fork::Mine;
use zazen_frames::ahead::{ASKED, Asking, still_stands};
use zazen_frames::messages::{AskPlaces, Delivery, PlacedFrame, Places};

/// Longer frames are no packed ones.
const SMALL_MAX: usize = 128 << 10;

/// The places of one dataset, and what was read from them.
pub(super) struct Ahead {
    asking: Asking,
    /// The times of `asking` count from here.
    began: Instant,
    used: Used,
    shared: Arc<Shared>,
    /// Gives up the places when they lapse.
    keeper: Option<JoinHandle<()>>,
    mine: Mine,
}

/// What was read from places and not told to the daemon yet: frames and bytes.
#[derive(Default)]
struct Used {
    native: (u64, u64),
    alien: (u64, u64),
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    held: Option<Held>,
    /// A thread waits until the places lapse.
    is_kept: bool,
}

/// Places that are held now.
struct Held {
    until: Instant,
    frames: HashMap<u64, Found, BuildHasherDefault<NumberHasher>>,
    files: Vec<(Arc<OwnedFd>, Arc<Path>)>,
    /// The sources' directory, with a slash behind it; the last source's path.
    directory: String,
    path: String,
    compares: bool,
}

/// Spreads frame numbers. The daemon gives them, which the reader trusts with its bytes, too; so no
/// hash that resists chosen numbers is needed, and a cheap one is a twentieth of a read.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // The golden ratio: neighbours come into different places, high bits differ.
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// Where one frame is.
struct Found {
    meta: FrameMeta,
    origin: Origin,
    source: Source,
    file: usize,
    offset: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the places lapse or are given up, and gives them up.
    fn keep(&self) {
        let mut state = self.lock();
        while let Some(held) = &state.held {
            let left = held.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.held = None;
            } else {
                state = self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        state.is_kept = false;
    }
}

impl Held {
    /// Frame `number` where it lies, if its copy still stands for its source; forgets a place that
    /// cannot be used any more.
    fn job(&mut self, number: u64) -> Option<Job> {
        let found = self.frames.get(&number)?;
        if self.compares {
            self.path.truncate(self.directory.len());
            self.path.push_str(found.source.path.as_str());
            let now = stat_name(&self.path);
            if !now.is_some_and(|now| still_stands(&found.meta, &found.source, &now)) {
                self.frames.remove(&number);
                return None;
            }
        }
        let (file, path) = &self.files[found.file];
        let delivery = match found.origin {
            Origin::Native => Delivery::Native,
            Origin::Alien => Delivery::Alien,
        };
        Some(Job {
            number,
            delivery: Some(delivery),
            path: path.clone(),
            whole: false,
            length: found.meta.length,
            checksum: Some(found.meta.checksum),
            data: Data::Descriptor(file.clone(), found.offset),
        })
    }

    /// Adds what the daemon gave.
    fn add(&mut self, places: Places, files: Vec<OwnedFd>) {
        let first = self.files.len();
        let paths = places.paths.into_iter().map(|path| Arc::from(PathBuf::from(path)));
        self.files.extend(files.into_iter().map(Arc::new).zip(paths));
        for PlacedFrame { meta, origin, source, file, offset } in
            places.frames.into_iter().take(ASKED as usize)
        {
            let end = offset.checked_add(meta.length).map(i64::try_from);
            if check_frame_bytes(meta.length).is_err() || !matches!(end, Some(Ok(_))) {
                continue;
            }
            let found = Found { meta, origin, source, file: first + usize::from(file), offset };
            self.frames.insert(found.meta.number.get(), found);
        }
    }
}

impl Ahead {
    pub(super) fn new() -> Ahead {
        Ahead {
            asking: Asking::default(),
            began: Instant::now(),
            used: Used::default(),
            shared: Arc::default(),
            keeper: None,
            mine: Mine::of_this_process(),
        }
    }

    fn ns(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX)
    }

    /// The daemon gave a cached frame of so many bytes by a call of its own. Whether to ask it for
    /// places now.
    pub(super) fn read_alone(&mut self, bytes: usize) -> bool {
        let now_ns = self.ns(Instant::now());
        bytes <= SMALL_MAX && self.asking.read_alone(now_ns)
    }

    /// Frame `number` where it lies, if its place is held and can be used.
    pub(super) fn job(&mut self, number: u64, now: Instant) -> Option<Job> {
        let now_ns = self.ns(now);
        if !self.asking.is_held(now_ns) {
            return None;
        }
        self.shared.lock().held.as_mut().filter(|held| now < held.until)?.job(number)
    }

    pub(super) fn forget(&self, number: u64) {
        if let Some(held) = &mut self.shared.lock().held {
            held.frames.remove(&number);
        }
    }

    pub(super) fn used(&mut self, delivery: Option<Delivery>, bytes: u64) {
        self.asking.used();
        let used = match delivery {
            Some(Delivery::Native) => &mut self.used.native,
            _ => &mut self.used.alien,
        };
        *used = (used.0 + 1, used.1 + bytes);
    }

    /// What to ask the daemon, which learns what was read from places. The caller adds the handle.
    pub(super) fn question(&mut self, number: u64) -> AskPlaces {
        let Used { native, alien } = std::mem::take(&mut self.used);
        AskPlaces {
            handle: 0,
            number,
            frames_max: ASKED,
            native_frames: native.0,
            native_bytes: native.1,
            alien_frames: alien.0,
            alien_bytes: alien.1,
        }
    }

    /// What the daemon has not been told yet, at the end: it is asked for nothing.
    pub(super) fn last_words(&mut self) -> Option<AskPlaces> {
        let told = AskPlaces { frames_max: 0, ..self.question(0) };
        (told.native_frames + told.alien_frames > 0).then_some(told)
    }

    /// Holds what the daemon gave when it was asked for `number`.
    pub(super) fn take(&mut self, number: u64, (places, files): (Places, Vec<OwnedFd>)) {
        let has_asked = places.frames.iter().any(|frame| frame.meta.number.get() == number);
        let count = (places.frames.len() as u64).min(u64::from(ASKED));
        let now = Instant::now();
        let now_ns = self.ns(now);
        let until_ns = self.asking.given(count, has_asked, now_ns);
        if count == 0 {
            return;
        }
        let until = now + Duration::from_nanos(until_ns.saturating_sub(now_ns));
        let directory = format!("{}/", places.directory.trim_end_matches('/'));
        let mut state = self.shared.lock();
        match &mut state.held {
            Some(old)
                if now < old.until && (&old.directory, old.compares) == (&directory, places.compares) =>
            {
                old.add(places, files);
            }
            other => {
                let path = directory.clone();
                let (frames, compares) = (HashMap::default(), places.compares);
                let fresh = Held { until, frames, files: Vec::new(), directory, path, compares };
                other.insert(fresh).add(places, files);
            }
        }
        let is_kept = std::mem::replace(&mut state.is_kept, true);
        drop(state);
        if !is_kept {
            self.keep();
        }
    }

    /// Has the places given up when they lapse, also if the program rests.
    fn keep(&mut self) {
        // Its end was decided under the lock: it waits for nobody.
        self.keeper.take().map(JoinHandle::join);
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("zazen-places".to_owned());
        match thread.spawn(move || shared.keep()) {
            Ok(keeper) => self.keeper = Some(keeper),
            Err(error) => {
                tracing::debug!("start a thread: {error}; frames are asked for one by one");
                *self.shared.lock() = State::default();
            }
        }
    }

    /// The daemon gave no places, or could not be understood.
    pub(super) fn no_places(&mut self, error: &Error) {
        tracing::debug!("{error}; frames are asked for one by one");
        match error.kind() {
            ErrorKind::Unsupported => self.asking.refused(),
            _ => {
                self.asking.given(0, false, 0);
            }
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if self.mine.is_mine() {
            self.shared.lock().held = None;
            self.shared.ended.notify_all();
            // It could outlive the library otherwise.
            self.keeper.take().map(JoinHandle::join);
            return;
        }
        // A forked child has no such thread, which may have held the lock.
        std::mem::forget(self.keeper.take());
        if let Ok(mut state) = self.shared.state.try_lock() {
            state.held = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zazen_core::{FrameNo, RelPath};

    fn given(number: u64) -> (Places, Vec<OwnedFd>) {
        let number = FrameNo::new(number).unwrap();
        let meta = FrameMeta { number, length: 1, checksum: 1, validator: None, uid: 0, gid: 0, mode: 0 };
        let source = Source { path: RelPath::new("f").unwrap(), offset: 0, length: None };
        let frames = vec![PlacedFrame { meta, origin: Origin::Native, source, file: 0, offset: 0 }];
        let places =
            Places { directory: "/d".into(), compares: false, paths: vec!["/cache/0".into()], frames };
        (places, vec![OwnedFd::from(std::fs::File::open("/dev/null").unwrap())])
    }

    fn wait(what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn files_are_closed_when_places_lapse_though_the_program_rests() {
        let mut ahead = Ahead::new();
        for round in 0..3 {
            ahead.take(round, given(round));
            assert!(ahead.job(round, Instant::now()).is_some());
            assert!(ahead.job(round + 1, Instant::now()).is_none());
            // As if the time were over.
            ahead.shared.lock().held.as_mut().unwrap().until = Instant::now();
            ahead.shared.ended.notify_all();
            wait("its thread gives the places up", || ahead.shared.lock().held.is_none());
            wait("and ends", || !ahead.shared.lock().is_kept);
            assert!(ahead.job(round, Instant::now()).is_none());
        }
    }

    #[test]
    fn places_of_one_answer_join_those_before_and_end_with_the_dataset() {
        let mut ahead = Ahead::new();
        ahead.take(1, given(1));
        ahead.take(2, given(2));
        let now = Instant::now();
        assert!(ahead.job(1, now).is_some() && ahead.job(2, now).is_some() && ahead.job(3, now).is_none());
        ahead.forget(1);
        assert!(ahead.job(1, now).is_none());
        ahead.used(Some(Delivery::Native), 5);
        ahead.used(Some(Delivery::Alien), 7);
        let ask = ahead.question(2);
        assert_eq!((ask.native_frames, ask.native_bytes, ask.alien_frames, ask.alien_bytes), (1, 5, 1, 7));
        assert_eq!(ahead.question(2).native_frames, 0, "told once");
        assert!(ahead.last_words().is_none());
        ahead.used(Some(Delivery::Alien), 7);
        assert_eq!(ahead.last_words().map(|told| (told.frames_max, told.alien_bytes)), Some((0, 7)));
        let shared = ahead.shared.clone();
        drop(ahead);
        assert!(!shared.lock().is_kept && shared.lock().held.is_none());
        assert_eq!(Arc::strong_count(&shared), 1, "its thread has ended");
    }

    #[test]
    fn places_that_no_file_can_have_are_left_out() {
        let mut ahead = Ahead::new();
        let (mut places, files) = given(1);
        places.frames[0].offset = u64::MAX;
        ahead.take(1, (places, files));
        assert!(ahead.job(1, Instant::now()).is_none());
        ahead.take(2, (given(2).0, given(2).1));
        assert!(ahead.job(2, Instant::now()).is_some());
    }
}
