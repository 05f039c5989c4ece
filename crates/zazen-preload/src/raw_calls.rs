//! `syscall()` for the calls that have hooks, and libc's variadic functions.

use crate::far::{Destination, place};
use crate::real::{give, set_errno};
use crate::{fault, state, told};
use std::ffi::{c_char, c_int, c_long};
use zazen_forward_api::paths::Text;

/// Exports a C function of variadic.c under libc's name: every register is left as it was.
macro_rules! jumps {
    ($($name:ident => $target:ident;)*) => {
        unsafe extern "C" { $(fn $target();)* }
        $(
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub(crate) unsafe extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                std::arch::naked_asm!("jmp {}", sym $target);
                #[cfg(target_arch = "aarch64")]
                std::arch::naked_asm!("b {}", sym $target);
            }
        )*
    };
}

jumps! {
    dprintf => zazen_preload_dprintf;
    vdprintf => zazen_preload_vdprintf;
    __dprintf_chk => zazen_preload_dprintf_chk;
    __vdprintf_chk => zazen_preload_vdprintf_chk;
    execl => zazen_preload_execl;
    execlp => zazen_preload_execlp;
    execle => zazen_preload_execle;
}

macro_rules! by_number {
    ($number:expr, $a:ident; $($call:path => $path:path, ($($at:tt: $type:ty),*);)*) => {
        match $number {
            $($call => Some($path($($a[$at] as $type),*) as c_long),)*
            _ => None,
        }
    };
}

