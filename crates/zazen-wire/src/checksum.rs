//! The one checksum of frames: CRC-64/NVME, as object stores use it, computed by the CPU's
//! carry-less multiplication. Headers and records carry a CRC-32C of their own.

/// CRC-64/NVME of `bytes`.
pub fn frame_checksum(bytes: &[u8]) -> u64 {
    crc_fast::crc64_nvme(bytes)
}

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC-64/NVME of bytes that come in pieces.
#[derive(Clone)]
pub struct FrameDigest(crc_fast::Digest);

impl Default for FrameDigest {
    fn default() -> FrameDigest {
        FrameDigest(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme))
    }
}

impl FrameDigest {
    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all pieces so far.
    pub fn finish(&self) -> u64 {
        self.0.finalize()
    }
}
