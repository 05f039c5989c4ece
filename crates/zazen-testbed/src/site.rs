//! The places of one node in a folder of the caller's: backing store, cache, socket and key.

use crate::Launch;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use zazen_call::ClusterKey;
use zazen_core::{Error, Result};

/// The places of one node. Every user may search them, so that only what a test closes is closed.
#[derive(Clone, Debug)]
pub struct Site {
    /// The backing store; it exists.
    pub backing: PathBuf,
    /// The cache; the daemon makes it.
    pub cache: PathBuf,
    /// The daemon's socket.
    pub socket: PathBuf,
    /// The cluster key's file; it exists.
    pub key: PathBuf,
}

impl Site {
    /// Makes `folder`/backing and a fresh key, each unless it is there. The socket lies in
    /// `folder`/run: `folder` must have a short path.
    pub fn make(folder: &Path) -> Result<Site> {
        let failed = |error| Error::io(format!("node's folder {}", folder.display()), error);
        let open_to_all = |path: &Path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o755));
        let site = Site {
            backing: folder.join("backing"),
            cache: folder.join("cache"),
            socket: folder.join("run/s"),
            key: folder.join("key"),
        };
        std::fs::create_dir_all(&site.backing).and_then(|()| open_to_all(folder)).map_err(failed)?;
        if !site.key.exists() {
            std::fs::write(&site.key, ClusterKey::generate()?).map_err(failed)?;
            std::fs::set_permissions(&site.key, PermissionsExt::from_mode(0o600)).map_err(failed)?;
        }
        Ok(site)
    }

    /// How a daemon is started here. The free floor is 0: a test's disk may be nearly full.
    pub fn launch(&self) -> Launch {
        Launch {
            listen: Some("127.0.0.1:0".into()),
            key: Some(self.key.clone()),
            name: Some("testnode".into()),
            budget: Some("64M".into()),
            free_floor: Some("0".into()),
            ..Launch::new(&self.cache, &self.backing, &self.socket)
        }
    }

    /// The places of node `index` of several that share one backing store and one key.
    pub fn node(&self, index: usize) -> Site {
        let numbered = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            path.with_file_name(format!("{name}{index}"))
        };
        Site { cache: numbered(&self.cache), socket: numbered(&self.socket), ..self.clone() }
    }
}
