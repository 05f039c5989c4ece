//! What is known of each node before anything is judged.

use crate::target::Missed;
use serde::{Deserialize, Serialize};

/// One node of the list, as it was found.
#[derive(Default)]
pub(super) struct Looked {
    /// Its own name, or where it should listen.
    pub(super) name: String,
    /// Where it listens.
    pub(super) target: String,
    /// Why it could not be looked at.
    pub(super) missed: Option<Missed>,
    /// The daemon's version.
    pub(super) version: Option<String>,
    /// Why it tells this caller no facts.
    pub(super) not_examined: Option<String>,
    /// Its clock ahead of this machine's, in seconds; half the round trip is the error.
    pub(super) clock_offset_s: Option<f64>,
    /// The quickest question and answer.
    pub(super) round_trip_s: Option<f64>,
    /// Why messages of several packets do not arrive.
    pub(super) large_messages: Option<String>,
    /// What it tells.
    pub(super) facts: Option<Facts>,
}

/// What a daemon tells of its node: the JSON of EXAMINE. Fields that an older daemon does not know
/// have their defaults.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Facts {
    pub(super) node: String,
    pub(super) uptime_s: u64,
    pub(super) user: u32,
    pub(super) acts_for_others: bool,
    pub(super) kernel: String,
    pub(super) limits: Limits,
    pub(super) memory: Memory,
    pub(super) interfaces: Vec<Interface>,
    pub(super) namespace: Option<Namespace>,
    pub(super) caches: Vec<Cache>,
    pub(super) key: Option<Key>,
    pub(super) backing: Vec<Backing>,
    pub(super) needs_restart: Vec<String>,
    pub(super) refused: Option<String>,
    pub(super) draining: bool,
    pub(super) wall_ns: u64,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Limits {
    /// `None`: no limit.
    pub(super) descriptors: Option<u64>,
    pub(super) connections_max: u64,
    /// Of its control group; `None`: no limit.
    pub(super) threads: Option<u64>,
    /// Of its control group; `None`: no limit.
    pub(super) memory_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Memory {
    pub(super) total_bytes: Option<u64>,
    pub(super) available_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) mtu: u64,
    /// Not a bridge, a tunnel or a container's end.
    pub(super) is_physical: bool,
}

/// The folder of the namespace's bytes.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Namespace {
    pub(super) root: String,
    pub(super) file_system: Option<String>,
    pub(super) mode: Option<String>,
    /// `None`: nobody can tell.
    pub(super) free: Option<u64>,
    /// With less than that, new files of this node go to others.
    pub(super) floor: u64,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Cache {
    pub(super) root: String,
    pub(super) file_system: Option<String>,
    pub(super) kind: String,
    pub(super) mode: Option<String>,
    pub(super) used: u64,
    pub(super) budget: u64,
    pub(super) free: u64,
    pub(super) floor: u64,
    pub(super) ok: bool,
    pub(super) trouble: String,
    pub(super) measured: Option<Measured>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Measured {
    pub(super) error: Option<String>,
    pub(super) write_bytes_per_s: Option<f64>,
    pub(super) read_bytes_per_s: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Key {
    pub(super) path: String,
    pub(super) mode: Option<String>,
    pub(super) error: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Backing {
    pub(super) root: String,
    pub(super) error: Option<String>,
    pub(super) answered_s: f64,
}

impl Facts {
    /// Bytes per second of all disks together, as `rate` reads them; `None` if none was measured.
    pub(super) fn rate(&self, rate: fn(&Measured) -> Option<f64>) -> Option<f64> {
        let rates = self.caches.iter().filter_map(|cache| rate(cache.measured.as_ref()?));
        rates.fold(None, |sum, rate| Some(sum.unwrap_or(0.0) + rate))
    }

    /// The largest packet of its network: that of the machine's own interfaces, or of the virtual
    /// ones where there are no others, as in a container.
    pub(super) fn mtu(&self) -> Option<u64> {
        let physical =
            self.interfaces.iter().filter(|interface| interface.is_physical).map(|it| it.mtu).max();
        physical.or_else(|| self.interfaces.iter().map(|interface| interface.mtu).max())
    }
}
