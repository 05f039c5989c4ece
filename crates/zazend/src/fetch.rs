//! Brings misses from the backing store. `zazen_frames::copy` decides what one copy does step by
//! step; this file reads and writes.
//!
//! Invariant: each caller brings the source opened with the rights of its own user.

use crate::clock::now_ns;
use crate::fetcher::{Asked, Outcome, Wanting};
use crate::node::Node;
use crate::node_store::NodePut;
use crate::opened::OpenedDataset;
use crate::peers::Wanted;
use zazen_backing::SourceFile;
use zazen_core::{Error, ErrorKind, FrameNo, Origin, RelPath, Result, Source, SourceStat, Validator};
use zazen_frames::copy::{self, Ask, Copying, Failure};
use zazen_frames::home::GIVEN_BYTES_MAX;
use zazen_frames::messages::GetPiece;
use zazen_frames::stale::Held;
use zazen_store::CachedFrame;
use zazen_wire::checksum::FrameDigest;

/// Where a copy's bytes may come from, and for how long somebody waits for them.
#[derive(Clone, Copy)]
pub struct Whence<'a> {
    /// They may come from another node. Otherwise the backing store alone is read: it is another
    /// node that asks.
    pub peers: bool,
    /// They come from this node's copy, and from nowhere else.
    pub holder: Option<u128>,
    /// Whether nobody waits any more. Asked before each part of the frame, so that a long copy ends
    /// with its reader.
    pub stops: &'a dyn Fn() -> bool,
}

impl Whence<'_> {
    fn stops(&self) -> bool {
        (self.stops)()
    }
}

/// Why a copy was given up.
pub fn nobody_waits() -> Error {
    Error::new(ErrorKind::ShuttingDown, "nobody waits for the frame any more, or the daemon is stopping")
}

/// Brings frame `number` of `opened`, whose source is `source`, into the cache, or joins a fetch of
/// the same frame that is under way. Returns when the frame is there, or there is no room, or the
/// frame cannot be had. `file` is the source, opened by the user of `opened`; if it changed
/// meanwhile, it is opened again.
pub fn fetch(
    node: &Node,
    opened: &OpenedDataset,
    source: &Source,
    number: u64,
    origin: Origin,
    file: &mut Box<dyn SourceFile>,
    whence: Whence<'_>,
) -> Result<Outcome> {
    let counters = &node.counters;
    let key = Wanting::new(opened.series(), number, source);
    let landing = match node.fetcher.ask_for(key, opened.viewer.clone(), counters) {
        Asked::Shared(result) => return result,
        Asked::Lead(landing) => landing,
    };
    // Bytes that were read ahead have been timed.
    let is_timed = file.name_led_to().is_none() && whence.holder.is_none();
    let mut timed = is_timed.then(|| Timed::begin(node, source.length.unwrap_or(file.stat().validator.size)));
    let result = copy_frame(node, opened, source, number, origin, file, whence);
    match &result {
        Ok(Outcome::Given(bytes)) => {
            counters.peer_blocks.add(1);
            counters.peer_bytes.add(*bytes);
        }
        Ok(Outcome::Stored(bytes)) => {
            timed.iter_mut().for_each(|timed| timed.bytes = *bytes);
            counters.fetched.add(1);
            counters.fetched_bytes.add(*bytes);
        }
        Ok(_) => {}
        // Others who wait for the same frame read it themselves, and from the store if need be.
        Err(_) if whence.stops() || whence.holder.is_some() => {
            landing.land(&Ok(Outcome::Contended));
            return result;
        }
        Err(_) => counters.fetch_failures.add(1),
    }
    landing.land(&result);
    result
}

/// Where the frame is in its opened source file: (offset, length).
pub fn extent_in(file: &dyn SourceFile, source: &Source, number: u64, spelled: &str) -> Result<(u64, u64)> {
    copy::extent_in(file.stat().validator.size, source, number, spelled)
}

/// What the state machines of `zazen_frames` are told of a cached frame.
pub fn held(entry: CachedFrame) -> Held {
    Held { meta: entry.meta, origin: entry.origin, source: entry.source }
}

/// A copy from the backing store under way, for the store's rate.
struct Timed<'a> {
    node: &'a Node,
    length: u64,
    /// What came of it.
    bytes: u64,
}

