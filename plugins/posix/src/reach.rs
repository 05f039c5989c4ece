//! Which paths a caller may name: those beneath the folders that the operator exports.
//!
//! The kernel walks a path (`openat2`) with the caller's own rights. The walk may not leave the
//! export's descriptor, neither by `..` nor by a link, and it does not follow links of `/proc` that
//! lead anywhere. If a walk would leave (`EXDEV`), the path is expanded link by link. The walk goes
//! on if the result lies beneath an export again. So an absolute link from one place of an export
//! to another is followed.
//!
//! Where Landlock confines the process (`zazen_plugin_sdk::is_confined`), the kernel itself refuses
//! to make, remove and rename names outside the exports. Such calls then use the path as it is. If
//! one fails, the walk decides on the error.
//!
//! An export may be a mount that no path leads to. Then it comes as a descriptor, and the path is
//! what callers call it. A link to that path is followed as one into any export.
//!
//! Invariants: every descriptor that comes from here is of a file that lay beneath an export at the
//! moment of its walk. What lies outside is `EACCES`, whether it exists or not.

use crate::base::Base;
use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_int};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, PoisonError, RwLock};
use zazen_plugin_sdk::{Outcome, checked, errno, is_confined};

/// Symbolic links of one path, as the kernel bounds them.
const LINKS_MAX: usize = 40;
/// Walks that others' renames disturb are begun anew so often.
const TRIES: usize = 8;
/// What open(2) would ignore, openat2(2) refuses.
const FLAGS_KNOWN: c_int = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_NOCTTY
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_ASYNC
    | libc::O_DIRECT
    | libc::O_LARGEFILE
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_NOATIME
    | libc::O_CLOEXEC
    | libc::O_PATH
    | libc::O_TMPFILE;
const FLAGS_OF_PATH: c_int = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;

/// One exported folder.
pub(crate) struct Export {
    /// As the operator spells it, without a slash at the end: empty for the whole tree.
    spelled: Vec<u8>,
    /// Without links.
    canonical: Vec<u8>,
    fd: OwnedFd,
    /// The mount's ID, if the export is a whole mount: then all that lies on the mount lies beneath
    /// the export.
    mount: Option<u64>,
}

static EXPORTS: RwLock<Vec<Arc<Export>>> = RwLock::new(Vec::new());

/// Opens the exports. An export that is missing, or that this identity may not reach, is tried
/// again when a path names it.
pub(crate) fn begin() {
    let opened = zazen_plugin_sdk::exported().into_iter().map(|folder| Export::open(&folder));
    let given = zazen_plugin_sdk::mounted().into_iter().map(|(path, root)| Export::given(&path, root));
    let all = opened.chain(given).map(Arc::new).collect();
    *EXPORTS.write().unwrap_or_else(PoisonError::into_inner) = all;
}

impl Export {
    fn open(folder: &CStr) -> Export {
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
        // SAFETY: a string that lives for the call; the descriptor is new.
        let fd = unsafe {
            let fd = libc::open(folder.as_ptr(), flags);
            // A number that no call takes: all walks from it fail.
            if fd < 0 { None } else { Some(OwnedFd::from_raw_fd(fd)) }
        };
        let canonical = fd.as_ref().and_then(|fd| path_of(fd.as_raw_fd()).ok());
        Export::new(folder, canonical, fd)
    }

    /// A mount that the host has opened. Nothing is asked of it here: it may not answer yet.
    fn given(path: &CStr, root: RawFd) -> Export {
        // SAFETY: numbers; the descriptor is new.
        let fd = unsafe {
            let fd = libc::fcntl(root, libc::F_DUPFD_CLOEXEC, 3);
            if fd < 0 { None } else { Some(OwnedFd::from_raw_fd(fd)) }
        };
        Export::new(path, None, fd)
    }

    fn new(folder: &CStr, canonical: Option<Vec<u8>>, fd: Option<OwnedFd>) -> Export {
        let spelled = trimmed(folder.to_bytes());
        let canonical = canonical.map_or_else(|| spelled.clone(), |path| trimmed(&path));
        let fd = fd.unwrap_or_else(nothing);
        let mount = mount_of(fd.as_raw_fd());
        Export { spelled, canonical, fd, mount }
    }

