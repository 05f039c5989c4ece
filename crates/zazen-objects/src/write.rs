//! Objects that are written for a user.
//!
//! Invariants: an object is replaced as a whole, when all its bytes are with the store and have the
//! checksums that were sent with them. One that is given up leaves nothing but parts that no reader
//! sees; the store is asked to drop these, and the program does not end before that. At most
//! [`AT_ONCE`] parts of an object are under way.

use crate::errors::translate;
use crate::tree::{ObjectTree, Shared};
use crate::version::{tag_of, validator_of};
use futures_util::future::{self, Either};
use object_store::{
    Attribute, Attributes, GetOptions, MultipartUpload, ObjectStore, PutMultipartOptions, PutOptions,
    PutPayload,
};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use zazen_backing::objects::{ABORT_DEADLINE, CALL_DEADLINE, WRITE_DEADLINE};
use zazen_backing::served::{Incoming, NewFile, Receiver, Tag, There};
use zazen_core::{Error, ErrorKind, RelPath, Result};

/// The name of the object's property that holds the time of its source, in nanoseconds.
const MODIFIED: &str = "zazen-modified-ns";
/// The name of the object's property that holds the checksum of its bytes, in hexadecimal.
const CHECKSUM: &str = "zazen-crc64nvme";
/// Bytes of a part, where that is not too small for the object.
const PART_BYTES: u64 = 8 << 20;
/// A store takes so many parts of an object.
const PARTS_MAX: u64 = 10_000;
/// Parts of an object that are under way at once.
const AT_ONCE: usize = 2;
/// A store's longest key.
const KEY_BYTES_MAX: usize = 1024;
/// The program waits so much longer for uploads that were given up, which wait for the store.
const GRACE: Duration = Duration::from_secs(1);

fn property(name: &'static str) -> Attribute {
    Attribute::Metadata(name.into())
}

/// How many bytes the parts of an object have, all but the last.
fn part_bytes(bytes: u64) -> u64 {
    PART_BYTES.max(bytes.div_ceil(PARTS_MAX).next_multiple_of(1 << 20))
}

impl Shared {
    async fn look(&self, path: &RelPath) -> Result<There> {
        if !path.is_root() {
            let options = GetOptions { head: true, ..Default::default() };
            match self.store.get_opts(&self.object(path)?, options).await {
                Ok(found) => {
                    let told = |name| found.attributes.get(&property(name)).map(AsRef::as_ref);
                    let modified_ns = told(MODIFIED).and_then(|time: &str| time.parse().ok());
                    let checksum = told(CHECKSUM).and_then(|sum| u64::from_str_radix(sum, 16).ok());
                    return Ok(There::File { modified_ns, checksum, seen: validator_of(&found.meta) });
                }
                Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(translate(&self.name(path), error)),
            }
        }
        match self.folder_at(path).await {
            Ok(_) => Ok(There::Folder),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(There::Nothing),
            Err(error) => Err(error),
        }
    }
}

impl ObjectTree {
    /// Gives up the uploads that are under way, and waits until the store has dropped their parts:
    /// at most [`ABORT_DEADLINE`], and the time that their threads need.
    pub(crate) fn give_up(&self) {
        let is_ending = &self.shared.is_ending;
        is_ending.send_replace(true);
        let dropped = async { tokio::time::timeout(ABORT_DEADLINE + GRACE, is_ending.closed()).await };
        // The store keeps the rest, unseen, until its own rules drop them.
        self.runtime.block_on(dropped).ok();
    }
}

impl Receiver for ObjectTree {
    fn look(&self, path: &RelPath) -> Result<There> {
        self.within(CALL_DEADLINE, &self.shared.name(path), self.shared.look(path))
    }

    fn begin(&self, file: &NewFile) -> Result<Box<dyn Incoming>> {
        let at = self.shared.object(&file.path)?;
        if at.as_ref().len() > KEY_BYTES_MAX {
            let why = format!(
                "{}: its key is longer than {KEY_BYTES_MAX} bytes, the limit of object stores; choose a \
                 shorter prefix, or rename the file",
                self.shared.name(&file.path)
            );
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        Ok(Box::new(Upload {
            shared: self.shared.clone(),
            handle: self.runtime.handle().clone(),
            file: file.clone(),
            at,
            part_bytes: usize::try_from(part_bytes(file.bytes)).unwrap_or(usize::MAX),
            waiting: Vec::new(),
            beginning: None,
            parts: None,
            under_way: JoinSet::new(),
            is_ending: self.shared.is_ending.subscribe(),
        }))
    }
}

/// An object that is being written.
struct Upload {
    shared: Arc<Shared>,
    handle: tokio::runtime::Handle,
    file: NewFile,
    at: object_store::path::Path,
    part_bytes: usize,
    /// Bytes that are no whole part yet.
    waiting: Vec<u8>,
    /// The store was asked to begin an upload in parts, and has not answered.
    beginning: Option<JoinHandle<object_store::Result<Box<dyn MultipartUpload>>>>,
    /// The upload in parts; `None` while all bytes fit into one request.
    parts: Option<Box<dyn MultipartUpload>>,
    under_way: JoinSet<object_store::Result<()>>,
    /// Whether the program is to end. As long as this lives, the program waits.
    is_ending: watch::Receiver<bool>,
}

impl Upload {
    fn within<T>(&mut self, call: impl AsyncFnOnce(&mut Upload) -> object_store::Result<T>) -> Result<T> {
        let (handle, what) = (self.handle.clone(), self.shared.name(&self.file.path));
        let mut is_ending = self.is_ending.clone();
        let ended = handle.block_on(async {
            let called = pin!(tokio::time::timeout(WRITE_DEADLINE, call(self)));
            let is_ending = pin!(is_ending.wait_for(|is_ending| *is_ending));
            match future::select(called, is_ending).await {
                Either::Left((called, _)) => Some(called),
                Either::Right(_) => None,
            }
        });
        match ended {
            Some(Ok(done)) => done.map_err(|error| translate(&what, error)),
            Some(Err(_)) => {
                let why = format!("{what}: the object store has not taken it within {WRITE_DEADLINE:?}");
                Err(Error::new(ErrorKind::TimedOut, why))
            }
            None => {
                let why = format!("{what}: the program that asked for it ends");
                Err(Error::new(ErrorKind::Unavailable, why))
            }
        }
    }

