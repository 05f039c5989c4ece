//! A reference file system: one map of inodes, each operation written down as the manual pages say
//! it, without partitions, transactions or records. It takes the numbers of new inodes from the
//! answers, and checks all else. It knows no times.

use crate::operation::*;
use crate::{Attributes, Errno, InodeId, Kind};
use std::collections::{BTreeMap, BTreeSet};
use zazen_core::Credentials;

/// What the reference knows of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) links: u32,
    pub(super) bytes: u64,
    pub(super) place: Option<(u32, u64)>,
    pub(super) target: Vec<u8>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) entries: BTreeMap<Vec<u8>, InodeId>,
    pub(super) parent: InodeId,
    /// Readers and writers by node.
    pub(super) opens: BTreeMap<u32, (u32, u32)>,
    /// Bytes of a chunk, if the file has its bytes in chunks; and the chunks.
    pub(super) chunk_bytes: u64,
    pub(super) chunks: BTreeMap<u64, InodeId>,
    /// What it is a chunk of, and which.
    pub(super) chunk_of: Option<(InodeId, u64)>,
    /// From the chunks: where the last one ends, and whether one is open for writing.
    pub(super) chunks_end: u64,
    pub(super) chunks_written: bool,
}

/// The reference file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) rows: BTreeMap<InodeId, Row>,
    /// Other operations go on: attributes in answers are not checked, which may be those of a later
    /// moment.
    pub(super) loose: bool,
    /// Inodes that other operations have removed by the time of the last answer: a change of one of
    /// them is answered with `EIO`, if it is asked for again.
    pub(super) gone: BTreeSet<InodeId>,
    /// Directories may be split: then the inode of an entry is in any partition.
    pub(super) splits: bool,
}

/// Who asks.
#[derive(Clone, Debug)]
pub(super) struct Who {
    pub(super) node: u32,
    pub(super) caller: Credentials,
}

/// Any of these refusals is right; or `Ok` and what the answer must be is checked by the caller.
type Checked<T> = Result<T, Vec<Errno>>;

fn no<T>(errno: Errno) -> Checked<T> {
    Err(vec![errno])
}

impl Who {
    fn root(&self) -> bool {
        self.caller.uid == 0
    }

    fn in_group(&self, gid: u32) -> bool {
        self.caller.gid == gid || self.caller.groups.contains(&gid)
    }

    fn may(&self, row: &Row, want: u32) -> bool {
        let granted = match (self.caller.uid == row.uid, self.in_group(row.gid)) {
            (true, _) => row.mode / 64,
            (false, true) => row.mode / 8,
            (false, false) => row.mode,
        };
        self.root() || (granted % 8) & want == want
    }

    fn need(&self, row: &Row, want: u32) -> Checked<()> {
        if self.may(row, want) { Ok(()) } else { no(Errno::EACCES) }
    }

    fn owns(&self, row: &Row) -> bool {
        self.root() || self.caller.uid == row.uid
    }
}

impl Row {
    fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// Length of a file, entries of a directory.
    pub(super) fn bytes(&self) -> u64 {
        if self.is_directory() { self.entries.len() as u64 } else { self.bytes.max(self.chunks_end) }
    }

    pub(super) fn shows(&self, seen: &Attributes) -> bool {
        let bytes = self.bytes();
        let place = seen.place.as_ref().map(|place| (place.holder.0, place.generation));
        let writing = self.opens.values().any(|(_, writers)| *writers > 0);
        (self.kind, self.mode, self.uid, self.gid, self.links, bytes, self.place)
            == (seen.kind, seen.mode, seen.uid, seen.gid, seen.links, seen.bytes, place)
            && seen.place.as_ref().is_none_or(|place| place.writing == writing)
            && seen.chunk_of.map(|of| (of.file, of.index)) == self.chunk_of
            && seen.chunks.map(|seen| (seen.chunk_bytes, seen.count, seen.writing)) == self.chunked()
    }

