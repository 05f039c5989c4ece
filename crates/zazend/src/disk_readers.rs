//! How many readers a disk serves at a time (Zazen paper, Figure 6). A spinning disk serves one,
//! because seeks between several would cost its bandwidth. Flash serves several, because it needs
//! them to reach its bandwidth.

use std::path::{Path, PathBuf};

/// Readers on flash.
pub const FLASH_READERS: u16 = 8;
/// Readers that are advised for several disks, at most.
pub const READERS_MAX: u16 = 32;
/// Readers on a spinning disk.
pub const SPINNING_READERS: u16 = 1;

/// What kind of disk holds a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// Heads that seek.
    Spinning,
    /// No seeks.
    Flash,
    /// The kernel does not say (a stacked or network file system, memory), or cannot know (a
    /// virtual disk).
    Unknown,
}

impl DiskKind {
    /// How many readers such a disk should have at a time. An unknown disk is treated as flash.
    pub fn readers(self) -> u16 {
        match self {
            DiskKind::Spinning => SPINNING_READERS,
            DiskKind::Flash | DiskKind::Unknown => FLASH_READERS,
        }
    }
}

impl std::fmt::Display for DiskKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DiskKind::Spinning => "spinning disk",
            DiskKind::Flash => "flash",
            DiskKind::Unknown => "disk of unknown kind",
        })
    }
}

/// The kind of disk that holds `directory`.
pub fn disk_kind(directory: &Path) -> DiskKind {
    let Ok(stat) = rustix::fs::stat(directory) else { return DiskKind::Unknown };
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    kind_of(Path::new("/sys/dev/block"), major, minor)
}

fn kind_of(sys: &Path, major: u32, minor: u32) -> DiskKind {
    // A partition has no queue of its own; its parent directory is the whole disk.
    let device = sys.join(format!("{major}:{minor}")).canonicalize().unwrap_or_default();
    // A virtual disk says "rotational" by default, whatever hardware its host has.
    if device.components().any(|part| part.as_os_str().to_string_lossy().starts_with("virtio")) {
        return DiskKind::Unknown;
    }
    let queues: [PathBuf; 2] = [device.join("queue"), device.parent().unwrap_or(&device).join("queue")];
    for queue in queues {
        match std::fs::read_to_string(queue.join("rotational")).as_deref().map(str::trim) {
            Ok("1") => return DiskKind::Spinning,
            Ok("0") => return DiskKind::Flash,
            _ => {}
        }
    }
    DiskKind::Unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_asks_its_disk() {
        let sys = tempfile::tempdir().unwrap();
        for (disk, rotational) in [("sda", "1\n"), ("nvme0", "0\n")] {
            let disk = sys.path().join("devices").join(disk);
            std::fs::create_dir_all(disk.join("queue")).unwrap();
            std::fs::create_dir_all(disk.join("part1")).unwrap();
            std::fs::write(disk.join("queue/rotational"), rotational).unwrap();
        }
        for (number, target) in
            [("8:0", "devices/sda"), ("8:1", "devices/sda/part1"), ("259:1", "devices/nvme0/part1")]
        {
            std::os::unix::fs::symlink(sys.path().join(target), sys.path().join(number)).unwrap();
        }
        assert_eq!(kind_of(sys.path(), 8, 0), DiskKind::Spinning);
        assert_eq!(kind_of(sys.path(), 8, 1), DiskKind::Spinning);
        assert_eq!(kind_of(sys.path(), 259, 1), DiskKind::Flash);
        assert_eq!(kind_of(sys.path(), 0, 44), DiskKind::Unknown);
        let virtual_disk = sys.path().join("devices/virtio3/block/vda");
        std::fs::create_dir_all(virtual_disk.join("queue")).unwrap();
        std::fs::write(virtual_disk.join("queue/rotational"), "1\n").unwrap();
        std::os::unix::fs::symlink(&virtual_disk, sys.path().join("254:0")).unwrap();
        assert_eq!(kind_of(sys.path(), 254, 0), DiskKind::Unknown);
        assert_eq!((DiskKind::Spinning.readers(), DiskKind::Unknown.readers()), (1, 8));
    }
}
