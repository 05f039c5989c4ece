//! The namespace: files, directories and places, without a mount.

use crate::status::{Refusal, guard, guard_files, invalid, optional_text};
use crate::structs::Sized0;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use zazen_client::testbed_env::find_socket_path;
use zazen_core::{Error, ErrorKind, Result};
use zazen_namespace_client::core::operation::{MANY_MAX, Mode};
use zazen_namespace_client::core::{Attributes, Errno, Name};
use zazen_namespace_client::{ClusterKey, File, Identity, Namespace};

/// The namespace, through a daemon. Threads may share it. A forked child may use it, over
/// connections of its own.
pub struct zazen_namespace_t(Namespace);

/// An open file of the namespace. Threads may share it. A forked child must open it again.
pub struct zazen_file_t {
    file: File,
    appends: bool,
    path: Vec<u8>,
}

/// Which daemon; zero in a field means the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct zazen_namespace_options_t {
    /// sizeof(zazen_namespace_options_t).
    pub struct_size: usize,
    /// The daemon's socket; NULL: $ZAZEN_SOCKET, or the default of this machine.
    pub socket: *const c_char,
    /// "host:port" of another node's daemon instead; needs `key`.
    pub node: *const c_char,
    /// The cluster key file, for `node`.
    pub key: *const c_char,
}

// SAFETY: repr(C), size first, zeroes are NULL, no padding.
unsafe impl Sized0 for zazen_namespace_options_t {
    const NAME: &'static str = "zazen_namespace_options_t";
}

/// What is known of a file. Times are nanoseconds since the epoch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct zazen_stat_t {
    /// sizeof(zazen_stat_t), set by the caller.
    pub struct_size: usize,
    /// The inode's number.
    pub inode: u64,
    /// As st_mode: S_ISDIR and the like work on it.
    pub mode: u64,
    /// Names that lead to it.
    pub links: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Bytes. The length of a file that is being written is asked of its holder.
    pub bytes: u64,
    /// Units of 512 bytes on disk.
    pub blocks: u64,
    /// When it was read last.
    pub accessed_ns: i64,
    /// When its bytes changed last.
    pub modified_ns: i64,
    /// When anything of it changed last.
    pub changed_ns: i64,
    /// The number of the node that holds its bytes; -1: none.
    pub node: i64,
}

// SAFETY: repr(C), size first, plain integers, no padding.
unsafe impl Sized0 for zazen_stat_t {
    const NAME: &'static str = "zazen_stat_t";
}

/// Gets one entry of a directory. `name` and `stat` are valid during the call. Any other result
/// than 0 ends the listing.
pub type zazen_entry_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, name: *const c_char, stat: *const zazen_stat_t) -> c_int>;

fn stat_of(found: &Attributes) -> zazen_stat_t {
    zazen_stat_t {
        struct_size: size_of::<zazen_stat_t>(),
        inode: found.id.0,
        mode: u64::from((found.kind as u32) << 12 | found.mode),
        links: u64::from(found.links),
        uid: u64::from(found.uid),
        gid: u64::from(found.gid),
        bytes: found.bytes,
        blocks: found.blocks,
        accessed_ns: found.accessed_ns,
        modified_ns: found.modified_ns,
        changed_ns: found.changed_ns,
        node: found.place.as_ref().map_or(-1, |place| i64::from(place.holder.0)),
    }
}

