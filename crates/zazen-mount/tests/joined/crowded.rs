//! One user's requests that do not end, and the requests of others on the same mount.

use super::mounted::{apart, become_user_with, options, wait_for};
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;
use zazen_mount::Mounted;
use zazen_mount::local::LocalTree;
use zazen_mount::tree::{
    Blocking, Changes, Credentials, Handle, How, InodeStat, Io, Kind, Listed, Lock, Name, Node, Opened,
    Owner, Range, Result, Space, Tree,
};

/// Whose requests take for ever.
const SLOW: u32 = 64_411;
const OTHERS: [u32; 2] = [64_412, 0];
/// Requests of that user at a time.
const REQUESTS: usize = 96;
/// Threads that read a mount's requests, at least.
const READERS: usize = 8;
/// Requests of others take milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// What of the slow user's does not end for now, and how many such requests there are.
#[derive(Default)]
struct Gate {
    reads: bool,
    releases: bool,
    held: usize,
}

#[derive(Default)]
struct Gated {
    gate: Mutex<Gate>,
    opened: Condvar,
    /// What the slow user has open.
    slow: Mutex<HashSet<Handle>>,
}

impl Gated {
    fn set(&self, reads: bool, releases: bool) {
        let mut gate = self.gate.lock().unwrap();
        (gate.reads, gate.releases) = (reads, releases);
        self.opened.notify_all();
    }

    fn held(&self) -> usize {
        self.gate.lock().unwrap().held
    }

    fn pass(&self, handle: Handle, is_closed: impl Fn(&Gate) -> bool) {
        if !self.slow.lock().unwrap().contains(&handle) {
            return;
        }
        let mut gate = self.gate.lock().unwrap();
        gate.held += 1;
        while is_closed(&gate) {
            gate = self.opened.wait(gate).unwrap();
        }
        gate.held -= 1;
    }
}

/// A plain directory whose files are read and written by the mount's process.
struct Slowed {
    tree: LocalTree,
    gated: Arc<Gated>,
}

macro_rules! plainly {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> $result {
            self.tree.$name($($argument),*)
        })*
    };
}

impl Tree for Slowed {
    fn open(&self, who: &Credentials, node: Node, how: How) -> Result<Opened> {
        let opened = self.tree.open(who, node, how)?;
        if who.uid == SLOW {
            self.gated.slow.lock().unwrap().insert(opened.handle);
        }
        Ok(Opened { io: Io::Direct, ..opened })
    }

    fn create(
        &self,
        who: &Credentials,
        parent: Node,
        name: &Name,
        mode: u32,
        how: How,
    ) -> Result<(InodeStat, Opened)> {
        let (stat, opened) = self.tree.create(who, parent, name, mode, how)?;
        Ok((stat, Opened { io: Io::Direct, ..opened }))
    }

    fn read(&self, handle: Handle, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.gated.pass(handle, |gate| gate.reads);
        self.tree.read(handle, offset, buffer)
    }

    fn release(&self, handle: Handle) {
        self.gated.pass(handle, |gate| gate.releases);
        self.gated.slow.lock().unwrap().remove(&handle);
        self.tree.release(handle);
    }

