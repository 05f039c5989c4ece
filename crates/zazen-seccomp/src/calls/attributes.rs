//! Attributes, handles and watches of far files. This process does these calls itself, with a
//! descriptor of the file: they need rights that the daemon's processes do not have, or the answer
//! belongs to one kernel.

use super::*;

impl SystemCall<'_> {
    /// Whether the program's thread has the rights that privileged attributes need. Then this
    /// process may use its own: a thread of root's may have given them up.
    fn has_rights(&self) -> Result<bool, i32> {
        let needed = 1 << CAP_SYS_ADMIN | 1 << CAP_SETFCAP;
        let has_them = self.target.status()?.capabilities() & needed == needed;
        // In a namespace of its own, root is not this kernel's root.
        let namespace = |target: &Target| target.link("ns/user");
        Ok(has_them && namespace(&self.target).is_some_and(|ours| namespace(&Target::own()) == Some(ours)))
    }

    /// The path and the attribute's name; `None`: the kernel's.
    fn attribute(&self) -> Result<Option<(CString, CString)>, i32> {
        let Found::Asked(path) = self.find(At(HERE, self.word(0), false))? else { return Ok(None) };
        Ok(Some((path, self.name(self.word(1))?)))
    }

    pub(super) fn getxattr(&self, flags: c_int) -> Outcome {
        let Some((path, name)) = self.attribute()? else { return Ok(Reply::Continue) };
        let identity = self.identity(false)?;
        let by_rights = name.to_bytes().starts_with(b"trusted.") && self.has_rights()?;
        let (size, value) = self.acting(&identity, || {
            let mut value = vec![0_u8; (self.word(3) as usize).min(BUFFER_MAX)];
            let mut room = value.len() as u64;
            let to = value.as_mut_ptr().cast();
            if by_rights {
                // SAFETY: strings, and as much room as is said.
                let get = |file| unsafe { libc::getxattr(file, name.as_ptr(), to, room as usize) as i64 };
                let size = here(&path, flags, get)?;
                value.truncate(size as usize);
                return Ok((size, value));
            }
            let size = px!(px_getxattr(ROOT, path.as_ptr(), flags, name.as_ptr(), to, &raw mut room))?;
            value.truncate(room as usize);
            Ok((size, value))
        })?;
        self.target.write(self.word(2), &value)?;
        Ok(Reply::Value(size))
    }

    pub(super) fn listxattr(&self, flags: c_int) -> Outcome {
        // Some names are told only to programs that have the rights.
        let by_rights = self.has_rights()?;
        self.giving(At(HERE, self.word(0), false), self.word(1), |path| {
            let mut names = vec![0_u8; (self.word(2) as usize).min(BUFFER_MAX)];
            let mut room = names.len() as u64;
            if by_rights {
                let to = names.as_mut_ptr().cast();
                // SAFETY: a string, and as much room as is said.
                let size =
                    here(path, flags, |file| unsafe { libc::listxattr(file, to, room as usize) as i64 })?;
                names.truncate(size as usize);
                return Ok((size, names));
            }
            let size =
                px!(px_listxattr(ROOT, path.as_ptr(), flags, names.as_mut_ptr().cast(), &raw mut room))?;
            names.truncate(room as usize);
            Ok((size, names))
        })
    }

    pub(super) fn setxattr(&self, flags: c_int) -> Outcome {
        let Some((path, name)) = self.attribute()? else { return Ok(Reply::Continue) };
        let size = usize::try_from(self.word(3)).ok().filter(|size| *size <= BUFFER_MAX);
        let mut value = vec![0_u8; size.ok_or(libc::E2BIG)?];
        self.reading(|target| match value.is_empty() || target.read(self.word(2), &mut value) {
            true => Ok(()),
            false => Err(libc::EFAULT),
        })?;
        let by_rights = is_privileged(&name) && self.has_rights()?;
        self.done_with(&path, |path| {
            let (from, count) = (value.as_ptr().cast(), value.len() as u64);
            if by_rights {
                // SAFETY: strings, and as many bytes as are said.
                return here(path, flags, |file| unsafe {
                    libc::setxattr(file, name.as_ptr(), from, count as usize, self.int(4)).into()
                });
            }
            px!(px_setxattr(ROOT, path.as_ptr(), flags, name.as_ptr(), from, count, self.int(4)))
                .map(i64::from)
        })
    }

    pub(super) fn removexattr(&self, flags: c_int) -> Outcome {
        let Some((path, name)) = self.attribute()? else { return Ok(Reply::Continue) };
        let by_rights = is_privileged(&name) && self.has_rights()?;
        self.done_with(&path, |path| {
            if by_rights {
                // SAFETY: strings.
                return here(path, flags, |file| unsafe { libc::removexattr(file, name.as_ptr()).into() });
            }
            px!(px_removexattr(ROOT, path.as_ptr(), flags, name.as_ptr())).map(i64::from)
        })
    }

    /// The program's own watcher gets the watch: this process has a descriptor of it meanwhile.
    pub(super) fn watch(&self) -> Outcome {
        let Found::Asked(path) = self.find(At(HERE, self.word(1), false))? else {
            return Ok(Reply::Continue);
        };
        let mask = self.number(2);
        let mut flags = libc::O_PATH;
        flags |= if mask & libc::IN_DONT_FOLLOW != 0 { libc::O_NOFOLLOW } else { 0 };
        flags |= if mask & libc::IN_ONLYDIR != 0 { libc::O_DIRECTORY } else { 0 };
        let watcher = self.target.copy_descriptor(self.int(0))?;
        self.acting(&self.identity(false)?, || {
            let file = far::open(&path, flags, 0, 0)?;
            let name = name_of(&file)?;
            let mask = mask & !libc::IN_DONT_FOLLOW;
            // SAFETY: descriptors of ours and a string.
            let watch = unsafe { libc::inotify_add_watch(watcher.as_raw_fd(), name.as_ptr(), mask) };
            if watch < 0 { Err(errno()) } else { Ok(Reply::Value(watch.into())) }
        })
    }

    /// A handle of a far file, as the kernel gives it for its descriptor.
    pub(super) fn handle(&self) -> Outcome {
        let flags = self.int(4);
        let at = At(self.int(0), self.word(1), flags & libc::AT_EMPTY_PATH != 0);
        let Found::Asked(path) = self.find(at)? else { return Ok(Reply::Continue) };
        let nofollow = if flags & libc::AT_SYMLINK_FOLLOW != 0 { 0 } else { libc::O_NOFOLLOW };
        let mut head = [0; 8];
        self.reading(|target| if target.read(self.word(2), &mut head) { Ok(()) } else { Err(libc::EFAULT) })?;
        let room = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
        if room > HANDLE_BYTES_MAX {
            return Err(libc::EINVAL);
        }
        // The kernel's structure: the size, the kind, and the bytes.
        let mut handle = vec![0_u32; 2 + HANDLE_BYTES_MAX as usize / 4];
        handle[0] = room;
        let mut mount: c_int = 0;
        let done = self.acting(&self.identity(false)?, || {
            let file = far::open(&path, libc::O_PATH | nofollow, 0, 0)?;
            let flags = flags & !libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH;
            let (empty, to) = (c"".as_ptr(), handle.as_mut_ptr());
            // SAFETY: a descriptor of ours; as much room as its first field says, and more.
            let done = unsafe {
                libc::syscall(libc::SYS_name_to_handle_at, file.as_raw_fd(), empty, to, &raw mut mount, flags)
            };
            // With too little room, the kernel says how much it wants.
            Ok(if done == 0 { 0 } else { errno() })
        })?;
        if done != 0 && done != libc::EOVERFLOW {
            return Err(done);
        }
        let bytes: Vec<u8> = handle.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let told = if done == 0 { 8 + handle[0] as usize } else { 4 };
        self.target.write(self.word(2), &bytes[..told.min(bytes.len())])?;
        self.target.write(self.word(3), &mount.to_ne_bytes())?;
        if done == 0 { Ok(Reply::Value(0)) } else { Err(done) }
    }
}

const CAP_SYS_ADMIN: u32 = 21;
const CAP_SETFCAP: u32 = 31;

/// Whether an attribute is one that the kernel gives and takes only by rights which the daemon's
/// processes do not have, whoever they act as.
fn is_privileged(name: &CStr) -> bool {
    name.to_bytes().starts_with(b"trusted.") || name.to_bytes().starts_with(b"security.")
}

/// Calls `body` with a name of this kernel's for a far file, so that the rights of the program's
/// thread count.
fn here(path: &CStr, flags: c_int, body: impl FnOnce(*const libc::c_char) -> i64) -> Result<i64, i32> {
    let nofollow = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { libc::O_NOFOLLOW } else { 0 };
    let file = far::open(path, libc::O_PATH | nofollow, 0, 0)?;
    let name = name_of(&file)?;
    let done = body(name.as_ptr());
    if done < 0 { Err(errno()) } else { Ok(done) }
}

/// The name by which this process knows a file that it has open.
fn name_of(file: &impl AsRawFd) -> Result<CString, i32> {
    CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|_| libc::EINVAL)
}

/// `MAX_HANDLE_SZ`.
const HANDLE_BYTES_MAX: u32 = 128;