impl<'a> Timed<'a> {
    fn begin(node: &'a Node, length: u64) -> Timed<'a> {
        node.fetcher.rates().begin(now_ns(), length);
        Timed { node, length, bytes: 0 }
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.node.fetcher.rates().end(now_ns(), self.length, self.bytes);
    }
}

/// Copies a frame.
fn copy_frame(
    node: &Node,
    opened: &OpenedDataset,
    source: &Source,
    number: u64,
    origin: Origin,
    file: &mut Box<dyn SourceFile>,
    whence: Whence<'_>,
) -> Result<Outcome> {
    let frame = FrameNo::new(number)?;
    let ask = Ask {
        number: frame,
        source: source.clone(),
        origin,
        validate: node.config().validate,
        own: opened.viewer.is_own(),
        grows: opened.told_layout().is_some_and(|layout| layout.trajectory().is_some()),
        spelled: opened.spelled(),
    };
    let mut copying = Copying::new(ask, file.stat());
    let series = opened.series();
    let mut hands = Hands {
        node,
        opened,
        series,
        source,
        number,
        origin,
        file,
        put: None,
        buffer: vec![],
        ask_peers: whence.peers,
        whence,
        given: None,
        copied: Copied::default(),
    };
    let mut event = copy::Event::Begin;
    let mut actions = Vec::new();
    loop {
        copying.step(event, &mut actions);
        let mut answer = None;
        for action in actions.drain(..) {
            match action {
                copy::Action::Done(Ok(Outcome::Stored(bytes)))
                    if hands.given.is_some() || whence.holder.is_some() =>
                {
                    return Ok(Outcome::Given(bytes));
                }
                copy::Action::Done(result) => return result,
                asked => answer = hands.perform(asked).or(answer),
            }
        }
        event = answer.unwrap_or_else(|| unreachable!("a copy asks something or ends"));
    }
}

/// Does what a copy asks for, on the real disk and the real backing store.
struct Hands<'a> {
    node: &'a Node,
    opened: &'a OpenedDataset,
    series: RelPath,
    source: &'a Source,
    number: u64,
    origin: Origin,
    file: &'a mut Box<dyn SourceFile>,
    put: Option<NodePut>,
    buffer: Vec<u8>,
    /// Other nodes have not been asked yet, and may be.
    ask_peers: bool,
    whence: Whence<'a>,
    /// The whole frame, from another node.
    given: Option<Vec<u8>>,
    /// What has come from the holder.
    copied: Copied,
}

/// The part of a holder's copy that is here, and the checksum of all parts so far.
#[derive(Default)]
struct Copied {
    /// Where the part begins in the frame.
    begin: u64,
    bytes: Vec<u8>,
    digest: FrameDigest,
}