    /// What of `path` lies behind the export's own.
    fn rest<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        [&self.spelled, &self.canonical].into_iter().find_map(|own| {
            let rest = path.strip_prefix(own.as_slice())?;
            (rest.is_empty() || rest[0] == b'/').then_some(rest)
        })
    }

    /// Whether the export lies beneath `path`.
    fn is_below(&self, path: &[u8]) -> bool {
        [&self.spelled, &self.canonical].into_iter().any(|own| {
            own.strip_prefix(path).is_some_and(|rest| rest.first().is_none_or(|first| *first == b'/'))
        })
    }

    /// The folder was removed, and perhaps made again.
    fn is_gone(&self) -> bool {
        // SAFETY: all zeros is a valid stat; a descriptor of ours.
        unsafe {
            let mut stat: libc::stat64 = std::mem::zeroed();
            libc::fstat64(self.fd.as_raw_fd(), &raw mut stat) != 0
                || stat.st_nlink == 0
                || stat.st_mode & libc::S_IFMT != libc::S_IFDIR
        }
    }
}

/// A descriptor that is no folder's.
fn nothing() -> OwnedFd {
    // SAFETY: a new eventfd. Without one the process ends: any other number could name a folder.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC);
        if fd < 0 {
            libc::abort();
        }
        OwnedFd::from_raw_fd(fd)
    }
}

fn trimmed(path: &[u8]) -> Vec<u8> {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    path[..end].to_vec()
}

/// The ID of the mount whose root is this folder. `None` if the folder is not a mount's root, or
/// the kernel does not say. No file system is asked anything.
fn mount_of(folder: RawFd) -> Option<u64> {
    // SAFETY: all zeros is a valid statx; a descriptor of ours.
    unsafe {
        let mut x: libc::statx = std::mem::zeroed();
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        let asked = libc::statx(folder, c"".as_ptr(), flags, libc::STATX_MNT_ID, &raw mut x);
        let is_root = x.stx_attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 != 0;
        (asked == 0 && is_root && x.stx_mask & libc::STATX_MNT_ID != 0).then_some(x.stx_mnt_id)
    }
}

/// The export that `path` lies in, and the rest behind it. The longest one wins.
fn export_of(path: &[u8]) -> Option<(Arc<Export>, &[u8])> {
    let exports = EXPORTS.read().unwrap_or_else(PoisonError::into_inner);
    let found = exports.iter().filter_map(|export| Some((export, export.rest(path)?)));
    found.min_by_key(|(_, rest)| rest.len()).map(|(export, rest)| (export.clone(), rest))
}

/// The same of a C string, with the rest relative to the export: `.` for the export itself.
fn relative_to_export(path: &CStr) -> Option<(Arc<Export>, &CStr)> {
    let (export, rest) = export_of(path.to_bytes())?;
    let slashes = rest.iter().position(|byte| *byte != b'/').unwrap_or(rest.len());
    let begin = path.to_bytes().len() - rest.len() + slashes;
    let relative = CStr::from_bytes_with_nul(&path.to_bytes_with_nul()[begin..]).ok()?;
    Some((export, if relative.is_empty() { c"." } else { relative }))
}

/// The same, but `None` for an export itself.
fn beneath_export(path: &CStr) -> Option<(Arc<Export>, &CStr)> {
    relative_to_export(path).filter(|(_, relative)| *relative != c".")
}

fn is_above_an_export(path: &[u8]) -> bool {
    let exports = EXPORTS.read().unwrap_or_else(PoisonError::into_inner);
    exports.iter().any(|export| export.is_below(path))
}

/// How a path is opened.
#[derive(Clone, Copy)]
struct How {
    flags: c_int,
    mode: u32,
}

impl How {
    fn new(flags: c_int, mode: u32) -> How {
        let known = if flags & libc::O_PATH != 0 { FLAGS_OF_PATH } else { FLAGS_KNOWN };
        let creates = flags & libc::O_PATH == 0
            && (flags & libc::O_CREAT != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE);
        How { flags: flags & known | libc::O_CLOEXEC, mode: if creates { mode & 0o7777 } else { 0 } }
    }