/// A path argument: bytes, as the kernel has them.
///
/// # Safety
/// `path` is NULL or a NUL-terminated string that lives as long as the result.
unsafe fn needed_path<'a>(path: *const c_char, name: &str) -> Result<&'a [u8]> {
    if path.is_null() {
        return Err(invalid(format!("{name} is NULL; give a path")));
    }
    // SAFETY: by the caller's word.
    Ok(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// # Safety
/// `pointer` is NULL or live.
unsafe fn live<'a, T>(pointer: *const T, name: &str) -> Result<&'a T> {
    // SAFETY: by the caller's word.
    unsafe { pointer.as_ref() }.ok_or_else(|| invalid(format!("{name} is NULL")))
}

/// The namespace and the path of a call.
///
/// # Safety
/// As for [`live`] and [`needed_path`].
unsafe fn at<'a>(
    space: *const zazen_namespace_t,
    path: *const c_char,
) -> Done<(&'a zazen_namespace_t, &'a [u8])> {
    // SAFETY: by the caller's word.
    argument(unsafe { live(space, "space").and_then(|space| Ok((space, needed_path(path, "path")?))) })
}

fn refused(path: &[u8], errno: Errno) -> Refusal {
    let error = zazen_namespace_client::error(String::from_utf8_lossy(path), errno);
    Refusal { error, errno: i32::from(errno as u16) }
}

type Done<T> = std::result::Result<T, Refusal>;

/// Errors of arguments have the number EINVAL.
fn argument<T>(found: Result<T>) -> Done<T> {
    found.map_err(|error| Refusal { error, errno: i32::from(Errno::EINVAL as u16) })
}

fn on<T>(path: &[u8], done: std::result::Result<T, Errno>) -> Done<T> {
    done.map_err(|errno| refused(path, errno))
}

/// Connects to the namespace. The caller closes `*opened`.
///
/// # Safety
/// Strings are NUL-terminated; `options` is NULL or as large as it says; `opened` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_namespace_open(
    options: *const zazen_namespace_options_t,
    opened: *mut *mut zazen_namespace_t,
) -> i32 {
    guard(|| {
        if opened.is_null() {
            return Err(invalid("zazen_namespace_open: opened is NULL"));
        }
        // SAFETY: by the caller's word.
        let (socket, node, key) = unsafe {
            let given = zazen_namespace_options_t::take(options)?;
            (
                optional_text(given.socket, "socket")?,
                optional_text(given.node, "node")?,
                optional_text(given.key, "key")?,
            )
        };
        let namespace = match (node, key) {
            (Some(node), Some(key)) => Namespace::remote(
                node,
                &ClusterKey::from_file(Path::new(key))?,
                &Identity::of_this_process(),
            )?,
            (Some(node), None) => {
                let text = format!("node {node}: give the file of the cluster key as options.key");
                return Err(Error::new(ErrorKind::Config, text));
            }
            (None, _) => {
                let socket = socket.map_or_else(find_socket_path, |socket| Path::new(socket).to_path_buf());
                Namespace::local_when_joined(&socket)?
            }
        };
        // SAFETY: by the caller's word.
        unsafe { *opened = Box::into_raw(Box::new(zazen_namespace_t(namespace))) };
        Ok(())
    })
}

/// Ends the connection. Open files stay usable. NULL is ignored.
///
/// # Safety
/// `space` is NULL or live, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_namespace_close(space: *mut zazen_namespace_t) {
    guard(|| {
        if !space.is_null() {
            // SAFETY: by the caller's word.
            drop(unsafe { Box::from_raw(space) });
        }
        Ok(())
    });
}

/// The kernel's number (errno.h) of the last call on files that failed on this thread: EEXIST,
/// ENOTEMPTY and the like, of which the status says less.
#[unsafe(no_mangle)]
pub extern "C" fn zazen_last_errno() -> c_int {
    crate::status::last_errno()
}

/// Opens a file. `flags`: as for open(2): one of O_RDONLY, O_WRONLY and O_RDWR, and any of O_CREAT,
/// O_EXCL, O_TRUNC and O_APPEND. `mode`: the permission bits of a new file, after the umask. The
/// caller closes `*opened`.
///
/// # Safety
/// `space` is NULL or live; `path` is NUL-terminated; `opened` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_file_open(
    space: *mut zazen_namespace_t,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    opened: *mut *mut zazen_file_t,
) -> i32 {
    guard_files(|| {
        // SAFETY: by the caller's word.
        let (space, path) = unsafe { at(space, path) }?;
        if opened.is_null() {
            return argument(Err(invalid("zazen_file_open: opened is NULL")));
        }
        let access = flags & libc::O_ACCMODE;
        let how = Mode {
            read: access != libc::O_WRONLY,
            write: access != libc::O_RDONLY,
            truncate: flags & libc::O_TRUNC != 0,
        };
        let known =
            libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_APPEND | libc::O_CLOEXEC;
        if flags & !known != 0 || access == libc::O_ACCMODE || (how.truncate && !how.write) {
            let text = format!(
                "flags {flags:#o}: give an access mode, O_CREAT, O_EXCL, O_APPEND, O_TRUNC (for writing)"
            );
            return argument(Err(invalid(text)));
        }
        let file = match flags & libc::O_CREAT != 0 {
            true => space.0.open_or_create(None, path, mode & 0o7777, how, flags & libc::O_EXCL != 0),
            false => space.0.open(None, path, how),
        };
        let file =
            zazen_file_t { file: on(path, file)?, appends: flags & libc::O_APPEND != 0, path: path.to_vec() };
        // SAFETY: by the caller's word.
        unsafe { *opened = Box::into_raw(Box::new(file)) };
        Ok(())
    })
}

