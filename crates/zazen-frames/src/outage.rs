//! When a backing store is asked, and when it is left alone because it did not answer.
//!
//! Invariants: the store as a whole counts as ill only if its root does not answer either. A folder
//! that hangs (a user's own mount beneath the root, one dead server) is ill by itself and costs
//! only its own readers. A store that hangs costs one timeout in each hold-off, not one for each
//! frame. Illness and recovery are news once each.

use std::collections::BTreeMap;
use zazen_core::{Error, ErrorKind, RelPath};

/// A store that refused at once is asked again after this: asking costs little.
pub const AWAY_HOLD_OFF_NS: u64 = 200_000_000;
/// A store that let a call time out is left alone for this long.
pub const HUNG_HOLD_OFF_NS: u64 = 5_000_000_000;
/// Folders whose illness is remembered.
pub const ILL_FOLDERS_MAX: usize = 256;

/// What happens to a store.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Somebody wants to ask the store about `path`. Without an [`Action::Refuse`] the question may
    /// be asked.
    Ask {
        /// The path.
        path: &'a RelPath,
    },
    /// The store answered the question about `path`; an error about one file is an answer.
    Answered {
        /// The path.
        path: &'a RelPath,
    },
    /// The question about `path` met an outage ([`is_outage`]). [`Action::AskRoot`] follows.
    Failed {
        /// The path.
        path: &'a RelPath,
        /// The outage.
        error: &'a Error,
    },
    /// The answer to [`Action::AskRoot`], after `path` had met `error`.
    Root {
        /// The path of the question that failed.
        path: &'a RelPath,
        /// The outage that it met.
        error: &'a Error,
        /// Whether the root answered.
        answers: bool,
    },
    /// Reading an opened file of `folder` met an outage. That says nothing of the root.
    FileFailed {
        /// The file's folder.
        folder: &'a RelPath,
        /// The outage.
        error: &'a Error,
    },
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Do not ask; fail with this, which an earlier question met.
    Refuse {
        /// The kind of that failure.
        kind: ErrorKind,
        /// Its message.
        message: String,
    },
    /// Ask about the root, and report [`Event::Root`].
    AskRoot,
    /// Something for the log.
    News(News),
}

/// What a person may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The store as a whole stopped answering, with this error.
    StoreAway(String),
    /// The store answers again.
    StoreBack,
    /// One folder stopped answering, with this error.
    FolderAway(RelPath, String),
    /// The folder answers again.
    FolderBack(RelPath),
}

/// The health of one store, as one view of it knows it.
#[derive(Debug, Default)]
pub struct Health {
    whole: Option<Illness>,
    /// Ill folders; an illness includes all that is beneath the folder.
    folders: BTreeMap<RelPath, Illness>,
}

#[derive(Debug)]
struct Illness {
    kind: ErrorKind,
    message: String,
    ask_again_ns: u64,
}

/// Whether `error` means that the store does not answer, rather than something about one file.
pub fn is_outage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut)
}

impl Health {
    /// Takes one event at `now_ns`, appends what to do to `actions`.
    pub fn step(&mut self, now_ns: u64, event: Event<'_>, actions: &mut Vec<Action>) {
        match event {
            Event::Ask { path } => {
                if let Some(known) = self.illness_of(now_ns, path) {
                    actions.push(Action::Refuse { kind: known.kind, message: known.message.clone() });
                }
            }
            Event::Answered { path } => self.recovers(path, actions),
            Event::Failed { .. } => actions.push(Action::AskRoot),
            Event::Root { path, error, answers } => self.falls_ill(now_ns, path, error, answers, actions),
            Event::FileFailed { folder, error } => self.falls_ill(now_ns, folder, error, true, actions),
        }
    }

    /// Whether the store as a whole answered the last question.
    pub fn is_ok(&self) -> bool {
        self.whole.is_none()
    }

    fn illness_of(&self, now_ns: u64, path: &RelPath) -> Option<&Illness> {
        let lasts = |illness: &&Illness| now_ns < illness.ask_again_ns;
        if let Some(whole) = self.whole.as_ref().filter(lasts) {
            return Some(whole);
        }
        if self.folders.is_empty() {
            return None;
        }
        let mut folders =
            std::iter::successors(Some(path.clone()), |path| path.split().map(|(above, _)| above));
        folders.find_map(|folder| self.folders.get(&folder).filter(lasts))
    }

    fn recovers(&mut self, path: &RelPath, actions: &mut Vec<Action>) {
        if self.whole.take().is_some() {
            actions.push(Action::News(News::StoreBack));
        }
        if !self.folders.is_empty() && self.folders.remove(path).is_some() {
            actions.push(Action::News(News::FolderBack(path.clone())));
        }
    }

