//! What a watch tells its caller and hands to a pusher, and what it sees of a file.

use crate::push::FrameSource;
use std::fs::File;
use zazen_core::{Credentials, FrameNo, Result, Validator};

/// Hands a frame on, to a pusher as a rule.
pub type Submit<'a> = dyn FnMut(FrameNo, Vec<u8>, FrameSource) -> Result<()> + 'a;

/// What a watch reports.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// A file was handed to the pusher.
    Submitted {
        /// Its frame number.
        number: u64,
        /// Its name.
        name: String,
        /// Its size.
        bytes: u64,
    },
    /// A file's name gives no frame number. Reported once per name.
    NotAFrame(String),
    /// A file could not be read, or can have no frame's name.
    Failed {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// The existing files have all been handed over.
    CaughtUp,
}

/// What an open file looks like, and whose it is.
pub(super) fn look_of(file: &File) -> std::io::Result<(Validator, (Credentials, u32))> {
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("is not a plain file"));
    }
    let found = zazen_backing::directory::stat_file(file)?;
    let owner = Credentials { uid: found.uid, gid: found.gid, groups: Vec::new() };
    Ok((found.validator, (owner, found.mode)))
}