    fn follows(self) -> bool {
        let both = libc::O_CREAT | libc::O_EXCL;
        self.flags & libc::O_NOFOLLOW == 0 && self.flags & both != both
    }

    /// One walk of the kernel's from `from`.
    fn walk(self, from: RawFd, path: &CStr, resolve: u64) -> Outcome<OwnedFd> {
        // SAFETY: all zeros is a valid open_how.
        let mut how: libc::open_how = unsafe { std::mem::zeroed() };
        how.flags = self.flags as u64;
        how.mode = self.mode.into();
        how.resolve = resolve | libc::RESOLVE_NO_MAGICLINKS;
        let mut tries = TRIES;
        loop {
            // SAFETY: a path and a struct with its size, both alive for the call. The descriptor is
            // new.
            unsafe {
                let size = size_of::<libc::open_how>();
                let fd = libc::syscall(libc::SYS_openat2, from, path.as_ptr(), &raw const how, size);
                if fd >= 0 {
                    return Ok(OwnedFd::from_raw_fd(fd as RawFd));
                }
            }
            tries -= 1;
            match errno() {
                // Also a lease's, if the caller asked not to wait: so not for ever.
                libc::EAGAIN if tries > 0 && self.flags & libc::O_NONBLOCK == 0 => {}
                error => return Err(error),
            }
        }
    }
}

/// Opens `path`, which is absolute or relative to `base`.
pub(crate) fn open(base: &Base, path: &CStr, flags: c_int, mode: u32) -> Outcome<OwnedFd> {
    let how = How::new(flags, mode);
    let bytes = path.to_bytes();
    let held = match base {
        Base::Held(description) if bytes.first() != Some(&b'/') => Some(description.fd()),
        _ => None,
    };
    let outcome = match held {
        Some(_) if bytes.is_empty() => Err(libc::ENOENT),
        Some(fd) => how.walk(fd, path, libc::RESOLVE_BENEATH),
        None if bytes.first() == Some(&b'/') => match relative_to_export(path) {
            Some((export, relative)) => match from_export(how, &export, relative) {
                // Looked at on failure only: it would cost each call.
                Err(libc::ENOENT | libc::ENOTDIR) if export.is_gone() => {
                    begin();
                    let (export, relative) = relative_to_export(path).ok_or(libc::EACCES)?;
                    from_export(how, &export, relative)
                }
                other => other,
            },
            None => Err(libc::EXDEV),
        },
        None => base.fd(path).and(Err(libc::EBADF)),
    };
    if outcome.as_ref().err() != Some(&libc::EXDEV) {
        return outcome;
    }
    let mut whole = match held {
        Some(fd) => path_of(fd)?,
        None => Vec::new(),
    };
    whole.push(b'/');
    whole.extend_from_slice(bytes);
    let (export, rest) = expand(&whole, how.follows())?;
    match from_export(how, &export, &relative(&rest)?) {
        // A link that was put there meanwhile.
        Err(libc::EXDEV) => Err(libc::EACCES),
        other => other,
    }
}

/// What lies behind an export's own path, as a path that begins at the export.
fn relative(rest: &[u8]) -> Outcome<CString> {
    let slashes = rest.iter().position(|byte| *byte != b'/').unwrap_or(rest.len());
    let relative = &rest[slashes..];
    CString::new(if relative.is_empty() { b".".as_slice() } else { relative }).map_err(|_| libc::EINVAL)
}

fn from_export(how: How, export: &Export, relative: &CStr) -> Outcome<OwnedFd> {
    // Within the whole tree nothing leads out, and absolute links mean what they say.
    let resolve = if export.spelled.is_empty() { libc::RESOLVE_IN_ROOT } else { libc::RESOLVE_BENEATH };
    how.walk(export.fd.as_raw_fd(), relative, resolve)
}

