//! EFAULT for memory that a program names but does not have, as the kernel reports it.
//!
//! One instruction looks at a byte. If it faults, this library's handler of SIGSEGV and SIGBUS goes
//! on behind it. Programs do not see the handler: sigaction and its relatives report the program's
//! own, or the default. The kernel calls this library's handler as the program asked for its own:
//! on that stack, with those signals blocked. For any other fault it jumps to the program's. If a
//! program ignores these signals, or sets a handler by the system call's number, a system call
//! looks, which takes longer.
//!
//! Invariants: any other fault is the program's handler's, or ends the program as without this
//! library, with its registers in the core dump. A look writes nothing.

use crate::real::{self, aliases, errno, hooks, set_errno, system_call};
use crate::{signals, state};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use zazen_forward_api::paths::PATH_MAX;

/// Pages are at least so large.
const PAGE_BYTES: usize = 4096;
/// Bytes of code behind the entry of a look in which it can fault.
const LOOK_BYTES: usize = 8;

/// Reads a byte: 0, or 1 where it cannot be read.
#[unsafe(naked)]
unsafe extern "C" fn look(at: usize) -> c_int {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!("mov al, [rdi]", "xor eax, eax", "ret");
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!("ldrb w1, [x0]", "mov w0, #0", "ret");
}

/// Writes a byte as it is, in one step: 0, or 1 where it cannot be written.
#[unsafe(naked)]
unsafe extern "C" fn touch(at: usize) -> c_int {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!("lock or byte ptr [rdi], 0", "xor eax, eax", "ret");
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!("2: ldxrb w1, [x0]", "stxrb w2, w1, [x0]", "cbnz w2, 2b", "mov w0, #0", "ret");
}

/// Where a look goes on that faulted: as if it had returned 1.
#[unsafe(naked)]
unsafe extern "C" fn faulted() -> c_int {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!("mov eax, 1", "ret");
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!("mov w0, #1", "ret");
}

/// Whether `at` and the bytes behind it can be the program's at all: the rest is the kernel's.
fn in_range(at: usize, bytes: usize) -> bool {
    at >= PAGE_BYTES && at.checked_add(bytes).is_some_and(|end| end <= isize::MAX as usize)
}

/// Whether this library's handler has both signals.
static HANDLED: AtomicBool = AtomicBool::new(false);

/// Whether a byte can be read, or written. What is in it stays.
fn is_good(at: usize, writes: bool) -> bool {
    if HANDLED.load(Ordering::Relaxed) {
        // SAFETY: a look: where it faults, the handler answers.
        return unsafe { if writes { touch(at) } else { look(at) } } == 0;
    }
    // The kernel looks: it waits for no time until the word is another one, or adds nothing to it.
    static NOBODYS: AtomicU32 = AtomicU32::new(0);
    const FUTEX_OP_ADD: usize = 1 << 28;
    let word = at & !3;
    let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let asked = if writes {
        [NOBODYS.as_ptr() as usize, WAKE_OP as usize, 0, 0, word, FUTEX_OP_ADD]
    } else {
        [word, WAIT as usize, UNUSUAL as usize, (&raw const no_time) as usize, 0, 0]
    };
    let kept = errno();
    let outcome = system_call(libc::SYS_futex, asked);
    set_errno(kept);
    outcome != Err(libc::EFAULT)
}

const WAKE_OP: c_int = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
const WAIT: c_int = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
/// A word that memory seldom holds.
const UNUSUAL: u32 = 0x9c3a_71e5;

/// How many of the bytes can be read or written, from the first on.
fn good_bytes(at: usize, bytes: usize, writes: bool) -> usize {
    if bytes == 0 || !in_range(at, bytes) {
        return 0;
    }
    let mut done = 0;
    while done < bytes {
        if !is_good(at + done, writes) {
            return done;
        }
        done += PAGE_BYTES - (at + done) % PAGE_BYTES;
    }
    bytes
}

/// How many bytes a program has at `at`, of so many that are to be read or, where it `writes`,
/// written. EFAULT if the first is not there.
pub(crate) fn backed<T>(at: *const T, bytes: usize, writes: bool) -> Result<usize, c_int> {
    match good_bytes(at as usize, bytes, writes) {
        0 if bytes > 0 => Err(libc::EFAULT),
        good => Ok(good),
    }
}

/// Whether a program can read these bytes.
pub(crate) fn readable<T>(at: *const T, bytes: usize) -> bool {
    good_bytes(at as usize, bytes, false) == bytes
}

/// Whether a program can write these bytes.
pub(crate) fn writable<T>(at: *mut T, bytes: usize) -> bool {
    good_bytes(at as usize, bytes, true) == bytes
}