/// Reads `bytes` bytes at `offset`. `*got`: how many; fewer only where the file ends.
///
/// # Safety
/// `file` is NULL or live; `buffer` has `bytes` writable bytes; `got` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_file_read(
    file: *mut zazen_file_t,
    buffer: *mut c_void,
    bytes: usize,
    offset: u64,
    got: *mut usize,
) -> i32 {
    guard_files(|| {
        // SAFETY: by the caller's word.
        let file = argument(unsafe { live(file, "file") })?;
        if got.is_null() || (buffer.is_null() && bytes > 0) || bytes > isize::MAX as usize {
            return argument(Err(invalid("zazen_file_read: buffer or got is NULL, or bytes is too large")));
        }
        let count = if bytes == 0 {
            0
        } else {
            // SAFETY: by the caller's word.
            let into = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), bytes) };
            on(&file.path, file.file.read_at(into, offset))?
        };
        // SAFETY: by the caller's word.
        unsafe { *got = count };
        Ok(())
    })
}

/// Writes `bytes` bytes at `offset`, or at the file's end if it was opened with O_APPEND: all of
/// them. After an error some of them may have been written.
///
/// # Safety
/// `file` is NULL or live; `data` has `bytes` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_file_write(
    file: *mut zazen_file_t,
    data: *const c_void,
    bytes: usize,
    offset: u64,
) -> i32 {
    guard_files(|| {
        // SAFETY: by the caller's word.
        let file = argument(unsafe { live(file, "file") })?;
        if bytes == 0 {
            return Ok(());
        }
        if data.is_null() || bytes > isize::MAX as usize {
            return argument(Err(invalid("zazen_file_write: data is NULL, or bytes is too large")));
        }
        // SAFETY: by the caller's word.
        let mut from = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) };
        if !file.appends {
            return on(&file.path, file.file.write_all_at(from, offset));
        }
        while !from.is_empty() {
            let put = on(&file.path, file.file.append(from))?;
            if put == 0 {
                return Err(refused(&file.path, Errno::EIO));
            }
            from = &from[put..];
        }
        Ok(())
    })
}

/// Cuts or extends the file to `bytes` bytes.
///
/// # Safety
/// `file` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_file_truncate(file: *mut zazen_file_t, bytes: u64) -> i32 {
    guard_files(|| {
        // SAFETY: by the caller's word.
        let file = argument(unsafe { live(file, "file") })?;
        on(&file.path, file.file.set_length(bytes))
    })
}

/// Returns when the bytes are on the disk of the node that holds the file, and their length is
/// known to all.
///
/// # Safety
/// `file` is NULL or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_file_sync(file: *mut zazen_file_t) -> i32 {
    guard_files(|| {
        // SAFETY: by the caller's word.
        let file = argument(unsafe { live(file, "file") })?;
        on(&file.path, file.file.sync())
    })
}

/// Closes and frees the file, also if it fails. When it returns ZAZEN_OK, what was written is known
/// to all. NULL is ignored.
///
/// # Safety
/// `file` is NULL or live, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_file_close(file: *mut zazen_file_t) -> i32 {
    guard_files(|| {
        if file.is_null() {
            return Ok(());
        }
        // SAFETY: by the caller's word.
        let file = unsafe { Box::from_raw(file) };
        on(&file.path, file.file.close())
    })
}

