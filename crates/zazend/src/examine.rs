//! What a node tells `zazen doctor`: kernel, limits, clock, network, cache disk, permissions,
//! backing stores.
//!
//! Facts only: `zazen doctor` judges them, because it sees all nodes. A fact that the kernel does
//! not give is null.

use crate::disk_readers::disk_kind;
use crate::node::Node;
use crate::node_store::CacheDisk;
use serde_json::{Map, Value, json};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use zazen_backing::Backing;
use zazen_core::limits::OWN_DIR;
use zazen_core::{Error, ErrorKind, RelPath, Result};
use zazen_namespace_node::free_bytes_min;

/// The most that is written to measure a disk, in bytes.
const MEASURE_BYTES_MAX: u64 = 256 << 20;
/// Bytes written and read at once.
const CHUNK_BYTES: usize = 1 << 20;
/// A disk that takes longer is told by what it did in this time.
const MEASURE_TIME_MAX: Duration = Duration::from_secs(10);

/// The facts. `disk_bytes`: how much to write to the disk and to read again; 0 measures nothing.
pub(crate) fn examine(node: &Node, disk_bytes: u64) -> Value {
    let config = node.config();
    let left = node.left_undone.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    let disk_bytes = disk_bytes.min(MEASURE_BYTES_MAX);
    let serving = node.disks.serving.iter().map(|disk| cache(node, disk, disk_bytes));
    let absent =
        node.disks.absent.iter().map(|disk| json!({"root": disk.root, "ok": false, "trouble": disk.why}));
    json!({
        "name": config.name,
        "node": format!("{:032x}", node.store.node()),
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": node.started.elapsed().as_secs(),
        "user": node.powers.uid,
        "acts_for_others": node.powers.others,
        "kernel": rustix::system::uname().release().to_string_lossy(),
        "limits": limits(node),
        "memory": memory(),
        "interfaces": interfaces(Path::new("/sys/class/net")),
        "namespace": config.namespace.as_ref().map(|of| namespace(&of.data)),
        "caches": serving.chain(absent).collect::<Vec<_>>(),
        "key": config.key.as_deref().map(key),
        "listen": config.listen,
        "backing":
            node.roots.roots.iter()
                .map(|root| backing(root.directory.as_str(), &*root.backing))
                .collect::<Vec<_>>(),
        "needs_restart": left.needs_restart,
        "refused": left.refused,
        "draining": node.is_draining(),
        // The last one, so that it is as young as can be when it arrives.
        "wall_ns":
            u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos())
            .unwrap_or(0),
    })
}

fn limits(node: &Node) -> Value {
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let group = own_control_group();
    json!({
        "descriptors": descriptors,
        "connections_max": node.config().connections_max,
        "threads": group.as_deref().and_then(|group| least(group, "pids.max")),
        "memory_bytes": group.as_deref().and_then(|group| least(group, "memory.max")),
    })
}

/// This process's folder of the unified control groups.
fn own_control_group() -> Option<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new("/sys/fs/cgroup").join(own))
}

/// The least bound of `group` and of the groups above it; `None`: no bound.
fn least(group: &Path, file: &str) -> Option<u64> {
    let bound = |group: &Path| std::fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    group.ancestors().take_while(|above| above.starts_with("/sys/fs/cgroup")).filter_map(bound).min()
}

fn memory() -> Value {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
    };
    json!({"total_bytes": bytes("MemTotal"), "available_bytes": bytes("MemAvailable")})
}

/// The interfaces that are up, but for the loopback.
fn interfaces(folder: &Path) -> Value {
    let mut found: Vec<(String, Value)> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let (name, path) = (entry.file_name().into_string().ok()?, entry.path());
            let word = |file: &str| Some(std::fs::read_to_string(path.join(file)).ok()?.trim().to_owned());
            let is_up = word("operstate").is_some_and(|state| state == "up");
            let mtu: u64 = word("mtu")?.parse().ok()?;
            let shown = json!({"name": name, "mtu": mtu, "is_physical": path.join("device").exists()});
            (is_up && name != "lo").then_some((name, shown))
        })
        .collect();
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found.into_iter().map(|(_, shown)| shown).collect()
}

fn cache(node: &Node, disk: &CacheDisk, disk_bytes: u64) -> Value {
    let root = disk.root.as_path();
    let (space, report) = (disk.store.space(), disk.health.report());
    let measured = (disk_bytes > 0).then(|| measure(node, disk, disk_bytes));
    let measured = measured.map(|it| it.unwrap_or_else(|error| json!({"error": error.to_string()})));
    let mut found = folder(root);
    found.insert("measured".into(), measured.into());
    found.insert("kind".into(), disk_kind(root).to_string().into());
    found.insert("used".into(), space.used.into());
    found.insert("budget".into(), space.budget.into());
    found.insert("free".into(), space.free.into());
    found.insert("floor".into(), space.floor.into());
    found.insert("ok".into(), report.is_ok().into());
    found.insert("trouble".into(), report.trouble().into());
    Value::Object(found)
}

