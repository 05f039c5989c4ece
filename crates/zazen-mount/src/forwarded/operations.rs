//! The operations of the tree: what the kernel asks, as calls of the plug-in.

use super::far::text;
use super::{
    COOKIES_FROM, ForwardedTree, Listing, XATTR_BYTES_MAX, access_of, held, kind_of, position, record,
};
use crate::tree::{
    Blocking, Changes, Credentials, Errno, Handle, How, InodeStat, Kind, Listed, Lock, Name, Node, Opened,
    Owner, Range, Result, Space, Tree,
};
use std::ffi::{CString, c_int};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zazen_forward_api::structures::{self, StatFs};
use zazen_posix_client::{Failure, call};

// A change whose answer was lost is not made again: the first one may still be under way, and come
// after a later change.
impl Tree for ForwardedTree {
    fn fresh_for(&self) -> Duration {
        self.fresh_for
    }

    fn drops_set_id(&self) -> bool {
        true
    }

    fn lookup(&self, _who: &Credentials, parent: Node, name: &Name) -> Result<InodeStat> {
        let stat = self.ask(true, || {
            let directory = self.directory(parent)?;
            self.far.stat(directory.dir()?, &text(name.as_bytes())?)
        });
        match stat {
            Ok(stat) => Ok(self.enter(parent, name, &stat)),
            Err(errno) => {
                if errno == Errno::ENOENT {
                    held(&self.nodes).remove(parent, name);
                }
                Err(errno)
            }
        }
    }

    fn forget(&self, node: Node, count: u64) {
        let dropped = held(&self.nodes).forget(node, count);
        drop(dropped);
    }

    fn stat(&self, _who: &Credentials, node: Node, handle: Option<Handle>) -> Result<InodeStat> {
        if let Some(handle) = handle {
            let stat = self.with(handle, true, |id| self.far.stat(id.cast_signed(), c""))?;
            return Ok(Self::shown(node, &stat));
        }
        self.ask(true, || self.look(node)).map(|(_, stat)| Self::shown(node, &stat))
    }

    fn set(
        &self,
        who: &Credentials,
        node: Node,
        handle: Option<Handle>,
        changes: &Changes,
    ) -> Result<InodeStat> {
        let file = handle.map(|handle| self.file(handle)).transpose()?;
        self.ask(false, || self.apply(node, file.as_deref(), changes))?;
        self.stat(who, node, handle)
    }

    fn read_link(&self, _who: &Credentials, node: Node) -> Result<Vec<u8>> {
        self.ask(true, || {
            let (place, _) = self.look(node)?;
            let mut target = vec![0_u8; libc::PATH_MAX as usize];
            let mut room = target.len() as u64;
            let to = target.as_mut_ptr().cast();
            call!(px_readlink(place.dir, place.name.as_ptr(), to, &raw mut room))?;
            target.truncate(room as usize);
            Ok(target)
        })
    }

    fn make_node(
        &self,
        _who: &Credentials,
        parent: Node,
        name: &Name,
        kind: Kind,
        mode: u32,
        device: u32,
    ) -> Result<InodeStat> {
        let mode = u32::from(kind as u8) << 12 | mode;
        self.make(parent, name, |dir, name| {
            call!(px_mknod(dir, name.as_ptr(), mode, u64::from(device), 0)).map(drop)
        })
    }

    fn make_directory(&self, _who: &Credentials, parent: Node, name: &Name, mode: u32) -> Result<InodeStat> {
        self.make(parent, name, |dir, name| call!(px_mkdir(dir, name.as_ptr(), mode, 0)).map(drop))
    }

    fn make_link(&self, _who: &Credentials, parent: Node, name: &Name, target: &[u8]) -> Result<InodeStat> {
        let target = CString::new(target).map_err(|_| Errno::EINVAL)?;
        self.make(parent, name, |dir, name| call!(px_symlink(target.as_ptr(), dir, name.as_ptr())).map(drop))
    }

    fn unlink(&self, _who: &Credentials, parent: Node, name: &Name) -> Result<()> {
        self.remove(parent, name, 0)
    }

    fn remove_directory(&self, _who: &Credentials, parent: Node, name: &Name) -> Result<()> {
        self.remove(parent, name, libc::AT_REMOVEDIR)
    }

