//! A batch of a scan in the making.

use std::os::unix::fs::FileExt;
use zazen_core::{Error, Result};
use zazen_frames::messages::{BatchEntry, Delivery};
use zazen_store::OpenFrame;

/// Frames for a reply.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<BatchEntry>,
    pub(crate) bulk: Vec<u8>,
}

impl Batch {
    fn entry(&mut self, number: u64, delivery: Delivery, bytes: &[u8], checksum: Option<u64>) {
        let entry = BatchEntry {
            number,
            delivery,
            fd: None,
            offset: self.bulk.len() as u64,
            length: bytes.len() as u64,
            checksum,
            path: String::new(),
            error: None,
            whole: false,
        };
        self.entries.push(entry);
        self.bulk.extend_from_slice(bytes);
    }

    /// A cached frame: its bytes travel, where a real reader would get a descriptor.
    pub(crate) fn add(&mut self, frame: OpenFrame, delivery: Delivery) -> Result<()> {
        let mut bytes = vec![0; frame.meta.length as usize];
        let read = frame.file.read_exact_at(&mut bytes, frame.offset);
        read.map_err(|cause| Error::io("read a cached frame", cause))?;
        self.entry(frame.meta.number.get(), delivery, &bytes, Some(frame.meta.checksum));
        Ok(())
    }

    pub(crate) fn inline(&mut self, number: u64, bytes: &[u8]) {
        self.entry(number, Delivery::Inline, bytes, None);
    }

    pub(crate) fn fail(&mut self, number: u64, error: &Error) {
        self.entry(number, Delivery::Failed, &[], None);
        if let Some(entry) = self.entries.last_mut() {
            entry.error = Some((error.kind() as u32, error.to_string()));
        }
    }
}
