//! Several `zazen run --shared-read` of one user on one machine, as of MPI's ranks: the first one's
//! go-between serves all whose node, key and shared folders are the same.
//!
//! A file tells where it listens. Whoever starts or ends a go-between, or joins one, holds the
//! file's lock meanwhile. A guest keeps one connection as long as its program lives; the go-between
//! ends when its own program and all guests have ended.
//!
//! Invariant: the file is in a folder that only this user can change. What it says is believed only
//! if the go-between there is this user's ([`zazen_call::believes`]) and answers.

use super::bridge::Bridge;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use zazen_call::{ClusterKey, Connection};
use zazen_core::Result;
use zazen_forward_api::structures::PLUGIN_ID;
use zazen_wire::Message;
use zazen_wire::checksum::crc32c;
use zazen_wire::plugins::{About, plugins_fn};
use zazen_wire::service;

const PATIENCE: Duration = Duration::from_secs(10);

/// A go-between for a program, of this run or of another one.
pub(super) enum GoBetween {
    Own {
        bridge: Bridge,
        told: Option<Told>,
    },
    /// Another run's, and the connection that keeps it.
    Guest {
        socket: PathBuf,
        _stay: Box<Connection>,
    },
}

impl GoBetween {
    /// Where it listens.
    pub(super) fn socket(&self) -> PathBuf {
        match self {
            GoBetween::Own { bridge, .. } => bridge.socket(),
            GoBetween::Guest { socket, .. } => socket.clone(),
        }
    }
}

impl Drop for GoBetween {
    fn drop(&mut self) {
        if let GoBetween::Own { bridge, told: Some(told) } = self {
            told.take_back();
            // Nobody joins any more.
            while bridge.has_callers() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// The file that tells where a go-between listens, and what it says.
pub(super) struct Told {
    file: File,
    said: Vec<u8>,
}

impl Told {
    fn take_back(&mut self) {
        let _ = rustix::fs::flock(&self.file, rustix::fs::FlockOperation::LockExclusive);
        let mut now = Vec::new();
        let read = self.file.rewind().and_then(|()| self.file.read_to_end(&mut now));
        // Another run tells of its own, where this one did not answer for a while.
        if read.is_ok() && now == self.said {
            let _ = self.file.set_len(0);
        }
        let _ = rustix::fs::flock(&self.file, rustix::fs::FlockOperation::Unlock);
    }
}

/// The go-between to `node`, for what is forwarded with these shared folders.
pub(super) fn start(node: &str, key: ClusterKey, key_file: &Path, shared: Vec<Vec<u8>>) -> Result<GoBetween> {
    if shared.is_empty() {
        return Ok(GoBetween::Own { bridge: Bridge::start(node, key, shared)?, told: None });
    }
    let name = purpose(node, key_file, &shared);
    let Some(mut file) = folder().and_then(|folder| locked(&folder.join(format!("{:08x}", crc32c(&name)))))
    else {
        return Ok(GoBetween::Own { bridge: Bridge::start(node, key, shared)?, told: None });
    };
    let mut said = Vec::new();
    let _ = file.read_to_end(&mut said);
    if let Some(socket) = said.strip_prefix(&name[..]).filter(|socket| !socket.is_empty()) {
        let socket = PathBuf::from(std::ffi::OsString::from_vec(socket.to_vec()));
        if let Ok(stay) = join(&socket) {
            return Ok(GoBetween::Guest { socket, _stay: Box::new(stay) });
        }
    }
    let bridge = Bridge::start(node, key, shared)?;
    // Another purpose of the same checksum goes on as before: this run is alone then.
    let is_free = said.is_empty() || said.starts_with(&name) || !is_alive(&said);
    let said = [&name[..], bridge.socket().as_os_str().as_bytes()].concat();
    let tell = |file: &mut File| {
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(&said)
    };
    let told = is_free && tell(&mut file).is_ok();
    let _ = rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock);
    Ok(GoBetween::Own { bridge, told: told.then_some(Told { file, said }) })
}

/// Whether a file of another purpose still tells of somebody.
fn is_alive(said: &[u8]) -> bool {
    let socket = said.rsplit(|byte| *byte == 0).next().unwrap_or_default();
    let socket = PathBuf::from(std::ffi::OsString::from_vec(socket.to_vec()));
    Connection::unix(&socket, PATIENCE).is_ok()
}

fn join(socket: &Path) -> Result<Connection> {
    let mut connection = Connection::unix(socket, PATIENCE)?;
    connection.set_timeout(Some(PATIENCE));
    let about = About { plugin: PLUGIN_ID, generation: 0 }.encode();
    connection.call(service::PLUGINS, plugins_fn::PING, &about, &[])?;
    connection.set_timeout(None);
    Ok(connection)
}

/// What two runs must have in common, as bytes that end with a NUL.
fn purpose(node: &str, key_file: &Path, shared: &[Vec<u8>]) -> Vec<u8> {
    let key =
        std::fs::metadata(key_file).map(|stat| (stat.dev(), stat.ino(), stat.mtime(), stat.mtime_nsec()));
    let head = format!("{}\n{node}\n{:?}\n", env!("CARGO_PKG_VERSION"), key.ok());
    let mut all = head.into_bytes();
    for folder in shared {
        all.extend_from_slice(folder);
        all.push(b'\n');
    }
    all.push(0);
    all
}

/// A folder of this user's alone; `None`: there is none, so each run is alone.
fn folder() -> Option<PathBuf> {
    let own = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let bases = runtime.into_iter().chain([std::env::temp_dir(), "/tmp".into(), "/dev/shm".into()]);
    bases.map(|base| base.join(format!("zazen-shared-{own}"))).find(|folder| {
        let _ = std::fs::DirBuilder::new().mode(0o700).create(folder);
        let found = std::fs::symlink_metadata(folder);
        found.is_ok_and(|found| found.is_dir() && found.uid() == own && found.mode() & 0o077 == 0)
    })
}

fn locked(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(libc::O_NOFOLLOW).open(path).ok()?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_with_other_nodes_keys_or_folders_have_another_purpose() {
        let folder = tempfile::tempdir().unwrap();
        let keys = ["a", "b"].map(|name| folder.path().join(name));
        for key in &keys {
            std::fs::write(key, "key").unwrap();
        }
        let shared = [b"/a".to_vec()];
        let one = purpose("n:1", &keys[0], &shared);
        assert_eq!(one, purpose("n:1", &keys[0], &shared));
        assert_ne!(one, purpose("n:2", &keys[0], &shared));
        assert_ne!(one, purpose("n:1", &keys[1], &shared));
        assert_ne!(one, purpose("n:1", &keys[0], &[b"/a".to_vec(), b"/b".to_vec()]));
    }
}