/// The hook of a system call that a program makes by number.
unsafe fn hooked(number: c_long, a: [usize; 6]) -> Option<c_long> {
    use crate::{
        by_descriptor, data, descriptors, directories, dup, events, fault, metadata, names, open, others,
    };
    use crate::{process, sockets, watch};
    // SAFETY: the program's arguments, of the types that the call takes.
    unsafe {
        by_number! { number, a;
            libc::SYS_read => data::read, (0: c_int, 1: *mut _, 2: usize);
            libc::SYS_write => data::write, (0: c_int, 1: *const _, 2: usize);
            libc::SYS_pread64 => data::pread, (0: c_int, 1: *mut _, 2: usize, 3: i64);
            libc::SYS_pwrite64 => data::pwrite, (0: c_int, 1: *const _, 2: usize, 3: i64);
            libc::SYS_readv => data::readv, (0: c_int, 1: *const _, 2: c_int);
            libc::SYS_writev => data::writev, (0: c_int, 1: *const _, 2: c_int);
            libc::SYS_preadv => data::preadv, (0: c_int, 1: *const _, 2: c_int, 3: i64);
            libc::SYS_pwritev => data::pwritev, (0: c_int, 1: *const _, 2: c_int, 3: i64);
            libc::SYS_preadv2 => data::preadv2, (0: c_int, 1: *const _, 2: c_int, 3: i64, 5: c_int);
            libc::SYS_pwritev2 => data::pwritev2, (0: c_int, 1: *const _, 2: c_int, 3: i64, 5: c_int);
            libc::SYS_lseek => data::lseek, (0: c_int, 1: i64, 2: c_int);
            libc::SYS_fsync => data::fsync, (0: c_int);
            libc::SYS_fdatasync => data::fdatasync, (0: c_int);
            libc::SYS_syncfs => data::syncfs, (0: c_int);
            libc::SYS_sync_file_range => data::sync_file_range, (0: c_int, 1: i64, 2: i64, 3: u32);
            libc::SYS_ftruncate => data::ftruncate, (0: c_int, 1: i64);
            libc::SYS_truncate => data::truncate, (0: *const _, 1: i64);
            libc::SYS_fallocate => data::fallocate, (0: c_int, 1: c_int, 2: i64, 3: i64);
            libc::SYS_readahead => data::readahead, (0: c_int, 1: i64, 2: usize);
            libc::SYS_copy_file_range => data::copy_file_range,
                (0: c_int, 1: *mut _, 2: c_int, 3: *mut _, 4: usize, 5: u32);
            libc::SYS_sendfile => data::sendfile, (0: c_int, 1: c_int, 2: *mut _, 3: usize);
            libc::SYS_splice => data::splice, (0: c_int, 1: *mut _, 2: c_int, 3: *mut _, 4: usize, 5: u32);
            libc::SYS_tee => data::tee, (0: c_int, 1: c_int, 2: usize, 3: u32);
            libc::SYS_vmsplice => data::vmsplice, (0: c_int, 1: *const _, 2: usize, 3: u32);
            libc::SYS_prlimit64 => data::prlimit, (0: c_int, 1: c_int, 2: *const _, 3: *mut _);
            libc::SYS_setrlimit => data::setrlimit, (0: c_int, 1: *const _);
            libc::SYS_openat => open::openat, (0: c_int, 1: *const _, 2: c_int, 3: u32);
            libc::SYS_close => descriptors::close, (0: c_int);
            libc::SYS_close_range => descriptors::close_range, (0: u32, 1: u32, 2: c_int);
            libc::SYS_dup => dup::dup, (0: c_int);
            libc::SYS_dup3 => dup::dup3, (0: c_int, 1: c_int, 2: c_int);
            libc::SYS_fcntl => descriptors::fcntl, (0: c_int, 1: c_int, 2: usize);
            libc::SYS_flock => descriptors::flock, (0: c_int, 1: c_int);
            libc::SYS_ioctl => descriptors::ioctl, (0: c_int, 1: u64, 2: usize);
            libc::SYS_epoll_ctl => events::epoll_ctl, (0: c_int, 1: c_int, 2: c_int, 3: *mut _);
            libc::SYS_getdents64 => directories::getdents64, (0: c_int, 1: *mut _, 2: usize);
            libc::SYS_statx => metadata::statx, (0: c_int, 1: *const _, 2: c_int, 3: u32, 4: *mut _);
            libc::SYS_newfstatat => metadata::fstatat, (0: c_int, 1: *const _, 2: *mut _, 3: c_int);
            libc::SYS_fstat => metadata::fstat, (0: c_int, 1: *mut _);
            libc::SYS_statfs => metadata::statfs, (0: *const _, 1: *mut _);
            libc::SYS_fstatfs => metadata::fstatfs, (0: c_int, 1: *mut _);
            libc::SYS_faccessat2 => metadata::faccessat, (0: c_int, 1: *const _, 2: c_int, 3: c_int);
            libc::SYS_fchmod => metadata::fchmod, (0: c_int, 1: u32);
            SYS_FCHMODAT2 => metadata::fchmodat, (0: c_int, 1: *const _, 2: u32, 3: c_int);
            libc::SYS_fchown => metadata::fchown, (0: c_int, 1: u32, 2: u32);
            libc::SYS_fchownat => metadata::fchownat, (0: c_int, 1: *const _, 2: u32, 3: u32, 4: c_int);
            libc::SYS_getxattr => metadata::getxattr, (0: *const _, 1: *const _, 2: *mut _, 3: usize);
            libc::SYS_lgetxattr => metadata::lgetxattr, (0: *const _, 1: *const _, 2: *mut _, 3: usize);
            libc::SYS_fgetxattr => metadata::fgetxattr, (0: c_int, 1: *const _, 2: *mut _, 3: usize);
            libc::SYS_listxattr => metadata::listxattr, (0: *const _, 1: *mut _, 2: usize);
            libc::SYS_llistxattr => metadata::llistxattr, (0: *const _, 1: *mut _, 2: usize);
            libc::SYS_flistxattr => metadata::flistxattr, (0: c_int, 1: *mut _, 2: usize);
            libc::SYS_setxattr => metadata::setxattr,
                (0: *const _, 1: *const _, 2: *const _, 3: usize, 4: c_int);
            libc::SYS_lsetxattr => metadata::lsetxattr,
                (0: *const _, 1: *const _, 2: *const _, 3: usize, 4: c_int);
            libc::SYS_fsetxattr => metadata::fsetxattr,
                (0: c_int, 1: *const _, 2: *const _, 3: usize, 4: c_int);
            libc::SYS_removexattr => metadata::removexattr, (0: *const _, 1: *const _);
            libc::SYS_lremovexattr => metadata::lremovexattr, (0: *const _, 1: *const _);
            libc::SYS_fremovexattr => metadata::fremovexattr, (0: c_int, 1: *const _);
            libc::SYS_renameat2 => names::renameat2, (0: c_int, 1: *const _, 2: c_int, 3: *const _, 4: u32);
            libc::SYS_unlinkat => names::unlinkat, (0: c_int, 1: *const _, 2: c_int);
            libc::SYS_mkdirat => names::mkdirat, (0: c_int, 1: *const _, 2: u32);
            libc::SYS_mknodat => names::mknodat, (0: c_int, 1: *const _, 2: u32, 3: u64);
            libc::SYS_symlinkat => names::symlinkat, (0: *const _, 1: c_int, 2: *const _);
            libc::SYS_linkat => names::linkat, (0: c_int, 1: *const _, 2: c_int, 3: *const _, 4: c_int);
            libc::SYS_readlinkat => names::readlinkat, (0: c_int, 1: *const _, 2: *mut _, 3: usize);
            libc::SYS_chdir => names::chdir, (0: *const _);
            libc::SYS_fchdir => names::fchdir, (0: c_int);
            libc::SYS_umask => names::umask, (0: u32);
            libc::SYS_chroot => others::chroot, (0: *const _);
            libc::SYS_unshare => others::unshare, (0: c_int);
            libc::SYS_setns => others::setns, (0: c_int, 1: c_int);
            libc::SYS_name_to_handle_at => others::name_to_handle_at,
                (0: c_int, 1: *const _, 2: *mut _, 3: *mut _, 4: c_int);
            libc::SYS_open_by_handle_at => others::open_by_handle_at, (0: c_int, 1: *mut _, 2: c_int);
            libc::SYS_inotify_add_watch => watch::inotify_add_watch, (0: c_int, 1: *const _, 2: u32);
            libc::SYS_fanotify_mark => watch::fanotify_mark,
                (0: c_int, 1: u32, 2: u64, 3: c_int, 4: *const _);
            libc::SYS_execve => process::execve, (0: *const _, 1: *const _, 2: *const _);
            libc::SYS_execveat => by_descriptor::execveat,
                (0: c_int, 1: *const _, 2: *const _, 3: *const _, 4: c_int);
            libc::SYS_socket => sockets::socket, (0: c_int, 1: c_int, 2: c_int);
            libc::SYS_bind => sockets::bind, (0: c_int, 1: *const _, 2: u32);
            libc::SYS_connect => sockets::connect, (0: c_int, 1: *const _, 2: u32);
            libc::SYS_listen => sockets::listen, (0: c_int, 1: c_int);
            libc::SYS_accept => sockets::accept, (0: c_int, 1: *mut _, 2: *mut _);
            libc::SYS_accept4 => sockets::accept4, (0: c_int, 1: *mut _, 2: *mut _, 3: c_int);
            libc::SYS_sendto => sockets::sendto,
                (0: c_int, 1: *const _, 2: usize, 3: c_int, 4: *const _, 5: u32);
            libc::SYS_recvfrom => sockets::recvfrom,
                (0: c_int, 1: *mut _, 2: usize, 3: c_int, 4: *mut _, 5: *mut _);
            libc::SYS_sendmsg => sockets::sendmsg, (0: c_int, 1: *const _, 2: c_int);
            libc::SYS_recvmsg => sockets::recvmsg, (0: c_int, 1: *mut _, 2: c_int);
            libc::SYS_sendmmsg => sockets::sendmmsg, (0: c_int, 1: *mut _, 2: u32, 3: c_int);
            libc::SYS_recvmmsg => sockets::recvmmsg, (0: c_int, 1: *mut _, 2: u32, 3: c_int, 4: *mut _);
            libc::SYS_getsockopt => sockets::getsockopt, (0: c_int, 1: c_int, 2: c_int, 3: *mut _, 4: *mut _);
            libc::SYS_setsockopt => sockets::setsockopt, (0: c_int, 1: c_int, 2: c_int, 3: *const _, 4: u32);
            libc::SYS_getsockname => sockets::getsockname, (0: c_int, 1: *mut _, 2: *mut _);
            libc::SYS_getpeername => sockets::getpeername, (0: c_int, 1: *mut _, 2: *mut _);
            libc::SYS_shutdown => sockets::shutdown, (0: c_int, 1: c_int);
            libc::SYS_rt_sigaction => fault::rt_sigaction, (0: c_int, 1: *const _, 2: *mut _, 3: usize);
        }
    }
}

