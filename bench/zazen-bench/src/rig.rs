//! A folder of the bench's own, real daemons, and datasets of real files in it.

use std::path::{Path, PathBuf};
use std::time::Duration;
use zazen_client::{Dataset, OpenOptions};
use zazen_core::{Error, ErrorKind, Result};
use zazen_testbed::{Launch, beside_this_program};

/// The bench's folder; removed with everything in it.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(parent: &Path) -> Result<Folder> {
        let path = parent.join(format!("run-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .map_err(|error| Error::io(format!("make {}", path.display()), error))?;
        let path = path.canonicalize().map_err(|error| Error::io("resolve the bench folder", error))?;
        Ok(Folder(path))
    }

    /// A fresh empty folder `name` in it.
    pub(crate) fn fresh(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path)
            .map_err(|error| Error::io(format!("make {}", path.display()), error))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A dataset of `count` files of `bytes` each, all different and hardly compressible.
pub(crate) fn dataset(parent: &Path, name: &str, count: u64, bytes: usize) -> Result<PathBuf> {
    let folder = parent.join(name);
    std::fs::create_dir_all(&folder)
        .map_err(|error| Error::io(format!("make {}", folder.display()), error))?;
    let mut block = noise(bytes);
    for number in 0..count {
        block[..8].copy_from_slice(&number.to_le_bytes());
        let path = folder.join(format!("frame-{number:07}.bin"));
        std::fs::write(&path, &block)
            .map_err(|error| Error::io(format!("write {}", path.display()), error))?;
    }
    Ok(folder)
}

/// `bytes` of a fixed pseudo-random sequence.
pub(crate) fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes);
    out
}

/// A daemon of the bench's own, and the requests of the bench to it.
pub(crate) struct Daemon {
    process: zazen_testbed::Daemon,
    pub(crate) socket: PathBuf,
    pub(crate) listen: String,
    pub(crate) key: PathBuf,
    /// From spawn to serving.
    pub(crate) start_time: Duration,
}

impl Daemon {
    /// Starts `zazend` with its cache in `folder/cache` (kept if it is there) for frames beneath
    /// `backing`.
    pub(crate) fn start(folder: &Path, backing: &Path) -> Result<Daemon> {
        Daemon::start_with(folder, backing, &[])
    }

    /// The same with other `options`.
    pub(crate) fn start_with(folder: &Path, backing: &Path, options: &[&str]) -> Result<Daemon> {
        let (cache, socket, key) = (folder.join("cache"), folder.join("zazend.sock"), folder.join("key"));
        let say = |what: &str, error| Error::io(format!("{what} in {}", folder.display()), error);
        std::fs::create_dir_all(&cache).map_err(|error| say("make the cache", error))?;
        std::fs::write(&key, "a key of the bench, of no use elsewhere\n")
            .map_err(|error| say("write the key", error))?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&key, mode).map_err(|error| say("protect the key", error))?;
        let launch = Launch {
            listen: Some("127.0.0.1:0".to_owned()),
            key: Some(key.clone()),
            budget: Some("16G".to_owned()),
            free_floor: Some("1G".to_owned()),
            ..Launch::new(&cache, backing, &socket)
        };
        let program = beside_this_program("zazend")?;
        let process = zazen_testbed::Daemon::start(&program, &launch.with(options), folder)?;
        let listen = process.ready().listen.clone().unwrap_or_default();
        let start_time = process.start_time();
        Ok(Daemon { process, socket, listen, key, start_time })
    }

    /// Opens a dataset through this daemon.
    pub(crate) fn open(&self, dataset: &Path) -> Result<Dataset> {
        Dataset::open(dataset, &OpenOptions { socket: Some(self.socket.clone()), ..OpenOptions::default() })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Resident memory of the daemon that is its own (not files it maps), in MiB.
    pub(crate) fn memory_mib(&self) -> Result<f64> {
        let path = format!("/proc/{}/status", self.process.pid());
        let text =
            std::fs::read_to_string(&path).map_err(|error| Error::io(format!("read {path}"), error))?;
        let kib = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).and_then(|rest| {
            rest.trim().strip_suffix("kB").and_then(|number| number.trim().parse::<f64>().ok())
        });
        kib.map(|kib| kib / 1024.0)
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, format!("no RssAnon in {path}")))
    }
}

/// Empties the page cache. Returns false, and does nothing, if this process may not.
pub(crate) fn drop_caches() -> bool {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}
