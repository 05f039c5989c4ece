//! The filter: about which system calls the kernel asks the supervisor, and how it is installed.
//!
//! Invariant: `calls.rs` answers each number here, if only by letting the kernel do the call.

use libc::{c_long, sock_filter};
use std::os::fd::{FromRawFd, OwnedFd};

/// Not in all versions of libc's bindings; the same number everywhere.
pub(crate) const SYS_FCHMODAT2: c_long = 452;

/// Likewise, but one of each architecture.
#[cfg(target_arch = "x86_64")]
pub(crate) const SYS_RENAMEAT: c_long = libc::SYS_renameat;
#[cfg(target_arch = "aarch64")]
pub(crate) const SYS_RENAMEAT: c_long = 38;

/// Calls that take a path, and calls that change or tell the working directory.
#[rustfmt::skip]
const EVERYWHERE: &[c_long] = &[
    libc::SYS_openat, libc::SYS_openat2, libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_faccessat,
    libc::SYS_faccessat2, libc::SYS_readlinkat, libc::SYS_mkdirat, libc::SYS_unlinkat, SYS_RENAMEAT,
    libc::SYS_renameat2, libc::SYS_linkat, libc::SYS_symlinkat, libc::SYS_fchmodat, SYS_FCHMODAT2,
    libc::SYS_fchownat, libc::SYS_truncate, libc::SYS_utimensat, libc::SYS_statfs, libc::SYS_mknodat,
    libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_listxattr,
    libc::SYS_llistxattr, libc::SYS_removexattr, libc::SYS_lremovexattr,
    libc::SYS_chdir, libc::SYS_fchdir, libc::SYS_getcwd, libc::SYS_execve, libc::SYS_execveat,
    libc::SYS_exit_group, libc::SYS_inotify_add_watch, libc::SYS_name_to_handle_at,
];

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const HERE: &[c_long] = &[
    libc::SYS_open, libc::SYS_creat, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink,
    libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_unlink, libc::SYS_rename, libc::SYS_link, libc::SYS_symlink,
    libc::SYS_chmod, libc::SYS_chown, libc::SYS_lchown, libc::SYS_utime, libc::SYS_utimes,
    libc::SYS_futimesat, libc::SYS_mknod,
];
#[cfg(target_arch = "aarch64")]
const HERE: &[c_long] = &[];

/// `AUDIT_ARCH_X86_64`, `AUDIT_ARCH_AARCH64`.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;
/// Numbers from here on are x32's.
const X32: u32 = 0x4000_0000;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// `SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV` (Linux 5.19): what the supervisor has begun is not
/// begun again after a signal; a file made once would be there already.
const WAIT_KILLABLE: u64 = 1 << 5;

fn program() -> Vec<sock_filter> {
    let step = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    let mut all = vec![
        step(LOAD, std::mem::offset_of!(libc::seccomp_data, arch) as u32, 0, 0),
        step(IF_EQUAL, ARCHITECTURE, 1, 0),
        step(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0, 0),
        step(LOAD, std::mem::offset_of!(libc::seccomp_data, nr) as u32, 0, 0),
        step(IF_AT_LEAST, X32, 0, 1),
        step(RETURN, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32, 0, 0),
    ];
    let count = EVERYWHERE.len() + HERE.len();
    for (index, number) in EVERYWHERE.iter().chain(HERE).enumerate() {
        // Over those behind it, and over "allow".
        all.push(step(IF_EQUAL, *number as u32, (count - index) as u8, 0));
    }
    all.push(step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0));
    all.push(step(RETURN, libc::SECCOMP_RET_USER_NOTIF, 0, 0));
    all
}

/// Puts this process and all that it starts under supervision. Their calls wait for the owner of
/// the listener. Also whether only fatal signals end that wait.
pub(crate) fn install() -> std::io::Result<(OwnedFd, bool)> {
    let mut steps = program();
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    let set = |flags: u64| {
        // SAFETY: the program lives for the call; the kernel checks it.
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) }
    };
    // SAFETY: numbers only.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let mut fd = set(listener | WAIT_KILLABLE);
    let killable = fd >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL);
    if !killable {
        fd = set(listener);
    }
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: new, and nobody else's.
    Ok((unsafe { OwnedFd::from_raw_fd(fd as i32) }, killable))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel's interpreter makes of the program.
    fn verdict(arch: u32, number: u32) -> u32 {
        let (program, mut at, mut loaded) = (program(), 0, 0);
        loop {
            let step = program[at];
            at += 1;
            match step.code {
                LOAD if step.k == 0 => loaded = number,
                LOAD => loaded = arch,
                RETURN => return step.k,
                code => {
                    let holds = if code == IF_EQUAL { loaded == step.k } else { loaded >= step.k };
                    at += usize::from(if holds { step.jt } else { step.jf });
                }
            }
        }
    }

    #[test]
    fn paths_are_asked_for_and_nothing_else() {
        for number in 0..512_u32 {
            let asked = EVERYWHERE.iter().chain(HERE).any(|asked| *asked == c_long::from(number));
            let expected = if asked { libc::SECCOMP_RET_USER_NOTIF } else { libc::SECCOMP_RET_ALLOW };
            assert_eq!(verdict(ARCHITECTURE, number), expected, "{number}");
        }
        assert_eq!(verdict(ARCHITECTURE, X32 + 2), libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32);
        assert_eq!(verdict(0x4000_0003, 5), libc::SECCOMP_RET_KILL_PROCESS);
    }
}