/// A program's string; `None` if it has no such memory, or if the string is far longer than a path.
#[inline]
pub(crate) fn string<'a>(at: *const c_char) -> Option<&'a CStr> {
    let mut length = 0;
    while length <= PATH_MAX {
        let here = at as usize + length;
        if !in_range(here, 1) || !is_good(here, false) {
            return None;
        }
        let room = PAGE_BYTES - here % PAGE_BYTES;
        // SAFETY: the rest of the page, which can be read.
        let end = unsafe { libc::memchr(here as *const c_void, 0, room) };
        if !end.is_null() {
            // SAFETY: bytes that can be read, with a NUL.
            return Some(unsafe { CStr::from_ptr(at) });
        }
        length += room;
    }
    None
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

#[cfg(target_arch = "x86_64")]
fn program_counter(context: &mut libc::ucontext_t) -> &mut i64 {
    &mut context.uc_mcontext.gregs[libc::REG_RIP as usize]
}

#[cfg(target_arch = "aarch64")]
fn program_counter(context: &mut libc::ucontext_t) -> &mut u64 {
    &mut context.uc_mcontext.pc
}

/// The kernel's `struct sigaction` of the default: all zeros.
static DEFAULT: [u64; 4] = [0; 4];

/// The handler. A program's own handler returns to the kernel, as without this one: it may leave by
/// an exception or the end of its thread, for which no frame of this library's may be in the way.
#[unsafe(naked)]
extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2: ret",
        sym theirs_of,
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        "stp x0, x1, [sp, #-32]!",
        "stp x2, x30, [sp, #16]",
        "bl {}",
        "mov x9, x0",
        "ldp x2, x30, [sp, #16]",
        "ldp x0, x1, [sp], #32",
        "cbz x9, 2f",
        "br x9",
        "2: ret",
        sym theirs_of,
    );
}

/// The program's handler that is to be called; 0 if all is done.
extern "C" fn theirs_of(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) -> usize {
    // SAFETY: the kernel's objects.
    let (sent, at) = unsafe {
        let Some(context) = context.cast::<libc::ucontext_t>().as_mut() else { return 0 };
        ((*info).si_code <= 0, program_counter(context))
    };
    let looks = [look as *const () as usize, touch as *const () as usize];
    if !sent && looks.iter().any(|look| (*look..*look + LOOK_BYTES).contains(&(*at as usize))) {
        *at = (faulted as *const () as usize) as _;
        return 0;
    }
    if let Some(theirs) = Theirs::of(signal).and_then(Theirs::take) {
        return theirs;
    }
    // What faulted does so again, and ends the program. What was sent is sent again.
    let action = (&raw const DEFAULT) as usize;
    let _ = system_call(libc::SYS_rt_sigaction, [signal as usize, action, 0, 8, 0, 0]);
    if sent {
        let pid = system_call(libc::SYS_getpid, [0; 6]).unwrap_or(0);
        let tid = system_call(libc::SYS_gettid, [0; 6]).unwrap_or(0);
        let _ = system_call(libc::SYS_tgkill, [pid, tid, signal as usize, 0, 0, 0]);
    }
    0
}

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

fn is_ours(handler: usize) -> bool {
    handler == handle as Handler as usize
}

unsafe fn real_sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    static SLOT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: libc's function has this signature; the caller's objects.
    unsafe {
        let function: unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int =
            std::mem::transmute(real::next(&SLOT, c"sigaction"));
        function(signal, new, old)
    }
}

/// The program's own handler of one of the two signals.
struct Theirs {
    /// 0: the default.
    handler: AtomicUsize,
    flags: AtomicI32,
}

impl Theirs {
    const fn new() -> Theirs {
        Theirs { handler: AtomicUsize::new(0), flags: AtomicI32::new(0) }
    }

    fn of(signal: c_int) -> Option<&'static Theirs> {
        static OF: [Theirs; 2] = [Theirs::new(), Theirs::new()];
        SIGNALS.iter().position(|one| *one == signal).map(|at| &OF[at])
    }

    /// The handler and its flags.
    fn get(&self) -> (usize, c_int) {
        (self.handler.load(Ordering::Acquire), self.flags.load(Ordering::Relaxed))
    }

    fn set(&self, handler: usize, flags: c_int) {
        self.flags.store(flags, Ordering::Relaxed);
        self.handler.store(handler, Ordering::Release);
    }

    /// The handler, for one call of it; it may be for one call only.
    fn take(&self) -> Option<usize> {
        let (handler, flags) = self.get();
        if flags & libc::SA_RESETHAND != 0 {
            let one = (Ordering::AcqRel, Ordering::Relaxed);
            return self
                .handler
                .compare_exchange(handler, 0, one.0, one.1)
                .ok()
                .filter(|handler| *handler != 0);
        }
        (handler != 0).then_some(handler)
    }
}