    fn rename(
        &self,
        _who: &Credentials,
        parent: Node,
        name: &Name,
        new_parent: Node,
        new_name: &Name,
        flags: u32,
    ) -> Result<()> {
        if !matches!(flags, 0 | libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) {
            return Err(Errno::EINVAL);
        }
        let texts = text(name.as_bytes()).and_then(|old| Ok((old, text(new_name.as_bytes())?)));
        let (old, new) = texts.map_err(|_| Errno::EINVAL)?;
        self.ask(false, || {
            let (from, to) = (self.directory(parent)?, self.directory(new_parent)?);
            call!(px_rename(from.dir()?, old.as_ptr(), to.dir()?, new.as_ptr(), flags)).map(drop)
        })?;
        let exchange = flags == libc::RENAME_EXCHANGE;
        held(&self.nodes).rename((parent, name), (new_parent, new_name), exchange);
        Ok(())
    }

    fn link(&self, _who: &Credentials, node: Node, parent: Node, name: &Name) -> Result<InodeStat> {
        self.make(parent, name, |dir, name| {
            let (place, _) = self.look(node)?;
            let flags = if place.name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
            call!(px_link(place.dir, place.name.as_ptr(), dir, name.as_ptr(), flags)).map(drop)
        })
    }

    fn open(&self, _who: &Credentials, node: Node, how: How) -> Result<Opened> {
        // Bytes are dropped once it is certain that it is this file.
        let truncates_later = how.truncate && how.write;
        let flags = access_of(how) | if how.truncate && !truncates_later { libc::O_TRUNC } else { 0 };
        let description = self.ask(!how.truncate, || {
            let description = self.open_node(node, flags)?;
            if truncates_later {
                call!(px_truncate(description.dir()?, c"".as_ptr(), 0))?;
            }
            Ok(description)
        })?;
        Ok(self.enter_file(node, how, description))
    }

    fn create(
        &self,
        _who: &Credentials,
        parent: Node,
        name: &Name,
        mode: u32,
        how: How,
    ) -> Result<(InodeStat, Opened)> {
        let text = text(name.as_bytes()).map_err(|_| Errno::EINVAL)?;
        let mut flags = access_of(how) | libc::O_CREAT | libc::O_NOFOLLOW;
        flags |= if how.truncate { libc::O_TRUNC } else { 0 };
        flags |= if how.exclusive { libc::O_EXCL } else { 0 };
        let (description, stat) = self.ask(!how.exclusive && !how.truncate, || {
            let directory = self.directory(parent)?;
            let description = self.far.open(directory.dir()?, &text, flags, mode)?;
            let stat = self.far.stat(description.dir()?, c"")?;
            Ok((description, stat))
        })?;
        let stat = self.enter(parent, name, &stat);
        let opened = self.enter_file(stat.node, how, description);
        Ok((stat, opened))
    }

    fn read(&self, handle: Handle, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.with(handle, true, |id| {
            let mut done = 0;
            while done < buffer.len() {
                let rest = &mut buffer[done..];
                let mut count = rest.len().min(structures::BYTES_MAX) as u64;
                let at = position(offset, done)?;
                call!(px_read(id, at, 0, rest.as_mut_ptr().cast(), &raw mut count))?;
                if count == 0 {
                    break;
                }
                done += (count as usize).min(rest.len());
            }
            Ok(done)
        })
    }

    fn write(&self, handle: Handle, offset: u64, bytes: &[u8], append: bool) -> Result<usize> {
        let flags = if append { libc::RWF_APPEND } else { 0 };
        self.with(handle, false, |id| {
            let mut done = 0;
            while done < bytes.len() {
                let rest = &bytes[done..];
                let count = rest.len().min(structures::BYTES_MAX) as u64;
                let at = position(offset, done)?;
                match call!(px_write(id, at, flags, rest.as_ptr().cast(), count)) {
                    Ok(0) => break,
                    Ok(wrote) => done += (wrote as usize).min(rest.len()),
                    // What was written counts; the next write meets the error.
                    Err(Failure::Errno(_)) if done > 0 => break,
                    Err(failure) => return Err(failure),
                }
            }
            Ok(done)
        })
    }

    fn flush(&self, _handle: Handle) -> Result<()> {
        Ok(())
    }

    fn release(&self, handle: Handle) {
        let mut files = held(&self.files);
        let file = files.by_handle.remove(&handle);
        if let Some(file) = &file
            && let Some(of_node) = files.by_node.get_mut(&file.node)
        {
            of_node.retain(|other| !Arc::ptr_eq(other, file));
            if of_node.is_empty() {
                files.by_node.remove(&file.node);
            }
        }
        drop(files);
        drop(file);
    }

    fn sync(&self, handle: Handle, data_only: bool) -> Result<()> {
        self.with(handle, true, |id| call!(px_sync(id, c_int::from(data_only))).map(drop))
    }

