//! What a testbed's record says of limited disks.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Where version 1 keeps the groups that limit disks.
pub(crate) const V1: &str = "/sys/fs/cgroup/blkio";
/// Where version 1 keeps those that count processor time.
pub(crate) const V1_PROCESSOR: &str = "/sys/fs/cgroup/cpuacct";
/// Where version 2 keeps all groups.
pub(crate) const V2: &str = "/sys/fs/cgroup";

/// Limited disks: one control group per host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Disk {
    /// Bytes per second of each node's, each way, if limited.
    pub bytes_per_s: Option<u64>,
    /// Reads per second of each node's, if limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Bytes per second of the file server's, each way, if limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_bytes_per_s: Option<u64>,
    /// Folder that holds the hosts' control groups.
    pub group: PathBuf,
    /// The same in the hierarchy that counts processor time, where that is one of its own (version
    /// 1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor_group: Option<PathBuf>,
    /// The disk, `major:minor`.
    pub device: String,
    /// Whether the control groups are of version 2.
    pub unified: bool,
}

impl Disk {
    /// The folders that hold one control group per host each.
    pub fn roots(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(self.group.as_path()).chain(self.processor_group.as_deref())
    }

    /// Whether the control groups are those that a testbed with `tag` gets.
    pub(crate) fn must_be_of(&self, tag: &str) -> std::result::Result<(), String> {
        let root = Path::new(if self.unified { V2 } else { V1 });
        let processor = self.processor_group.as_deref().unwrap_or(self.group.as_path());
        let counted = [self.group.as_path(), &Path::new(V1_PROCESSOR).join(tag)].contains(&processor);
        let numbered = self.device.bytes().all(|letter| letter.is_ascii_digit() || letter == b':');
        match self.group == root.join(tag) && counted && numbered {
            true => Ok(()),
            false => Err(format!("its control groups are not those of {tag}")),
        }
    }
}
