//! The objects beneath a prefix, as files and folders.
//!
//! Invariants: bytes are handed on only if the store says that they are of the version that was
//! asked for, and if they are exactly the range that was asked for. What a part of a listing does
//! not show may exist all the same. Each call ends within its deadline.

use crate::ahead::{Ahead, Filler, Part, Pieces, Read, Version};
use crate::errors::translate;
use crate::http::Connector;
use crate::version::validator_of;
use futures_util::{StreamExt, future, stream};
use object_store::aws::{AmazonS3, AmazonS3Builder, Checksum};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{BackoffConfig, GetOptions, GetRange, ObjectMeta, ObjectStore, RetryConfig};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zazen_backing::objects::{CALL_DEADLINE, LIST_DEADLINE, ObjectLocation, WRITE_DEADLINE};
use zazen_backing::served::{PAYLOAD_MAX, READ_BYTES_MAX, STEP_BYTES};
use zazen_backing::{Backing, DirectoryNames, Piece, Rights, SourceFile, SourceStat};
use zazen_core::{Credentials, Error, ErrorKind, RelPath, Result, Validator};

/// The first bytes of an object come with the answer that opens it: at least so many, and more if
/// more was read of its like.
const FIRST_BYTES: u64 = 256 << 10;
/// Objects of which that was too little; they are opened without their first bytes.
const LARGE_MAX: usize = 1 << 16;
/// Paths that are known to be no objects.
const NO_OBJECTS_MAX: usize = 1 << 12;
/// Looks at objects under way for one question.
const LOOKS_MAX: usize = 32;
/// If a question names so many objects of one folder, a listing is tried first.
const LISTED_MIN: usize = 16;
/// A page of a listing.
const PAGE_KEYS: usize = 1000;
/// What an answer with names may take, with its lengths.
const NAMES_BYTES_MAX: usize = PAYLOAD_MAX / 2;
/// A request is repeated so often, if it may be.
const RETRIES_MAX: usize = 4;
/// The longest name of a file or a folder.
const NAME_BYTES_MAX: usize = 255;

/// A bucket. Threads share it.
pub(crate) struct ObjectTree {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runtime: tokio::runtime::Runtime,
}

pub(crate) struct Shared {
    pub(crate) store: AmazonS3,
    location: ObjectLocation,
    ahead: Ahead,
    large: Mutex<HashSet<RelPath>>,
    /// Where no object was, last time: a folder, or nothing. There the folder is asked for together
    /// with the object, which saves a round trip.
    no_objects: Mutex<HashSet<RelPath>>,
    /// Where requests run.
    handle: tokio::runtime::Handle,
    /// Whether the program is to end. Each upload has a receiver.
    pub(crate) is_ending: tokio::sync::watch::Sender<bool>,
}

impl ObjectTree {
    /// Asks the store nothing yet. `Config` for settings that do not hold.
    pub(crate) fn new(location: ObjectLocation, writes: bool) -> Result<ObjectTree> {
        // A second call finds it installed.
        rustls::crypto::ring::default_provider().install_default().ok();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|error| Error::io("threads", error))?;
        let backoff = BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(2),
            base: 2.0,
        };
        let deadline = if writes { WRITE_DEADLINE } else { CALL_DEADLINE };
        let retry = RetryConfig { backoff, max_retries: RETRIES_MAX, retry_timeout: deadline / 2 };
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(&location.bucket)
            .with_http_connector(Connector { writes })
            .with_retry(retry);
        if writes {
            // The store compares what it got with this.
            builder = builder.with_checksum_algorithm(Checksum::SHA256);
        }
        if let Some(endpoint) = &location.endpoint {
            builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
        }
        if let Some(region) = &location.region {
            builder = builder.with_region(region);
        }
        if location.anonymous {
            builder = builder.with_skip_signature(true);
        }
        let store = builder
            .build()
            .map_err(|error| Error::new(ErrorKind::Config, format!("{}: {error}", location.root())))?;
        let handle = runtime.handle().clone();
        let (ahead, large, no_objects) = (Ahead::default(), Mutex::default(), Mutex::default());
        let is_ending = tokio::sync::watch::Sender::default();
        let shared = Shared { store, location, ahead, large, no_objects, handle, is_ending };
        Ok(ObjectTree { shared: Arc::new(shared), runtime })
    }

    pub(crate) fn within<T>(
        &self,
        deadline: Duration,
        what: &str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let bounded = self.runtime.block_on(async { tokio::time::timeout(deadline, call).await });
        bounded.unwrap_or_else(|_| {
            let text = format!("{what}: the object store has not answered within {deadline:?}");
            Err(Error::new(ErrorKind::TimedOut, text))
        })
    }

    fn file(&self, path: &RelPath, validator: Validator) -> Box<dyn SourceFile> {
        let (shared, version) = (self.shared.clone(), Version::of(path, &validator));
        Box::new(ObjectFile { stat: shared.stat_of(validator), shared, version })
    }
}