    fn chunked(&self) -> Option<(u64, u64, bool)> {
        let (count, writing) = (self.chunks.len() as u64, self.chunks_written);
        (self.chunk_bytes > 0).then_some((self.chunk_bytes, count, writing))
    }

    fn strip(&mut self, who: &Who) {
        self.mode &= !0o4000;
        if self.mode & 0o010 != 0 || !(who.root() || who.in_group(self.gid)) {
            self.mode &= !0o2000;
        }
    }
}

impl Model {
    pub(super) fn new(root_mode: u32) -> Model {
        let mut root = Model::row(Kind::Directory, root_mode, (0, 0), InodeId::ROOT);
        root.links = 2;
        let rows = BTreeMap::from([(InodeId::ROOT, root)]);
        Model { rows, loose: false, gone: BTreeSet::new(), splits: false }
    }

    fn row(kind: Kind, mode: u32, (uid, gid): (u32, u32), parent: InodeId) -> Row {
        Row {
            kind,
            mode,
            uid,
            gid,
            links: 1,
            bytes: 0,
            place: None,
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            entries: BTreeMap::new(),
            parent,
            opens: BTreeMap::new(),
            chunk_bytes: 0,
            chunks: BTreeMap::new(),
            chunk_of: None,
            chunks_end: 0,
            chunks_written: false,
        }
    }

    /// What the chunks of a file come to.
    fn with_chunks(&self, row: &Row) -> Row {
        let chunks = || row.chunks.iter().filter_map(|(index, id)| Some((index, self.rows.get(id)?)));
        let ends = chunks().filter(|(_, chunk)| chunk.bytes > 0);
        let ends = ends.map(|(index, chunk)| index * row.chunk_bytes + chunk.bytes);
        let writes = |chunk: &Row| chunk.opens.values().any(|(_, writers)| *writers > 0);
        Row {
            chunks_end: ends.max().unwrap_or(0),
            chunks_written: chunks().any(|(_, chunk)| writes(chunk)),
            ..row.clone()
        }
    }

    /// The same, of all files.
    pub(super) fn count_chunks(&mut self) {
        let files: Vec<_> = self.rows.iter().filter(|(_, row)| row.chunk_bytes > 0).collect();
        let files: Vec<_> = files.into_iter().map(|(id, row)| (*id, self.with_chunks(row))).collect();
        self.rows.extend(files);
    }

    /// Ends the chunks behind a length; those that are open stay, if the file does.
    fn cut(&mut self, id: InodeId, bytes: u64, stays: bool) {
        let Row { chunk_bytes, chunks, .. } = self.rows[&id].clone();
        for (index, chunk) in chunks {
            let is_open = !self.rows[&chunk].opens.is_empty();
            if index * chunk_bytes >= bytes && !(stays && is_open) {
                self.rows.remove(&chunk);
                self.at(id).chunks.remove(&index);
            }
        }
    }

    fn directory(&self, id: InodeId) -> Checked<&Row> {
        let row = self.rows.get(&id).ok_or(vec![Errno::ENOENT])?;
        match (row.kind, row.links) {
            (Kind::Directory, 0) => no(Errno::ENOENT),
            (Kind::Directory, _) => Ok(row),
            _ => no(Errno::ENOTDIR),
        }
    }

    fn inode(&self, id: InodeId) -> Checked<&Row> {
        self.rows.get(&id).ok_or(vec![Errno::ESTALE])
    }

    fn at(&mut self, id: InodeId) -> &mut Row {
        self.rows.get_mut(&id).expect("the reference has the inode")
    }

    fn find(&self, directory: InodeId, name: &crate::Name) -> Option<InodeId> {
        self.rows.get(&directory)?.entries.get(name.as_bytes()).copied()
    }

    /// The life of a node ends: what it has open is closed.
    pub(super) fn node_gone(&mut self, node: u32) {
        for id in self.rows.keys().copied().collect::<Vec<_>>() {
            // A chunk goes with its file.
            if let Some(row) = self.rows.get_mut(&id) {
                row.opens.remove(&node);
            }
            self.reap(id);
        }
        self.count_chunks();
    }