    plainly! {
        lookup(who: &Credentials, parent: Node, name: &Name) -> Result<InodeStat>;
        forget(node: Node, count: u64) -> ();
        stat(who: &Credentials, node: Node, handle: Option<Handle>) -> Result<InodeStat>;
        set(who: &Credentials, node: Node, handle: Option<Handle>, changes: &Changes) -> Result<InodeStat>;
        read_link(who: &Credentials, node: Node) -> Result<Vec<u8>>;
        make_node(who: &Credentials, parent: Node, name: &Name, kind: Kind, mode: u32, device: u32)
            -> Result<InodeStat>;
        make_directory(who: &Credentials, parent: Node, name: &Name, mode: u32) -> Result<InodeStat>;
        make_link(who: &Credentials, parent: Node, name: &Name, target: &[u8]) -> Result<InodeStat>;
        unlink(who: &Credentials, parent: Node, name: &Name) -> Result<()>;
        remove_directory(who: &Credentials, parent: Node, name: &Name) -> Result<()>;
        rename(who: &Credentials, parent: Node, name: &Name, to: Node, new_name: &Name, flags: u32)
            -> Result<()>;
        link(who: &Credentials, node: Node, parent: Node, name: &Name) -> Result<InodeStat>;
        write(handle: Handle, offset: u64, bytes: &[u8], append: bool) -> Result<usize>;
        flush(handle: Handle) -> Result<()>;
        sync(handle: Handle, data_only: bool) -> Result<()>;
        seek(handle: Handle, offset: u64, data: bool) -> Result<u64>;
        open_directory(who: &Credentials, node: Node) -> Result<Handle>;
        list(handle: Handle, cookie: u64, plus: bool, take: &mut dyn FnMut(Listed) -> bool) -> Result<()>;
        release_directory(handle: Handle) -> ();
        space(node: Node) -> Result<Space>;
        get_xattr(who: &Credentials, node: Node, name: &Name) -> Result<Vec<u8>>;
        set_xattr(who: &Credentials, node: Node, name: &Name, value: &[u8], flags: i32) -> Result<()>;
        remove_xattr(who: &Credentials, node: Node, name: &Name) -> Result<()>;
        list_xattr(who: &Credentials, node: Node) -> Result<Vec<Name>>;
        test_lock(handle: Handle, owner: Owner, range: Range, lock: Lock) -> Result<Option<Blocking>>;
        lock(handle: Handle, owner: Owner, range: Range, lock: Lock) -> Result<()>;
    }
}

/// Whether another user can work on the mount.
fn works(mnt: &Path, uid: u32) -> bool {
    let (done, is_done) = mpsc::channel();
    let file = mnt.join(format!("of-{uid}"));
    std::thread::spawn(move || {
        become_user_with(uid, &[]);
        fs::write(&file, "mine").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"mine");
        fs::remove_file(&file).unwrap();
        done.send(()).unwrap();
    });
    is_done.recv_timeout(PATIENCE).is_ok()
}

#[test]
fn requests_of_one_user_that_do_not_end_keep_nobody_elses_waiting() {
    apart(|path| {
        let gated = Arc::new(Gated::default());
        let tree = LocalTree::new(&path.join("plain")).unwrap();
        let tree = Arc::new(Slowed { tree, gated: Arc::clone(&gated) });
        let mnt = path.join("mnt");
        let mount = Mounted::new(tree, &mnt, &options(false)).unwrap();
        fs::set_permissions(&mnt, fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(mnt.join("file"), "bytes").unwrap();
        let readers = READERS.max(std::thread::available_parallelism().unwrap().get());
        gated.set(true, true);
        let slow: Vec<_> = (0..REQUESTS)
            .map(|_| {
                let name = mnt.join("file");
                std::thread::spawn(move || {
                    become_user_with(SLOW, &[]);
                    let file = fs::File::open(name).unwrap();
                    let mut bytes = [0; 5];
                    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 5);
                    assert_eq!(&bytes, b"bytes");
                })
            })
            .collect();
        wait_for(|| gated.held() >= readers);
        let beside_reads = OTHERS.map(|uid| works(&mnt, uid));
        // The kernel tells the end of open files in the name of root.
        gated.set(false, true);
        wait_for(|| gated.held() >= readers);
        let beside_releases = OTHERS.map(|uid| works(&mnt, uid));
        gated.set(false, false);
        slow.into_iter().for_each(|thread| thread.join().unwrap());
        // Ends when all files are closed.
        mount.unmount().unwrap();
        assert_eq!((beside_reads, beside_releases), ([true; 2], [true; 2]));
        assert!(gated.slow.lock().unwrap().is_empty());
    });
}
