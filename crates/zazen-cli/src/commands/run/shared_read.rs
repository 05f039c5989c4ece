//! `zazen run --shared-read`: what the programs of a run look up, open for reading and read below
//! some folders reaches the far side once, and all of them share it (ZOID, §5: what I/O nodes are
//! for).
//!
//! Invariants: each identity has a tree of its own, so the far kernel has decided for that identity
//! what it may see. Nothing below these folders is changed through here. What cannot be shared is
//! opened at the far side and goes there, with each call, as without sharing.

mod kept;
mod request;
mod sessions;
mod tree;

use request::{Asked, FarOpened, function as f};
use sessions::{Entries, FIRST, Held, NOBODY, NamedPath, Session, Sessions, translated};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tree::{BLOCK_BYTES, File, Found, STAT_MASK, Tree};
use zazen_call::{Caller, ClusterKey, Connection, Identity, Reply};
use zazen_core::{Credentials, Error, ErrorKind, Result};
use zazen_forward_api::paths::below;
use zazen_forward_api::structures::{HELLO_EXEC, HELLO_FORK, HELLO_NEW, ROOT};
use zazen_wire::Message;
use zazen_wire::plugins::{PluginOpened, plugins_fn, status};
use zazen_wire::service;

/// How long connecting to the daemon of another node may take.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Flags of an open for reading that can be shared.
const SHAREABLE: i32 = OF_FILE | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY | O_LARGEFILE;
/// Those that another file may be opened by.
const OF_FILE: i32 = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
/// What F_GETFL says of each file of a 64-bit program. (libc's constant is 0.)
const O_LARGEFILE: i32 = 0o100_000;
/// How much of a large file is looked at for one read, at most: as one call carries.
const READ_BYTES_MAX: u64 = 8 << 20;

/// Makes a call at the far side, as the caller: its payload, its bulk bytes, room for the answer's.
pub(super) type Pass<'a> = &'a dyn Fn(&[u8], &[u8], usize) -> Result<Reply>;

type Guard<'a> = MutexGuard<'a, Session>;

pub(super) struct SharedRead {
    /// Folders of the far side.
    folders: Vec<Vec<u8>>,
    node: String,
    key: ClusterKey,
    sessions: Mutex<Sessions>,
    trees: Mutex<Vec<(Credentials, Arc<Tree>)>>,
}

impl SharedRead {
    pub(super) fn new(folders: Vec<Vec<u8>>, node: &str, key: &ClusterKey) -> SharedRead {
        SharedRead {
            folders,
            node: node.to_owned(),
            key: key.clone(),
            sessions: Mutex::default(),
            trees: Mutex::default(),
        }
    }

    /// A caller has opened the plug-in by this message: a tree's own connections do it likewise.
    pub(super) fn opened(&self, caller: &Caller, message: &[u8]) {
        let mut trees = self.trees.lock().unwrap_or_else(PoisonError::into_inner);
        if trees.iter().any(|(who, _)| *who == caller.credentials) {
            return;
        }
        let mut identity = Identity::of_this_process();
        identity.credentials = caller.credentials.clone();
        let (node, key, message) = (self.node.clone(), self.key.clone(), message.to_vec());
        let connect = move || {
            let mut connection = Connection::tcp(&node, &key, &identity, CONNECT_WITHIN)?;
            let opened = connection.call(service::PLUGINS, plugins_fn::OPEN, &message, &[])?;
            let opened = PluginOpened::decode(&opened.payload)?;
            if opened.status.cast_signed() != status::OK {
                return Err(Error::new(ErrorKind::Unsupported, "the posix plug-in is another one by now"));
            }
            tree::greet(&mut connection)?;
            Ok(connection)
        };
        trees.push((caller.credentials.clone(), Arc::new(Tree::new(connect))));
    }

    /// The caller is gone.
    pub(super) fn detach(&self, caller: &Caller) {
        self.sessions().leave(caller.connection);
    }

