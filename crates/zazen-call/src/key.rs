//! The cluster key: where it comes from and what is computed with it. Its bytes leave this file
//! only as MACs.

use hmac::{Hmac, KeyInit, Mac};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use zazen_core::{Error, ErrorKind, Result};
use zazen_wire::handshake::{MAC_BYTES, Side, proof_input};

/// The shortest key, in bytes: 128 bits, beyond guessing if random.
pub const KEY_BYTES_MIN: usize = 16;
/// The variable by which tools find the key's file.
const FROM: &str = "ZAZEN_KEY";
/// The longest key file, in bytes.
const KEY_FILE_BYTES_MAX: u64 = 64 << 10;

/// The shared secret of a cluster's daemons and tools. Never printed.
///
/// Clones are one key: [`ClusterKey::replace`] changes all of them, so that a program that reads
/// its key again need not know who has a clone.
#[derive(Clone)]
pub struct ClusterKey(Arc<RwLock<Box<[u8]>>>);

impl std::fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterKey(secret)")
    }
}

impl ClusterKey {
    fn of(bytes: &[u8]) -> ClusterKey {
        ClusterKey(Arc::new(RwLock::new(bytes.into())))
    }

    fn bytes(&self) -> RwLockReadGuard<'_, Box<[u8]>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the bytes of `other`, for this key and all its clones. Proofs made from now on are of
    /// the new key.
    pub fn replace(&self, other: &ClusterKey) {
        let bytes = other.bytes().clone();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = bytes;
    }

    /// Whether both have the same bytes. Takes the same time wherever they differ.
    pub fn is_same(&self, other: &ClusterKey) -> bool {
        if Arc::ptr_eq(&self.0, &other.0) {
            return true;
        }
        let (one, two) = (self.bytes(), other.bytes());
        let differing = one.iter().zip(two.iter()).fold(0, |differing, (one, two)| differing | (one ^ two));
        one.len() == two.len() && differing == 0
    }

    /// A key of these bytes, as they are; fails with `Config` below [`KEY_BYTES_MIN`].
    pub fn from_bytes(bytes: &[u8]) -> Result<ClusterKey> {
        if bytes.len() < KEY_BYTES_MIN {
            return Err(Error::new(
                ErrorKind::Config,
                format!(
                    "the cluster key has {} bytes, fewer than {KEY_BYTES_MIN}; make one with `zazen key new \
                     FILE`",
                    bytes.len()
                ),
            ));
        }
        Ok(ClusterKey::of(bytes))
    }

    /// Reads a key file of at least 16 bytes (without white space at its ends). Fails with `Config`
    /// if others than its owner and group can read it, if others than its owner can write it, or if
    /// its owner is not believed.
    pub fn from_file(path: &Path) -> Result<ClusterKey> {
        let shown = path.display();
        let named = named(path, std::env::var_os(FROM).as_deref());
        let refuse = |why: String| Error::new(ErrorKind::Config, format!("{named}: {why}"));
        // Non-blocking, so that a FIFO in the file's place can't hang the daemon.
        let opened =
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty());
        let mut file = File::from(opened.map_err(|errno| {
            refuse(match errno {
                rustix::io::Errno::NOENT => {
                    format!(
                        "there is none; copy it from another node, or make one with `zazen key new {shown}`"
                    )
                }
                other => format!("can't be opened ({other}); give a key file that user {} may read", euid()),
            })
        })?);
        let metadata = file.metadata().map_err(|error| refuse(error.to_string()))?;
        if !metadata.is_file() {
            return Err(refuse("is not a regular file".to_owned()));
        }
        if metadata.mode() & 0o006 != 0 {
            return Err(refuse(format!(
                "everybody can read or write it (mode {:03o}), so it is no secret; run `chmod 600 {shown}`",
                metadata.mode() & 0o777
            )));
        }
        crate::belief::check_file(&file, &named)?;
        let mut bytes = Vec::new();
        file.by_ref()
            .take(KEY_FILE_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| refuse(format!("can't be read ({error})")))?;
        if bytes.len() as u64 > KEY_FILE_BYTES_MAX {
            return Err(refuse(format!("is larger than {KEY_FILE_BYTES_MAX} bytes; is it a key file?")));
        }
        let key = bytes.trim_ascii();
        if key.len() < KEY_BYTES_MIN {
            return Err(refuse(format!(
                "holds {} bytes, fewer than {KEY_BYTES_MIN}; remove it, then copy it from another node or \
                 make one with `zazen key new {shown}`",
                key.len()
            )));
        }
        Ok(ClusterKey::of(key))
    }

    /// A fresh random key as printable text (64 hexadecimal digits), for `zazen key new`.
    pub fn generate() -> Result<String> {
        let bytes = random::<32>()?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The proof that `side` knows this key and saw these two hellos.
    pub(crate) fn prove(&self, side: Side, client_hello: &[u8], server_hello: &[u8]) -> [u8; MAC_BYTES] {
        self.mac(side, client_hello, server_hello).finalize().into_bytes().into()
    }

    /// Whether `mac` is [`ClusterKey::prove`]'s answer; compared in constant time.
    pub(crate) fn verify(
        &self,
        side: Side,
        client_hello: &[u8],
        server_hello: &[u8],
        mac: &[u8; MAC_BYTES],
    ) -> bool {
        self.mac(side, client_hello, server_hello).verify_slice(mac).is_ok()
    }

    fn mac(&self, side: Side, client_hello: &[u8], server_hello: &[u8]) -> Hmac<sha2::Sha256> {
        let Ok(mut mac) = Hmac::<sha2::Sha256>::new_from_slice(&self.bytes()) else {
            unreachable!("HMAC takes a key of any length");
        };
        mac.update(&proof_input(side, client_hello, server_hello));
        mac
    }
}

/// The file in messages. A path that nobody typed came `from` the environment.
fn named(path: &Path, from: Option<&OsStr>) -> String {
    let told = if from == Some(path.as_os_str()) { format!(" (from ${FROM})") } else { String::new() };
    format!("key file {}{told}", path.display())
}

fn euid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorKind::Io, format!("the kernel gives no random bytes: {error}")))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_from_the_environment_is_told_apart() {
        let path = Path::new("/t/key");
        assert_eq!(named(path, Some("/t/key".as_ref())), "key file /t/key (from $ZAZEN_KEY)");
        assert_eq!(named(path, Some("/other".as_ref())), "key file /t/key");
        assert_eq!(named(path, None), "key file /t/key");
    }
}