/// What is known of the file at `path`; with `follow` not 0, of what a symbolic link there leads
/// to.
///
/// # Safety
/// `space` is NULL or live; `path` is NUL-terminated; `stat` is as large as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_namespace_stat(
    space: *mut zazen_namespace_t,
    path: *const c_char,
    follow: c_int,
    stat: *mut zazen_stat_t,
) -> i32 {
    guard_files(|| {
        // SAFETY: by the caller's word.
        let (space, path) = unsafe { at(space, path) }?;
        if stat.is_null() {
            return argument(Err(invalid("zazen_namespace_stat: stat is NULL")));
        }
        // SAFETY: by the caller's word.
        argument(unsafe { zazen_stat_t::check(stat) })?;
        let found = on(path, space.0.stat(None, path, follow != 0))?;
        // SAFETY: as above.
        argument(unsafe { stat_of(&found).give(stat) })
    })
}

/// The same for `count` paths, following symbolic links, in few calls. `stats`: an array of `count`
/// structs of this header's size. `errnos[i]`: 0, or why `stats[i]` was not filled.
///
/// # Safety
/// `space` is NULL or live; `paths`, `stats` and `errnos` have `count` elements; each path is
/// NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_namespace_stat_many(
    space: *mut zazen_namespace_t,
    paths: *const *const c_char,
    count: usize,
    stats: *mut zazen_stat_t,
    errnos: *mut c_int,
) -> i32 {
    guard_files(|| {
        // SAFETY: by the caller's word.
        let (space, paths) = argument(unsafe {
            live(space, "space").and_then(|space| Ok((space, needed_paths(paths, count)?)))
        })?;
        if count > 0 && (stats.is_null() || errnos.is_null()) {
            return argument(Err(invalid("zazen_namespace_stat_many: stats or errnos is NULL")));
        }
        for at in 0..count {
            // SAFETY: by the caller's word, there are `count` of them.
            argument(unsafe { zazen_stat_t::check(stats.add(at)) })?;
        }
        for (at, found) in space.0.stat_many(None, &paths, true).into_iter().enumerate() {
            // SAFETY: as above.
            unsafe {
                *errnos.add(at) = found.as_ref().err().map_or(0, |errno| c_int::from(*errno as u16));
                if let Ok(found) = found {
                    argument(stat_of(&found).give(stats.add(at)))?;
                }
            }
        }
        Ok(())
    })
}

/// # Safety
/// `paths` has `count` elements, each NULL or NUL-terminated.
unsafe fn needed_paths<'a>(paths: *const *const c_char, count: usize) -> Result<Vec<&'a [u8]>> {
    if paths.is_null() && count > 0 {
        return Err(invalid("paths is NULL"));
    }
    // SAFETY: by the caller's word.
    (0..count).map(|at| unsafe { needed_path(*paths.add(at), "a path") }).collect()
}

/// Gives each entry of a directory to `entry`, without `.` and `..`, in no order. The listing is
/// complete before the first call, so `entry` may change the directory.
///
/// # Safety
/// `space` is NULL or live; `path` is NUL-terminated; `entry` does what its type says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_namespace_list(
    space: *mut zazen_namespace_t,
    path: *const c_char,
    entry: zazen_entry_fn,
    user: *mut c_void,
) -> i32 {
    guard_files(|| {
        // SAFETY: by the caller's word.
        let (space, path) = unsafe { at(space, path) }?;
        let Some(entry) = entry else {
            return argument(Err(invalid("zazen_namespace_list: entry is NULL")));
        };
        for listed in on(path, space.0.list(None, path, true))? {
            let Some(attributes) = listed.attributes else { continue };
            // A name has no NUL.
            let Ok(name) = CString::new(listed.name.as_bytes()) else { continue };
            let stat = stat_of(&attributes);
            // SAFETY: by the caller's word.
            if unsafe { entry(user, name.as_ptr(), &raw const stat) } != 0 {
                break;
            }
        }
        Ok(())
    })
}