/// Since Linux 6.6.
const SYS_FCHMODAT2: c_long = 452;

/// The hook of a call that only older architectures have.
#[cfg(target_arch = "x86_64")]
unsafe fn hooked_old(number: c_long, a: [usize; 6]) -> Option<c_long> {
    use crate::{dup, events, metadata, names, open, poll};
    const CREATES: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
    // SAFETY: as above.
    unsafe {
        match number {
            libc::SYS_creat => {
                return Some(open::open(a[0] as *const _, CREATES, a[1] as u32).into());
            }
            libc::SYS_getdents => {
                return crate::directories::getdents_old(a[0] as c_int, a[1] as *mut _, a[2]);
            }
            _ => {}
        }
        by_number! { number, a;
            libc::SYS_open => open::open, (0: *const _, 1: c_int, 2: u32);
            libc::SYS_stat => metadata::stat, (0: *const _, 1: *mut _);
            libc::SYS_lstat => metadata::lstat, (0: *const _, 1: *mut _);
            libc::SYS_access => metadata::access, (0: *const _, 1: c_int);
            libc::SYS_chmod => metadata::chmod, (0: *const _, 1: u32);
            libc::SYS_chown => metadata::chown, (0: *const _, 1: u32, 2: u32);
            libc::SYS_lchown => metadata::lchown, (0: *const _, 1: u32, 2: u32);
            libc::SYS_utime => metadata::utime, (0: *const _, 1: *const _);
            libc::SYS_utimes => metadata::utimes, (0: *const _, 1: *const _);
            libc::SYS_futimesat => metadata::futimesat, (0: c_int, 1: *const _, 2: *const _);
            libc::SYS_rename => names::rename, (0: *const _, 1: *const _);
            libc::SYS_renameat => names::renameat, (0: c_int, 1: *const _, 2: c_int, 3: *const _);
            libc::SYS_link => names::link, (0: *const _, 1: *const _);
            libc::SYS_symlink => names::symlink, (0: *const _, 1: *const _);
            libc::SYS_unlink => names::unlink, (0: *const _);
            libc::SYS_rmdir => names::rmdir, (0: *const _);
            libc::SYS_mkdir => names::mkdir, (0: *const _, 1: u32);
            libc::SYS_mknod => names::mknod, (0: *const _, 1: u32, 2: u64);
            libc::SYS_readlink => names::readlink, (0: *const _, 1: *mut _, 2: usize);
            libc::SYS_dup2 => dup::dup2, (0: c_int, 1: c_int);
            libc::SYS_epoll_wait => events::epoll_wait, (0: c_int, 1: *mut _, 2: c_int, 3: c_int);
            libc::SYS_poll => poll::poll, (0: *mut _, 1: u64, 2: c_int);
            libc::SYS_select => poll::select, (0: c_int, 1: *mut _, 2: *mut _, 3: *mut _, 4: *mut _);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn hooked_old(_number: c_long, _a: [usize; 6]) -> Option<c_long> {
    None
}

/// Calls whose hooks take or give something else than the kernel's do.
unsafe fn hooked_otherwise(number: c_long, a: [usize; 6]) -> Option<c_long> {
    // SAFETY: the program's arguments.
    unsafe {
        match number {
            libc::SYS_faccessat => {
                let (dir, path) = (a[0] as c_int, a[1] as *const _);
                Some(crate::metadata::faccessat(dir, path, a[2] as c_int, 0).into())
            }
            libc::SYS_fchmodat => {
                let (dir, path) = (a[0] as c_int, a[1] as *const _);
                Some(crate::metadata::fchmodat(dir, path, a[2] as u32, 0).into())
            }
            libc::SYS_utimensat => {
                let (dir, path, times, flags) = (a[0] as c_int, a[1] as *const c_char, a[2], a[3] as c_int);
                // Without a path: the descriptor, which libc calls futimens.
                if path.is_null() {
                    crate::table::entry(dir)?;
                    return Some(match flags {
                        0 => crate::metadata::futimens(dir, times as *const _).into(),
                        _ => give(Err(libc::EINVAL)),
                    });
                }
                Some(crate::metadata::utimensat(dir, path, times as *const _, flags).into())
            }
            // Allocators of memory make this call before anything else works.
            libc::SYS_mmap if crate::table::entry(a[4] as c_int).is_some() => {
                let (at, length, offset) = (a[0] as *mut _, a[1], a[5] as i64);
                let (protection, flags, fd) = (a[2] as c_int, a[3] as c_int, a[4] as c_int);
                Some(crate::memory::mmap(at, length, protection, flags, fd, offset) as c_long)
            }
            libc::SYS_getcwd => {
                // The kernel counts the bytes, and allocates none.
                let mut text = Text::new();
                let named = match crate::far::far_cwd() {
                    Some(cwd) => crate::far::name_of(cwd, &mut text),
                    None if crate::near::renames() => crate::cwd::ask_kernel(&mut text),
                    None => return None,
                };
                let (to, bytes) = (a[0] as *mut c_char, text.as_bytes().len() + 1);
                let told = named.and_then(|()| {
                    if bytes > a[1] {
                        return Err(libc::ERANGE);
                    }
                    if !fault::writable(to, bytes) {
                        return Err(libc::EFAULT);
                    }
                    std::ptr::copy_nonoverlapping(text.as_ptr(), to, bytes);
                    Ok(bytes as c_long)
                });
                Some(give(told))
            }
            libc::SYS_fadvise64 => {
                let error =
                    crate::data::posix_fadvise(a[0] as c_int, a[1] as i64, a[2] as i64, a[3] as c_int);
                Some(if error == 0 { 0 } else { give(Err(error)) })
            }
            libc::SYS_epoll_pwait => {
                let mask = Mask::new(a[4], a[5]);
                let (epoll, events) = (a[0] as c_int, a[1] as *mut _);
                let (room, timeout) = (a[2] as c_int, a[3] as c_int);
                Some(crate::events::epoll_pwait(epoll, events, room, timeout, mask.as_ptr()).into())
            }
            libc::SYS_ppoll => {
                let mask = Mask::new(a[3], a[4]);
                Some(crate::poll::ppoll(a[0] as *mut _, a[1] as u64, a[2] as *const _, mask.as_ptr()).into())
            }
            libc::SYS_pselect6 => {
                // The mask's address and its size.
                let told = a[5] as *const [usize; 2];
                if !told.is_null() && !fault::readable(told, size_of::<[usize; 2]>()) {
                    return Some(give(Err::<c_long, c_int>(libc::EFAULT)));
                }
                let [at, bytes] = if told.is_null() { [0, 0] } else { told.read() };
                let mask = Mask::new(at, bytes);
                let [read, write, other] = [a[1], a[2], a[3]].map(|set| set as *mut _);
                let timeout = a[4] as *const _;
                Some(crate::poll::pselect(a[0] as c_int, read, write, other, timeout, mask.as_ptr()).into())
            }
            _ => None,
        }
    }
}

/// A signal mask as libc has it: the kernel's is shorter.
struct Mask(Option<libc::sigset_t>);

impl Mask {
    /// # Safety
    ///
    /// `at` is 0, or the address of a mask of so many bytes.
    unsafe fn new(at: usize, bytes: usize) -> Mask {
        if at == 0 {
            return Mask(None);
        }
        // SAFETY: all zeros is a valid mask; the caller's, which is no longer.
        unsafe {
            let mut mask: libc::sigset_t = std::mem::zeroed();
            let bytes = bytes.min(size_of::<libc::sigset_t>());
            std::ptr::copy_nonoverlapping(at as *const u8, (&raw mut mask).cast(), bytes);
            Mask(Some(mask))
        }
    }

    fn as_ptr(&self) -> *const libc::sigset_t {
        self.0.as_ref().map_or(std::ptr::null(), std::ptr::from_ref)
    }
}

/// Whether a call makes a process that goes on here, with a copy of this memory. A child with a
/// stack of its own can't return from this library.
unsafe fn makes_process(number: c_long, a: [usize; 6]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_fork {
        return true;
    }
    let (flags, stack) = match number {
        libc::SYS_clone => (a[0] as u64, a[1]),
        // SAFETY: the program's structure: flags are its first field, the stack its sixth.
        libc::SYS_clone3 if a[1] >= 64 && fault::readable(a[0] as *const u64, 64) => unsafe {
            let fields = a[0] as *const u64;
            (fields.read(), fields.add(5).read() as usize)
        },
        _ => return false,
    };
    flags & libc::CLONE_VM as u64 == 0 && stack == 0
}

/// Whether a call waits for what descriptors tell.
fn is_wait(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_select || number == libc::SYS_poll {
        return true;
    }
    number == libc::SYS_pselect6 || number == libc::SYS_ppoll
}

/// The fields of `struct open_how`.
#[repr(C)]
struct How {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// How a path is to be kept below the directory that it is relative to.
const KEPT_BELOW: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_IN_ROOT;

/// openat2. What `resolve` asks for is for the kernel that has the directory: where it is another
/// node's, programs have another way.
unsafe fn open_how(dir: c_int, path: *const c_char, how: usize, bytes: usize) -> Result<c_long, c_int> {
    // SAFETY: the program's structure and string.
    unsafe {
        // This machine's kernel knows what a structure may say. A number that is no directory's
        // keeps it from opening anything.
        let nowhere = [usize::MAX, c".".as_ptr() as usize, how, bytes, 0, 0];
        match crate::real::system_call(libc::SYS_openat2, nowhere) {
            Err(libc::EBADF) | Ok(_) => {}
            Err(error) => return Err(error),
        }
        let How { flags, mode, resolve } = (how as *const How).read();
        if resolve == 0 {
            return match crate::open::openat(dir, path, flags as c_int, mode as u32) {
                -1 => Err(crate::real::errno()),
                fd => Ok(fd.into()),
            };
        }
        let base = if dir == libc::AT_FDCWD { crate::cwd::far() } else { crate::table::entry(dir) };
        let Some(text) = fault::string(path) else { return Err(libc::EFAULT) };
        let from_base = resolve & KEPT_BELOW != 0 || text.to_bytes().first() != Some(&b'/');
        if let Some(base) = base
            && from_base
        {
            let given = crate::given::Given::of(base).ok_or(libc::ENOSYS)?;
            let arguments = [given.fd() as usize, path as usize, how, bytes, 0, 0];
            return crate::real::system_call(libc::SYS_openat2, arguments).map(|fd| fd as c_long);
        }
        match place(dir, path, &mut Text::new())? {
            Destination::Local(path) | Destination::Near(path) => {
                let arguments = [dir as usize, path as usize, how, bytes, 0, 0];
                crate::real::system_call(libc::SYS_openat2, arguments).map(|fd| fd as c_long)
            }
            Destination::Far(..) => Err(libc::ENOSYS),
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the program's arguments.
    unsafe {
        if state::is_active() {
            if number == libc::SYS_openat2
                && d >= size_of::<How>()
                && fault::readable(c as *const How, size_of::<How>())
            {
                return give(open_how(a as c_int, b as *const _, c, d));
            }
            if makes_process(number, [a, b, c, d, e, f]) {
                let made = crate::clones::forked(|| crate::real::system_call(number, [a, b, c, d, e, f]));
                return give(made.map(|pid| pid as c_long));
            }
            let ring = number == libc::SYS_io_uring_setup || number == libc::SYS_io_setup;
            if ring && crate::memory::refuses_rings() {
                return c_long::from(give::<c_int>(Err(libc::ENOSYS)));
            }
            let arguments = [a, b, c, d, e, f];
            // libc's own function would look at what the kernel looks at.
            if !is_wait(number) || crate::table::any() {
                let result = hooked(number, arguments)
                    .or_else(|| hooked_old(number, arguments))
                    .or_else(|| hooked_otherwise(number, arguments));
                if let Some(result) = result {
                    return result;
                }
            }
            if let Some(outcome) = crate::identity::by_number(number, arguments) {
                return give(outcome.map(|value| value as c_long));
            }
            told::by_number(number, arguments);
        }
    }
    match crate::real::system_call(number, [a, b, c, d, e, f]) {
        Ok(value) => value as c_long,
        Err(error) => {
            set_errno(error);
            give(Err(error))
        }
    }
}