    fn reap(&mut self, id: InodeId) {
        if self.rows.get(&id).is_some_and(|row| row.links == 0 && row.opens.is_empty()) {
            self.cut(id, 0, false);
            self.rows.remove(&id);
        }
    }

    /// Executes the operation; whether `answer` is right.
    pub(super) fn check(&mut self, who: &Who, operation: &Operation, answer: &Answer) -> bool {
        let executed = self.execute(who, operation, answer);
        self.count_chunks();
        match (executed, answer) {
            (Ok(right), _) => right,
            (Err(errnos), Answer::Refused(refused)) => errnos.contains(&refused.errno),
            (Err(_), _) => false,
        }
    }

    fn shown(&self, id: InodeId, attributes: Option<&Attributes>) -> bool {
        let row = self.rows.get(&id);
        let shows = |row: &Row, seen| self.loose || self.with_chunks(row).shows(seen);
        attributes.is_none_or(|seen| seen.id == id && row.is_some_and(|row| shows(row, seen)))
    }

    fn is_entry(&self, id: InodeId, answer: &Answer) -> bool {
        let kind = self.rows.get(&id).map(|row| row.kind);
        matches!(answer, Answer::Entry(entry)
            if entry.id == id && Some(entry.kind) == kind && self.shown(id, entry.attributes.as_ref()))
    }

    fn is_found(&self, id: InodeId, answer: &Answer) -> bool {
        matches!(answer, Answer::Found(found) if self.shown(id, Some(&found.attributes)))
    }

    fn execute(&mut self, who: &Who, operation: &Operation, answer: &Answer) -> Checked<bool> {
        match operation {
            Operation::Lookup(at) => {
                who.need(self.directory(at.directory)?, 1)?;
                let id = self.find(at.directory, &at.name).ok_or(vec![Errno::ENOENT])?;
                Ok(self.is_entry(id, answer))
            }
            Operation::GetAttributes(inode) => {
                self.inode(inode.id)?;
                Ok(self.is_found(inode.id, answer))
            }
            Operation::Parent(inode) => {
                let parent = self.directory(inode.id)?.parent;
                Ok(matches!(answer, Answer::Entry(entry) if entry.id == parent))
            }
            Operation::ReadDirectory(read) => {
                let row = self.directory(read.directory)?;
                who.need(row, 4)?;
                let Answer::Listing(listing) = answer else { return Ok(false) };
                let seen = listing.entries.iter();
                let seen: BTreeSet<_> =
                    seen.map(|listed| (listed.name.as_bytes().to_vec(), listed.entry.id)).collect();
                let here = row.entries.iter().map(|(name, id)| (name.clone(), *id)).collect();
                Ok(listing.end && seen == here && seen.len() == listing.entries.len())
            }
            Operation::ReadLink(inode) => {
                let row = self.inode(inode.id)?;
                if row.kind != Kind::Symlink {
                    return no(Errno::EINVAL);
                }
                Ok(matches!(answer, Answer::Bytes(bytes) if bytes.bytes == row.target))
            }
            Operation::Create(create) => self.create(who, create, answer),
            Operation::MakeDirectory(make) => self.make_directory(who, make, answer),
            Operation::Unlink(at) => self.remove(who, at, false, answer),
            Operation::RemoveDirectory(at) => self.remove(who, at, true, answer),
            Operation::Link(link) => self.link(who, link, answer),
            Operation::Rename(rename) => self.rename(who, rename, answer),
            Operation::Open(open) => self.open(who, open.id, &open.mode, false, answer),
            Operation::Release(release) => self.release(who, release, answer),
            Operation::SetAttributes(set) => self.set_attributes(who, set, answer),
            Operation::SetXattr(set) => {
                let row = self.inode(set.id)?;
                if !matches!(row.kind, Kind::File | Kind::Directory) {
                    return no(Errno::EPERM);
                }
                if row.is_directory() && row.mode & 0o1000 != 0 && !who.owns(row) {
                    return no(Errno::EPERM);
                }
                who.need(row, 2)?;
                if row.chunk_of.is_some() {
                    return no(Errno::EPERM);
                }
                let has = row.xattrs.contains_key(set.name.as_bytes());
                if !has && (set.replace || set.value.is_none()) {
                    return no(Errno::ENODATA);
                }
                if has && set.create {
                    return no(Errno::EEXIST);
                }
                let (row, name) = (self.at(set.id), set.name.as_bytes().to_vec());
                match &set.value {
                    Some(value) => row.xattrs.insert(name, value.clone()),
                    None => row.xattrs.remove(&name),
                };
                Ok(*answer == Answer::Done)
            }
            Operation::ListXattr(inode) => {
                let row = self.inode(inode.id)?;
                let Answer::Names(names) = answer else { return Ok(false) };
                let seen: Vec<_> = names.names.iter().map(|name| name.as_bytes().to_vec()).collect();
                Ok(seen == row.xattrs.keys().cloned().collect::<Vec<_>>())
            }
            Operation::OpenChunk(open) => self.open_chunk(who, open, answer),
            Operation::Commit(commit) => self.commit(who, commit, answer),
            Operation::Append(append) => {
                let row = self.inode(append.file)?;
                if row.chunk_bytes == 0 {
                    return no(Errno::EINVAL);
                }
                if row.opens.get(&who.node).is_none_or(|(_, writers)| *writers == 0) {
                    return no(Errno::EBADF);
                }
                let offset = self.with_chunks(row).bytes();
                self.at(append.file).bytes =
                    if append.bytes > 0 { offset + append.bytes } else { self.rows[&append.file].bytes };
                Ok(*answer == Answer::Offset(Offset { offset }))
            }
            Operation::Chunks(list) => {
                let row = self.inode(list.file)?;
                if row.chunk_bytes == 0 {
                    return no(Errno::EINVAL);
                }
                let Answer::Chunks(seen) = answer else { return Ok(false) };
                let written = |id: &InodeId| self.rows[id].opens.values().any(|(_, writers)| *writers > 0);
                let right = row.chunks.range(list.from..).filter(|(_, id)| !list.writing || written(id));
                let right: Vec<InodeId> = right.map(|(_, id)| *id).collect();
                let shown = seen.chunks.iter().map(|chunk| chunk.id).collect::<Vec<_>>();
                let are_right = seen.chunks.iter().all(|chunk| self.shown(chunk.id, Some(chunk)));
                Ok(shown == right && are_right && seen.end)
            }
            other => panic!("the reference does not know {other:?}"),
        }
    }

