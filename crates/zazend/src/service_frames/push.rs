//! PUSH and PUSH_MANY: frames come in as natives. `zazen_frames::push` decides whether they may,
//! and what to do next. This file does it.

use crate::backing_roots::Located;
use crate::clock::now_ns;
use crate::fetch::held;
use crate::guarded_backing::GuardedBacking;
use crate::node::Node;
use crate::node_store::NodePut;
use crate::user_room::UnfinishedShare;
use std::io::Read;
use std::sync::Arc;
use zazen_backing::Backing;
use zazen_backing::objects::Owner;
use zazen_call::{Bulk, Call, Caller};
use zazen_core::{Error, ErrorKind, FrameMeta, Origin, RelPath, Result};
use zazen_env::is_trouble;
use zazen_frames::messages::{PUSHES_MAX, Push, PushFate, PushMany, Pushed, PushedMany};
use zazen_frames::push::{Action, Event, Intake, Pusher};
use zazen_store::{CachedFrame, PACKED_BYTES_MAX, Stored};

pub(super) fn push(node: &Arc<Node>, caller: &Caller, ask: Push, call: Call<'_>) -> Result<Pushed> {
    push_one(node, caller, &ask, call.bulk_bytes, call.bulk)
}

/// Takes in frames one after the other. An error of one frame concerns only that frame; an error of
/// the connection ends the rest.
pub(super) fn push_many(
    node: &Arc<Node>,
    caller: &Caller,
    ask: PushMany,
    call: Call<'_>,
) -> Result<PushedMany> {
    let count = ask.pushes.len();
    let bytes = ask.pushes.iter().fold(0u64, |sum, push| sum.saturating_add(push.meta.length));
    if count > PUSHES_MAX || bytes != call.bulk_bytes {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "{count} frames of together {bytes} bytes are announced, {} bytes follow; a message has at \
                 most {PUSHES_MAX} frames",
                call.bulk_bytes
            ),
        ));
    }
    let mut fates = Vec::with_capacity(count);
    for push in &ask.pushes {
        let rest = call.bulk.left() - push.meta.length;
        fates.push(PushFate::of(&push_one(node, caller, push, push.meta.length, call.bulk)));
        skip_to(call.bulk, rest)?;
    }
    Ok(PushedMany { fates })
}

/// Discards what is left of a refused frame, until `rest` bytes are left: then the next frame
/// begins.
fn skip_to(bulk: &mut Bulk, rest: u64) -> Result<()> {
    while bulk.left() > rest {
        let most = usize::try_from(bulk.left() - rest).unwrap_or(usize::MAX);
        bulk.chunk(most).map_err(gone)?;
    }
    Ok(())
}

fn gone(error: std::io::Error) -> Error {
    Error::io("the writer went away in mid-frame", error)
}

fn push_one(node: &Arc<Node>, caller: &Caller, ask: &Push, bytes: u64, bulk: &mut Bulk) -> Result<Pushed> {
    let result = take_in(node, caller, ask, bytes, bulk);
    let counters = &node.counters;
    match &result {
        Ok(Pushed::Stored) => {
            counters.pushes.add(1);
            counters.push_bytes.add(ask.meta.length);
        }
        Ok(Pushed::AlreadyHere) => counters.pushes_already_here.add(1),
        Err(_) => counters.push_failures.add(1),
    }
    result.map_err(|error| error.within(format!("push frame {} of {}", ask.meta.number, ask.dataset)))
}

fn take_in(node: &Arc<Node>, caller: &Caller, ask: &Push, bytes: u64, bulk: &mut Bulk) -> Result<Pushed> {
    node.admit()?;
    let at = node.roots.locate(&ask.dataset)?;
    let pusher = Pusher { who: caller.credentials.clone(), operator: node.is_operator(caller) };
    // What its settings say of an object store's owner is about reading. Who may write there, only
    // the store knows, so nobody is believed but an operator.
    if at.root.owner.is_some() && !pusher.operator {
        let why = "only root, the daemon's user and holders of the cluster's key push frames of an object \
                   store: give --key";
        return Err(Error::new(ErrorKind::PermissionDenied, why));
    }
    let mut intake = Intake::new(ask.clone(), bytes, pusher, at.beneath.clone());
    let mut hands = Hands {
        node,
        caller,
        ask,
        at,
        bulk,
        view: None,
        series: RelPath::default(),
        here: None,
        unfinished: None,
        put: None,
        buffer: Vec::new(),
        came: 0,
    };
    let mut event = Event::Begin;
    let mut actions = Vec::with_capacity(1);
    loop {
        intake.step(now_ns(), event, &mut actions);
        event = match actions.pop() {
            Some(Action::Done(result)) => return result,
            Some(action) => hands.perform(action),
            None => unreachable!("a push asks for something or ends"),
        };
    }
}

