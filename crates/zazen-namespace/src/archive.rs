//! The archive of a namespace: what goes there when, which local bytes may go, and which names the
//! archive shall show. *Pure.*
//!
//! The archive is a folder of a parallel file system. The bytes of a file are an *archived object*
//! there, in a hidden folder; the names that users see are further names (hard links) of it. So a
//! rename in the namespace moves no bytes, and no user's name leads the daemon anywhere.

use std::collections::BTreeMap;

/// How much of a disk is to stay free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepFree {
    /// Bytes.
    Bytes(u64),
    /// Hundredths of the disk.
    Percent(u8),
}

impl KeepFree {
    /// The bytes that must go before so much is free.
    pub fn lacks(self, disk_bytes: u64, free_bytes: u64) -> u64 {
        let wanted = match self {
            KeepFree::Bytes(bytes) => bytes,
            KeepFree::Percent(percent) => {
                u64::try_from(u128::from(disk_bytes) * u128::from(percent) / 100).unwrap_or(u64::MAX)
            }
        };
        wanted.min(disk_bytes).saturating_sub(free_bytes)
    }
}

/// A file whose local bytes may go, because the archive has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<T> {
    /// Which.
    pub of: T,
    /// Bytes that it takes on the local disk.
    pub bytes: u64,
    /// When it was used last.
    pub used_ns: i64,
}

/// Those that go, so that `lacking` bytes become free: what was used longest ago goes first.
pub fn victims<T: Copy + Ord>(mut candidates: Vec<Candidate<T>>, lacking: u64) -> Vec<T> {
    candidates.retain(|one| one.bytes > 0);
    candidates.sort_unstable_by_key(|one| (one.used_ns, one.of));
    let mut freed = 0_u64;
    let goes = |one: &Candidate<T>| {
        let goes = freed < lacking;
        freed = freed.saturating_add(one.bytes);
        goes
    };
    candidates.into_iter().take_while(goes).map(|one| one.of).collect()
}

/// Length and time of the last change: while both are equal, the bytes are.
pub type Looks = (u64, i64);

/// What is known of a file that this node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Whether some node has it open for writing.
    pub writing: bool,
    /// Its bytes here.
    pub looks: Looks,
    /// Its bytes when checksums were made.
    pub sealed: bool,
    /// Its bytes when they were archived last.
    pub archived: Option<Looks>,
}

/// What is done about a file next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: the archive has it as it is.
    Done,
    /// It is too early.
    Later,
    /// It is copied to the archive.
    Copy,
}

/// What is done next about a file at `now_ns`, if files are archived `after_ns` from their last
/// change.
pub fn step(held: &Held, now_ns: i64, after_ns: i64) -> Step {
    let (_, modified_ns) = held.looks;
    let age_ns = now_ns.saturating_sub(modified_ns);
    match () {
        () if held.writing || !held.sealed => Step::Later,
        () if held.archived == Some(held.looks) => Step::Done,
        // A time in the future says nothing of the age.
        () if (0..after_ns).contains(&age_ns) => Step::Later,
        () => Step::Copy,
    }
}

/// What a directory of the namespace has under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A file: the number of its archived object's inode; `None` if it is not archived yet.
    File(Option<u64>),
    /// A directory.
    Directory,
    /// What is made anew if it is not there: a symbolic link, or a file without bytes.
    Small,
    /// What has no place in the archive.
    Other,
}

/// What a directory of the archive has under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct There {
    /// The number of its inode.
    pub inode: u64,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// What is done about a name in the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It becomes a name of the archived object with this inode, whatever it was.
    Link(u64),
    /// The directory is made, if it is not there.
    Directory,
    /// The link or the file without bytes is made, if it is not there or is not right.
    Small,
    /// It is another name of a file that the namespace has elsewhere: it goes.
    Remove,
    /// The directory is not in the namespace any more: names of files that are elsewhere now go,
    /// and then the directory, if nothing is left.
    Prune,
}

