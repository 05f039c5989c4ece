//! How the allocator keeps memory.

/// Arenas of the allocator.
///
/// glibc makes up to eight for each core. What is freed in one serves no thread of another, and
/// stays with the process: so a daemon with a thread for each connection holds the same buffers
/// once in each, and on a node of a hundred cores in hundreds.
const ARENAS_MAX: i32 = 4;

/// Bounds the arenas. Call it before there are threads.
pub fn bound_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a setting of malloc's, made before threads begin.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS_MAX)
    };
}
