//! What one user or one folder may take of a store: only its own datasets go for it.

use std::sync::Arc;
use zazen_core::{ErrorKind, FrameMeta, FrameNo, Origin, RelPath, Result, Source};
use zazen_env::SimDisk;
use zazen_frames::quota::{Quotas, Scope};
use zazen_store::contract::series_in;
use zazen_store::{Store, StoreConfig};
use zazen_wire::checksum::frame_checksum;

const FRAME: usize = 40_000;
const KB: u64 = 1000;

fn open(disk: &SimDisk) -> Arc<Store<SimDisk>> {
    let config = StoreConfig { budget_bytes: 16 << 20, free_floor_bytes: 0, packed_bytes_max: 16 << 10 };
    Store::open(disk.clone(), config).unwrap().0
}

fn put(store: &Arc<Store<SimDisk>>, directory: &str, number: u64, length: usize, uid: u32) -> Result<()> {
    let bytes = vec![number as u8; length];
    let source = Source { path: RelPath::new(&format!("f{number}")).unwrap(), offset: 0, length: None };
    let meta = FrameMeta {
        number: FrameNo::new(number).unwrap(),
        length: bytes.len() as u64,
        checksum: frame_checksum(&bytes),
        validator: None,
        uid,
        gid: 0,
        mode: 0o644,
    };
    let mut put = store.put(&series_in(directory), &source, &meta, Origin::Native)?;
    put.write(&bytes)?;
    put.commit().map(drop)
}

fn frames(store: &Store<SimDisk>, directory: &str) -> u64 {
    let (native, alien) = store.holdings(&series_in(directory));
    native.len() + alien.len()
}

#[test]
fn a_user_at_its_bound_evicts_its_own_and_nobody_elses() {
    let store = open(&SimDisk::new(1, 64 << 20));
    store.set_quotas(Quotas { user: Some(400 * KB), ..Quotas::default() });
    // The longest not used are another user's; the least of all bounds is far away.
    (0..4).for_each(|number| put(&store, "other", number, FRAME, 8).unwrap());
    (0..4).for_each(|number| put(&store, "mine/old", number, FRAME, 7).unwrap());
    for number in 0..5 {
        put(&store, "mine/new", number, FRAME, 7).unwrap();
    }
    assert_eq!(frames(&store, "mine/old"), 0, "the user's longest not used went");
    assert_eq!((frames(&store, "mine/new"), frames(&store, "other")), (5, 4));
    // Nothing of the user's can go: the dataset that grows is all that it has.
    let refused = (5..20).find_map(|number| put(&store, "mine/new", number, FRAME, 7).err()).unwrap();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    let text = refused.to_string();
    assert!(text.contains("user 7") && text.contains("user_budget"), "{text}");
    assert!(store.taken(&Scope::User(7)).used <= 400 * KB);
    put(&store, "other", 9, FRAME, 8).unwrap();
    assert_eq!(store.taken(&Scope::User(7)).promised, 0, "a refused put leaves nothing promised");
}

#[test]
fn a_bound_of_datasets_holds_whoever_owns_the_frames() {
    let store = open(&SimDisk::new(2, 64 << 20));
    let folders = [(RelPath::new("hot").unwrap(), 400 * KB)].into();
    store.set_quotas(Quotas { dataset: Some(150 * KB), folders, ..Quotas::default() });
    let refused = (0..9).find_map(|number| put(&store, "one", number, FRAME, 7).err()).unwrap();
    assert!(refused.to_string().contains("dataset_budget"), "{refused}");
    let kept = frames(&store, "one");
    assert!((2..=3).contains(&kept), "{kept}");
    // Of the folder, the longest not used goes.
    let hot = ["hot/a", "hot/b", "hot/c", "hot/d", "hot/e"];
    for directory in hot {
        (0..2).for_each(|number| put(&store, directory, number, FRAME, 7).unwrap());
    }
    let of = hot.map(|one| frames(&store, one));
    assert_eq!((of[0], of[4], frames(&store, "one")), (0, 2, kept));
    assert!(store.taken(&Scope::Folder(RelPath::new("hot").unwrap())).used <= 400 * KB);
}

#[test]
fn what_users_have_is_counted_alike_after_a_restart() {
    let disk = SimDisk::new(3, 64 << 20);
    let counted = |store: &Store<SimDisk>| {
        (store.users(), store.taken(&Scope::Folder(RelPath::default())), store.space().used)
    };
    let before = {
        let store = open(&disk);
        (0..6).for_each(|number| put(&store, "a", number, FRAME, 7).unwrap());
        (0..300).for_each(|number| put(&store, "b", number, 500, 8).unwrap());
        // Small and large frames that go, and one whose source has another owner now.
        (0..3).for_each(|number| assert!(store.drop_frame(&series_in("a"), number).unwrap()));
        (0..200).for_each(|number| assert!(store.drop_frame(&series_in("b"), number).unwrap()));
        store.sync().unwrap();
        counted(&store)
    };
    assert_eq!(before.0[0].1.used, 3 * (FRAME as u64).next_multiple_of(4096));
    assert_eq!((before.0[1].0, before.0[1].1.used), (8, 100 * 500));
    let store = open(&disk);
    assert_eq!(counted(&store), before);
    store.evict(&series_in("a"), None).unwrap();
    store.evict(&series_in("b"), None).unwrap();
    assert_eq!(store.users(), [], "nobody has anything");
}