/// The path without links and `..`. `EACCES` if it does not end beneath an export.
fn expand(path: &[u8], follow: bool) -> Outcome<(Arc<Export>, Vec<u8>)> {
    let names = |path: &[u8]| -> VecDeque<Vec<u8>> {
        path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
    };
    let mut slash = path.ends_with(b"/");
    let (mut left, mut at, mut links) = (names(path), Vec::new(), 0);
    while let Some(name) = left.pop_front() {
        match name.as_slice() {
            b"." => continue,
            b".." => {
                at.truncate(at.iter().rposition(|byte| *byte == b'/').unwrap_or(0));
                continue;
            }
            _ => {}
        }
        let here = export_of(&at).map(|(export, rest)| (export, rest.to_vec()));
        at.push(b'/');
        at.extend_from_slice(&name);
        let Some((export, mut rest)) = here else {
            if export_of(&at).is_none() && !is_above_an_export(&at) {
                return Err(libc::EACCES);
            }
            continue;
        };
        let is_last = left.is_empty();
        if is_last && !follow && !slash {
            break;
        }
        rest.push(b'/');
        rest.extend_from_slice(&name);
        let itself = How::new(libc::O_PATH | libc::O_NOFOLLOW, 0);
        let found = match from_export(itself, &export, &relative(&rest)?) {
            Err(libc::ENOENT) if is_last => break,
            // What was plain a moment ago leads out now.
            Err(libc::EXDEV) => return Err(libc::EACCES),
            other => other?,
        };
        match target(&found) {
            Some(target) => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(libc::ELOOP);
                }
                // What a last link names with a slash at the end is a folder.
                slash |= is_last && target.ends_with(b"/");
                at.truncate(if target.starts_with(b"/") { 0 } else { at.len() - name.len() - 1 });
                for name in names(&target).into_iter().rev() {
                    left.push_front(name);
                }
            }
            None if !is_last && !is_folder(&found) => return Err(libc::ENOTDIR),
            None => {}
        }
    }
    let (export, rest) = export_of(&at).ok_or(libc::EACCES)?;
    let mut rest = rest.to_vec();
    if slash {
        rest.push(b'/');
    }
    Ok((export, rest))
}