/// The key behind which a listing has none of `names` any more, be they objects or folders. A
/// folder's key ends with a slash, which comes behind a dot: `a/` comes after `a.b`.
fn last_key(names: &BTreeSet<&str>) -> String {
    names.iter().map(|name| format!("{name}/")).max().unwrap_or_default()
}

impl Shared {
    /// For messages.
    pub(crate) fn name(&self, path: &RelPath) -> String {
        match path.is_root() {
            true => self.location.root(),
            false => format!("{}/{path}", self.location.root()),
        }
    }

    fn key(&self, path: &RelPath) -> Result<String> {
        Ok(self.location.prefix.join(path.as_str())?.as_str().to_owned())
    }

    pub(crate) fn object(&self, path: &RelPath) -> Result<Path> {
        Path::parse(self.key(path)?)
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, format!("{}: {error}", self.name(path))))
    }

    fn stat_of(&self, validator: Validator) -> SourceStat {
        let owner = &self.location.owner;
        SourceStat { validator, uid: owner.uid, gid: owner.gid, mode: owner.mode, is_dir: false }
    }

    /// A folder has no time of its own. The latest one: nobody remembers its listing.
    fn folder(&self) -> SourceStat {
        let validator = Validator { mtime_ns: i64::MAX, unsettled: true, ..Validator::default() };
        SourceStat { mode: self.location.owner.folder_mode(), is_dir: true, ..self.stat_of(validator) }
    }

    fn missing(&self, path: &RelPath) -> Error {
        Error::new(ErrorKind::NotFound, format!("{}: no such object or folder", self.name(path)))
    }

    async fn head(&self, path: &RelPath) -> Result<Option<SourceStat>> {
        if path.is_root() {
            return Ok(None);
        }
        match self.store.get_opts(&self.object(path)?, GetOptions { head: true, ..Default::default() }).await
        {
            Ok(found) => Ok(Some(self.stat_of(validator_of(&found.meta)))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(translate(&self.name(path), error)),
        }
    }

    /// One page of the keys beneath `folder`, after the name `after`.
    async fn page(
        &self,
        folder: &RelPath,
        after: Option<&str>,
        token: Option<String>,
        keys_max: usize,
    ) -> Result<(Vec<ObjectMeta>, Vec<Path>, Option<String>)> {
        let key = self.key(folder)?;
        let prefix = if key.is_empty() { key } else { key + "/" };
        let options = PaginatedListOptions {
            offset: after.map(|after| format!("{prefix}{after}")),
            delimiter: Some("/".into()),
            max_keys: Some(keys_max),
            page_token: token,
            ..Default::default()
        };
        let wanted = Some(prefix.as_str()).filter(|prefix| !prefix.is_empty());
        match self.store.list_paginated(wanted, options).await {
            Ok(found) => Ok((found.result.objects, found.result.common_prefixes, found.page_token)),
            // A bucket that is not there is a store that is not there.
            Err(error @ object_store::Error::NotFound { .. }) => Err(Error::new(
                ErrorKind::Unavailable,
                format!("{}: there is no bucket {} ({error})", self.name(folder), self.location.bucket),
            )),
            Err(error) => Err(translate(&self.name(folder), error)),
        }
    }

    /// The name of what lies directly in `folder`.
    fn name_in<'a>(&self, folder: &RelPath, found: &'a Path) -> Option<&'a str> {
        let key = self.key(folder).ok()?;
        let rest = match key.is_empty() {
            true => found.as_ref(),
            false => found.as_ref().strip_prefix(key.as_str())?.strip_prefix('/')?,
        };
        (!rest.is_empty() && rest.len() <= NAME_BYTES_MAX && !rest.contains('/')).then_some(rest)
    }

    async fn stat(&self, path: &RelPath) -> Result<SourceStat> {
        let folder = self.folder_at(path);
        match self.object_or(path, self.head(path), folder).await {
            (Ok(Some(found)), _) => Ok(found),
            (Ok(None), folder) => folder,
            (Err(error), _) => Err(error),
        }
    }

    /// What `object` finds at `path`, and if that is none, what `other` finds there.
    async fn object_or<T, U>(
        &self,
        path: &RelPath,
        object: impl Future<Output = Result<Option<T>>>,
        other: impl Future<Output = Result<U>>,
    ) -> (Result<Option<T>>, Result<U>) {
        let known = || self.no_objects.lock().unwrap_or_else(PoisonError::into_inner);
        let is_none = known().contains(path);
        let unasked = || Err(self.missing(path));
        let (object, other) = match is_none {
            true => future::join(object, other).await,
            false => match object.await {
                Ok(None) => (Ok(None), other.await),
                found => (found, unasked()),
            },
        };
        match (&object, is_none) {
            (Ok(Some(_)), true) => drop(known().remove(path)),
            (Ok(None), false) => {
                let mut known = known();
                if known.len() >= NO_OBJECTS_MAX {
                    known.clear();
                }
                known.insert(path.clone());
            }
            _ => {}
        }
        (object, other)
    }

    /// `NotFound` if no key begins with `path` and a slash.
    pub(crate) async fn folder_at(&self, path: &RelPath) -> Result<SourceStat> {
        let (objects, folders, _) = self.page(path, None, None, 1).await?;
        match path.is_root() || !objects.is_empty() || !folders.is_empty() {
            true => Ok(self.folder()),
            false => Err(self.missing(path)),
        }
    }

    async fn stat_many(&self, paths: &[RelPath]) -> Result<Vec<Result<SourceStat>>> {
        let listed = self.stats_by_listing(paths).await;
        let looks = paths.iter().map(|path| {
            let known = listed.get(path).copied();
            async move {
                match known {
                    Some(Some(found)) => Ok(found),
                    Some(None) => Err(self.missing(path)),
                    None => self.stat(path).await,
                }
            }
        });
        let looks: Vec<_> = stream::iter(looks).buffered(LOOKS_MAX).collect().await;
        // An error of the whole store is the outer error.
        let is_outage = |error: &Error| matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut);
        let mut answers = Vec::with_capacity(looks.len());
        for look in looks {
            match look {
                Err(error) if is_outage(&error) => return Err(error),
                look => answers.push(look),
            }
        }
        Ok(answers)
    }

    /// What listings show of `paths`: one request for up to a thousand objects side by side.
    /// `None`: a listing shows that there is no such object and no such folder.
    async fn stats_by_listing(&self, paths: &[RelPath]) -> HashMap<RelPath, Option<SourceStat>> {
        let mut known = HashMap::new();
        let mut folders: BTreeMap<RelPath, BTreeSet<&str>> = BTreeMap::new();
        for (folder, name) in paths.iter().filter_map(RelPath::split) {
            folders.entry(folder).or_default().insert(name);
        }
        for (folder, mut names) in folders.into_iter().filter(|(_, names)| names.len() >= LISTED_MIN) {
            // A listing begins after a name, so the first one is not in it.
            let Some(first) = names.pop_first() else { continue };
            let (found, is_complete) = self.list_for(&folder, first, &names).await;
            for name in names {
                let Ok(path) = folder.join(name) else { continue };
                match found.get(name) {
                    Some(stat) => drop(known.insert(path, Some(*stat))),
                    None if is_complete => drop(known.insert(path, None)),
                    None => {}
                }
            }
        }
        known
    }

    /// Those of `names` in `folder` that its listing after `first` shows, and whether it shows all
    /// that there are.
    async fn list_for(
        &self,
        folder: &RelPath,
        first: &str,
        names: &BTreeSet<&str>,
    ) -> (HashMap<String, SourceStat>, bool) {
        let mut found = HashMap::new();
        let last = last_key(names);
        let (mut token, mut latest, mut is_sorted) = (None, first.to_owned(), true);
        for _ in 0..1 + names.len() / PAGE_KEYS * 2 {
            let Ok((objects, folders, next)) = self.page(folder, Some(first), token, PAGE_KEYS).await else {
                return (found, false);
            };
            let mut keys = BTreeSet::new();
            for path in &folders {
                let Some(name) = self.name_in(folder, path) else { continue };
                keys.insert(format!("{name}/"));
                if names.contains(name) {
                    found.insert(name.to_owned(), self.folder());
                }
            }
            // An object hides a folder of the same name.
            for meta in &objects {
                let Some(name) = self.name_in(folder, &meta.location) else { continue };
                keys.insert(name.to_owned());
                if names.contains(name) {
                    found.insert(name.to_owned(), self.stat_of(validator_of(meta)));
                }
            }
            // Some stores list in an order of their own: then only the end shows that all was seen.
            is_sorted &= keys.first().is_none_or(|key| *key > latest);
            latest = keys.pop_last().unwrap_or(latest);
            token = next;
            if token.is_none() || (is_sorted && latest > last) {
                return (found, true);
            }
        }
        (found, false)
    }

    /// The error of opening what is no object: a folder, or nothing.
    async fn no_object(&self, path: &RelPath) -> Error {
        match self.folder_at(path).await {
            Ok(_) => {
                let text = format!("{}: is a folder, not an object", self.name(path));
                Error::new(ErrorKind::InvalidArgument, text)
            }
            Err(error) => error,
        }
    }

    async fn open(self: &Arc<Self>, path: &RelPath) -> Result<Validator> {
        let none = async { Ok(self.no_object(path).await) };
        match self.object_or(path, self.open_object(path), none).await {
            (Ok(Some(seen)), _) => Ok(seen),
            (Ok(None), none) => Err(none.unwrap_or_else(|error| error)),
            (Err(error), _) => Err(error),
        }
    }

    /// Opens an object, and begins to fetch its first bytes; `None` if there is no such object.
    async fn open_object(self: &Arc<Self>, path: &RelPath) -> Result<Option<Validator>> {
        if path.is_root() {
            return Ok(None);
        }
        let first_bytes = self.ahead.habit(path).clamp(FIRST_BYTES, READ_BYTES_MAX as u64);
        let is_large = self.large.lock().unwrap_or_else(PoisonError::into_inner).contains(path);
        if is_large && first_bytes <= FIRST_BYTES {
            return Ok(self.head(path).await?.map(|found| found.validator));
        }
        let range = Some(GetRange::Bounded(0..first_bytes));
        let found = match self
            .store
            .get_opts(&self.object(path)?, GetOptions { range, ..Default::default() })
            .await
        {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            // An empty object has no first byte: stores answer with an error.
            Err(_) => return Ok(self.head(path).await?.map(|found| found.validator)),
        };
        let seen = validator_of(&found.meta);
        if seen.size > FIRST_BYTES {
            let mut large = self.large.lock().unwrap_or_else(PoisonError::into_inner);
            if large.len() >= LARGE_MAX {
                large.clear();
            }
            large.insert(path.clone());
        }
        let (shared, version) = (self.clone(), Version::of(path, &seen));
        let range = 0..first_bytes.min(seen.size);
        let length = range.end;
        // Whoever opens it learns of it before all these bytes are here.
        let part = self.coming(length, |filler| async move {
            shared.collect(&version.path, found, range, &filler).await
        });
        self.ahead.keep(&Version::of(path, &seen), 0, part);
        Ok(Some(seen))
    }

    /// A part that `fetch` brings, from now on.
    fn coming<F>(&self, length: u64, fetch: impl FnOnce(Arc<Filler>) -> F) -> Part
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let (part, filler) = Part::coming(length);
        let (what, filler) = (self.location.root(), Arc::new(filler));
        let fetch = fetch(filler.clone());
        self.handle.spawn(async move {
            let fetched = tokio::time::timeout(CALL_DEADLINE, fetch).await;
            filler.end(fetched.unwrap_or_else(|_| {
                let text = format!("{what}: no bytes came within {CALL_DEADLINE:?}");
                Err(Error::new(ErrorKind::TimedOut, text))
            }));
        });
        part
    }

    /// Gives all bytes of an answer to `filler`. They must be exactly `range`.
    async fn collect(
        &self,
        path: &RelPath,
        found: object_store::GetResult,
        range: std::ops::Range<u64>,
        filler: &Filler,
    ) -> Result<()> {
        let wrong = |what: String| {
            let text = format!("{}: {what}; the object store is out of order", self.name(path));
            Error::new(ErrorKind::Protocol, text)
        };
        if found.range != range {
            return Err(wrong(format!("asked for {range:?}, sent {:?}", found.range)));
        }
        let (wanted, mut come) = (range.end - range.start, 0);
        let mut pieces = found.into_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| translate(&self.name(path), error))?;
            come += piece.len() as u64;
            if come > wanted {
                return Err(wrong(format!("sent more than the {wanted} bytes asked for")));
            }
            if !filler.add(piece) {
                break;
            }
        }
        match come == wanted {
            true => Ok(()),
            false => Err(wrong(format!("sent {come} of the {wanted} bytes asked for"))),
        }
    }

    /// Bytes of one version: `Stale` if the object is another one by now.
    async fn get(&self, version: &Version, range: std::ops::Range<u64>, filler: &Filler) -> Result<()> {
        let path = &version.path;
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..Default::default() };
        let stale = || {
            let text =
                format!("{}: the object was replaced while it was read; open it again", self.name(path));
            Error::new(ErrorKind::Stale, text)
        };
        match self.store.get_opts(&self.object(path)?, options).await {
            Ok(found) if Version::of(path, &validator_of(&found.meta)) != *version => Err(stale()),
            Ok(found) => self.collect(path, found, range, filler).await,
            Err(object_store::Error::NotFound { .. }) => Err(stale()),
            Err(error) => {
                // A shorter object has no such range, which stores report as an error of its own.
                let error = translate(&self.name(path), error);
                let is_odd = !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut);
                match is_odd.then_some(self.head(path).await) {
                    Some(Ok(Some(now))) if Version::of(path, &now.validator) != *version => Err(stale()),
                    Some(Ok(None)) => Err(stale()),
                    _ => Err(error),
                }
            }
        }
    }

    async fn list(&self, folder: &RelPath, files_only: bool) -> Result<Vec<String>> {
        let (mut names, mut bytes, mut token, mut exists) = (BTreeSet::new(), 0, None, folder.is_root());
        let mut inner = BTreeSet::new();
        loop {
            let (objects, folders, next) = self.page(folder, None, token.clone(), PAGE_KEYS).await?;
            exists |= !objects.is_empty() || !folders.is_empty();
            let before = names.len() + inner.len();
            for (found, is_folder) in objects
                .iter()
                .map(|meta| (&meta.location, false))
                .chain(folders.iter().map(|path| (path, true)))
            {
                let Some(name) = self.name_in(folder, found).filter(|name| RelPath::new(name).is_ok()) else {
                    continue;
                };
                let set = if is_folder { &mut inner } else { &mut names };
                if set.insert(name.to_owned()) {
                    bytes += name.len() + size_of::<u32>();
                }
            }
            if bytes > NAMES_BYTES_MAX {
                let text = format!(
                    "{}: its names take more than {NAMES_BYTES_MAX} bytes, the limit for one folder; \
                     give the dataset a manifest (zazen.toml), or spread the objects over several folders",
                    self.name(folder)
                );
                return Err(Error::new(ErrorKind::TooLarge, text));
            }
            let is_new = names.len() + inner.len() > before;
            match next {
                None => break,
                Some(next) if Some(&next) == token.as_ref() || (!is_new && token.is_some()) => {
                    let text = format!("{}: the object store's listing does not end", self.name(folder));
                    return Err(Error::new(ErrorKind::Protocol, text));
                }
                Some(next) => token = Some(next),
            }
        }
        if !exists {
            return Err(self.missing(folder));
        }
        if !files_only {
            names.append(&mut inner);
        }
        Ok(names.into_iter().collect())
    }
}

