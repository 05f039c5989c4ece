//! EVICT, PIN, VERIFY: for those who may administer a dataset; REPORT_BAD: for readers that met bad
//! bytes.

use crate::node::Node;
use crate::opened::OpenedDataset;
use crate::session::Sessions;
use std::sync::Arc;
use zazen_call::{Caller, Line, Reply, may_say};
use zazen_core::Result;
use zazen_frames::administer::{Checked, Deed, Verifying, may_as_owner, may_without_asking};
use zazen_frames::messages::{Evict, Evicted, Pin, ReportBad, Verified, Verify};
use zazen_frames::push::Pusher;

fn opened(sessions: &Sessions, caller: &Caller, handle: u32) -> Result<Arc<OpenedDataset>> {
    sessions.with(caller.connection, |session| session.opened(handle))
}

fn may(node: &Node, caller: &Caller, opened: &OpenedDataset, deed: Deed) -> Result<()> {
    let who = Pusher { who: caller.credentials.clone(), operator: node.is_operator(caller) };
    let spelled = opened.spelled();
    match may_without_asking(deed, &who, &spelled)? {
        true => Ok(()),
        false => may_as_owner(&who, opened.backing().stat(&opened.at.beneath), &spelled),
    }
}

pub(super) fn evict(node: &Node, sessions: &Sessions, caller: &Caller, ask: Evict) -> Result<Evicted> {
    let opened = opened(sessions, caller, ask.handle)?;
    may(node, caller, &opened, Deed::Evict)?;
    let (frames, bytes) = node.store.evict(&opened.series(), ask.set.as_ref())?;
    Ok(Evicted { frames, bytes })
}

pub(super) fn pin(node: &Node, sessions: &Sessions, caller: &Caller, ask: Pin) -> Result<Reply> {
    let opened = opened(sessions, caller, ask.handle)?;
    may(node, caller, &opened, if ask.pinned { Deed::Pin } else { Deed::Unpin })?;
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
    may(node, caller, &opened, Deed::Verify)?;
    let dataset = &opened.series();
    let (native, alien) = node.store.holdings(dataset);
    let mut verifying = Verifying::new(&native.union(&alien), ask.from, ask.frames_max);
    while let Some(number) = verifying.next() {
        if node.is_draining() || line.is_cut() {
            if !verifying.has_some() {
                node.admit()?;
            }
            break;
        }
        let entry = node.store.entry(dataset, number)?;
        let good = if entry.is_some() { node.store.verify(dataset, number)? } else { None };
        crate::spans::moved(entry.as_ref().map_or(0, |entry| entry.meta.length));
        let outcome = match good {
            Some(true) => Checked::Good,
            Some(false) => Checked::Bad,
            None => Checked::Gone,
        };
        if outcome == Checked::Bad {
            dropped_bad(node, &opened, number);
        }
        verifying.checked(entry.map_or(0, |entry| entry.meta.length), outcome);
    }
    Ok(verifying.end())
}

pub(super) fn report_bad(node: &Node, sessions: &Sessions, caller: &Caller, ask: ReportBad) -> Result<Reply> {
    let opened = opened(sessions, caller, ask.handle)?;
    if !opened.viewer.is_own()
        && let Some(entry) = node.store.entry(&opened.series(), ask.number)?
    {
        // Only a user who may read a frame can have met bad bytes of it.
        opened.open_source(&entry.source, ask.number)?;
    }
    // A reader's report alone drops nothing: the reader may have read wrongly, or mean harm.
    if node.store.verify(&opened.series(), ask.number)? == Some(false) {
        dropped_bad(node, &opened, ask.number);
    }
    Ok(Reply::default())
}

fn dropped_bad(node: &Node, opened: &OpenedDataset, number: u64) {
    node.counters.corrupt_dropped.add(1);
    if let Some(left_out) = may_say("dropped bad", &opened.spelled()) {
        tracing::warn!(
            "frame {number} of {}: its copy does not match its checksum and was dropped; check the disk \
             under {}{left_out}",
            opened.spelled(),
            node.cache_root
        );
    }
}
