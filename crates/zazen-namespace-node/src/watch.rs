//! Tells mounts what has changed elsewhere, so that they need not wait until the kernel asks again.
//! `watchers` has the tables, and says how.

use crate::handles::{Session, lock};
use crate::node::NamespaceNode;
use crate::session::{inodes_in, inodes_of};
use crate::watchers::{KEPT_MAX, Outbox, Touched, fan_out, was_done};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use zazen_call::{Call, Caller};
use zazen_namespace::operation::{Answer, Operation, Request, Response};
use zazen_namespace::service::{Changes, Noticed, Watch, Watched};
use zazen_namespace::{InodeId, NodeNo};

/// How long a caller waits for changes before it hears that there are none.
const WAIT: Duration = Duration::from_secs(5);
/// How often it is looked whether the caller is still there.
const LOOK: Duration = Duration::from_millis(100);

impl NamespaceNode {
    /// Executes requests on this node's partitions, and tells the nodes that look at what they
    /// change.
    pub(crate) fn execute(&self, requests: Vec<Request>, patience: Duration) -> Vec<Response> {
        let map = self.map();
        let me = match self.identity() {
            Ok((me, _)) if map.nodes.len() > 1 => me,
            _ => return self.driver.execute(requests, patience),
        };
        let now = Instant::now();
        let mut seen = Vec::with_capacity(requests.len());
        {
            let mut interest = lock(&self.watchers.interest);
            let has_watchers = self.watchers.watching.load(Ordering::Relaxed) > 0;
            for request in &requests {
                let node = request.node;
                let listens = if node == me { has_watchers } else { !interest.is_deaf(now, node) };
                // From before the answer: a change that follows it must find this.
                if listens {
                    inodes_of(&request.operation).into_iter().for_each(|id| interest.looked(now, node, id));
                }
                let mut touched = Touched::of(&request.operation);
                interest.add_files(&mut touched);
                seen.push((node, listens, touched));
            }
        }
        let responses = self.driver.execute(requests, patience);
        let primary_of = |id: InodeId| map.partitions.get(id.partition().0 as usize).map(|seat| seat.primary);
        let mut told: HashMap<NodeNo, Touched> = HashMap::new();
        let mut passed_on = Vec::new();
        {
            let mut interest = lock(&self.watchers.interest);
            for ((node, listens, touched), response) in seen.into_iter().zip(&responses) {
                if !was_done(&response.answer) {
                    continue;
                }
                if let Answer::Grant(grant) = &response.answer {
                    interest.granted(&grant.attributes);
                }
                for (primary, part) in touched.split(primary_of) {
                    match primary == me {
                        true => fan_out(&mut interest, now, node, part, &mut told),
                        false => passed_on.push((primary, node, part)),
                    }
                }
                if listens {
                    let found = inodes_in(&response.answer);
                    found.into_iter().for_each(|id| interest.looked(now, node, id));
                }
            }
        }
        for (primary, by, part) in passed_on {
            self.post(primary, |outbox| outbox.passes_on.entry(by).or_default().add(part));
        }
        self.tell(me, told);
        responses
    }

    fn tell(&self, me: NodeNo, told: HashMap<NodeNo, Touched>) {
        for (node, touched) in told {
            match node == me {
                true => self.keep_told(touched),
                false => self.post(node, |outbox| outbox.touched.add(touched)),
            }
        }
    }

    /// Keeps what callers of this node are told. They know no buckets of split directories. A
    /// bucket of which this node does not know the directory was not looked at from here.
    fn keep_told(&self, touched: Touched) {
        let touched = {
            let layouts = lock(&self.layouts);
            touched.by_directories(|id| layouts.directory_of(id))
        };
        if !touched.is_empty() {
            self.watchers.keep(None, touched);
        }
    }

    /// What callers of this node have asked, before it is asked: for [`NamespaceNode::asked`].
    pub(crate) fn touched<'a>(
        &self,
        caller: u64,
        operations: impl Iterator<Item = &'a Operation>,
    ) -> Vec<Touched> {
        match self.watchers.another_watches(caller) {
            true => operations.map(Touched::of).collect(),
            false => Vec::new(),
        }
    }

    /// Tells the other callers of this node what `caller` has changed.
    pub(crate) fn asked<'a>(
        &self,
        caller: u64,
        touched: Vec<Touched>,
        answers: impl Iterator<Item = &'a Answer>,
    ) {
        let mut all = Touched::default();
        for (touched, answer) in touched.into_iter().zip(answers) {
            if was_done(answer) {
                all.add(touched);
            }
        }
        self.watchers.keep(Some(caller), all);
    }

    fn post(&self, node: NodeNo, add: impl FnOnce(&mut Outbox)) {
        let Some(address) = self.address(node) else { return };
        let mut outboxes = lock(&self.watchers.outboxes);
        let outbox = outboxes.entry(address.clone()).or_default();
        // What is dropped is seen when the kernel asks again.
        if outbox.len() > KEPT_MAX {
            return;
        }
        add(outbox);
        if !outbox.has_thread {
            let (watchers, links) = (Arc::clone(&self.watchers), Arc::clone(&self.links));
            let run = move || watchers.run_outbox(&links, node, &address);
            outbox.has_thread = std::thread::Builder::new().name("ns-tell".to_owned()).spawn(run).is_ok();
        }
        drop(outboxes);
        self.watchers.posted.notify_all();
    }

    /// Another node tells what has changed.
    pub(crate) fn noticed(&self, noticed: Noticed) -> Watched {
        let touched = Touched { inodes: noticed.inodes, entries: noticed.entries };
        if noticed.passes_on {
            if let Ok((me, _)) = self.identity() {
                let mut told = HashMap::new();
                fan_out(&mut lock(&self.watchers.interest), Instant::now(), noticed.by, touched, &mut told);
                self.tell(me, told);
            }
        } else {
            self.keep_told(touched);
        }
        Watched { watched: self.watchers.watching.load(Ordering::Relaxed) > 0 }
    }

    /// Waits until there are changes behind what the caller knows.
    pub(crate) fn watch(&self, caller: &Caller, watch: &Watch, call: &Call<'_>) -> Changes {
        let until = Instant::now() + WAIT;
        let vouches = self.vouches(caller);
        self.watchers.begins(caller.connection);
        let session = self.session(caller.connection);
        let mut ring = lock(&self.watchers.ring);
        // A number of an earlier life, or the first call.
        let mut after = if watch.after == 0 { ring.end() } else { watch.after - 1 };
        loop {
            let changes = ring.changes_from(after, |by, touched, changes| {
                if by != Some(caller.connection) {
                    add_for(&session, vouches, touched, changes);
                }
            });
            let is_late = Instant::now() >= until || self.stopping.load(Ordering::Relaxed);
            if changes.all || !changes.inodes.is_empty() || is_late || call.line.is_cut() {
                // The first call learns where it begins, and that there may have been changes
                // before.
                return changes;
            }
            after = ring.end();
            let waited = self.watchers.filled.wait_timeout(ring, LOOK);
            ring = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Adds what the caller may know of. One for whom the daemon does not vouch hears only of inodes
/// that it was led to, and of no names.
fn add_for(session: &Session, vouches: bool, touched: &Touched, changes: &mut Changes) {
    let known = touched.inodes.iter().filter(|id| vouches || session.knows(**id));
    changes.inodes.extend(known);
    if vouches {
        changes.entries.extend(touched.entries.iter().cloned());
    }
}
