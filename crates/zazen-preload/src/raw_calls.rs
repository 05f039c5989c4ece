//! `syscall()` for the calls that have hooks, and libc's variadic functions.

use crate::real::{give, set_errno};
use crate::state;
use std::ffi::{c_int, c_long};

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
    use crate::{data, descriptors, directories, dup, metadata, names, open};
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
            libc::SYS_ftruncate => data::ftruncate, (0: c_int, 1: i64);
            libc::SYS_truncate => data::truncate, (0: *const _, 1: i64);
            libc::SYS_fallocate => data::fallocate, (0: c_int, 1: c_int, 2: i64, 3: i64);
            libc::SYS_copy_file_range => data::copy_file_range,
                (0: c_int, 1: *mut _, 2: c_int, 3: *mut _, 4: usize, 5: u32);
            libc::SYS_sendfile => data::sendfile, (0: c_int, 1: c_int, 2: *mut _, 3: usize);
            libc::SYS_openat => open::openat, (0: c_int, 1: *const _, 2: c_int, 3: u32);
            libc::SYS_close => descriptors::close, (0: c_int);
            libc::SYS_close_range => descriptors::close_range, (0: u32, 1: u32, 2: c_int);
            libc::SYS_dup => dup::dup, (0: c_int);
            libc::SYS_dup3 => dup::dup3, (0: c_int, 1: c_int, 2: c_int);
            libc::SYS_fcntl => descriptors::fcntl, (0: c_int, 1: c_int, 2: usize);
            libc::SYS_flock => descriptors::flock, (0: c_int, 1: c_int);
            libc::SYS_ioctl => descriptors::ioctl, (0: c_int, 1: u64, 2: usize);
            libc::SYS_getdents64 => directories::getdents64, (0: c_int, 1: *mut _, 2: usize);
            libc::SYS_statx => metadata::statx, (0: c_int, 1: *const _, 2: c_int, 3: u32, 4: *mut _);
            libc::SYS_newfstatat => metadata::fstatat, (0: c_int, 1: *const _, 2: *mut _, 3: c_int);
            libc::SYS_fstat => metadata::fstat, (0: c_int, 1: *mut _);
            libc::SYS_faccessat2 => metadata::faccessat, (0: c_int, 1: *const _, 2: c_int, 3: c_int);
            libc::SYS_fchmod => metadata::fchmod, (0: c_int, 1: u32);
            libc::SYS_fchown => metadata::fchown, (0: c_int, 1: u32, 2: u32);
            libc::SYS_fchownat => metadata::fchownat, (0: c_int, 1: *const _, 2: u32, 3: u32, 4: c_int);
            libc::SYS_utimensat => metadata::utimensat, (0: c_int, 1: *const _, 2: *const _, 3: c_int);
            libc::SYS_renameat2 => names::renameat2, (0: c_int, 1: *const _, 2: c_int, 3: *const _, 4: u32);
            libc::SYS_unlinkat => names::unlinkat, (0: c_int, 1: *const _, 2: c_int);
            libc::SYS_mkdirat => names::mkdirat, (0: c_int, 1: *const _, 2: u32);
            libc::SYS_symlinkat => names::symlinkat, (0: *const _, 1: c_int, 2: *const _);
            libc::SYS_linkat => names::linkat, (0: c_int, 1: *const _, 2: c_int, 3: *const _, 4: c_int);
            libc::SYS_readlinkat => names::readlinkat, (0: c_int, 1: *const _, 2: *mut _, 3: usize);
        }
    }
}

/// The fields of `struct open_how`.
#[repr(C)]
struct How {
    flags: u64,
    mode: u64,
    resolve: u64,
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
            if number == libc::SYS_openat2 && d >= size_of::<How>() {
                let how = &*(c as *const How);
                if how.resolve == 0 {
                    return c_long::from(crate::open::openat(
                        a as c_int,
                        b as *const _,
                        how.flags as c_int,
                        how.mode as u32,
                    ));
                }
            }
            if number == libc::SYS_faccessat {
                return c_long::from(crate::metadata::faccessat(a as c_int, b as *const _, c as c_int, 0));
            }
            let ring = number == libc::SYS_io_uring_setup || number == libc::SYS_io_setup;
            if ring && crate::memory::refuses_rings() {
                return c_long::from(give::<c_int>(Err(libc::ENOSYS)));
            }
            if let Some(result) = hooked(number, [a, b, c, d, e, f]) {
                return result;
            }
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