    /// `part`: only `path` and what is beneath it is ill, since the root answers.
    fn falls_ill(
        &mut self,
        now_ns: u64,
        path: &RelPath,
        error: &Error,
        part: bool,
        actions: &mut Vec<Action>,
    ) {
        let hung = error.kind() == ErrorKind::TimedOut;
        let hold_off_ns = if hung { HUNG_HOLD_OFF_NS } else { AWAY_HOLD_OFF_NS };
        let message = error.to_string();
        let ask_again_ns = now_ns.saturating_add(hold_off_ns);
        let illness = Illness { kind: error.kind(), message: message.clone(), ask_again_ns };
        if !part {
            if self.whole.replace(illness).is_none() {
                actions.push(Action::News(News::StoreAway(message)));
            }
            return;
        }
        if self.folders.len() >= ILL_FOLDERS_MAX {
            self.folders.retain(|_, illness| now_ns < illness.ask_again_ns);
        }
        let room = self.folders.len() < ILL_FOLDERS_MAX;
        if room && self.folders.insert(path.clone(), illness).is_none() {
            actions.push(Action::News(News::FolderAway(path.clone(), message)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    fn step(health: &mut Health, now_ns: u64, event: Event<'_>) -> Vec<Action> {
        let mut actions = Vec::new();
        health.step(now_ns, event, &mut actions);
        actions
    }

    fn refused(health: &mut Health, now_ns: u64, at: &str) -> Option<ErrorKind> {
        match step(health, now_ns, Event::Ask { path: &path(at) }).as_slice() {
            [] => None,
            [Action::Refuse { kind, .. }] => Some(*kind),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_hung_store_is_left_alone_for_the_hold_off() {
        let mut health = Health::default();
        let hung = Error::new(ErrorKind::TimedOut, "no answer");
        let (x, now_ns) = (path("x"), 7);
        assert_eq!(step(&mut health, now_ns, Event::Failed { path: &x, error: &hung }), [Action::AskRoot]);
        let news = step(&mut health, now_ns, Event::Root { path: &x, error: &hung, answers: false });
        assert!(matches!(news.as_slice(), [Action::News(News::StoreAway(_))]), "{news:?}");
        assert!(!health.is_ok());
        assert_eq!(refused(&mut health, now_ns + HUNG_HOLD_OFF_NS - 1, "y/z"), Some(ErrorKind::TimedOut));
        assert_eq!(refused(&mut health, now_ns + HUNG_HOLD_OFF_NS, "y/z"), None);
        let news = step(&mut health, now_ns, Event::Answered { path: &path("y") });
        assert_eq!(news, [Action::News(News::StoreBack)]);
        assert!(health.is_ok() && refused(&mut health, now_ns, "x").is_none());
    }

    #[test]
    fn a_hung_folder_costs_only_its_own_readers() {
        let mut health = Health::default();
        let away = Error::new(ErrorKind::Unavailable, "refused");
        let folder = path("mine/hung");
        let news = step(&mut health, 0, Event::Root { path: &folder, error: &away, answers: true });
        assert!(matches!(news.as_slice(), [Action::News(News::FolderAway(..))]), "{news:?}");
        assert!(health.is_ok());
        for (at, expected) in
            [("mine/hung", true), ("mine/hung/a/b", true), ("mine", false), ("other", false)]
        {
            assert_eq!(refused(&mut health, AWAY_HOLD_OFF_NS - 1, at).is_some(), expected, "{at}");
            assert_eq!(refused(&mut health, AWAY_HOLD_OFF_NS, at), None, "{at}");
        }
        let again = step(&mut health, 9, Event::FileFailed { folder: &folder, error: &away });
        assert_eq!(again, [], "it is no news that it is still away");
    }

    const NAMES: [&str; 5] = ["a", "a/b", "a/b/c", "d", "d/e"];

    proptest! {
        /// Against the rule as written: a question is refused exactly if the store, its path or a
        /// folder above it failed less than a hold-off ago and has not answered since.
        #[test]
        fn refuses_exactly_what_failed_lately(
            steps in prop::collection::vec((0u64..3_000_000_000, 0usize..5, 0u8..4, any::<bool>()), 1..60)
        ) {
            let mut health = Health::default();
            let mut failed: BTreeMap<Option<&str>, u64> = BTreeMap::new();
            let mut now_ns = 0;
            for (passes, name, what, hung) in steps {
                now_ns += passes;
                let (name, at) = (NAMES[name], path(NAMES[name]));
                let kind = if hung { ErrorKind::TimedOut } else { ErrorKind::Unavailable };
                let until_ns = now_ns + if hung { HUNG_HOLD_OFF_NS } else { AWAY_HOLD_OFF_NS };
                let error = Error::new(kind, "out");
                match what {
                    0 => {
                        step(&mut health, now_ns, Event::Answered { path: &at });
                        failed.remove(&None);
                        failed.remove(&Some(name));
                    }
                    1 => {
                        step(&mut health, now_ns, Event::Root { path: &at, error: &error, answers: false });
                        failed.insert(None, until_ns);
                    }
                    2 => {
                        step(&mut health, now_ns, Event::Root { path: &at, error: &error, answers: true });
                        failed.insert(Some(name), until_ns);
                    }
                    _ => {}
                }
                for asked in NAMES {
                    let is_above = |folder: &str| asked == folder || asked.starts_with(&format!("{folder}/"));
                    let expected = failed
                        .iter()
                        .any(|(of, until_ns)| of.is_none_or(is_above) && now_ns < *until_ns);
                    prop_assert_eq!(refused(&mut health, now_ns, asked).is_some(), expected, "{}", asked);
                }
                prop_assert_eq!(health.is_ok(), !failed.contains_key(&None));
            }
        }
    }
}