    fn open(&mut self, who: &Who, id: InodeId, mode: &Mode, created: bool, answer: &Answer) -> Checked<bool> {
        let row = self.inode(id)?;
        let writes = mode.write || mode.truncate;
        match row.kind {
            Kind::File => {}
            Kind::Directory if writes => return no(Errno::EISDIR),
            Kind::Directory => {}
            Kind::Symlink => return no(Errno::ELOOP),
            _ => return no(Errno::ENXIO),
        }
        if !created {
            who.need(row, if mode.read { 4 } else { 0 } + if writes { 2 } else { 0 })?;
        }
        let row = self.at(id);
        if mode.truncate {
            row.bytes = 0;
            if row.opens.is_empty() {
                row.place = row.place.map(|(_, generation)| (who.node, generation + 1));
            }
            if !who.root() {
                row.strip(who);
            }
            self.cut(id, 0, true);
            let of = self.rows[&id].chunk_of.filter(|_| !who.root());
            if let Some((file, _)) = of {
                self.at(file).strip(who);
            }
        }
        let row = self.at(id);
        if mode.write && row.place.is_none() && row.chunk_bytes == 0 {
            row.place = Some((who.node, 1));
        }
        let opens = row.opens.entry(who.node).or_default();
        if mode.write {
            opens.1 += 1
        } else {
            opens.0 += 1
        }
        Ok(matches!(answer, Answer::Grant(grant)
            if grant.created == created && self.shown(id, Some(&grant.attributes))))
    }

