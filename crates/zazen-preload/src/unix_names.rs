//! Unix sockets whose names are below a forwarded prefix: between processes of this machine.
//!
//! The name is a socket file at the far side, so that stat, unlink and permissions are right; the
//! socket itself is bound here, to an abstract name made of the file's device and inode. Programs
//! on other machines can't meet there.

use crate::far::{Destination, PxStat, far, place};
use crate::list::List;
use crate::{near, state};
use std::ffi::c_int;
use zazen_forward_api::paths::Text;

const FAMILY_BYTES: usize = 2;
const MARK: &[u8] = b"\0zazen-";

/// What this process bound or connected to, by abstract name: for getsockname and its kin. Of two
/// names of one socket the later one counts.
static NAMES: List<(Vec<u8>, Vec<u8>)> = List::new();

/// An address for the kernel.
pub(crate) struct Local {
    bytes: [u8; 128],
    length: usize,
    /// Made for bind: to be removed if that fails.
    made: Option<(c_int, Text)>,
}

impl Local {
    pub(crate) fn as_ptr(&self) -> *const libc::sockaddr {
        self.bytes.as_ptr().cast()
    }

    pub(crate) fn length(&self) -> libc::socklen_t {
        self.length as libc::socklen_t
    }

    /// Takes the name away again.
    pub(crate) fn undo(self) {
        if let Some((dir, path)) = self.made {
            let _ = far!(px_unlink(dir, path.as_ptr(), 0));
        }
    }
}

/// The path of a unix socket's address, with a NUL.
unsafe fn path_of(address: *const libc::sockaddr, length: libc::socklen_t) -> Option<Text> {
    let length = length as usize;
    if !state::is_active() || address.is_null() || length <= FAMILY_BYTES || length > 110 {
        return None;
    }
    // SAFETY: the program's address, of that length.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length) };
    if c_int::from(u16::from_ne_bytes([bytes[0], bytes[1]])) != libc::AF_UNIX || bytes[2] == 0 {
        return None;
    }
    let mut text = Text::new();
    text.set(bytes[2..].split(|byte| *byte == 0).next().unwrap_or_default());
    Some(text)
}

/// The address here of a socket that a far path names; `None` for all other addresses.
///
/// # Safety
///
/// `address` is NULL or has `length` bytes.
pub(crate) unsafe fn local(
    address: *const libc::sockaddr,
    length: libc::socklen_t,
    binds: bool,
) -> Option<Result<Local, c_int>> {
    // SAFETY: the caller's address; the text is a string.
    unsafe {
        let name = path_of(address, length)?;
        let mut text = Text::new();
        match place(libc::AT_FDCWD, name.as_ptr(), &mut text) {
            Ok(Destination::Local(_)) => None,
            Ok(Destination::Near(path)) => near::renames().then(|| at_path(std::ffi::CStr::from_ptr(path))),
            Ok(Destination::Far(dir, path)) => {
                let mut far_path = Text::new();
                far_path.set(std::ffi::CStr::from_ptr(path).to_bytes());
                Some(named(dir, far_path, &name, binds))
            }
            Err(error) => Some(Err(error)),
        }
    }
}

/// The address of a socket that this kernel has by that path.
fn at_path(path: &std::ffi::CStr) -> Result<Local, c_int> {
    let path = path.to_bytes();
    let mut bytes = [0; 128];
    // Linux takes a path of this length without its NUL.
    if path.len() > size_of::<libc::sockaddr_un>() - FAMILY_BYTES {
        return Err(libc::ENAMETOOLONG);
    }
    bytes[..FAMILY_BYTES].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    bytes[FAMILY_BYTES..FAMILY_BYTES + path.len()].copy_from_slice(path);
    let length = (FAMILY_BYTES + path.len() + 1).min(size_of::<libc::sockaddr_un>());
    Ok(Local { bytes, length, made: None })
}

fn named(dir: c_int, path: Text, name: &Text, binds: bool) -> Result<Local, c_int> {
    if binds {
        let mode = libc::S_IFSOCK | 0o777;
        far!(px_mknod(dir, path.as_ptr(), mode, 0, state::umask()))
            .map_err(|error| if error == libc::EEXIST { libc::EADDRINUSE } else { error })?;
    } else {
        far!(px_access(dir, path.as_ptr(), libc::W_OK, libc::AT_EACCESS))?;
    }
    let mut stat = PxStat::default();
    far!(px_stat(dir, path.as_ptr(), 0, libc::STATX_BASIC_STATS, (&raw mut stat).cast()))?;
    if stat.mode & libc::S_IFMT != libc::S_IFSOCK {
        return Err(libc::ECONNREFUSED);
    }
    let text = format!("zazen-{:x}-{:x}-{:x}", stat.devices[2], stat.devices[3], stat.ino);
    let mut bytes = [0; 128];
    bytes[..FAMILY_BYTES].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    bytes[3..3 + text.len()].copy_from_slice(text.as_bytes());
    let length = 3 + text.len();
    let (here, name) = (&bytes[FAMILY_BYTES..length], name.as_bytes());
    if told(here) != Some(name) {
        NAMES.add((here.to_vec(), name.to_vec()));
    }
    Ok(Local { bytes, length, made: binds.then_some((dir, path)) })
}

/// The program's own name of a socket that is bound to an abstract name of ours.
fn told(here: &[u8]) -> Option<&'static [u8]> {
    NAMES.find(|(known, _)| known == here).map(|(_, name)| &name[..])
}

/// Puts the program's own name into an address that the kernel gave; `room` is what it had for it.
///
/// # Safety
///
/// The kernel filled both; there is room for `room` bytes.
pub(crate) unsafe fn rename(
    address: *mut libc::sockaddr,
    length: *mut libc::socklen_t,
    room: libc::socklen_t,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if !state::is_active() || address.is_null() || length.is_null() {
            return;
        }
        let have = (*length as usize).min(room as usize);
        if have <= FAMILY_BYTES + MARK.len() {
            return;
        }
        let bytes = std::slice::from_raw_parts_mut(address.cast::<u8>(), room as usize);
        if bytes[FAMILY_BYTES] == b'/' {
            let mut text = Text::new();
            let path = bytes[FAMILY_BYTES..have].split(|byte| *byte == 0).next().unwrap_or_default();
            if near::renames() && near::shown(path, &mut text) {
                put_name(bytes, text.as_bytes(), length);
            }
            return;
        }
        if !bytes[FAMILY_BYTES..have].starts_with(MARK) {
            return;
        }
        if let Some(name) = told(&bytes[FAMILY_BYTES..have]) {
            put_name(bytes, name, length);
        }
    }
}

/// # Safety
///
/// `length` points to the program's.
unsafe fn put_name(bytes: &mut [u8], name: &[u8], length: *mut libc::socklen_t) {
    let fits = name.len().min(bytes.len() - FAMILY_BYTES);
    bytes[FAMILY_BYTES..FAMILY_BYTES + fits].copy_from_slice(&name[..fits]);
    if let Some(end) = bytes.get_mut(FAMILY_BYTES + fits) {
        *end = 0;
    }
    // SAFETY: the caller's promise.
    unsafe { *length = (FAMILY_BYTES + name.len() + 1) as libc::socklen_t };
}
