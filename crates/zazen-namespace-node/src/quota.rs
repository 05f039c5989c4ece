//! Quotas: how much a user, or all below a directory, may take.
//!
//! The limits are attributes of the root directory that only root may see, so they live as long as
//! the namespace. The primary of the root's partition walks the tree and adds up what is used. Each
//! daemon knows that sum, and what its own callers have made since the walk began; it refuses what
//! would go beyond a limit. So a limit is exceeded by what other nodes wrote since the last walk,
//! at most, and what was removed counts until the next walk.

use crate::books::{REMEMBERED_MAX, sums};
use crate::handles::{Bounds, Handle, lock};
use crate::limit::{Amount, Limit, Of};
use crate::looks::Looks;
use crate::node::NamespaceNode;
use crate::route::root;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use zazen_core::{Credentials, Error, ErrorKind, Result as CoreResult};
use zazen_namespace::operation::{
    Answer, At, GetXattr, Inode, MANY_MAX, Nameless, Operation, ReadDirectory, SetXattr,
};
use zazen_namespace::service::{NodeSpace, Quota, Quotas as Told, namespace_fn};
use zazen_namespace::{Attributes, Errno, InodeId, Kind, Name, NodeNo, PartitionNo};
use zazen_wire::Message;

/// Quotas that a namespace can have: the attributes of one inode have 128 KiB together.
const QUOTAS_MAX: usize = 500;
/// How often the limits and the sums are asked for.
const LOOK: Duration = Duration::from_secs(1);
/// After a walk there is a rest of so many times the walk, and at least of one look.
const REST: u32 = 4;
/// How long the node that walks may take to tell the sums.
const TELL_WITHIN: Duration = Duration::from_secs(5);
/// How long a directory's parent is taken to be the same.
const REMEMBERED: Duration = Duration::from_secs(2);
/// Directories above a file, at most.
const DEPTH_MAX: usize = 4096;
/// Bytes of a listing.
const LISTING_BYTES: u32 = 1 << 20;
/// Files take whole pages on the disk.
const PAGE_BYTES: u64 = 4096;
/// Bytes of a block of [`Attributes::blocks`].
const BLOCK_BYTES: u64 = 512;

/// What a file takes of its holder's disk.
pub(crate) fn on_disk(attributes: &Attributes) -> u64 {
    attributes.blocks.saturating_mul(BLOCK_BYTES)
}

impl NamespaceNode {
    /// The quotas that bound what `owner` has in `directory` (`None`: not known). Root has none.
    pub(crate) fn quotas_of(
        &self,
        owner: u32,
        directory: Option<InodeId>,
        looks: &mut Looks,
    ) -> Result<Vec<Of>, Errno> {
        if !self.quotas.is_any() || owner == 0 {
            return Ok(Vec::new());
        }
        let mut candidates = vec![Of::User(owner)];
        if let Some(directory) = directory.filter(|_| self.quotas.has_directories()) {
            candidates.extend(self.above(directory, looks)?.into_iter().map(Of::Directory));
        }
        let books = lock(&self.quotas.books);
        Ok(candidates.into_iter().filter(|of| books.limits.contains_key(of)).collect())
    }

    /// `EXDEV` for a name that would come to be below a directory with a quota from elsewhere: what
    /// it brings along is not counted yet. Programs copy instead, which counts. A file has no links
    /// in and out of such a directory: it would be bounded by neither or by both.
    pub(crate) fn vet_move(
        &self,
        credentials: &Credentials,
        operation: &Operation,
        looks: &mut Looks,
    ) -> Result<(), Errno> {
        let (from, to, both) = match operation {
            Operation::Rename(rename) if rename.directory != rename.new_directory => {
                (Some(rename.directory), rename.new_directory, rename.exchange)
            }
            Operation::Link(link) => match self.quotas.found(link.id) {
                // It may come from such a directory: nobody found it by a name since the start.
                None if self.quotas.has_directories() => return Err(Errno::EXDEV),
                found => (found, link.directory, true),
            },
            _ => return Ok(()),
        };
        let from = self.quotas_of(credentials.uid, from, looks)?;
        let to = self.quotas_of(credentials.uid, Some(to), looks)?;
        let within = |of: &[Of], all: &[Of]| of.iter().all(|one| all.contains(one));
        if within(&to, &from) && (!both || within(&from, &to)) { Ok(()) } else { Err(Errno::EXDEV) }
    }