    /// Begins an upload in parts, unless that was done. A caller that does not wait for the answer
    /// leaves the question under way: an upload whose number nobody knows could not be dropped.
    async fn begin_parts(&mut self) -> object_store::Result<&mut Box<dyn MultipartUpload>> {
        let parts = match self.parts.take() {
            Some(parts) => parts,
            None => {
                let options = PutMultipartOptions { attributes: self.attributes(), ..Default::default() };
                let (shared, at) = (self.shared.clone(), self.at.clone());
                let begin = async move { shared.store.put_multipart_opts(&at, options).await };
                // A question that is under way is not asked twice.
                let beginning = self.beginning.get_or_insert_with(|| self.handle.spawn(begin));
                let begun = beginning.await;
                self.beginning = None;
                begun.unwrap_or_else(|error| Err(error.into()))?
            }
        };
        Ok(self.parts.insert(parts))
    }

    fn attributes(&self) -> Attributes {
        let mut attributes = Attributes::new();
        attributes.insert(property(MODIFIED), self.file.modified_ns.to_string().into());
        if let Some(checksum) = self.file.checksum {
            attributes.insert(property(CHECKSUM), format!("{checksum:016x}").into());
        }
        attributes
    }

    async fn send_part(&mut self, bytes: Vec<u8>) -> object_store::Result<()> {
        while self.under_way.len() >= AT_ONCE {
            self.wait_for_one().await?;
        }
        let part = self.begin_parts().await?.put_part(PutPayload::from(bytes));
        self.under_way.spawn_on(part, &self.handle);
        Ok(())
    }

    async fn wait_for_one(&mut self) -> object_store::Result<()> {
        match self.under_way.join_next().await {
            None => Ok(()),
            Some(ended) => ended.unwrap_or_else(|error| Err(error.into())),
        }
    }

    async fn end(&mut self) -> object_store::Result<Tag> {
        let rest = std::mem::take(&mut self.waiting);
        if self.parts.is_none() {
            let options = PutOptions { attributes: self.attributes(), ..Default::default() };
            let put = self.shared.store.put_opts(&self.at, rest.into(), options).await?;
            return Ok(tag_of(put.e_tag.as_deref()));
        }
        if !rest.is_empty() {
            self.send_part(rest).await?;
        }
        while !self.under_way.is_empty() {
            self.wait_for_one().await?;
        }
        let tag = match &mut self.parts {
            Some(parts) => tag_of(parts.complete().await?.e_tag.as_deref()),
            None => Tag::default(),
        };
        self.parts = None;
        Ok(tag)
    }
}

impl Incoming for Upload {
    fn add(&mut self, bytes: Vec<u8>) -> Result<()> {
        self.waiting.extend(bytes);
        // A part that could be the last one waits for the end.
        while self.waiting.len() > self.part_bytes {
            let rest = self.waiting.split_off(self.part_bytes);
            let part = std::mem::replace(&mut self.waiting, rest);
            self.within(async |upload| upload.send_part(part).await)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Tag> {
        self.within(Upload::end)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let (beginning, parts) = (self.beginning.take(), self.parts.take());
        if beginning.is_none() && parts.is_none() {
            return;
        }
        let under_way = &mut self.under_way;
        let given_up = async {
            under_way.shutdown().await;
            let begun = match beginning {
                Some(beginning) => beginning.await.ok().and_then(object_store::Result::ok),
                None => parts,
            };
            if let Some(mut parts) = begun {
                parts.abort().await.ok();
            }
        };
        let bounded = async { tokio::time::timeout(ABORT_DEADLINE, given_up).await };
        // The store keeps them, unseen, until its own rules drop them.
        self.handle.block_on(bounded).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_object_has_more_parts_than_a_store_takes() {
        for bytes in [0, 1, PART_BYTES, PARTS_MAX * PART_BYTES, PARTS_MAX * PART_BYTES + 1, 5 << 40] {
            let part = part_bytes(bytes);
            assert!(part >= PART_BYTES && bytes.div_ceil(part) <= PARTS_MAX, "{bytes}: {part}");
        }
        assert_eq!(part_bytes(1 << 30), PART_BYTES);
    }
}
