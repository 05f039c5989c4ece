//! Limited disks: a control group per node whose reads and writes of the cache's disk are throttled.
//!
//! The kernel counts what reaches the disk: reads that the page cache answers, and (version 1) buffered writes,
//! are not limited.

use super::{Disk, State};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use zazen_core::{Error, ErrorKind, Result};

const V1: &str = "/sys/fs/cgroup/blkio";
const V2: &str = "/sys/fs/cgroup";

/// Plans the limit for caches in `dir`; `Err` says why it cannot be had here.
pub(crate) fn plan(dir: &Path, tag: &str, bytes_per_s: u64) -> Result<Disk> {
    let refuse = |why: String| {
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("disk limit of {bytes_per_s} bytes/s: {why}; the disks stay unlimited"),
        ))
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
    Ok(Disk { bytes_per_s, group: root.join(tag), device, unified })
}

/// Makes the control groups of `state`'s nodes.
pub(crate) fn set_up(state: &State, disk: &Disk) -> Result<()> {
    make(&disk.group)?;
    if disk.unified {
        write(&Path::new(V2).join("cgroup.subtree_control"), "+io")?;
        write(&disk.group.join("cgroup.subtree_control"), "+io")?;
    }
    for node in &state.nodes {
        let group = disk.group.join(&node.name);
        make(&group)?;
        let (device, rate) = (&disk.device, disk.bytes_per_s);
        if disk.unified {
            write(&group.join("io.max"), &format!("{device} rbps={rate} wbps={rate}"))?;
        } else {
            for what in ["read", "write"] {
                let file = group.join(format!("blkio.throttle.{what}_bps_device"));
                write(&file, &format!("{device} {rate}"))?;
            }
        }
    }
    Ok(())
}

/// Removes the control groups; what is not there is no error.
pub(crate) fn tear_down(state: &State, disk: &Disk) {
    for node in &state.nodes {
        remove(&disk.group.join(&node.name));
    }
    remove(&disk.group);
}

/// Moves this process into the control group of node `name`.
pub(crate) fn enter(disk: &Disk, name: &str) -> Result<()> {
    write(&disk.group.join(name).join("cgroup.procs"), &std::process::id().to_string())
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

fn remove(group: &Path) {
    // The kernel lets go of a killed member a moment after its end.
    for _ in 0..50 {
        match std::fs::remove_dir(group) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return crate::output::note(format!(
                    "control group {}: {error}; remove it by rmdir",
                    group.display()
                ));
            }
            _ => return,
        }
    }
    crate::output::note(format!("control group {}: still has members; remove it by rmdir", group.display()));
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text)
        .map_err(|error| Error::io(format!("control group file {}", file.display()), error))
}