    fn open_chunk(&mut self, who: &Who, open: &OpenChunk, answer: &Answer) -> Checked<bool> {
        if open.make && !open.mode.write {
            return no(Errno::EINVAL);
        }
        let row = self.inode(open.file)?;
        if row.chunk_bytes == 0 {
            return no(Errno::EINVAL);
        }
        let (_, writers) = *row.opens.get(&who.node).ok_or(vec![Errno::EBADF])?;
        if open.mode.write && writers == 0 {
            return no(Errno::EBADF);
        }
        let found = row.chunks.get(&open.index).copied();
        if found.is_none() && !open.make {
            return no(Errno::ENOENT);
        }
        let Answer::Grant(grant) = answer else { return Ok(false) };
        let id = grant.attributes.id;
        if found.is_none() {
            if self.rows.contains_key(&id) || id.partition() != open.file.partition() {
                return Ok(false);
            }
            let mut row = Model::row(Kind::File, 0, (0, 0), InodeId(0));
            (row.place, row.chunk_of) = (Some((who.node, 1)), Some((open.file, open.index)));
            self.rows.insert(id, row);
            self.at(open.file).chunks.insert(open.index, id);
        }
        let opens = self.at(id).opens.entry(who.node).or_default();
        if open.mode.write {
            opens.1 += 1
        } else {
            opens.0 += 1
        }
        // One that is asked for again is there by then.
        let created = !grant.created || found.is_none();
        Ok(created && found.is_none_or(|found| found == id) && self.shown(id, Some(&grant.attributes)))
    }

    fn commit(&mut self, who: &Who, commit: &Commit, answer: &Answer) -> Checked<bool> {
        let row = self.inode(commit.id)?;
        if row.place != Some((who.node, commit.generation)) {
            return no(Errno::ESTALE);
        }
        let of = row.chunk_of;
        if of.is_some_and(|(file, _)| commit.bytes > self.rows[&file].chunk_bytes) {
            return no(Errno::EFBIG);
        }
        self.at(commit.id).bytes = commit.bytes;
        for id in [Some(commit.id), of.map(|(file, _)| file)].into_iter().flatten() {
            if !who.root() {
                self.at(id).strip(who);
            }
        }
        Ok(*answer == Answer::Done)
    }

    fn release(&mut self, who: &Who, release: &Release, answer: &Answer) -> Checked<bool> {
        let opens = self.rows.get(&release.id).and_then(|row| row.opens.get(&who.node));
        let (readers, writers) = *opens.ok_or(vec![Errno::EBADF])?;
        if readers < release.readers || writers < release.writers {
            return no(Errno::EBADF);
        }
        let left = (readers - release.readers, writers - release.writers);
        let row = self.at(release.id);
        if left == (0, 0) {
            row.opens.remove(&who.node)
        } else {
            row.opens.insert(who.node, left)
        };
        self.reap(release.id);
        Ok(*answer == Answer::Done)
    }

