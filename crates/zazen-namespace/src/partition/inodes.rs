//! Operations on the attributes of inodes, on targets, and on extended attributes.

use super::change::Change;
use super::inode::Inode;
use super::machine::{Asking, Partition, Stop};
use super::permission::{self, READ, SET_GID, SET_UID, WRITE};
use crate::attributes::Kind;
use crate::operation::{
    Answer, Bytes, Found, GetMany, GetXattr, MANY_MAX, ManyAttributes, NOW_NS, Nameless, Names,
    SetAttributes, SetXattr, XATTR_BYTES_MAX,
};
use crate::{Errno, Incarnation, InodeId, Name, NodeNo};
use zazen_core::Credentials;

type Answered = Result<Answer, Stop>;

impl Partition {
    fn found(&self, id: InodeId) -> Answered {
        let attributes = self.attributes(id).ok_or(Errno::ESTALE)?;
        Ok(Answer::Found(Found { attributes }))
    }

    /// The attributes of an inode.
    pub(super) fn get_attributes(&self, id: InodeId) -> Answered {
        self.found(id)
    }

    /// The attributes of many inodes.
    pub(super) fn get_many(&self, many: &GetMany) -> Answered {
        if many.ids.len() > MANY_MAX {
            return Err(Errno::EINVAL.into());
        }
        let attributes = many.ids.iter().map(|id| self.attributes(*id)).collect();
        Ok(Answer::Many(ManyAttributes { attributes }))
    }

    pub(super) fn list_nameless(&self, list: &Nameless) -> Answered {
        let max = (list.max as usize).clamp(1, MANY_MAX);
        let first = (list.from.serial(), NodeNo(0), Incarnation(0));
        let mut open: Vec<u64> = Vec::new();
        for (serial, ..) in self.tables.opens.range(first..).map(|(open, _)| *open) {
            let is_nameless = || self.tables.row(serial).is_some_and(|inode| inode.links == 0);
            if open.last() != Some(&serial) && is_nameless() {
                open.push(serial);
            }
            if open.len() == max {
                break;
            }
        }
        let attributes = open.into_iter().map(|serial| self.attributes(InodeId::new(self.number(), serial)));
        Ok(Answer::Many(ManyAttributes { attributes: attributes.collect() }))
    }

    /// Changes attributes.
    pub(super) fn set_attributes(&mut self, call: &Asking<'_>, set: &SetAttributes) -> Answered {
        let serial = set.id.serial();
        let before = *self.tables.row(serial).ok_or(Errno::ESTALE)?;
        let mut inode = before;
        set_owner(call.caller, set, &before, &mut inode)?;
        self.set_length(call, set, &before, &mut inode)?;
        let may_write = self.writes(call, serial) || permission::may(call.caller, &before, WRITE);
        set_mode(call, may_write, set, &before, &mut inode)?;
        set_times(call, set, &before, &mut inode)?;
        inode.changed_ns = call.now_ns;
        inode.version = inode.version.wrapping_add(1);
        self.change(&Change::Put { serial, inode });
        if let Some(bytes) = set.bytes {
            self.cut_chunks(serial, bytes);
            self.forget_explicit_time(serial);
        }
        if inode.bytes != before.bytes && self.tables.chunks.file_of(serial).is_some() {
            // A copy would bring back what its holder has cut.
            self.forget_copies(serial);
            self.chunk_changed(call, serial, inode.modified_ns);
        }
        if set.modified_ns.is_some() {
            self.note_explicit_time(call, serial);
        }
        self.found(set.id)
    }