/// Does what a push asks for, on the real disk and the real backing store.
struct Hands<'a> {
    node: &'a Arc<Node>,
    caller: &'a Caller,
    ask: &'a Push,
    at: Located,
    /// What the pusher sends: this frame's bytes come next.
    bulk: &'a mut Bulk,
    /// The backing store as the pusher sees it.
    view: Option<Arc<GuardedBacking>>,
    series: RelPath,
    /// What the cache has of the frame's number.
    here: Option<CachedFrame>,
    unfinished: Option<UnfinishedShare>,
    put: Option<NodePut>,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that came and are not written.
    came: usize,
}

impl Hands<'_> {
    fn perform(&mut self, action: Action) -> Event {
        match action {
            Action::Stat(path) => Event::Stat(self.view().and_then(|view| view.stat(&path))),
            Action::Allows(path, rights) => {
                Event::Allows(self.view().and_then(|view| view.allows(&path, rights)))
            }
            Action::LookUp => Event::Held(self.look_up().map(|()| self.here.clone().map(held))),
            Action::DropHeld => Event::Dropped(self.drop_held()),
            Action::TakeShare => Event::Shared(self.take_share()),
            Action::BeginPut { meta } => Event::Begun(self.begin_put(&meta)),
            Action::Receive { bytes_max } => Event::Came(self.receive(bytes_max as usize)),
            Action::Write { bytes } => Event::Written(self.write(bytes as usize)),
            Action::Commit | Action::Done(_) => Event::Committed(self.commit()),
        }
    }

    fn view(&mut self) -> Result<&GuardedBacking> {
        if self.view.is_none() {
            self.view = Some(self.at.root.seen_by(&self.node.powers.viewer(self.caller)?)?);
        }
        self.view.as_deref().ok_or_else(|| Error::new(ErrorKind::Io, "there is no view"))
    }

    fn look_up(&mut self) -> Result<()> {
        self.series = self.at.series(&self.ask.series)?;
        let here = self.node.store.entry(&self.series, self.ask.meta.number.get());
        self.here = here.map_err(of_the_disk)?;
        Ok(())
    }

    fn drop_held(&mut self) -> Result<()> {
        if let Some(here) = self.here.take()
            && self.node.store.drop_stale(&self.series, &here).map_err(of_the_disk)?
        {
            self.node.counters.stale_dropped.add(1);
        }
        Ok(())
    }

    fn take_share(&mut self) -> Result<()> {
        // Its owner is the caller, as was checked.
        let meta = &self.ask.meta;
        let budget = self.node.store.space().budget;
        self.unfinished = Some(self.node.unfinished.take(meta.uid, meta.length, budget)?);
        Ok(())
    }

    fn begin_put(&mut self, meta: &FrameMeta) -> Result<()> {
        let meta = match self.at.root.owner {
            // As of every copy from there: the pusher knows no owner of an object.
            Some(Owner { uid, gid, mode }) => &FrameMeta { uid, gid, mode, ..meta.clone() },
            None => meta,
        };
        let put = self.node.store.put_gradually(&self.series, &self.ask.source, meta, Origin::Native);
        self.put = Some(put.map_err(of_the_disk)?);
        Ok(())
    }

    fn receive(&mut self, bytes_max: usize) -> Result<u64> {
        if self.buffer.len() < self.came + bytes_max {
            // Only the first time: later pieces fit into the same memory.
            self.buffer = match self.is_small() {
                true => vec![0; self.came + bytes_max],
                false => self.node.push_buffers.take(self.came + bytes_max),
            };
        }
        let free = &mut self.buffer[self.came..self.came + bytes_max];
        let count = self.bulk.read(free).map_err(gone)?;
        self.came += count;
        Ok(count as u64)
    }

    /// Whether its bytes will be packed as they came: its buffer is given away.
    fn is_small(&self) -> bool {
        self.ask.meta.length <= PACKED_BYTES_MAX
    }

    fn write(&mut self, bytes: usize) -> Result<()> {
        self.came = 0;
        let is_small = self.is_small();
        let Some(put) = &mut self.put else { return Ok(()) };
        let is_all = bytes == self.buffer.len() && bytes as u64 == self.ask.meta.length;
        match is_all && is_small {
            true => put.write_vec(std::mem::take(&mut self.buffer)),
            false => put.write(&self.buffer[..bytes]),
        }
        .map_err(of_the_disk)
    }

    fn commit(&mut self) -> Result<Pushed> {
        let put = self.put.take().ok_or_else(|| Error::new(ErrorKind::Io, "no put was begun"))?;
        Ok(match put.commit().map_err(of_the_disk)? {
            Stored::Stored => Pushed::Stored,
            Stored::AlreadyHere => Pushed::AlreadyHere,
        })
    }
}

impl Drop for Hands<'_> {
    fn drop(&mut self) {
        if !self.buffer.is_empty() && !self.is_small() {
            self.node.push_buffers.give(std::mem::take(&mut self.buffer));
        }
    }
}

/// For the writer, a node whose disk fails is a node without room: another node may have room.
fn of_the_disk(error: Error) -> Error {
    match is_trouble(&error) {
        true => Error::new(ErrorKind::NoSpace, format!("{error}; the cache disk of this node fails")),
        false => error,
    }
}
