//! The kernel as the ends of lanes and connections wait and wake with it.

use crate::real::system_call;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use zazen_lane::System;

/// The kernel, past every hook.
#[derive(Clone, Copy)]
pub(crate) struct Kernel;

impl System for Kernel {
    fn sleep_on(&self, word: &AtomicU32, value: u32, at_most: Duration) -> bool {
        let pause =
            libc::timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
        let word = std::ptr::from_ref(word) as usize;
        let arguments = [word, libc::FUTEX_WAIT as usize, value as usize, (&raw const pause) as usize, 0, 0];
        system_call(libc::SYS_futex, arguments) != Err(libc::ETIMEDOUT)
    }

    fn wake(&self, word: &AtomicU32) {
        let word = std::ptr::from_ref(word) as usize;
        let all = (u32::MAX >> 1) as usize;
        let _ = system_call(libc::SYS_futex, [word, libc::FUTEX_WAKE as usize, all, 0, 0, 0]);
    }

    fn give_way(&self) {
        let _ = system_call(libc::SYS_sched_yield, [0; 6]);
    }

    #[inline]
    fn cpu(&self) -> u32 {
        // SAFETY: only asks.
        unsafe { libc::sched_getcpu() }.unsigned_abs()
    }

    #[inline]
    fn now(&self) -> Duration {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes one timespec.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
    }
}