    fn set_attributes(&mut self, who: &Who, set: &SetAttributes, answer: &Answer) -> Checked<bool> {
        let before = self.inode(set.id)?.clone();
        let mut row = before.clone();
        let owns = who.owns(&before);
        let writes = before.opens.get(&who.node).is_some_and(|(_, writers)| *writers > 0);
        if let Some(uid) = set.uid {
            if !who.root() && (who.caller.uid != before.uid || uid != before.uid) {
                return no(Errno::EPERM);
            }
            row.uid = uid;
        }
        if let Some(gid) = set.gid {
            if !who.root() && !(owns && (gid == before.gid || who.in_group(gid))) {
                return no(Errno::EPERM);
            }
            row.gid = gid;
        }
        if (set.uid.is_some() || set.gid.is_some()) && !before.is_directory() {
            row.mode = Row { mode: before.mode, ..before.clone() }.stripped(who);
        }
        if let Some(bytes) = set.bytes {
            match before.kind {
                Kind::File => {}
                Kind::Directory => return no(Errno::EISDIR),
                _ => return no(Errno::EINVAL),
            }
            if !writes {
                who.need(&before, 2)?;
            }
            let chunk_bytes = before.chunk_of.map(|(file, _)| self.rows[&file].chunk_bytes);
            if chunk_bytes.is_some_and(|most| bytes > most) {
                return no(Errno::EFBIG);
            }
            row.bytes = bytes;
            if !who.root() {
                row.strip(who);
            }
        }
        if let Some(mode) = set.mode {
            let only_strips =
                mode != before.mode && before.mode & !mode & !0o6000 == 0 && mode & !before.mode == 0;
            if !(owns || only_strips && (writes || who.may(&before, 2))) {
                return no(Errno::EPERM);
            }
            row.mode = mode;
            if !who.root() && !who.in_group(row.gid) {
                row.mode &= !0o2000;
            }
        }
        let times = [set.accessed_ns, set.modified_ns];
        if times.iter().flatten().any(|ns| *ns != NOW_NS) && !owns {
            return no(Errno::EPERM);
        }
        if times.iter().flatten().count() > 0 && !owns && set.bytes.is_none() {
            who.need(&before, 2)?;
        }
        *self.at(set.id) = row;
        if let Some(bytes) = set.bytes {
            self.cut(set.id, bytes, true);
        }
        // A chunk whose length is set is written, by whoever sets it.
        if let Some((file, _)) = before.chunk_of
            && set.bytes.is_some_and(|bytes| bytes != before.bytes)
            && !who.root()
        {
            self.at(file).strip(who);
        }
        let is_gone = self.gone.contains(&set.id) && *answer == Answer::refused(Errno::EIO);
        Ok(is_gone || self.is_found(set.id, answer))
    }

    fn new_row(&self, who: &Who, directory: &Row, kind: Kind, mode: u32, parent: InodeId) -> Row {
        let mut row = Model::row(kind, mode, (who.caller.uid, who.caller.gid), parent);
        if directory.mode & 0o2000 != 0 {
            row.gid = directory.gid;
            if kind == Kind::Directory {
                row.mode |= 0o2000;
            } else if row.mode & 0o2010 == 0o2010 && !who.root() && !who.in_group(row.gid) {
                row.mode &= !0o2000;
            }
        }
        row
    }

    fn create(&mut self, who: &Who, create: &Create, answer: &Answer) -> Checked<bool> {
        let directory = self.directory(create.directory)?.clone();
        who.need(&directory, 1)?;
        if let Some(id) = self.find(create.directory, &create.name) {
            let Some(mode) = create.open.as_ref().filter(|_| !create.exclusive) else {
                return no(Errno::EEXIST);
            };
            let unopened = matches!(answer, Answer::Entry(entry) if entry.attributes.is_none());
            if id.partition() != create.directory.partition() && !self.splits || self.splits && unopened {
                return Ok(self.is_entry(id, answer));
            }
            if self.rows[&id].is_directory() {
                return no(Errno::EISDIR);
            }
            return self.open(who, id, mode, false, answer);
        }
        who.need(&directory, 2)?;
        let id = match answer {
            Answer::Entry(entry) => entry.id,
            Answer::Grant(grant) => grant.attributes.id,
            _ => return Ok(false),
        };
        let is_apart = id.partition() != create.directory.partition();
        if self.rows.contains_key(&id) || is_apart && !self.splits {
            return Ok(false);
        }
        let mut row = self.new_row(who, &directory, create.kind, create.mode, InodeId(0));
        (row.bytes, row.target) = (create.target.len() as u64, create.target.clone());
        if let Some(mib) = create.chunk_mib {
            row.chunk_bytes = u64::from(mib) << 20;
            row.xattrs.insert(CHUNKS_WANTED.to_vec(), mib.to_string().into_bytes());
        }
        self.rows.insert(id, row);
        self.at(create.directory).entries.insert(create.name.as_bytes().to_vec(), id);
        match &create.open {
            Some(mode) => self.open(who, id, &Mode { truncate: false, ..mode.clone() }, true, answer),
            None => Ok(self.is_entry(id, answer)),
        }
    }