/// Makes `count` empty files in `directory`, up to 1,024 a call. `mode`: their permission bits,
/// after the umask. `errnos[i]`: 0, or why `names[i]` was not made; NULL: the call fails if one of
/// them was not made, and the others are made all the same.
///
/// # Safety
/// `space` is NULL or live; `directory` and each name are NUL-terminated; `names`, and `errnos` if
/// it is not NULL, have `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_namespace_create_many(
    space: *mut zazen_namespace_t,
    directory: *const c_char,
    names: *const *const c_char,
    count: usize,
    mode: u32,
    errnos: *mut c_int,
) -> i32 {
    guard_files(|| {
        // SAFETY: by the caller's word.
        let (space, path, given) = argument(unsafe {
            live(space, "space").and_then(|space| {
                Ok((space, needed_path(directory, "directory")?, needed_paths(names, count)?))
            })
        })?;
        let mut names = Vec::with_capacity(given.len());
        for name in &given {
            names.push(on(name, Name::new(name))?);
        }
        let mut first = None;
        for (chunk, part) in names.chunks(MANY_MAX).enumerate() {
            let made = on(path, space.0.create_many_at(None, path, part, mode & 0o7777))?;
            for (at, made) in made.into_iter().enumerate() {
                let at = chunk * MANY_MAX + at;
                if let Err(errno) = made {
                    first.get_or_insert((at, errno));
                }
                if !errnos.is_null() {
                    // SAFETY: by the caller's word, there are `count` of them.
                    unsafe { *errnos.add(at) = made.err().map_or(0, |errno| c_int::from(errno as u16)) };
                }
            }
        }
        match first {
            Some((at, errno)) if errnos.is_null() => Err(refused(&[path, b"/", given[at]].concat(), errno)),
            _ => Ok(()),
        }
    })
}

/// Which node holds the bytes of the file at `path`. `node`: its number, -1 for a file that never
/// had any. `host`: room for `host_bytes` bytes, for the name of its daemon's host; ZAZEN_TOO_LARGE
/// if that does not fit.
///
/// # Safety
/// `space` is NULL or live; `path` is NUL-terminated; `node` is NULL or writable; `host` is NULL or
/// has `host_bytes` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_namespace_locate(
    space: *mut zazen_namespace_t,
    path: *const c_char,
    node: *mut i64,
    host: *mut c_char,
    host_bytes: usize,
) -> i32 {
    guard_files(|| {
        // SAFETY: by the caller's word.
        let (space, path) = unsafe { at(space, path) }?;
        let mut found = on(path, space.0.locate(None, &[path]))?;
        let found = on(path, found.pop().unwrap_or(Err(Errno::EIO)))?;
        if !host.is_null() && found.host.len() >= host_bytes {
            let text = format!("the host's name has {} bytes, room is for {host_bytes}", found.host.len());
            let error = Error::new(ErrorKind::TooLarge, text);
            return Err(Refusal { error, errno: i32::from(Errno::ERANGE as u16) });
        }
        // SAFETY: by the caller's word; the name and its NUL fit.
        unsafe {
            if !host.is_null() {
                std::ptr::copy_nonoverlapping(found.host.as_ptr(), host.cast::<u8>(), found.host.len());
                *host.add(found.host.len()) = 0;
            }
            if !node.is_null() {
                *node = found.node.map_or(-1, |node| i64::from(node.0));
            }
        }
        Ok(())
    })
}

/// Makes a directory. `mode`: its permission bits, after the umask.
///
/// # Safety
/// `space` is NULL or live; `path` is NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_namespace_mkdir(
    space: *mut zazen_namespace_t,
    path: *const c_char,
    mode: u32,
) -> i32 {
    guard_files(|| {
        // SAFETY: by the caller's word.
        let (space, path) = unsafe { at(space, path) }?;
        on(path, space.0.mkdir(None, path, mode & 0o7777)).map(drop)
    })
}

/// Removes a name, or an empty directory.
///
/// # Safety
/// `space` is NULL or live; `path` is NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_namespace_remove(space: *mut zazen_namespace_t, path: *const c_char) -> i32 {
    guard_files(|| {
        // SAFETY: by the caller's word.
        let (space, path) = unsafe { at(space, path) }?;
        match space.0.remove(None, path) {
            Err(Errno::EISDIR) => on(path, space.0.rmdir(None, path)),
            removed => on(path, removed),
        }
    })
}

/// Gives a file or directory another path, atomically. Replaces what is there, as rename(2) does.
///
/// # Safety
/// `space` is NULL or live; both paths are NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zazen_namespace_rename(
    space: *mut zazen_namespace_t,
    source: *const c_char,
    target: *const c_char,
) -> i32 {
    guard_files(|| {
        // SAFETY: by the caller's word.
        let (space, source, target) = argument(unsafe {
            live(space, "space")
                .and_then(|space| Ok((space, needed_path(source, "source")?, needed_path(target, "target")?)))
        })?;
        on(source, space.0.rename_path(None, source, target))
    })
}