impl Backing for ObjectTree {
    fn describe(&self) -> String {
        self.shared.location.root()
    }

    fn stat(&self, path: &RelPath) -> Result<SourceStat> {
        self.within(CALL_DEADLINE, &self.shared.name(path), self.shared.stat(path))
    }

    fn stat_many(&self, paths: &[RelPath]) -> Result<Vec<Result<SourceStat>>> {
        let what = format!("{}: looks at {} objects", self.describe(), paths.len());
        self.within(CALL_DEADLINE, &what, self.shared.stat_many(paths))
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn SourceFile>> {
        let seen = self.within(CALL_DEADLINE, &self.shared.name(path), self.shared.open(path))?;
        Ok(self.file(path, seen))
    }

    fn open_version(&self, path: &RelPath, seen: &Validator) -> Result<Box<dyn SourceFile>> {
        Ok(self.file(path, *seen))
    }

    fn list(&self, path: &RelPath) -> Result<DirectoryNames> {
        let names = self.within(LIST_DEADLINE, &self.shared.name(path), self.shared.list(path, false))?;
        Ok(names.into())
    }

    fn list_files(&self, path: &RelPath) -> Result<DirectoryNames> {
        let names = self.within(LIST_DEADLINE, &self.shared.name(path), self.shared.list(path, true))?;
        Ok(names.into())
    }

    /// The daemon decides: only it knows who asks.
    fn allows(&self, path: &RelPath, rights: Rights) -> Result<bool> {
        self.stat(path).map(|_| !rights.contains(Rights::WRITE))
    }

    fn seen_by(&self, _who: &Credentials) -> Result<Arc<dyn Backing>> {
        Err(Error::new(ErrorKind::Unsupported, "the daemon decides who may read an object store"))
    }
}

/// One version of an object.
struct ObjectFile {
    shared: Arc<Shared>,
    version: Version,
    stat: SourceStat,
}

impl ObjectFile {
    /// Begins to fetch a part.
    fn begin(&self, range: std::ops::Range<u64>) -> Part {
        let (shared, version) = (self.shared.clone(), self.version.clone());
        let length = range.end - range.start;
        self.shared.coming(length, |filler| async move { shared.get(&version, range, &filler).await })
    }

