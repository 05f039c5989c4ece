//! What tells a process something of others without a file: children that ended, processes that are
//! gone, signals that wait, semaphores, messages. None of it is forwarded; a program that is told
//! sees what others did before (`heard.rs`).

use crate::heard;
use crate::real::hooks;
use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

/// A system call that a program makes by its number, and that no hook knows.
pub(crate) fn by_number(number: c_long, a: [usize; 6]) {
    let shares = number == libc::SYS_mmap && a[3] as c_int & libc::MAP_TYPE != libc::MAP_PRIVATE;
    let makes_process = number == libc::SYS_clone || number == libc::SYS_clone3;
    if makes_process {
        heard::note_start();
    } else if shares || number == libc::SYS_shmat {
        heard::note_sharing();
    } else {
        heard::hear();
    }
}

hooks! {
    fn wait(status: *mut c_int) -> libc::pid_t {
        heard::hear();
        next(status)
    }

    fn waitpid(pid: libc::pid_t, status: *mut c_int, options: c_int) -> libc::pid_t {
        heard::hear();
        next(pid, status, options)
    }

    fn wait3(status: *mut c_int, options: c_int, used: *mut libc::rusage) -> libc::pid_t {
        heard::hear();
        next(status, options, used)
    }

    fn wait4(pid: libc::pid_t, status: *mut c_int, options: c_int, used: *mut libc::rusage) -> libc::pid_t {
        heard::hear();
        next(pid, status, options, used)
    }

    fn waitid(kind: c_uint, id: libc::id_t, found: *mut libc::siginfo_t, options: c_int) -> c_int {
        heard::hear();
        next(kind, id, found, options)
    }

    fn kill(pid: libc::pid_t, signal: c_int) -> c_int {
        heard::hear();
        next(pid, signal)
    }

    fn killpg(group: libc::pid_t, signal: c_int) -> c_int {
        heard::hear();
        next(group, signal)
    }

    fn getpgid(pid: libc::pid_t) -> libc::pid_t {
        heard::hear();
        next(pid)
    }

    fn getsid(pid: libc::pid_t) -> libc::pid_t {
        heard::hear();
        next(pid)
    }

    fn pidfd_open(pid: libc::pid_t, flags: c_uint) -> c_int {
        heard::hear();
        next(pid, flags)
    }

    fn pidfd_send_signal(fd: c_int, signal: c_int, told: *mut libc::siginfo_t, flags: c_uint) -> c_int {
        heard::hear();
        next(fd, signal, told, flags)
    }

    fn sigpending(set: *mut libc::sigset_t) -> c_int {
        heard::hear();
        next(set)
    }

    fn sigwait(set: *const libc::sigset_t, signal: *mut c_int) -> c_int {
        heard::hear();
        next(set, signal)
    }

    fn sigwaitinfo(set: *const libc::sigset_t, found: *mut libc::siginfo_t) -> c_int {
        heard::hear();
        next(set, found)
    }

    fn sigtimedwait(
        set: *const libc::sigset_t, found: *mut libc::siginfo_t, timeout: *const libc::timespec,
    ) -> c_int {
        heard::hear();
        next(set, found, timeout)
    }

    fn semop(id: c_int, operations: *mut libc::sembuf, count: usize) -> c_int {
        heard::hear();
        next(id, operations, count)
    }

    fn semtimedop(
        id: c_int, operations: *mut libc::sembuf, count: usize, timeout: *const libc::timespec,
    ) -> c_int {
        heard::hear();
        next(id, operations, count, timeout)
    }

    fn semctl(id: c_int, number: c_int, command: c_int, argument: c_ulong) -> c_int {
        heard::hear();
        next(id, number, command, argument)
    }

    fn sem_open(name: *const c_char, flags: c_int, mode: c_uint, value: c_uint) -> *mut c_void {
        // It is memory that others write.
        heard::note_sharing();
        next(name, flags, mode, value)
    }

    fn msgrcv(id: c_int, message: *mut c_void, bytes: usize, kind: c_long, flags: c_int) -> isize {
        heard::hear();
        next(id, message, bytes, kind, flags)
    }

    fn msgctl(id: c_int, command: c_int, found: *mut c_void) -> c_int {
        heard::hear();
        next(id, command, found)
    }

    fn shmctl(id: c_int, command: c_int, found: *mut c_void) -> c_int {
        heard::hear();
        next(id, command, found)
    }

    fn mq_receive(queue: c_int, message: *mut c_char, bytes: usize, priority: *mut c_uint) -> isize {
        heard::hear();
        next(queue, message, bytes, priority)
    }

    fn mq_timedreceive(
        queue: c_int, message: *mut c_char, bytes: usize, priority: *mut c_uint,
        timeout: *const libc::timespec,
    ) -> isize {
        heard::hear();
        next(queue, message, bytes, priority, timeout)
    }

    fn mq_getattr(queue: c_int, found: *mut c_void) -> c_int {
        heard::hear();
        next(queue, found)
    }

    fn process_vm_readv(
        pid: libc::pid_t, here: *const libc::iovec, count: c_ulong, there: *const libc::iovec,
        other: c_ulong, flags: c_ulong,
    ) -> isize {
        heard::hear();
        next(pid, here, count, there, other, flags)
    }
}