    /// Answers a call of the plug-in's.
    pub(super) fn answer(
        &self,
        caller: &Caller,
        payload: Vec<u8>,
        bulk: &[u8],
        room: usize,
        pass: Pass<'_>,
    ) -> Result<Reply> {
        let mut asked = match Asked::of(payload) {
            Ok(asked) => asked,
            Err(payload) => return pass(&payload, bulk, room),
        };
        if asked.function() == f::HELLO {
            return self.hello(caller, asked, bulk, room, pass);
        }
        let session = self.sessions().of(caller.connection);
        let tree = {
            let trees = self.trees.lock().unwrap_or_else(PoisonError::into_inner);
            trees.iter().find(|(who, _)| *who == caller.credentials).map(|(_, tree)| tree.clone())
        };
        let (Some(session), Some(tree)) = (session, tree) else { return pass(&asked.payload, bulk, room) };
        let turn = Turn { shared: self, tree: &tree, session: &session, bulk, room, pass };
        match asked.function() {
            f::FORK => turn.fork(asked),
            f::EXEC => {
                let reply = pass(&asked.payload, bulk, room)?;
                if result_of(&asked, &reply).is_some_and(|result| result.is_ok()) {
                    self.sessions().announce_exec(caller.connection, asked.word(0) == Some(1));
                }
                Ok(reply)
            }
            f::CLOSE => turn.close(&mut asked),
            f::OPEN | f::OPEN_WAIT => turn.open(asked),
            function if request::is_look(function) => turn.look(asked),
            function if request::is_change(function) => turn.change(asked),
            _ => turn.by_number(asked),
        }
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_shared(&self, path: &[u8]) -> bool {
        self.folders.iter().any(|folder| below(path, folder).is_some())
    }

    /// A connection says which session it belongs to.
    fn hello(
        &self,
        caller: &Caller,
        mut asked: Asked,
        bulk: &[u8],
        room: usize,
        pass: Pass<'_>,
    ) -> Result<Reply> {
        let (Some(key), Some(token), Some(kind), Some(keep)) =
            (asked.long(24), asked.long(32), asked.word(40), asked.words(0))
        else {
            return pass(&asked.payload, bulk, room);
        };
        let keeps_all = asked.word(52) != Some(0);
        let mut begun = None;
        match kind {
            HELLO_NEW => {
                begun = Some(Session::new(Entries::new(), u32::try_from(token).unwrap_or(u32::MAX)));
                // A number that the far side did not have: those of ours are beyond its table.
                if token >= u64::from(FIRST) {
                    asked.put_long(32, u64::from(self.sessions().highest) + 1);
                }
            }
            HELLO_FORK => {
                let mut session = Session::new(self.sessions().take_fork(token).unwrap_or_default(), 0);
                asked.put_words(0, &kept(&session.entries, &keep));
                if !keeps_all {
                    session.retain(&keep);
                }
                begun = Some(session);
            }
            HELLO_EXEC => {
                let session = self.sessions().with_key(key);
                if let Some(session) = session {
                    let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
                    asked.put_words(0, &kept(&session.entries, &keep));
                    session.retain(&keep);
                }
            }
            _ => {}
        }
        let reply = pass(&asked.payload, bulk, room)?;
        if result_of(&asked, &reply).is_some_and(|result| result.is_ok()) {
            let mut sessions = self.sessions();
            sessions.join(caller.connection, key, begun);
            if kind == HELLO_EXEC {
                sessions.announce_exec(caller.connection, false);
            }
        }
        Ok(reply)
    }
}

/// The far side's numbers of what a program keeps.
fn kept(entries: &Entries, keep: &[u32]) -> Vec<u32> {
    keep.iter().map(|id| translated(entries, *id)).collect()
}

/// What an answer says.
fn result_of(asked: &Asked, reply: &Reply) -> Option<std::result::Result<i64, i32>> {
    request::outcome(asked.function(), request::answered(&reply.payload)?)
}

fn payload(payload: Vec<u8>) -> Result<Reply> {
    Ok(Reply { payload, ..Reply::default() })
}

/// One call of one caller.
struct Turn<'a> {
    shared: &'a SharedRead,
    tree: &'a Tree,
    session: &'a Mutex<Session>,
    bulk: &'a [u8],
    room: usize,
    pass: Pass<'a>,
}

