//! What must hold in every run, and what is known for judging it.

use crate::backing::Backing;
use crate::content::{FrameId, STRANGER};
use std::collections::{BTreeMap, BTreeSet};
use zazen_core::Credentials;

/// Longest time for which a node may go by an outage that is over.
pub(crate) const OUTAGE_MEMORY_NS: u64 = 6_000_000_000;

/// The ledger and the first violation.
#[derive(Default)]
pub(crate) struct Checks {
    /// What nodes have acknowledged and must have: (node, frame) → version.
    acknowledged: BTreeMap<(usize, FrameId), u32>,
    /// Datasets whose files' rights have changed: copies that allow too much are dropped.
    reopened: BTreeSet<usize>,
    violation: Option<String>,
    pub(crate) delivered: u64,
    pub(crate) pushed: u64,
}

impl Checks {
    /// Notes that a promise was broken; the first one is kept.
    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        if self.violation.is_none() {
            self.violation = Some(what.into());
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.violation.is_some()
    }

    pub(crate) fn into_violation(self) -> Option<String> {
        self.violation
    }

    /// A writer was told that `node` has `version` of `frame`, and nothing has happened since the
    /// frame was sent that may make the node forget it.
    pub(crate) fn acknowledged(&mut self, node: usize, frame: FrameId, version: u32) {
        self.pushed += 1;
        if !self.reopened.contains(&frame.dataset) {
            self.acknowledged.insert((node, frame), version);
        }
    }

    /// `node` may have forgotten whatever it was told.
    pub(crate) fn excuse_node(&mut self, node: usize) {
        self.acknowledged.retain(|(at, _), _| *at != node);
    }

    /// `node` may have another version of `frame` than it was told.
    pub(crate) fn excuse(&mut self, node: usize, frame: FrameId) {
        self.acknowledged.remove(&(node, frame));
    }

    /// Every node may drop its copy of `frame`: its source changed.
    pub(crate) fn excuse_frame(&mut self, frame: FrameId) {
        self.acknowledged.retain(|(_, of), _| *of != frame);
    }

    /// Every node may drop its copies of `dataset`, from now on.
    pub(crate) fn excuse_dataset(&mut self, dataset: usize) {
        self.reopened.insert(dataset);
        self.acknowledged.retain(|(_, of), _| of.dataset != dataset);
    }

    /// What `node` must have.
    pub(crate) fn owed(&self, node: usize) -> impl Iterator<Item = (FrameId, u32)> + '_ {
        let all = self.acknowledged.iter().filter(move |((at, _), _)| *at == node);
        all.map(|((_, frame), version)| (*frame, *version))
    }

    /// A reader gets a cached copy of `frame` for which it asked at `asked_ns`.
    pub(crate) fn rights(
        &mut self,
        backing: &Backing,
        frame: FrameId,
        who: Option<Credentials>,
        (asked_ns, now_ns): (u64, u64),
    ) {
        let is_stranger = who.is_some_and(|who| who.uid == STRANGER);
        if is_stranger && backing.is_closed(frame.dataset, asked_ns, now_ns) {
            self.fail(format!("forbidden bytes: {frame} was read by a user who may not read it"));
        }
        let was_away = backing.was_away(asked_ns.saturating_sub(OUTAGE_MEMORY_NS), now_ns);
        if backing.is_deleted(frame, asked_ns, now_ns) && !was_away {
            self.fail(format!("deleted bytes: {frame} was read though its file was gone"));
        }
    }

    /// A reader takes `bytes` for `frame`, which it asked for at `asked_ns`.
    pub(crate) fn read(
        &mut self,
        backing: &Backing,
        frame: FrameId,
        bytes: &[u8],
        (asked_ns, now_ns): (u64, u64),
    ) {
        self.delivered += 1;
        let (oldest, newest) = (backing.version(frame, asked_ns), backing.latest(frame));
        let is_version =
            |version: &u32| frame.length(*version) == bytes.len() && frame.bytes(*version) == bytes;
        if (oldest.max(1)..=newest).any(|version| is_version(&version)) {
            return;
        }
        match (1..oldest).rev().find(is_version) {
            Some(_) if backing.was_away(asked_ns.saturating_sub(OUTAGE_MEMORY_NS), now_ns) => {}
            Some(old) => self.fail(format!(
                "stale bytes: {frame} was read in version {old}, though version {oldest} was there when it \
                 was asked for"
            )),
            None => self.fail(format!("wrong bytes: {} bytes that are no version of {frame}", bytes.len())),
        }
    }
}
