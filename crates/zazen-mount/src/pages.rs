//! Pages that the kernel keeps of files that others may write.
//!
//! The kernel asks anew for each read of such a file, with two exceptions. Memory maps, and calls
//! that move bytes between descriptors (`sendfile`, `splice`), take them from pages, which stay
//! while the file is open. After [`KEPT_FOR`] the kernel is told to forget them, unless it is
//! certain that nobody has written the file since.

use crate::opens::Opens;
use crate::tree::{BytesVersion, Node, Tree};
use fuser::{INodeNo, Notifier};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How old the bytes of a page may become, not counting the time that the check itself takes.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// What is known of a file with pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Known {
    /// Pages of any age.
    #[default]
    Nothing,
    /// It looked so at the last check. Another write in the same tick of the clock would not show.
    New(BytesVersion),
    /// It looked so at several checks, and all pages are younger than the first of them.
    Settled(BytesVersion),
}

impl Known {
    /// What is known after a look at the file, and whether its pages must go. `None`: the look
    /// failed, or somebody may be writing.
    fn after(self, look: Option<BytesVersion>) -> (Known, bool) {
        match (self, look) {
            (_, None) => (Known::Nothing, true),
            (Known::Settled(old), Some(seen)) if old == seen => (self, false),
            (Known::New(old), Some(seen)) if old == seen => (Known::Settled(seen), true),
            (_, Some(seen)) => (Known::New(seen), true),
        }
    }
}

#[derive(Default)]
struct State {
    known: HashMap<Node, Known>,
    stopped: bool,
}

/// Files of which the kernel has pages.
#[derive(Default)]
pub(crate) struct Pages {
    state: Mutex<State>,
    woken: Condvar,
}

impl Pages {
    /// The kernel is about to read bytes of the file into pages.
    pub(crate) fn note(&self, node: Node) {
        let mut state = self.state();
        if state.known.is_empty() {
            self.woken.notify_one();
        }
        state.known.entry(node).or_default();
    }

    /// Ends [`Pages::run`].
    pub(crate) fn stop(&self) {
        self.state().stopped = true;
        self.woken.notify_one();
    }

    /// Has the kernel forget pages, until the mount ends.
    pub(crate) fn run(&self, tree: &dyn Tree, opens: &Opens, notifier: &Notifier) {
        while let Some(known) = self.due(opens) {
            for (node, before) in known {
                let (now, forgets) = before.after(tree.bytes_version(node));
                if forgets {
                    match notifier.inval_inode(INodeNo(node), 0, 0) {
                        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return,
                        // Not known any more: it has no pages.
                        Err(error) => tracing::debug!(%error, node, "pages stay"),
                        Ok(()) => {}
                    }
                }
                if let Some(known) = self.state().known.get_mut(&node) {
                    *known = now;
                }
            }
        }
    }

    /// Waits until files with pages are to be looked at. `None` at the end.
    fn due(&self, opens: &Opens) -> Option<Vec<(Node, Known)>> {
        loop {
            let mut state = self.state();
            while state.known.is_empty() && !state.stopped {
                state = self.woken.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let until = Instant::now() + KEPT_FOR;
            loop {
                let left = until.saturating_duration_since(Instant::now());
                if state.stopped {
                    return None;
                }
                if left.is_zero() {
                    break;
                }
                let waited = self.woken.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            drop(state);
            // An open has the kernel forget what it kept of the file: pages end with the last use.
            let open = opens.nodes();
            let mut state = self.state();
            state.known.retain(|node, _| open.contains(node));
            if !state.known.is_empty() {
                return Some(state.known.iter().map(|(node, known)| (*node, *known)).collect());
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What [`Pages::run`] needs.
pub(crate) struct Keeper {
    pub(crate) pages: Arc<Pages>,
    pub(crate) tree: Arc<dyn Tree>,
    pub(crate) opens: Arc<Opens>,
}

impl Keeper {
    pub(crate) fn run(&self, notifier: &Notifier) {
        self.pages.run(&*self.tree, &self.opens, notifier);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_stay_only_when_nobody_can_have_written_since() {
        let seen = |modified_ns| BytesVersion { version: 7, modified_ns };
        let steps = [
            (Some(seen(1)), Known::New(seen(1)), true),
            // Perhaps there was another write in the tick of the first one.
            (Some(seen(1)), Known::Settled(seen(1)), true),
            (Some(seen(1)), Known::Settled(seen(1)), false),
            (Some(seen(2)), Known::New(seen(2)), true),
            (Some(seen(2)), Known::Settled(seen(2)), true),
            (None, Known::Nothing, true),
            (Some(seen(2)), Known::New(seen(2)), true),
            (Some(seen(1)), Known::New(seen(1)), true),
        ];
        let mut known = Known::default();
        for (number, (look, expected, forgets)) in steps.into_iter().enumerate() {
            assert_eq!(known.after(look), (expected, forgets), "step {number}");
            known = expected;
        }
    }
}