    fn make_directory(&mut self, who: &Who, make: &MakeDirectory, answer: &Answer) -> Checked<bool> {
        let directory = self.directory(make.directory)?.clone();
        who.need(&directory, 1)?;
        if self.find(make.directory, &make.name).is_some() {
            return no(Errno::EEXIST);
        }
        who.need(&directory, 2)?;
        let Answer::Entry(entry) = answer else { return Ok(false) };
        let mut row = self.new_row(who, &directory, Kind::Directory, make.mode, make.directory);
        row.links = 2;
        if entry.attributes.is_none() || self.rows.insert(entry.id, row).is_some() {
            return Ok(false);
        }
        let parent = self.at(make.directory);
        parent.entries.insert(make.name.as_bytes().to_vec(), entry.id);
        parent.links += 1;
        Ok(self.is_entry(entry.id, answer))
    }

    /// Whether a sticky directory keeps the caller from taking away the inode's entry.
    fn stuck(&self, who: &Who, directory: &Row, id: InodeId) -> bool {
        directory.mode & 0o1000 != 0 && !who.owns(directory) && !who.owns(&self.rows[&id])
    }

    fn remove(&mut self, who: &Who, at: &At, directory: bool, answer: &Answer) -> Checked<bool> {
        let parent = self.directory(at.directory)?.clone();
        who.need(&parent, 1)?;
        let id = self.find(at.directory, &at.name).ok_or(vec![Errno::ENOENT])?;
        who.need(&parent, 2)?;
        match (self.rows[&id].is_directory(), directory) {
            (true, false) => return no(Errno::EISDIR),
            (false, true) => return no(Errno::ENOTDIR),
            _ => {}
        }
        self.take_away(who, &parent, id)?;
        self.at(at.directory).entries.remove(at.name.as_bytes());
        self.recount(at.directory);
        Ok(*answer == Answer::Done)
    }

    fn take_away(&mut self, who: &Who, parent: &Row, id: InodeId) -> Checked<()> {
        if self.stuck(who, parent, id) {
            return no(Errno::EPERM);
        }
        if !self.rows[&id].entries.is_empty() {
            return no(Errno::ENOTEMPTY);
        }
        let row = self.at(id);
        row.links = if row.is_directory() { 0 } else { row.links - 1 };
        self.reap(id);
        Ok(())
    }

    /// A directory has a link for itself, one from its parent, and one for each child.
    fn recount(&mut self, directory: InodeId) {
        let entries = self.rows[&directory].entries.values();
        let children = entries.filter(|id| self.rows[id].is_directory()).count();
        self.at(directory).links = 2 + children as u32;
    }

    fn link(&mut self, who: &Who, link: &Link, answer: &Answer) -> Checked<bool> {
        let directory = self.directory(link.directory)?.clone();
        who.need(&directory, 1)?;
        if self.find(link.directory, &link.name).is_some() {
            return no(Errno::EEXIST);
        }
        who.need(&directory, 2)?;
        let row = self.rows.get(&link.id).ok_or(vec![Errno::ENOENT])?;
        if row.is_directory() {
            return no(Errno::EPERM);
        }
        if row.links == 0 || row.chunk_of.is_some() {
            return no(Errno::ENOENT);
        }
        self.at(link.id).links += 1;
        self.at(link.directory).entries.insert(link.name.as_bytes().to_vec(), link.id);
        Ok(self.is_entry(link.id, answer))
    }

    fn set_parent(&mut self, id: InodeId, parent: InodeId) {
        if self.rows[&id].is_directory() {
            self.at(id).parent = parent;
        }
    }

    fn is_below(&self, mut directory: InodeId, above: InodeId) -> bool {
        while directory != above {
            if directory == InodeId::ROOT {
                return false;
            }
            directory = self.rows[&directory].parent;
        }
        true
    }

