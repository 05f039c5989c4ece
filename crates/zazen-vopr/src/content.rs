//! What frames contain: a function of dataset, number and version, so that any bytes can be judged
//! without a record.

use zazen_core::{FrameMeta, FrameNo, Layout, NameTemplate, RelPath, Result, Series, Source, Validator};
use zazen_wire::checksum::frame_checksum;

/// Nanoseconds since the epoch at which each simulation begins.
pub(crate) const EPOCH_NS: u64 = 1_700_000_000_000_000_000;
/// The user whose files all frames are.
pub(crate) const OWNER: u32 = 1000;
/// A user whom only the files' mode bits let read them.
pub(crate) const STRANGER: u32 = 2000;
/// Where users find the datasets.
pub(crate) const MOUNT: &str = "/data";

/// One frame of one dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FrameId {
    pub(crate) dataset: usize,
    pub(crate) number: u64,
}

impl std::fmt::Display for FrameId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "frame {} of dataset {}", self.number, self.dataset)
    }
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl FrameId {
    fn seed(self, version: u32) -> u64 {
        (self.dataset as u64) << 56 ^ self.number << 24 ^ u64::from(version)
    }

    /// Length of a version: empty, packed, or in a file of its own.
    pub(crate) fn length(self, version: u32) -> usize {
        match next(&mut self.seed(version)) % 16 {
            0 => 0,
            1..7 => 700,
            7..10 => 6_000,
            10..14 => 17_000,
            _ => 40_000,
        }
    }

    /// The bytes of a version.
    pub(crate) fn bytes(self, version: u32) -> Vec<u8> {
        let mut state = self.seed(version) ^ 0x5EED;
        let mut bytes = vec![0; self.length(version)];
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&next(&mut state).to_le_bytes()[..part.len()]);
        }
        bytes
    }

    /// Its file beneath the dataset.
    pub(crate) fn source(self) -> Result<Source> {
        let path = RelPath::new(&format!("frame-{:05}.dcd", self.number))?;
        Ok(Source { path, offset: 0, length: None })
    }

    /// What a writer says of a version.
    pub(crate) fn meta(self, version: u32, validator: Validator) -> Result<FrameMeta> {
        let bytes = self.bytes(version);
        Ok(FrameMeta {
            number: FrameNo::new(self.number)?,
            length: bytes.len() as u64,
            checksum: frame_checksum(&bytes),
            validator: Some(validator),
            uid: OWNER,
            gid: OWNER,
            mode: 0o644,
        })
    }
}

/// The names of all datasets' frames.
pub(crate) fn layout() -> Result<Layout> {
    Ok(Layout::Files(NameTemplate::parse("frame-{n:05}.dcd")?))
}

/// The number of the frame whose file this is.
pub(crate) fn number_of(path: &str) -> Option<u64> {
    path.strip_prefix("frame-")?.strip_suffix(".dcd")?.parse().ok()
}

/// A dataset as users spell it.
pub(crate) fn spelled(dataset: usize) -> String {
    format!("{MOUNT}/d{dataset}")
}

/// The dataset that users spell so.
pub(crate) fn dataset_at(spelled: &str) -> Option<usize> {
    spelled.strip_prefix(MOUNT)?.strip_prefix("/d")?.parse().ok()
}

/// The cache's name for a dataset.
pub(crate) fn series(dataset: usize) -> Result<RelPath> {
    RelPath::new(&format!("d{dataset}"))?.series(&Series::of(&layout()?))
}