impl Hands<'_> {
    /// The answer, where one is awaited.
    fn perform(&mut self, action: copy::Action) -> Option<copy::Event> {
        let store = &self.node.store;
        Some(match action {
            copy::Action::LookUp => {
                copy::Event::Held(store.entry(&self.series, self.number).ok().flatten().map(held))
            }
            copy::Action::Reopen => copy::Event::Reopened(self.reopen()),
            copy::Action::BeginPut { meta } => {
                let begun = store.put(&self.series, self.source, &meta, self.origin);
                copy::Event::Begun(begun.map(|put| self.put = Some(put)))
            }
            copy::Action::Copy { offset, bytes } => copy::Event::Copied(self.copy(offset, bytes)),
            copy::Action::LookAgain => copy::Event::Looked(self.look_again()),
            copy::Action::Commit => {
                copy::Event::Committed(self.put.take().map_or(Ok(()), |put| put.commit_computed().map(drop)))
            }
            copy::Action::Abandon => {
                self.put = None;
                return None;
            }
            copy::Action::CacheFailed(error) => {
                self.node.cache_failed(&error);
                return None;
            }
            copy::Action::Done(_) => return None,
        })
    }

    fn reopen(&mut self) -> Result<SourceStat> {
        // The source changed under the first try.
        (self.ask_peers, self.given, self.copied) = (false, None, Copied::default());
        *self.file = self.opened.open_source(self.source, self.number)?;
        Ok(self.file.stat())
    }

    fn copy(&mut self, offset: u64, bytes: u64) -> std::result::Result<u64, Failure> {
        let bytes = bytes as usize;
        if self.whence.stops() {
            return Err(Failure::Source(nobody_waits()));
        }
        if let Some(holder) = self.whence.holder {
            return self.copy_from(holder, offset - self.source.offset, bytes);
        }
        if std::mem::take(&mut self.ask_peers) {
            self.given = self.ask_peers();
        }
        if let Some(given) = &self.given {
            let from = (offset - self.source.offset) as usize;
            let part = &given[from..from + bytes];
            if let Some(put) = &mut self.put {
                put.write(part).map_err(Failure::Cache)?;
            }
            return Ok(bytes as u64);
        }
        if self.buffer.len() < bytes {
            self.buffer = vec![0; bytes];
        }
        let read = self.file.read_at(&mut self.buffer[..bytes], offset).map_err(Failure::Source)?;
        if let Some(put) = &mut self.put {
            put.write(&self.buffer[..read]).map_err(Failure::Cache)?;
        }
        Ok(read as u64)
    }

    /// Copies the part of the frame at `begin` from the copy of the node `holder`. Its last part is
    /// taken only if all of them together match the copy's checksum.
    fn copy_from(&mut self, holder: u128, begin: u64, bytes: usize) -> std::result::Result<u64, Failure> {
        let end = begin + bytes as u64;
        let is_here = begin >= self.copied.begin && end <= self.copied.begin + self.copied.bytes.len() as u64;
        if !is_here {
            let given = self.next_piece(holder, begin, end).map_err(Failure::Source)?;
            (self.copied.begin, self.copied.bytes) = (begin, given);
        }
        let from = (begin - self.copied.begin) as usize;
        if let Some(put) = &mut self.put {
            put.write(&self.copied.bytes[from..from + bytes]).map_err(Failure::Cache)?;
        }
        Ok(bytes as u64)
    }

    /// The bytes of the holder's copy from `begin` on, at least to `end`.
    fn next_piece(&mut self, holder: u128, begin: u64, end: u64) -> Result<Vec<u8>> {
        let spelled = self.opened.spelled();
        let refuse = |kind, why: &str| {
            Err(Error::new(kind, format!("frame {} of {spelled}: what its holder has {why}", self.number)))
        };
        let seen = self.file.stat().validator;
        let whole = self.source.length.unwrap_or(seen.size);
        let length = whole.saturating_sub(begin).min(GIVEN_BYTES_MAX);
        if begin + length < end {
            return refuse(ErrorKind::Protocol, "ends early");
        }
        let ask = GetPiece {
            dataset: spelled.clone(),
            pattern: self.opened.pattern.clone(),
            number: self.number,
            offset: begin,
            length,
        };
        let (given, bytes) = self.node.peers.piece(holder, &ask)?;
        if given.source != *self.source || given.meta.length != whole {
            return refuse(ErrorKind::Stale, "is of another file, or of another length");
        }
        if given.meta.validator.is_none_or(|validator| !validator.agrees_with(&seen)) {
            return refuse(ErrorKind::Stale, "is of another version of the file, or of one just written");
        }
        self.copied.digest.update(&bytes);
        if begin + length == whole && self.copied.digest.finish() != given.meta.checksum {
            return refuse(ErrorKind::Corrupt, "does not match its checksum");
        }
        Ok(bytes)
    }

    /// The frame from another node, if it is a block of a file and a node gives it.
    fn ask_peers(&self) -> Option<Vec<u8>> {
        let layout = self.opened.told_layout()?;
        let blocks = layout.blocks()?;
        let length = self.source.length.filter(|length| *length <= GIVEN_BYTES_MAX)?;
        let dataset = self.opened.spelled();
        let seen = self.file.stat().validator;
        self.node.peers.get(&Wanted { dataset: &dataset, blocks, number: self.number, length, seen })
    }

    fn look_again(&self) -> Result<[Validator; 2]> {
        if self.file.is_one_version() {
            let seen = self.file.stat().validator;
            return Ok([seen, seen]);
        }
        if let Some(name) = self.file.name_led_to() {
            return Ok([self.file.stat_now()?.validator, name]);
        }
        let path = self.opened.at.beneath.join(self.source.path.as_str())?;
        Ok([self.file.stat_now()?.validator, self.opened.backing().stat(&path)?.validator])
    }
}

/// Reads a whole frame from its opened source, for want of room in the cache.
pub fn read_inline(
    opened: &OpenedDataset,
    source: &Source,
    number: u64,
    file: &dyn SourceFile,
) -> Result<Vec<u8>> {
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
