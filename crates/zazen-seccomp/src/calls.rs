//! The system calls: one function each. It turns the call into calls of the plug-in, and writes the
//! result into the program's memory.
//!
//! Invariants: the program's memory is read before the plug-in is called, and written after: a
//! thread that acts as another user reads no memory. Nothing is done for a call that no longer
//! waits. The kernel itself does what is not below a prefix, and all calls of a program with
//! another root directory or other mounts.

mod attributes;

use crate::far::{self, Far, px};
use crate::filter::{SYS_FCHMODAT2, SYS_RENAMEAT};
use crate::identity::Identity;
use crate::notify::{Listener, Notice, Outcome, Reply, errno};
use crate::places::{Places, Resolver};
use crate::target::{Status, Target, View, enterable, may_enter};
use crate::{fifo, records};
use std::ffi::{CStr, CString, c_int};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use zazen_forward_api::paths::PATH_MAX;
use zazen_forward_api::structures::{PxStat, ROOT, StatFs};

const HERE: i32 = libc::AT_FDCWD;
const BUFFER_MAX: usize = 65536;

/// Said once.
static WARNED: AtomicBool = AtomicBool::new(false);

/// The most threads that answer calls: this many may wait (for a lease, a disk) before other calls
/// wait for them.
const THREADS_MAX: usize = 256;

/// What all calls share.
pub(crate) struct Supervisor {
    pub(crate) listener: Listener,
    pub(crate) far: Far,
    pub(crate) places: Places,
    /// The root directory and mounts of a program that changed neither.
    pub(crate) view: View,
    threads: AtomicUsize,
    idle: AtomicUsize,
}

/// One call in work.
struct SystemCall<'a> {
    all: &'static Supervisor,
    notice: &'a Notice,
    target: Target,
}

/// One path of a call: a directory's descriptor, the string's address, and whether it may be empty.
#[derive(Clone, Copy)]
struct At(i32, u64, bool);

impl Supervisor {
    pub(crate) fn new(listener: Listener, far: Far, places: Places, view: View) -> Supervisor {
        let (threads, idle) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Supervisor { listener, far, places, view, threads, idle }
    }

    /// Starts one more thread that serves.
    pub(crate) fn begin_thread(&'static self) -> std::io::Result<()> {
        self.threads.fetch_add(1, Ordering::Relaxed);
        self.idle.fetch_add(1, Ordering::AcqRel);
        let begun = std::thread::Builder::new().name("calls".to_owned()).spawn(|| self.serve());
        if begun.is_err() {
            self.threads.fetch_sub(1, Ordering::Relaxed);
            self.idle.fetch_sub(1, Ordering::AcqRel);
        }
        begun.map(drop)
    }

