//! The threads of the archive.

use crate::archive::names::Known;
use crate::node::NamespaceNode;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often there is a look at what is due.
const LOOK: Duration = Duration::from_millis(250);

/// Copies files to the archive, and lets local bytes go.
pub(crate) fn run(node: &Weak<NamespaceNode>) {
    loop {
        let Some(node) = node.upgrade() else { return };
        if node.stopping.load(Ordering::Relaxed) {
            return;
        }
        if let (Some(told), Ok(_)) = (&node.told.archive, node.identity()) {
            node.archive_some(told);
            node.evict_some(told);
        } else if node.archive.status().is_some() && node.identity().is_ok() {
            node.archive.trouble(Some("files are in an archive, and this daemon is told none".to_owned()));
        }
        drop(node);
        std::thread::sleep(LOOK);
    }
}

/// Puts files in chunks together.
pub(crate) fn run_wholes(node: &Weak<NamespaceNode>) {
    loop {
        let Some(node) = node.upgrade() else { return };
        if node.stopping.load(Ordering::Relaxed) {
            return;
        }
        if let (Some(told), Ok(_)) = (&node.told.archive, node.identity()) {
            node.make_wholes(told);
        }
        drop(node);
        std::thread::sleep(LOOK);
    }
}

/// Makes the tree that users see.
pub(crate) fn run_names(node: &Weak<NamespaceNode>) {
    let mut known = Known::default();
    let mut next = Instant::now();
    loop {
        let Some(node) = node.upgrade() else { return };
        if node.stopping.load(Ordering::Relaxed) {
            return;
        }
        if let (Some(told), Ok(_)) = (&node.told.archive, node.identity())
            && Instant::now() >= next
        {
            next = Instant::now() + node.name_all(told, &mut known);
        }
        drop(node);
        std::thread::sleep(LOOK);
    }
}