    /// At most `bytes_max` bytes at `offset`; none at the end. Fewer, but [`STEP_BYTES`], while the
    /// rest is coming.
    fn read(&self, bytes_max: usize, offset: u64) -> Result<Pieces> {
        let (shared, version, size) = (&self.shared, &self.version, self.stat.validator.size);
        let wanted = (bytes_max.min(READ_BYTES_MAX) as u64).min(size.saturating_sub(offset));
        if wanted == 0 {
            return Ok(Pieces::default());
        }
        let ready = shared.ahead.take(version, offset);
        let mut part = ready.unwrap_or_else(|| self.begin(offset..offset + wanted));
        let begun = offset + part.left();
        let bytes = match part.take(wanted.min(STEP_BYTES), wanted, CALL_DEADLINE) {
            Some(Ok(bytes)) => bytes,
            Some(Err(error)) => return Err(Error::new(error.kind(), error.to_string())),
            None => {
                let what = format!("{}: no bytes came within {CALL_DEADLINE:?}", shared.name(&version.path));
                return Err(Error::new(ErrorKind::TimedOut, what));
            }
        };
        let end = offset + bytes.length();
        if part.left() > 0 {
            shared.ahead.keep(version, end, part);
        }
        let read = Read { start: offset, end, asked: offset + wanted, begun };
        for next in shared.ahead.after_read(version, read, READ_BYTES_MAX as u64) {
            shared.ahead.keep(version, next.start, self.begin(next));
        }
        Ok(bytes)
    }
}

impl SourceFile for ObjectFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut filled = 0;
        for piece in self.read(buffer.len(), offset)?.into_vec() {
            buffer[filled..filled + piece.len()].copy_from_slice(&piece);
            filled += piece.len();
        }
        Ok(filled)
    }

    fn read_pieces(&self, bytes_max: usize, offset: u64) -> Result<Vec<Piece>> {
        let pieces = self.read(bytes_max, offset)?.into_vec().into_iter();
        Ok(pieces.map(|piece| Box::new(piece) as Piece).collect())
    }

    fn stat(&self) -> SourceStat {
        self.stat
    }

    fn stat_now(&self) -> Result<SourceStat> {
        Ok(self.stat)
    }

    fn descriptor(&self) -> Option<OwnedFd> {
        None
    }

    fn is_one_version(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_folder_comes_behind_the_last_key() {
        for (names, last) in [(["a", "a.b"], "a/"), (["a", "a0"], "a0/"), (["a", "b"], "b/")] {
            assert_eq!(last_key(&BTreeSet::from(names)), last);
        }
    }
}
