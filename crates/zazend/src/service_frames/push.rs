//! PUSH: a frame comes in as a native.
//!
//! Invariant: a local caller can push only what it could have written to the backing store itself, as the kernel says
//! at that moment: it claims no owner but itself, and it owns or may write the frame's source, or may make it if it
//! doesn't exist. Otherwise one user could plant false frames in another's dataset. A remote caller holds the
//! cluster key and is believed.

use crate::node::Node;
use crate::user_room::Pace;
use std::io::Read;
use std::sync::Arc;
use std::time::Instant;
use zazen_backing::{Backing, Rights};
use zazen_call::{Call, Caller};
use zazen_core::limits::FRAME_BYTES_MAX;
use zazen_core::{Error, ErrorKind, FrameMeta, Origin, RelPath, Result, Validator};
use zazen_env::is_trouble;
use zazen_frames::messages::{Push, Pushed};
use zazen_store::{Entry, Stored};

use crate::backing_roots::Located;

/// Bytes taken from the connection at a time.
const CHUNK_BYTES: usize = 1 << 20;

pub(super) fn push(node: &Arc<Node>, caller: &Caller, ask: Push, call: Call<'_>) -> Result<Pushed> {
    let result = take_in(node, caller, &ask, call);
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

fn take_in(node: &Arc<Node>, caller: &Caller, ask: &Push, call: Call<'_>) -> Result<Pushed> {
    node.admit()?;
    let at = node.roots.locate(&ask.dataset)?;
    check_form(ask, call.bulk_bytes)?;
    check_caller(node, caller, ask, &at)?;
    let series = at.series(&ask.series)?;
    let here = node.store.entry(&series, ask.meta.number.get()).map_err(of_the_disk)?;
    if let Some(here) = here
        && here.meta.uid != ask.meta.uid
        && !node.is_operator(caller)
    {
        let view = at.root.seen_by(&node.powers.viewer(caller)?)?;
        if is_squatter(&*view, ask, &at, &here)? {
            if node.store.drop_stale(&series, &here).map_err(of_the_disk)? {
                node.counters.stale_dropped.add(1);
            }
        } else if here.source != ask.source {
            let what = match view.allows(&at.beneath, Rights::READ).unwrap_or(false) {
                true => format!("file {} of user {}", here.source.path, here.meta.uid),
                false => "another user's file".to_owned(),
            };
            let text = format!("its number is that of {what}; number frames uniquely");
            return Err(Error::new(ErrorKind::Conflict, text));
        }
    }
    // The writer says that the file is whole: however young it is, there is nothing to wait for.
    let meta = FrameMeta { validator: ask.meta.validator.map(Validator::settled), ..ask.meta.clone() };
    // Its owner is the caller, as was checked.
    let operator = node.is_operator(caller);
    let budget = node.store.space().budget;
    let _unfinished = match operator {
        true => None,
        false => Some(node.unfinished.take(ask.meta.uid, ask.meta.length, budget)?),
    };
    let mut put =
        node.store.put_gradually(&series, &ask.source, &meta, Origin::Native).map_err(of_the_disk)?;
    let mut buffer = vec![0; ask.meta.length.clamp(1, CHUNK_BYTES as u64) as usize];
    let mut left = ask.meta.length;
    while left > 0 {
        let wanted = left.min(buffer.len() as u64) as usize;
        let mut came = 0;
        let mut pace = Pace::new(Instant::now());
        while came < wanted {
            let gone = |error| Error::io("the writer went away in mid-frame", error);
            let count = call.bulk.read(&mut buffer[came..wanted]).map_err(gone)?;
            if count == 0 {
                return Err(gone(std::io::ErrorKind::UnexpectedEof.into()));
            }
            came += count;
            if !operator && left > came as u64 {
                pace.came(count as u64, Instant::now())?;
            }
        }
        put.write(&buffer[..wanted]).map_err(of_the_disk)?;
        left -= wanted as u64;
    }
    Ok(match put.commit().map_err(of_the_disk)? {
        Stored::Stored => Pushed::Stored,
        Stored::AlreadyHere => Pushed::AlreadyHere,
    })
}

/// Whether `here`, which another user pushed, has the place of a file that the pusher owns by right: its own file is
/// somebody else's, or is not there in the pusher's own folder. All as the pusher sees it.
fn is_squatter(view: &dyn Backing, ask: &Push, at: &Located, here: &Entry) -> Result<bool> {
    let owner = |source: &RelPath| -> Result<Option<u32>> {
        match view.stat(&at.beneath.join(source.as_str())?) {
            Ok(stat) => Ok(Some(stat.uid)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    };
    if owner(&ask.source.path)? != Some(ask.meta.uid) {
        return Ok(false);
    }
    if here.source.path == ask.source.path {
        return Ok(true);
    }
    // Others may push before they write: in a folder of somebody else's, that is nobody's business.
    match owner(&here.source.path)? {
        Some(uid) => Ok(uid != here.meta.uid),
        None => Ok(view.stat(&at.beneath)?.uid == ask.meta.uid),
    }
}

/// A node whose disk fails has no room, as far as the writer is concerned: another node may have.
fn of_the_disk(error: Error) -> Error {
    match is_trouble(&error) {
        true => Error::new(ErrorKind::NoSpace, format!("{error}; the cache disk of this node fails")),
        false => error,
    }
}

fn check_form(ask: &Push, bulk_bytes: u64) -> Result<()> {
    let refuse = |kind, why: String| Err(Error::new(kind, why));
    if ask.meta.length > FRAME_BYTES_MAX {
        let length = ask.meta.length;
        return refuse(
            ErrorKind::TooLarge,
            format!(
                "{length} bytes are beyond the limit of {FRAME_BYTES_MAX} for a frame; cut it into frames"
            ),
        );
    }
    if ask.meta.length != bulk_bytes {
        return refuse(
            ErrorKind::InvalidArgument,
            format!("{} bytes are announced, {bulk_bytes} follow", ask.meta.length),
        );
    }
    if ask.source.path.is_root() {
        return refuse(
            ErrorKind::InvalidArgument,
            "its file name is empty; name its file beneath the dataset".into(),
        );
    }
    if ask.source.length.is_some_and(|length| length != ask.meta.length) {
        return refuse(ErrorKind::InvalidArgument, "its source's length is not its own".into());
    }
    let is_part = ask.source.offset != 0 || ask.source.length.is_some();
    if !ask.series.may_hold(ask.source.path.as_str(), ask.meta.number, is_part) {
        let (file, series) = (&ask.source.path, &ask.series);
        return refuse(
            ErrorKind::InvalidArgument,
            format!("its file {file} is none of {series}; push it with the pattern that its readers use"),
        );
    }
    Ok(())
}

fn check_caller(node: &Node, caller: &Caller, ask: &Push, at: &Located) -> Result<()> {
    if node.is_operator(caller) {
        return Ok(());
    }
    let who = &caller.credentials;
    let refuse = |why: String| Err(Error::new(ErrorKind::PermissionDenied, why));
    if ask.meta.uid != who.uid || !(ask.meta.gid == who.gid || who.groups.contains(&ask.meta.gid)) {
        return refuse(format!(
            "it claims to belong to user {} and group {}; user {} may push only its own frames",
            ask.meta.uid, ask.meta.gid, who.uid
        ));
    }
    let view = at.root.seen_by(&node.powers.viewer(caller)?)?;
    let source = at.beneath.join(ask.source.path.as_str())?;
    match view.stat(&source) {
        Ok(stat) if stat.is_dir => refuse(format!("its file {} is a directory", ask.source.path)),
        Ok(stat) if stat.uid == who.uid || view.allows(&source, Rights::WRITE)? => Ok(()),
        Ok(stat) => refuse(format!(
            "its file {} belongs to user {} and user {} may not write it",
            ask.source.path, stat.uid, who.uid
        )),
        Err(error) if error.kind() == ErrorKind::NotFound => match may_create(&*view, &source)? {
            true => Ok(()),
            false => refuse(format!(
                "user {} may not write to the dataset's directory on the backing store",
                who.uid
            )),
        },
        Err(error) => Err(error),
    }
}

/// Whether a file `source`, which does not exist, could be made: the nearest directory above it that exists may be
/// written to.
fn may_create(view: &dyn Backing, source: &RelPath) -> Result<bool> {
    let mut folder = source.split().map(|(folder, _)| folder).unwrap_or_default();
    loop {
        match view.allows(&folder, Rights::WRITE.and(Rights::SEARCH)) {
            Err(error) if error.kind() == ErrorKind::NotFound => match folder.split() {
                Some((above, _)) => folder = above,
                None => return Err(error),
            },
            answer => return answer,
        }
    }
}