    /// The quotas of a file that is being opened: of its owner, and of the directory that it was
    /// made in or found in.
    pub(crate) fn quotas_of_file(
        &self,
        found: &Attributes,
        made_in: Option<InodeId>,
        looks: &mut Looks,
    ) -> Result<Vec<Of>, Errno> {
        if !self.quotas.is_any() {
            return Ok(Vec::new());
        }
        let directory = made_in.or_else(|| self.quotas.found(found.id));
        self.quotas_of(found.uid, directory, looks)
    }

    /// What bounds what is written through a handle now. Limits may have been set since the file
    /// was opened, or may not have been known then.
    pub(crate) fn bounds(&self, handle: &Handle) -> Result<Arc<[Of]>, Errno> {
        let version = self.quotas.version();
        let mut bounds = lock(&handle.bounds);
        if bounds.version == version {
            return Ok(Arc::clone(&bounds.of));
        }
        let mut of = Vec::new();
        if handle.uid != 0 && self.quotas.is_any() {
            let mut found = self.attributes(handle.id)?;
            // A chunk counts for its file.
            let whole = handle.chunk_of.map(|file| self.attributes(file)).transpose()?;
            let whole = whole.as_ref().unwrap_or(&found);
            of = self.quotas_of_file(whole, handle.found_in, &mut Looks::new())?;
            // What was written unbounded is no new growth.
            self.refresh(&mut found);
            handle.end.fetch_max(found.bytes, Ordering::Relaxed);
        }
        *bounds = Bounds { version, of: of.into() };
        Ok(Arc::clone(&bounds.of))
    }

    /// The directory and all above it.
    fn above(&self, directory: InodeId, looks: &mut Looks) -> Result<Vec<InodeId>, Errno> {
        let mut all = vec![directory];
        let mut at = directory;
        while at != InodeId::ROOT && all.len() < DEPTH_MAX {
            let known = lock(&self.quotas.above).get(&at).copied();
            let parent = match known.filter(|(_, asked)| asked.elapsed() < REMEMBERED) {
                Some((parent, _)) => parent,
                None => match self.look(looks, Operation::Parent(Inode { id: at }))? {
                    Answer::Entry(parent) => {
                        let mut known = lock(&self.quotas.above);
                        if known.len() >= REMEMBERED_MAX {
                            known.clear();
                        }
                        known.insert(at, (parent.id, Instant::now()));
                        parent.id
                    }
                    _ => return Err(Errno::EIO),
                },
            };
            all.push(parent);
            at = parent;
        }
        Ok(all)
    }

    /// What may still be used in a directory, if a quota bounds it more than the disks do.
    pub(crate) fn space_in(&self, id: InodeId) -> Option<NodeSpace> {
        if !self.quotas.is_any() {
            return None;
        }
        let found_in = self.quotas.found(id);
        let mut looks = Looks::new();
        let mut above = |id| self.above(id, &mut looks);
        // Only a directory knows what is above it.
        let above = above(id).or_else(|errno| found_in.map_or(Err(errno), above)).ok()?;
        let mut sum = NodeSpace { node: NodeNo(0), bytes: 0, bytes_free: 0, inodes: 0, inodes_free: 0 };
        for node in self.spaces() {
            sum.bytes = sum.bytes.saturating_add(node.bytes);
            sum.bytes_free = sum.bytes_free.saturating_add(node.bytes_free);
            sum.inodes = sum.inodes.saturating_add(node.inodes);
            sum.inodes_free = sum.inodes_free.saturating_add(node.inodes_free);
        }
        let books = lock(&self.quotas.books);
        let mut bounded = false;
        for of in above.into_iter().map(Of::Directory) {
            let Some(limit) = books.limits.get(&of) else { continue };
            let used = books.used(of);
            bounded = true;
            if limit.most.bytes > 0 {
                sum.bytes = sum.bytes.min(limit.most.bytes);
                sum.bytes_free = sum.bytes_free.min(limit.most.bytes.saturating_sub(used.bytes));
            }
            if limit.most.files > 0 {
                sum.inodes = sum.inodes.min(limit.most.files);
                sum.inodes_free = sum.inodes_free.min(limit.most.files.saturating_sub(used.files));
            }
        }
        bounded.then_some(sum)
    }

