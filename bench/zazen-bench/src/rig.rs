//! A folder of the bench's own, real daemons, and datasets of real files in it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use zazen_client::{Dataset, OpenOptions};
use zazen_core::{Error, ErrorKind, Result};

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

/// A dataset of `count` files of `bytes` each, all different and incompressible enough.
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

/// A program built together with this one.
pub(crate) fn sibling(name: &str) -> Result<PathBuf> {
    let here = std::env::current_exe().map_err(|error| Error::io("find this program", error))?;
    let path = here.with_file_name(name);
    if path.exists() {
        return Ok(path);
    }
    Err(Error::new(
        ErrorKind::NotFound,
        format!("{} is not there; build it: cargo build --release -p zazend -p zazen-cli", path.display()),
    ))
}

/// A daemon of the bench's own.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) socket: PathBuf,
    pub(crate) cache: PathBuf,
    pub(crate) listen: String,
    pub(crate) key: PathBuf,
    /// From spawn to serving.
    pub(crate) start_time: Duration,
}

impl Daemon {
    /// Starts `zazend` with its cache in `folder/cache` (kept if it is there) for frames beneath `backing`.
    pub(crate) fn start(folder: &Path, backing: &Path) -> Result<Daemon> {
        Daemon::start_with(folder, backing, &[])
    }

    /// The same with `options` of one's own.
    pub(crate) fn start_with(folder: &Path, backing: &Path, options: &[&str]) -> Result<Daemon> {
        let (cache, socket) = (folder.join("cache"), folder.join("zazend.sock"));
        let (key, ready) = (folder.join("key"), folder.join("ready.json"));
        let say = |what: &str, error| Error::io(format!("{what} in {}", folder.display()), error);
        std::fs::create_dir_all(&cache).map_err(|error| say("make the cache", error))?;
        std::fs::write(&key, "a key of the bench, of no use elsewhere\n")
            .map_err(|error| say("write the key", error))?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&key, mode).map_err(|error| say("protect the key", error))?;
        let _ = std::fs::remove_file(&ready);
        let log =
            std::fs::File::create(folder.join("zazend.log")).map_err(|error| say("make the log", error))?;
        let begin = Instant::now();
        let mut child = Command::new(sibling("zazend")?)
            .args(["--budget", "16G", "--free-floor", "1G", "--listen", "127.0.0.1:0"])
            .arg("--cache")
            .arg(&cache)
            .arg("--backing")
            .arg(backing)
            .arg("--socket")
            .arg(&socket)
            .arg("--key")
            .arg(&key)
            .arg("--ready-file")
            .arg(&ready)
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| say("start zazend", error))?;
        loop {
            if let Ok(text) = std::fs::read_to_string(&ready)
                && let Ok(told) = serde_json::from_str::<serde_json::Value>(&text)
            {
                let start_time = begin.elapsed();
                let listen = told["listen"].as_str().unwrap_or_default().to_owned();
                return Ok(Daemon { child, socket, cache, listen, key, start_time });
            }
            if let Ok(Some(status)) = child.try_wait() {
                let log = std::fs::read_to_string(folder.join("zazend.log")).unwrap_or_default();
                return Err(Error::new(ErrorKind::Unavailable, format!("zazend ended with {status}: {log}")));
            }
            if begin.elapsed() > Duration::from_secs(120) {
                let _ = child.kill();
                return Err(Error::new(ErrorKind::TimedOut, "zazend is not ready after 120 s"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Opens a dataset through this daemon.
    pub(crate) fn open(&self, dataset: &Path) -> Result<Dataset> {
        Dataset::open(dataset, &OpenOptions { socket: Some(self.socket.clone()), ..OpenOptions::default() })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory of the daemon that is its own (not files it maps), in MiB.
    pub(crate) fn memory_mib(&self) -> Result<f64> {
        let path = format!("/proc/{}/status", self.child.id());
        let text =
            std::fs::read_to_string(&path).map_err(|error| Error::io(format!("read {path}"), error))?;
        let kib = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).and_then(|rest| {
            rest.trim().strip_suffix("kB").and_then(|number| number.trim().parse::<f64>().ok())
        });
        kib.map(|kib| kib / 1024.0)
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, format!("no RssAnon in {path}")))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Empties the page cache; false (with nothing done) where this process may not.
pub(crate) fn drop_caches() -> bool {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}