impl Turn<'_> {
    fn session(&self) -> Guard<'_> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a path of the call leads, and the description that it is relative to; `None` where
    /// that is not known.
    fn place(&self, asked: &Asked, (dir, path): (usize, usize)) -> Option<NamedPath> {
        let (dir, text) = (asked.word(dir)?, asked.text(path)?);
        if text.first() == Some(&b'/') {
            return Some(NamedPath::new(b"", text));
        }
        if dir.cast_signed() == ROOT {
            return None;
        }
        Some(NamedPath::new(&self.session().entries.get(&dir)?.path, text))
    }

    fn failed(&self, asked: &Asked, errno: i32) -> Result<Reply> {
        payload(request::failed(asked.function(), errno))
    }

    /// Makes the call at the far side, where everything that it names is open then.
    fn far(&self, mut asked: Asked) -> Result<Reply> {
        if let Err(errno) = self.translate(&mut asked)? {
            return self.failed(&asked, errno);
        }
        (self.pass)(&asked.payload, self.bulk, self.room)
    }

    /// Puts the far side's numbers in place of ours.
    fn translate(&self, asked: &mut Asked) -> Result<std::result::Result<(), i32>> {
        let function = asked.function();
        let places = request::paths(function).iter().map(|(dir, _)| *dir);
        for at in request::ids(function).iter().copied().chain(places) {
            let Some(id) = asked.word(at) else { continue };
            let mut session = self.session();
            let Some(entry) = session.entries.get_mut(&id) else { continue };
            match self.open_there(entry)? {
                Ok(real) => asked.put_word(at, real),
                Err(errno) => return Ok(Err(errno)),
            }
        }
        Ok(Ok(()))
    }

    /// The far side's number of a description, which is opened there if need be.
    fn open_there(&self, entry: &mut Held) -> Result<std::result::Result<u32, i32>> {
        let (None, Some(file)) = (entry.real, entry.file.clone()) else {
            return Ok(Ok(entry.real.unwrap_or(NOBODY)));
        };
        let flags = entry.flags & !libc::O_CLOEXEC;
        let open = Asked::new(f::OPEN, &request::with_path(&entry.path, &[flags as u32, 0, 0]), None);
        let reply = (self.pass)(&open.payload, &[], 0)?;
        let opened = match result_of(&open, &reply) {
            Some(Ok(_)) => request::answered(&reply.payload).and_then(|found| FarOpened::of(found, 8)),
            Some(Err(libc::ENOENT)) => return Ok(Err(libc::ESTALE)),
            Some(Err(errno)) => return Ok(Err(errno)),
            None => None,
        };
        let Some(opened) = opened else { return Ok(Err(libc::EIO)) };
        self.note_number(opened.id);
        let look = Asked::new(f::STAT, &tree::stat_of(opened.id), None);
        let now = tree::stat_in(&(self.pass)(&look.payload, &[], 0)?.payload)?;
        let same = now.is_ok_and(|now| now.version() == file.stat.version());
        let position = if same { self.position_there(entry, &file)? } else { Err(libc::ESTALE) };
        let moved = match position {
            Ok(0) => Ok(()),
            Ok(position) => {
                let mut message = vec![0; 24];
                message[..4].copy_from_slice(&opened.id.to_le_bytes());
                message[8..16].copy_from_slice(&position.to_le_bytes());
                let seek = Asked::new(f::SEEK, &message, None);
                let reply = (self.pass)(&seek.payload, &[], 0)?;
                result_of(&seek, &reply).unwrap_or(Err(libc::EIO)).map(|_| ())
            }
            Err(errno) => Err(errno),
        };
        if let Err(errno) = moved {
            let mut message = opened.id.to_le_bytes().to_vec();
            message.extend_from_slice(&1_u32.to_le_bytes());
            (self.pass)(&Asked::new(f::CLOSE, &message, None).payload, &[], 0)?;
            return Ok(Err(errno));
        }
        entry.real = Some(opened.id);
        Ok(Ok(opened.id))
    }

    /// The offset of a description as its kernel has it: of a listing, what the entry before it
    /// says.
    fn position_there(&self, entry: &Held, file: &File) -> Result<std::result::Result<i64, i32>> {
        if !file.is_listed() || entry.position == 0 {
            return Ok(Ok(entry.position as i64));
        }
        Ok(self.tree.entries(file)?.map(|entries| {
            let before = walk(&entries).take_while(|(at, ..)| *at < entry.position as usize).last();
            before.map_or(0, |(.., next)| next)
        }))
    }

    /// The far side's numbers are below this one so far.
    fn note_number(&self, id: u32) {
        let mut sessions = self.shared.sessions();
        sessions.highest = sessions.highest.max(id);
    }

    /// A child takes over what is open: both must move the same offsets from now on.
    fn fork(&self, asked: Asked) -> Result<Reply> {
        let entries = {
            let mut session = self.session();
            for entry in session.entries.values_mut() {
                if self.open_there(entry)?.is_err() {
                    // The file is another one by now: neither has it any more.
                    entry.real = Some(NOBODY);
                }
            }
            session.entries.clone()
        };
        let reply = (self.pass)(&asked.payload, self.bulk, self.room)?;
        if let Some(message) = request::answered(&reply.payload)
            && let Some(Ok(_)) = request::outcome(f::FORK, message)
            && let Some(token) = message.get(8..16).and_then(|token| token.try_into().ok())
        {
            self.shared.sessions().fork(u64::from_le_bytes(token), entries, Instant::now());
        }
        Ok(reply)
    }

    fn close(&self, asked: &mut Asked) -> Result<Reply> {
        let (Some(id), last) = (asked.word(0), asked.word(4) != Some(0)) else {
            return (self.pass)(&asked.payload, self.bulk, self.room);
        };
        let real = {
            let mut session = self.session();
            match session.entries.get(&id).map(|entry| entry.real) {
                None => Some(id),
                Some(real) => {
                    if last {
                        session.remove(id);
                    }
                    real
                }
            }
        };
        match real {
            // There are no locks of it either.
            None => payload(request::done(f::CLOSE, 0)),
            Some(NOBODY) => self.failed(asked, libc::EBADF),
            Some(real) => {
                asked.put_word(0, real);
                (self.pass)(&asked.payload, self.bulk, self.room)
            }
        }
    }

    fn open(&self, mut asked: Asked) -> Result<Reply> {
        let place = request::paths(f::OPEN).first().and_then(|place| self.place(&asked, *place));
        let Some(flags) = asked.word(24).map(u32::cast_signed) else { return self.far(asked) };
        let place = match place {
            Some(place) if self.shared.is_shared(&place.path) => place,
            other => return self.open_far(asked, other, flags),
        };
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY
            || flags & libc::O_TRUNC != 0
            || flags & libc::O_TMPFILE == libc::O_TMPFILE;
        if flags & libc::O_PATH == 0 && (writes || flags & libc::O_CREAT != 0) {
            if let Some(errno) = self.refusal(&place, flags, writes)? {
                return self.failed(&asked, errno);
            }
            asked.put_word(24, (flags & !(libc::O_CREAT | libc::O_EXCL)).cast_unsigned());
        }
        let flags = flags & !(libc::O_CREAT | libc::O_EXCL);
        if place.climbs || writes || flags & !SHAREABLE != 0 {
            return self.open_far(asked, Some(place), flags);
        }
        let mut of_file = flags & OF_FILE;
        if place.slash {
            of_file = (of_file | libc::O_DIRECTORY) & !libc::O_NOFOLLOW;
        }
        let path: tree::Path = place.path.as_slice().into();
        match self.tree.open(&path, of_file)? {
            Found::Errno(errno) => self.failed(&asked, errno),
            Found::Unshared => self.open_far(asked, Some(place), flags),
            Found::File(file) => {
                let mut opened = file.opened;
                let flags = flags & !OF_FILE | of_file;
                let entry = Held { path, flags, real: None, file: Some(file), position: 0 };
                let entered = self.session().enter(entry);
                match entered {
                    Some(id) => {
                        opened.id = id;
                        payload(opened.answer(asked.function()))
                    }
                    None => self.failed(&asked, libc::EMFILE),
                }
            }
        }
    }

    /// Why a file is not opened for writing or created: as on a file system that is mounted
    /// read-only. `None`: it is opened after all.
    fn refusal(&self, place: &NamedPath, flags: i32, writes: bool) -> Result<Option<i32>> {
        if place.climbs {
            return Ok(Some(libc::EROFS));
        }
        let nofollow = flags & (libc::O_NOFOLLOW | libc::O_EXCL) != 0;
        Ok(match self.tree.stat(&place.asked(), nofollow)? {
            Ok(_) if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL => {
                Some(libc::EEXIST)
            }
            Ok(stat) => match stat.mode() & libc::S_IFMT {
                _ if !writes => None,
                _ if flags & libc::O_TMPFILE == libc::O_TMPFILE => Some(libc::EROFS),
                libc::S_IFDIR => Some(libc::EISDIR),
                libc::S_IFREG | libc::S_IFLNK => Some(libc::EROFS),
                // Pipes, sockets and devices are written to on such file systems, too.
                _ => None,
            },
            Err(libc::ENOENT) if flags & libc::O_CREAT != 0 => Some(self.no_new_name(place)?),
            Err(errno) => Some(errno),
        })
    }

    /// Why a name that is not there is not made.
    fn no_new_name(&self, place: &NamedPath) -> Result<i32> {
        Ok(match self.tree.stat(place.parent(), false)? {
            Ok(_) => libc::EROFS,
            Err(errno) => errno,
        })
    }

    fn open_far(&self, asked: Asked, place: Option<NamedPath>, flags: i32) -> Result<Reply> {
        let reply = self.far(asked)?;
        let message = request::answered(&reply.payload);
        if let Some(message) = message
            && let Some(Ok(_)) = request::outcome(f::OPEN, message)
            && let Some(FarOpened { id, .. }) = FarOpened::of(message, 8)
        {
            self.note_number(id);
            let mut session = self.session();
            match place.filter(|place| !place.climbs) {
                Some(place) => {
                    let path = place.path.as_slice().into();
                    let entry = Held { path, flags, real: Some(id), file: None, position: 0 };
                    session.entries.insert(id, entry);
                }
                None => {
                    session.entries.remove(&id);
                }
            }
        }
        Ok(reply)
    }

    /// Looks at a name.
    fn look(&self, mut asked: Asked) -> Result<Reply> {
        let function = asked.function();
        let place = request::paths(function).first().and_then(|place| self.place(&asked, *place));
        let Some(place) = place.filter(|place| self.shared.is_shared(&place.path) && !place.climbs) else {
            return self.far(asked);
        };
        let flags_at = request::flags_at(function);
        let flags = flags_at.and_then(|at| asked.word(at)).unwrap_or(0).cast_signed();
        if place.itself {
            if flags_at.is_some() && flags & libc::AT_EMPTY_PATH == 0 && function == f::STAT {
                return self.failed(&asked, libc::ENOENT);
            }
            let entry = asked.word(0).and_then(|id| self.session().entries.get(&id).cloned());
            match entry.and_then(|entry| entry.file) {
                // What has a description is what was opened, whatever its name stands for by now.
                Some(file) if function == f::STAT => return payload(file.stat.answer()),
                Some(_) => {}
                None => return self.far(asked),
            }
            if let Some(at) = flags_at {
                asked.put_word(at, (flags & !libc::AT_EMPTY_PATH).cast_unsigned());
            }
        }
        if function == f::STAT && asked.word(28).is_some_and(|mask| mask & !STAT_MASK == 0) {
            asked.put_word(28, STAT_MASK);
            let only_link = flags & !(libc::AT_NO_AUTOMOUNT | libc::AT_STATX_SYNC_TYPE | libc::AT_EMPTY_PATH);
            asked.put_word(24, only_link.cast_unsigned());
        }
        let name = (function == f::GETXATTR).then_some(32);
        let Some(about) = asked.about(&place.asked(), name).filter(|_| place.path.len() < PATH_MAX) else {
            return self.far(asked);
        };
        let writes = function == f::ACCESS && asked.word(24).is_some_and(|mode| mode & 2 != 0);
        let answer = self.tree.look(&about)?;
        let found = request::answered(&answer).and_then(|message| request::outcome(function, message));
        if writes && found == Some(Ok(0)) {
            return self.failed(&asked, libc::EROFS);
        }
        payload(answer.to_vec())
    }

    /// Changes a name, or what it stands for.
    fn change(&self, asked: Asked) -> Result<Reply> {
        let function = asked.function();
        let places: Vec<Option<NamedPath>> =
            request::paths(function).iter().map(|place| self.place(&asked, *place)).collect();
        let is_shared = |place: &Option<NamedPath>| {
            place.as_ref().is_some_and(|place| self.shared.is_shared(&place.path))
        };
        let count = places.iter().filter(|place| is_shared(place)).count();
        if count == 0 {
            return self.far(asked);
        }
        if count < places.len() {
            // Between two file systems.
            return self.failed(&asked, libc::EXDEV);
        }
        let Some(Some(place)) = places.last() else { return self.failed(&asked, libc::EROFS) };
        let errno = if place.itself {
            if function == f::TRUNCATE { libc::EINVAL } else { libc::EROFS }
        } else if place.climbs || matches!(function, f::UNLINK | f::RENAME) {
            libc::EROFS
        } else if matches!(function, f::MKDIR | f::MKNOD | f::SYMLINK | f::LINK) {
            match self.tree.stat(&place.path, true)? {
                Ok(_) => libc::EEXIST,
                Err(libc::ENOENT) => self.no_new_name(place)?,
                Err(errno) => errno,
            }
        } else {
            self.tree.stat(&place.asked(), true)?.err().unwrap_or(libc::EROFS)
        };
        self.failed(&asked, errno)
    }

    /// A call on a description.
    fn by_number(&self, asked: Asked) -> Result<Reply> {
        let function = asked.function();
        let Some(id) = asked.word(0).filter(|_| !request::ids(function).is_empty()) else {
            return self.far_and_note(asked);
        };
        let mut session = self.session();
        let file = match session.entries.get_mut(&id) {
            Some(Held { real: None, file: Some(file), .. }) => file.clone(),
            _ => {
                drop(session);
                return self.far_and_note(asked);
            }
        };
        match function {
            f::READ | f::READ_WAIT if file.is_regular() => {
                let own = function == f::READ_WAIT || asked.long(8) == Some(u64::MAX);
                let flags = if function == f::READ { asked.word(16) } else { Some(0) };
                if flags != Some(0) {
                    drop(session);
                    return self.far(asked);
                }
                let begin = match session.entries.get(&id) {
                    Some(entry) if own => entry.position,
                    _ => asked.long(8).unwrap_or(0),
                };
                let bytes =
                    (self.room as u64).min(READ_BYTES_MAX).min(file.stat.size().saturating_sub(begin));
                if own && let Some(entry) = session.entries.get_mut(&id) {
                    entry.position = begin + bytes;
                }
                drop(session);
                self.read(&asked, &file, begin, bytes)
            }
            f::ENTRIES if file.is_listed() => {
                let entries = match self.tree.entries(&file)? {
                    Ok(entries) => entries,
                    Err(errno) => return self.failed(&asked, errno),
                };
                let Some(entry) = session.entries.get_mut(&id) else {
                    return self.failed(&asked, libc::EBADF);
                };
                let begin = (entry.position as usize).min(entries.len());
                let end = walk(&entries[begin..]).map(|(_, end, _)| begin + end);
                let end = end.take_while(|end| end - begin <= self.room).last().unwrap_or(begin);
                if end == begin && begin < entries.len() {
                    return self.failed(&asked, libc::EINVAL);
                }
                entry.position = end as u64;
                let bulk = entries[begin..end].to_vec();
                Ok(Reply { payload: request::gave(function, bulk.len()), bulk, ..Reply::default() })
            }
            f::SEEK if file.is_regular() || file.is_listed() => {
                let offset = asked.long(8).unwrap_or(0).cast_signed();
                let whence = asked.word(16).unwrap_or(0).cast_signed();
                let Some(entry) = session.entries.get_mut(&id) else {
                    return self.failed(&asked, libc::EBADF);
                };
                let base = match whence {
                    libc::SEEK_SET => Some(0),
                    libc::SEEK_CUR if file.is_regular() => Some(entry.position.cast_signed()),
                    libc::SEEK_END if file.is_regular() => Some(file.stat.size().cast_signed()),
                    _ => None,
                };
                let there = match base {
                    Some(base) if file.is_regular() => base.checked_add(offset),
                    Some(_) if offset == 0 => Some(0),
                    _ => {
                        drop(session);
                        return self.far(asked);
                    }
                };
                match there.filter(|there| *there >= 0) {
                    Some(there) => {
                        entry.position = there.cast_unsigned();
                        payload(request::done(function, there))
                    }
                    None => self.failed(&asked, libc::EINVAL),
                }
            }
            f::FCNTL if asked.word(4) == Some(libc::F_GETFL.cast_unsigned()) => {
                let flags = match session.entries.get(&id) {
                    Some(entry) if entry.flags & libc::O_PATH != 0 => entry.flags & OF_FILE,
                    Some(entry) => entry.flags & (OF_FILE | libc::O_NONBLOCK) | O_LARGEFILE,
                    None => return self.failed(&asked, libc::EBADF),
                };
                payload(request::done(function, i64::from(flags)))
            }
            f::WRITE | f::WRITE_WAIT | f::ALLOCATE => self.failed(&asked, libc::EBADF),
            f::SYNC | f::ADVISE if file.is_regular() || file.is_listed() => {
                payload(request::done(function, 0))
            }
            _ => {
                drop(session);
                self.far(asked)
            }
        }
    }

    /// Bytes of a shared file: `bytes` of them are there.
    fn read(&self, asked: &Asked, file: &File, begin: u64, bytes: u64) -> Result<Reply> {
        let mut data = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
        while (data.len() as u64) < bytes {
            let at = begin + data.len() as u64;
            let block = match self.tree.block(file, at / BLOCK_BYTES)? {
                Ok(block) => block,
                Err(errno) => return self.failed(asked, errno),
            };
            let first = (at % BLOCK_BYTES) as usize;
            let last = block.len().min(first + (bytes - data.len() as u64) as usize);
            if first >= last {
                return self.failed(asked, libc::ESTALE);
            }
            data.extend_from_slice(&block[first..last]);
        }
        Ok(Reply { payload: request::gave(asked.function(), data.len()), bulk: data, ..Reply::default() })
    }

    /// The same as [`Turn::far`]; a socket has a number afterwards.
    fn far_and_note(&self, asked: Asked) -> Result<Reply> {
        let opened_at = match asked.function() {
            f::SOCKET => 8,
            // Behind the address.
            f::ACCEPT => 8 + 136,
            _ => return self.far(asked),
        };
        let reply = self.far(asked)?;
        if let Some(opened) =
            request::answered(&reply.payload).and_then(|found| FarOpened::of(found, opened_at))
        {
            self.note_number(opened.id);
            self.session().entries.remove(&opened.id);
        }
        Ok(reply)
    }
}

/// The longest path of a call, with its NUL.
const PATH_MAX: usize = 4095;

/// Linux's directory entries: where each begins and ends, and the offset behind it.
fn walk(entries: &[u8]) -> impl Iterator<Item = (usize, usize, i64)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let head: [u8; 18] = entries.get(at..at + 18)?.try_into().ok()?;
        let next = i64::from_le_bytes(head[8..16].try_into().ok()?);
        let bytes = usize::from(u16::from_le_bytes([head[16], head[17]]));
        let begin = at;
        at += bytes.max(18);
        (at <= entries.len()).then_some((begin, at, next))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_walked_as_far_as_they_are_whole() {
        let mut entries = Vec::new();
        for (next, bytes) in [(7_i64, 24_u16), (9, 32)] {
            let mut entry = vec![0; usize::from(bytes)];
            entry[8..16].copy_from_slice(&next.to_le_bytes());
            entry[16..18].copy_from_slice(&bytes.to_le_bytes());
            entries.extend(entry);
        }
        assert_eq!(walk(&entries).collect::<Vec<_>>(), [(0, 24, 7), (24, 56, 9)]);
        assert_eq!(walk(&entries[..40]).count(), 1);
        assert_eq!(walk(&[]).count(), 0);
    }
}