    fn set_length(
        &self,
        call: &Asking<'_>,
        set: &SetAttributes,
        before: &Inode,
        inode: &mut Inode,
    ) -> Result<(), Errno> {
        let Some(bytes) = set.bytes else { return Ok(()) };
        match before.kind {
            Kind::File => {}
            Kind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        if !self.writes(call, set.id.serial()) {
            permission::check(call.caller, before, WRITE)?;
        }
        if bytes > i64::MAX as u64 {
            return Err(Errno::EFBIG);
        }
        self.fits_chunk(set.id.serial(), bytes)?;
        if self.is_chunked(set.id.serial()) && !call.knows_chunks {
            return Err(Errno::EOPNOTSUPP);
        }
        inode.bytes = bytes;
        if bytes == 0 {
            inode.blocks_or_parent = 0;
        }
        inode.modified_ns = call.now_ns;
        if call.caller.uid != 0 {
            inode.mode = permission::without_privileges(call.caller, inode);
        }
        Ok(())
    }

    /// Whether the asking node has the file open for writing.
    fn writes(&self, call: &Asking<'_>, serial: u64) -> bool {
        let key = (serial, call.node, call.incarnation);
        self.tables.opens.get(&key).is_some_and(|opens| opens.writers > 0)
    }

    /// The target of a symbolic link.
    pub(super) fn read_link(&self, id: InodeId) -> Answered {
        let inode = self.tables.row(id.serial()).ok_or(Errno::ESTALE)?;
        if inode.kind != Kind::Symlink {
            return Err(Errno::EINVAL.into());
        }
        let target = self.tables.targets.get(&id.serial()).ok_or(Errno::EIO)?;
        Ok(Answer::Bytes(Bytes { bytes: target.to_vec() }))
    }

    /// Sets or removes an extended attribute.
    pub(super) fn set_xattr(&mut self, call: &Asking<'_>, set: &SetXattr) -> Answered {
        let (serial, name) = (set.id.serial(), set.name.as_bytes());
        let mut inode = *self.tables.row(serial).ok_or(Errno::ESTALE)?;
        check_xattr(call.caller, &inode, name, WRITE)?;
        let begins_chunks = self.check_chunk_wish(&inode, set)?;
        let key = (serial, Box::from(name));
        let before = self.tables.xattrs.get(&key).map(|value| value.len());
        if (set.replace || set.value.is_none()) && before.is_none() {
            return Err(Errno::ENODATA.into());
        }
        if set.create && before.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if let Some(value) = &set.value {
            let all = self.tables.xattrs_of(serial).map(|(name, value)| name.len() + value.len());
            let others = all.sum::<usize>() - before.map_or(0, |bytes| bytes + name.len());
            let bytes = others + name.len() + value.len();
            if value.len() > XATTR_BYTES_MAX || bytes > self.settings.xattrs_bytes_max as usize {
                return Err(Errno::ENOSPC.into());
            }
        }
        self.change(&Change::Xattr { serial, name, value: set.value.as_deref() });
        if let Some(chunk_bytes) = begins_chunks {
            self.change(&Change::Chunked { serial, chunk_bytes });
        }
        inode.changed_ns = call.now_ns;
        inode.version = inode.version.wrapping_add(1);
        self.change(&Change::Put { serial, inode });
        Ok(Answer::Done)
    }

    /// The value of an extended attribute.
    pub(super) fn get_xattr(&self, call: &Asking<'_>, get: &GetXattr) -> Answered {
        let inode = self.tables.row(get.id.serial()).ok_or(Errno::ESTALE)?;
        check_xattr(call.caller, inode, get.name.as_bytes(), READ)?;
        if let Some((file, _)) = self.tables.chunks.file_of(get.id.serial()) {
            let bytes = self.wish_of_chunk(file, get.name.as_bytes()).ok_or(Errno::ENODATA)?;
            return Ok(Answer::Bytes(Bytes { bytes }));
        }
        let key = (get.id.serial(), Box::from(get.name.as_bytes()));
        let value = self.tables.xattrs.get(&key).ok_or(Errno::ENODATA)?;
        Ok(Answer::Bytes(Bytes { bytes: value.to_vec() }))
    }

    /// The names of an inode's extended attributes; those that only root may see, for root only.
    pub(super) fn list_xattr(&self, call: &Asking<'_>, id: InodeId) -> Answered {
        self.tables.row(id.serial()).ok_or(Errno::ESTALE)?;
        let names = self.tables.xattrs_of(id.serial()).map(|(name, _)| name);
        let seen = names.filter(|name| call.caller.uid == 0 || !name.starts_with(b"trusted."));
        let names = seen.filter_map(|name| Name::new(name).ok()).collect();
        Ok(Answer::Names(Names { names }))
    }
}

/// Owner and group. Only root gives a file away; an owner may choose among the own groups.
fn set_owner(
    caller: &Credentials,
    set: &SetAttributes,
    before: &Inode,
    inode: &mut Inode,
) -> Result<(), Errno> {
    let (root, owner) = (caller.uid == 0, caller.uid == before.uid);
    if let Some(uid) = set.uid {
        if !(root || owner && uid == before.uid) {
            return Err(Errno::EPERM);
        }
        inode.uid = uid;
    }
    if let Some(gid) = set.gid {
        if !(root || owner && (gid == before.gid || permission::in_group(caller, gid))) {
            return Err(Errno::EPERM);
        }
        inode.gid = gid;
    }
    let chown = set.uid.is_some() || set.gid.is_some();
    if chown && !before.is_directory() {
        inode.mode = permission::without_privileges(caller, before);
    }
    Ok(())
}

fn set_mode(
    call: &Asking<'_>,
    may_write: bool,
    set: &SetAttributes,
    before: &Inode,
    inode: &mut Inode,
) -> Result<(), Errno> {
    let Some(mode) = set.mode else { return Ok(()) };
    let mut mode = (mode & 0o7777) as u16;
    // The kernel itself takes away set-user-id when somebody changes the bytes: who may write, may.
    let privileges = before.mode & (SET_UID | SET_GID);
    let strips = mode != before.mode && mode | privileges == before.mode;
    if !(strips && may_write) {
        permission::check_owner(call.caller, before)?;
    }
    if call.caller.uid != 0 && !permission::in_group(call.caller, inode.gid) {
        mode &= !SET_GID;
    }
    inode.mode = mode;
    Ok(())
}

fn set_times(call: &Asking<'_>, set: &SetAttributes, before: &Inode, inode: &mut Inode) -> Result<(), Errno> {
    let times = [set.accessed_ns, set.modified_ns];
    let owner = permission::check_owner(call.caller, before).is_ok();
    if times.iter().flatten().any(|time| *time != NOW_NS) && !owner {
        return Err(Errno::EPERM);
    }
    // With a length, a kernel also sends the time of the change.
    if times.iter().any(Option::is_some) && !owner && set.bytes.is_none() {
        permission::check(call.caller, before, WRITE)?;
    }
    let time = |ns: i64| if ns == NOW_NS { call.now_ns } else { ns };
    if let Some(ns) = set.accessed_ns {
        inode.accessed_ns = time(ns);
    }
    if let Some(ns) = set.modified_ns {
        inode.modified_ns = time(ns);
    }
    Ok(())
}

/// Whether the caller may read or write an extended attribute of this name: the kernel's own rules.
fn check_xattr(caller: &Credentials, inode: &Inode, name: &[u8], bits: u16) -> Result<(), Errno> {
    let has = |class: &[u8]| name.len() > class.len() && name.starts_with(class);
    let root = caller.uid == 0;
    if has(b"user.") {
        let plain = matches!(inode.kind, Kind::File | Kind::Directory);
        let sticky = inode.is_directory() && inode.mode & 0o1000 != 0 && bits == WRITE;
        if !plain || (sticky && permission::check_owner(caller, inode).is_err()) {
            return Err(if bits == READ { Errno::ENODATA } else { Errno::EPERM });
        }
        return permission::check(caller, inode, bits);
    }
    if has(b"trusted.") {
        let refused = if bits == READ { Errno::ENODATA } else { Errno::EPERM };
        return if root { Ok(()) } else { Err(refused) };
    }
    if has(b"security.") {
        return if root || bits == READ { Ok(()) } else { Err(Errno::EPERM) };
    }
    Err(Errno::EOPNOTSUPP)
}