fn is_folder(fd: &OwnedFd) -> bool {
    // SAFETY: all zeros is a valid stat; a descriptor of ours.
    unsafe {
        let mut stat: libc::stat64 = std::mem::zeroed();
        libc::fstat64(fd.as_raw_fd(), &raw mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFDIR
    }
}

/// What a link says; `None` if it is none.
fn target(fd: &OwnedFd) -> Option<Vec<u8>> {
    let mut target = vec![0_u8; 4096];
    // SAFETY: room as said.
    let length =
        unsafe { libc::readlinkat(fd.as_raw_fd(), c"".as_ptr(), target.as_mut_ptr().cast(), target.len()) };
    target.truncate(usize::try_from(length).ok()?);
    Some(target)
}

/// The path of an open description; ENOENT if it has none any more.
pub(crate) fn path_of(fd: RawFd) -> Outcome<Vec<u8>> {
    let mut name = vec![0_u8; 4096];
    let link = by_number(fd);
    // SAFETY: room as said; all zeros is a valid stat.
    unsafe {
        let length = checked(libc::readlink(link.as_ptr(), name.as_mut_ptr().cast(), name.len()) as i64)?;
        name.truncate(length as usize);
        let mut stat: libc::stat64 = std::mem::zeroed();
        checked(libc::fstat64(fd, &raw mut stat))?;
        if name.ends_with(b" (deleted)")
            && (stat.st_nlink == 0 || stat.st_mode & libc::S_IFMT == libc::S_IFDIR)
        {
            return Err(libc::ENOENT);
        }
    }
    Ok(name)
}

/// A path of a descriptor, for calls that take none; only ever given to the kernel by this crate.
pub(crate) fn by_number(fd: RawFd) -> CString {
    CString::new(format!("/proc/self/fd/{fd}")).unwrap_or_default()
}

/// A file that a path names, for questions about the file itself. For an empty path it is the
/// description.
pub(crate) enum Object {
    Held(RawFd),
    Named(OwnedFd),
}

impl Object {
    pub(crate) fn new(base: &Base, path: &CStr, follow: bool) -> Outcome<Object> {
        if let Some(fd) = base.itself(path) {
            return Ok(Object::Held(fd));
        }
        let flags = libc::O_PATH | if follow { 0 } else { libc::O_NOFOLLOW };
        open(base, path, flags, 0).map(Object::Named)
    }

    pub(crate) fn fd(&self) -> RawFd {
        match self {
            Object::Held(fd) => *fd,
            Object::Named(fd) => fd.as_raw_fd(),
        }
    }
}

/// Looks at `path` by one system call, without a walk. Returns false if the mount in the answer
/// does not show that the file lies beneath the export; then a walk must find out.
pub(crate) fn stat_at_once(
    base: &Base,
    path: &CStr,
    flags: c_int,
    mask: u32,
    found: &mut libc::statx,
) -> bool {
    let is_free = matches!(base, Base::Root) || path.to_bytes().first() == Some(&b'/');
    let Some((export, rest)) = is_free.then(|| beneath_export(path)).flatten() else { return false };
    let Some(mount) = export.mount else { return false };
    // SAFETY: a path that lives for the call, and the caller's memory.
    let asked = unsafe {
        libc::statx(export.fd.as_raw_fd(), rest.as_ptr(), flags, mask | libc::STATX_MNT_ID, &raw mut *found)
    };
    asked == 0 && found.stx_mask & libc::STATX_MNT_ID != 0 && found.stx_mnt_id == mount
}

/// A name by its path, for the kernel to walk where Landlock confines this process.
pub(crate) enum Direct<'a> {
    Held(RawFd, &'a CStr),
    Exported(Arc<Export>, &'a CStr),
}

impl<'a> Direct<'a> {
    /// `None`: only a walk may find it.
    pub(crate) fn new(base: &Base, path: &'a CStr) -> Option<Direct<'a>> {
        if !is_confined() {
            return None;
        }
        match base {
            _ if path.to_bytes().first() == Some(&b'/') => {
                beneath_export(path).map(|(export, rest)| Direct::Exported(export, rest))
            }
            Base::Held(description) if !path.is_empty() => Some(Direct::Held(description.fd(), path)),
            _ => None,
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        match self {
            Direct::Held(fd, _) => *fd,
            Direct::Exported(export, _) => export.fd.as_raw_fd(),
        }
    }

    pub(crate) fn name(&self) -> *const std::ffi::c_char {
        match self {
            Direct::Held(_, name) | Direct::Exported(_, name) => name.as_ptr(),
        }
    }
}

/// A name in a folder, for calls that make, remove and rename names.
pub(crate) struct NameInFolder<'a> {
    folder: Object,
    base: std::marker::PhantomData<&'a Base>,
    name: CString,
}

impl<'a> NameInFolder<'a> {
    /// `EBUSY` for an export itself, as for a mount point.
    pub(crate) fn new(base: &'a Base, path: &CStr) -> Outcome<NameInFolder<'a>> {
        let bytes = path.to_bytes();
        let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let cut = bytes[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| libc::EINVAL);
        let (above, name) = (&bytes[..cut], text(&bytes[cut..])?);
        if bytes.is_empty() {
            return Err(libc::ENOENT);
        }
        let folder = match (above, base) {
            ([], Base::Held(description)) if description.mode & libc::S_IFMT == libc::S_IFDIR => {
                Object::Held(description.fd())
            }
            ([], Base::Held(_)) => return Err(libc::ENOTDIR),
            ([], _) => return base.fd(path).and(Err(libc::EBADF)),
            _ if bytes[0] == b'/' && export_of(&bytes[..end]).is_some_and(|(_, rest)| rest.is_empty()) => {
                return Err(libc::EBUSY);
            }
            _ => Object::Named(open(base, &text(above)?, libc::O_PATH | libc::O_DIRECTORY, 0)?),
        };
        Ok(NameInFolder { folder, base: std::marker::PhantomData, name })
    }

    /// The same for a name that is to be made: an export is there already.
    pub(crate) fn to_make(base: &'a Base, path: &CStr) -> Outcome<NameInFolder<'a>> {
        NameInFolder::new(base, path).map_err(|error| if error == libc::EBUSY { libc::EEXIST } else { error })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.folder.fd()
    }

    pub(crate) fn name(&self) -> *const std::ffi::c_char {
        self.name.as_ptr()
    }

    /// Fails as a look at any name in the folder would.
    pub(crate) fn may_search(&self) -> Outcome<()> {
        // SAFETY: a descriptor of ours and a constant string.
        let looked = unsafe { libc::faccessat(self.fd(), c".".as_ptr(), libc::F_OK, 0) };
        checked(looked).map(|_| ())
    }
}
