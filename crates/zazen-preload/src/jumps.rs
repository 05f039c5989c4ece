//! longjmp and its kin: a signal's handler may jump out of a call to the far side.

use crate::{real, state, transport};
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::AtomicPtr;

/// Where on its stack a thread goes on behind `setjmp`, as glibc keeps it.
#[cfg(target_arch = "x86_64")]
unsafe fn stack_of(place: *const c_void) -> Option<usize> {
    const STACK_AT: usize = 6;
    let guard: usize;
    // SAFETY: the program's jmp_buf; libc's own word of this thread.
    unsafe {
        std::arch::asm!("mov {}, fs:[0x30]", out(reg) guard, options(nostack, readonly, preserves_flags));
        Some(place.cast::<usize>().add(STACK_AT).read_unaligned().rotate_right(17) ^ guard)
    }
}

/// Not known: what a jump leaves keeps its connection.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stack_of(_place: *const c_void) -> Option<usize> {
    None
}

unsafe fn note(place: *const c_void) {
    if state::is_active() {
        // SAFETY: the program's jmp_buf.
        if let Some(to) = unsafe { stack_of(place) } {
            transport::jump(to);
        }
    }
}

/// libc's functions of these names. They are looked up before a handler needs them: it may have
/// interrupted the loader.
static JUMPS: [(AtomicPtr<c_void>, &CStr); 4] = {
    const fn named(name: &CStr) -> (AtomicPtr<c_void>, &CStr) {
        (AtomicPtr::new(std::ptr::null_mut()), name)
    }
    [named(c"longjmp"), named(c"_longjmp"), named(c"siglongjmp"), named(c"__longjmp_chk")]
};

/// Called once, when the library is loaded.
pub(crate) fn begin() {
    for (slot, name) in &JUMPS {
        real::next(slot, name);
    }
}

unsafe fn jump(which: usize, place: *const c_void, value: c_int) -> ! {
    let (slot, name) = &JUMPS[which];
    // SAFETY: the program's jmp_buf; the symbol of this name has this signature.
    unsafe {
        note(place);
        let function: unsafe extern "C" fn(*const c_void, c_int) -> ! =
            std::mem::transmute(real::next(slot, name));
        function(place, value)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn longjmp(place: *const c_void, value: c_int) -> ! {
    // SAFETY: as the caller promises libc's.
    unsafe { jump(0, place, value) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _longjmp(place: *const c_void, value: c_int) -> ! {
    // SAFETY: as above.
    unsafe { jump(1, place, value) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn siglongjmp(place: *const c_void, value: c_int) -> ! {
    // SAFETY: as above.
    unsafe { jump(2, place, value) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __longjmp_chk(place: *const c_void, value: c_int) -> ! {
    // SAFETY: as above.
    unsafe { jump(3, place, value) }
}