    /// What is wrong with one of the two names of a rename, and where Linux meets it: in the walk
    /// to the directory, at the name, or when it is to be changed.
    fn name_fails(
        &self,
        who: &Who,
        (directory, name): (InodeId, &crate::Name),
        existing: bool,
        missing: bool,
    ) -> Option<(u8, Errno)> {
        let row = match self.directory(directory) {
            Ok(row) => row,
            Err(errnos) => return Some((0, errnos[0])),
        };
        match self.find(directory, name) {
            _ if !who.may(row, 1) => Some((0, Errno::EACCES)),
            None if existing => Some((1, Errno::ENOENT)),
            Some(_) if missing => Some((1, Errno::EEXIST)),
            _ => (!who.may(row, 2)).then_some((2, Errno::EACCES)),
        }
    }

    fn rename(&mut self, who: &Who, rename: &Rename, answer: &Answer) -> Checked<bool> {
        let (from, to) = ((rename.directory, &rename.name), (rename.new_directory, &rename.new_name));
        if rename.exchange && rename.no_replace {
            return no(Errno::EINVAL);
        }
        if from == to {
            who.need(self.directory(from.0)?, 1)?;
            self.find(from.0, from.1).ok_or(vec![Errno::ENOENT])?;
            return if rename.no_replace { no(Errno::EEXIST) } else { Ok(*answer == Answer::Done) };
        }
        let wrong = [
            self.name_fails(who, from, true, false),
            self.name_fails(who, to, rename.exchange, rename.no_replace),
        ];
        // Of two that are met at the same point, the source's comes first. Beside other operations,
        // both names are never looked at in one moment: each of them is right then.
        if self.loose && wrong.iter().any(Option::is_some) {
            return Err(wrong.into_iter().flatten().map(|(_, errno)| errno).collect());
        }
        if let Some((_, errno)) = wrong.into_iter().flatten().min_by_key(|(met, _)| *met) {
            return no(errno);
        }
        let source = self.find(from.0, from.1).expect("checked");
        let dest = self.find(to.0, to.1);
        if dest == Some(source) {
            return Ok(*answer == Answer::Done);
        }
        let is_directory = |id: InodeId| self.rows[&id].is_directory();
        let replaced = dest.filter(|_| !rename.exchange);
        let kinds = match replaced.map(|dest| (is_directory(source), is_directory(dest))) {
            Some((true, false)) => Some(Errno::ENOTDIR),
            Some((false, true)) => Some(Errno::EISDIR),
            _ => None,
        };
        let across = from.0 != to.0;
        let swapped = dest.filter(|_| rename.exchange);
        let circle = is_directory(source) && self.is_below(to.0, source)
            || swapped.is_some_and(|id| is_directory(id) && self.is_below(from.0, id));
        if across && circle {
            return no(Errno::EINVAL);
        }
        let above = replaced.filter(|_| kinds == Some(Errno::EISDIR));
        if across && above.is_some_and(|dest| self.is_below(from.0, dest)) {
            return no(Errno::ENOTEMPTY);
        }
        let refused = replaced.filter(|_| kinds.is_some());
        for (id, home) in [(Some(source), from.0), (swapped.or(refused), to.0)] {
            let Some(id) = id else { continue };
            if self.stuck(who, &self.rows[&home], id) {
                return no(Errno::EPERM);
            }
            if across && is_directory(id) && kinds.is_none() {
                who.need(&self.rows[&id], 2)?;
            }
        }
        if let Some(errno) = kinds {
            return no(errno);
        }
        if let Some(dest) = dest.filter(|_| !rename.exchange) {
            let parent = self.rows[&to.0].clone();
            self.take_away(who, &parent, dest)?;
        }
        self.at(to.0).entries.insert(to.1.as_bytes().to_vec(), source);
        self.set_parent(source, to.0);
        match swapped {
            Some(dest) => {
                self.at(from.0).entries.insert(from.1.as_bytes().to_vec(), dest);
                self.set_parent(dest, from.0);
            }
            None => {
                self.at(from.0).entries.remove(from.1.as_bytes());
            }
        }
        self.recount(from.0);
        self.recount(to.0);
        Ok(*answer == Answer::Done)
    }
}

impl Row {
    fn stripped(mut self, who: &Who) -> u32 {
        self.strip(who);
        self.mode
    }
}
