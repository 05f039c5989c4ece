//! EVICT, PIN, VERIFY: for those who may administer a dataset; REPORT_BAD: for readers that met bad
//! bytes.

use crate::node::Node;
use crate::opened::Opened;
use crate::session::Sessions;
use std::sync::Arc;
use zazen_call::{Caller, Line, Reply, may_say};
use zazen_core::limits::FRAME_NO_MAX;
use zazen_core::{Error, ErrorKind, Result};
use zazen_frames::messages::{Evict, Evicted, Pin, ReportBad, Verified, Verify};

/// Frames that one VERIFY checks at most.
const VERIFY_MAX: u64 = 65_536;

fn opened(sessions: &Sessions, caller: &Caller, handle: u32) -> Result<Arc<Opened>> {
    sessions.with(caller.connection, |session| session.opened(handle))
}

/// Root, the daemon's own user, key holders and the dataset's owner may. Only the former may pin.
fn may_administer(node: &Node, caller: &Caller, opened: &Opened) -> Result<()> {
    if node.is_operator(caller) {
        return Ok(());
    }
    let owner = opened.backing().stat(&opened.at.beneath);
    let owner = owner.map_err(|error| error.within(format!("dataset {}: its owner", opened.spelled())))?;
    if owner.uid == caller.credentials.uid {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::PermissionDenied,
        format!(
            "dataset {}: only its owner, root and the daemon's user may do this, user {} is neither",
            opened.spelled(),
            caller.credentials.uid
        ),
    ))
}

pub(super) fn evict(node: &Node, sessions: &Sessions, caller: &Caller, ask: Evict) -> Result<Evicted> {
    let opened = opened(sessions, caller, ask.handle)?;
    may_administer(node, caller, &opened)?;
    let (frames, bytes) = node.store.evict(&opened.series(), ask.set.as_ref())?;
    Ok(Evicted { frames, bytes })
}

pub(super) fn pin(node: &Node, sessions: &Sessions, caller: &Caller, ask: Pin) -> Result<Reply> {
    let opened = opened(sessions, caller, ask.handle)?;
    // A pin takes room from everybody for ever, and what is pinned may grow.
    if ask.pinned && !node.is_operator(caller) {
        return Err(Error::new(
            ErrorKind::PermissionDenied,
            format!(
                "dataset {}: only root, the daemon's user and holders of the cluster key may pin, since all users share \
                 the cache's room; ask whoever runs the daemon, user {} may only unpin its own datasets",
                opened.spelled(),
                caller.credentials.uid
            ),
        ));
    }
    may_administer(node, caller, &opened)?;
    node.store.pin(&opened.series(), ask.pinned)?;
    Ok(Reply::default())
}

pub(super) fn verify(
    node: &Node,
    sessions: &Sessions,
    caller: &Caller,
    ask: Verify,
    line: &Line,
) -> Result<Verified> {
    let opened = opened(sessions, caller, ask.handle)?;
    may_administer(node, caller, &opened)?;
    let dataset = &opened.series();
    let (native, alien) = node.store.holdings(dataset);
    let held = native.union(&alien).slice(ask.from, FRAME_NO_MAX);
    let block = held.block(0, u64::from(ask.frames_max).clamp(1, VERIFY_MAX));
    let mut found = Verified { checked: 0, bytes: 0, bad: Vec::new(), next: held.select(block.len()) };
    for number in block.iter() {
        if node.is_draining() || line.is_cut() {
            // Nothing done is no answer: it would be asked for again and again.
            if found.checked == 0 {
                node.admit()?;
            }
            found.next = Some(number);
            break;
        }
        let Some(entry) = node.store.entry(dataset, number)? else { continue };
        match node.store.verify(dataset, number)? {
            Some(true) => {}
            Some(false) => dropped_bad(node, &opened, number, &mut found.bad),
            None => continue,
        }
        found.checked += 1;
        found.bytes += entry.meta.length;
    }
    Ok(found)
}

pub(super) fn report_bad(node: &Node, sessions: &Sessions, caller: &Caller, ask: ReportBad) -> Result<Reply> {
    let opened = opened(sessions, caller, ask.handle)?;
    if !opened.viewer.is_own()
        && let Some(entry) = node.store.entry(&opened.series(), ask.number)?
    {
        // Only who may read a frame can have met bad bytes of it.
        opened.open_source(&entry.source, ask.number)?;
    }
    // A reader's word alone drops nothing: it may have read wrongly, or mean harm.
    if node.store.verify(&opened.series(), ask.number)? == Some(false) {
        dropped_bad(node, &opened, ask.number, &mut Vec::new());
    }
    Ok(Reply::default())
}

fn dropped_bad(node: &Node, opened: &Opened, number: u64, bad: &mut Vec<u64>) {
    node.counters.corrupt_dropped.add(1);
    if let Some(left_out) = may_say("dropped bad", &opened.spelled()) {
        tracing::warn!(
            "frame {number} of {}: its copy does not match its checksum and was dropped; check the disk under {}{left_out}",
            opened.spelled(),
            node.cache_root
        );
    }
    bad.push(number);
}
