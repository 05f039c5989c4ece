//! The allocator's arenas. A program of its own: a process has one allocator.
#![allow(clippy::unwrap_used, reason = "a test that panics is a test that fails")]
#![cfg(target_env = "gnu")]

use std::sync::Barrier;

/// What the allocator says of itself.
fn told() -> String {
    let (mut text, mut length) = (std::ptr::null_mut::<libc::c_char>(), 0);
    // SAFETY: a stream into memory, which is closed before its text is read, and freed then.
    unsafe {
        let stream = libc::open_memstream(&raw mut text, &raw mut length);
        assert!(!stream.is_null());
        assert_eq!(libc::malloc_info(0, stream), 0);
        libc::fclose(stream);
        let told = std::ffi::CStr::from_ptr(text).to_str().unwrap().to_owned();
        libc::free(text.cast());
        told
    }
}

#[test]
fn threads_share_a_few_arenas() {
    zazend::memory::bound_arenas();
    let threads = 64;
    let (all_there, may_end) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let held = std::hint::black_box(vec![1u8; 100_000]);
                all_there.wait();
                may_end.wait();
                drop(held);
            });
        }
        all_there.wait();
        let arenas = told().matches("<heap nr=").count();
        may_end.wait();
        assert!((2..=4).contains(&arenas), "{threads} threads have {arenas} arenas");
    });
}