/// The folder of the namespace's bytes.
fn namespace(data: &Path) -> Value {
    let mut found = folder(data);
    if let Ok(disk) = rustix::fs::statvfs(data) {
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        found.insert("free".into(), bytes(disk.f_bavail).into());
        found.insert("floor".into(), free_bytes_min(bytes(disk.f_blocks)).into());
    }
    Value::Object(found)
}

/// What a folder of a disk lies on, and whose it is.
fn folder(root: &Path) -> Map<String, Value> {
    let mut found = Map::new();
    if let Ok(stat) = rustix::fs::statfs(root) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a magic number of 32 bits
        let magic = stat.f_type as u32;
        found.insert("file_system".into(), file_system(magic).into());
    }
    if let Ok(meta) = std::fs::metadata(root) {
        found.insert("owner".into(), meta.uid().into());
        found.insert("mode".into(), format!("{:03o}", meta.mode() & 0o7777).into());
    }
    found.insert("root".into(), root.to_string_lossy().into());
    found
}

/// The name of the file system with this magic number; `None` for others.
fn file_system(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x2fc1_2fc1 => "zfs",
        0xf2f5_2010 => "f2fs",
        0x0102_1994 | 0x8584_58f6 => "tmpfs",
        0x794c_7630 => "overlay",
        0x6969 => "nfs",
        0x0bd0_0bd0 => "lustre",
        0x4750_4653 => "gpfs",
        0x1980_0202 => "beegfs",
        0x00c3_6400 => "ceph",
        0xff53_4d42 | 0xfe53_4d42 => "smb",
        0x6573_5546 => "fuse",
        _ => return None,
    })
}

fn key(path: &Path) -> Value {
    let found = std::fs::metadata(path);
    let mode = found.as_ref().ok().map(|meta| format!("{:03o}", meta.mode() & 0o7777));
    json!({"path": path, "mode": mode, "error": found.err().map(|error| error.to_string())})
}

fn backing(directory: &str, backing: &dyn Backing) -> Value {
    let begin = Instant::now();
    let looked = backing.stat(&RelPath::default());
    json!({
        "root": directory,
        "describe": backing.describe(),
        "error": looked.err().map(|error| error.to_string()),
        "answered_s": begin.elapsed().as_secs_f64(),
    })
}

/// Writes a file to the cache's disk, syncs it and reads it again, past the kernel's memory.
fn measure(node: &Node, disk: &CacheDisk, bytes: u64) -> Result<Value> {
    let Ok(_alone) = node.measuring.try_lock() else {
        return Err(Error::new(ErrorKind::Busy, "somebody else measures the disk now; try again"));
    };
    let path = disk.root.join(OWN_DIR).join("tmp").join(format!("measured-{}", std::process::id()));
    let measured = disk.store.with_room(bytes, || {
        let measured = measure_at(&path, bytes);
        let removed = std::fs::remove_file(&path);
        measured.and_then(|measured| removed.map(|()| measured))
    })?;
    measured.map_err(|error| Error::io(format!("measure the disk with {}", path.display()), error))
}

fn measure_at(path: &Path, bytes: u64) -> std::io::Result<Value> {
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
    // Bytes that no disk compresses to nothing.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let chunk: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(CHUNK_BYTES)
    .collect();
    let begin = Instant::now();
    let mut written = 0;
    while written < bytes && begin.elapsed() < MEASURE_TIME_MAX {
        let part = chunk.len().min(usize::try_from(bytes - written).unwrap_or(usize::MAX));
        file.write_all(&chunk[..part])?;
        written += part as u64;
    }
    file.sync_data()?;
    let write_s = begin.elapsed().as_secs_f64();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    drop(file);
    let mut file = File::open(path)?;
    let mut buffer = vec![0; CHUNK_BYTES];
    let begin = Instant::now();
    let mut read = 0;
    while begin.elapsed() < MEASURE_TIME_MAX {
        match file.read(&mut buffer)? {
            0 => break,
            got => read += got as u64,
        }
    }
    let read_s = begin.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss)] // bytes per second, for people
    let rate = |bytes: u64, seconds: f64| bytes as f64 / seconds.max(1e-6);
    Ok(json!({"write_bytes_per_s": rate(written, write_s), "read_bytes_per_s": rate(read, read_s)}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_that_are_up_are_told_with_their_mtu() {
        let sys = tempfile::tempdir().unwrap();
        for (name, state, mtu) in [("lo", "up", "65536"), ("eth0", "up", "9000"), ("eth1", "down", "1500")] {
            let folder = sys.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("operstate"), format!("{state}\n")).unwrap();
            std::fs::write(folder.join("mtu"), format!("{mtu}\n")).unwrap();
        }
        std::fs::create_dir(sys.path().join("eth0/device")).unwrap();
        let expected = json!([{"name": "eth0", "mtu": 9000, "is_physical": true}]);
        assert_eq!(interfaces(sys.path()), expected);
    }

    #[test]
    fn a_disk_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let found = measure_at(&folder.path().join("x"), 3 << 20).unwrap();
        for rate in ["write_bytes_per_s", "read_bytes_per_s"] {
            assert!(found[rate].as_f64().unwrap() > 0.0, "{found}");
        }
        let error = measure_at(&folder.path().join("none/x"), 1).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    }
}