/// What is done about the names of one directory. `ours`: whether an inode is an archived object of
/// a file that the namespace has. What is neither in the namespace nor ours stays: it is somebody
/// else's, or what was removed from the namespace.
pub fn acts<'a>(
    wanted: &'a BTreeMap<Vec<u8>, Wanted>,
    there: &'a BTreeMap<Vec<u8>, There>,
    ours: impl Fn(u64) -> bool,
) -> Vec<(&'a [u8], Act)> {
    let mut acts = Vec::new();
    for (name, wanted) in wanted {
        let act = match wanted {
            Wanted::File(Some(inode)) if there.get(name).is_some_and(|there| there.inode == *inode) => None,
            Wanted::File(Some(inode)) => Some(Act::Link(*inode)),
            Wanted::Directory => Some(Act::Directory),
            Wanted::Small => Some(Act::Small),
            Wanted::File(None) | Wanted::Other => None,
        };
        acts.extend(act.map(|act| (&name[..], act)));
    }
    for (name, there) in there {
        let is_wanted = wanted.get(name).is_some_and(|wanted| *wanted != Wanted::Other);
        match there.is_directory {
            _ if is_wanted => {}
            true => acts.push((name, Act::Prune)),
            false if ours(there.inode) => acts.push((name, Act::Remove)),
            false => {}
        }
    }
    acts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lacks_is_counted_from_the_wish() {
        assert_eq!(KeepFree::Percent(10).lacks(1000, 30), 70);
        assert_eq!(KeepFree::Percent(10).lacks(1000, 100), 0);
        assert_eq!(KeepFree::Percent(100).lacks(u64::MAX, 0), u64::MAX);
        assert_eq!(KeepFree::Bytes(50).lacks(1000, 30), 20);
        assert_eq!(KeepFree::Bytes(5000).lacks(1000, 30), 970, "never more than the disk");
    }

    #[test]
    fn what_was_used_longest_ago_goes_first_and_no_more_than_needed() {
        let one = |of, bytes, used_ns| Candidate { of, bytes, used_ns };
        let all = vec![one(1, 10, 300), one(2, 10, 100), one(3, 0, 0), one(4, 10, 200), one(5, 10, 100)];
        assert_eq!(victims(all.clone(), 0), []);
        assert_eq!(victims(all.clone(), 1), [2]);
        assert_eq!(victims(all.clone(), 20), [2, 5]);
        assert_eq!(victims(all.clone(), 21), [2, 5, 4]);
        assert_eq!(victims(all, u64::MAX), [2, 5, 4, 1]);
    }

    #[test]
    fn only_what_is_closed_sealed_and_left_alone_is_copied() {
        let held = Held { writing: false, looks: (5, 1000), sealed: true, archived: None };
        assert_eq!(step(&held, 2000, 1000), Step::Copy);
        assert_eq!(step(&held, 1999, 1000), Step::Later);
        assert_eq!(step(&held, 900, 1000), Step::Copy, "a time in the future");
        assert_eq!(step(&Held { writing: true, ..held }, 2000, 0), Step::Later);
        assert_eq!(step(&Held { sealed: false, ..held }, 2000, 0), Step::Later);
        assert_eq!(step(&Held { archived: Some((5, 1000)), ..held }, 2000, 1000), Step::Done);
        assert_eq!(step(&Held { archived: Some((5, 999)), ..held }, 2000, 1000), Step::Copy);
        assert_eq!(step(&Held { archived: Some((4, 1000)), ..held }, 2000, 1000), Step::Copy);
    }

    #[test]
    fn names_follow_the_namespace_and_what_is_others_stays() {
        let name = |text: &str| text.as_bytes().to_vec();
        let file = |inode| There { inode, is_directory: false };
        let directory = |inode| There { inode, is_directory: true };
        let wanted = BTreeMap::from([
            (name("right"), Wanted::File(Some(1))),
            (name("new"), Wanted::File(Some(2))),
            (name("other-bytes"), Wanted::File(Some(3))),
            (name("not-yet"), Wanted::File(None)),
            (name("dir"), Wanted::Directory),
            (name("link"), Wanted::Small),
            (name("pipe"), Wanted::Other),
        ]);
        let there = BTreeMap::from([
            (name("right"), file(1)),
            (name("other-bytes"), file(9)),
            (name("not-yet"), file(8)),
            (name("dir"), directory(50)),
            (name("renamed-away"), file(2)),
            (name("removed"), file(77)),
            (name("old-dir"), directory(51)),
        ]);
        let acts = acts(&wanted, &there, |inode| [1, 2, 3].contains(&inode));
        let expected: [(&str, Act); 6] = [
            ("dir", Act::Directory),
            ("link", Act::Small),
            ("new", Act::Link(2)),
            ("other-bytes", Act::Link(3)),
            ("old-dir", Act::Prune),
            ("renamed-away", Act::Remove),
        ];
        assert_eq!(acts, expected.map(|(name, act)| (name.as_bytes(), act)));
    }
}