    fn allocate(&self, handle: Handle, mode: i32, offset: u64, bytes: u64) -> Result<()> {
        self.with(handle, false, |id| {
            call!(px_allocate(id, mode, position(offset, 0)?, position(bytes, 0)?)).map(drop)
        })
    }

    fn seek(&self, handle: Handle, offset: u64, data: bool) -> Result<u64> {
        let whence = if data { libc::SEEK_DATA } else { libc::SEEK_HOLE };
        // Moves the description's own offset, which nobody uses.
        self.with(handle, true, |id| call!(px_seek(id, position(offset, 0)?, whence)).map(i64::cast_unsigned))
    }

    fn copy(&self, from: Handle, from_offset: u64, to: Handle, to_offset: u64, bytes: u64) -> Result<u64> {
        let to = self.file(to)?;
        let copied = self.with(from, false, |from| {
            let to = self.description_of(&to)?;
            let (mut from_at, mut to_at) = (position(from_offset, 0)?, position(to_offset, 0)?);
            call!(px_copy(from, &raw mut from_at, to.id()?, &raw mut to_at, bytes))
        });
        match copied {
            Ok(copied) => Ok(copied.cast_unsigned()),
            // The files are on different disks, or the disk can't: the kernel reads and writes.
            Err(Errno::EXDEV | Errno::ENOSYS) => Err(Errno::EOPNOTSUPP),
            Err(errno) => Err(errno),
        }
    }

    fn open_directory(&self, _who: &Credentials, node: Node) -> Result<Handle> {
        let description = self.ask(true, || self.open_listed(node))?;
        let listing = Listing {
            node,
            device: description.file.0,
            description: Mutex::new(Arc::new(description)),
            entries: Mutex::default(),
        };
        let handle = self.handle();
        held(&self.listings).insert(handle, Arc::new(listing));
        Ok(handle)
    }

    fn list(
        &self,
        handle: Handle,
        cookie: u64,
        plus: bool,
        take: &mut dyn FnMut(Listed) -> bool,
    ) -> Result<()> {
        let listing = self.listing(handle)?;
        // What a listing shows is as of its start: a cookie is a place in it.
        let start = cookie.saturating_sub(COOKIES_FROM);
        if cookie == 0 {
            let found = self.ask(true, || self.read_entries(&listing))?;
            *held(&listing.entries) = Arc::new(found);
        }
        let entries = Arc::clone(&held(&listing.entries));
        for (place, (name, inode, kind)) in entries.iter().enumerate().skip(start as usize) {
            let cookie = COOKIES_FROM + place as u64 + 1;
            let (name, kind) = (name.clone(), *kind);
            let mut listed = if plus {
                let stat = self.ask(true, || {
                    let description = self.description_of_listing(&listing)?;
                    self.far.stat(description.dir()?, &text(name.as_bytes())?)
                });
                let stat = match stat {
                    Ok(stat) => self.enter(listing.node, &name, &stat),
                    // It is gone meanwhile.
                    Err(Errno::ENOENT) => continue,
                    Err(errno) => return Err(errno),
                };
                Listed { cookie, name, node: stat.node, kind: stat.kind, stat: Some(stat) }
            } else {
                Listed { cookie, name, node: 0, kind, stat: None }
            };
            if !plus {
                listed.node = held(&self.nodes).usual(listing.device, *inode);
            }
            let node = listed.node;
            if !take(listed) {
                if plus {
                    self.forget(node, 1);
                }
                break;
            }
        }
        Ok(())
    }

    fn release_directory(&self, handle: Handle) {
        let listing = held(&self.listings).remove(&handle);
        drop(listing);
    }

    fn sync_directory(&self, handle: Handle) -> Result<()> {
        let listing = self.listing(handle)?;
        self.ask(true, || {
            let description = self.description_of_listing(&listing)?;
            call!(px_sync(description.id()?, 0)).map(drop)
        })
    }

    fn space(&self, node: Node) -> Result<Space> {
        let StatFs([_, _, blocks, _, available, files, files_free, _, _, block_bytes, _]) =
            self.ask(true, || {
                let place = self.place(node)?;
                let mut stat = StatFs::default();
                call!(px_statfs(place.dir, place.name.as_ptr(), (&raw mut stat).cast()))?;
                Ok(stat)
            })?;
        Ok(Space {
            bytes: blocks.saturating_mul(block_bytes),
            bytes_free: available.saturating_mul(block_bytes),
            inodes: files,
            inodes_free: files_free,
        })
    }

