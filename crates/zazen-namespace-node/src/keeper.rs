//! What a node does for its files in the background: checksums of what nobody writes any more, a
//! slow look at all objects, and how much space the nodes have.

use crate::driver::wall_ns;
use crate::handles::lock;
use crate::lease::is_only_user;
use crate::node::NamespaceNode;
use crate::objects::{Object, ObjectName};
use crate::waiting::BegunWith;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use zazen_core::{Error, Result};
use zazen_namespace::service::{NodeSpace, Scrub, ScrubAt, Spaces, namespace_fn};
use zazen_namespace::{Attributes, Errno};
use zazen_wire::Message;

/// How often there is a look at what is due.
const LOOK: Duration = Duration::from_millis(250);
/// How often the other nodes are asked for their space.
const SPACE: Duration = Duration::from_secs(3);
/// How long a node may take to say its space.
const SPACE_WITHIN: Duration = Duration::from_secs(1);
/// A folder of objects is looked at every so often: all 1,024 in a week.
const FOLDER: Duration = Duration::from_secs(590);
/// Objects up to this length are checked when they are opened on their node.
const CHECKED_BYTES_MAX: u64 = 4 << 20;
/// A check at an open counts for so long.
const CHECKED_FOR: Duration = Duration::from_secs(600);
/// While fewer objects wait for checksums, those that were here when the daemon began are noted.
const NOTED_MAX: usize = 1024;
/// They are noted for so long at a time: most folders of a node with few files are empty.
const NOTE_PASS: Duration = Duration::from_millis(200);
/// Checks at opens that are remembered.
const CHECKED_MAX: usize = 1 << 16;

/// Starts the node's threads.
pub(crate) fn start(node: &Arc<NamespaceNode>) -> Result<()> {
    let spawn = |name: &str, work: fn(&Weak<NamespaceNode>)| {
        let node = Arc::downgrade(node);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || work(&node));
        thread.map(drop).map_err(|error| Error::io(format!("start the namespace's thread {name}"), error))
    };
    spawn("ns-keep", run)?;
    spawn("ns-quota", crate::quota::run)?;
    spawn("ns-archive", crate::archive::work::run)?;
    spawn("ns-names", crate::archive::work::run_names)?;
    spawn("ns-wholes", crate::archive::work::run_wholes)?;
    spawn("ns-copy", run_copies)
}

fn run_copies(node: &Weak<NamespaceNode>) {
    loop {
        let Some(node) = node.upgrade() else { return };
        if node.stopping.load(Ordering::Relaxed) {
            return;
        }
        let due = node.waiting.copies.due();
        if !due.is_empty() && node.identity().is_ok() {
            node.copy_all(&due);
        } else if node.identity().is_ok() {
            node.balance_some();
        }
        node.leave_some();
        drop(node);
        std::thread::sleep(LOOK);
    }
}

fn run(node: &Weak<NamespaceNode>) {
    let mut space_at = Instant::now();
    let mut folder_at = Instant::now() + FOLDER;
    let mut folder = 0;
    let mut lived = None;
    loop {
        let Some(node) = node.upgrade() else { return };
        if node.stopping.load(Ordering::Relaxed) {
            return;
        }
        if let Ok((_, life)) = node.identity() {
            if lived.replace(life).is_some_and(|before| before != life) {
                tracing::warn!(
                    "namespace: this node begins a new life: for longer than its lease the others heard \
                     nothing of it, and took over its partitions. Was it paused, or overloaded?"
                );
            }
            let due = node.waiting.seals.due();
            if !due.is_empty() {
                node.seal_all(&due);
            }
            if space_at <= Instant::now() {
                node.look_for_space();
                space_at = Instant::now() + SPACE;
            }
            node.note_begun_with();
            node.choose_place();
            node.repair_some();
            if folder_at <= Instant::now() {
                folder = node.look_at_folder(folder);
                folder_at = Instant::now() + FOLDER;
            }
        }
        drop(node);
        std::thread::sleep(LOOK);
    }
}

/// Whether a chunk that nobody writes has more bytes here than the metadata knows.
fn is_untold(node: &NamespaceNode, name: ObjectName, found: &Attributes) -> bool {
    let Ok((me, _)) = node.identity() else { return false };
    let is_here = found
        .place
        .as_ref()
        .is_some_and(|place| (place.holder, place.generation) == (me, name.generation) && !place.writing);
    is_here && node.objects.look(name).is_some_and(|meta| meta.len() > found.bytes)
}

impl NamespaceNode {
    /// Notes what was here when the daemon began, for a while.
    fn note_begun_with(&self) {
        let until = Instant::now() + NOTE_PASS;
        while self.waiting.seals.len() < NOTED_MAX
            && Instant::now() < until
            && !self.stopping.load(Ordering::Relaxed)
        {
            let mut begun_with = lock(&self.waiting.begun_with);
            let BegunWith::Folder(at) = *begun_with else { return };
            let next = self.note_folder(at);
            // Under the lock: what is not noted yet counts as waiting.
            *begun_with = next.map_or(BegunWith::Noted, BegunWith::Folder);
        }
    }

    /// Notes the objects of a folder, as if they had just been written: what an earlier life of the
    /// daemon knew of files that lack checksums or copies is lost. The next folder.
    fn note_folder(&self, folder: u64) -> Option<u64> {
        let names = self.objects.folder(folder)?.unwrap_or_else(|errno| {
            tracing::error!(
                "namespace: folder {folder:03x} of the objects cannot be listed: {errno}; files in it \
                 that lack checksums or copies get none before the next start or write"
            );
            Vec::new()
        });
        let has_room = names.into_iter().all(|name| self.waiting.seals.note(name, Duration::ZERO));
        Some(if has_room { folder + 1 } else { folder })
    }