/// Puts the handler where the default is, or the program's own, which it calls then.
fn stand_in(signal: c_int, theirs: &Theirs) {
    // SAFETY: all zeros is a valid sigaction; a handler that lives for ever.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        let told = real_sigaction(signal, std::ptr::null(), &raw mut now) == 0;
        if !told || is_ours(now.sa_sigaction) || now.sa_sigaction == libc::SIG_IGN {
            return;
        }
        theirs.set(now.sa_sigaction, now.sa_flags);
        if now.sa_sigaction == libc::SIG_DFL {
            now.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
        }
        now.sa_sigaction = handle as Handler as usize;
        now.sa_flags = now.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO;
        real_sigaction(signal, &raw const now, std::ptr::null_mut());
    }
}

/// Looks whose the handlers are now.
fn settle() {
    let ours = |signal: c_int| {
        // SAFETY: all zeros is a valid sigaction.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            real_sigaction(signal, std::ptr::null(), &raw mut now) == 0 && is_ours(now.sa_sigaction)
        }
    };
    HANDLED.store(SIGNALS.into_iter().all(ours), Ordering::Relaxed);
}

/// Called once, when the library is loaded.
pub(crate) fn begin() {
    for signal in SIGNALS {
        if let Some(theirs) = Theirs::of(signal) {
            stand_in(signal, theirs);
        }
    }
    settle();
}

/// What the program does with the signal, if it is one of the two.
fn one(signal: c_int) -> Option<&'static Theirs> {
    Theirs::of(signal).filter(|_| state::is_active())
}

/// Sets a handler by `next`, which tells of the one before. What signal(3) tells of that.
fn set(signal: c_int, new: usize, next: impl FnOnce() -> usize) -> usize {
    signals::handles(signal, new);
    let Some(theirs) = one(signal) else { return next() };
    let (handler, _) = theirs.get();
    // Until this library's handler is there again, a fault is the new one's.
    HANDLED.store(false, Ordering::Relaxed);
    let before = next();
    let kept = errno();
    stand_in(signal, theirs);
    settle();
    set_errno(kept);
    if is_ours(before) { handler } else { before }
}

hooks! {
    fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
        let before = one(signal).map(Theirs::get);
        let result = match new.is_null() {
            true => next(signal, new, old),
            false => set(signal, (*new).sa_sigaction, || next(signal, new, old) as usize) as c_int,
        };
        if let Some(before) = before
            && result == 0
            && !old.is_null()
            && is_ours((*old).sa_sigaction)
        {
            ((*old).sa_sigaction, (*old).sa_flags) = before;
        }
        result
    }

    fn signal(signal: c_int, handler: usize) -> usize {
        set(signal, handler, || next(signal, handler))
    }

    fn sysv_signal(signal: c_int, handler: usize) -> usize {
        set(signal, handler, || next(signal, handler))
    }

    fn sigset(signal: c_int, handler: usize) -> usize {
        set(signal, handler, || next(signal, handler))
    }
}

/// The beginning of the kernel's `struct sigaction`: the handler, and the flags.
type Kernels = [usize; 2];

/// sigaction by the system call's number. What a program sets so stays in the kernel as it is; from
/// then on, system calls look at memory, because this library's handler is not there.
pub(crate) unsafe fn rt_sigaction(
    signal: c_int,
    new: *const Kernels,
    old: *mut Kernels,
    size: usize,
) -> c_int {
    let before = one(signal).map(Theirs::get);
    // SAFETY: the program's objects, which are looked at only where they are.
    unsafe {
        if readable(new, size_of::<Kernels>()) {
            signals::handles(signal, (*new)[0]);
        }
        let asked = [signal as usize, new as usize, old as usize, size, 0, 0];
        if let Err(error) = system_call(libc::SYS_rt_sigaction, asked) {
            set_errno(error);
            return -1;
        }
        if let Some((handler, flags)) = before {
            settle();
            if !old.is_null() && is_ours((*old)[0]) {
                *old = [handler, flags as u32 as usize];
            }
        }
    }
    0
}

aliases! {
    __sigaction = sigaction, (number: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    bsd_signal = signal, (number: c_int, handler: usize) -> usize;
    ssignal = signal, (number: c_int, handler: usize) -> usize;
    __sysv_signal = sysv_signal, (number: c_int, handler: usize) -> usize;
}