    /// Sets or ends a quota. The caller must have been found to be an operator.
    pub(crate) fn set_quota(&self, asked: &Quota) -> CoreResult<()> {
        self.identity()?;
        let within = |errno: Errno| {
            let kind = match errno {
                Errno::ENOENT | Errno::ENODATA => ErrorKind::NotFound,
                Errno::ETIMEDOUT => ErrorKind::Unavailable,
                _ => ErrorKind::InvalidArgument,
            };
            let of = asked.user.map_or_else(|| asked.path.clone(), |uid| format!("user {uid}"));
            Error::new(kind, format!("quota of {of}: {errno}"))
        };
        let of = match asked.user {
            Some(0) => {
                let why = "quota of user 0: root has no quota; give another user";
                return Err(Error::new(ErrorKind::InvalidArgument, why));
            }
            Some(uid) => Of::User(uid),
            None => match self.directory_at(&asked.path) {
                // The directory is gone; its quota ends by the path that it had.
                Err(Errno::ENOENT) if (asked.bytes, asked.files) == (Some(0), Some(0)) => {
                    self.once_at(&asked.path).map_err(within)?
                }
                found => Of::Directory(found.map_err(within)?),
            },
        };
        let limits = self.limits().map_err(within)?;
        // A limit that is not given stays as it is.
        let before = limits.get(&of).map(|limit| limit.most).unwrap_or_default();
        let most =
            Amount { bytes: asked.bytes.unwrap_or(before.bytes), files: asked.files.unwrap_or(before.files) };
        let path = if asked.user.is_some() { String::new() } else { asked.path.clone() };
        let limit = Limit { most, path };
        let value = (most != Amount::default()).then(|| limit.value());
        if value.is_some() && limits.len() >= QUOTAS_MAX && !limits.contains_key(&of) {
            let why =
                format!("there are {QUOTAS_MAX} quotas already, which is the most; remove others first");
            return Err(Error::new(ErrorKind::NoSpace, why));
        }
        let name = Name::new(of.name().as_bytes()).map_err(within)?;
        let set = SetXattr { id: InodeId::ROOT, name, value, create: false, replace: false };
        self.route_one(root(), Operation::SetXattr(set)).map(drop).map_err(within)
    }

    /// The quota of a directory that had this path when the quota was set.
    fn once_at(&self, path: &str) -> Result<Of, Errno> {
        let path = path.trim_end_matches('/');
        let mut limits = self.limits()?.into_iter();
        let had = |(of, limit): &(Of, Limit)| {
            matches!(of, Of::Directory(_)) && limit.path.trim_end_matches('/') == path
        };
        limits.find(had).map(|(of, _)| of).ok_or(Errno::ENOENT)
    }