    fn get_xattr(&self, _who: &Credentials, node: Node, name: &Name) -> Result<Vec<u8>> {
        let attribute = text(name.as_bytes()).map_err(|_| Errno::EINVAL)?;
        self.ask(true, || {
            let (place, _) = self.look(node)?;
            let mut value = vec![0_u8; XATTR_BYTES_MAX];
            let mut room = value.len() as u64;
            let (at, no_follow) = (place.name.as_ptr(), libc::AT_SYMLINK_NOFOLLOW);
            let to = value.as_mut_ptr().cast();
            call!(px_getxattr(place.dir, at, no_follow, attribute.as_ptr(), to, &raw mut room))?;
            value.truncate(room as usize);
            Ok(value)
        })
    }

    fn set_xattr(&self, _who: &Credentials, node: Node, name: &Name, value: &[u8], flags: i32) -> Result<()> {
        let attribute = text(name.as_bytes()).map_err(|_| Errno::EINVAL)?;
        self.ask(false, || {
            let (place, _) = self.look(node)?;
            let (at, no_follow) = (place.name.as_ptr(), libc::AT_SYMLINK_NOFOLLOW);
            let (from, count) = (value.as_ptr().cast(), value.len() as u64);
            call!(px_setxattr(place.dir, at, no_follow, attribute.as_ptr(), from, count, flags)).map(drop)
        })
    }

    fn remove_xattr(&self, _who: &Credentials, node: Node, name: &Name) -> Result<()> {
        let attribute = text(name.as_bytes()).map_err(|_| Errno::EINVAL)?;
        self.ask(false, || {
            let (place, _) = self.look(node)?;
            let (at, no_follow) = (place.name.as_ptr(), libc::AT_SYMLINK_NOFOLLOW);
            call!(px_removexattr(place.dir, at, no_follow, attribute.as_ptr())).map(drop)
        })
    }

    fn list_xattr(&self, _who: &Credentials, node: Node) -> Result<Vec<Name>> {
        let names = self.ask(true, || {
            let (place, _) = self.look(node)?;
            let mut names = vec![0_u8; XATTR_BYTES_MAX];
            let mut room = names.len() as u64;
            let (at, no_follow) = (place.name.as_ptr(), libc::AT_SYMLINK_NOFOLLOW);
            call!(px_listxattr(place.dir, at, no_follow, names.as_mut_ptr().cast(), &raw mut room))?;
            names.truncate(room as usize);
            Ok(names)
        })?;
        names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(Name::new).collect()
    }

    fn test_lock(&self, handle: Handle, owner: Owner, range: Range, lock: Lock) -> Result<Option<Blocking>> {
        let file = self.file(handle)?;
        let key = (file.node, owner.number, owner.whole);
        let found = self.ask(true, || {
            let own = held(&self.locks).get(&key).cloned();
            let description = match own {
                Some(own) => own,
                None => self.description_of(&file)?,
            };
            let mut found = record(range, kind_of(lock));
            call!(px_lock(description.id()?, libc::F_OFD_GETLK, (&raw mut found).cast()))?;
            Ok(found)
        })?;
        if found.kind == libc::F_UNLCK {
            return Ok(None);
        }
        let start = found.start.max(0).cast_unsigned();
        let end = if found.length <= 0 { u64::MAX } else { start + (found.length - 1).cast_unsigned() };
        let range = Range { start, end };
        Ok(Some(Blocking { range, exclusive: found.kind == libc::F_WRLCK, pid: 0 }))
    }

    fn lock(&self, handle: Handle, owner: Owner, range: Range, lock: Lock) -> Result<()> {
        let file = self.file(handle)?;
        let key = (file.node, owner.number, owner.whole);
        if lock == Lock::Unlock && range == crate::locks::ALL {
            // The locks end with their description.
            let ended = held(&self.locks).remove(&key);
            drop(ended);
            return Ok(());
        }
        self.ask(true, || {
            if lock == Lock::Unlock && !held(&self.locks).contains_key(&key) {
                return Ok(());
            }
            let description = self.lock_description(&file, key)?;
            if owner.whole {
                let operation = if lock == Lock::Shared { libc::LOCK_SH } else { libc::LOCK_EX };
                return call!(px_flock(description.id()?, operation)).map(drop);
            }
            let mut wanted = record(range, kind_of(lock));
            call!(px_lock(description.id()?, libc::F_OFD_SETLK, (&raw mut wanted).cast())).map(drop)
        })
        .map_err(|errno| if errno == Errno::EACCES { Errno::EAGAIN } else { errno })
    }
}
