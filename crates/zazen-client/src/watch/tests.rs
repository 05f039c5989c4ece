use super::*;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use zazen_backing::{DirectoryNames, Rights, SourceFile, SourceStat};

/// A directory in which files appear after it was listed so often.
struct Late {
    inner: DirectoryBacking,
    empty: AtomicUsize,
}

impl Backing for Late {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn stat(&self, path: &RelPath) -> Result<SourceStat> {
        self.inner.stat(path)
    }

    fn open(&self, path: &RelPath) -> Result<Box<dyn SourceFile>> {
        self.inner.open(path)
    }

    fn list(&self, path: &RelPath) -> Result<DirectoryNames> {
        let take = |left: usize| left.checked_sub(1);
        match self.empty.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(DirectoryNames::from(Vec::new())),
            Err(_) => self.inner.list(path),
        }
    }

    fn allows(&self, path: &RelPath, rights: Rights) -> Result<bool> {
        self.inner.allows(path, rights)
    }

    fn seen_by(&self, who: &Credentials) -> Result<Arc<dyn Backing>> {
        self.inner.seen_by(who)
    }
}

#[test]
fn a_trajectory_that_appears_as_the_watch_begins_is_pushed_as_it_grows() {
    let folder = tempfile::tempdir().unwrap();
    // An XTC frame of one atom: magic number, atoms, step, time; box; atoms again, and its place.
    let frame = [&[1995_u32, 1, 0, 0][..], &[0; 9], &[1], &[1; 3]].concat();
    let bytes: Vec<u8> = frame.iter().flat_map(|word| word.to_be_bytes()).collect();
    std::fs::write(folder.path().join("md.xtc"), bytes).unwrap();
    let indexes = crate::indexes::indexes();
    let finder = Finder { indexes: &indexes, store: "/", stops: None };
    for empty in 0..4 {
        let inner = DirectoryBacking::new(folder.path().to_owned()).unwrap();
        let late = Late { inner, empty: AtomicUsize::new(empty) };
        // Otherwise its frames would be left out: only what has no layout is looked at as it grows.
        let found = layout_now(finder, &late, None).unwrap();
        assert!(found.is_none(), "{empty} empty listings: {found:?}");
    }
}
