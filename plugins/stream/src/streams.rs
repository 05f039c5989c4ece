//! All streams of the host: their names, and who holds handles on them.
//!
//! Invariants: a handle belongs to one client. A stream whose last handle is closed is shut. No
//! lock is held while a stream is opened, shut or used.

use crate::config::Config;
use crate::lock::lock;
use crate::receive;
use crate::stream::Stream;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};
use zazen_plugin_sdk::{Caller, Outcome};

/// Streams of one user, at most.
const STREAMS_MAX: usize = 64;

/// What a handle stands for.
#[derive(Clone)]
pub(crate) struct Attachment {
    pub(crate) stream: Arc<Stream>,
    pub(crate) rank: Option<u32>,
    client: (u64, u64),
    borrowed: Arc<Mutex<Borrowed>>,
}

/// Blocks that a client reads in place.
#[derive(Default)]
struct Borrowed {
    blocks: Vec<u64>,
    is_over: bool,
}

impl Attachment {
    /// The block is this handle's until it is given back, unless the handle has been closed
    /// meanwhile.
    pub(crate) fn lend(&self, block: u64) -> Outcome<()> {
        let mut borrowed = lock(&self.borrowed);
        if borrowed.is_over {
            drop(borrowed);
            self.stream.returned(block, false);
            return Err(libc::EBADF);
        }
        borrowed.blocks.push(block);
        Ok(())
    }

    /// The client is done with it.
    pub(crate) fn give_back(&self, block: u64) -> Outcome<()> {
        {
            let mut borrowed = lock(&self.borrowed);
            let at = borrowed.blocks.iter().position(|other| *other == block).ok_or(libc::EINVAL)?;
            borrowed.blocks.swap_remove(at);
        }
        self.stream.returned(block, true);
        Ok(())
    }

    /// Nobody is there to give anything back.
    fn take_back(&self) {
        let blocks = {
            let mut borrowed = lock(&self.borrowed);
            borrowed.is_over = true;
            std::mem::take(&mut borrowed.blocks)
        };
        for block in blocks {
            self.stream.returned(block, false);
        }
    }
}

#[derive(Default)]
struct Names {
    streams: HashMap<(u32, String), Name>,
    last_handle: i64,
}

enum Name {
    /// Being opened.
    Taken,
    Open(Arc<Stream>),
}

static NAMES: Mutex<Option<Names>> = Mutex::new(None);
static HANDLES: RwLock<Option<HashMap<i64, Attachment>>> = RwLock::new(None);

fn with_handles<T>(work: impl FnOnce(&mut HashMap<i64, Attachment>) -> T) -> T {
    let mut handles = HANDLES.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    work(handles.get_or_insert_default())
}

fn new_handle(stream: Arc<Stream>, rank: Option<u32>, caller: &Caller) -> i64 {
    let mut names = lock(&NAMES);
    let names = names.get_or_insert_default();
    names.last_handle += 1;
    let client = (caller.client, caller.generation);
    let attachment = Attachment { stream, rank, client, borrowed: Arc::default() };
    with_handles(|handles| handles.insert(names.last_handle, attachment));
    names.last_handle
}

/// Opens a stream with that name.
pub(crate) fn open(name: &str, config: Config, caller: &Caller) -> Outcome<i64> {
    let key = (caller.uid, name.to_owned());
    {
        let mut names = lock(&NAMES);
        let streams = &mut names.get_or_insert_default().streams;
        if streams.contains_key(&key) {
            return Err(libc::EEXIST);
        }
        if streams.keys().filter(|(uid, _)| *uid == caller.uid).count() == STREAMS_MAX {
            return Err(libc::EMFILE);
        }
        streams.insert(key.clone(), Name::Taken);
    }
    let opened = receive::open(config);
    let mut names = lock(&NAMES);
    let streams = &mut names.get_or_insert_default().streams;
    match opened {
        Err(error) => {
            streams.remove(&key);
            Err(error)
        }
        Ok(stream) => {
            streams.insert(key, Name::Open(stream.clone()));
            drop(names);
            Ok(new_handle(stream, None, caller))
        }
    }
}

/// A handle on an open stream.
pub(crate) fn attach(name: &str, rank: Option<u32>, caller: &Caller) -> Outcome<i64> {
    let stream = {
        let names = lock(&NAMES);
        let streams = names.as_ref().map(|names| &names.streams).ok_or(libc::ENOENT)?;
        let own = streams.get(&(caller.uid, name.to_owned()));
        // Root may look at anybody's.
        let any = || {
            streams.iter().find(|((_, other), _)| other == name && caller.uid == 0).map(|(_, found)| found)
        };
        match own.or_else(any) {
            Some(Name::Open(stream)) => stream.clone(),
            _ => return Err(libc::ENOENT),
        }
    };
    if rank.is_some_and(|rank| rank >= stream.config.ranks) {
        return Err(libc::EINVAL);
    }
    let handle = new_handle(stream.clone(), rank, caller);
    // The stream may have been shut in between. Then the rank gets the end.
    if let Some(rank) = rank {
        stream.join(rank);
    }
    Ok(handle)
}

/// What a handle stands for.
pub(crate) fn get(handle: i64) -> Outcome<Attachment> {
    let handles = HANDLES.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    handles.as_ref().and_then(|handles| handles.get(&handle).cloned()).ok_or(libc::EBADF)
}

/// The handle is closed.
pub(crate) fn close(handle: i64) -> Outcome<()> {
    let attachment = with_handles(|handles| handles.remove(&handle)).ok_or(libc::EBADF)?;
    gone(vec![attachment]);
    Ok(())
}

/// A client is gone, with all its handles.
pub(crate) fn leave(client: (u64, u64)) {
    gone(with_handles(|handles| {
        handles.extract_if(|_, attachment| attachment.client == client).map(|(_, gone)| gone).collect()
    }));
}

/// Everything ends.
pub(crate) fn leave_all() {
    gone(with_handles(|handles| handles.drain().map(|(_, gone)| gone).collect()));
}

fn gone(attachments: Vec<Attachment>) {
    for attachment in attachments {
        let stream = &attachment.stream;
        let others: Vec<Option<u32>> = with_handles(|handles| {
            let others = handles.values().filter(|other| Arc::ptr_eq(&other.stream, stream));
            others.map(|other| other.rank).collect()
        });
        if let Some(rank) = attachment.rank.filter(|rank| !others.contains(&Some(*rank))) {
            stream.leave(rank);
        }
        attachment.take_back();
        if others.is_empty() {
            // Attaching ends before the threads are joined. The name is free after that.
            stream.shut();
            let mut names = lock(&NAMES);
            let streams = &mut names.get_or_insert_default().streams;
            streams.retain(|_, name| !matches!(name, Name::Open(open) if Arc::ptr_eq(open, stream)));
        }
    }
}