    /// Seals those that nobody has open for writing.
    fn seal_all(&self, names: &[ObjectName]) {
        let Ok((me, _)) = self.identity() else { return };
        let ids: Vec<_> = names.iter().map(|name| name.id).collect();
        for (name, found) in names.iter().zip(self.attributes_of(&ids)) {
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            // A chunk that was being written when the daemon ended: nobody may ask how long it is.
            if let Ok(Some(found)) = &found
                && let Some(of) = found.chunk_of.as_ref().filter(|_| is_untold(self, *name, found))
                && let Err(errno) = self.commit_object(*name, false)
            {
                tracing::debug!("namespace: the length of a chunk of inode {}: {errno}", of.file);
                self.waiting.seals.later(*name);
                continue;
            }
            let place = match found {
                Ok(Some(found)) => found.place,
                Ok(None) => None,
                Err(_) => {
                    self.waiting.seals.later(*name);
                    continue;
                }
            };
            let place = place.filter(|place| (place.holder, place.generation) == (me, name.generation));
            let sealed = match place {
                None => Ok(true),
                Some(place) if place.writing => Ok(false),
                Some(_) => {
                    let sealed = self.objects.open(*name).and_then(|object| self.seal_one(*name, &object));
                    if sealed == Ok(true) {
                        self.waiting.copies.note(*name, Duration::ZERO);
                        self.archive.note(*name);
                    }
                    sealed
                }
            };
            match sealed {
                Ok(true) | Err(Errno::ESTALE) => self.waiting.seals.done(*name),
                _ => self.waiting.seals.later(*name),
            }
        }
    }

    fn seal_one(&self, name: ObjectName, object: &Object) -> std::result::Result<bool, Errno> {
        let stat = crate::objects::stat(object)?;
        if stat.bytes == 0 || self.seals.get(name, &stat).is_some() {
            return Ok(true);
        }
        let now_ns = wall_ns();
        self.seals.seal_synced(name, object, now_ns, || {
            if is_only_user(object) { Ok(()) } else { self.sync_here(object, name) }
        })
    }

    /// Checks an object of this node that is opened here: the kernel will read it, and check
    /// nothing. `EIO` if it is damaged and shall be written: new checksums would hide that.
    pub(crate) fn check_open(
        &self,
        name: ObjectName,
        object: &Object,
        write: bool,
    ) -> std::result::Result<(), Errno> {
        let stat = crate::objects::stat(object)?;
        let known = lock(&self.waiting.checked).get(&name).copied();
        let fresh = known
            .is_some_and(|(modified_ns, at)| modified_ns == stat.modified_ns && at.elapsed() < CHECKED_FOR);
        if !fresh && stat.bytes > 0 && stat.bytes <= CHECKED_BYTES_MAX {
            let verified = self.seals.verify(name, object, 0, || true)?;
            if verified.sealed {
                let mut checked = lock(&self.waiting.checked);
                if checked.len() >= CHECKED_MAX {
                    checked.clear();
                }
                checked.insert(name, (stat.modified_ns, Instant::now()));
            }
        }
        if write && self.seals.is_damaged(name) { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Looks at one folder of objects, and gives the next.
    fn look_at_folder(&self, folder: u64) -> u64 {
        let mut from = ScrubAt { folder, ..ScrubAt::default() };
        loop {
            let scrubbed = match self.scrub(&Scrub { node: None, from }) {
                Ok(scrubbed) => scrubbed,
                Err(error) => {
                    tracing::debug!("namespace: look at folder {folder}: {error}");
                    return folder;
                }
            };
            if scrubbed.removed > 0 {
                let (objects, bytes) = (scrubbed.removed, scrubbed.removed_bytes);
                tracing::info!("namespace: removed {objects} objects of {bytes} bytes that no inode names");
            }
            match scrubbed.next {
                None => return 0,
                Some(next) if next.folder != folder => return next.folder,
                Some(_) if self.stopping.load(Ordering::Relaxed) => return folder,
                Some(next) => from = next,
            }
            // The disk is there for others.
            std::thread::sleep(LOOK);
        }
    }

    /// The disk of this node; `None` while it has not joined.
    pub(crate) fn own_space(&self) -> Option<NodeSpace> {
        let (node, _) = self.identity().ok()?;
        let disk = self.objects.disk().ok()?;
        Some(NodeSpace {
            node,
            bytes: disk.bytes,
            bytes_free: disk.bytes_free,
            inodes: disk.inodes,
            inodes_free: disk.inodes_free,
        })
    }

    /// The disks of the nodes that answered a moment ago.
    pub(crate) fn spaces(&self) -> Vec<NodeSpace> {
        let mut spaces = lock(&self.waiting.spaces).clone();
        if let Some(own) = self.own_space() {
            spaces.insert(own.node, own);
        }
        spaces.into_values().collect()
    }

    fn look_for_space(&self) {
        let Ok((me, _)) = self.identity() else { return };
        let mut spaces = BTreeMap::new();
        for node in self.map().nodes.iter().filter(|node| node.up && node.node != me) {
            let reply = self.links.call(&node.addr, namespace_fn::SPACE, &[], &[], SPACE_WITHIN);
            let found = reply.ok().and_then(|reply| Spaces::decode(&reply.payload).ok());
            if let Some(space) = found.and_then(|found| found.nodes.into_iter().next()) {
                spaces.insert(node.node, NodeSpace { node: node.node, ..space });
            }
        }
        *lock(&self.waiting.spaces) = spaces;
    }
}