    /// Serves one notification after the other.
    fn serve(&'static self) {
        while let Some(notice) = self.listener.receive() {
            let was_last = self.idle.fetch_sub(1, Ordering::AcqRel) == 1;
            if was_last && self.threads.load(Ordering::Relaxed) < THREADS_MAX {
                // If no thread can be started, the next call waits for one that is in progress.
                let _ = self.begin_thread();
            }
            let target = Target::of_call(&self.listener, notice);
            let call = SystemCall { all: self, notice: &notice, target };
            // A panic fails one call: a program that gets no answer would wait for ever.
            let done = catch_unwind(AssertUnwindSafe(|| call.done()));
            self.listener.answer(&notice, done.unwrap_or(Err(libc::EIO)));
            self.idle.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// What was found out about a path.
enum Found {
    /// The kernel does the call.
    Kernel,
    /// The plug-in does it, with this path.
    Asked(CString),
}

impl SystemCall<'_> {
    fn word(&self, index: usize) -> u64 {
        self.notice.arguments[index]
    }

    /// The C int of an argument.
    fn int(&self, index: usize) -> i32 {
        self.word(index) as i32
    }

    fn number(&self, index: usize) -> u32 {
        self.word(index) as u32
    }

    fn done(&self) -> Outcome {
        let (int, word) = (|index| self.int(index), |index| self.word(index));
        match self.notice.number {
            libc::SYS_openat => self.open(At(int(0), word(1), false), int(2), self.number(3)),
            libc::SYS_openat2 => self.open_how(),
            libc::SYS_newfstatat => {
                self.stat(At(int(0), word(1), int(3) & libc::AT_EMPTY_PATH != 0), int(3), word(2))
            }
            libc::SYS_statx => self.statx(),
            libc::SYS_faccessat => self.access(At(int(0), word(1), false), int(2), 0),
            libc::SYS_faccessat2 => {
                self.access(At(int(0), word(1), int(3) & libc::AT_EMPTY_PATH != 0), int(2), int(3))
            }
            libc::SYS_readlinkat => self.readlink(At(int(0), word(1), false), word(2), int(3)),
            libc::SYS_mkdirat => self.mkdir(At(int(0), word(1), false), self.number(2)),
            libc::SYS_mknodat => self.mknod(At(int(0), word(1), false), self.number(2), self.number(3)),
            libc::SYS_unlinkat => self.unlink(At(int(0), word(1), false), int(2)),
            SYS_RENAMEAT => self.rename(At(int(0), word(1), false), At(int(2), word(3), false), 0),
            libc::SYS_renameat2 => {
                self.rename(At(int(0), word(1), false), At(int(2), word(3), false), self.number(4))
            }
            libc::SYS_linkat => self.link(
                At(int(0), word(1), int(4) & libc::AT_EMPTY_PATH != 0),
                At(int(2), word(3), false),
                int(4),
            ),
            libc::SYS_symlinkat => self.symlink(word(0), At(int(1), word(2), false)),
            libc::SYS_fchmodat => self.chmod(At(int(0), word(1), false), self.number(2), 0),
            SYS_FCHMODAT2 => {
                self.chmod(At(int(0), word(1), int(3) & libc::AT_EMPTY_PATH != 0), self.number(2), int(3))
            }
            libc::SYS_fchownat => {
                let at = At(int(0), word(1), int(4) & libc::AT_EMPTY_PATH != 0);
                self.chown(at, self.number(2), self.number(3), int(4))
            }
            libc::SYS_truncate => self.truncate(word(0), word(1).cast_signed()),
            libc::SYS_utimensat => self.utimens(At(int(0), word(1), false), word(2), int(3)),
            libc::SYS_statfs => self.statfs(),
            libc::SYS_getxattr => self.getxattr(0),
            libc::SYS_lgetxattr => self.getxattr(libc::AT_SYMLINK_NOFOLLOW),
            libc::SYS_setxattr => self.setxattr(0),
            libc::SYS_lsetxattr => self.setxattr(libc::AT_SYMLINK_NOFOLLOW),
            libc::SYS_listxattr => self.listxattr(0),
            libc::SYS_llistxattr => self.listxattr(libc::AT_SYMLINK_NOFOLLOW),
            libc::SYS_removexattr => self.removexattr(0),
            libc::SYS_lremovexattr => self.removexattr(libc::AT_SYMLINK_NOFOLLOW),
            libc::SYS_chdir => self.chdir(word(0)),
            libc::SYS_fchdir => self.fchdir(int(0)),
            libc::SYS_getcwd => self.getcwd(word(0), word(1)),
            libc::SYS_inotify_add_watch => self.watch(),
            libc::SYS_name_to_handle_at => self.handle(),
            libc::SYS_execve => self.execute(At(HERE, word(0), false)),
            libc::SYS_execveat => self.execute(At(int(0), word(1), false)),
            libc::SYS_exit_group => {
                self.all.places.end(&self.target);
                Ok(Reply::Continue)
            }
            number => self.done_here(number),
        }
    }

    /// The calls that only this architecture has.
    #[cfg(target_arch = "x86_64")]
    fn done_here(&self, number: libc::c_long) -> Outcome {
        let (int, word) = (|index| self.int(index), |index| self.word(index));
        let (path, second) = (At(HERE, word(0), false), At(HERE, word(1), false));
        match number {
            libc::SYS_open => self.open(path, int(1), self.number(2)),
            libc::SYS_creat => {
                self.open(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, self.number(1))
            }
            libc::SYS_stat => self.stat(path, 0, word(1)),
            libc::SYS_lstat => self.stat(path, libc::AT_SYMLINK_NOFOLLOW, word(1)),
            libc::SYS_access => self.access(path, int(1), 0),
            libc::SYS_readlink => self.readlink(path, word(1), int(2)),
            libc::SYS_mkdir => self.mkdir(path, self.number(1)),
            libc::SYS_mknod => self.mknod(path, self.number(1), self.number(2)),
            libc::SYS_rmdir => self.unlink(path, libc::AT_REMOVEDIR),
            libc::SYS_unlink => self.unlink(path, 0),
            libc::SYS_rename => self.rename(path, second, 0),
            libc::SYS_link => self.link(path, second, 0),
            libc::SYS_symlink => self.symlink(word(0), second),
            libc::SYS_chmod => self.chmod(path, self.number(1), 0),
            libc::SYS_chown => self.chown(path, self.number(1), self.number(2), 0),
            libc::SYS_lchown => self.chown(path, self.number(1), self.number(2), libc::AT_SYMLINK_NOFOLLOW),
            libc::SYS_utime => self.utimes(path, word(1), |target, address| {
                let [access, modification] = target.words(address)?;
                Ok([access, 0, modification, 0])
            }),
            libc::SYS_utimes => self.utimes(path, word(1), microseconds),
            libc::SYS_futimesat => self.utimes(At(int(0), word(1), false), word(2), microseconds),
            _ => Ok(Reply::Continue),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn done_here(&self, _number: libc::c_long) -> Outcome {
        Ok(Reply::Continue)
    }

    /// The program's string; ESRCH if its call does not wait any more.
    fn text(&self, address: u64) -> Result<Option<Vec<u8>>, i32> {
        let text = self.target.string(address);
        if text.is_none() && errno() == libc::EPERM && !WARNED.swap(true, Ordering::Relaxed) {
            tracing::error!(
                process = self.target.tid,
                "the program's memory may not be read (ptrace is forbidden, or its file is not readable): \
                 its paths are this machine's"
            );
        }
        // Only now it is certain that this was the program's memory.
        if self.target.still_waits() { Ok(text) } else { Err(libc::ESRCH) }
    }

    /// What `read` finds in the program's memory; ESRCH if its call no longer waits.
    fn reading<T>(&self, read: impl FnOnce(&Target) -> Result<T, i32>) -> Result<T, i32> {
        let found = read(&self.target);
        if self.target.still_waits() { found } else { Err(libc::ESRCH) }
    }

    fn place(&self, at: At) -> Result<(Resolver, Vec<u8>), i32> {
        let At(dir, address, may_be_empty) = at;
        // The kernel knows the error for a path that is unreadable or too long.
        let Some(text) = self.text(address)? else { return Ok((Resolver::Kernel, Vec::new())) };
        let place = self.all.places.place(&self.target, dir, &text, may_be_empty)?;
        // With another root directory or other mounts, the path names another file.
        if place != Resolver::Kernel && self.target.view()? != self.all.view {
            let is_seated = || self.all.places.directory_of(&self.target).is_some();
            return match text.first() != Some(&b'/') && dir == HERE && is_seated() {
                // The kernel would resolve it from another directory.
                true => Err(libc::EXDEV),
                false => Ok((Resolver::Kernel, text)),
            };
        }
        Ok((place, text))
    }

    fn find(&self, at: At) -> Result<Found, i32> {
        Ok(match self.place(at)?.0 {
            Resolver::Kernel => Found::Kernel,
            Resolver::Asked(path) => Found::Asked(path),
        })
    }

    /// All that is done for the program goes through here: as its user, and only while its call
    /// waits.
    fn acting<T>(&self, identity: &Identity, mut calls: impl FnMut() -> Result<T, i32>) -> Result<T, i32> {
        self.all.far.acting(identity, || if self.target.still_waits() { calls() } else { Err(libc::ESRCH) })
    }

    /// The identity to act with; with `real`, that of the user who started the program.
    fn identity(&self, real: bool) -> Result<Identity, i32> {
        match self.all.far.only_identity() {
            Some(only) => Ok(only.clone()),
            None => Ok(self.target.status()?.identity(real)),
        }
    }

    /// A call with one path whose result is a number.
    fn one(&self, at: At, call: impl Fn(&CStr) -> Result<i64, i32>) -> Outcome {
        let Found::Asked(path) = self.find(at)? else { return Ok(Reply::Continue) };
        self.done_with(&path, call)
    }

    /// The same, where more must be known of the program.
    fn one_knowing(&self, at: At, call: impl Fn(&CStr, &Status) -> Result<i64, i32>) -> Outcome {
        let Found::Asked(path) = self.find(at)? else { return Ok(Reply::Continue) };
        let status = self.target.status()?;
        self.acting(&status.identity(false), || call(&path, &status)).map(Reply::Value)
    }

    /// The same, with a path that was found.
    fn done_with(&self, path: &CStr, call: impl Fn(&CStr) -> Result<i64, i32>) -> Outcome {
        self.acting(&self.identity(false)?, || call(path)).map(Reply::Value)
    }

    /// A call with one path whose result is a number and bytes in the program's memory.
    fn giving(&self, at: At, to: u64, call: impl Fn(&CStr) -> Result<(i64, Vec<u8>), i32>) -> Outcome {
        let Found::Asked(path) = self.find(at)? else { return Ok(Reply::Continue) };
        let identity = self.identity(false)?;
        let (value, bytes) = self.acting(&identity, || call(&path))?;
        self.target.write(to, &bytes)?;
        Ok(Reply::Value(value))
    }

    fn open(&self, at: At, flags: c_int, mode: u32) -> Outcome {
        let Found::Asked(path) = self.find(at)? else { return Ok(Reply::Continue) };
        let creates = flags & (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) != 0;
        let umask = if creates { self.target.status()?.umask() } else { 0 };
        let identity = self.identity(false)?;
        // The kernel passes no O_PATH descriptors on, so the file is opened for reading instead.
        let wanted = if flags & libc::O_PATH != 0 {
            flags & !(libc::O_PATH | libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) | libc::O_NONBLOCK
        } else {
            flags
        };
        let opened = self.acting(&identity, || far::open(&path, wanted, mode & 0o7777, umask));
        match opened {
            Ok(fd) => {
                if flags & libc::O_DIRECT != 0 {
                    // The plug-in leaves O_DIRECT out, since it knows nothing of the program's
                    // buffers; here the kernel sees them. SAFETY: a descriptor of ours and numbers.
                    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags & !libc::O_CREAT) };
                }
                Ok(Reply::Descriptor(fd, flags & libc::O_CLOEXEC != 0))
            }
            Err(libc::EINPROGRESS) => {
                let right = match flags & libc::O_ACCMODE {
                    libc::O_RDONLY => libc::R_OK,
                    libc::O_WRONLY => libc::W_OK,
                    _ => libc::R_OK | libc::W_OK,
                };
                let fifo = self.acting(&identity, || {
                    px!(px_access(ROOT, path.as_ptr(), right, libc::AT_EACCESS))?;
                    far::open(&path, libc::O_PATH | flags & libc::O_NOFOLLOW, 0, 0)
                })?;
                fifo::open_later(&self.all.listener, &self.all.far, *self.notice, fifo, flags, identity)
            }
            // A symbolic link itself: programs expect that some systems cannot open it.
            Err(libc::ELOOP) if flags & libc::O_PATH != 0 && flags & libc::O_NOFOLLOW != 0 => {
                Err(libc::EOPNOTSUPP)
            }
            Err(error) => Err(error),
        }
    }

    fn open_how(&self) -> Outcome {
        let at = At(self.int(0), self.word(1), false);
        let (place, text) = self.place(at)?;
        if place == Resolver::Kernel {
            return Ok(Reply::Continue);
        }
        if self.word(3) < 24 {
            return Err(libc::EINVAL);
        }
        let [flags, mode, resolve] = self.reading(|target| target.words(self.word(2)))?;
        self.check_how([flags, mode, resolve])?;
        if resolve == 0 {
            return self.open(at, flags as c_int, mode as u32);
        }
        // Passed on is what keeps a relative path below a far directory: this process may reach
        // more than the program. ENOSYS makes programs use an older call.
        let climbs = text.split(|byte| *byte == b'/').any(|part| part == b"..");
        let stays = resolve & (libc::RESOLVE_BENEATH | libc::RESOLVE_IN_ROOT) != 0
            || resolve & libc::RESOLVE_NO_SYMLINKS != 0 && !climbs;
        let passes = stays && text.first() != Some(&b'/') && flags & libc::O_PATH as u64 == 0;
        let base = self.all.places.directory_of(&self.target).filter(|_| passes && at.0 == HERE);
        let base = CString::new(base.ok_or(libc::ENOSYS)?).map_err(|_| libc::EINVAL)?;
        let text = CString::new(text).map_err(|_| libc::EINVAL)?;
        let creates = flags & (libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY) as u64 != 0;
        let mask = if creates { self.target.status()?.umask() } else { 0 };
        let how = [flags | libc::O_CLOEXEC as u64, mode & !u64::from(mask), resolve];
        let fd = self.acting(&self.identity(false)?, || {
            let base = far::open(&base, libc::O_PATH | libc::O_DIRECTORY, 0, 0)?;
            let (at, path, bytes) = (base.as_raw_fd(), text.as_ptr(), size_of_val(&how));
            // SAFETY: a descriptor of ours, a string, and the kernel's structure.
            let fd = unsafe { libc::syscall(libc::SYS_openat2, at, path, &raw const how, bytes) };
            if fd < 0 {
                return Err(errno());
            }
            // SAFETY: new, and nobody else's.
            Ok(unsafe { OwnedFd::from_raw_fd(fd as c_int) })
        })?;
        Ok(Reply::Descriptor(fd, flags & libc::O_CLOEXEC as u64 != 0))
    }

    /// What the kernel says of openat2's structure, and of what is behind the part that is known.
    fn check_how(&self, known: [u64; 3]) -> Result<(), i32> {
        let bytes = size_of_val(&known);
        let rest = usize::try_from(self.word(3)).unwrap_or(usize::MAX).saturating_sub(bytes);
        if rest > 4096 - bytes {
            return Err(libc::E2BIG);
        }
        let mut behind = vec![0; rest];
        let from = self.word(2).wrapping_add(bytes as u64);
        self.reading(|target| match rest == 0 || target.read(from, &mut behind) {
            true => Ok(()),
            false => Err(libc::EFAULT),
        })?;
        if behind.iter().any(|byte| *byte != 0) {
            return Err(libc::E2BIG);
        }
        // A number that is no directory's keeps the kernel from opening anything.
        // SAFETY: a string, and a structure of that size.
        unsafe { libc::syscall(libc::SYS_openat2, -1, c".".as_ptr(), known.as_ptr(), bytes) };
        match errno() {
            libc::EBADF => Ok(()),
            error => Err(error),
        }
    }

    /// The file is made as long by another process, whose limit is not the program's.
    fn truncate(&self, address: u64, length: i64) -> Outcome {
        let limit = self.target.largest_file();
        let process = self.target.status()?.process();
        let is_limited = std::cell::Cell::new(false);
        let done = self.one(At(HERE, address, false), |path| {
            if limit.is_some_and(|limit| u64::try_from(length).is_ok_and(|length| length > limit)) {
                let stat = self.look(path, 0, libc::STATX_TYPE | libc::STATX_SIZE)?;
                if stat.mode & libc::S_IFMT == libc::S_IFREG && stat.size < length.cast_unsigned() {
                    is_limited.set(true);
                    return Err(libc::EFBIG);
                }
            }
            px!(px_truncate(ROOT, path.as_ptr(), length)).map(i64::from)
        });
        if is_limited.get() && self.target.still_waits() {
            // SAFETY: numbers only.
            unsafe { libc::syscall(libc::SYS_tgkill, process, self.target.tid, libc::SIGXFSZ) };
        }
        done
    }

    fn look(&self, path: &CStr, flags: c_int, mask: u32) -> Result<PxStat, i32> {
        let mut stat = PxStat::default();
        px!(px_stat(ROOT, path.as_ptr(), flags & !libc::AT_EMPTY_PATH, mask, (&raw mut stat).cast()))?;
        Ok(stat)
    }

    fn stat(&self, at: At, flags: c_int, to: u64) -> Outcome {
        self.giving(at, to, |path| {
            only(flags, OF_STAT)?;
            let stat = self.look(path, flags, libc::STATX_BASIC_STATS)?;
            Ok((0, records::bytes(&records::stat(&stat)).to_vec()))
        })
    }

    fn statx(&self) -> Outcome {
        let flags = self.int(2);
        let at = At(self.int(0), self.word(1), flags & libc::AT_EMPTY_PATH != 0);
        self.giving(at, self.word(4), |path| {
            // As the kernel: no answer is fresh and cached at a time, and one bit is for later use.
            only(flags, OF_STAT | libc::AT_STATX_SYNC_TYPE)?;
            let both = flags & libc::AT_STATX_SYNC_TYPE == libc::AT_STATX_SYNC_TYPE;
            if both || self.number(3) & 1 << 31 != 0 {
                return Err(libc::EINVAL);
            }
            let stat = self.look(path, flags, self.number(3))?;
            Ok((0, records::bytes(&records::statx(&stat)).to_vec()))
        })
    }

    fn access(&self, at: At, mode: c_int, flags: c_int) -> Outcome {
        let Found::Asked(path) = self.find(at)? else { return Ok(Reply::Continue) };
        only(flags, libc::AT_SYMLINK_NOFOLLOW | libc::AT_EACCESS | libc::AT_EMPTY_PATH)?;
        let identity = self.identity(flags & libc::AT_EACCESS == 0)?;
        let asked = self.acting(&identity, || px!(px_access(ROOT, path.as_ptr(), mode, flags)));
        asked.map(|value| Reply::Value(value.into()))
    }

    fn readlink(&self, at: At, to: u64, size: c_int) -> Outcome {
        self.giving(at, to, |path| {
            let size = usize::try_from(size).ok().filter(|size| *size > 0).ok_or(libc::EINVAL)?;
            let mut name = vec![0_u8; PATH_MAX];
            let mut room = name.len() as u64;
            px!(px_readlink(ROOT, path.as_ptr(), name.as_mut_ptr().cast(), &raw mut room))?;
            name.truncate(room as usize);
            if name.first() == Some(&b'/') {
                name = self.all.places.name_of(&name);
            }
            name.truncate(size);
            Ok((name.len() as i64, name))
        })
    }

    fn mkdir(&self, at: At, mode: u32) -> Outcome {
        self.one_knowing(at, |path, status| {
            px!(px_mkdir(ROOT, path.as_ptr(), mode & 0o7777, status.umask())).map(i64::from)
        })
    }

    fn mknod(&self, at: At, mode: u32, device: u32) -> Outcome {
        self.one_knowing(at, |path, status| {
            px!(px_mknod(ROOT, path.as_ptr(), mode, device.into(), status.umask())).map(i64::from)
        })
    }

    fn unlink(&self, at: At, flags: c_int) -> Outcome {
        self.one(at, |path| {
            only(flags, libc::AT_REMOVEDIR)?;
            px!(px_unlink(ROOT, path.as_ptr(), flags)).map(i64::from)
        })
    }

    /// A call with two paths, both forwarded or both local.
    fn two(&self, old: At, new: At, call: impl Fn(&CStr, &CStr) -> Result<i64, i32>) -> Outcome {
        // The kernel says what is wrong with the first path. It looks for that file first.
        if self.text(old.1)?.is_none() {
            return Ok(Reply::Continue);
        }
        if self.text(new.1)?.is_none() && self.place(old)?.0 != Resolver::Kernel {
            let is_there = self.reading(|target| Ok(target.read(new.1, &mut [0])))?;
            return Err(if is_there { libc::ENAMETOOLONG } else { libc::EFAULT });
        }
        let named = |at: At, (place, text): (Resolver, Vec<u8>)| match place {
            Resolver::Asked(path) => Ok((path, true)),
            Resolver::Kernel => self.all.places.absolute(&self.target, at.0, &text).ok_or(libc::EXDEV),
        };
        let (from, to) = (self.place(old)?, self.place(new)?);
        if from.0 == Resolver::Kernel && to.0 == Resolver::Kernel {
            return Ok(Reply::Continue);
        }
        let ((old, old_far), (new, new_far)) = (named(old, from)?, named(new, to)?);
        if old_far != new_far {
            return Err(libc::EXDEV);
        }
        self.acting(&self.identity(false)?, || call(&old, &new)).map(Reply::Value)
    }

    fn rename(&self, old: At, new: At, flags: u32) -> Outcome {
        self.two(old, new, |old, new| {
            px!(px_rename(ROOT, old.as_ptr(), ROOT, new.as_ptr(), flags)).map(i64::from)
        })
    }

    fn link(&self, old: At, new: At, flags: c_int) -> Outcome {
        self.two(old, new, |old, new| {
            only(flags, libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH)?;
            let flags = flags & !libc::AT_EMPTY_PATH;
            px!(px_link(ROOT, old.as_ptr(), ROOT, new.as_ptr(), flags)).map(i64::from)
        })
    }

    fn symlink(&self, to: u64, at: At) -> Outcome {
        let (place, text) = self.place(at)?;
        let Some(given) = self.text(to)? else { return Ok(Reply::Continue) };
        let to = self.all.places.link_target(given.clone());
        let path = match place {
            Resolver::Asked(path) => path,
            // Below a far directory that the program has open, the kernel would not translate the
            // target.
            Resolver::Kernel if to != given => match self.all.places.absolute(&self.target, at.0, &text) {
                Some((path, true)) => path,
                _ => return Ok(Reply::Continue),
            },
            Resolver::Kernel => return Ok(Reply::Continue),
        };
        let to = CString::new(to).map_err(|_| libc::EINVAL)?;
        let identity = self.identity(false)?;
        self.acting(&identity, || px!(px_symlink(to.as_ptr(), ROOT, path.as_ptr())))
            .map(|value| Reply::Value(value.into()))
    }

    fn chmod(&self, at: At, mode: u32, flags: c_int) -> Outcome {
        self.one(at, |path| {
            only(flags, OF_OWNERS)?;
            px!(px_chmod(ROOT, path.as_ptr(), mode & 0o7777, flags & !libc::AT_EMPTY_PATH)).map(i64::from)
        })
    }

    fn chown(&self, at: At, uid: u32, gid: u32, flags: c_int) -> Outcome {
        self.one(at, |path| {
            only(flags, OF_OWNERS)?;
            px!(px_chown(ROOT, path.as_ptr(), uid, gid, flags & !libc::AT_EMPTY_PATH)).map(i64::from)
        })
    }

    fn utimens(&self, at: At, times: u64, flags: c_int) -> Outcome {
        // Without a path the call means the descriptor.
        if at.1 == 0 {
            return Ok(Reply::Continue);
        }
        self.set_times(at, times, flags, |target, address| target.words(address))
    }

    #[cfg(target_arch = "x86_64")]
    fn utimes(&self, at: At, times: u64, read: fn(&Target, u64) -> Result<[u64; 4], i32>) -> Outcome {
        if at.1 == 0 {
            return Ok(Reply::Continue);
        }
        self.set_times(at, times, 0, read)
    }

    /// Seconds and nanoseconds, as `read` finds them.
    fn set_times(
        &self,
        at: At,
        times: u64,
        flags: c_int,
        read: impl Fn(&Target, u64) -> Result<[u64; 4], i32>,
    ) -> Outcome {
        let Found::Asked(path) = self.find(at)? else { return Ok(Reply::Continue) };
        only(flags, OF_OWNERS)?;
        let read = if times == 0 { None } else { Some(self.reading(|target| read(target, times))?) };
        self.done_with(&path, |path| {
            let times = read.as_ref().map_or(std::ptr::null(), |times| times.as_ptr());
            px!(px_utimes(ROOT, path.as_ptr(), times.cast(), flags)).map(i64::from)
        })
    }

    fn statfs(&self) -> Outcome {
        self.giving(At(HERE, self.word(0), false), self.word(1), |path| {
            let mut found = StatFs::default();
            px!(px_statfs(ROOT, path.as_ptr(), (&raw mut found).cast()))?;
            // The kernel's structure has the same numbers in the same order, and four spare ones.
            let words = found.0.iter().chain(&[0; 4]);
            Ok((0, words.flat_map(|word| word.to_ne_bytes()).collect()))
        })
    }

    fn name(&self, address: u64) -> Result<CString, i32> {
        let name = self.text(address)?.ok_or(libc::EFAULT)?;
        if name.len() > 255 {
            return Err(libc::ERANGE);
        }
        CString::new(name).map_err(|_| libc::EINVAL)
    }

    fn chdir(&self, address: u64) -> Outcome {
        let (place, text) = self.place(At(HERE, address, false))?;
        let path = match place {
            Resolver::Asked(path) => path,
            // The program leaves a directory that only the supervisor knows. The kernel does not
            // tell whether its own change fails, so check that first.
            Resolver::Kernel if self.all.places.directory_of(&self.target).is_some() => {
                if text.first() != Some(&b'/') {
                    return Err(libc::EFAULT);
                }
                let (identity, root) = (self.identity(false)?, self.target.root()?);
                let whereto = self.all.far.as_them(&identity, || enterable(&root, &text))?;
                return self.all.places.leave(&self.target, whereto).map(|()| Reply::Continue);
            }
            Resolver::Kernel => return Ok(Reply::Continue),
        };
        self.go(&path)
    }

    fn go(&self, path: &CStr) -> Outcome {
        let directory = self.acting(&self.identity(false)?, || {
            let directory = far::open(path, libc::O_PATH | libc::O_DIRECTORY, 0, 0)?;
            px!(px_access(ROOT, path.as_ptr(), libc::X_OK, libc::AT_EACCESS)).map(|_| directory)
        })?;
        self.all.places.enter(&self.target, directory).map(|()| Reply::Value(0))
    }

    fn fchdir(&self, fd: c_int) -> Outcome {
        if self.all.places.directory_of(&self.target).is_none() {
            return Ok(Reply::Continue);
        }
        // The kernel knows the error for a bad descriptor.
        let Some(name) = self.target.link(&format!("fd/{fd}")) else { return Ok(Reply::Continue) };
        self.target.directory(&format!("fd/{fd}"))?;
        if self.all.places.is_far(&name) {
            return self.go(&CString::new(name).map_err(|_| libc::EINVAL)?);
        }
        let (identity, directory) = (self.identity(false)?, self.target.descriptor(fd)?);
        let whereto = self.all.far.as_them(&identity, || may_enter(&directory))?;
        self.all.places.leave(&self.target, whereto).map(|()| Reply::Continue)
    }

    fn getcwd(&self, to: u64, size: u64) -> Outcome {
        let Some(directory) = self.all.places.directory_of(&self.target) else { return Ok(Reply::Continue) };
        let mut name = self.all.places.name_of(&directory);
        name.push(0);
        if name.len() as u64 > size {
            return Err(libc::ERANGE);
        }
        self.target.write(to, &name)?;
        Ok(Reply::Value(name.len() as i64))
    }

    /// The kernel resolves the path of a program to execute by itself, so far programs cannot be
    /// executed.
    fn execute(&self, at: At) -> Outcome {
        match self.find(at)? {
            Found::Kernel => Ok(Reply::Continue),
            Found::Asked(path) => {
                let identity = self.identity(false)?;
                self.acting(&identity, || self.look(&path, 0, libc::STATX_TYPE))?;
                Err(libc::EACCES)
            }
        }
    }
}

/// What stat and its kin know, and the calls that change permissions, owners and times.
const OF_STAT: c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH;
const OF_OWNERS: c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;

/// EINVAL for flags besides those that a call knows, as from the kernel.
fn only(flags: c_int, known: c_int) -> Result<(), i32> {
    if flags & !known == 0 { Ok(()) } else { Err(libc::EINVAL) }
}

/// Two `struct timeval`.
#[cfg(target_arch = "x86_64")]
fn microseconds(target: &Target, address: u64) -> Result<[u64; 4], i32> {
    let [access, access_us, modification, modification_us] = target.words(address)?;
    let nanoseconds = |us: u64| if us < 1_000_000 { Ok(us * 1000) } else { Err(libc::EINVAL) };
    Ok([access, nanoseconds(access_us)?, modification, nanoseconds(modification_us)?])
}
