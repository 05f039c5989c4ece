//! Limited disks: a control group per host, throttled on the cache's disk; it counts processor time
//! too.
//!
//! The kernel counts what reaches the disk: reads that the page cache answers, and (version 1)
//! buffered writes, are not limited. A limit of requests per second takes each request as one,
//! however large.

use crate::disk_record::{Disk, V1, V1_PROCESSOR, V2};
use crate::{Host, Role, State};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};

/// What a disk may give; `None` is as much as it can.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskLimits {
    /// Bytes per second of each node's, each way.
    pub bytes_per_s: Option<u64>,
    /// Reads per second of each node's.
    pub iops: Option<u64>,
    /// Bytes per second of the file server's, each way.
    pub server_bytes_per_s: Option<u64>,
}

/// Plans limited disks for caches in `dir`; `Err` says why they cannot be had here.
pub(crate) fn plan(dir: &Path, tag: &str, limits: DiskLimits) -> Result<Disk> {
    let refuse = |why: String| {
        Err(Error::new(ErrorKind::Unsupported, format!("disk limit: {why}; the disks stay unlimited")))
    };
    if !rustix::process::geteuid().is_root() {
        return refuse("needs root".to_owned());
    }
    let Some(device) = disk_of(dir) else {
        return refuse(format!("{} is not on a disk of this machine's own", dir.display()));
    };
    let unified = Path::new(V2).join("cgroup.controllers").exists();
    let (root, available) = match unified {
        true => {
            let controllers = std::fs::read_to_string(Path::new(V2).join("cgroup.controllers"));
            (
                PathBuf::from(V2),
                controllers.is_ok_and(|text| text.split_whitespace().any(|name| name == "io")),
            )
        }
        false => (PathBuf::from(V1), Path::new(V1).join("blkio.throttle.read_bps_device").exists()),
    };
    if !available {
        return refuse("this kernel offers no I/O controller (cgroup v1 blkio or v2 io)".to_owned());
    }
    let processor = Path::new(V1_PROCESSOR);
    let DiskLimits { bytes_per_s, iops, server_bytes_per_s } = limits;
    Ok(Disk {
        bytes_per_s,
        iops,
        server_bytes_per_s,
        group: root.join(tag),
        processor_group: (!unified && processor.is_dir()).then(|| processor.join(tag)),
        device,
        unified,
    })
}

/// Whether a control group of a testbed called `tag` is there.
pub(crate) fn is_taken(tag: &str) -> bool {
    [V1, V1_PROCESSOR, V2].iter().any(|root| Path::new(root).join(tag).exists())
}

/// Makes the control groups of `state`'s hosts.
pub(crate) fn set_up(state: &State, disk: &Disk) -> Result<()> {
    for root in disk.roots() {
        make(root)?;
    }
    if disk.unified {
        write(&Path::new(V2).join("cgroup.subtree_control"), "+io")?;
        write(&disk.group.join("cgroup.subtree_control"), "+io")?;
    }
    for host in state.hosts() {
        for root in disk.roots() {
            make(&root.join(&host.name))?;
        }
        limit(disk, host)?;
    }
    Ok(())
}

/// Removes the control groups; what is not there is no error.
pub(crate) fn tear_down(state: &State, disk: &Disk, remark: &mut dyn FnMut(String)) {
    for root in disk.roots() {
        for host in state.hosts() {
            remove(&root.join(&host.name), remark);
        }
        remove(root, remark);
    }
}

/// Moves this process into the control groups of host `name`.
pub(crate) fn enter(disk: &Disk, name: &str) -> Result<()> {
    for root in disk.roots() {
        write(&root.join(name).join("cgroup.procs"), &std::process::id().to_string())?;
    }
    Ok(())
}

/// Seconds of processor time that all processes ever put on host `name` have used; `None` where it
/// is not counted.
pub fn processor_seconds(disk: &Disk, name: &str) -> Option<f64> {
    let read = |file: PathBuf| std::fs::read_to_string(file).ok();
    if disk.unified {
        let text = read(disk.group.join(name).join("cpu.stat"))?;
        let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        return Some(micros.trim().parse::<f64>().ok()? / 1e6);
    }
    let text = read(disk.processor_group.as_ref()?.join(name).join("cpuacct.usage"))?;
    Some(text.trim().parse::<f64>().ok()? / 1e9)
}

fn limit(disk: &Disk, host: &Host) -> Result<()> {
    let (bytes, iops) = match host.role {
        Role::Node => (disk.bytes_per_s, disk.iops),
        Role::Server => (disk.server_bytes_per_s, None),
        Role::Simulation => (None, None),
    };
    let group = disk.group.join(&host.name);
    let device = &disk.device;
    if disk.unified {
        let word = |name: &str, limit: Option<u64>| limit.map(|limit| format!(" {name}={limit}"));
        let words = [word("rbps", bytes), word("wbps", bytes), word("riops", iops)];
        let words: String = words.into_iter().flatten().collect();
        return match words.is_empty() {
            true => Ok(()),
            false => write(&group.join("io.max"), &format!("{device}{words}")),
        };
    }
    let limits = [("read_bps", bytes), ("write_bps", bytes), ("read_iops", iops)];
    for (what, limit) in limits.into_iter().filter_map(|(what, limit)| Some((what, limit?))) {
        write(&group.join(format!("blkio.throttle.{what}_device")), &format!("{device} {limit}"))?;
    }
    Ok(())
}

/// `major:minor` of the whole disk beneath `path`: the throttle takes no partitions.
fn disk_of(path: &Path) -> Option<String> {
    let device = std::fs::metadata(path).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    if major == 0 {
        return None;
    }
    let block = Path::new("/sys/dev/block").join(format!("{major}:{minor}")).canonicalize().ok()?;
    let whole = if block.join("partition").exists() { block.parent()?.to_path_buf() } else { block };
    Some(std::fs::read_to_string(whole.join("dev")).ok()?.trim().to_owned())
}

fn make(group: &Path) -> Result<()> {
    match std::fs::create_dir(group) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Error::io(format!("control group {}", group.display()), error))
        }
        _ => Ok(()),
    }
}

fn remove(group: &Path, remark: &mut dyn FnMut(String)) {
    // The kernel lets go of a killed member a moment after its end.
    for _ in 0..50 {
        match std::fs::remove_dir(group) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return remark(format!("control group {}: {error}; remove it by rmdir", group.display()));
            }
            _ => return,
        }
    }
    remark(format!("control group {}: still has members; remove it by rmdir", group.display()));
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text)
        .map_err(|error| Error::io(format!("control group file {}", file.display()), error))
}