    /// The directory at a path from the root. Links are not followed.
    fn directory_at(&self, path: &str) -> Result<InodeId, Errno> {
        if !path.starts_with('/') {
            return Err(Errno::EINVAL);
        }
        let mut at = InodeId::ROOT;
        for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
            let name = Name::new(part.as_bytes())?;
            match self.route_one(root(), Operation::Lookup(At { directory: at, name }))? {
                Answer::Entry(entry) if entry.kind == Kind::Directory => at = entry.id,
                _ => return Err(Errno::ENOTDIR),
            }
        }
        Ok(at)
    }

    /// The quotas, and what is used of them.
    pub(crate) fn quotas(&self, only: Option<u32>) -> Told {
        let books = lock(&self.quotas.books);
        let mut quotas = books.views();
        if let Some(uid) = only {
            quotas.retain(|quota| quota.user == Some(uid));
        }
        let age = books.walked.map(|walked| walked.elapsed());
        let ms = |of: Duration| u64::try_from(of.as_millis()).unwrap_or(u64::MAX);
        Told { quotas, age_ms: age.map(ms), took_ms: ms(books.took) }
    }

    /// The limits, as the metadata has them.
    fn limits(&self) -> Result<BTreeMap<Of, Limit>, Errno> {
        let names = match self.route_one(root(), Operation::ListXattr(Inode { id: InodeId::ROOT }))? {
            Answer::Names(names) => names.names,
            _ => return Err(Errno::EIO),
        };
        let of: Vec<(Of, Name)> =
            names.into_iter().filter_map(|name| Some((Of::named(name.as_bytes())?, name))).collect();
        let get = |(_, name): &(Of, Name)| {
            (root(), Operation::GetXattr(GetXattr { id: InodeId::ROOT, name: name.clone() }))
        };
        let values = self.route(of.iter().map(get).collect());
        let mut limits = BTreeMap::new();
        for ((of, _), value) in of.into_iter().zip(values) {
            match value {
                Answer::Bytes(value) => {
                    if let Some(limit) = Limit::parse(&value.bytes) {
                        limits.insert(of, limit);
                    }
                }
                Answer::Refused(refused) if refused.errno == Errno::ENODATA => {}
                Answer::Refused(refused) => return Err(refused.errno),
                _ => return Err(Errno::EIO),
            }
        }
        Ok(limits)
    }

    /// Brings the books up to date, as far as they are due. When to come again.
    fn look_at_quotas(&self) -> Result<(), Errno> {
        let limits = self.limits()?;
        self.quotas.learn(&limits);
        if limits.is_empty() {
            return Ok(());
        }
        let map = self.map();
        let seat = map.partitions.get(InodeId::ROOT.partition().0 as usize).ok_or(Errno::ETIMEDOUT)?;
        let (me, _) = self.identity().map_err(|_| Errno::ETIMEDOUT)?;
        if seat.primary == me {
            let (walked, took) = {
                let books = lock(&self.quotas.books);
                let known = limits.keys().all(|of| books.used.contains_key(of));
                (books.walked.filter(|_| known), books.took)
            };
            if walked.is_some_and(|walked| walked.elapsed() < took * (REST + 1)) {
                return Ok(());
            }
            let began = Instant::now();
            let used = self.walk(&limits)?;
            lock(&self.quotas.books).found(began, began.elapsed(), used);
            return Ok(());
        }
        let address = self.address(seat.primary).ok_or(Errno::ETIMEDOUT)?;
        let asked = Instant::now();
        let reply = self.links.call(&address, namespace_fn::QUOTAS, &[], &[], TELL_WITHIN);
        let told = reply.and_then(|reply| Told::decode(&reply.payload)).map_err(|error| {
            tracing::debug!("namespace: sums of quotas from {address}: {error}");
            Errno::ETIMEDOUT
        })?;
        let Some(age_ms) = told.age_ms else { return Ok(()) };
        // What that node's own callers made since is in the sums, too.
        let age = Duration::from_millis(age_ms.saturating_add(1));
        let began = asked.checked_sub(age).unwrap_or(asked);
        let took = Duration::from_millis(told.took_ms);
        lock(&self.quotas.books).found(began, took, sums(&told.quotas));
        Ok(())
    }

    /// Adds up what is used of each quota.
    fn walk(&self, limits: &BTreeMap<Of, Limit>) -> Result<HashMap<Of, Amount>, Errno> {
        let mut used: HashMap<Of, Amount> = limits.keys().map(|of| (*of, Amount::default())).collect();
        let users = limits.keys().any(|of| matches!(of, Of::User(_)));
        let mut linked = HashSet::new();
        let mut seen = HashSet::new();
        let starts: Vec<InodeId> = match users {
            true => vec![InodeId::ROOT],
            false => limits
                .keys()
                .filter_map(|of| if let Of::Directory(id) = of { Some(*id) } else { None })
                .collect(),
        };
        // Of one below another the outer walk counts for both.
        let mut stack: Vec<(InodeId, Arc<Vec<Of>>)> = Vec::new();
        for start in starts {
            let within: Vec<Of> = match self.above(start, &mut Looks::new()) {
                Ok(above) => {
                    above.into_iter().map(Of::Directory).filter(|of| limits.contains_key(of)).collect()
                }
                Err(Errno::ENOENT | Errno::ESTALE) => continue,
                Err(errno) => return Err(errno),
            };
            if users || within.len() <= 1 {
                stack.push((start, Arc::new(within)));
            }
        }
        while let Some((directory, within)) = stack.pop() {
            if self.stopping.load(Ordering::Relaxed) {
                return Err(Errno::ETIMEDOUT);
            }
            if !seen.insert(directory) {
                continue;
            }
            let mut count = |mut attributes: Attributes| {
                if attributes.links > 1 && attributes.kind != Kind::Directory && !linked.insert(attributes.id)
                {
                    return;
                }
                let amount = self.amount_of(&mut attributes);
                let of_user = Of::User(attributes.uid);
                for of in within.iter().chain([&of_user]) {
                    if let Some(used) = used.get_mut(of) {
                        used.add(amount);
                    }
                }
                if attributes.kind == Kind::Directory {
                    let own = Of::Directory(attributes.id);
                    let within = match limits.contains_key(&own) {
                        true => Arc::new(within.iter().copied().chain([own]).collect()),
                        false => Arc::clone(&within),
                    };
                    stack.push((attributes.id, within));
                }
            };
            match self.each_entry(directory, &mut count) {
                Err(Errno::ENOENT | Errno::ESTALE | Errno::ENOTDIR) => {}
                done => done?,
            }
        }
        if users {
            self.each_nameless(&mut |mut attributes| {
                let of_user = Of::User(attributes.uid);
                if let Some(used) = used.get_mut(&of_user) {
                    used.add(self.amount_of(&mut attributes));
                }
            })?;
        }
        Ok(used)
    }

    /// What an inode counts for.
    fn amount_of(&self, attributes: &mut Attributes) -> Amount {
        self.refresh(attributes);
        // A file system may hold more blocks than a file has, for what may come.
        let bytes = on_disk(attributes).min(attributes.bytes.next_multiple_of(PAGE_BYTES));
        let chunks = attributes.chunks.as_ref().map_or(0, |chunks| chunks.count);
        Amount { bytes, files: 1 + chunks }
    }

    /// Brings the attributes of all inodes without a name to `each`: files that were removed, and
    /// that somebody has open. Which directory they were in, nobody knows.
    fn each_nameless(&self, each: &mut dyn FnMut(Attributes)) -> Result<(), Errno> {
        for partition in 0..self.map().partitions.len() as u32 {
            let mut from = InodeId::new(PartitionNo(partition), 0);
            loop {
                let list = Nameless { from, max: MANY_MAX as u32 };
                let found = match self.route_one(root(), Operation::Nameless(list)) {
                    Ok(Answer::Many(found)) => found.attributes,
                    Err(Errno::ETIMEDOUT) => return Err(Errno::ETIMEDOUT),
                    // A node of an older build.
                    _ => break,
                };
                let count = found.len();
                let last = found.iter().flatten().last().map(|last| last.id);
                found.into_iter().flatten().for_each(&mut *each);
                match last {
                    Some(last) if count == MANY_MAX => {
                        from = InodeId::new(PartitionNo(partition), last.serial() + 1);
                    }
                    _ => break,
                }
            }
        }
        Ok(())
    }

    /// Brings the attributes of all entries of a directory to `each`: a page of them is in memory
    /// at a time. Nothing is known of entries that come or go meanwhile.
    fn each_entry(&self, directory: InodeId, each: &mut dyn FnMut(Attributes)) -> Result<(), Errno> {
        let mut cookie = 0;
        loop {
            let read = ReadDirectory { directory, cookie, bytes_max: LISTING_BYTES, attributes: true };
            let Answer::Listing(listing) = self.route_one(root(), Operation::ReadDirectory(read))? else {
                return Err(Errno::EIO);
            };
            let Some(last) = listing.entries.last() else { return Ok(()) };
            cookie = last.cookie;
            let mut lacking = Vec::new();
            for listed in listing.entries {
                match listed.entry.attributes {
                    Some(attributes) => each(attributes),
                    None => lacking.push(listed.entry.id),
                }
            }
            for found in self.attributes_of(&lacking) {
                found?.into_iter().for_each(&mut *each);
            }
            if listing.end {
                return Ok(());
            }
        }
    }
}

/// Keeps the books of a node.
pub(crate) fn run(node: &Weak<NamespaceNode>) {
    loop {
        let Some(node) = node.upgrade() else { return };
        if node.stopping.load(Ordering::Relaxed) {
            return;
        }
        if node.identity().is_ok()
            && let Err(errno) = node.look_at_quotas()
        {
            tracing::debug!("namespace: the books of quotas: {errno}");
        }
        lock(&node.quotas.books).merge_old(Instant::now());
        let is_first = node.quotas.version() == 0;
        drop(node);
        std::thread::sleep(if is_first { LOOK / 10 } else { LOOK });
    }
}
