//! Where the paths of calls begin.

use crate::session::{Description, Session};
use std::ffi::{CStr, c_int};
use std::os::fd::RawFd;
use std::sync::Arc;
use zazen_forward_api::structures::ROOT;
use zazen_plugin_sdk::Outcome;

/// The directory that a path is relative to. Keeps its description alive.
pub(crate) enum Base {
    Root,
    Held(Arc<Description>),
    /// No such description. The kernel reports it, in its own order of checks.
    Missing,
}

impl Base {
    pub(crate) fn new(session: &Session, dir: c_int) -> Outcome<Base> {
        if dir == ROOT {
            return Ok(Base::Root);
        }
        let id = u32::try_from(dir).map_err(|_| libc::EBADF)?;
        Ok(session.description(id).map_or(Base::Missing, Base::Held))
    }

    /// The descriptor that `path` is relative to. Without a description the path must be absolute:
    /// otherwise it would be relative to the daemon's own directory.
    pub(crate) fn fd(&self, path: &CStr) -> Outcome<RawFd> {
        match self {
            Base::Held(description) => Ok(description.fd()),
            _ if path.to_bytes().first() == Some(&b'/') => Ok(libc::AT_FDCWD),
            Base::Root => Err(libc::ENOENT),
            Base::Missing => Ok(-1),
        }
    }

    /// The description itself, for an empty path.
    pub(crate) fn itself(&self, path: &CStr) -> Option<RawFd> {
        match self {
            Base::Held(description) if path.is_empty() => Some(description.fd()),
            _ => None,
        }
    }
}
